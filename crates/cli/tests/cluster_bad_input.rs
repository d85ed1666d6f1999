//! What people get wrong, as `kubectl describe` tells it, and that what is mended goes on without
//! a deletion.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use std::{net::TcpListener, process::Command};
use support::{
    cluster::{Cluster, Said},
    field::Field,
};

/// The field, its value, what is wrong and what to do are all told.
fn wait_parts(field: &Field<'_>, name: &str, parts: &[&str]) {
    for part in parts {
        field.wait_told(name, part);
    }
}

#[test]
fn a_field_that_the_kind_of_provider_does_not_take_and_a_port_in_use_are_told_and_mended() {
    let cluster = Cluster::shared();
    let field = Field::on_this_host(cluster, "here", 30_800);
    let _operator = field.start();
    let text = "userData: {configMapRef: {name: more, key: text}}";
    cluster.apply(&field.manifest("data", text));
    field.wait_condition("data", "Accepted", "False/Invalid: spec.userData");
    wait_parts(&field, "data", &["remove it, or choose another provider"]);
    cluster.apply(&field.manifest("data", ""));
    field.wait_condition("data", "Serving", "True/");

    let held = TcpListener::bind("127.0.0.1:31050").expect("a free port");
    cluster.apply(&field.manifest("port", "proxy: {port: 31050}"));
    let holder = format!("is held by process {}", std::process::id());
    wait_parts(
        &field,
        "port",
        &[
            "Capacity",
            "spec.proxy.port: 31050: it is not free",
            &holder,
            "choose another one, or end what holds it",
        ],
    );
    drop(held);
    field.wait_condition("port", "Serving", "True/");
    field.delete(&["data", "port"]);
    field.wait_gone();
}

#[test]
fn cloud_config_that_is_missing_or_undoes_ours_is_told_and_mended() {
    let cluster = Cluster::shared();
    let field = Field::on_a_simulator(cluster, "cloud-config", "20");
    let _operator = field.start();
    let source = "userData: {secretRef: {name: more, key: text}}";
    cluster.apply(&field.manifest("a", source));
    wait_parts(
        &field,
        "a",
        &[
            "UserDataMissing",
            "Secret",
            "/more does not exist: create it",
        ],
    );
    let secret = |key: &str, text: &str| {
        let object = serde_json::json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "more", "namespace": field.namespace},
            "stringData": {key: text},
        });
        cluster.apply(&object.to_string());
    };
    secret("other", "#cloud-config\nruncmd: [[true]]\n");
    wait_parts(&field, "a", &["lacks the key text: add it"]);
    secret(
        "text",
        "#cloud-config\nnetwork: {version: 2}\nruncmd: [[true]]\n",
    );
    wait_parts(
        &field,
        "a",
        &["userData.network", "has no effect in user-data: remove it"],
    );
    secret("text", "#cloud-config\nruncmd: [[true]]\n");
    field.wait_condition("a", "Serving", "True/");
    field.delete(&["a"]);
    field.wait_gone();
}

#[test]
fn a_network_that_is_none_is_refused_and_diff_and_edit_show_and_change_a_proxy() {
    let cluster = Cluster::shared();
    let field = Field::on_this_host(cluster, "edited", 30_900);
    let _operator = field.start();
    let impossible = field.manifest("a", "proxy: {clients: [10.0.0.0/33]}");
    let said = cluster.kubectl_with(&["apply", "-f", "-"], &impossible);
    assert!(
        !said.well && said.err.contains("10.0.0.0/33"),
        "{}",
        said.err
    );
    assert!(said.err.contains("spec.proxy.clients"), "{}", said.err);

    field.declare(&["a"]);
    field.wait_serving(&["a"]);
    let machines = field.machines();
    let same = cluster.kubectl_with(&["diff", "-f", "-"], &field.manifest("a", ""));
    assert!(
        same.well,
        "a status is no difference: {}{}",
        same.out, same.err
    );
    let paused = field.manifest("a", "paused: true");
    let differs = cluster.kubectl_with(&["diff", "-f", "-"], &paused);
    assert!(
        !differs.well && differs.out.contains("+  paused: true"),
        "{}",
        differs.out
    );

    // The object as people edit it has all that the server adds.
    let edit = |change: &str| {
        let mut kubectl = Command::new(cluster.kubectl_program());
        kubectl.args(["edit", "proxy", "a", "-n", &field.namespace]);
        kubectl.env("KUBECONFIG", cluster.kubeconfig());
        kubectl.env("KUBE_EDITOR", format!("sed -i '{change}'"));
        Said::from(kubectl.output().expect("it starts"))
    };
    let said = edit("s/interval: 5s/interval: 7s/");
    assert!(said.well, "{}", said.err);
    assert_eq!(field.proxy("a")["spec"]["probe"]["interval"], "7s");
    let said = edit("s/provider: here/provider: there/");
    assert!(!said.well, "{}", said.out);
    field.wait_serving(&["a"]);
    assert_eq!(field.machines(), machines);
    field.delete(&["a"]);
    field.wait_gone();
}
