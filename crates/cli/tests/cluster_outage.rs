//! Operators that are killed and frozen, and API servers that go away, in the middle of the work.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use std::{
    thread,
    time::{Duration, Instant},
};
use support::{
    Running,
    cluster::{Cluster, wait_for},
    field::{Field, freeze},
};

/// A clone of the simulator takes about a second at this speed.
const SLOW: &str = "10";

/// Waits until a clone is on its way or there.
fn wait_mid_clone(field: &Field<'_>) {
    wait_for("a clone", || {
        if field.machines().is_empty() {
            Err("no machine".to_owned())
        } else {
            Ok(())
        }
    });
}

fn wait_leader(replicas: &[Running]) -> usize {
    wait_for("a leader", || {
        let leading = replicas
            .iter()
            .position(|replica| replica.printed().contains("this process leads"));
        leading.ok_or_else(|| "none".to_owned())
    })
}

#[test]
fn an_api_server_that_restarts_in_the_middle_of_a_clone_costs_time_only() {
    let cluster = Cluster::start();
    let field = Field::on_a_simulator(&cluster, "restart", SLOW);
    let mut operator = field.start();
    let names = ["a", "b", "c"];
    field.declare(&names);
    wait_mid_clone(&field);
    cluster.stop_api_server();
    // Longer than the lease: it must not act, and must not end.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(8) {
        field.assert_none_twice();
        assert!(operator.is_running(), "{}", operator.printed());
        thread::sleep(Duration::from_millis(200));
    }
    cluster.start_api_server();
    field.wait_serving(&names);
    let frozen = cluster.freeze_api_server();
    thread::sleep(Duration::from_secs(8));
    field.assert_none_twice();
    drop(frozen);
    cluster.stop_api_server();
    cluster.start_api_server();
    wait_for("the deletion to be taken", || {
        let said = cluster.kubectl(&[
            "delete",
            "proxy",
            "--all",
            "--wait=false",
            "--namespace",
            &field.namespace,
        ]);
        if said.well { Ok(()) } else { Err(said.err) }
    });
    field.wait_gone_or_settling();
}

/// B166: it waits for the lease, and for nobody who would have to clear up.
#[test]
fn a_follower_goes_on_where_a_killed_leader_was() {
    let cluster = Cluster::shared();
    let field = Field::on_a_simulator(cluster, "killed", SLOW);
    let mut replicas = vec![field.replica("one"), field.replica("two")];
    let names = ["a", "b", "c"];
    let leader = wait_leader(&replicas);
    field.declare(&names);
    wait_mid_clone(&field);
    replicas.remove(leader).stop(Signal::KILL);
    field.wait_serving(&names);
    field.delete(&names);
    field.wait_gone_or_settling();
    let mut left = replicas.remove(0);
    assert!(left.stop(Signal::TERM).success());
}

#[test]
fn a_leader_that_was_frozen_does_nothing_when_it_thaws() {
    let cluster = Cluster::shared();
    let field = Field::on_a_simulator(cluster, "frozen", SLOW);
    let mut replicas = vec![field.replica("one"), field.replica("two")];
    let names = ["a", "b", "c"];
    let leader = wait_leader(&replicas);
    field.declare(&names);
    wait_mid_clone(&field);
    let first = replicas.remove(leader);
    let second = &replicas[0];
    let ice = freeze(&first);
    wait_for("the other one to lead", || {
        let printed = second.printed();
        if printed.contains("this process leads") {
            Ok(())
        } else {
            Err(printed)
        }
    });
    field.wait_serving(&names);
    let machines = field.machines();
    drop(ice);
    wait_for("the first to see that it leads no more", || {
        let printed = first.printed();
        if printed.contains("another process leads") {
            Ok(())
        } else {
            Err(printed)
        }
    });
    assert_eq!(field.machines(), machines);
    field.wait_serving(&names);
    field.delete(&names);
    field.wait_gone_or_settling();
}

#[test]
fn a_leader_that_is_told_to_end_hands_over_at_once() {
    let cluster = Cluster::shared();
    let field = Field::on_this_host(cluster, "handover", 27_700);
    let mut replicas = vec![field.replica("one"), field.replica("two")];
    let leader = wait_leader(&replicas);
    let mut first = replicas.remove(leader);
    wait_for("the other one to follow", || {
        let printed = replicas[0].printed();
        if printed.contains("another process leads") {
            Ok(())
        } else {
            Err(printed)
        }
    });
    assert!(first.stop(Signal::TERM).success(), "{}", first.printed());
    let ended = Instant::now();
    wait_leader(&replicas);
    let took = ended.elapsed();
    assert!(
        took < Duration::from_secs(4),
        "{took:?} is as long as a lease"
    );
    field.declare(&["a"]);
    field.wait_serving(&["a"]);
    field.delete(&["a"]);
    field.wait_gone();
}

#[test]
fn twenty_proxies_come_and_go_while_the_operator_is_killed_all_the_time() {
    let cluster = Cluster::shared();
    let field = Field::on_a_simulator(cluster, "kills", "20");
    let names: Vec<String> = (0..20).map(|n| format!("p{n:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (staying, going) = names.split_at(10);
    field.declare(&names);
    let begin = Instant::now();
    let mut lives = 0;
    while begin.elapsed() < KILLING {
        let mut operator = field.start();
        // From its first step to well into its work, in no step with it.
        thread::sleep(Duration::from_millis(30 + 410 * (lives % 8)));
        operator.stop(Signal::KILL);
        field.assert_none_twice();
        lives += 1;
        if lives == 6 {
            field.delete(going);
        }
    }
    assert!(lives >= 8);
    let _operator = field.start();
    for name in staying {
        field.wait_condition(name, "Serving", "True/");
    }
    field.delete(staying);
    field.wait_gone_or_settling();
}

/// How long the operator is killed again and again.
const KILLING: Duration = Duration::from_mins(2);
