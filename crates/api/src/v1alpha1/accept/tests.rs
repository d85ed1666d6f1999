use super::*;
use egress_core::proxy::{SourceKind, UserDataRef};
use serde_json::{Value, json};
use std::time::Duration;

const LOCAL: ProviderAbilities = ProviderAbilities {
    kind: "local",
    user_data: false,
};
const PROXMOX: ProviderAbilities = ProviderAbilities {
    kind: "proxmox",
    user_data: true,
};

fn proxy(spec: Value) -> Proxy {
    let mut document = json!({
        "apiVersion": "egress-proxies.io/v1alpha1", "kind": "Proxy",
        "metadata": {"name": "a"}, "spec": {"provider": "p"},
    });
    for (field, value) in spec.as_object().unwrap() {
        document["spec"][field] = value.clone();
    }
    Proxy::read(document).into_result().unwrap()
}

fn hash(spec: Value) -> String {
    proxy(spec)
        .accept(None)
        .unwrap()
        .spec
        .config_hash
        .as_str()
        .to_owned()
}

/// A changed hash replaces every machine at the next upgrade: correct the code, not this table.
#[test]
fn no_upgrade_changes_the_hash_of_a_manifest() {
    for (spec, expected) in [
        (json!({}), "d2d66537841e85d8"),
        (
            json!({"machine": {"cpus": 2, "memoryMiB": 1024, "diskGiB": 8}}),
            "c6e9d5592cccc5c7",
        ),
        (
            json!({"proxy": {"port": 3128, "clients": ["10.0.0.0/8", "2001:db8::/32"]}}),
            "3899f62841f8218a",
        ),
        (
            json!({"proxy": {"auth": {"secretRef": {"name": "s"}}}}),
            "15e9ea8c21ff6bfe",
        ),
        (
            json!({"proxy": {"auth": {"none": {}}, "clients": ["192.0.2.0/24"]}}),
            "3a440f4b40a3e619",
        ),
        (
            json!({"userData": {"configMapRef": {"name": "c", "key": "k"}}}),
            "0a0c60193b8fe6ce",
        ),
    ] {
        assert_eq!(hash(spec.clone()), expected, "{spec}");
    }
}

#[test]
fn the_same_wish_written_otherwise_has_the_same_hash() {
    let defaults = json!({
        "machine": {"cpus": 1, "memoryMiB": 512, "diskGiB": 4},
        "proxy": {"protocols": ["http"], "clients": [], "auth": {"generated": {}}},
        "egress": "shared",
        "probe": {"interval": "10s", "timeout": "5s", "failureThreshold": 3},
        "paused": false,
    });
    assert_eq!(hash(json!({})), hash(defaults));
    assert_eq!(
        hash(json!({"proxy": {"clients": ["10.0.0.0/8", "2001:db8::/32"]}})),
        hash(json!({"proxy": {"clients": ["2001:0db8::/32", "10.0.0.0/8"]}})),
    );
}

#[test]
fn only_the_machine_proxy_and_user_data_fields_change_the_hash() {
    let plain = hash(json!({}));
    for other in [
        json!({"provider": "elsewhere"}),
        json!({"paused": true}),
        json!({"probe": {"interval": "20s"}}),
    ] {
        assert_eq!(hash(other.clone()), plain, "{other}");
    }
    let mut seen = vec![plain];
    for field in [
        json!({"machine": {"cpus": 2}}),
        json!({"machine": {"memoryMiB": 513}}),
        json!({"machine": {"diskGiB": 5}}),
        json!({"proxy": {"port": 3128}}),
        json!({"proxy": {"clients": ["10.0.0.0/8"]}}),
        json!({"proxy": {"auth": {"secretRef": {"name": "s"}}}}),
        json!({"userData": {"secretRef": {"name": "s", "key": "k"}}}),
    ] {
        let hash = hash(field.clone());
        assert!(!seen.contains(&hash), "{field}");
        seen.push(hash);
    }
}

#[test]
fn a_sound_proxy_is_told_in_the_words_of_the_core() {
    let mut written = proxy(json!({
        "machine": {"cpus": 2}, "paused": true,
        "proxy": {"port": 8080, "clients": ["192.0.2.0/24", "10.0.0.0/8"],
                  "auth": {"secretRef": {"name": "creds"}}},
        "probe": {"interval": "1m", "timeout": "250ms", "failureThreshold": 7},
    }));
    written.metadata.generation = Some(4);
    written
        .metadata
        .annotations
        .insert(ABANDON_ANNOTATION.to_owned(), "true".to_owned());
    let accepted = written.accept(Some(&LOCAL)).unwrap();
    assert_eq!(accepted.id.to_string(), "default/a");
    assert_eq!(
        accepted.spec.size,
        MachineSize {
            cpus: 2,
            memory_mib: 512,
            disk_gib: 4
        }
    );
    assert_eq!(accepted.spec.port, Some(8080));
    let clients: Vec<_> = accepted
        .spec
        .clients
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(clients, ["10.0.0.0/8", "192.0.2.0/24"]);
    assert_eq!(accepted.spec.auth, AuthSource::Secret("creds".to_owned()));
    assert_eq!(accepted.spec.probe_interval, Duration::from_mins(1));
    assert_eq!(accepted.spec.probe_timeout, Duration::from_millis(250));
    assert_eq!(accepted.spec.failure_threshold, 7);
    assert!(accepted.paused && accepted.abandon);
    assert_eq!(accepted.generation, 4);
    assert!(matches!(accepted.intent(), Intent::Paused(_)));
    assert!(matches!(
        proxy(json!({})).accept(None).unwrap().intent(),
        Intent::Run(_)
    ));
}

#[test]
fn user_data_is_refused_by_name_where_machines_cannot_read_it() {
    let written = proxy(json!({"userData": {"secretRef": {"name": "s", "key": "k"}}}));
    let findings = written.accept(Some(&LOCAL)).unwrap_err();
    assert_eq!(
        findings[0].to_string(),
        "spec.userData: {secretRef}: is not supported by a provider of kind local: \
         remove it, or choose another provider"
    );
    assert_eq!(findings.len(), 1);
}

#[test]
fn a_reference_to_user_data_is_told_in_the_words_of_the_core() {
    for (field, kind) in [
        ("secretRef", SourceKind::Secret),
        ("configMapRef", SourceKind::ConfigMap),
    ] {
        let written = proxy(json!({"userData": {field: {"name": "s", "key": "k"}}}));
        let accepted = written.accept(Some(&PROXMOX)).unwrap();
        let expected = UserDataRef {
            kind,
            name: "s".to_owned(),
            key: "k".to_owned(),
        };
        assert_eq!(accepted.spec.user_data, Some(expected));
    }
}

#[test]
fn a_proxy_with_faults_is_not_accepted() {
    let mut written = proxy(json!({}));
    written.spec.machine.cpus = 65;
    written.spec.proxy.clients.push("10.0.0.1/8".to_owned());
    written.spec.probe.timeout = crate::v1alpha1::DurationText::new("soon");
    assert_eq!(written.accept(None).unwrap_err().len(), 3);
}
