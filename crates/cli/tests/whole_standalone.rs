//! Standalone mode as a user has it: the built command, real processes, real files.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    net::{IpAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};
use support::{
    EGRESS, PROGRAM, Running, Site, echo, end_machines, ended_by, machines_of, manifest, same,
    wait_closely_for, wait_for,
};
use tempfile::TempDir;

const TEN: [&str; 10] = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9"];

/// A quick start with a temporary directory of its own.
struct QuickStart {
    running: Running,
    temporary: PathBuf,
    /// As soon as it is known: whose machines must not outlive the test.
    installation: String,
    _home: TempDir,
}

impl QuickStart {
    /// Starts it and waits until it has printed everything.
    fn start() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let temporary = home.path().join("tmp");
        fs::create_dir(&temporary).expect("a directory");
        let mut command = Command::new(PROGRAM);
        command
            .arg("standalone")
            .env("TMPDIR", &temporary)
            .env("XDG_RUNTIME_DIR", &temporary);
        let running = Running::spawn(&mut command, home.path().join("log"));
        let installation = String::new();
        let mut quick = Self {
            running,
            temporary,
            installation,
            _home: home,
        };
        wait_for("the identity", || quick.find_installation());
        wait_for("the three lines", || {
            let printed = quick.running.printed();
            assert!(quick.running.is_running(), "it ended: {printed}");
            if printed.contains("Next: ") {
                Ok(())
            } else {
                Err(printed)
            }
        });
        quick
    }

    fn find_installation(&mut self) -> Result<(), String> {
        let root = fs::read_dir(&self.temporary)
            .expect("it is there")
            .flatten()
            .next();
        let root = root.ok_or("nothing")?.path();
        let text =
            fs::read_to_string(root.join("state/identity.json")).map_err(|e| e.to_string())?;
        let identity: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        identity["installation"]
            .as_str()
            .ok_or("no name")?
            .clone_into(&mut self.installation);
        Ok(())
    }

    fn curl_lines(&self) -> Vec<String> {
        let printed = self.running.printed();
        let lines = printed
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with("curl "));
        lines.map(str::to_owned).collect()
    }
}

impl Drop for QuickStart {
    fn drop(&mut self) {
        self.running.stop(Signal::KILL);
        if !self.installation.is_empty() {
            end_machines(&self.installation);
        }
    }
}

#[test]
fn the_quick_start_prints_curl_lines_that_work_and_leaves_nothing_behind() {
    let mut quick = QuickStart::start();
    let lines = quick.curl_lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(machines_of(&quick.installation).len(), 3);
    if Command::new("curl").arg("--version").output().is_ok() {
        for line in lines {
            let answer = Command::new("sh")
                .args(["-c", &line])
                .output()
                .expect("a shell");
            let text = String::from_utf8_lossy(&answer.stdout);
            let errors = String::from_utf8_lossy(&answer.stderr);
            assert!(
                text.trim().parse::<IpAddr>().is_ok(),
                "{line}: {text} {errors}"
            );
        }
    } else {
        eprintln!("NOT RUN: curl is not installed, so the printed lines were not tried");
    }
    let status = quick.running.stop(Signal::INT);
    assert!(status.success(), "{}", quick.running.printed());
    assert!(machines_of(&quick.installation).is_empty());
    let left: Vec<_> = fs::read_dir(&quick.temporary)
        .expect("it is there")
        .flatten()
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

// B16: what another one made is not ours because the name is alike.
#[test]
fn two_quick_starts_of_one_user_leave_each_other_alone() {
    let first = QuickStart::start();
    let pids = machines_of(&first.installation);
    let mut second = QuickStart::start();
    assert_ne!(first.installation, second.installation);
    assert!(
        second.running.stop(Signal::INT).success(),
        "{}",
        second.running.printed()
    );
    assert_eq!(pids.len(), 3);
    assert_eq!(machines_of(&first.installation), pids);
}

#[test]
fn a_declared_proxy_serves_and_a_pruned_one_leaves_only_its_incarnation() {
    let site = Site::new("life", 21_100);
    let (_page, url) = echo(&site);
    site.declare("a");
    let _engine = site.start();
    site.wait_serving(&["a"]);
    assert_eq!(site.through("a", &url), (200, format!("{EGRESS}\n")));
    let pids = site.exactly_one_each(&["a"]);
    assert_eq!(pids.len(), 1);
    site.undeclare("a");
    site.wait_told("! 1 of 1 Proxy has no manifest");
    assert_eq!(site.exactly_one_each(&["a"]), pids);
    let pruned = site.ask(&["prune"]);
    assert_eq!(
        String::from_utf8_lossy(&pruned.stdout),
        "deleting 1: default/a\n"
    );
    site.wait_gone();
    let left: Vec<String> = site
        .state_files()
        .into_iter()
        .filter(|file| !file.starts_with("admin")) // as long as the engine runs
        .collect();
    assert_eq!(left, ["identity.json", "incarnations/default/a", "lock"]);
}

/// Pseudo-random numbers (xorshift), the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn moment_within(&mut self, millis: u64) -> Duration {
        Duration::from_micros(self.below(1000 * millis + 1))
    }
}

impl Site {
    /// Directories of machines and records: each goes in a step of its own.
    fn left(&self) -> usize {
        let files = self.state_files();
        let records = files.iter().filter(|file| file.starts_with("records/"));
        self.machine_dirs().len() + records.count()
    }

    /// Kills the engine at the moment. Answers with 1 when its work was half done then. Never
    /// are there two processes for one proxy.
    fn kill_after(&self, engine: &mut Running, moment: Duration) -> usize {
        let begin = Instant::now();
        while begin.elapsed() < moment {
            std::hint::spin_loop();
        }
        let status = engine.stop(Signal::KILL);
        assert!(ended_by(status, Signal::KILL), "{}", engine.printed());
        let machines = self.machines();
        assert!(
            machines.values().all(|pids| pids.len() == 1),
            "{machines:?}"
        );
        usize::from(self.left() > 0 && machines.len() < TEN.len())
    }
}

/// Writes the pid of a stranger where the provider noted the one of its process.
fn note_stranger(site: &Site, stranger: &Running) {
    let stat = fs::read_to_string(format!("/proc/{}/stat", stranger.pid())).expect("it runs");
    let after_name = stat.rsplit_once(')').expect("the format of proc(5)").1;
    let started: u64 = after_name
        .split_whitespace()
        .nth(19)
        .and_then(|t| t.parse().ok())
        .expect("a number");
    let dirs = site.machine_dirs();
    let noted = dirs
        .iter()
        .map(|dir| dir.join("process.json"))
        .find(|file| file.exists())
        .expect("a machine was started");
    let text = fs::read_to_string(&noted).expect("it can be read");
    let mut value: Value = serde_json::from_str(&text).expect("JSON");
    value["process"] = json!({"pid": stranger.pid(), "startTime": started});
    fs::write(&noted, value.to_string()).expect("it can be written");
}

// B14: the engine dies between making a machine and writing that down; B36, B37: several are
// made at once; B03, B06, B50: a recorded id that belongs to someone else by now; B16: what
// is not ours is not deleted.
#[test]
fn an_engine_killed_at_any_moment_leaves_one_process_per_proxy_and_then_none() {
    let site = Site::new("kill", 21_200);
    let mut sleep = Command::new("sleep");
    let mut stranger = Running::spawn(sleep.arg("600"), site.path("sleep.log"));
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    for name in TEN {
        site.declare(name);
    }
    let mut struck = 0;
    for round in 0..8 {
        let there = site.machines().len();
        let mut engine = site.launch(&[]);
        if round % 2 == 1 && there < TEN.len() {
            wait_closely_for("one process more", || {
                let now = site.machines().len();
                if now > there {
                    Ok(())
                } else {
                    Err(format!("{now}"))
                }
            });
        }
        struck += site.kill_after(&mut engine, dice.moment_within(40 - 38 * (round % 2)));
    }
    assert!(struck > 0, "no kill was in the midst of the bring-up");

    let mut engine = site.start();
    site.wait_serving(&TEN);
    site.exactly_one_each(&TEN);
    engine.stop(Signal::KILL);

    note_stranger(&site, &stranger);
    let mut engine = site.start();
    site.wait_serving(&TEN);
    site.exactly_one_each(&TEN);
    for name in TEN {
        site.undeclare(name);
    }
    let mut struck = 0;
    for round in 0..8 {
        let left = site.left();
        assert!(
            site.ask(&["prune"]).status.success(),
            "{}",
            engine.printed()
        );
        wait_closely_for("something to go", || {
            let now = site.left();
            if now < left || left == 0 {
                Ok(())
            } else {
                Err(format!("{now}"))
            }
        });
        struck += site.kill_after(&mut engine, dice.moment_within(round));
        engine = site.start();
    }
    assert!(struck > 0, "no kill was in the midst of the deletion");

    assert!(
        site.ask(&["prune"]).status.success(),
        "{}",
        engine.printed()
    );
    site.wait_gone();
    assert!(stranger.is_running());
}

// B201: unknown fields and words taken for truth.
#[test]
fn a_bad_configuration_is_told_whole_and_starts_nothing() {
    let site = Site::new("badconfig", 21_400);
    site.declare("a");
    let text = "installation: Bad_Name\n\
        providers:\n\
        - name: here\n  local: {addresses: [203.0.113.9], portRange: {from: 30, to: 20}, drainSecond: 5}\n\
        - name: here\n\
        admin: {listen: '0.0.0.0:80'}\n";
    fs::write(site.config(), text).expect("it can be written");
    let refusal = site.refused(&[]);
    assert_eq!(refusal.code, Some(2), "{refusal:?}");
    let file = site.config().display().to_string();
    let golden = [
        "installation: Bad_Name: \"Bad_Name\" is not a valid installation: use 1 to 63 of a-z, 0-9 and '-', not beginning or ending with '-'",
        "providers[0].local.drainSecond: 5: unknown field: did you mean `drainSeconds`?",
        "providers[0].local.addresses[0]: 203.0.113.9: not an address of this host: name an address that `ip address` shows on this host",
        "providers[0].local.portRange: 30-20: ends before it begins: it holds no port: write the lower port in from and the higher one in to",
        "providers[0].local.portRange.from: 30: a privileged port: use 1024 or higher",
        "providers[1].name: here: the name is used twice: give each provider a name of its own",
        "providers[1]: (missing): says no kind of provider: add `local: {}`, or a block `proxmox` or `kvm2`",
        "admin.listen: 0.0.0.0:80: is not a loopback address: use 127.0.0.1 or [::1]; put a proxy with authentication in front to reach it from elsewhere",
    ];
    let told: Vec<String> = refusal
        .text
        .lines()
        .map(|line| {
            line.strip_prefix(&format!("{file}: "))
                .unwrap_or(line)
                .to_owned()
        })
        .collect();
    assert_eq!(told, golden);
    assert!(!site.state().exists());
    assert!(site.machines().is_empty());
}

#[test]
fn a_manifest_that_turns_bad_is_told_and_its_machine_stays() {
    let site = Site::new("turnsbad", 21_500);
    site.declare("a");
    site.declare("b");
    let _engine = site.start();
    site.wait_serving(&["a", "b"]);
    let pids = site.exactly_one_each(&["a", "b"]);

    let spec = "provider: here, prob: {interval: 5s}, proxy: {clients: [10.0.0.0/33]}";
    site.write("a", &manifest("a", spec));
    let faults = [
        "spec.prob: {interval}: unknown field: did you mean `probe`?",
        "spec.proxy.clients[0]: 10.0.0.0/33: is not a network in CIDR notation: write one such as 10.0.0.0/8",
    ];
    site.wait_condition(
        "a",
        "Accepted",
        &format!("False/Invalid: {}", faults.join("; ")),
    );
    for fault in faults {
        site.wait_told(&format!("! a.yaml: document 1 (line 1): {fault}"));
    }
    assert_eq!(site.exactly_one_each(&["a", "b"]), pids);

    // A document that cannot be read may declare anything: nothing is missing for sure.
    site.write("a", "kind: [");
    site.undeclare("b");
    site.wait_told(
        "a.yaml holds a document that cannot be read: nothing is deleted until it is mended",
    );
    let pruned = site.ask(&["prune"]);
    assert_eq!(pruned.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&pruned.stderr).contains("nothing was deleted: a.yaml"));
    assert_eq!(site.exactly_one_each(&["a", "b"]), pids);

    site.declare("a");
    wait_for("b to be deleted", || {
        same(&site.machines().contains_key("b"), &false)
    });
    site.wait_well();
    site.wait_condition("a", "Accepted", "True/");
    let kept = site.exactly_one_each(&["a"]);
    assert_eq!(kept["a"], pids["a"]);
}

// B126: what cannot be read is not absent.
#[test]
fn a_manifest_directory_that_is_gone_or_another_deletes_nothing() {
    let site = Site::new("unmounted", 21_700);
    site.declare("a");
    site.declare("b");
    let _engine = site.start();
    site.wait_serving(&["a", "b"]);
    let pids = site.exactly_one_each(&["a", "b"]);
    let away = site.path("away");
    for (replaced, why) in [
        (false, "cannot be read"),
        (true, "is another directory than before"),
    ] {
        fs::rename(site.manifests(), &away).expect("a rename");
        if replaced {
            fs::create_dir(site.manifests()).expect("a directory");
        }
        site.wait_told(&format!("{} {why}", site.manifests().display()));
        assert!(
            site.table()
                .lines()
                .any(|l| l.starts_with("! ") && l.contains(why))
        );
        let (code, body) = site.page("/readyz");
        assert_eq!(code, 503);
        assert!(body.contains(why), "{body}");
        assert_eq!(site.exactly_one_each(&["a", "b"]), pids);
        if replaced {
            fs::remove_dir(site.manifests()).expect("it is empty");
        }
        fs::rename(&away, site.manifests()).expect("a rename");
        site.wait_well();
        assert_eq!(site.page("/readyz").0, 200);
        assert_eq!(site.exactly_one_each(&["a", "b"]), pids);
    }
}

#[test]
fn many_missing_manifests_wait_for_prune() {
    let site = Site::new("guard", 21_800);
    for name in ["a", "b", "c"] {
        site.declare(name);
    }
    let _engine = site.start();
    site.wait_serving(&["a", "b", "c"]);
    let pids = site.exactly_one_each(&["a", "b", "c"]);
    site.undeclare("a");
    site.undeclare("b");
    site.wait_told("! 2 of 3 Proxies have no manifest");
    assert_eq!(site.exactly_one_each(&["a", "b", "c"]), pids);
    let pruned = site.ask(&["prune"]);
    assert_eq!(
        String::from_utf8_lossy(&pruned.stdout),
        "deleting 2: default/a, default/b\n"
    );
    wait_for("only c", || {
        same(
            &site.machines().keys().map(String::as_str).collect(),
            &vec!["c"],
        )
    });
    site.wait_well();
    assert_eq!(site.exactly_one_each(&["c"])["c"], pids["c"]);
}

#[test]
fn an_engine_that_is_stopped_leaves_its_proxies_and_the_next_one_takes_them_on() {
    let site = Site::new("restart", 22_000);
    let (_page, url) = echo(&site);
    site.declare("a");
    site.declare("b");
    let mut engine = site.start();
    site.wait_serving(&["a", "b"]);
    let pids = site.exactly_one_each(&["a", "b"]);
    let address = site.proxy("a").expect("it is shown")["status"]["endpoint"].clone();
    assert!(engine.stop(Signal::TERM).success());
    assert!(
        engine.printed().contains("stopped; 2 proxies keep running"),
        "{}",
        engine.printed()
    );
    assert_eq!(site.exactly_one_each(&["a", "b"]), pids);
    assert_eq!(site.ask(&["get", "proxies"]).status.code(), Some(1));

    let _engine = site.start();
    site.wait_serving(&["a", "b"]);
    assert_eq!(site.exactly_one_each(&["a", "b"]), pids);
    assert_eq!(
        site.proxy("a").expect("it is shown")["status"]["endpoint"],
        address
    );
    assert_eq!(site.through("a", &url), (200, format!("{EGRESS}\n")));
}

#[test]
fn a_port_that_a_stranger_holds_is_left_to_it() {
    let site = Site::new("port", 22_100);
    let ports = [22_100_u16, 22_101];
    site.configure(ports[0], ports[1]);
    // Whichever port is chosen first: one proxy shows it, a stranger takes it then.
    site.declare("a");
    let engine = site.start();
    site.wait_serving(&["a"]);
    let first = site.proxy("a").expect("it is shown")["status"]["endpoint"].clone();
    site.undeclare("a");
    site.wait_told("! 1 of 1");
    assert!(site.ask(&["prune"]).status.success());
    site.wait_gone();
    drop(engine);
    let taken = first.as_str().expect("an address");
    let stranger = TcpListener::bind(taken).expect("the port is free again");
    fs::remove_dir_all(site.state()).expect("it can be removed"); // the same choice again

    site.declare("a");
    let _engine = site.start();
    site.wait_serving(&["a"]);
    let second = site.proxy("a").expect("it is shown")["status"]["endpoint"].clone();
    assert_ne!(first, second);
    stranger.set_nonblocking(true).expect("a flag");
    let met = TcpStream::connect(taken).expect("the stranger still listens");
    let own = met.local_addr().expect("an address");
    wait_for("our connection at the stranger", || {
        match stranger.accept() {
            Ok((_, peer)) if peer == own => Ok(()),
            Ok((_, peer)) => Err(format!("{peer}")),
            Err(e) => Err(e.to_string()),
        }
    });
}

#[test]
fn a_reader_that_ends_early_is_no_fault_of_get() {
    let site = Site::new("pipe", 22_300);
    site.declare("a");
    let _engine = site.start();
    site.wait_serving(&["a"]);
    let line = format!(
        "{PROGRAM} get proxies --state-dir {} | true",
        site.state().display()
    );
    let answer = Command::new("sh")
        .args(["-c", &line])
        .output()
        .expect("a shell");
    assert_eq!(String::from_utf8_lossy(&answer.stderr), "");
}
