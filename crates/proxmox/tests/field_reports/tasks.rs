//! Tasks, and what their ends do and do not say.

use crate::{
    instead, list_without_machines, of_version,
    scene::{Scene, vmid},
    slow_copies, task_ended, times,
};
use egress_core::{
    ErrorClass, Standing,
    machine::{MachineState, StopReason},
};
use egress_provider::Progress;
use egress_proxmox_sim::world::Setup;
use serde_json::json;
use std::time::Duration;
use tokio::time::{Instant, sleep};

fn starts(scene: &Scene) -> usize {
    let sent = scene.mutations();
    sent.iter()
        .filter(|line| line.contains("/status/start"))
        .count()
}

#[tokio::test(start_paused = true)]
async fn b57_a_clone_that_ended_with_warnings_is_a_clone() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.create_once(&mut claim).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    scene.tell(task_ended("qmclone", "WARNINGS: 1"));
    scene.up(&mut claim).await;
    assert_eq!((scene.clones(), scene.machines().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn b59_a_start_that_ended_with_warnings_is_a_start() {
    let mut setup = Setup::default();
    let template = &mut setup.guests[0].config;
    template.insert("bios".to_owned(), "ovmf".to_owned());
    let vars = "local-lvm:base-9000-disk-1,efitype=4m,pre-enrolled-keys=1,size=4M";
    template.insert("efidisk0".to_owned(), vars.to_owned());
    let scene = Scene::new(setup).await;
    let mut claim = scene.claim().await;
    let mut last = Vec::new();
    while scene.create_once(&mut claim).await.unwrap() != Progress::Done {
        last.clone_from(&claim.handles);
    }
    let start = last.iter().find(|handle| handle.step == "start").unwrap();
    let task = format!("/nodes/pve1/tasks/{}/status", start.id);
    assert_eq!(scene.sim.read(&task)["exitstatus"], "WARNINGS: 1");
    assert_eq!(starts(&scene), 1);
    scene.reports(&claim).await;
}

#[tokio::test(start_paused = true)]
async fn b62_a_start_task_that_failed_is_judged_by_the_machine() {
    for (text, told) in [
        ("VM 100001 already running", 0),
        ("start failed: command 'kvm' failed: got timeout", 1),
    ] {
        let scene = Scene::new(Setup::default()).await;
        let mut claim = scene.claim().await;
        scene.tell(times(1, task_ended("qmstart", text)));
        let troubles = scene.up_through(&mut claim).await;
        assert_eq!(troubles.len(), told, "{troubles:#?}");
        assert_eq!(starts(&scene), 1, "{text}");
        scene.reports(&claim).await;
    }
}

#[tokio::test(start_paused = true)]
async fn b63_a_clone_of_fifteen_minutes_is_waited_for_and_made_once() {
    let scene = Scene::new(slow_copies(900.0)).await;
    let mut claim = scene.claim().await;
    let mut process = scene.restarted().await;
    let begun = Instant::now();
    for pass in 0.. {
        let called = Instant::now();
        let progress = process.create_once(&mut claim).await.unwrap();
        // Each call comes back at once.
        assert!(called.elapsed() < Duration::from_secs(10), "pass {pass}");
        if progress == Progress::Done {
            break;
        }
        if pass % 50 == 10 {
            // Also for a process that knows no task.
            process = scene.restarted().await;
            claim.handles.clear();
        }
        assert!(begun.elapsed() < Duration::from_mins(20));
    }
    assert!(begun.elapsed() > Duration::from_mins(15));
    assert_eq!((scene.clones(), scene.machines().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn b66_a_machine_that_no_list_shows_yet_is_there() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.tell(list_without_machines());
    scene.up(&mut claim).await;
    for process in [&scene, &scene.restarted().await] {
        let state = process.state(&claim).await;
        assert_eq!(state, MachineState::Provisioning);
    }
    scene.tell(json!({"do": "heal"}));
    scene.reports(&claim).await;
    assert_eq!(scene.clones(), 1);
}

#[tokio::test(start_paused = true)]
async fn b61_x3_a_task_that_its_node_does_not_know_leads_to_the_machine() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    let unknown = json!({"data": null, "errors": {"upid": "no such task"}});
    let order = instead(
        "/tasks/UPID",
        400,
        "Parameter verification failed.",
        &unknown,
    );
    scene.tell(times(6, order));
    scene.up(&mut claim).await;
    assert_eq!((scene.clones(), scene.machines().len()), (1, 1));
    scene.reports(&claim).await;
}

#[tokio::test(start_paused = true)]
async fn x2_a_worker_that_was_killed_is_an_unknown_outcome_and_the_machine_decides() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.tell(json!({"do": "stall-tasks", "kind": "qmstart"}));
    while !claim.handles.iter().any(|handle| handle.step == "start") {
        scene.create_once(&mut claim).await.unwrap();
    }
    scene.tell(json!({"do": "kill-tasks", "kind": "qmstart"}));
    scene.tell(json!({"do": "continue"}));
    let troubles = scene.up_through(&mut claim).await;
    assert_eq!(troubles.len(), 1, "{troubles:#?}");
    assert_eq!(troubles[0].class(), ErrorClass::OutcomeUnknown);
    assert_eq!((starts(&scene), scene.clones()), (2, 1));
    scene.reports(&claim).await;
}

#[tokio::test(start_paused = true)]
async fn b69_a_volume_that_is_not_visible_yet_is_no_missing_machine() {
    let mut scene = Scene::new(Setup::default()).await;
    scene.wanted.size.disk_gib = 10;
    let mut claim = scene.claim().await;
    let text = format!(
        "volume 'local-lvm:vm-{}-disk-0' does not exist",
        vmid(&claim)
    );
    scene.tell(times(1, task_ended("resize", &text)));
    let troubles = scene.up_through(&mut claim).await;
    assert_eq!(troubles.len(), 1, "{troubles:#?}");
    assert_eq!(troubles[0].class(), ErrorClass::Transient);
    assert_eq!((scene.clones(), scene.machines().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn b73_a_machine_starts_with_the_size_it_was_given() {
    for version in [8, 9] {
        let mut setup = of_version(version);
        setup.timings.resize = 5.0;
        let mut scene = Scene::new(setup).await;
        scene.wanted.size.disk_gib = 10;
        let mut claim = scene.claim().await;
        while !claim.handles.iter().any(|handle| handle.step == "start") {
            let progress = scene.create_once(&mut claim).await.unwrap();
            assert_ne!(progress, Progress::Done);
        }
        let disk = scene.config(vmid(&claim), "scsi0").unwrap();
        assert!(disk.ends_with("size=10G"), "it started too soon: {disk}");
        scene.up(&mut claim).await;
        let resizes = scene.mutations();
        let resizes = resizes.iter().filter(|line| line.contains("/resize"));
        assert_eq!(resizes.count(), 1, "version {version}");
    }
}

#[tokio::test(start_paused = true)]
async fn b73_a_resize_that_failed_is_made_again_before_the_start() {
    let mut scene = Scene::new(Setup::default()).await;
    scene.wanted.size.disk_gib = 10;
    let mut claim = scene.claim().await;
    scene.tell(json!({"do": "stall-tasks", "kind": "resize", "count": 1}));
    while !claim.handles.iter().any(|handle| handle.step == "resize") {
        scene.create_once(&mut claim).await.unwrap();
    }
    scene.tell(json!({"do": "continue"}));
    scene.tell(json!({"do": "fail-tasks"}));
    let troubles = scene.up_through(&mut claim).await;
    assert_eq!(troubles.len(), 1, "{troubles:#?}");
    let disk = scene.config(vmid(&claim), "scsi0").unwrap();
    assert!(disk.ends_with("size=10G"), "{disk}");
    assert_eq!((starts(&scene), scene.clones()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn b97_a_machine_left_half_made_is_gone_on_with_where_it_stands() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.create_once(&mut claim).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    claim.handles.clear();
    claim.standing = Standing::Seen;
    let next = scene.restarted().await;
    let half = MachineState::Stopped(StopReason::HalfMade);
    assert_eq!(next.state(&claim).await, half);
    next.up(&mut claim).await;
    let sent = next.mutations();
    assert_eq!(sent.len(), 4, "clone, upload, config, start: {sent:#?}");
}
