//! The custom resources and the chart at a real API server: the same table that
//! `crates/api/tests/admission.rs` runs without one, and every rendering of the chart.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use serde_json::{Value, json};
use std::{path::Path, process::Command, sync::Once};
use support::cluster::{Cluster, Said};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/chart");

/// A server that has our definitions, as the program prints them.
fn cluster() -> &'static Cluster {
    static DEFINED: Once = Once::new();
    let cluster = Cluster::shared();
    DEFINED.call_once(|| {
        let printed = Command::new(env!("CARGO_BIN_EXE_egress-proxies"))
            .arg("crds")
            .output()
            .expect("the program starts");
        let crds = String::from_utf8(printed.stdout).expect("text");
        let said = cluster.kubectl_with(&["apply", "--server-side", "-f", "-"], &crds);
        assert!(said.well, "{}", said.err);
        assert!(!said.err.contains("Warning"), "{}", said.err);
        cluster.get(&["wait", "--for=condition=Established", "crd", "--all"]);
    });
    cluster
}

fn proxy(namespace: &str, metadata: &Value, spec: &Value) -> String {
    let mut metadata = metadata.clone();
    if metadata.is_null() {
        metadata = json!({"name": "one"});
    }
    metadata["namespace"] = namespace.into();
    json!({
        "apiVersion": "egress-proxies.io/v1alpha1",
        "kind": "Proxy",
        "metadata": metadata,
        "spec": spec,
    })
    .to_string()
}

fn texts(value: &Value) -> Vec<String> {
    let all = value.as_array().into_iter().flatten();
    all.map(|text| text.as_str().unwrap_or_default().to_owned())
        .collect()
}

/// `path: message` of each refusal that the table expects of the API server.
fn refusals(row: &Value) -> Vec<(String, String)> {
    let parts = |text: &str, skip: usize| {
        let mut parts = text.splitn(2 + skip, ": ");
        let path = parts.next().unwrap_or_default().to_owned();
        (path, parts.nth(skip).unwrap_or_default().to_owned())
    };
    if row["cluster"].is_array() {
        texts(&row["cluster"])
            .iter()
            .map(|text| parts(text, 0))
            .collect()
    } else {
        texts(&row["manifest"])
            .iter()
            .map(|text| parts(text, 1))
            .collect()
    }
}

#[test]
fn the_api_server_answers_every_row_of_the_table_as_the_table_says() {
    let cluster = cluster();
    let namespace = cluster.namespace("rows");
    let table = include_str!("../../api/tests/admission.yaml");
    let rows: Vec<Value> = serde_saphyr::from_str(table).expect("the table");
    let dry = ["--dry-run=server", "--validate=false", "-f", "-"];
    let mut wrong = Vec::new();
    for row in &rows {
        let title = row["row"].as_str().expect("a title");
        let object = proxy(&namespace, &row["metadata"], &row["spec"]);
        let said = if row["before"].is_null() {
            cluster.kubectl_with(&[&["create"][..], &dry].concat(), &object)
        } else {
            cluster.apply(&proxy(&namespace, &row["metadata"], &row["before"]));
            let change = ["apply", "--server-side", "--force-conflicts"];
            let said = cluster.kubectl_with(&[&change[..], &dry].concat(), &object);
            cluster.get(&["delete", "proxies", "--all", "-n", &namespace]);
            said
        };
        let expected = refusals(row);
        let as_expected = said.well == expected.is_empty()
            && expected
                .iter()
                .all(|(path, message)| said.err.contains(path) && said.err.contains(message));
        if !as_expected {
            wrong.push(format!("{title}: expected {expected:?}: {}", said.err));
        }
    }
    assert!(rows.len() > 40);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn another_choice_of_auth_takes_the_place_of_the_one_before_however_it_is_applied() {
    let cluster = cluster();
    let namespace = cluster.namespace("auth");
    let choices = [
        json!({}),
        json!({"auth": {"secretRef": {"name": "a"}}}),
        json!({"auth": {"generated": {}}}),
        json!({"auth": {"none": {}}, "clients": ["10.0.0.0/8"]}),
        json!({}),
    ];
    for (name, how) in [
        ("client", &["apply"][..]),
        ("server", &["apply", "--server-side"]),
    ] {
        for choice in &choices {
            let spec = json!({"provider": "lab", "proxy": choice});
            let object = proxy(&namespace, &json!({"name": name}), &spec);
            let said = cluster.kubectl_with(&[how, &["-f", "-"]].concat(), &object);
            assert!(said.well, "{name}: {choice}: {}", said.err);
            let stored = cluster.json(&["get", "proxy", "-n", &namespace, name]);
            assert_eq!(stored["spec"]["proxy"]["auth"], choice["auth"], "{name}");
        }
    }
}

#[test]
fn kubectl_shows_columns_selects_by_provider_and_explains() {
    let cluster = cluster();
    let namespace = cluster.namespace("columns");
    for (name, provider) in [("one", "lab"), ("two", "other")] {
        let spec = json!({"provider": provider});
        cluster.apply(&proxy(&namespace, &json!({"name": name}), &spec));
    }
    let status = json!({"status": {
        "phase": "Running",
        "endpoint": "192.0.2.1:3128",
        "conditions": [{
            "type": "Serving", "status": "True", "reason": "Serving", "message": "answered",
            "lastTransitionTime": "2026-11-30T10:00:00Z",
        }],
    }});
    let patch = status.to_string();
    let patch = [
        "patch",
        "px",
        "one",
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ];
    cluster.get(&[&patch[..], &["-n", &namespace]].concat());
    let shown = cluster.get(&[
        "get",
        "px",
        "-n",
        &namespace,
        "--field-selector=spec.provider=lab",
    ]);
    let mut lines = shown
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let head = [
        "NAME", "PROVIDER", "PHASE", "READY", "SERVING", "ENDPOINT", "AGE",
    ];
    assert_eq!(lines.next().expect("a head"), head);
    assert_eq!(
        lines.next().expect("a row")[..5],
        ["one", "lab", "Running", "True", "192.0.2.1:3128"]
    );
    assert_eq!(lines.next(), None);
    assert!(
        cluster
            .get(&["get", "egress", "-n", &namespace])
            .contains("two")
    );
    let explained = cluster.get(&["explain", "proxy.spec.probe.interval"]);
    assert!(
        explained.contains("From one probe to the next"),
        "{explained}"
    );
}

/// The chart rendered with these values.
fn rendered(cluster: &Cluster, namespace: &str, values: &[&str]) -> String {
    let mut arguments = vec!["template", "egress-proxies", CHART, "-n", namespace];
    for value in values {
        arguments.extend(["--set", value]);
    }
    let said = cluster.helm(&arguments);
    assert!(said.well, "{values:?}: {}", said.err);
    said.out
}

fn restricted(cluster: &Cluster, topic: &str) -> String {
    let namespace = cluster.namespace(topic);
    for mode in ["enforce", "warn"] {
        let label = format!("pod-security.kubernetes.io/{mode}=restricted");
        cluster.get(&["label", "namespace", &namespace, &label]);
    }
    namespace
}

#[test]
fn the_api_server_takes_what_the_chart_renders_and_holds_its_pods_for_restricted() {
    let cluster = cluster();
    let namespace = restricted(cluster, "chart");
    let watched = format!("watchNamespace={namespace}");
    let choices: [&[&str]; 4] = [
        &[],
        &[&watched, "config.installation=a", "providerObjects=true"],
        &["replicas=1", "dashboard.create=true", "crds.install=false"],
        &[
            "files[0].name=a",
            "files[0].secret=b",
            "files[1].name=c",
            "files[1].configMap=d",
        ],
    ];
    for values in choices {
        let text = rendered(cluster, &namespace, values);
        let dry = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
            "-f",
            "-",
        ];
        let said = cluster.kubectl_with(&dry, &text);
        assert!(said.well, "{values:?}: {}", said.err);
        assert!(!said.err.contains("Warning"), "{values:?}: {}", said.err);
    }
}

/// Whether the service account of the chart may do this; `verb resource -n namespace`.
fn may(cluster: &Cluster, namespace: &str, what: &str) -> bool {
    let account = format!("--as=system:serviceaccount:{namespace}:egress-proxies");
    let mut arguments = vec!["auth", "can-i", &account];
    arguments.extend(what.split_whitespace());
    let Said { out, .. } = cluster.kubectl(&arguments);
    out.trim() == "yes"
}

#[test]
fn the_service_account_of_the_chart_may_do_what_it_needs_and_nothing_else() {
    let cluster = cluster();
    let namespace = restricted(cluster, "rights");
    cluster.apply(&rendered(cluster, &namespace, &["crds.install=false"]));
    let needed = [
        "list proxies.egress-proxies.io -A",
        "watch proxies.egress-proxies.io -A",
        "patch proxies.egress-proxies.io -A",
        "patch proxies.egress-proxies.io --subresource=status -A",
        "get secrets -A",
        "create secrets -A",
        "get configmaps -A",
        "create events.events.k8s.io -A",
        "create proxyproviders.egress-proxies.io",
        "patch proxyproviders.egress-proxies.io --subresource=status",
        "get namespaces/kube-system",
    ];
    let lease = format!("-n {namespace}");
    let leases = [
        "create leases.coordination.k8s.io",
        "update leases.coordination.k8s.io/egress-proxies",
    ];
    for what in needed
        .map(str::to_owned)
        .into_iter()
        .chain(leases.map(|l| format!("{l} {lease}")))
    {
        assert!(may(cluster, &namespace, &what), "may not {what}");
    }
    for what in [
        "list secrets -A",
        "patch secrets -A",
        "delete secrets -A",
        "delete proxies.egress-proxies.io -A",
        "create proxies.egress-proxies.io -A",
        "get pods -A",
        "get nodes",
        "get namespaces/default",
        "create leases.coordination.k8s.io -n default",
        "update leases.coordination.k8s.io/other",
    ] {
        assert!(!may(cluster, &namespace, what), "may {what}");
    }
}

#[test]
fn the_chart_keeps_the_objects_through_upgrade_and_uninstall() {
    let cluster = Cluster::start();
    let namespace = restricted(&cluster, "life");
    let chart = |verb: &[&str]| {
        let said = cluster.helm(&[verb, &["-n", &namespace]].concat());
        assert!(said.well, "helm {verb:?}: {}", said.err);
        said.out
    };
    chart(&["install", "egress-proxies", CHART]);
    cluster.get(&["wait", "--for=condition=Established", "crd", "--all"]);
    cluster.apply(&proxy(
        &namespace,
        &Value::Null,
        &json!({"provider": "lab"}),
    ));
    let uid = || {
        cluster.get(&[
            "get",
            "px",
            "one",
            "-n",
            &namespace,
            "-o",
            "jsonpath={.metadata.uid}",
        ])
    };
    let before = uid();
    let pods = || {
        let deployment = cluster.json(&["get", "deployment", "egress-proxies", "-n", &namespace]);
        deployment["spec"]["template"].clone()
    };
    let template = pods();
    chart(&[
        "upgrade",
        "egress-proxies",
        CHART,
        "--set",
        "config.providers[0].name=lab",
    ]);
    assert_eq!(pods(), template, "a changed provider restarts nothing");
    chart(&[
        "upgrade",
        "egress-proxies",
        CHART,
        "--set",
        "config.installation=other",
    ]);
    assert_ne!(
        pods(),
        template,
        "another installation is taken on by a restart"
    );
    assert_eq!(uid(), before);
    chart(&["uninstall", "egress-proxies"]);
    assert_eq!(
        uid(),
        before,
        "the definitions stay, and with them the objects"
    );
    let manifests = Path::new(CHART).join("../manifests/all-namespaces.yaml");
    let manifests = std::fs::read_to_string(manifests).expect("rendered");
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    let said = cluster.kubectl_with(&apply, &manifests);
    assert!(said.well && !said.err.contains("Warning"), "{}", said.err);
    assert_eq!(uid(), before);
}
