//! What machines cost in requests, listed call by call: the figures of `docs/proxmox-spec.md`.

mod bench;
#[path = "bench/scene.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod scene;

use egress_core::{
    Claim,
    machine::{Addresses, MachineState},
};
use egress_proxmox_sim::world::Setup;
use scene::Scene;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::sleep;

/// Reads that all machines share, once a period or survey: they are no cost of one machine.
fn is_shared(request: &str) -> bool {
    [
        "/cluster/resources",
        "/cluster/status",
        "/cluster/options",
        "/version",
        "/access/permissions",
        "/certificates/info",
        "/status?",
        "/network?",
        "/time",
        "/qemu/9000/config",
    ]
    .iter()
    .any(|part| request.contains(part))
        || (request.contains("/storage/") && request.ends_with("/status"))
}

/// What one machine's own requests were, told.
fn own(scene: &Scene, phase: &str) -> Vec<String> {
    let mut requests = scene.sim.take_requests();
    requests.retain(|request| !is_shared(request));
    println!("{phase}: {} requests", requests.len());
    for request in &requests {
        println!("  {request}");
    }
    requests
}

#[track_caller]
fn assert_calls(requests: &[String], expected: &[(&str, &str)]) {
    let fits = requests.len() == expected.len()
        && requests
            .iter()
            .zip(expected)
            .all(|(request, (method, part))| request.starts_with(method) && request.contains(part));
    assert!(fits, "{requests:#?}\nare not\n{expected:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_life_costs_these_requests_and_no_others() {
    let scene = Scene::new(Setup::default()).await;
    scene.sim.take_requests();
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    let made = own(&scene, "from claim to started");
    assert_calls(
        &made,
        &[
            ("GET", "/cluster/nextid"),
            ("POST", "/qemu/9000/clone"),
            ("POST", "/upload"),
            ("GET", ":qmclone:"),
            ("GET", ":imgcopy:"),
            ("GET", "/config"),
            ("PUT", "/config"),
            ("POST", "/status/start"),
            ("GET", ":qmstart:"),
        ],
    );

    scene.reports(&claim).await;
    own(&scene, "until its address is known, a boot of 9 s");
    scene.seal(&mut claim).await;
    own(&scene, "sealed");
    sleep(Duration::from_secs(30)).await;

    scene.down(&mut claim).await;
    own(&scene, "from running to gone");
}

/// Requests of a steady minute with so many machines, by what they ask for.
async fn steady_minute(machines: usize) -> BTreeMap<&'static str, usize> {
    let mut setup = Setup::default();
    // Room for all of them.
    setup.nodes[0].memory = 4 << 40;
    let first = Scene::new(setup).await;
    let mut all: Vec<(Scene, Claim)> = Vec::new();
    for number in 0..machines {
        let scene = first.of(&format!("uid-{number}"));
        let mut claim = scene.claim().await;
        scene.up(&mut claim).await;
        scene.reports(&claim).await;
        scene.seal(&mut claim).await;
        all.push((scene, claim));
    }
    // Until every one has had its turn once in the steady rhythm.
    let mut seconds = 0;
    let mut minute = BTreeMap::new();
    while seconds < machines.max(60) + 60 {
        if seconds == machines.max(60) {
            first.sim.take_requests();
        }
        sleep(Duration::from_secs(1)).await;
        seconds += 1;
        for (scene, claim) in &all {
            let state = scene.state(claim).await;
            let serves = matches!(state, MachineState::Running(Addresses::Reported { .. }));
            assert!(serves, "{state:?}");
        }
    }
    for request in first.sim.take_requests() {
        assert!(request.starts_with("GET"), "{request}");
        let what = if request.contains("/agent/") {
            "agent turns"
        } else if request.contains("/qemu/1") {
            "reads beside them"
        } else {
            "shared"
        };
        *minute.entry(what).or_default() += 1;
    }
    println!("{machines} machines, a steady minute: {minute:?}");
    minute
}

#[tokio::test(start_paused = true)]
async fn a_steady_minute_costs_the_same_for_ten_machines_and_for_a_thousand() {
    let few = steady_minute(10).await;
    let many = steady_minute(1_000).await;
    assert_eq!(few["shared"], many["shared"]);
    for minute in [&few, &many] {
        assert!(minute["agent turns"] <= 60, "{minute:?}");
        let beside = minute["reads beside them"];
        assert!(beside <= 2 * minute["agent turns"], "{minute:?}");
    }
}
