//! Networks that are late and API servers that refuse: a relay between them and the operator.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use serde_json::json;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};
use support::{
    cluster::{Cluster, wait_for},
    field::Field,
    relay::{Fault, Relay},
};

const SPEED: &str = "20";
const LATE: Duration = Duration::from_secs(5);

/// A field whose operator asks by way of a relay.
fn relayed<'a>(cluster: &'a Cluster, topic: &str) -> (Field<'a>, Relay) {
    let relay = Relay::before(cluster);
    let mut field = Field::on_a_simulator(cluster, topic, SPEED);
    field.kubeconfig = relay.kubeconfig(&field.kubeconfig);
    (field, relay)
}

/// How many requests of this kind the hypervisor was sent.
fn requests(field: &Field<'_>, method: &str, path: &str) -> usize {
    let all = field.sim().control(&json!({"do": "mutations"}));
    let lines = all.as_array().expect("lines").iter();
    let lines = lines.filter_map(|line| line.as_str());
    lines
        .filter(|line| line.starts_with(method) && line.contains(path))
        .count()
}

/// Waits until it is done; no machine may be there twice meanwhile.
fn watch_until(field: &Field<'_>, what: &str, mut done: impl FnMut() -> bool) {
    wait_for(what, || {
        field.assert_none_twice();
        if done() {
            Ok(())
        } else {
            Err(field.machines().join(", "))
        }
    });
}

#[test]
fn a_watch_that_is_five_seconds_late_makes_each_machine_once_and_removes_it_once() {
    let cluster = Cluster::shared();
    let (field, relay) = relayed(cluster, "late");
    relay.delay_watches(LATE);
    let _operator = field.start();
    let names = ["a", "b", "c"];
    let declared = Instant::now();
    field.declare(&names);
    watch_until(&field, "a machine", || !field.machines().is_empty());
    assert!(declared.elapsed() >= LATE, "the watch is not late");
    let serves = |name: &str| field.condition(name, "Serving").starts_with("True/");
    watch_until(&field, "all to serve", || {
        names.iter().all(|name| serves(name))
    });
    field.wait_serving(&names);
    assert_eq!(requests(&field, "POST", "/clone"), names.len());

    // One of the name comes back while the end of the one before is still on its way.
    let before = field.proxy("a")["metadata"]["uid"].clone();
    field.kubectl(&["delete", "proxy", "a", "--timeout=170s"]);
    field.declare(&["a"]);
    assert_ne!(field.proxy("a")["metadata"]["uid"], before);
    watch_until(&field, "the new one to serve", || serves("a"));
    field.wait_serving(&names);
    assert_eq!(requests(&field, "POST", "/clone"), names.len() + 1);
    assert_eq!(requests(&field, "DELETE", "/qemu/"), 1);

    field.delete(&names);
    field.wait_gone();
    assert_eq!(requests(&field, "DELETE", "/qemu/"), names.len() + 1);
    assert_eq!(requests(&field, "POST", "/clone"), names.len() + 1);
}

/// What becomes of the first try of each write, one after the other.
const FAULTS: [Fault; 6] = [
    Fault::Refused(409),
    Fault::Refused(429),
    Fault::Lost(500),
    Fault::Refused(500),
    Fault::Silence,
    Fault::Lost(504),
];

#[test]
fn writes_that_are_refused_unanswered_or_done_without_a_word_cost_time_only() {
    let cluster = Cluster::shared();
    let (field, relay) = relayed(cluster, "refused");
    let mut tries: HashMap<String, usize> = HashMap::new();
    let mut faults = FAULTS.iter().copied().cycle();
    relay.set_rule(move |method, target| {
        let path = target.split('?').next().unwrap_or_default();
        let ours = path.contains("/proxies/") || path.ends_with("/secrets");
        if method == "GET" || !ours {
            return None;
        }
        let tried = tries.entry(format!("{method} {path}")).or_default();
        *tried += 1;
        if *tried % 2 == 1 { faults.next() } else { None }
    });
    let operator = field.start();
    let names = ["a", "b", "c"];
    field.declare(&names);
    let serves = |name: &str| field.condition(name, "Serving").starts_with("True/");
    watch_until(&field, "all to serve", || {
        names.iter().all(|name| serves(name))
    });
    field.wait_serving(&names);
    field.delete(&names);
    field.wait_gone_or_settling();
    assert!(operator.printed().contains("the API server answered 500"));
}
