//! Objects that are restored into another cluster: their machines are found again, or left alone.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{cluster::Cluster, field::Field};

/// An object as a backup holds it.
fn backed_up(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().expect("metadata");
    for of_the_server in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "managedFields",
    ] {
        metadata.remove(of_the_server);
    }
    object.as_object_mut().expect("an object").remove("status");
    object
}

#[test]
fn restored_proxies_keep_their_machines_and_those_of_another_installation_are_left_alone() {
    let (old, new) = (Cluster::start(), Cluster::start());
    let field = Field::on_a_simulator(&old, "restored", "20");
    let mut operator = field.start();
    field.declare(&["a", "b"]);
    field.wait_serving(&["a", "b"]);
    let machines = field.machines();
    let backup: Vec<Value> = field.proxies().into_iter().map(backed_up).collect();
    operator.stop(Signal::KILL);
    let backup = json!({"apiVersion": "v1", "kind": "List", "items": backup}).to_string();

    // Another installation: it takes none of them, and says why.
    let field = field.moved(&new);
    let own = std::fs::read_to_string(field.config()).expect("a configuration");
    field.write_config(&own.replace(&field.installation, "another"));
    new.apply(&backup);
    let mut operator = field.start();
    for name in ["a", "b"] {
        field.wait_told(name, "InstallationChanged");
    }
    assert_eq!(field.machines(), machines);
    operator.stop(Signal::TERM);

    // The same installation: they are its own again.
    field.write_config(&own);
    let _operator = field.start();
    for name in ["a", "b"] {
        field.wait_condition(name, "Provisioned", "True/");
    }
    assert_eq!(field.machines(), machines);
    // A copy under another name has a machine of its own.
    let copy = backup
        .replace("\"name\":\"a\"", "\"name\":\"c\"")
        .replace("\"name\":\"b\"", "\"name\":\"d\"");
    new.apply(&copy);
    for name in ["c", "d"] {
        field.wait_condition(name, "Serving", "True/");
    }
    assert_eq!(field.machines().len(), 4);
    field.delete(&["a", "b", "c", "d"]);
    field.wait_gone();
}
