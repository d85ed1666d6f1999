//! What happens around a running engine: restarts, an exchanged program, a directory that hangs.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};
use support::{PROGRAM, Running, Site, manifest, three, wait_for};

#[test]
fn a_program_exchanged_while_it_runs_starts_proxies_with_its_old_code_until_its_restart() {
    let mut site = Site::new("upgrade", 26_200);
    let (program, new) = (site.path("egress-proxies"), site.path("new"));
    fs::copy(PROGRAM, &program).expect("a copy");
    site.set_program(program.clone());
    site.declare("a");
    let mut engine = site.start();
    site.wait_serving(&["a"]);

    // As `install` does; what lies there now could run no proxy.
    fs::copy("/bin/false", &new).expect("a copy");
    fs::rename(&new, &program).expect("a rename");
    site.declare("b");
    site.wait_serving(&["a", "b"]);
    fs::remove_file(&program).expect("it is there");
    site.declare("c");
    site.wait_serving(&["a", "b", "c"]);
    site.wait_well();
    let pids = site.exactly_one_each(&["a", "b", "c"]);
    for pid in pids.values() {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).expect("it runs");
        assert_eq!(name, "egress-proxies\n");
        let line = fs::read(format!("/proc/{pid}/cmdline")).expect("it runs");
        let shown = program.display().to_string();
        assert!(line.starts_with(shown.as_bytes()), "{line:?}");
    }

    engine.stop(Signal::TERM);
    site.set_program(PROGRAM.into());
    let _engine = site.start();
    site.wait_serving(&["a", "b", "c"]);
    assert_eq!(site.exactly_one_each(&["a", "b", "c"]), pids);
}

#[test]
fn a_recorded_proxy_without_a_manifest_is_shown_at_once_after_a_restart() {
    let (site, mut engine) = three("shown", 26_300);
    engine.stop(Signal::TERM);
    site.undeclare("a");
    site.undeclare("b");
    let _engine = site.start();
    for name in ["a", "b"] {
        let accepted = site.condition(name, "Accepted");
        assert!(
            accepted.contains("its manifest is gone"),
            "{accepted}\n{}",
            site.table()
        );
    }
    site.wait_told("! 2 of 3 Proxies have no manifest");
    site.declare("a");
    site.wait_told("! 1 of 3 Proxies has no manifest");
    site.wait_condition("a", "Accepted", "True/");
}

#[test]
fn a_paused_proxy_shows_so_and_each_its_provider_and_age() {
    let site = Site::new("columns", 26_400);
    site.declare("a");
    let _engine = site.start();
    site.wait_serving(&["a"]);
    site.write("a", &manifest("a", "provider: here, paused: true"));
    site.wait_told("Running,Paused");
    let table = site.table();
    let mut lines = table.lines().map(|line| line.split_whitespace());
    let head: Vec<&str> = lines.next().expect("a head").collect();
    let row: Vec<&str> = lines.next().expect("a row").collect();
    let cell = |column: &str| {
        let index = head.iter().position(|name| *name == column);
        row[index.expect("a column")]
    };
    assert_eq!((cell("NAME"), cell("PROVIDER")), ("a", "here"));
    assert_eq!(cell("PHASE"), "Running,Paused");
    assert!(cell("ADDRESS").starts_with("127.0.0.1:"), "{table}");
    assert!(cell("AGE").ends_with('s'), "{table}");
}

/// Holds a file so that whoever opens it waits, as on a mount that hangs: a lease that is not
/// given up (fcntl(2), F_SETLEASE), for the 45 s that the kernel grants.
struct Hanging(Running);

impl Hanging {
    fn hold(site: &Site, file: &str) -> Option<Self> {
        const HOLD: &str = "$SIG{IO} = 'IGNORE'; open(my $f, '+<', $ARGV[0]) or die; \
            fcntl($f, 1024, 1) or die; $| = 1; print \"held\\n\"; sleep 60;";
        let able = Command::new("perl").args(["-e", "1"]).status();
        if !able.is_ok_and(|status| status.success()) {
            return None;
        }
        let mut perl = Command::new("perl");
        perl.args(["-e", HOLD]).arg(site.manifests().join(file));
        let perl = Running::spawn(&mut perl, site.path("lease.log"));
        wait_for("the lease", || {
            let printed = perl.printed();
            if printed == "held\n" {
                Ok(())
            } else {
                Err(printed)
            }
        });
        Some(Self(perl))
    }
}

#[test]
fn a_manifest_directory_that_hangs_delays_neither_the_page_nor_the_end() {
    let site = Site::new("hangs", 26_500);
    site.declare("a");
    let mut engine = site.start();
    site.wait_serving(&["a"]);
    let pids = site.exactly_one_each(&["a"]);
    site.declare("b");
    site.wait_serving(&["a", "b"]);
    engine.stop(Signal::TERM);

    // A start goes on without the manifests where machines run already.
    let Some(mut hanging) = Hanging::hold(&site, "b.yaml") else {
        eprintln!("NOT RUN: perl is needed to hold a file");
        return;
    };
    let begun = Instant::now();
    let mut engine = site.start();
    let told = format!("reading {} has taken", site.manifests().display());
    site.wait_told(&told);
    let pruned = site.ask(&["prune"]);
    assert_eq!(pruned.status.code(), Some(1), "{pruned:?}");
    assert_eq!(site.exactly_one_each(&["a", "b"])["a"], pids["a"]);
    let stopping = Instant::now();
    assert!(engine.stop(Signal::TERM).success(), "{}", engine.printed());
    assert!(stopping.elapsed() < Duration::from_secs(10));
    assert!(
        hanging.0.is_running() && begun.elapsed() < Duration::from_secs(40),
        "the file was held for so long"
    );
    hanging.0.stop(Signal::KILL);
    let _engine = site.start();
    site.wait_well();
    site.wait_serving(&["a", "b"]);
}
