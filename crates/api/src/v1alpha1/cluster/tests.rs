use super::*;
use crate::v1alpha1::{Condition, MachineSpec, ProxyStatus};
use egress_core::{finding::Finding, status as core};
use serde_json::{Value, json};

fn object(spec: Value) -> ProxyObject {
    serde_json::from_value(json!({
        "apiVersion": "egress-proxies.io/v1alpha1",
        "kind": "Proxy",
        "metadata": {
            "name": "one",
            "namespace": "team",
            "uid": "6f0a",
            "generation": 3,
            "resourceVersion": "77",
            "creationTimestamp": "2026-11-30T10:00:00Z",
            "deletionTimestamp": "2026-11-30T11:00:00Z",
            "finalizers": ["egress-proxies.io/machine"],
            "managedFields": [{"manager": "kubectl", "operation": "Update"}],
            "annotations": {"egress-proxies.io/abandon": "true"},
        },
        "spec": spec,
    }))
    .unwrap()
}

fn told(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn an_object_of_the_server_is_accepted_like_the_manifest_it_came_from() {
    let reading = object(json!({"provider": "lab", "machine": {"cpus": 2}})).read();
    let proxy = reading.into_result().unwrap();
    assert_eq!(
        proxy.spec.machine,
        MachineSpec {
            cpus: 2,
            ..MachineSpec::default()
        }
    );
    let accepted = proxy.accept(None).unwrap();
    assert_eq!(accepted.id.to_string(), "team/one");
    assert_eq!(accepted.generation, 3);
    assert!(accepted.abandon);
}

#[test]
fn a_spec_that_this_version_cannot_read_is_kept_and_its_faults_are_told() {
    let spec = json!({"provider": "lab", "machine": {"cpus": "two"}, "colour": "red"});
    let object = object(spec.clone());
    assert_eq!(object.spec, StoredSpec::Foreign(spec));
    let mut findings = told(&object.read().findings);
    findings.sort();
    assert_eq!(findings.len(), 2, "{findings:#?}");
    assert!(findings[0].starts_with("spec.colour: "), "{findings:#?}");
    assert!(
        findings[1].starts_with("spec.machine.cpus: "),
        "{findings:#?}"
    );
}

#[test]
fn a_null_counts_as_not_written_and_no_spec_at_all_is_a_fault() {
    let reading = object(json!({"provider": "lab", "machine": null})).read();
    assert_eq!(
        reading.into_result().unwrap().spec.machine,
        MachineSpec::default()
    );
    let findings = told(&object(Value::Null).read().findings);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert!(findings[0].starts_with("spec"), "{findings:#?}");
}

#[test]
fn a_status_of_another_version_does_not_hide_its_object() {
    let mut text = serde_json::to_value(object(json!({"provider": "lab"}))).unwrap();
    text["status"] = json!({"phase": "Meditating"});
    let object: ProxyObject = serde_json::from_value(text).unwrap();
    assert_eq!(object.status, None);
    assert!(object.is_being_deleted());
}

#[test]
fn an_object_is_written_with_its_version_and_kind() {
    let spec = object(json!({"provider": "lab"}))
        .read()
        .value
        .unwrap()
        .spec;
    let text = serde_json::to_value(ProxyObject::new("team", "one", spec)).unwrap();
    assert_eq!(text["apiVersion"], "egress-proxies.io/v1alpha1");
    assert_eq!(text["kind"], "Proxy");
    assert_eq!(text["spec"]["provider"], "lab");
    let text = serde_json::to_value(ProxyProvider::new("lab")).unwrap();
    let wanted = json!({
        "apiVersion": "egress-proxies.io/v1alpha1",
        "kind": "ProxyProvider",
        "metadata": {"name": "lab"},
    });
    assert_eq!(text, wanted);
}

fn status() -> core::ProxyStatus {
    serde_json::from_value(json!({
        "phase": "Running",
        "observedGeneration": 3,
        "provider": "lab",
        "machine": {"name": "px-1", "id": "100017", "host": "node-1", "attempt": 1},
        "addresses": ["192.0.2.7"],
        "endpoint": "192.0.2.7:3128",
        "conditions": [
            {"type": "Serving", "status": "True", "reason": "Serving", "message": "answered"},
            {"type": "Ready", "status": "Unknown", "reason": "NotProven", "message": "not yet"},
        ],
    }))
    .unwrap()
}

#[test]
fn a_status_keeps_the_time_of_a_condition_until_that_changes() {
    let at = |text: &str| text.parse().unwrap();
    let first = ProxyStatus::told(
        &status(),
        Some("proxmox"),
        None,
        at("2026-11-30T10:00:00.5Z"),
    );
    assert_eq!(first.provider_id.as_deref(), Some("proxmox://lab/100017"));
    assert_eq!(
        first.conditions[0].last_transition_time,
        "2026-11-30T10:00:00Z"
    );
    let later = at("2026-11-30T11:00:00Z");
    let again = ProxyStatus::told(&status(), Some("proxmox"), Some(&first), later);
    assert_eq!(again, first);
    let mut changed = status();
    changed.conditions[1].status = core::ConditionStatus::True;
    let changed = ProxyStatus::told(&changed, Some("proxmox"), Some(&first), later);
    let times: Vec<_> = changed
        .conditions
        .iter()
        .map(|c| c.last_transition_time.as_str())
        .collect();
    assert_eq!(times, ["2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z"]);
}

#[test]
fn a_message_is_cut_to_what_the_definition_allows() {
    let fresh = Condition {
        r#type: "Accepted".into(),
        status: "False".into(),
        reason: "Invalid".into(),
        message: "é".repeat(40_000),
        last_transition_time: String::new(),
        observed_generation: None,
    };
    let stored = condition(fresh, &[], jiff::Timestamp::UNIX_EPOCH);
    assert_eq!(stored.message.chars().count(), 32_768);
    assert!(stored.message.ends_with('…'));
}

#[test]
fn findings_of_a_provider_are_bounded_with_errors_first() {
    let finding = |severity, n: usize| ProviderFinding {
        severity,
        reason: "LowCapacity".into(),
        found: format!("found {n} {}", "x".repeat(2_000)),
        remedy: "mend it".into(),
    };
    let warnings = (0..40).map(|n| finding(ProviderSeverity::Warning, n));
    let all = warnings.chain([finding(ProviderSeverity::Error, 40)]);
    let status = ProxyProviderStatus::default().with_findings(all);
    assert_eq!(status.findings.len(), MAX_PROVIDER_FINDINGS);
    assert!(status.findings[0].found.starts_with("found 40"));
    assert!(status.findings[1].found.starts_with("found 0"));
    assert_eq!(status.findings[0].found.chars().count(), 1_024);
}

#[test]
fn every_definition_can_be_made() {
    let names: Vec<_> = crds()
        .into_iter()
        .map(|crd| crd.metadata.name.unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "proxies.egress-proxies.io",
            "proxyproviders.egress-proxies.io"
        ]
    );
}
