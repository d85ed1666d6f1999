//! The simulator's machines run the static proxyd that came to them in their seed.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use std::{env, fs, io::Write, os::unix::fs::symlink, path::Path};
use support::{Site, echo, sim::Sim};

/// The static proxyd that `cargo xtask ci guests` builds.
fn payload() -> Option<String> {
    let found = env::var("EGRESS_PAYLOAD").ok();
    if found.is_none() {
        let why = "the static proxyd: cargo xtask ci guests, as root";
        assert!(
            !env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1"),
            "{why}"
        );
        writeln!(std::io::stderr(), "NOT RUN: {why}").expect("a stream");
    }
    found
}

#[test]
fn a_simulated_machine_serves_with_the_program_and_the_agent_of_its_seed() {
    let Some(payload) = payload() else {
        return;
    };
    let site = Site::new("payload", 26_700);
    let sim = Sim::start(&site);
    let block = sim.block("here", &sim.fact("tokenFile"));
    let block = block.replace("guestAgent: baked", "guestAgent: builtin");
    let text = format!(
        "installation: {}\nproviders: [{block}]\n",
        site.installation
    );
    fs::write(site.config(), text).expect("written");
    let folder = site.path("payload");
    fs::create_dir(&folder).expect("a folder");
    symlink(payload, folder.join("proxyd")).expect("a link");
    site.declare("a");
    let folder = folder.display().to_string();
    let _engine = site.start_with(&["--payload-dir", &folder]);
    site.wait_serving(&["a"]);
    let (_echo, page) = echo(&site);
    let (status, text) = site.through("a", &page);
    assert_eq!(status, 200, "{text}");

    let guests = site.path("sim").join("guests");
    let brought: Vec<_> = fs::read_dir(&guests)
        .expect("the simulator's folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.to_string_lossy().contains("/payload-"))
        .collect();
    assert_eq!(brought.len(), 1, "{brought:?}");
    let pid = fs::read_dir(&guests)
        .expect("the simulator's folder")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.extension().is_some_and(|ending| ending == "pid"))
        .expect("a process");
    let pid = fs::read_to_string(pid).expect("a number");
    let runs = fs::read_link(Path::new("/proc").join(pid.trim()).join("exe")).expect("a process");
    assert_eq!(runs, fs::canonicalize(&brought[0]).expect("there"));
}
