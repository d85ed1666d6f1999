//! An operator that looks after all namespaces.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use support::{
    cluster::{Cluster, wait_for},
    field::{Field, Scope, condition_of},
    sim::VMIDS,
};

#[test]
fn a_namespace_goes_with_its_proxies_and_their_machines_and_others_are_left_alone() {
    let cluster = Cluster::shared();
    let field = Field::over_a_simulator(cluster, "ending", "20", Scope::Every);
    let _operator = field.start();
    field.declare(&["a", "b"]);
    let other = cluster.namespace("staying");
    cluster.apply(&field.manifest("a", "").replace(&field.namespace, &other));
    field.wait_condition("a", "Serving", "True/");
    field.wait_condition("b", "Serving", "True/");
    cluster.get(&[
        "wait",
        "px",
        "a",
        "-n",
        &other,
        "--for=condition=Serving",
        "--timeout=180s",
    ]);
    assert_eq!(field.machines().len(), 3);

    let told = wait_for("the provider's object", || {
        let provider = cluster.json(&["get", "proxyprovider", "here"]);
        if condition_of(&provider, "Ready").starts_with("True/") {
            Ok(provider)
        } else {
            Err(provider.to_string())
        }
    });
    assert_eq!(told["status"]["kind"], "proxmox");
    wait_for("its counts", || {
        let provider = cluster.json(&["get", "proxyprovider", "here"]);
        if provider["status"]["counts"]["proxies"] == 3 {
            Ok(())
        } else {
            Err(provider.to_string())
        }
    });

    // As it was checked before there was any.
    assert_eq!(told["status"]["counts"]["freeSlots"], VMIDS);
    let table = cluster.get(&["get", "pxprov", "here"]);
    let mut lines = table.lines().map(str::split_whitespace);
    let mut cells = || lines.next().expect("a line").collect::<Vec<_>>();
    let (head, row) = (cells(), cells());
    let at = head.iter().position(|column| *column == "FREE");
    assert_eq!(row[at.expect("a column")], VMIDS.to_string(), "{table}");

    cluster.get(&["delete", "namespace", &field.namespace, "--wait=false"]);
    cluster.wait_absent(&["namespace", &field.namespace]);
    wait_for("one machine", || {
        let machines = field.machines();
        if machines.len() == 1 {
            Ok(())
        } else {
            Err(format!("{machines:?}"))
        }
    });
    cluster.get(&["delete", "px", "a", "-n", &other, "--timeout=180s"]);
    field.wait_nothing_left();
}
