//! What happens to libvirt and its domains, and what the provider makes of it.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use egress_core::{
    ErrorClass,
    machine::{MachineState, StopReason},
};
use egress_provider::{CheckReason, Provider};
use std::{fs, process::Command, time::Duration};
use support::{Ground, Machine, soon};
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
