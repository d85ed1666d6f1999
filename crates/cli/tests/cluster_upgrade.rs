//! A release of the chart from the one before to the end, with machines that serve all the time.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::Command,
};
use support::{
    cluster::{ACCOUNT, CHART, Cluster, wait_for},
    field::Field,
    machines_of,
};
use tempfile::TempDir;

/// What git printed in this repository; it must go well.
fn git(arguments: &[&str]) -> Vec<u8> {
    let done = Command::new("git")
        .arg("-C")
        .arg(CHART)
        .args(arguments)
        .output();
    let done = done.expect("git starts");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "git {arguments:?}: {said}");
    done.stdout
}

/// The chart as it was before it last changed. Where no history is at hand, as in a shallow
/// clone, the oldest that is.
fn chart_before(into: &Path) -> PathBuf {
    let log = git(&["log", "--format=%H", "--", "."]);
    let commits = String::from_utf8(log).expect("text");
    let differs = |commit: &&str| !git(&["diff", "--name-only", commit, "--", "."]).is_empty();
    let before = commits.lines().find(differs);
    let commit = before.or_else(|| commits.lines().last()).expect("a commit");
    let packed = into.join("chart.tar");
    let archive = git(&["archive", "--format=tar", commit, "."]);
    std::fs::write(&packed, archive).expect("written");
    let chart = into.join("chart");
    std::fs::create_dir(&chart).expect("a directory");
    let unpacked = Command::new("tar")
        .arg("-xf")
        .arg(&packed)
        .arg("-C")
        .arg(&chart)
        .status();
    assert!(unpacked.expect("tar starts").success());
    chart
}

/// What an upgrade must leave alone: of each Proxy its record and machine.
fn kept(field: &Field<'_>) -> Vec<[Value; 3]> {
    let all = field.proxies();
    let of = |proxy: &Value| {
        let metadata = &proxy["metadata"];
        let record = metadata["annotations"]["egress-proxies.io/record"].clone();
        [
            metadata["uid"].clone(),
            record,
            proxy["status"]["providerID"].clone(),
        ]
    };
    all.iter().map(of).collect()
}

#[test]
fn an_upgrade_replaces_nothing_an_uninstall_by_mistake_loses_nothing_and_the_right_one_leaves_nothing()
 {
    let cluster = Cluster::start();
    let dir = TempDir::new().expect("a directory");
    let mut field = Field::released(&cluster, "release", 30_700, &chart_before(dir.path()));
    let mut old = field.start();
    let names = ["a", "b"];
    field.declare(&names);
    field.wait_serving(&names);
    let (before, machines) = (kept(&field), machines_of(&field.installation));

    // As the guide says it; and pods follow one another.
    field.helm(&["upgrade", ACCOUNT, CHART, "--reuse-values"]);
    field.take_revision();
    let new = field.replica("new");
    wait_for("the new one to follow", || {
        let printed = new.printed();
        if printed.contains("another process leads") {
            Ok(())
        } else {
            Err(printed)
        }
    });
    assert!(old.stop(Signal::TERM).success(), "{}", old.printed());
    wait_for("the new one to lead", || {
        let printed = new.printed();
        if printed.contains("this process leads") {
            Ok(())
        } else {
            Err(printed)
        }
    });
    // What it does comes after what it did before: a Proxy that is made now.
    field.declare(&["c"]);
    field.wait_condition("c", "Serving", "True/");
    field.delete(&["c"]);
    cluster.wait_absent(&["proxy", "c", "-n", &field.namespace]);
    field.wait_serving(&names);
    assert_eq!(kept(&field), before);
    assert_eq!(machines_of(&field.installation), machines);

    // By mistake: nobody removes machines now, and nothing is lost.
    let mut new = new;
    assert!(new.stop(Signal::TERM).success());
    field.helm(&["uninstall", ACCOUNT]);
    field.delete(&["a"]);
    assert_eq!(
        field.proxies().len(),
        2,
        "it waits for the one who removes its machine"
    );
    assert_eq!(machines_of(&field.installation), machines);
    let values = format!(
        "watchNamespace={},config.installation=tested",
        field.namespace
    );
    field.helm(&["install", ACCOUNT, CHART, "--set", &values]);
    let again = cluster.service_account(&field.namespace, ACCOUNT);
    assert_eq!(again, field.kubeconfig);
    field.take_revision();
    let mut operator = field.start();
    cluster.wait_absent(&["proxy", "a", "-n", &field.namespace]);
    field.wait_serving(&["b"]);
    assert_eq!(kept(&field), before[1..]);

    // In the order of the guide.
    cluster.get(&["delete", "proxies", "--all", "-A"]);
    cluster.get(&[
        "wait",
        "proxies",
        "--all",
        "-A",
        "--for=delete",
        "--timeout=2m",
    ]);
    field.wait_nothing_left();
    assert!(operator.stop(Signal::TERM).success());
    field.helm(&["uninstall", ACCOUNT]);
    let definitions = [
        "proxies.egress-proxies.io",
        "proxyproviders.egress-proxies.io",
    ];
    cluster.get(&[&["delete", "crd"][..], &definitions].concat());
    for kind in ["crd", "clusterroles", "clusterrolebindings"] {
        let left = cluster.get(&["get", kind, "-o", "name"]);
        assert!(!left.contains("egress"), "{left}");
    }
    let ours = [
        "get",
        "all,secrets,configmaps,leases,roles,rolebindings,sa",
        "-o",
        "name",
    ];
    let left = field.kubectl(&ours);
    let left: Vec<&str> = left
        .lines()
        .filter(|name| name.contains("egress"))
        .collect();
    assert_eq!(left, ["lease.coordination.k8s.io/egress-proxies"]);
}
