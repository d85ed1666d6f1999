//! What machines cost in requests, listed call by call: the figures of `docs/proxmox-spec.md`.

mod bench;
#[path = "bench/scene.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod scene;

use egress_core::{
    Claim,
    machine::{Addresses, MachineState},
};
use egress_proxmox::Config;
use egress_proxmox_sim::world::Setup;
use futures_util::future::join_all;
use scene::Scene;
use std::time::Duration;
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
            ("GET", "%3Aqmclone%3A"),
            ("GET", "%3Aimgcopy%3A"),
            ("GET", "/config"),
            ("PUT", "/config"),
            ("POST", "/status/start"),
            ("GET", "%3Aqmstart%3A"),
        ],
    );

    scene.reports(&claim).await;
    own(&scene, "until its address is known, a boot of 9 s");
    scene.seal(&mut claim).await;
    let sealed = own(&scene, "to seal it");
    assert_calls(
        &sealed,
        &[
            ("GET", "/config"),
            ("PUT", "/config"),
            ("GET", "/content?content=iso"),
            ("DELETE", ".iso?delay=5"),
        ],
    );
    sleep(Duration::from_secs(30)).await;

    scene.down(&mut claim).await;
    let gone = own(&scene, "from running to gone");
    let look = [("GET", "/status/current"), ("GET", "/config")];
    let with_tasks = [look[0], look[1], ("GET", "/tasks?source=active")];
    let expected = [
        &with_tasks[..],
        &[("POST", "/status/stop"), ("GET", "%3Aqmstop%3A")],
        &with_tasks,
        &[("DELETE", "?purge=1"), ("GET", "%3Aqmdestroy%3A")],
        &[("GET", "/status/current"), ("GET", "/cluster/nextid")],
        &[("GET", "/content?content=iso")],
    ];
    assert_calls(&gone, &expected.concat());
}

/// The requests of one minute.
#[derive(Debug, PartialEq)]
struct Minute {
    shared: usize,
    agent_turns: usize,
    beside_them: usize,
}

/// Every steady minute of so many machines, until each had a turn again.
async fn steady_minutes(machines: usize) -> Vec<Minute> {
    let mut setup = Setup::default();
    // Room for all of them.
    setup.nodes[0].memory = 4 << 40;
    let change = |config: &mut Config| config.max_concurrent_clones = 100;
    let first = Scene::with(setup, change).await;
    let mut all: Vec<(Scene, Claim)> = Vec::new();
    for some in (0..machines).collect::<Vec<_>>().chunks(100) {
        let made = some.iter().map(|number| {
            let scene = first.of(&format!("uid-{number}"));
            async move {
                let mut claim = scene.claim().await;
                scene.up_through(&mut claim).await;
                (scene, claim)
            }
        });
        for (scene, mut claim) in join_all(made).await {
            scene.reports(&claim).await;
            scene.seal(&mut claim).await;
            all.push((scene, claim));
        }
    }
    let mut minutes = Vec::new();
    for _ in 0..=machines.div_ceil(60) + 1 {
        first.sim.take_requests();
        for _ in 0..12 {
            sleep(Duration::from_secs(5)).await;
            for (scene, claim) in &all {
                let state = scene.state(claim).await;
                let serves = matches!(state, MachineState::Running(Addresses::Reported { .. }));
                assert!(serves, "{state:?}");
            }
        }
        let requests = first.sim.take_requests();
        let changing: Vec<_> = requests.iter().filter(|r| !r.starts_with("GET")).collect();
        assert!(changing.is_empty(), "{changing:#?}");
        let count = |wanted: fn(&str) -> bool| requests.iter().filter(|r| wanted(r)).count();
        minutes.push(Minute {
            shared: count(|r| !r.contains("/qemu/1")),
            agent_turns: count(|r| r.contains("/agent/")),
            beside_them: count(|r| r.contains("/qemu/1") && !r.contains("/agent/")),
        });
    }
    // In the first one all of them may have their first turn.
    minutes.remove(0);
    println!("{machines} machines: {minutes:#?}");
    minutes
}

#[tokio::test(start_paused = true)]
async fn a_steady_minute_costs_the_same_for_ten_machines_and_for_hundreds() {
    // More of them take minutes to be made: `STEADY_MACHINES=1000` for the figures.
    let many = std::env::var("STEADY_MACHINES").map_or(200, |text| text.parse().unwrap());
    for machines in [10, many] {
        for minute in steady_minutes(machines).await {
            assert_eq!(minute.shared, 12, "{machines} machines: {minute:?}");
            assert!(minute.agent_turns <= 60, "{machines} machines: {minute:?}");
            let beside = 2 * minute.agent_turns;
            assert_eq!(
                minute.beside_them, beside,
                "{machines} machines: {minute:?}"
            );
        }
    }
}
