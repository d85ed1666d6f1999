//! Where machines come to be: other nodes over shared storage, and templates with a drive of
//! Proxmox VE's own cloud-init.

mod bench;
#[path = "bench/scene.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod scene;

use egress_core::{ErrorClass, machine::MachineState};
use egress_provider::{CheckReason, Severity};
use egress_proxmox::{CloudInitDrive, Config};
use egress_proxmox_sim::world::{Setup, StorageSetup};
use scene::{Scene, vmid};
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

/// Two nodes that share these storages.
fn sharing(storages: &[&str]) -> Setup {
    let mut setup = bench::two_nodes();
    for storage in &mut setup.storages {
        storage.shared = storages.contains(&storage.name.as_str());
    }
    setup
}

async fn host(scene: &Scene, claim: &egress_core::Claim) -> Option<String> {
    let seen = scene.provider.get(&scene.key, claim).await.unwrap();
    seen.host.map(|host| host.as_str().to_owned())
}

/// Makes two machines, which come to be on both nodes, and removes them again.
async fn both_nodes_get_one(setup: Setup) {
    let scene = Scene::new(setup).await;
    let report = scene.provider.check().await.unwrap();
    assert_eq!(report.reason(), CheckReason::Ready, "{report:#?}");
    let began = scene.inventory();
    let other = scene.of("uid-2");
    let mut hosts = Vec::new();
    let mut claims = Vec::new();
    for one in [&scene, &other] {
        let mut claim = one.claim().await;
        one.up(&mut claim).await;
        one.reports(&claim).await;
        hosts.push(host(one, &claim).await.unwrap());
        one.seal(&mut claim).await;
        claims.push(claim);
        // Until the next list shows it: only then does it count for its node.
        sleep(Duration::from_secs(22)).await;
    }
    assert_eq!(hosts, ["pve1", "pve2"]);
    let sent = scene.mutations();
    let clones: Vec<_> = sent
        .iter()
        .filter(|line| line.contains("/clone "))
        .collect();
    assert!(
        clones[1].contains("/nodes/pve1/qemu/9000/clone"),
        "{clones:#?}"
    );
    assert!(clones[1].contains("target=pve2"), "{clones:#?}");
    assert!(!clones[0].contains("target="), "{clones:#?}");
    for (one, claim) in [&scene, &other].into_iter().zip(&mut claims) {
        one.down(claim).await;
        assert_eq!(one.state(claim).await, MachineState::Absent);
    }
    assert_eq!(scene.inventory(), began);
}

#[tokio::test(start_paused = true)]
async fn over_shared_storage_machines_also_come_to_nodes_without_the_template() {
    both_nodes_get_one(sharing(&["local-lvm", "proxy-seeds"])).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_on_another_node_has_its_seed_on_that_nodes_own_storage() {
    both_nodes_get_one(sharing(&["local-lvm"])).await;
}

/// Makes three machines, and tells where they come to be.
async fn three_hosts(scene: &Scene) -> Vec<String> {
    let mut hosts = Vec::new();
    for uid in ["uid-1", "uid-2", "uid-3"] {
        let one = scene.of(uid);
        let mut claim = one.claim().await;
        one.up(&mut claim).await;
        hosts.push(host(&one, &claim).await.unwrap());
        sleep(Duration::from_secs(22)).await;
    }
    hosts
}

#[tokio::test(start_paused = true)]
async fn without_shared_storage_machines_stay_with_their_template() {
    let scene = Scene::new(sharing(&["proxy-seeds"])).await;
    assert_eq!(three_hosts(&scene).await, ["pve1"; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lacks_one_of_the_storages_gets_no_machine_and_is_no_fault() {
    for lacking in ["local-lvm", "proxy-seeds"] {
        let mut setup = Setup::of_nodes(3);
        for storage in &mut setup.storages {
            storage.shared = true;
            if storage.name == lacking {
                storage.nodes = vec!["pve1".to_owned(), "pve3".to_owned()];
            }
        }
        let scene = Scene::new(setup).await;
        let report = scene.provider.check().await.unwrap();
        assert_eq!(report.reason(), CheckReason::Ready, "{report:#?}");
        let hosts = three_hosts(&scene).await;
        assert_eq!(hosts, ["pve1", "pve3", "pve1"], "{lacking}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_seed_storage_that_the_first_node_lacks_is_asked_for_at_another() {
    let mut setup = sharing(&["local-lvm", "proxy-seeds"]);
    setup.storages[1].nodes = vec!["pve2".to_owned()];
    let scene = Scene::new(setup).await;
    let report = scene.provider.check().await.unwrap();
    assert_eq!(report.reason(), CheckReason::Ready, "{report:#?}");
    let began = scene.inventory();
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    assert_eq!(host(&scene, &claim).await.as_deref(), Some("pve2"));
    let listing = scene.provider.list(&[]).await.unwrap();
    assert!(listing.machines[0].seed.is_some(), "{listing:#?}");
    scene.down(&mut claim).await;
    assert_eq!(scene.inventory(), began);
}

#[tokio::test(start_paused = true)]
async fn machines_stay_with_a_template_that_keeps_its_firmware_state_on_storage_of_its_own() {
    for key in ["efidisk0", "tpmstate0"] {
        let mut setup = sharing(&["local-lvm", "proxy-seeds"]);
        setup.storages.push(StorageSetup {
            name: "local-zfs".to_owned(),
            shared: false,
            ..setup.storages[0].clone()
        });
        let state = "local-zfs:base-9000-disk-1,size=4M".to_owned();
        setup.guests[0].config.insert(key.to_owned(), state);
        let scene = Scene::new(setup).await;
        assert_eq!(three_hosts(&scene).await, ["pve1"; 3], "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_may_not_audit_the_storages_is_told_what_is_lost_and_works_on() {
    let scene = Scene::new(sharing(&["local-lvm"])).await;
    scene.tell(json!({"do": "remove-privilege", "privilege": "Datastore.Audit"}));
    let report = scene.provider.check().await.unwrap();
    assert_eq!(report.reason(), CheckReason::Ready, "{report:#?}");
    for (field, lost) in [
        ("storage", "made where a template is and nowhere else"),
        ("isoStorage", "every node is asked for seeds"),
    ] {
        let told = report.findings.iter().find(|finding| {
            finding.reason == CheckReason::VisibilityLimited
                && finding.field.as_deref() == Some(field)
        });
        let said = told.map_or("", |finding| finding.found.as_str());
        assert!(
            said.contains("Datastore.Audit") && said.contains(lost),
            "{report:#?}"
        );
    }
    assert_eq!(three_hosts(&scene).await, ["pve1"; 3]);
    let listing = scene.provider.list(&[]).await.unwrap();
    assert_eq!(listing.machines.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_seeds_of_an_empty_node_that_is_off_hold_no_listing_up() {
    let scene = Scene::new(Setup::of_nodes(3)).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.tell(json!({"do": "node", "node": "pve3", "up": false}));
    sleep(Duration::from_secs(30)).await;
    let listing = scene.provider.list(&[]).await.unwrap();
    assert_eq!(listing.machines.len(), 1);
    assert!(listing.machines[0].seed.is_some(), "{listing:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_seed_whose_upload_was_not_answered_is_not_sent_again_while_another_node_copies_it() {
    let mut setup = sharing(&["local-lvm"]);
    setup.timings.upload = 60.0;
    let scene = Scene::new(setup).await;
    let mut first = scene.claim().await;
    scene.up(&mut first).await;
    sleep(Duration::from_secs(22)).await;
    let other = scene.of("uid-2");
    let mut claim = other.claim().await;
    assert_eq!(claim.host.as_ref().unwrap().as_str(), "pve2");
    other.create_once(&mut claim).await.unwrap();
    other.tell(json!({"do": "lose-answer", "landing": "landed"}));
    let lost = other.create_once(&mut claim).await.unwrap_err();
    assert_eq!(lost.class(), ErrorClass::OutcomeUnknown, "{lost}");
    other.up(&mut claim).await;
    let sent = other.mutations();
    let to_it = |line: &&String| line.contains("/nodes/pve2/storage/proxy-seeds/upload");
    assert_eq!(sent.iter().filter(to_it).count(), 1, "{sent:#?}");
}

/// A template with a cloud-init drive of Proxmox VE at this slot.
fn with_cloud_init(slot: &str) -> Setup {
    let mut setup = Setup::default();
    let volume = "local-lvm:vm-9000-cloudinit,media=cdrom,size=4M";
    setup.guests[0]
        .config
        .insert(slot.to_owned(), volume.to_owned());
    setup
}

fn replace(config: &mut Config) {
    config.cloud_init_drive = CloudInitDrive::Replace;
}

#[tokio::test(start_paused = true)]
async fn a_template_with_a_cloud_init_drive_is_refused_with_both_ways_out() {
    let scene = Scene::new(with_cloud_init("ide3")).await;
    let mut claim = scene.claim().await;
    let error = scene.create_once(&mut claim).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent, "{error}");
    for word in ["ide3", "qm set --delete", "cloudInitDrive: replace"] {
        assert!(error.said().contains(word), "{word} is missing: {error}");
    }
    assert_eq!(scene.mutations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_cloud_init_drive_is_replaced_in_the_clone_and_stays_in_the_template() {
    // In the seed's own drive and in others.
    for slot in ["ide2", "ide0", "ide3", "sata1", "scsi1"] {
        let scene = Scene::with(with_cloud_init(slot), replace).await;
        let report = scene.provider.check().await.unwrap();
        assert_eq!(report.reason(), CheckReason::Ready, "{slot}: {report:#?}");
        let began = scene.inventory();
        let template = scene.describe(9000);
        let mut claim = scene.claim().await;
        scene.up(&mut claim).await;
        let machine = scene.describe(vmid(&claim)).unwrap();
        assert!(!machine.contains("-cloudinit"), "{slot}: {machine}");
        assert!(!machine.contains("unused"), "{slot}: {machine}");
        let seed = scene.config(vmid(&claim), "ide2").unwrap();
        assert!(seed.starts_with("proxy-seeds:iso/px-"), "{slot}: {machine}");
        let left = scene.inventory();
        let disks = left.iter().filter(|line| line.contains("-cloudinit"));
        assert_eq!(disks.count(), 1, "{slot}: {left:#?}");
        scene.reports(&claim).await;
        scene.seal(&mut claim).await;
        scene.down(&mut claim).await;
        assert_eq!(scene.inventory(), began, "{slot}");
        assert_eq!(scene.describe(9000), template, "{slot}");
    }
}

#[tokio::test(start_paused = true)]
async fn replacing_a_cloud_init_drive_needs_its_privilege() {
    let scene = Scene::with(with_cloud_init("ide3"), replace).await;
    scene.tell(json!({"do": "remove-privilege", "privilege": "VM.Config.Cloudinit"}));
    let report = scene.provider.check().await.unwrap();
    let named = report
        .findings
        .iter()
        .any(|f| f.severity == Severity::Error && f.found.contains("VM.Config.Cloudinit"));
    assert!(named, "{report:#?}");
    let mut claim = scene.claim().await;
    let error = scene.create_once(&mut claim).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unauthorized, "{error}");
    assert_eq!(scene.mutations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_record_was_lost_a_moment_after_it_was_made_is_found_and_not_made_twice() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    let begun = tokio::time::Instant::now();
    scene.up(&mut claim).await;
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "lists are kept for longer"
    );
    let found = scene.claim().await;
    assert_eq!(found.slot, claim.slot);
    assert_eq!(found.standing, egress_core::Standing::Seen);
    assert_eq!(scene.machines().len(), 1);
}
