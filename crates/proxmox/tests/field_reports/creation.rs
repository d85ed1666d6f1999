//! Cloning, and the numbers it takes.

use crate::{
    bench::two_nodes,
    scene::{Scene, seed_file, vmid},
    shared_storage, slow_copies, task_ended, times,
};
use egress_core::{
    ErrorClass, Slot, Standing,
    machine::{Addresses, MachineState},
};
use egress_provider::{Progress, Severity};
use egress_proxmox_sim::world::{GuestSetup, Setup};
use futures_util::future::join_all;
use serde_json::json;
use std::{collections::BTreeSet, time::Duration};
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn b04_a_vmid_that_was_taken_while_it_was_tried_is_not_ours_to_delete() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.tell(json!({"do": "place", "vmid": vmid(&claim), "name": "db"}));
    let stranger = scene.describe(vmid(&claim));
    let error = scene.create_once(&mut claim).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict, "{error}");
    scene.down(&mut claim).await;
    assert_eq!(scene.describe(vmid(&claim)), stranger);
}

#[tokio::test(start_paused = true)]
async fn b14_a_process_that_dies_after_its_clone_was_accepted_leaves_one_machine() {
    for lived_on in [0.0, 0.1, 5.0] {
        let scene = Scene::new(Setup::default()).await;
        let mut claim = scene.claim().await;
        scene.create_once(&mut claim).await.unwrap();
        sleep(Duration::from_secs_f64(lived_on)).await;
        // What was answered is not recorded.
        claim.handles.clear();
        let next = scene.restarted().await;
        next.up(&mut claim).await;
        next.reports(&claim).await;
        assert_eq!((next.clones(), next.machines().len()), (1, 1), "{lived_on}");
        let listing = next.restarted().await.provider.list(&[]).await.unwrap();
        assert_eq!(listing.machines.len(), 1, "a lost record hides nothing");
    }
}

#[tokio::test(start_paused = true)]
async fn b27_a_seed_left_by_an_earlier_try_is_overwritten() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.tell(json!({"do": "leave-seed", "name": seed_file(&claim)}));
    scene.up(&mut claim).await;
    let sent = scene.mutations();
    let uploads = sent.iter().filter(|line| line.contains("/upload"));
    assert_eq!(uploads.count(), 1, "{sent:#?}");
    scene.reports(&claim).await;
}

#[tokio::test(start_paused = true)]
async fn b32_a_vmid_whose_old_disks_are_in_the_way_is_left_for_another() {
    for text in [
        "clone failed: disk image '/srv/vmdata/images/100001/vm-100001-disk-0.qcow2' already exists",
        "clone failed: lvcreate 'pve/vm-100001-disk-0' error:   Logical Volume \"vm-100001-disk-0\" already exists in volume group \"pve\"",
        "clone failed: zfs error: cannot create 'rpool/data/vm-100001-disk-0': dataset already exists",
    ] {
        let scene = Scene::new(Setup::default()).await;
        let mut claim = scene.claim().await;
        scene.create_once(&mut claim).await.unwrap();
        scene.tell(json!({"do": "fail-tasks"}));
        scene.tell(times(1, task_ended("qmclone", text)));
        let error = loop {
            match scene.create_once(&mut claim).await {
                Ok(progress) => assert_ne!(progress, Progress::Done),
                Err(error) => break error,
            }
        };
        assert_eq!(error.class(), ErrorClass::Conflict, "{error}");
        let spent = [claim.slot.clone()];
        let mut next = scene
            .provider
            .claim(&scene.key, &scene.wanted, 2, &spent)
            .await
            .unwrap();
        assert_ne!(next.slot, claim.slot);
        scene.up(&mut next).await;
    }
}

#[tokio::test(start_paused = true)]
async fn b34_nothing_is_ever_sent_to_the_template_but_clone() {
    let scene = Scene::new(Setup::default()).await;
    let template = scene.describe(9000);
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.reports(&claim).await;
    scene.seal(&mut claim).await;
    scene.down(&mut claim).await;
    let sent = scene.mutations();
    assert!(sent.len() >= 8, "a whole life: {sent:#?}");
    let to_template = sent.iter().filter(|line| line.contains("/qemu/9000/"));
    let others = to_template.filter(|line| !line.contains("/qemu/9000/clone "));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(scene.describe(9000), template);
}

#[tokio::test(start_paused = true)]
async fn b35_a_container_or_machine_that_no_list_showed_is_never_written_to() {
    for container in [true, false] {
        let scene = Scene::new(Setup::default()).await;
        let mut claim = scene.claim().await;
        let order =
            json!({"do": "place", "vmid": vmid(&claim), "name": "ct", "container": container});
        scene.tell(order);
        let stranger = scene.describe(vmid(&claim));
        // A container's number is refused by the task alone.
        let error = loop {
            match scene.create_once(&mut claim).await {
                Ok(progress) => assert_ne!(progress, Progress::Done),
                Err(error) => break error,
            }
        };
        assert_eq!(error.class(), ErrorClass::Conflict, "{error}");
        let path = format!("/{}", vmid(&claim));
        let written = scene.mutations();
        assert!(
            !written.iter().any(|line| line.contains(&path)),
            "{written:#?}"
        );
        assert_eq!(scene.describe(vmid(&claim)), stranger);
    }
}

/// What an engine does for one key, with records that no one else sees.
async fn settle(scene: &Scene) -> Slot {
    let mut spent: Vec<Slot> = Vec::new();
    let end = Instant::now() + Duration::from_mins(30);
    for attempt in 1.. {
        let claimed = scene
            .provider
            .claim(&scene.key, &scene.wanted, attempt, &spent)
            .await;
        let Ok(mut claim) = claimed else {
            assert!(Instant::now() < end, "no number is left: {claimed:?}");
            sleep(Duration::from_secs(2)).await;
            continue;
        };
        loop {
            assert!(Instant::now() < end, "it never settles");
            match scene.create_once(&mut claim).await {
                Ok(Progress::Done) => return claim.slot,
                Ok(_) => {}
                Err(error) if error.class() == ErrorClass::Conflict => {
                    spent.push(claim.slot);
                    break;
                }
                Err(_) => sleep(Duration::from_secs(2)).await,
            }
        }
    }
    unreachable!("attempts do not end")
}

#[tokio::test(start_paused = true)]
async fn b36_b37_five_at_once_on_five_numbers_are_five_machines_each_its_own() {
    let scene = Scene::with(Setup::default(), |config| {
        config.vmid_range =
            serde_json::from_value(json!({"from": 100_000, "to": 100_004})).unwrap();
    })
    .await;
    let mut five = Vec::new();
    for number in 0..5 {
        five.push(scene.of(&format!("uid-{number}")).restarted().await);
    }
    let slots = join_all(five.iter().map(settle)).await;
    assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), 5, "{slots:?}");
    for (scene, slot) in five.iter().zip(&slots) {
        let mark = scene.mark(slot.as_str().parse().unwrap()).unwrap();
        assert_eq!((&mark.uid, &mark.slot), (scene.key.uid(), slot));
    }
    assert_eq!(scene.machines().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn b40_a_clone_that_waited_too_long_for_its_storage_is_tried_again() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.tell(json!({"do": "hold-storage", "storage": "local-lvm", "seconds": 45.0}));
    let troubles = scene.up_through(&mut claim).await;
    assert!(!troubles.is_empty());
    for trouble in &troubles {
        assert_eq!(trouble.class(), ErrorClass::Busy, "{trouble}");
        assert!(trouble.said().contains("got timeout"), "{trouble}");
    }
    assert_eq!(scene.machines().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn b42_a_machine_whose_file_someone_holds_is_configured_a_little_later() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.create_once(&mut claim).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let order = json!({"do": "hold-machine", "vmid": vmid(&claim), "seconds": 25.0});
    scene.tell(order);
    let troubles = scene.up_through(&mut claim).await;
    assert_eq!(troubles.len(), 2, "{troubles:#?}");
    for trouble in &troubles {
        assert_eq!(trouble.class(), ErrorClass::Busy, "{trouble}");
        assert!(trouble.said().contains("can't lock file"), "{trouble}");
    }
}

#[tokio::test(start_paused = true)]
async fn b45_x11_a_clone_for_another_node_is_asked_of_the_templates_and_seen_on_its_way() {
    let mut setup = shared_storage();
    setup.guests[0].copy_seconds = 20.0;
    let scene = Scene::new(setup).await;
    scene.tell(json!({"do": "fill-memory", "node": "pve1", "free": 0}));
    let mut claim = scene.claim().await;
    assert_eq!(claim.host.as_ref().unwrap().as_str(), "pve2");
    scene.create_once(&mut claim).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    let clone = scene.mutations();
    assert!(
        clone[0].starts_with("POST /nodes/pve1/qemu/9000/clone"),
        "{clone:#?}"
    );
    assert!(clone[0].contains("target=pve2"), "{clone:#?}");
    let text = scene.describe(vmid(&claim)).unwrap();
    assert!(text.contains("on pve1"), "{text}");
    for scene in [&scene, &scene.restarted().await] {
        let mut lost = claim.clone();
        lost.handles.clear();
        for claim in [&claim, &lost] {
            let state = scene.state(claim).await;
            assert!(
                matches!(state, MachineState::InProgress { .. }),
                "{state:?}"
            );
        }
    }
    scene.up(&mut claim).await;
    let text = scene.describe(vmid(&claim)).unwrap();
    assert!(text.contains("on pve2"), "{text}");
    assert_eq!(scene.clones(), 1);
}

#[tokio::test(start_paused = true)]
async fn x11_a_clone_that_failed_leaves_nothing_and_is_made_again_at_the_same_number() {
    let scene = Scene::new(slow_copies(10.0)).await;
    let mut claim = scene.claim().await;
    scene.create_once(&mut claim).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    scene.tell(json!({"do": "fail-tasks"}));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(scene.machines(), Vec::<String>::new());
    let troubles = scene.up_through(&mut claim).await;
    assert!(!troubles.is_empty(), "a failed clone is told");
    assert_eq!((scene.clones(), scene.machines().len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn b47_a_template_is_chosen_by_number_and_node_whatever_others_are_called() {
    let mut setup = two_nodes();
    let namesake = |vmid: u32, node: &str| GuestSetup {
        vmid,
        node: Some(node.to_owned()),
        config: setup.guests[0]
            .config
            .iter()
            .map(|(key, value)| (key.clone(), value.replace("9000", &vmid.to_string())))
            .collect(),
        ..GuestSetup::default()
    };
    let more = [namesake(500, "pve1"), namesake(9001, "pve2")];
    setup.guests.extend(more);
    let scene = Scene::with(setup, |config| {
        config.template = None;
        let places = json!([{"node": "pve1", "vmid": 9000}, {"node": "pve2", "vmid": 9001}]);
        config.templates = serde_json::from_value(places).unwrap();
    })
    .await;
    for (uid, full, expected) in [
        ("uid-1", "pve2", "POST /nodes/pve1/qemu/9000/clone"),
        ("uid-2", "pve1", "POST /nodes/pve2/qemu/9001/clone"),
    ] {
        scene.tell(json!({"do": "heal"}));
        scene.tell(json!({"do": "fill-memory", "node": full, "free": 0}));
        sleep(Duration::from_secs(22)).await;
        let scene = scene.of(uid);
        let mut claim = scene.claim().await;
        scene.up(&mut claim).await;
        let sent = scene.mutations();
        let clone = sent.iter().rfind(|line| line.contains("/clone ")).unwrap();
        assert!(clone.starts_with(expected), "{clone}");
    }
}

#[tokio::test(start_paused = true)]
async fn b48_a_machine_that_happens_to_bear_our_future_name_is_in_nobodys_way() {
    for at in [500, 100_000] {
        let scene = Scene::new(Setup::default()).await;
        scene.tell(json!({"do": "place", "vmid": at, "name": scene.key.name()}));
        let namesake = scene.describe(at);
        let mut claim = scene.claim().await;
        scene.up(&mut claim).await;
        scene.reports(&claim).await;
        scene.down(&mut claim).await;
        assert_eq!(scene.describe(at), namesake);
    }
}

#[tokio::test(start_paused = true)]
async fn b50_a_number_that_went_to_another_key_within_seconds_is_that_keys() {
    let first = Scene::new(Setup::default()).await;
    let mut old = first.claim().await;
    first.up(&mut old).await;
    first.reports(&old).await;
    first.seal(&mut old).await;
    first.reports(&old).await;
    first.tell(json!({"do": "remove", "vmid": vmid(&old)}));
    // Another process gives the number to another key.
    let second = first.of("uid-2").restarted().await;
    let mut new = second.claim().await;
    new.slot = old.slot.clone();
    second.up(&mut new).await;
    let before = second.describe(vmid(&new));
    // At once, and again when nothing is remembered any more.
    let mut doubtful = old.clone();
    first.down(&mut doubtful).await;
    assert_eq!(second.describe(vmid(&new)), before);
    assert_eq!(first.state(&old).await, MachineState::Foreign);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(first.state(&old).await, MachineState::Foreign);
    second.reports(&new).await;
}

#[tokio::test(start_paused = true)]
async fn b51_a_storage_that_another_node_has_is_named_before_anything_is_made() {
    let mut setup = two_nodes();
    setup.storages[0].nodes = vec!["pve2".to_owned()];
    let scene = Scene::new(setup).await;
    let report = scene.provider.check().await.unwrap();
    let told = report
        .findings
        .iter()
        .find(|finding| finding.severity == Severity::Error)
        .unwrap();
    for word in ["local-lvm", "pve1"] {
        assert!(told.found.contains(word), "{told:?}");
    }
    let mut claim = scene.claim().await;
    let error = scene.create_once(&mut claim).await.unwrap_err();
    // Storages come back without our doing, so it is tried again.
    assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    for word in ["local-lvm", "pve1"] {
        assert!(error.said().contains(word), "{error}");
    }
    assert_eq!(scene.mutations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn b53_of_two_machines_of_one_name_the_marked_one_is_read_and_removed() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.reports(&claim).await;
    let name = scene.key.name();
    scene.tell(json!({"do": "place", "vmid": 500, "name": name}));
    scene.tell(json!({"do": "place", "vmid": vmid(&claim) + 1, "name": name.to_uppercase()}));
    let strangers = [scene.describe(500), scene.describe(vmid(&claim) + 1)];
    sleep(Duration::from_secs(22)).await;
    let next = scene.restarted().await;
    let MachineState::Running(Addresses::Reported { addresses, .. }) = next.state(&claim).await
    else {
        panic!("it does not run");
    };
    assert_eq!(addresses.len(), 1);
    let listing = next.provider.list(&[]).await.unwrap();
    assert_eq!(listing.machines.len(), 1, "{listing:?}");
    assert_eq!(listing.machines[0].mark.slot, claim.slot);
    next.down(&mut claim).await;
    assert_eq!(scene.describe(vmid(&claim)), None);
    assert_eq!(
        strangers,
        [scene.describe(500), scene.describe(vmid(&claim) + 1)]
    );
}

#[tokio::test(start_paused = true)]
async fn b55_x7_a_container_with_our_tags_takes_its_number_and_is_no_machine_of_ours() {
    let scene = Scene::new(Setup::default()).await;
    let mut free = scene.claim().await;
    scene.up(&mut free).await;
    let tags = scene.config(vmid(&free), "tags").unwrap();
    scene.down(&mut free).await;
    sleep(Duration::from_mins(16)).await;
    let number = vmid(&free);
    scene.tell(json!({"do": "place", "vmid": number, "name": scene.key.name(), "container": true}));
    scene.tell(json!({"do": "set-key", "vmid": number, "key": "tags", "value": tags}));
    sleep(Duration::from_secs(11)).await;
    assert_ne!(scene.claim().await.slot, free.slot);
    let listing = scene.provider.list(&[]).await.unwrap();
    assert!(listing.machines.is_empty(), "{listing:?}");
    free.standing = Standing::Started;
    assert_eq!(scene.state(&free).await, MachineState::Foreign);
    let before = scene.describe(number);
    scene.down(&mut free).await;
    assert_eq!(scene.describe(number), before);
}

#[tokio::test(start_paused = true)]
async fn b134_a_clone_whose_answer_was_lost_ends_in_one_machine_at_its_number() {
    for (landing, timed_out) in [
        ("landed", true),
        ("landed", false),
        ("late", true),
        ("late", false),
        ("lost", true),
    ] {
        let scene = Scene::new(Setup::default()).await;
        let mut claim = scene.claim().await;
        let order = json!({
            "do": "lose-answer", "landing": landing, "timedOut": timed_out, "seconds": 35.0,
        });
        scene.tell(order);
        let error = scene.create_once(&mut claim).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::OutcomeUnknown, "{error}");
        claim.unsettled = true;
        scene.up_through(&mut claim).await;
        sleep(Duration::from_mins(1)).await;
        assert_eq!(scene.machines().len(), 1, "{landing}");
        // It may be asked for again at the same number: the VMID is the lock.
        let number = format!("newid={}", vmid(&claim));
        let sent = scene.mutations();
        let mut clones = sent.iter().filter(|line| line.contains("/clone "));
        assert!(clones.all(|line| line.contains(&number)), "{sent:#?}");
        scene.reports(&claim).await;
    }
}
