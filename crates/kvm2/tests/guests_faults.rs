//! What happens to libvirt and its domains, and what the provider makes of it.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use egress_core::{
    ErrorClass, Standing,
    machine::{MachineState, StopReason},
};
use egress_provider::{CheckReason, Provider};
use std::{fs, process::Command, sync::Arc, time::Duration};
use support::{Ground, Machine, host::virsh, soon};
use tokio::{sync::RwLock, time::Instant};

/// Who restarts the daemon holds this alone: it cuts the connections of all other tests.
static LIBVIRTD: RwLock<()> = RwLock::const_new(());

/// Ends the daemon by its pid, and starts it as `libvirt-up` did.
async fn restart_libvirtd(ground: &Ground) {
    let pid_file = ground.dir.join("libvirtd.pid");
    let pid = fs::read_to_string(&pid_file).expect("a pid file");
    let pid: i32 = pid.trim().parse().expect("a pid");
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let end = soon();
    while rustix::process::test_kill_process(pid).is_ok() && pid_file.exists() {
        assert!(Instant::now() < end, "libvirtd does not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // It outlives this test, and ends with libvirt-up.
    let started = Command::new("sh")
        .args(["-c", "\"$0\" </dev/null &"])
        .arg(ground.dir.join("start-libvirtd"))
        .status()
        .expect("a shell");
    assert!(started.success());
}

fn is_up(state: &MachineState) -> bool {
    matches!(state, MachineState::Provisioning | MachineState::Running(_))
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_outlive_a_restart_of_libvirtd_and_the_provider_finds_them_again() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let _daemon = LIBVIRTD.write().await;
    let mut machine = Machine::claimed("restarted", ground.config().await).await;
    machine.up().await;
    assert!(is_up(&machine.state().await));
    restart_libvirtd(&ground).await;
    // By the same instance: its connection is gone, and it opens another one.
    let state = machine.state().await;
    assert!(is_up(&state), "{state:?}");
    machine.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_that_was_undefined_by_hand_runs_on_and_goes_with_its_volumes() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let _daemon = LIBVIRTD.read().await;
    let session = ground.session().await;
    let mut machine = Machine::claimed("undefined", ground.config().await).await;
    machine.up().await;
    let domain = session.domain(machine.uuid()).await.expect("it is there");
    session
        .undefine(&domain, 0, soon())
        .await
        .expect("undefined");
    // Until it is off it is there, and ours.
    let state = machine.state().await;
    assert!(is_up(&state), "{state:?}");
    session.destroy(&domain, soon()).await.expect("destroyed");
    assert_eq!(machine.state().await, MachineState::Absent);
    let left = machine.provider.list(&[]).await.expect("a listing");
    assert_eq!(left.leftovers.len(), 2, "{left:?}");
    machine.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_domain_with_our_name_stops_the_create_before_it_makes_anything() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let _daemon = LIBVIRTD.read().await;
    let session = ground.session().await;
    let mut machine = Machine::claimed("namesake", ground.config().await).await;
    let xml = format!(
        "<domain type='qemu'><name>{}</name><memory unit='MiB'>16</memory><os><type arch='x86_64'>hvm</type></os></domain>",
        machine.key.name()
    );
    let stranger = session.define(machine.key.name(), &xml, 0, soon()).await;
    let stranger = stranger.expect("defined");
    let refused = machine.create().await.expect_err("the name is taken");
    assert_eq!(refused.class(), ErrorClass::NeedsOperator, "{refused}");
    assert!(refused.said().contains("is not ours"), "{refused}");
    assert_eq!(machine.state().await, MachineState::Absent);
    machine.down().await;
    session
        .domain(stranger.uuid)
        .await
        .expect("it is still there");
    session
        .undefine(&stranger, 0, soon())
        .await
        .expect("removed");
    machine.up().await;
    machine.down().await;
}

/// B97: what is half made is finished, not made again.
#[tokio::test(flavor = "multi_thread")]
async fn volumes_that_went_away_are_made_again_before_the_first_start_and_missed_after_it() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let _daemon = LIBVIRTD.read().await;
    let session = ground.session().await;
    let pool = session.pool("default").await.expect("the pool");
    let mut machine = Machine::claimed("robbed", ground.config().await).await;
    machine.create().await.expect("volumes and a definition");
    assert_eq!(
        machine.state().await,
        MachineState::Stopped(StopReason::HalfMade)
    );
    let ours = async || {
        let volumes = session.volumes(&pool).await.expect("volumes");
        let of_it = |volume: &egress_kvm2::client::Volume| volume.name.contains(machine.key.name());
        volumes.into_iter().filter(of_it).collect::<Vec<_>>()
    };
    let made = ours().await;
    assert_eq!(made.len(), 2);
    for volume in &made {
        // Behind libvirt's back, which notices at the next refresh.
        fs::remove_file(&volume.key).expect("removed");
    }
    session.refresh_pool(&pool).await.expect("refreshed");
    assert!(ours().await.is_empty());
    machine.up().await;
    let domain = session.domain(machine.uuid()).await.expect("it is there");
    session.destroy(&domain, soon()).await.expect("destroyed");
    assert_eq!(
        machine.state().await,
        MachineState::Stopped(StopReason::PoweredOff)
    );
    let volumes = session.volumes(&pool).await.expect("volumes");
    for volume in volumes {
        if volume.name.contains(machine.key.name()) {
            session
                .delete_volume(&volume, soon())
                .await
                .expect("deleted");
        }
    }
    assert_eq!(
        machine.state().await,
        MachineState::Stopped(StopReason::NeverReported)
    );
    machine.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_pool_is_capacity_and_a_base_image_in_use_is_found() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let _daemon = LIBVIRTD.read().await;
    let session = ground.session().await;
    let config = ground.config().await;
    let mut machine = Machine::claimed("large", config.clone()).await;
    // More than any pool has.
    machine.wanted.size.disk_gib = 1 << 20;
    let refused = machine.create().await.expect_err("no room");
    assert_eq!(refused.class(), ErrorClass::Capacity, "{refused}");
    machine.down().await;

    let pool = session.pool("default").await.expect("the pool");
    let base = session.volume(&pool, &config.base_image).await;
    let xml = format!(
        "<domain type='qemu'><name>egress-writes</name><memory unit='MiB'>16</memory><os><type arch='x86_64'>hvm</type></os><devices><disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='{}'/><target dev='vda' bus='virtio'/></disk></devices></domain>",
        base.expect("the image").key
    );
    let writer = session.define("egress-writes", &xml, 0, soon()).await;
    let writer = writer.expect("defined");
    let report = machine.provider.check().await.expect("a report");
    session.undefine(&writer, 0, soon()).await.expect("removed");
    assert_eq!(report.reason(), CheckReason::TemplateInvalid, "{report:?}");
    let report = machine.provider.check().await.expect("a report");
    assert_eq!(report.findings, []);
    assert!(report.version.is_some_and(|told| told.contains("QEMU")));
}

#[tokio::test(flavor = "multi_thread")]
async fn b28_b30_a_domain_that_is_off_and_has_a_snapshot_is_deleted() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let _daemon = LIBVIRTD.read().await;
    let session = ground.session().await;
    let mut machine = Machine::claimed("snapshot", ground.config().await).await;
    machine.up().await;
    let domain = session.domain(machine.uuid()).await.expect("it is there");
    session.destroy(&domain, soon()).await.expect("destroyed");
    let taken = Command::new("virsh")
        .args(["--quiet", "--connect", ground.uri.as_str()])
        .args(["snapshot-create-as", machine.key.name(), "before"])
        .output()
        .expect("virsh starts");
    assert!(taken.status.success(), "{taken:?}");
    let refused = session.undefine(&domain, 0, soon()).await;
    refused.expect_err("its snapshot is in the way");
    machine.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b16_what_is_named_nearly_as_ours_outlives_our_machine() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let _daemon = LIBVIRTD.read().await;
    let session = ground.session().await;
    let pool = session.pool("default").await.expect("the pool");
    let mut machine = Machine::claimed("neighbour", ground.config().await).await;
    machine.up().await;
    let seed = machine.claim.seed.clone().expect("recorded").name;
    let stem = seed.trim_end_matches("-1.iso");
    let strangers = [
        format!("{seed}.bak"),
        format!("x{seed}"),
        format!("{stem}-01.iso"),
        format!("{stem}-1.img"),
        format!("{stem}x-1.iso"),
        format!("{}-1.qcow2", machine.key.name()),
    ];
    for name in &strangers {
        let xml = format!(
            "<volume><name>{name}</name><capacity>512</capacity><target><format type='raw'/></target></volume>"
        );
        let made = session.create_volume(&pool, name, &xml, soon()).await;
        made.expect("a volume");
    }
    let near = format!("{}-2", machine.key.name());
    let xml = format!(
        "<domain type='qemu'><name>{near}</name><memory unit='MiB'>16</memory><os><type arch='x86_64'>hvm</type></os></domain>"
    );
    let domain = session.define(&near, &xml, 0, soon()).await;
    let domain = domain.expect("defined");
    // Nothing of theirs is listed, before and after.
    let listing = machine.provider.list(&[]).await.expect("a listing");
    assert_eq!((listing.machines.len(), listing.leftovers.len()), (1, 0));
    machine.down().await;
    for name in &strangers {
        let volume = session.volume(&pool, name).await.expect("still there");
        session
            .delete_volume(&volume, soon())
            .await
            .expect("deleted");
    }
    session
        .undefine(&domain, 0, soon())
        .await
        .expect("still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn b27_b200_what_an_earlier_life_left_is_used_or_made_anew() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let _daemon = LIBVIRTD.read().await;
    let session = ground.session().await;
    let pool = session.pool("default").await.expect("the pool");
    let config = ground.config().await;
    let mut machine = Machine::claimed("again", config.clone()).await;
    let seed = machine.claim.seed.clone().expect("recorded").name;
    let disk = seed.replace(".iso", ".qcow2");
    // A seed of the right name and the wrong bytes, and an empty disk of another size.
    for (name, format) in [(&seed, "raw"), (&disk, "qcow2")] {
        let xml = format!(
            "<volume><name>{name}</name><capacity>4096</capacity><target><format type='{format}'/></target></volume>"
        );
        let made = session.create_volume(&pool, name, &xml, soon()).await;
        made.expect("a volume");
    }
    machine.up().await;
    let volume = session.volume(&pool, &disk).await.expect("the disk");
    let size = session.volume_size(&volume).await.expect("a size");
    assert_eq!(size.capacity, 1 << 30);
    let volume = session.volume(&pool, &seed).await.expect("the seed");
    let label = session.download(&volume, 32_808, 6).await.expect("bytes");
    assert_eq!(label, b"cidata");

    // All that was written down is lost, and the machine is found by its mark.
    let process = support::again(&machine.provider, config);
    let found = process.claim(&machine.key, &machine.wanted, 1, &[]).await;
    let found = found.expect("a place");
    assert_eq!(found.slot, machine.claim.slot);
    assert_eq!(found.mac, machine.claim.mac);
    assert_eq!(found.standing, Standing::Seen);
    assert_eq!(process.marks().await.expect("all marks").len(), 1);
    machine.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b78_b96_a_machine_whose_seed_was_removed_starts_again_after_it_went_off() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let _daemon = LIBVIRTD.read().await;
    let session = ground.session().await;
    let mut machine = Machine::claimed("unseeded", ground.config().await).await;
    machine.up().await;
    let pool = session.pool("default").await.expect("the pool");
    let seed = machine.claim.seed.clone().expect("recorded").name;
    let volume = session.volume(&pool, &seed).await.expect("the seed");
    // Its drive names it still.
    session
        .delete_volume(&volume, soon())
        .await
        .expect("deleted");
    let domain = session.domain(machine.uuid()).await.expect("it is there");
    session.destroy(&domain, soon()).await.expect("destroyed");
    let off = MachineState::Stopped(StopReason::PoweredOff);
    assert_eq!(machine.state().await, off);
    machine.up().await;
    assert!(is_up(&machine.state().await));
    // Removed while it boots.
    session.destroy(&domain, soon()).await.expect("destroyed");
    session
        .undefine(&domain, 0, soon())
        .await
        .expect("undefined");
    assert_eq!(machine.state().await, MachineState::Absent);
    machine.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_base_image_is_for_new_machines_alone() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let _daemon = LIBVIRTD.read().await;
    let session = ground.session().await;
    let pool = session.pool("default").await.expect("the pool");
    let config = ground.config().await;
    let mut old = Machine::claimed("old", config.clone()).await;
    old.up().await;
    let mut newer = config.clone();
    newer.base_image = format!("egress-newer-{}.qcow2", std::process::id());
    let xml = format!(
        "<volume><name>{}</name><capacity unit='MiB'>1</capacity><target><format type='qcow2'/></target></volume>",
        newer.base_image
    );
    let image = session.create_volume(&pool, &newer.base_image, &xml, soon());
    let image = image.await.expect("an image");
    let process = Arc::new(support::again(&old.provider, newer.clone()));
    let mut new = Machine::of(&process, "new").await;
    new.up().await;
    let stands_on = async |machine: &Machine, image: &str| {
        let seed = machine.claim.seed.clone().expect("recorded").name;
        let disk = session.volume(&pool, &seed.replace(".iso", ".qcow2")).await;
        let xml = session.volume_xml(&disk.expect("the disk")).await;
        xml.expect("a description").contains(&format!("/{image}<"))
    };
    assert!(stands_on(&new, &newer.base_image).await);
    assert!(stands_on(&old, &config.base_image).await);
    let seen = process.get(&old.key, &old.claim).await.expect("it is seen");
    assert!(is_up(&seen.state), "{seen:?}");
    new.gone().await;
    old.down().await;
    session
        .delete_volume(&image, soon())
        .await
        .expect("deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_is_down_is_told_before_anything_is_made() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let _daemon = LIBVIRTD.read().await;
    let network = format!("down-{}", std::process::id());
    let file = ground.dir.join("down.xml");
    // Within the host alone.
    let xml = format!("<network><name>{network}</name><bridge name='virbr99'/></network>");
    fs::write(&file, xml).expect("written");
    virsh(&ground.uri, &["net-define", &file.display().to_string()]);
    let mut config = ground.config().await;
    config.network = Some(network.clone());
    let mut machine = Machine::claimed("offline", config).await;
    let report = machine.provider.check().await.expect("a report");
    assert_eq!(report.reason(), CheckReason::NetworkInvalid, "{report:?}");
    let refused = machine.create().await.expect_err("it is down");
    let told = format!("virsh net-start {network}");
    assert!(refused.said().contains(&told), "{refused}");
    machine.down().await;
    virsh(&ground.uri, &["net-start", &network]);
    machine.up().await;
    machine.down().await;
    virsh(&ground.uri, &["net-destroy", &network]);
    virsh(&ground.uri, &["net-undefine", &network]);
}
