//! The rights of the operator's account: each of them is needed, and an operator that lacks one
//! says which, and goes on when it is given.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use serde_json::{Value, json};
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU16, Ordering},
    },
    thread,
};
use support::{
    cluster::{Cluster, wait_for},
    field::Field,
};

/// How many operators run at a time.
const AT_A_TIME: usize = 4;
/// What the chart binds to the account.
const ROLES: [&str; 2] = ["egress-proxies", "egress-proxies-lease"];

/// Rights that the life of one plain Proxy may never need: an event is patched when it comes
/// again soon, a ConfigMap is read for `userData`, and a Proxy is read where somebody else wrote
/// it meanwhile.
const FOR_OTHER_LIVES: [(&str, &str); 3] = [
    ("patch", "events"),
    ("get", "configmaps"),
    ("get", "proxies"),
];

/// One verb on one resource, in a rule of a role.
#[derive(Clone, Debug)]
struct Right {
    role: &'static str,
    rule: usize,
    resource: String,
    verb: String,
}

/// The texts of a list.
fn texts(value: &Value) -> Vec<String> {
    let all = value.as_array().expect("a list");
    all.iter()
        .map(|text| text.as_str().expect("a text").to_owned())
        .collect()
}

fn rules(field: &Field<'_>, role: &str) -> Value {
    let role = field
        .cluster
        .json(&["get", "role", role, "--namespace", &field.namespace]);
    role["rules"].clone()
}

/// Every right of the account.
fn rights(field: &Field<'_>) -> Vec<Right> {
    let mut rights = Vec::new();
    for role in ROLES {
        for (at, rule) in rules(field, role)
            .as_array()
            .expect("rules")
            .iter()
            .enumerate()
        {
            for resource in texts(&rule["resources"]) {
                rights.extend(texts(&rule["verbs"]).into_iter().map(|verb| Right {
                    role,
                    rule: at,
                    resource: resource.clone(),
                    verb,
                }));
            }
        }
    }
    rights
}

/// The rules without one right.
fn without(rules: &Value, right: &Right) -> Value {
    let mut rules = rules.as_array().expect("rules").clone();
    let mut less = rules[right.rule].clone();
    less["resources"] = json!([right.resource]);
    let verbs = texts(&less["verbs"])
        .into_iter()
        .filter(|verb| *verb != right.verb);
    less["verbs"] = verbs.collect();
    let others = texts(&rules[right.rule]["resources"]);
    let others = others.into_iter().filter(|name| *name != right.resource);
    rules[right.rule]["resources"] = others.collect();
    rules.push(less);
    rules.retain(|rule| rule["verbs"] != json!([]) && rule["resources"] != json!([]));
    rules.into()
}

fn grant(field: &Field<'_>, role: &str, rules: &Value) {
    let patch = json!([{"op": "replace", "path": "/rules", "value": rules}]).to_string();
    field.kubectl(&["patch", "role", role, "--type=json", "-p", &patch]);
}

/// Lives a Proxy's life without one right, which must be told, and on to its end with it.
fn is_missed(cluster: &Cluster, right: &Right, port: u16) {
    let field = Field::on_this_host(cluster, "rights", port);
    let all = rules(&field, right.role);
    grant(&field, right.role, &without(&all, right));
    field.declare(&["a"]);
    let operator = field.replica("operator");
    let missed = format!("cannot {} resource \"{}\"", right.verb, right.resource);
    let mut deleted = false;
    wait_for(&format!("{missed} to be told"), || {
        // Some rights are needed at the end of a life only.
        if !deleted && field.condition("a", "Serving").starts_with("True/") {
            field.delete(&["a"]);
            deleted = true;
        }
        let printed = operator.printed();
        if printed.contains(&missed) {
            Ok(())
        } else {
            Err(printed)
        }
    });
    grant(&field, right.role, &all);
    if !deleted {
        field.wait_condition("a", "Serving", "True/");
        field.delete(&["a"]);
    }
    field.wait_gone();
}

#[test]
fn each_right_is_needed_named_when_it_is_missing_and_taken_up_when_it_is_given() {
    let cluster = Cluster::shared();
    let probe = Field::on_this_host(cluster, "all-rights", 27_900);
    let mut rights = rights(&probe);
    let all = rights.len();
    rights.retain(|right| {
        let right = (right.verb.as_str(), right.resource.as_str());
        !FOR_OTHER_LIVES.contains(&right)
    });
    assert_eq!(rights.len(), all - FOR_OTHER_LIVES.len());
    assert!(rights.len() >= 10, "{rights:?}");
    let left = Mutex::new(rights);
    let port = AtomicU16::new(28_000);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let Some(right) = left.lock().expect("no panic within").pop() else {
                            break;
                        };
                        is_missed(cluster, &right, port.fetch_add(100, Ordering::Relaxed));
                    }
                })
            })
            .collect();
        let failed = workers.into_iter().filter_map(|worker| worker.join().err());
        assert_eq!(failed.count(), 0, "a right is not needed, or not named");
    });
}
