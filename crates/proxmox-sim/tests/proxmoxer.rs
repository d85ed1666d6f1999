//! The simulator driven by a client that is not ours: proxmoxer, from PyPI.
//!
//! Needs Python 3 with the packages `proxmoxer`, `requests` and `requests_toolbelt`; the program
//! is the one that `PROXMOXER_PYTHON` names, or else the first of `python3` and
//! `/usr/bin/python3` that has them.

use egress_proxmox_sim::{
    http::{GuestKind, Options, serve},
    world::Setup,
};
use std::{ffi::OsString, net::SocketAddr, path::Path};
use tokio::process::Command;

const WHAT_ENABLES_IT: &str = "python3 with proxmoxer is missing: \
    apt-get install python3-proxmoxer python3-requests-toolbelt";

/// The first Python that has proxmoxer.
async fn python() -> Option<OsString> {
    let named = std::env::var_os("PROXMOXER_PYTHON");
    let usual = ["python3", "/usr/bin/python3"].map(OsString::from);
    for python in named.into_iter().chain(usual) {
        let imported = Command::new(&python)
            .args(["-c", "import proxmoxer, requests, requests_toolbelt"])
            .output()
            .await;
        if imported.is_ok_and(|output| output.status.success()) {
            return Some(python);
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn proxmoxer_clones_configures_starts_asks_and_removes_a_machine() {
    let Some(python) = python().await else {
        let ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!ci, "{WHAT_ENABLES_IT}");
        eprintln!("NOT RUN: {WHAT_ENABLES_IT}");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let running = serve(Options {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        guests: GuestKind::None,
        state_dir: folder.path().to_path_buf(),
        speed: 20.0,
        setup: Setup::default(),
    })
    .await
    .expect("a simulator");
    let facts = serde_json::to_string(running.facts()).expect("JSON");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxmoxer_drive.py");
    let output = Command::new(python)
        .arg(script)
        .arg(facts)
        .kill_on_drop(true)
        .output()
        .await
        .expect("python");
    let told = String::from_utf8_lossy(&output.stdout);
    let expected = "\
version: 9.2
nextid: 101
clone: OK
upload: OK
content: ['proxy-seeds:iso/by-proxmoxer.iso']
config: [2, '1024', 'a;b', 'one\\ntwo']
start: OK
status: running
agent: True
stop: OK
delete: OK
volume: OK
gone: True
left: []
";
    assert_eq!(
        told,
        expected,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success());
    running.stop().await;
}
