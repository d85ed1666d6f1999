//! The state directory of standalone mode: locked, lost, copied, full, read-only.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use std::{fs, path::PathBuf, process::Command};
use support::{PROGRAM, Site, end_machines, same, three, wait_for};

#[test]
fn a_second_engine_on_the_state_directory_is_refused_and_told_why() {
    let site = Site::new("second", 21_300);
    site.declare("a");
    let mut engine = site.start();
    site.wait_serving(&["a"]);
    let pids = site.exactly_one_each(&["a"]);
    for flags in [&[][..], &["--take-over"][..]] {
        let refusal = site.refused(flags);
        assert_eq!(refusal.code, Some(2), "{refusal:?}");
        let why = format!(
            "another engine, pid {}, uses the state directory",
            engine.pid()
        );
        assert!(refusal.text.contains(&why), "{refusal:?}");
    }
    assert!(engine.is_running());
    assert_eq!(site.exactly_one_each(&["a"]), pids);
    site.wait_serving(&["a"]);
}

#[test]
fn a_second_engine_with_another_state_directory_is_refused_and_takes_nothing() {
    let (mut site, mut engine) = three("twostates", 24_700);
    let before = site.exactly_one_each(&["a", "b", "c"]);
    let first = site.state();
    site.set_state(site.path("state-2"));
    for flags in [&[][..], &["--take-over"][..]] {
        let refusal = site.refused(flags);
        assert_eq!(refusal.code, Some(2), "{refusal:?}");
        let why = format!("pid {}, runs on this host", engine.pid());
        assert!(refusal.text.contains(&why), "{refusal:?}");
    }
    site.set_state(first);
    assert!(engine.is_running());
    assert_eq!(site.exactly_one_each(&["a", "b", "c"]), before);
}

#[test]
fn a_writer_that_the_machines_do_not_name_is_refused_until_it_takes_over() {
    let (site, mut engine) = three("writer", 23_400);
    let before = site.exactly_one_each(&["a", "b", "c"]);
    engine.stop(Signal::KILL);
    let file = site.state().join("identity.json");
    let text = fs::read_to_string(&file).expect("it is there");
    let mut identity: Value = serde_json::from_str(&text).expect("JSON");
    identity["writer"] = "somebody-else".into();
    fs::write(&file, identity.to_string()).expect("it can be written");

    let refusal = site.refused(&[]);
    assert_eq!(refusal.code, Some(2), "{refusal:?}");
    for part in ["is writer somebody-else", "--take-over"] {
        assert!(refusal.text.contains(part), "{refusal:?}");
    }
    assert_eq!(site.exactly_one_each(&["a", "b", "c"]), before);
    let _engine = site.start_with(&["--take-over"]);
    site.wait_serving(&["a", "b", "c"]);
    assert_eq!(site.exactly_one_each(&["a", "b", "c"]), before);
}

// B200: what was made outlives the state directory.
#[test]
fn a_lost_state_directory_is_rebuilt_and_nothing_restarts() {
    let site = Site::new("lost", 21_600);
    site.declare("a");
    site.declare("b");
    let mut engine = site.start();
    site.wait_serving(&["a", "b"]);
    let pids = site.exactly_one_each(&["a", "b"]);

    engine.stop(Signal::TERM);
    fs::remove_dir_all(site.state()).expect("it can be removed");
    let mut engine = site.start();
    for name in ["a", "b"] {
        site.wait_condition(name, "Serving", "Unknown/CredentialLost");
    }
    assert_eq!(site.exactly_one_each(&["a", "b"]), pids);

    fs::remove_dir_all(site.state()).expect("it can be removed");
    let status = engine.ended();
    assert_eq!(status.code(), Some(1), "{}", engine.printed());
    let state = site.state().display().to_string();
    let last = engine
        .printed()
        .lines()
        .last()
        .unwrap_or_default()
        .to_owned();
    assert!(
        last.contains(&state) && last.contains("was removed"),
        "{last}"
    );
    assert_eq!(site.exactly_one_each(&["a", "b"]), pids);

    let _engine = site.start();
    for name in ["a", "b"] {
        site.wait_condition(name, "Serving", "Unknown/CredentialLost");
    }
    assert_eq!(site.exactly_one_each(&["a", "b"]), pids);
}

#[test]
fn a_state_directory_of_another_host_needs_take_over() {
    let site = Site::new("copied", 21_900);
    site.declare("a");
    let mut engine = site.start();
    site.wait_serving(&["a"]);
    let pids = site.exactly_one_each(&["a"]);
    engine.stop(Signal::TERM);
    let file = site.state().join("identity.json");
    let mut identity: Value =
        serde_json::from_str(&fs::read_to_string(&file).expect("it is there")).expect("JSON");
    identity["host"] = json!("00000000000000000000000000000bad");
    fs::write(&file, identity.to_string()).expect("it can be written");

    let refusal = site.refused(&[]);
    assert_eq!(refusal.code, Some(2), "{refusal:?}");
    assert!(
        refusal.text.contains("belongs to another host"),
        "{refusal:?}"
    );
    assert!(refusal.text.contains("--take-over"), "{refusal:?}");
    assert_eq!(site.exactly_one_each(&["a"]), pids);

    let mut engine = site.start_with(&["--take-over"]);
    assert!(engine.is_running());
    engine.stop(Signal::TERM);
    let _again = site.start(); // the flag is needed once
}

/// A small file system in memory, taken away when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(dir: PathBuf) -> Option<Self> {
        fs::create_dir(&dir).expect("a directory");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=12m,mode=700", "tmpfs"])
            .arg(&dir)
            .output();
        mount.is_ok_and(|m| m.status.success()).then_some(Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_loses_nothing_and_mends_by_itself() {
    let mut site = Site::new("full", 22_200);
    let Some(disk) = SmallDisk::mount(site.path("disk")) else {
        eprintln!("NOT RUN: mounting a small file system needs root");
        return;
    };
    site.set_state(disk.0.join("state"));
    site.declare("a");
    let mut engine = site.start();
    site.wait_serving(&["a"]);
    let pids = site.exactly_one_each(&["a"]);

    let filler = disk.0.join("filler");
    let mut room = fs::File::create(&filler).expect("a file");
    while std::io::Write::write_all(&mut room, &[1; 4096]).is_ok() {}
    site.declare("b");
    wait_for("the full disk at /readyz", || {
        let (code, body) = site.page("/readyz");
        if code == 503 && body.contains("free some space") {
            Ok(())
        } else {
            Err(body)
        }
    });
    assert_eq!(site.exactly_one_each(&["a"]), pids);
    site.wait_serving(&["a"]);

    fs::remove_file(&filler).expect("it is there");
    drop(room);
    site.wait_serving(&["a", "b"]);
    wait_for("/readyz to be well", || same(&site.page("/readyz").0, &200));
    assert_eq!(site.exactly_one_each(&["a", "b"])["a"], pids["a"]);
    engine.stop(Signal::TERM);
    end_machines(&site.installation);
}

#[test]
fn a_state_directory_that_became_read_only_is_refused_by_name_and_its_proxy_stays() {
    let site = Site::new("readonly", 24_600);
    site.declare("a");
    let mut engine = site.start();
    site.wait_serving(&["a"]);
    let pids = site.exactly_one_each(&["a"]);
    engine.stop(Signal::TERM);

    let able = Command::new("unshare").args(["--mount", "true"]).output();
    if !able.is_ok_and(|output| output.status.success()) {
        eprintln!("NOT RUN: mounting a file system needs root");
        return;
    }
    // The mount is seen by this command alone, and gone with it.
    let script = format!(
        "mount --bind {state} {state} && mount -o remount,bind,ro {state} && \
         exec {PROGRAM} standalone --config {config} --manifests {manifests} --state-dir {state}",
        state = site.state().display(),
        config = site.config().display(),
        manifests = site.manifests().display(),
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .output()
        .expect("unshare");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    let state = site.state().display().to_string();
    assert!(said.contains(&state), "{said}");
    assert!(said.contains("Read-only file system"), "{said}");
    assert_eq!(site.exactly_one_each(&["a"]), pids);

    let _engine = site.start();
    site.wait_serving(&["a"]);
    assert_eq!(site.exactly_one_each(&["a"]), pids);
}
