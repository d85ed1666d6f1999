//! Deleting, and what must be left alone by it.

use crate::{
    bench::two_nodes,
    instead, list_without_machines,
    scene::{Scene, seed_file, vmid},
    slow_copies, task_ended, times,
};
use egress_core::{ErrorClass, Standing, machine::MachineState};
use egress_provider::{CheckReason, Progress, conformance::Harness as _};
use egress_proxmox_sim::world::{Setup, VolumeSetup};
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn b03_a_stranger_at_the_recorded_vmid_is_never_destroyed() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    let vmid = vmid(&claim);
    scene.tell(json!({"do": "remove", "vmid": vmid}));
    scene.tell(json!({"do": "place", "vmid": vmid, "name": "payroll"}));
    let stranger = scene.describe(vmid);
    scene.down(&mut claim).await;
    assert_eq!(scene.describe(vmid), stranger);
    let destroyed = scene.mutations();
    let destroyed = destroyed.iter().any(|line| line.starts_with("DELETE"));
    assert!(!destroyed, "nothing is sent that could destroy it");
}

#[tokio::test(start_paused = true)]
async fn b06_a_machine_with_another_name_or_mark_at_our_vmid_is_not_ours_running() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.reports(&claim).await;
    let vmid = vmid(&claim);
    let ours = scene.mark(vmid).unwrap();
    let mut of_another_key = ours.clone();
    of_another_key.uid = "uid-2".parse().unwrap();
    for text in [
        None,
        Some("bought in 2019".to_owned()),
        Some(of_another_key.to_string()),
    ] {
        scene.tell(json!({"do": "remove", "vmid": vmid}));
        scene.tell(json!({"do": "place", "vmid": vmid, "name": "db", "text": text}));
        sleep(Duration::from_secs(22)).await;
        let state = scene.state(&claim).await;
        assert_eq!(state, MachineState::Foreign, "{text:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn b09_a_destroy_that_failed_is_not_done_and_its_machine_goes_to_no_other_key() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    let vmid = vmid(&claim);
    // Someone starts it between the request and its worker.
    scene.tell(json!({"do": "stall-tasks", "kind": "qmdestroy"}));
    while !claim.handles.iter().any(|handle| handle.step == "destroy") {
        assert_ne!(scene.delete_once(&mut claim).await.unwrap(), Progress::Done);
    }
    scene.tell(json!({"do": "power", "vmid": vmid, "event": "started"}));
    scene.tell(json!({"do": "continue"}));
    let failed = loop {
        match scene.delete_once(&mut claim).await {
            Ok(progress) => assert_ne!(progress, Progress::Done),
            Err(error) => break error,
        }
    };
    assert!(failed.said().contains("is running"), "{failed}");
    assert!(scene.describe(vmid).is_some());
    let next = scene.of("uid-2").claim().await;
    assert_ne!(next.slot, claim.slot);
    assert_eq!(next.standing, Standing::Unsent);
    scene.down(&mut claim).await;
    assert_eq!(scene.describe(vmid), None);
}

#[tokio::test(start_paused = true)]
async fn b12_a_stop_that_ha_only_took_note_of_is_waited_for_by_the_machines_own_status() {
    let mut setup = two_nodes();
    setup.timings.ha = 10.0;
    let scene = Scene::new(setup).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    let vmid = vmid(&claim);
    scene.tell(json!({"do": "ha", "vmid": vmid, "managed": true}));
    let mut waited = 0;
    loop {
        let runs = scene
            .describe(vmid)
            .is_some_and(|text| text.contains("running as"));
        scene.sim.take_requests();
        let progress = scene.delete_once(&mut claim).await.unwrap();
        let sent = scene.sim.take_requests();
        let destroys = sent
            .iter()
            .any(|request| request.starts_with("DELETE") && request.contains("/qemu/"));
        assert!(!(runs && destroys), "destroyed while it ran: {sent:#?}");
        waited += u32::from(runs);
        if progress == Progress::Done {
            break;
        }
    }
    assert!(waited >= 3, "it stopped too soon for this test: {waited}");
    assert_eq!(scene.describe(vmid), None);
}

#[tokio::test(start_paused = true)]
async fn b15_a_clone_that_was_given_up_and_comes_late_is_waited_for_and_taken_away() {
    let fresh = Scene::new(Setup::default()).await.inventory();
    let scene = Scene::new(slow_copies(120.0)).await;
    let mut claim = scene.claim().await;
    scene.create_once(&mut claim).await.unwrap();
    // The task is lost with the process that began it.
    let next = scene.restarted().await;
    claim.handles.clear();
    assert_ne!(next.create_once(&mut claim).await.unwrap(), Progress::Done);
    claim.handles.clear();
    sleep(Duration::from_mins(1)).await;
    let progress = next.delete_once(&mut claim).await.unwrap();
    assert_ne!(progress, Progress::Done, "the clone still runs");
    next.down(&mut claim).await;
    assert_eq!(next.inventory(), fresh);
    assert_eq!(next.clones(), 1);
}

#[tokio::test(start_paused = true)]
async fn b16_names_that_begin_as_ours_do_are_not_ours() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    let (file, name) = (seed_file(&claim), scene.key.name().to_owned());
    let digits = &file[..12];
    scene.tell(json!({"do": "place", "vmid": 500, "name": "proxy-a"}));
    scene.tell(json!({"do": "place", "vmid": 501, "name": format!("{name}-old")}));
    scene.tell(json!({"do": "place", "vmid": vmid(&claim) + 1, "name": format!("{name}2")}));
    for iso in [
        "debian.iso".to_owned(),
        format!("{digits}notes.iso"),
        format!("{digits}{name}-old-1.iso"),
        format!("{digits}{name}.iso"),
        file.replace(digits, "px-00000000-"),
    ] {
        scene.tell(json!({"do": "leave-seed", "name": iso, "storage": "proxy-seeds"}));
    }
    let before = scene.inventory();
    scene.up(&mut claim).await;
    let listing = scene.provider.list(&[]).await.unwrap();
    assert_eq!(listing.machines.len(), 1, "{listing:?}");
    assert!(
        listing.leftovers.is_empty() && listing.copies.is_empty(),
        "{listing:?}"
    );
    scene.down(&mut claim).await;
    assert_eq!(scene.inventory(), before);
}

#[tokio::test(start_paused = true)]
async fn b17_x16_a_seed_goes_also_when_its_machine_is_gone_already() {
    let fresh = Scene::new(Setup::default()).await.inventory();
    // A person removed the machine.
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.tell(json!({"do": "remove", "vmid": vmid(&claim)}));
    scene.tell(json!({"do": "leave-seed", "name": seed_file(&claim)}));
    scene.down(&mut claim).await;
    assert_eq!(scene.inventory(), fresh);
    // The process ended between the machine and its seed.
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    while scene.describe(vmid(&claim)).is_some() {
        scene.delete_once(&mut claim).await.unwrap();
    }
    assert_ne!(scene.inventory(), fresh, "the CD is not destroy's business");
    claim.handles.clear();
    scene.restarted().await.down(&mut claim).await;
    assert_eq!(scene.inventory(), fresh);
    // The record is gone too: the sweep sees the seed.
    scene.tell(json!({"do": "leave-seed", "name": seed_file(&claim)}));
    let listing = scene.provider.list(&[]).await.unwrap();
    assert_eq!(listing.leftovers.len(), 1);
    assert_eq!(listing.leftovers[0].machine, scene.key.name());
}

#[tokio::test(start_paused = true)]
async fn b18_a_list_without_the_machine_is_no_proof_that_it_is_gone() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.tell(list_without_machines());
    sleep(Duration::from_secs(11)).await;
    for host in [claim.host.clone(), None] {
        let mut claim = claim.clone();
        claim.host = host;
        let state = scene.restarted().await.state(&claim).await;
        assert_ne!(state, MachineState::Absent, "{:?}", claim.host);
    }
    let mut lost = claim.clone();
    lost.host = None;
    let refused = scene.delete_once(&mut lost).await.unwrap_err();
    assert_eq!(refused.class(), ErrorClass::NeedsOperator, "{refused}");
    assert!(scene.describe(vmid(&claim)).is_some());
    scene.down(&mut claim).await;
    assert_eq!(scene.describe(vmid(&claim)), None);
}

#[tokio::test(start_paused = true)]
async fn b18_of_three_deletions_at_once_one_request_destroys() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.tell(json!({"do": "power", "vmid": vmid(&claim), "event": "off"}));
    // Long enough that each has to look at the cluster between its decision and its request.
    sleep(Duration::from_secs(5)).await;
    let mut others = (claim.clone(), claim.clone());
    let (one, two, three) = tokio::join!(
        scene.down_through(&mut claim),
        scene.down_through(&mut others.0),
        scene.down_through(&mut others.1),
    );
    for trouble in one.iter().chain(&two).chain(&three) {
        assert_eq!(trouble.class(), ErrorClass::Busy, "{trouble}");
    }
    let sent = scene.mutations();
    let destroys = sent
        .iter()
        .filter(|line| line.starts_with("DELETE") && line.contains("/qemu/"));
    assert_eq!(destroys.count(), 1, "{sent:#?}");
    assert_eq!(scene.describe(vmid(&claim)), None);
}

#[tokio::test(start_paused = true)]
async fn b23_an_error_without_a_text_leaves_existence_to_be_asked_for() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    // Something on the way takes both texts away.
    scene.tell(instead(
        &format!("/qemu/{}/", vmid(&claim)),
        500,
        "Internal Server Error",
        &json!({"data": null}),
    ));
    sleep(Duration::from_secs(22)).await;
    let there = scene.provider.get(&scene.key, &claim).await.unwrap_err();
    assert_eq!(there.class(), ErrorClass::Transient, "{there}");
    let kept = scene.delete_once(&mut claim).await.unwrap_err();
    assert_eq!(kept.class(), ErrorClass::Transient, "{kept}");
    scene.tell(json!({"do": "remove", "vmid": vmid(&claim)}));
    assert_eq!(scene.state(&claim).await, MachineState::Absent);
    scene.down(&mut claim).await;
}

#[tokio::test(start_paused = true)]
async fn x1_what_a_killed_destroy_left_is_told_and_its_vmid_is_used_no_more() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    claim.standing = Standing::Started;
    // No name, no mark: all that is left of the configuration.
    scene.tell(json!({"do": "lock", "vmid": vmid(&claim), "lock": "destroyed"}));
    let deleting = MachineState::InProgress {
        step: "it is being destroyed".to_owned(),
    };
    assert_eq!(scene.state(&claim).await, deleting);
    let progress = scene.delete_once(&mut claim).await.unwrap();
    assert_ne!(progress, Progress::Done);
    sleep(Duration::from_mins(6)).await;
    let MachineState::Unknown { why } = scene.state(&claim).await else {
        panic!("it is not told");
    };
    assert!(why.contains("qm unlock"), "{why}");
    let error = scene.delete_once(&mut claim).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::NeedsOperator, "{error}");
    assert_ne!(scene.claim().await.slot, claim.slot);
    let touched = scene.mutations();
    assert!(touched.is_empty(), "{touched:#?}");
}

#[tokio::test(start_paused = true)]
async fn x14_a_disk_that_could_not_be_removed_is_told_and_holds_nothing_up() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.tell(json!({"do": "storage-online", "storage": "local-lvm", "online": false}));
    scene.down(&mut claim).await;
    assert_eq!(scene.describe(vmid(&claim)), None);
    scene.tell(json!({"do": "storage-online", "storage": "local-lvm", "online": true}));
    let disk = format!("vm-{}-disk-", vmid(&claim));
    let left = scene.inventory();
    assert!(left.iter().any(|line| line.contains(&disk)), "{left:#?}");
    let report = scene.provider.check().await.unwrap();
    let told = report
        .findings
        .iter()
        .find(|finding| finding.found.contains(&disk));
    assert!(told.is_some(), "{report:#?}");
    assert_eq!(report.reason(), CheckReason::Ready);
}

/// A machine that was destroyed, and whose disk could not be freed: the next step sees it.
async fn with_remains(scene: &Scene) -> egress_core::Claim {
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.tell(json!({"do": "storage-online", "storage": "local-lvm", "online": false}));
    while !claim.handles.iter().any(|handle| handle.step == "destroy") {
        scene.delete_once(&mut claim).await.unwrap();
    }
    sleep(Duration::from_secs(20)).await;
    assert_eq!(scene.describe(vmid(&claim)), None);
    scene.tell(json!({"do": "storage-online", "storage": "local-lvm", "online": true}));
    claim
}

/// The requests that would free a disk.
fn freeing(scene: &Scene) -> Vec<String> {
    let mut sent = scene.mutations();
    sent.retain(|line| line.starts_with("DELETE") && line.contains("/storage/local-lvm/"));
    sent
}

/// What `check` says of disks that were left behind.
async fn left_behind(scene: &Scene) -> Option<String> {
    let report = scene.provider.check().await.unwrap();
    let mut told = report.findings.into_iter().map(|finding| finding.found);
    told.find(|found| found.contains("left behind"))
}

#[tokio::test(start_paused = true)]
async fn x14_a_disk_that_outlived_its_machine_is_told_until_it_is_seen_gone() {
    let fresh = Scene::new(Setup::default()).await.inventory();
    let scene = Scene::new(Setup::default()).await;
    let mut claim = with_remains(&scene).await;
    scene.down(&mut claim).await;
    assert_eq!(freeing(&scene).len(), 1);
    assert_eq!(scene.inventory(), fresh);
    assert_eq!(left_behind(&scene).await, None);

    let scene = Scene::new(Setup::default()).await;
    let mut claim = with_remains(&scene).await;
    scene.tell(json!({"do": "stall-tasks", "kind": "imgdel", "count": 1}));
    scene.down(&mut claim).await;
    let disk = format!("vm-{}-disk-0", vmid(&claim));
    let told = left_behind(&scene).await;
    assert!(told.is_some_and(|told| told.contains(&disk)));
    // Whoever has the VMID meanwhile has disks of that name: nobody is told to free them.
    scene.tell(json!({"do": "place", "vmid": vmid(&claim), "name": "payroll"}));
    assert_eq!(left_behind(&scene).await, None);
    scene.tell(json!({"do": "remove", "vmid": vmid(&claim)}));
    scene.tell(json!({"do": "continue"}));
    sleep(Duration::from_secs(20)).await;
    assert_eq!(left_behind(&scene).await, None);
    assert_eq!(scene.inventory(), fresh);
}

#[tokio::test(start_paused = true)]
async fn x14_no_disk_is_freed_on_a_proof_that_grew_old_or_once_someone_has_the_vmid() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = with_remains(&scene).await;
    scene.sim.connect_within(Duration::from_secs(3));
    let late = scene.delete_once(&mut claim).await.unwrap_err();
    assert_eq!(late.class(), ErrorClass::Transient, "{late}");
    assert_eq!(freeing(&scene), Vec::<String>::new());
    scene.sim.connect_within(Duration::ZERO);
    scene.tell(json!({"do": "place", "vmid": vmid(&claim), "name": "payroll"}));
    scene.down(&mut claim).await;
    assert_eq!(freeing(&scene), Vec::<String>::new());
    assert_eq!(left_behind(&scene).await, None);
}

#[tokio::test(start_paused = true)]
async fn x14_each_disk_is_freed_on_an_answer_of_its_own_that_the_vmid_is_free() {
    let mut setup = Setup::default();
    let second = "local-lvm:base-9000-disk-1,size=1G".to_owned();
    setup.guests[0].config.insert("scsi1".to_owned(), second);
    let scene = Scene::new(setup).await;
    let mut claim = with_remains(&scene).await;
    scene.sim.take_requests();
    scene.delete_once(&mut claim).await.unwrap();
    let sent = scene.sim.take_requests();
    let freed: Vec<usize> = (0..sent.len())
        .filter(|at| sent[*at].starts_with("DELETE /nodes/pve1/storage/local-lvm/"))
        .collect();
    assert_eq!(freed.len(), 2, "{sent:#?}");
    for at in freed {
        assert!(sent[at - 1].starts_with("GET /cluster/nextid"), "{sent:#?}");
    }
    let asked = sent.iter().filter(|line| line.contains("/permissions"));
    assert_eq!(asked.count(), 1, "{sent:#?}");
}

#[tokio::test(start_paused = true)]
async fn x15_a_volume_that_only_bears_our_vmid_is_not_freed() {
    let claim = Scene::new(Setup::default()).await.claim().await;
    let volume = format!("local-lvm:vm-{}-disk-7", vmid(&claim));
    let scene = Scene::new(Setup {
        volumes: vec![VolumeSetup {
            volid: volume.clone(),
            node: None,
            size: 1 << 30,
            ctime: None,
        }],
        ..Setup::default()
    })
    .await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.sim.take_requests();
    scene.down(&mut claim).await;
    let sent = scene.sim.take_requests();
    let destroy = sent
        .iter()
        .find(|request| request.starts_with("DELETE") && request.contains("/qemu/"))
        .unwrap();
    assert!(destroy.ends_with("?purge=1"), "{destroy}");
    let left = scene.inventory();
    assert!(left.iter().any(|line| line.contains(&volume)), "{left:#?}");
}

#[tokio::test(start_paused = true)]
async fn x3_a_destroy_whose_task_nobody_knows_is_judged_by_the_machine() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    let unknown = json!({"data": null, "errors": {"upid": "no such task"}});
    let order = instead(
        "/tasks/UPID",
        400,
        "Parameter verification failed.",
        &unknown,
    );
    scene.tell(order);
    scene.down(&mut claim).await;
    assert_eq!(scene.describe(vmid(&claim)), None);
}

#[tokio::test(start_paused = true)]
async fn x2_a_destroy_that_ended_unexpectedly_is_looked_at_and_not_taken_for_done() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.tell(times(1, task_ended("qmdestroy", "unexpected status")));
    let troubles = scene.down_through(&mut claim).await;
    assert_eq!(troubles.len(), 1, "{troubles:#?}");
    assert_eq!(troubles[0].class(), ErrorClass::OutcomeUnknown);
    assert_eq!(scene.describe(vmid(&claim)), None);
    let gone = scene.bench.describe(&claim.slot).await.unwrap();
    assert_eq!(gone, None);
}
