//! The rights of the operator's account: each of them is needed, and an operator that lacks one
//! says which, and goes on when it is given.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    sync::{
        Mutex,
        atomic::{AtomicU16, Ordering},
    },
    thread,
};
use support::{
    Running,
    cluster::{Cluster, wait_for},
    field::{Field, Scope, condition_of},
    relay::{Fault, Relay},
};

/// How many operators run at a time.
const AT_A_TIME: usize = 4;
/// What the chart binds to the account within namespaces.
const ROLES: [&str; 2] = ["role/egress-proxies", "role/egress-proxies-lease"];

/// One verb on one resource, in a rule of a role.
#[derive(Clone, Debug)]
struct Right {
    role: String,
    rule: usize,
    resource: String,
    verb: String,
}

impl Right {
    /// How the API server says that it is missing.
    fn lack(&self) -> String {
        format!("cannot {} resource \"{}\"", self.verb, self.resource)
    }
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
        .json(&["get", role, "--namespace", &field.namespace]);
    role["rules"].clone()
}

/// Every right that these roles give, `kind/name` each.
fn rights(field: &Field<'_>, roles: &[&str]) -> Vec<Right> {
    let mut rights = Vec::new();
    for role in roles {
        for (at, rule) in rules(field, role)
            .as_array()
            .expect("rules")
            .iter()
            .enumerate()
        {
            for resource in texts(&rule["resources"]) {
                rights.extend(texts(&rule["verbs"]).into_iter().map(|verb| Right {
                    role: (*role).to_owned(),
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
    field.kubectl(&["patch", role, "--type=json", "-p", &patch]);
}

/// What it takes to need a right.
enum Life {
    /// A plain Proxy comes and goes.
    Plain,
    /// It has `userData` from a ConfigMap.
    UserData,
    /// Somebody else writes to it meanwhile: the first write of its record is a conflict.
    Contended(Relay),
    /// The same thing is told twice in a short time.
    Repeating,
}

impl Life {
    fn of(right: &Right, cluster: &Cluster) -> Self {
        match (right.verb.as_str(), right.resource.as_str()) {
            ("get", "configmaps") => Self::UserData,
            ("get", "proxies") => {
                let relay = Relay::before(cluster);
                let mut conflicts = 1;
                relay.set_rule(move |method, path| {
                    let record = method == "PATCH" && !path.contains("/status?");
                    let fault = record && path.contains("/proxies/") && conflicts > 0;
                    conflicts -= i32::from(fault);
                    fault.then_some(Fault::Refused(409))
                });
                Self::Contended(relay)
            }
            ("patch", "events") => Self::Repeating,
            _ => Self::Plain,
        }
    }

    fn field<'a>(&self, cluster: &'a Cluster, port: u16) -> Field<'a> {
        match self {
            Self::UserData => Field::on_a_simulator(cluster, "rights", "20"),
            Self::Contended(relay) => {
                let mut field = Field::on_this_host(cluster, "rights", port);
                field.kubeconfig = relay.kubeconfig(&field.kubeconfig);
                field
            }
            Self::Plain | Self::Repeating => Field::on_this_host(cluster, "rights", port),
        }
    }

    fn begin(&self, field: &Field<'_>) {
        if matches!(self, Self::UserData) {
            let text = "--from-literal=user-data=#cloud-config\nruncmd: [[true]]\n";
            field.kubectl(&["create", "configmap", "more", text]);
            let source = "userData: {configMapRef: {name: more, key: user-data}}";
            field.cluster.apply(&field.manifest("a", source));
        } else {
            field.declare(&["a"]);
        }
    }

    /// What else it takes once the operator runs.
    fn go_on(&self, field: &Field<'_>, operator: &Running) {
        if !matches!(self, Self::Repeating) {
            return;
        }
        let good = fs::read_to_string(field.config()).expect("a configuration");
        let told = |what: &str, times: usize| {
            wait_for(what, || {
                let printed = operator.printed();
                if printed.matches(what).count() >= times {
                    Ok(())
                } else {
                    Err(printed)
                }
            });
        };
        told("admin page", 1);
        for times in 1..=2 {
            field.write_config("providers: [");
            told("the configuration before stays in force", times);
            field.write_config(&good);
            told("the changed configuration is in force", times);
        }
    }
}

/// Lives a Proxy's life without one right, which must be told, and on to its end with it.
fn is_missed(cluster: &Cluster, right: &Right, port: u16) {
    let life = Life::of(right, cluster);
    let field = life.field(cluster, port);
    let all = rules(&field, &right.role);
    grant(&field, &right.role, &without(&all, right));
    life.begin(&field);
    let operator = field.replica("operator");
    life.go_on(&field, &operator);
    let mut deleted = false;
    wait_for(&format!("{right:?} to be told of"), || {
        // Some rights are needed at the end of a life only.
        if !deleted && field.condition("a", "Serving").starts_with("True/") {
            field.delete(&["a"]);
            deleted = true;
        }
        let told = operator.printed() + &field.described("a");
        if told.contains(&right.lack()) {
            Ok(())
        } else {
            Err(told)
        }
    });
    grant(&field, &right.role, &all);
    if !deleted {
        field.wait_condition("a", "Serving", "True/");
        field.delete(&["a"]);
    }
    field.wait_gone();
}

/// B153: also the rights to elect: without them nobody acts.
#[test]
fn each_right_is_needed_named_when_it_is_missing_and_taken_up_when_it_is_given() {
    let cluster = Cluster::shared();
    let probe = Field::on_this_host(cluster, "all-rights", 27_900);
    let rights = rights(&probe, &ROLES);
    assert!(rights.len() >= 13, "{rights:?}");
    let left = Mutex::new(rights);
    let port = AtomicU16::new(28_000);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME)
            .map(|_| {
                scope.spawn(|| {
                    let next = || left.lock().expect("no panic within").pop();
                    while let Some(right) = next() {
                        is_missed(cluster, &right, port.fetch_add(100, Ordering::Relaxed));
                    }
                })
            })
            .collect();
        let failed = workers.into_iter().filter_map(|worker| worker.join().err());
        assert_eq!(failed.count(), 0, "a right is not needed, or not named");
    });
}

#[test]
fn each_right_on_the_objects_of_providers_is_needed_and_named_when_it_is_missing() {
    // Objects of providers belong to no namespace, so that nobody else may make any.
    let cluster = Cluster::start();
    let field = Field::over_this_host(&cluster, "objects", 29_900, Scope::OwnAndProviders);
    let role = format!("clusterrole/{}:egress-proxies-providers", field.namespace);
    let all = rules(&field, &role);
    let configured = fs::read_to_string(field.config()).expect("a configuration");
    let shown = |name: &str| {
        let object = cluster.json(&["get", "proxyprovider", name]);
        condition_of(&object, "Ready")
    };
    for right in rights(&field, &[&role]) {
        field.write_config(&configured);
        grant(&field, &role, &all);
        let mut operator = field.start();
        let gone = ["delete", "proxyprovider", "--all", "--wait=true"];
        // An object to remove, where it is the removal that must be missed.
        wait_for("its object", || {
            let told = shown("here");
            if told.starts_with("True/") {
                Ok(())
            } else {
                Err(told)
            }
        });
        operator.stop(Signal::TERM);
        if matches!(right.verb.as_str(), "get" | "delete") {
            field.write_config(&configured.replace("name: here", "name: other"));
        } else {
            cluster.get(&gone);
        }
        grant(&field, &role, &without(&all, &right));
        let mut operator = field.start();
        wait_for(&format!("{right:?} to be told of"), || {
            let printed = operator.printed();
            if printed.contains(&right.lack()) {
                Ok(())
            } else {
                Err(printed)
            }
        });
        operator.stop(Signal::TERM);
        cluster.get(&gone);
    }
}

#[test]
fn an_operator_that_may_not_read_the_clusters_own_name_says_so_and_ends() {
    // It looks after all that there is, so nobody else may be there.
    let cluster = Cluster::start();
    let field = Field::over_this_host(&cluster, "unnamed", 29_800, Scope::Every);
    let configured = fs::read_to_string(field.config()).expect("a configuration");
    let installation = format!("installation: {}\n", field.installation);
    field.write_config(&configured.replace(&installation, ""));
    // The chart gives this right only where the values name no installation, as here they do.
    let ended = field.operator(&field.kubeconfig).output();
    let ended = ended.expect("it starts");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    for part in [
        "cannot get resource \"namespaces\"",
        "installation: (missing)",
    ] {
        assert!(said.contains(part), "{said}");
    }
    cluster.install_operator(&field.home, &["config.installation="]);
    let role = format!("clusterrole/{}:egress-proxies", field.home);
    assert!(rules(&field, &role).to_string().contains("kube-system"));
    let operator = field.start();
    assert!(operator.printed().contains("installation cluster-"));
}
