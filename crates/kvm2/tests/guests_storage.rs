//! A pool on a disk that really fills up.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use egress_core::{
    ErrorClass,
    machine::{Addresses, MachineState, StopReason},
};
use egress_kvm2::{Config, Kvm2};
use egress_provider::{CheckReason, Provider};
use std::{
    env, fs,
    io::{Read, Write},
    net::{IpAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};
use support::{
    Ground, Machine,
    host::{run, virsh},
    soon,
};
use tempfile::TempDir;
use tokio::time::Instant;

/// Room for one disk of 1 GiB and little more; the file that holds it is sparse.
const SIZE: &str = "1200M";
const MIB: u64 = 1 << 20;

/// A file system of its own with a pool on it; both go with this.
struct Disk<'a> {
    ground: &'a Ground,
    dir: TempDir,
    pool: String,
}

impl<'a> Disk<'a> {
    /// With a copy of this volume of the pool `default`, and few inodes.
    fn make(ground: &'a Ground, name: &str, image: &str) -> Self {
        let disk = Self {
            ground,
            dir: tempfile::tempdir().expect("a folder"),
            pool: format!("{name}-{}", std::process::id()),
        };
        let file = disk.dir.path().join("disk");
        run(Command::new("truncate").args(["-s", SIZE]).arg(&file));
        run(Command::new("/sbin/mkfs.ext4")
            .args(["-q", "-m", "0", "-N", "64", "-O", "^has_journal"])
            .arg(&file));
        fs::create_dir(disk.target()).expect("a folder");
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&file)
            .arg(disk.target()));
        let from = ground.dir.join("pool").join(image);
        fs::copy(from, disk.target().join(image)).expect("a copy");
        let target = disk.target().display().to_string();
        let define = ["pool-define-as", &disk.pool, "dir", "--target", &target];
        virsh(&ground.uri, &define);
        virsh(&ground.uri, &["pool-start", &disk.pool]);
        disk
    }

    fn target(&self) -> PathBuf {
        self.dir.path().join("pool")
    }

    fn filler(&self) -> PathBuf {
        self.target().join("somebody-elses")
    }

    /// Somebody else takes all but so many bytes.
    fn fill(&self, rest: u64) {
        let room = rustix::fs::statvfs(self.target()).expect("a file system");
        let free = room.f_bavail * room.f_frsize;
        run(Command::new("fallocate")
            .args(["-l", &(free - rest).to_string()])
            .arg(self.filler()));
    }

    fn free(&self) {
        fs::remove_file(self.filler()).expect("it was there");
    }

    /// The names of our volumes, as they lie there.
    fn ours(&self) -> Vec<String> {
        let files = fs::read_dir(self.target()).expect("the pool");
        let names = files.map(|file| file.expect("a file").file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("px-")).collect()
    }

    async fn config(&self, image: &str) -> Config {
        let mut config = self.ground.config().await;
        config.pool.clone_from(&self.pool);
        image.clone_into(&mut config.base_image);
        config.reserve.storage_percent = 5;
        config
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        for verb in ["pool-destroy", "pool-undefine"] {
            let uri = self.ground.uri.as_str();
            let _ended = Command::new("virsh")
                .args(["--quiet", "--connect", uri, verb, &self.pool])
                .status();
        }
        let _ended = Command::new("umount")
            .arg("--lazy")
            .arg(self.target())
            .status();
    }
}

/// Takes inodes until none is left but so many.
fn use_up_inodes(folder: &Path, rest: usize) -> Vec<PathBuf> {
    let mut made = Vec::new();
    loop {
        let file = folder.join(format!("empty-{}", made.len()));
        match fs::File::create(&file) {
            Ok(_) => made.push(file),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
                break;
            }
        }
    }
    for file in made.drain(made.len() - rest..) {
        fs::remove_file(file).expect("it was there");
    }
    made
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_capacity_leaves_nothing_behind_and_is_used_again_when_there_is_room() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let image = ground.empty_image().await;
    let disk = Disk::make(&ground, "full", image);
    let mut machine = Machine::claimed("full", disk.config(image).await).await;
    let refused = async |machine: &mut Machine, words: &[&str]| {
        let error = machine.create().await.expect_err("no room");
        assert_eq!(error.class(), ErrorClass::Capacity, "{}", error.chain());
        for word in words {
            assert!(error.said().contains(word), "{word:?} is not in {error}");
        }
    };

    // Behind libvirt's back, whose figure is old.
    disk.fill(32 * MIB);
    refused(&mut machine, &[&disk.pool, "make room"]).await;
    assert_eq!(disk.ours(), Vec::<String>::new());
    let report = machine.provider.check().await.expect("a report");
    assert_eq!(report.reason(), CheckReason::LowCapacity, "{report:?}");
    disk.free();

    // Bytes are there, and no file can be made.
    let mut empty = use_up_inodes(&disk.target(), 0);
    refused(&mut machine, &["No space left on device"]).await;
    assert_eq!(disk.ours(), Vec::<String>::new());
    // Room for the disk, and none for the seed.
    fs::remove_file(empty.pop().expect("some")).expect("it was there");
    refused(&mut machine, &["No space left on device"]).await;
    assert_eq!(disk.ours().len(), 1);
    machine.gone().await;
    assert_eq!(disk.ours(), Vec::<String>::new());
    refused(&mut machine, &["No space left on device"]).await;
    assert_eq!(disk.ours().len(), 1);

    for file in empty {
        fs::remove_file(file).expect("it was there");
    }
    machine.up().await;
    assert_eq!(disk.ours().len(), 2);
    machine.down().await;
    assert_eq!(disk.ours(), Vec::<String>::new());
}

/// The head of what a machine's proxy answers to somebody without credentials.
fn asked(address: IpAddr) -> std::io::Result<String> {
    let patience = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&(address, 3128).into(), patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(
        b"GET http://192.0.2.1/ HTTP/1.1\r\nHost: 192.0.2.1\r\nConnection: close\r\n\r\n",
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_fills_its_pool_is_paused_says_so_and_serves_when_it_is_resumed() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let told = |name: &str| env::var(name).expect("libvirt-up and the rung tell it");
    let image = told("EGRESS_LIBVIRT_BASE_IMAGE");
    let disk = Disk::make(&ground, "grown", &image);
    let mut config = disk.config(&image).await;
    config.guest_agent = egress_kvm2::GuestAgent::Builtin;
    let like = support::provider(config.clone());
    let payload = Some(told("EGRESS_PAYLOAD").into());
    let provider = Arc::new(Kvm2::new(
        like.name().clone(),
        like.identity().clone(),
        config,
        payload,
    ));
    let mut machine = Machine::wished(&provider, "grown");
    machine.wanted.size.memory_mib = 128;
    machine.wanted.settings.clients = vec!["192.168.0.0/16".parse().expect("a network")];
    machine.claim().await.expect("a place");
    machine.create().await.expect("volumes and a definition");
    // The first boot writes more than this.
    disk.fill(2 * MIB);
    machine.up().await;
    let wait_for = async |machine: &Machine, wanted: fn(&MachineState) -> bool| {
        let end = soon();
        loop {
            let state = machine.state().await;
            if wanted(&state) {
                return state;
            }
            assert!(Instant::now() < end, "{state:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let stuck = |state: &MachineState| *state == MachineState::Stopped(StopReason::IoError);
    wait_for(&machine, stuck).await;
    let refused = machine.create().await.expect_err("it is stuck");
    assert_eq!(refused.class(), ErrorClass::Capacity, "{refused}");
    assert!(refused.said().contains("virsh resume"), "{refused}");

    disk.free();
    virsh(&ground.uri, &["resume", machine.key.name()]);
    let runs =
        |state: &MachineState| matches!(state, MachineState::Running(Addresses::Reported { .. }));
    let state = wait_for(&machine, runs).await;
    let MachineState::Running(Addresses::Reported { addresses, .. }) = state else {
        unreachable!("it was waited for");
    };
    let end = soon();
    loop {
        let answer = asked(addresses[0]);
        if answer
            .as_ref()
            .is_ok_and(|answer| answer.starts_with("HTTP/1.1 407"))
        {
            break;
        }
        assert!(Instant::now() < end, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    machine.down().await;
}
