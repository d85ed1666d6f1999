//! What tests on the real API server count on: it is a whole one, keeps its data, and gives each
//! comer its rights only.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use support::cluster::{Cluster, wait_for};

const THINGS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.test.egress-proxies.io}
spec:
  group: test.egress-proxies.io
  scope: Namespaced
  names: {kind: Thing, plural: things, singular: thing}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties: {size: {type: integer}}
            x-kubernetes-validations:
            - {rule: 'self.size < 10', message: 'size: too large: use less than 10'}
";

fn thing(namespace: &str, name: &str, size: u32) -> String {
    format!(
        "{{apiVersion: test.egress-proxies.io/v1, kind: Thing, \
         metadata: {{name: {name}, namespace: {namespace}}}, spec: {{size: {size}}}}}"
    )
}

fn with_things(cluster: &Cluster) {
    cluster.apply(THINGS);
    cluster.get(&[
        "wait",
        "--for=condition=Established",
        "crd/things.test.egress-proxies.io",
    ]);
}

#[test]
fn a_rule_of_a_custom_resource_refuses_by_its_message() {
    let cluster = Cluster::shared();
    with_things(cluster);
    let namespace = cluster.namespace("rule");
    cluster.apply(&thing(&namespace, "small", 9));
    let said = cluster.kubectl_with(
        &["apply", "--dry-run=server", "-f", "-"],
        &thing(&namespace, "large", 10),
    );
    assert!(!said.well);
    assert!(
        said.err.contains("size: too large: use less than 10"),
        "{}",
        said.err
    );
}

#[test]
fn a_namespace_goes_with_what_is_in_it_and_owned_objects_go_with_their_owner() {
    let cluster = Cluster::shared();
    let namespace = cluster.namespace("owner");
    let within = |arguments: &[&str]| cluster.get(&[arguments, &["-n", &namespace]].concat());
    within(&["create", "configmap", "owner"]);
    within(&["create", "configmap", "other"]);
    let uid = within(&[
        "get",
        "configmap",
        "owner",
        "-o",
        "jsonpath={.metadata.uid}",
    ]);
    cluster.apply(&format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: owned, namespace: {namespace}, \
         ownerReferences: [{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}}}]}}}}"
    ));
    within(&["delete", "configmap", "owner"]);
    cluster.wait_absent(&["configmap", "owned", "-n", &namespace]);
    within(&["get", "configmap", "other"]);
    cluster.get(&["delete", "namespace", &namespace, "--timeout=180s"]);
    cluster.wait_absent(&["namespace", &namespace]);
}

#[test]
fn a_service_account_may_do_what_its_role_says_and_nothing_else() {
    let cluster = Cluster::shared();
    let namespace = cluster.namespace("rights");
    let within = |arguments: &[&str]| cluster.get(&[arguments, &["-n", &namespace]].concat());
    within(&["create", "serviceaccount", "reader"]);
    within(&[
        "create",
        "role",
        "reader",
        "--verb=list",
        "--resource=configmaps",
    ]);
    let account = format!("{namespace}:reader");
    within(&[
        "create",
        "rolebinding",
        "reader",
        "--role=reader",
        "--serviceaccount",
        &account,
    ]);
    let kubeconfig = cluster.service_account(&namespace, "reader");
    let said = cluster.kubectl_as(&kubeconfig, &["get", "configmaps", "-n", &namespace]);
    assert!(said.well, "{}", said.err);
    let said = cluster.kubectl_as(&kubeconfig, &["get", "secrets", "-n", &namespace]);
    assert!(
        said.err.contains("cannot list resource \"secrets\""),
        "{}",
        said.err
    );
}

#[test]
fn the_api_server_comes_back_with_its_data_after_a_crash_and_after_a_freeze() {
    let cluster = Cluster::start();
    cluster.get(&["create", "configmap", "kept"]);
    cluster.stop_api_server();
    let refused = cluster.kubectl(&["get", "configmap", "kept"]);
    assert!(refused.err.contains("refused"), "{}", refused.err);
    cluster.start_api_server();
    cluster.get(&["get", "configmap", "kept"]);
    let frozen = cluster.freeze_api_server();
    let silent = cluster.kubectl(&["get", "configmap", "kept", "--request-timeout=1s"]);
    assert!(!silent.well);
    drop(frozen);
    wait_for("an answer after the freeze", || {
        let said = cluster.kubectl(&["get", "configmap", "kept", "--request-timeout=5s"]);
        if said.well { Ok(()) } else { Err(said.err) }
    });
}

#[test]
fn nothing_is_left_of_the_servers_when_their_input_closes() {
    let cluster = Cluster::start();
    let kubeconfig = cluster.kubeconfig();
    let directory = kubeconfig.parent().expect("its directory").to_owned();
    let pids = cluster.pids();
    assert_eq!(pids.len(), 3);
    drop(cluster);
    wait_for("no process and no directory", || {
        let living: Vec<&i32> = pids
            .iter()
            .filter(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists())
            .collect();
        if living.is_empty() && !directory.exists() {
            Ok(())
        } else {
            Err(format!("{living:?}, {}", directory.exists()))
        }
    });
}
