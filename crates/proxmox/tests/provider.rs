//! What the provider sends, step by step, and what it makes of odd worlds.

mod bench;
#[path = "bench/scene.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod scene;

use egress_core::{
    ErrorClass,
    machine::{MachineState, StopReason},
};
use egress_provider::{CheckReason, Permit, Progress, Severity, conformance::Harness as _};
use egress_proxmox_sim::world::{AclSetup, Setup};
use scene::Scene;
use serde_json::json;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Reads that all Proxies share, once a period: they are no cost of one machine.
fn is_shared(request: &str) -> bool {
    let path = request.split_once(' ').map_or(request, |(_, path)| path);
    [
        "/cluster/resources",
        "/cluster/status",
        "/cluster/options",
        "/version",
        "/access/permissions",
    ]
    .iter()
    .any(|start| path.starts_with(start))
        || [
            "/certificates/info",
            "/status?",
            "/network?",
            "/time",
            "/qemu/9000/config",
        ]
        .iter()
        .any(|part| path.contains(part))
        || (path.contains("/storage/") && path.ends_with("/status"))
}

#[tokio::test(start_paused = true)]
async fn ten_requests_make_a_machine() {
    let scene = Scene::new(Setup::default()).await;
    scene.sim.take_requests();
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    let own: Vec<_> = scene
        .sim
        .take_requests()
        .into_iter()
        .filter(|r| !is_shared(r))
        .collect();
    println!("{own:#?}");
    assert!(own.len() <= 10, "{} requests: {own:#?}", own.len());
    let mutations: Vec<_> = own.iter().filter(|r| !r.starts_with("GET")).collect();
    assert_eq!(
        mutations.len(),
        4,
        "clone, upload, config, start: {mutations:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_resize_costs_three_requests_more_at_most() {
    let mut scene = Scene::new(Setup::default()).await;
    scene.wanted.size.disk_gib = 10;
    scene.sim.take_requests();
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    let own: Vec<_> = scene
        .sim
        .take_requests()
        .into_iter()
        .filter(|r| !is_shared(r))
        .collect();
    assert!(own.len() <= 13, "{} requests: {own:#?}", own.len());
    assert!(
        own.iter()
            .any(|r| r.starts_with("PUT") && r.ends_with("/resize")),
        "{own:#?}"
    );
    scene.down(&mut claim).await;
}

#[tokio::test(start_paused = true)]
async fn a_sealed_machine_costs_its_turns_and_the_shared_list_alone() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.reports(&claim).await;
    scene.seal(&mut claim).await;
    scene.reports(&claim).await;
    sleep(Duration::from_secs(30)).await;
    scene.reports(&claim).await;
    scene.sim.take_requests();
    for _ in 0..60 {
        sleep(Duration::from_secs(1)).await;
        scene.reports(&claim).await;
    }
    let all = scene.sim.take_requests();
    // Seven lists of two requests and seven turns of three.
    assert!(
        all.len() <= 7 * 2 + 7 * 3,
        "{} requests in a minute: {all:#?}",
        all.len()
    );
    assert!(all.iter().all(|r| r.starts_with("GET")), "{all:#?}");
}

#[tokio::test(start_paused = true)]
async fn tags_that_are_not_allowed_are_left_out_and_the_checker_warns() {
    let scene = Scene::new(Setup::default()).await;
    scene.tell(json!({"do": "tags", "userAllow": "none"}));
    let report = scene.provider.check().await.unwrap();
    let warned = report
        .findings
        .iter()
        .find(|f| f.reason == CheckReason::TagNotAllowed);
    assert!(
        warned.is_some_and(|f| f.severity == Severity::Warning),
        "{report:?}"
    );
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.reports(&claim).await;
    let listing = scene.provider.list(&[]).await.unwrap();
    assert_eq!(listing.machines.len(), 1, "found by range and name");
    let after = scene.provider.check().await.unwrap().free_slots;
    assert_eq!(after, report.free_slots.map(|free| free - 1));
    scene.down(&mut claim).await;
}

#[tokio::test(start_paused = true)]
async fn each_missing_privilege_is_found_before_anything_is_sent() {
    for privilege in [
        "VM.Clone",
        "VM.Allocate",
        "VM.Audit",
        "VM.PowerMgmt",
        "VM.Config.Options",
        "VM.Config.CPU",
        "VM.Config.Memory",
        "VM.Config.CDROM",
        "VM.Config.Disk",
        "Datastore.AllocateSpace",
        "Datastore.AllocateTemplate",
        "Datastore.Allocate",
        "SDN.Use",
    ] {
        let scene = Scene::new(Setup::default()).await;
        let mut claim = scene.claim().await;
        scene.tell(json!({"do": "remove-privilege", "privilege": privilege}));
        sleep(Duration::from_secs(22)).await;
        scene.sim.take_requests();
        let error = scene.create_once(&mut claim).await.unwrap_err();
        assert_eq!(
            error.class(),
            ErrorClass::Unauthorized,
            "{privilege}: {error}"
        );
        let sent = scene.sim.take_requests();
        assert!(
            sent.iter().all(|r| r.starts_with("GET")),
            "{privilege}: {sent:#?}"
        );
        let report = scene.provider.check().await.unwrap();
        let named = report
            .findings
            .iter()
            .any(|f| f.severity == Severity::Error && f.found.contains(privilege));
        assert!(named, "{privilege}: {report:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn x2_a_stale_lock_of_a_clone_is_told_with_what_to_do_after_five_minutes() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.create_once(&mut claim).await.unwrap();
    sleep(Duration::from_millis(100)).await;
    scene.tell(json!({"do": "kill-tasks"}));
    let told = loop {
        match scene.create_once(&mut claim).await {
            Ok(progress) => assert_ne!(progress, Progress::Done),
            Err(error) if error.class() == ErrorClass::NeedsOperator => break error,
            Err(error) => assert_eq!(error.class(), ErrorClass::OutcomeUnknown, "{error}"),
        }
        sleep(Duration::from_secs(5)).await;
    };
    for word in ["qm unlock", claim.slot.as_str(), "local-lvm"] {
        assert!(told.said().contains(word), "{word} is missing: {told}");
    }
    let state = scene.state(&claim).await;
    assert!(matches!(state, MachineState::Unknown { .. }), "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn a_killed_clone_is_looked_for_and_never_taken_for_gone() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.create_once(&mut claim).await.unwrap();
    sleep(Duration::from_millis(100)).await;
    scene.tell(json!({"do": "kill-tasks"}));
    let state = scene.state(&claim).await;
    assert_ne!(state, MachineState::Absent);
}

#[tokio::test(start_paused = true)]
async fn b78_a_lost_seed_is_sent_again_before_the_next_start() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.reports(&claim).await;
    let vmid = claim.slot.as_str().parse::<u32>().unwrap();
    let seed = claim.seed.clone().unwrap().name;
    scene.tell(json!({"do": "remove-seed", "name": seed}));
    scene.tell(json!({"do": "power", "vmid": vmid, "event": "off"}));
    sleep(Duration::from_secs(22)).await;
    assert_eq!(
        scene.state(&claim).await,
        MachineState::Stopped(StopReason::PoweredOff)
    );
    let mut last = None;
    for _ in 0..50 {
        match scene.create_once(&mut claim).await {
            Ok(Progress::Done) => {
                last = Some(true);
                break;
            }
            Ok(_) => {}
            Err(error) => assert_eq!(error.class(), ErrorClass::Transient, "{error}"),
        }
    }
    assert_eq!(last, Some(true), "it does not start again");
    scene.down(&mut claim).await;
}

/// A token whose rights come from a pool sees a machine only once its clone has joined.
fn pool_scoped() -> Setup {
    let roles = ["/pool/egress", "/storage", "/sdn"];
    let usual = Setup::default();
    let mut pools = usual.pools.clone();
    pools[0].members.push(9000);
    Setup {
        acl: roles
            .map(|path| AclSetup {
                path: path.to_owned(),
                who: "op@pve".to_owned(),
                role: "Operator".to_owned(),
                propagate: true,
            })
            .into(),
        pools,
        ..usual
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_scoped_token_makes_runs_and_removes_a_machine() {
    let directory = tempfile::tempdir().unwrap();
    let (sim, bench) = bench::bench_with(pool_scoped(), directory.path(), |config| {
        config.pool = Some("egress".to_owned());
    });
    let scene = Scene::over(directory, sim, bench).await;
    let report = scene.provider.check().await.unwrap();
    let errors: Vec<_> = report
        .findings
        .iter()
        .filter(|f| f.severity == Severity::Error)
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.reports(&claim).await;
    scene.down(&mut claim).await;
    assert_eq!(scene.state(&claim).await, MachineState::Absent);
    assert!(
        scene
            .bench
            .inventory()
            .await
            .unwrap()
            .iter()
            .all(|line| !line.contains("10") || !line.contains(claim.slot.as_str()))
    );
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_ha_manages_is_stopped_through_ha_and_removed() {
    let scene = Scene::new(bench::two_nodes()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    let vmid = claim.slot.as_str().parse::<u32>().unwrap();
    scene.tell(json!({"do": "ha", "vmid": vmid, "managed": true}));
    scene.sim.take_requests();
    scene.down(&mut claim).await;
    let stops = scene.sim.take_requests();
    let stops = stops.iter().filter(|r| r.ends_with("/status/stop"));
    assert_eq!(stops.count(), 1);
    assert_eq!(scene.state(&claim).await, MachineState::Absent);
}

#[tokio::test(start_paused = true)]
async fn answers_lost_at_random_end_in_one_machine_and_then_in_none() {
    let scene = Scene::new(Setup::default()).await;
    scene.tell(json!({"do": "lose-at-random", "permille": 300, "reads": true}));
    for round in 1..=10 {
        let mut claim = loop {
            let claim = scene
                .provider
                .claim(&scene.key, &scene.wanted, round, &[])
                .await;
            if let Ok(claim) = claim {
                break claim;
            }
            sleep(Duration::from_secs(2)).await;
        };
        let end = Instant::now() + Duration::from_mins(30);
        loop {
            match scene.create_once(&mut claim).await {
                Ok(Progress::Done) => break,
                Ok(_) => {}
                Err(_) => sleep(Duration::from_secs(2)).await,
            }
            assert!(Instant::now() < end, "create does not come to an end");
        }
        let machines = |lines: Vec<String>| {
            let slot = claim.slot.as_str().to_owned();
            lines
                .into_iter()
                .filter(|l| l.contains(&slot) && !l.contains("9000"))
                .count()
        };
        assert!(machines(scene.bench.inventory().await.unwrap()) >= 1);
        loop {
            let permit = Permit::new(claim.attempt, Instant::now() + Duration::from_mins(10));
            match scene.provider.delete(&scene.key, &claim, &permit).await {
                Ok(Progress::Done) => break,
                Ok(Progress::InProgress {
                    handles, recheck, ..
                }) => {
                    claim.handles = handles;
                    sleep(recheck).await;
                }
                Err(_) => sleep(Duration::from_secs(2)).await,
            }
            assert!(
                Instant::now() < end + Duration::from_mins(30),
                "delete does not end"
            );
        }
    }
    scene.tell(json!({"do": "heal"}));
    sleep(Duration::from_mins(2)).await;
    let left = scene.bench.inventory().await.unwrap();
    let fresh = Scene::new(Setup::default()).await;
    assert_eq!(left, fresh.bench.inventory().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn without_the_static_proxyd_a_machine_that_needs_it_is_refused_with_the_way_to_get_it() {
    let directory = tempfile::tempdir().unwrap();
    let (sim, bench) = bench::bench_with(Setup::default(), directory.path(), |config| {
        config.guest_agent = egress_proxmox::GuestAgent::Package;
    });
    let scene = Scene::over(directory, sim, bench).await;
    let mut claim = scene.claim().await;
    scene.sim.take_requests();
    let error = scene.create_once(&mut claim).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent, "{error}");
    for word in ["cargo xtask payload", "--payload-dir", "baked"] {
        assert!(error.said().contains(word), "{word} is missing: {error}");
    }
    let sent = scene.sim.take_requests();
    assert!(sent.iter().all(|r| r.starts_with("GET")), "{sent:#?}");
    assert_eq!(
        scene.provider.check().await.unwrap().reason(),
        CheckReason::ConfigInvalid
    );
}

#[tokio::test(start_paused = true)]
async fn a_stranger_who_takes_the_vmid_right_before_the_clone_is_a_conflict_and_untouched() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    let vmid = claim.slot.as_str().parse::<u32>().unwrap();
    scene.tell(json!({"do": "place", "vmid": vmid, "name": "web"}));
    let before = scene.bench.describe(&claim.slot).await.unwrap();
    let error = scene.create_once(&mut claim).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict, "{error}");
    assert_eq!(scene.bench.describe(&claim.slot).await.unwrap(), before);
    let next = scene
        .provider
        .claim(&scene.key, &scene.wanted, 2, &[claim.slot.clone()])
        .await
        .unwrap();
    assert_ne!(next.slot, claim.slot);
}

/// A connection may take longer than what was seen of the machine is good for.
#[tokio::test(start_paused = true)]
async fn a_slow_connection_carries_no_stop_and_no_destroy_on_an_old_look() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    let slow = Duration::from_secs(3);
    for (way, word) in [("POST", "/status/stop"), ("DELETE", "?purge=1")] {
        scene.sim.connect_within(slow);
        let before = scene.bench.mutations().await.unwrap();
        let told = scene.delete_once(&mut claim).await.unwrap_err();
        assert_eq!(told.class(), ErrorClass::Transient, "{}", told.chain());
        assert_eq!(scene.bench.mutations().await.unwrap(), before);

        scene.sim.connect_within(Duration::from_secs(1));
        scene.sim.take_requests();
        let is_sent = |requests: Vec<String>| {
            requests
                .iter()
                .any(|line| line.starts_with(way) && line.contains(word))
        };
        while !is_sent(scene.sim.take_requests()) {
            scene.delete_once(&mut claim).await.unwrap();
        }
        // Until the task has ended and the next request is due.
        while !claim.handles.is_empty() && way == "POST" {
            let seen = scene.provider.get(&scene.key, &claim).await.unwrap();
            if matches!(seen.state, MachineState::Stopped(_)) {
                break;
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
    scene.sim.connect_within(Duration::ZERO);
    scene.down(&mut claim).await;
}
