//! The machine itself: its card, its seed, its power, its agent.

use crate::{
    of_version,
    scene::{Scene, seed_file, vmid},
};
use egress_core::{
    ErrorClass, Standing,
    machine::{Addresses, MachineState, StopReason},
};
use egress_provider::{CheckReason, Progress, Severity, conformance::Harness as _};
use egress_proxmox_sim::world::Setup;
use serde_json::json;
use std::time::Duration;
use tokio::time::{Instant, sleep};

fn template_with(changes: &[(&str, &str)]) -> Setup {
    let mut setup = Setup::default();
    for (key, value) in changes {
        let config = &mut setup.guests[0].config;
        config.insert((*key).to_owned(), (*value).to_owned());
    }
    setup
}

fn config_writes(scene: &Scene) -> usize {
    let sent = scene.mutations();
    sent.iter()
        .filter(|line| line.starts_with("PUT") && line.contains("/config "))
        .count()
}

#[tokio::test(start_paused = true)]
async fn b74_a_card_that_moves_keeps_its_mac_and_all_that_is_not_ours() {
    let card =
        "virtio=BC:24:11:DF:E6:EF,bridge=vmbr0,firewall=1,mtu=1400,queues=2,rate=5,trunks=2;3";
    let scene = Scene::with(template_with(&[("net0", card)]), |config| {
        config.vlan_tag = Some(4);
    })
    .await;
    let mut claim = scene.claim().await;
    scene.create_once(&mut claim).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let number = vmid(&claim);
    let cloned = scene.config(number, "net0").unwrap();
    let mac = cloned.split([',', '=']).nth(1).unwrap().to_owned();
    scene.up(&mut claim).await;
    let net0 = scene.config(number, "net0").unwrap();
    for part in [
        mac.as_str(),
        "bridge=vmbr0",
        "tag=4",
        "firewall=1",
        "mtu=1400",
        "queues=2",
        "rate=5",
        "trunks=2;3",
    ] {
        assert!(net0.contains(part), "{part} is missing: {net0}");
    }
    // Once more, by a process that knows nothing.
    let again = scene.restarted().await;
    let done = again.create_once(&mut claim).await.unwrap();
    assert_eq!(done, Progress::Done);
    assert_eq!(scene.config(number, "net0").unwrap(), net0);
    assert_eq!(config_writes(&scene), 1);
}

#[tokio::test(start_paused = true)]
async fn b122_the_card_of_a_machine_that_was_started_is_never_exchanged() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    let number = vmid(&claim);
    // A person did; starting it again does not write over that, nor add to it.
    let other = "virtio=BC:24:11:00:00:77,bridge=vmbr0";
    scene.tell(json!({"do": "set-key", "vmid": number, "key": "net0", "value": other}));
    scene.tell(json!({"do": "power", "vmid": number, "event": "off"}));
    scene.restarted().await.up(&mut claim).await;
    assert_eq!(scene.config(number, "net0").as_deref(), Some(other));
    assert_eq!(config_writes(&scene), 1);
}

#[tokio::test(start_paused = true)]
async fn b78_a_seed_that_a_machine_still_names_is_no_leftover() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    let file = seed_file(&claim);
    let drive = scene.config(vmid(&claim), "ide2").unwrap();
    assert!(drive.contains(&file), "{drive}");
    for process in [&scene, &scene.restarted().await] {
        let listing = process.provider.list(&[]).await.unwrap();
        assert!(listing.leftovers.is_empty(), "{listing:?}");
    }
    scene.reports(&claim).await;
    scene.seal(&mut claim).await;
    let drive = scene.config(vmid(&claim), "ide2").unwrap();
    assert!(!drive.contains(&file), "{drive}");
}

#[tokio::test(start_paused = true)]
async fn b81_an_upload_that_takes_a_while_is_waited_for_and_sent_once() {
    let mut setup = Setup::default();
    setup.timings.mutation = 20.0;
    let scene = Scene::new(setup).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    let sent = scene.mutations();
    let uploads = sent.iter().filter(|line| line.contains("/upload"));
    assert_eq!(uploads.count(), 1, "{sent:#?}");
}

#[tokio::test(start_paused = true)]
async fn b89_the_system_disk_is_found_in_each_spelling_and_a_template_without_one_is_refused() {
    for (boot, bootable) in [
        (&[("boot", "order=ide2;scsi0;net0")][..], true),
        (&[("boot", "cdn"), ("bootdisk", "scsi0")], true),
        (&[("boot", "order=net0")], true),
        (
            &[
                ("boot", "order=net0"),
                ("scsi1", "local-lvm:base-9000-disk-1,size=1G"),
            ],
            false,
        ),
    ] {
        let mut scene = Scene::new(template_with(boot)).await;
        scene.wanted.size.disk_gib = 10;
        let mut claim = scene.claim().await;
        if bootable {
            scene.up(&mut claim).await;
            let disk = scene.config(vmid(&claim), "scsi0").unwrap();
            assert!(disk.ends_with("size=10G"), "{boot:?}: {disk}");
            continue;
        }
        let report = scene.provider.check().await.unwrap();
        assert_eq!(report.reason(), CheckReason::TemplateInvalid, "{boot:?}");
        let error = scene.create_once(&mut claim).await.unwrap_err();
        assert!(error.said().contains("no disk to boot from"), "{error}");
        assert_eq!(scene.clones(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn b96_a_machine_that_powers_off_while_it_boots_does_not_boot_for_ever() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(scene.state(&claim).await, MachineState::Provisioning);
    scene.tell(json!({"do": "power", "vmid": vmid(&claim), "event": "off"}));
    sleep(Duration::from_secs(11)).await;
    let off = MachineState::Stopped(StopReason::PoweredOff);
    assert_eq!(scene.state(&claim).await, off);
    // Removed by someone is another state, and told as fast.
    scene.tell(json!({"do": "remove", "vmid": vmid(&claim)}));
    assert_eq!(scene.state(&claim).await, MachineState::Absent);
}

#[tokio::test(start_paused = true)]
async fn b99_running_is_only_what_qemu_calls_so() {
    for (event, expected) in [
        ("paused", StopReason::Paused),
        ("io-error", StopReason::IoError),
        ("internal-error", StopReason::Crashed),
    ] {
        let scene = Scene::new(Setup::default()).await;
        let mut claim = scene.claim().await;
        scene.up(&mut claim).await;
        scene.reports(&claim).await;
        scene.tell(json!({"do": "power", "vmid": vmid(&claim), "event": event}));
        assert_eq!(
            scene.state(&claim).await,
            MachineState::Stopped(expected),
            "{event}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn b113_the_privilege_for_the_agent_is_that_of_the_version() {
    for (version, privilege, other) in [
        (8, "VM.Monitor", "VM.GuestAgent.Audit"),
        (9, "VM.GuestAgent.Audit", "VM.Monitor"),
    ] {
        let mut setup = of_version(version);
        for privileges in setup.roles.values_mut() {
            privileges.retain(|it| it != privilege);
            privileges.push(other.to_owned());
        }
        let scene = Scene::new(setup).await;
        let report = scene.provider.check().await.unwrap();
        assert_eq!(report.reason(), CheckReason::MissingPrivileges);
        let errors = report
            .findings
            .iter()
            .filter(|finding| finding.severity == Severity::Error);
        let told: Vec<_> = errors.map(|finding| finding.found.as_str()).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].contains(privilege) && !told[0].contains(other),
            "{told:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn b117_x4_an_agent_that_refuses_with_a_success_is_an_agent_that_cannot_report() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.tell(json!({"do": "agent", "vmid": vmid(&claim), "agent": "refusing"}));
    sleep(Duration::from_secs(20)).await;
    let cannot = MachineState::Stopped(StopReason::NeverReported);
    assert_eq!(scene.state(&claim).await, cannot);
}

#[tokio::test(start_paused = true)]
async fn x5_an_agent_that_the_configuration_switches_off_is_not_waited_for() {
    for value in [None, Some("0")] {
        let scene = Scene::new(Setup::default()).await;
        let mut claim = scene.claim().await;
        scene.up(&mut claim).await;
        let order = json!({"do": "set-key", "vmid": vmid(&claim), "key": "agent", "value": value});
        scene.tell(order);
        sleep(Duration::from_secs(6)).await;
        scene.sim.take_requests();
        let without = MachineState::Stopped(StopReason::NoAgent);
        assert_eq!(scene.state(&claim).await, without, "{value:?}");
        let asked = scene.sim.take_requests();
        assert!(!asked.iter().any(|it| it.contains("/agent/")), "{asked:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn b121_b124_an_agent_lost_after_the_first_address_takes_nothing_away() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.reports(&claim).await;
    scene.seal(&mut claim).await;
    scene.tell(json!({"do": "agent", "vmid": vmid(&claim), "agent": "silent"}));
    sleep(Duration::from_secs(30)).await;
    let silent = MachineState::Running(Addresses::Unreported);
    for process in [&scene, &scene.restarted().await] {
        // Longer than any boot may take.
        for _ in 0..30 {
            assert_eq!(process.state(&claim).await, silent);
            sleep(Duration::from_mins(1)).await;
        }
    }
    scene.tell(json!({"do": "agent", "vmid": vmid(&claim), "agent": "answering"}));
    scene.reports(&claim).await;
}

#[tokio::test(start_paused = true)]
async fn b87_a_guest_that_never_finds_its_seed_is_told_after_the_boot_time() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.tell(json!({"do": "agent", "vmid": vmid(&claim), "agent": "silent"}));
    let boot = scene.provider.capabilities().boot_timeout;
    let begun = Instant::now();
    while scene.state(&claim).await == MachineState::Provisioning {
        sleep(Duration::from_secs(10)).await;
        assert!(
            begun.elapsed() < boot + Duration::from_mins(1),
            "never told"
        );
    }
    assert!(begun.elapsed() >= boot, "{:?}", begun.elapsed());
    let never = MachineState::Stopped(StopReason::NeverReported);
    assert_eq!(scene.state(&claim).await, never);
}

#[tokio::test(start_paused = true)]
async fn b123_an_address_of_another_card_is_not_the_machines() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.tell(json!({"do": "agent", "vmid": vmid(&claim), "agent": "lying"}));
    for _ in 0..30 {
        assert_eq!(scene.state(&claim).await, MachineState::Provisioning);
        sleep(Duration::from_secs(2)).await;
    }
    scene.tell(json!({"do": "agent", "vmid": vmid(&claim), "agent": "answering"}));
    scene.reports(&claim).await;
}

#[tokio::test(start_paused = true)]
async fn x6_a_list_without_names_and_states_hides_no_machine() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.reports(&claim).await;
    scene.tell(json!({"do": "daemon", "daemon": "pvestatd", "state": "down"}));
    sleep(Duration::from_mins(6)).await;
    for process in [&scene, &scene.restarted().await] {
        let state = process.state(&claim).await;
        assert!(
            matches!(state, MachineState::Running(Addresses::Reported { .. })),
            "{state:?}"
        );
        let listing = process.provider.list(&[]).await.unwrap();
        assert_eq!(listing.machines.len(), 1);
    }
    claim.standing = claim.standing.max(Standing::Started);
    scene.down(&mut claim).await;
    assert_eq!(scene.bench.describe(&claim.slot).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn b146_a_storage_that_hangs_is_nothing_to_a_machine_that_runs() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.tell(json!({
        "do": "answer-with", "path": "/storage", "status": 596, "reason": "Connection timed out",
    }));
    scene.sim.take_requests();
    scene.reports(&claim).await;
    let asked = scene.sim.take_requests();
    assert!(!asked.is_empty() && !asked.iter().any(|it| it.contains("/storage")));
    // What needs the storage is an error of its own.
    let error = scene.provider.list(&[]).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    scene.reports(&claim).await;
}
