//! The life of a Proxy in a cluster, as kubectl shows it: made, proven, explained, gone.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use std::{fs, process::Command};
use support::{
    Site,
    cluster::{Cluster, wait_for},
    echo,
    field::{Field, condition_of},
    same,
    sim::VMIDS,
};

const SPEED: &str = "20";

#[test]
fn proxies_on_a_simulator_are_made_proven_told_of_and_gone() {
    let cluster = Cluster::shared();
    let field = Field::on_a_simulator(cluster, "life", SPEED);
    let mut operator = field.start();
    let names = ["a", "b", "c"];
    field.declare(&names);
    for wanted in ["Accepted", "Provisioned", "Serving"] {
        let wanted = format!("--for=condition={wanted}");
        field.kubectl(&["wait", "proxy", "--all", &wanted, "--timeout=180s"]);
    }
    field.wait_serving(&names);
    let site = Site::new("cluster-life", 27_100);
    let (_echo, page) = echo(&site);
    for name in names {
        let (status, text) = field.through(name, &page);
        assert_eq!(status, 200, "{text}");
    }

    let table = field.kubectl(&["get", "proxies"]);
    assert_eq!(table.matches("Running").count(), 3, "{table}");
    let told = field.described("a");
    for part in ["Serving", "Provisioned", "proxmox://here/", "Events:"] {
        assert!(told.contains(part), "no {part} in {told}");
    }
    assert!(!told.contains("Events:  <none>"), "{told}");

    // Statuses are written when something changes, and not by themselves.
    let versions = || -> Vec<Value> {
        let all = field.proxies();
        all.iter()
            .map(|p| p["metadata"]["resourceVersion"].clone())
            .collect()
    };
    wait_for("all seeds to be sealed", || {
        let left = field.sim().inventory();
        let seeds: Vec<&String> = left.iter().filter(|line| line.contains(".iso")).collect();
        same(&seeds, &Vec::new())
    });
    let same_twice = wait_for("objects that no one writes to", || {
        let before = versions();
        // Two rounds of probes.
        std::thread::sleep(std::time::Duration::from_secs(11));
        same(&versions(), &before).map(|()| before)
    });
    assert_eq!(same_twice.len(), 3);

    field.delete(&names);
    field.wait_gone();
    let secrets = field.kubectl(&["get", "secrets", "-o", "name"]);
    wait_for("the passwords to go with their Proxies", || {
        let left = field.kubectl(&["get", "secrets", "-o", "name"]);
        same(&left, &String::new())
    });
    assert!(secrets.is_empty() || secrets.contains("-credentials"));
    assert!(
        operator.stop(Signal::TERM).success(),
        "{}",
        operator.printed()
    );
}

#[test]
fn a_proxy_on_this_host_serves_and_is_gone_after_its_deletion() {
    let cluster = Cluster::shared();
    let field = Field::on_this_host(cluster, "host", 27_200);
    let _operator = field.start();
    field.declare(&["a", "b"]);
    field.wait_serving(&["a", "b"]);
    let site = Site::new("cluster-host", 27_300);
    let (_echo, page) = echo(&site);
    let (status, text) = field.through("a", &page);
    assert_eq!(status, 200, "{text}");
    assert!(text.contains(support::EGRESS), "{text}");
    field.delete(&["a"]);
    cluster.wait_absent(&["proxy", "a", "--namespace", &field.namespace]);
    field.wait_serving(&["b"]);
    field.delete(&["b"]);
    field.wait_gone();
}

#[test]
fn a_proxy_goes_with_its_owner_and_its_machine_with_it() {
    let cluster = Cluster::shared();
    let field = Field::on_this_host(cluster, "owned", 27_400);
    let _operator = field.start();
    field.kubectl(&["create", "configmap", "owner"]);
    let uid = field.kubectl(&[
        "get",
        "configmap",
        "owner",
        "-o",
        "jsonpath={.metadata.uid}",
    ]);
    field.declare(&["a"]);
    let owner = format!(
        "{{\"metadata\":{{\"ownerReferences\":[{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\
         \"name\":\"owner\",\"uid\":\"{uid}\"}}]}}}}"
    );
    field.kubectl(&["patch", "proxy", "a", "--type=merge", "-p", &owner]);
    field.wait_serving(&["a"]);
    field.kubectl(&["delete", "configmap", "owner"]);
    field.wait_gone();
}

#[test]
fn a_proxy_deleted_as_it_is_made_leaves_nothing_behind() {
    let cluster = Cluster::shared();
    let field = Field::on_a_simulator(cluster, "raced", SPEED);
    let _operator = field.start();
    for round in 0..8 {
        let names: Vec<String> = (0..3).map(|n| format!("r{round}-{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        field.declare(&names);
        field.delete(&names);
    }
    field.wait_gone();
}

#[test]
fn a_paused_proxy_is_left_as_it_is_until_it_goes_on() {
    let cluster = Cluster::shared();
    let field = Field::on_this_host(cluster, "paused", 27_500);
    let _operator = field.start();
    cluster.apply(&field.manifest("a", "paused: true"));
    field.wait_condition("a", "Accepted", "True/");
    wait_for("a word on the pause", || {
        let told = field.described("a");
        if told.to_lowercase().contains("paused") && told.contains("Phase:") {
            Ok(())
        } else {
            Err(told)
        }
    });
    assert_eq!(field.machines(), [""; 0]);
    cluster.apply(&field.manifest("a", "paused: false"));
    field.wait_serving(&["a"]);
    field.delete(&["a"]);
    field.wait_gone();
}

#[test]
fn an_abandoned_machine_runs_on_and_is_told_of() {
    let cluster = Cluster::shared();
    let field = Field::on_a_simulator(cluster, "abandoned", SPEED);
    let _operator = field.start();
    field.declare(&["a"]);
    field.wait_serving(&["a"]);
    let proxy = field.proxy("a");
    let id = proxy["status"]["providerID"]
        .as_str()
        .expect("an id")
        .to_owned();
    let left = format!("left behind: {id}, attempt");
    let machines = field.machines();
    field.kubectl(&["annotate", "proxy", "a", "egress-proxies.io/abandon=true"]);
    field.wait_serving(&["a"]);
    field.delete(&["a"]);
    cluster.wait_absent(&["proxy", "a", "--namespace", &field.namespace]);
    assert_eq!(field.machines(), machines);
    wait_for("an event that names the machine", || {
        let events = field.kubectl(&["get", "events.events.k8s.io", "-o", "json"]);
        if events.contains(&left) {
            Ok(())
        } else {
            Err(events)
        }
    });
}

#[test]
fn what_kubectl_took_from_a_proxy_comes_back_before_its_deletion_could_leave_a_machine() {
    let cluster = Cluster::shared();
    let field = Field::on_a_simulator(cluster, "taken", SPEED);
    let operator = field.start();
    // None of them is looked at again by itself in the time of this test.
    let seldom = |name: &str| {
        let manifest = field.manifest(name, "");
        manifest.replace("interval: 5s", "interval: 1h")
    };
    let names = ["replaced", "unheld", "making"];
    for name in &names[..2] {
        cluster.apply(&seldom(name));
    }
    field.wait_serving(&names[..2]);
    let before = field.machines();

    let file = field.path("replaced.yaml");
    fs::write(&file, seldom("replaced")).expect("written");
    let file = file.to_string_lossy();
    field.kubectl(&["replace", "-f", &file]);
    let bare = r#"{"metadata": {"finalizers": null}}"#;
    field.kubectl(&["patch", "proxy", "unheld", "--type=merge", "-p", bare]);
    let is_held = |name: &str| {
        wait_for("finalizer and record", || {
            let metadata = field.proxy(name)["metadata"].clone();
            let held = metadata["finalizers"] == json!(["egress-proxies.io/machine"]);
            let record = &metadata["annotations"]["egress-proxies.io/record"];
            if held && record.is_string() {
                Ok(())
            } else {
                Err(metadata.to_string())
            }
        });
    };
    is_held("replaced");
    is_held("unheld");
    assert_eq!(field.machines(), before, "the same machines");

    // Replaced in the midst of a clone, with the operator away: nobody knows what comes yet.
    let stall = json!({"do": "stall-tasks", "kind": "qmclone", "count": 1});
    field.sim().control(&stall);
    cluster.apply(&seldom("making"));
    field.wait_condition("making", "Provisioned", "False/Creating");
    wait_for("its machine in its status", || {
        let machine = field.proxy("making")["status"]["machine"].clone();
        if machine.is_null() {
            Err(machine.to_string())
        } else {
            Ok(())
        }
    });
    drop(operator);
    let file = field.path("making.yaml");
    fs::write(&file, seldom("making")).expect("written");
    field.kubectl(&["replace", "-f", &file.to_string_lossy()]);
    let operator = field.replica("second");
    field.wait_told("making", "searched by its mark");
    field.sim().control(&json!({"do": "continue"}));
    wait_for("its finalizer", || {
        let held = field.proxy("making")["metadata"]["finalizers"].clone();
        if held == json!(["egress-proxies.io/machine"]) {
            Ok(())
        } else {
            Err(held.to_string())
        }
    });
    assert_eq!(field.machines().len(), 3, "no second one");
    field.delete(&names[..2]);
    wait_for("one machine", || {
        let machines = field.machines();
        if machines.len() == 1 {
            Ok(())
        } else {
            Err(machines.join(", "))
        }
    });
    drop(operator);
}

#[test]
fn a_spec_that_asks_for_what_there_is_not_is_told_and_recovers_when_mended() {
    let cluster = Cluster::shared();
    let field = Field::on_this_host(cluster, "mended", 27_600);
    let _operator = field.start();
    let unknown = field
        .manifest("unknown", "")
        .replace("provider: here", "provider: nowhere");
    cluster.apply(&unknown);
    field.wait_condition("unknown", "Accepted", "False/");
    let told = field.condition("unknown", "Accepted");
    assert!(
        told.contains("spec.provider") && told.contains("nowhere"),
        "{told}"
    );
    let auth = |choice: &str| field.manifest("locked", &format!("proxy: {{auth: {{{choice}}}}}"));
    cluster.apply(&auth("secretRef: {name: own}"));
    wait_for("a word on the missing Secret", || {
        let told = field.described("locked");
        if told.contains("own") && told.contains("does not exist") {
            Ok(())
        } else {
            Err(told)
        }
    });
    field.kubectl(&[
        "create",
        "secret",
        "generic",
        "own",
        "--from-literal=username=u",
        "--from-literal=password=a-long-password-of-mine",
    ]);
    field.wait_condition("locked", "Serving", "True/");
    field.delete(&["locked", "unknown"]);
    field.wait_gone();
}

#[test]
fn a_changed_token_and_a_changed_configuration_are_taken_on_without_a_restart() {
    let cluster = Cluster::shared();
    let field = Field::on_a_simulator(cluster, "reload", SPEED);
    let operator = field.start();
    field.declare(&["a"]);
    field.wait_serving(&["a"]);
    let token = fs::read_to_string(field.path("token")).expect("a token");
    fs::write(
        field.path("token"),
        "root@pam!gone=00000000-0000-0000-0000-000000000000\n",
    )
    .expect("written");
    field.declare(&["b"]);
    wait_for("a word on the token", || {
        let told = condition_of(&field.proxy("b"), "Provisioned");
        if told.contains("Unauthorized") {
            Ok(())
        } else {
            Err(told)
        }
    });
    assert!(
        !operator
            .printed()
            .contains("00000000-0000-0000-0000-000000000000")
    );
    fs::write(field.path("token"), token).expect("written");
    field.wait_condition("b", "Serving", "True/");

    let good = fs::read_to_string(field.config()).expect("a configuration");
    field.write_config("providers: [");
    wait_for("a word on the broken file", || {
        let printed = operator.printed();
        if printed.contains("the configuration before stays in force") {
            Ok(())
        } else {
            Err(printed)
        }
    });
    field.declare(&["c"]);
    field.wait_condition("c", "Serving", "True/");
    let first = field.sim().first_vmid;
    let range = format!("from: {first}, to: {}", first + VMIDS - 1);
    field.write_config(&good.replace(&range, "from: 900000, to: 900999"));
    wait_for("the changed file to be in force", || {
        let printed = operator.printed();
        if printed.contains("the changed configuration is in force") {
            Ok(())
        } else {
            Err(printed)
        }
    });
    field.declare(&["d"]);
    field.wait_condition("d", "Serving", "True/");
    let d = field.proxy("d")["status"]["providerID"].to_string();
    assert!(d.contains("/900"), "{d} is not of the new range");
    field.delete(&["a", "b", "c", "d"]);
    field.wait_gone();
}

#[test]
fn get_shows_what_the_objects_say_and_plan_what_comes_next_and_neither_changes_anything() {
    let cluster = Cluster::shared();
    let field = Field::on_a_simulator(cluster, "plan", SPEED);
    let ours = |arguments: &[&str]| {
        let done = Command::new(support::PROGRAM)
            .args(arguments)
            .arg("--kubeconfig")
            .arg(cluster.kubeconfig())
            .args(["--namespace", &field.namespace])
            .output()
            .expect("it runs");
        let (out, err) = (done.stdout, done.stderr);
        let said = String::from_utf8_lossy(&out).into_owned() + &String::from_utf8_lossy(&err);
        assert!(done.status.success(), "{said}");
        said
    };
    let config = field.config();
    let config = config.to_str().expect("text");
    let plan = || ours(&["plan", "--config", config]);
    field.declare(&["a", "b"]);
    let versions = || -> Vec<Value> {
        let all = field.proxies();
        all.iter()
            .map(|p| p["metadata"]["resourceVersion"].clone())
            .collect()
    };
    let before = versions();
    let told = plan();
    let next = "Provisioning  HoldFinalizer, RecordClaim(Sent), Create";
    assert_eq!(told.matches(next).count(), 2, "{told}");
    assert_eq!(field.machines(), [""; 0]);
    assert_eq!(versions(), before);
    let table = ours(&["get", "proxies"]);
    assert!(table.starts_with("NAMESPACE"), "{table}");
    assert_eq!(table.matches("  here  ").count(), 2, "{table}");

    let _operator = field.start();
    field.wait_serving(&["a", "b"]);
    let told = plan();
    assert_eq!(told.matches("  Running  ").count(), 2, "{told}");
    let list: Value = serde_json::from_str(&ours(&["get", "proxies", "-o", "json"])).expect("JSON");
    assert_eq!(list["kind"], "ProxyList");
    assert_eq!(list["items"][1]["metadata"]["name"], "b");
    assert_eq!(list["items"][1]["status"]["phase"], "Running");
    field.delete(&["a", "b"]);
    field.wait_gone();
}
