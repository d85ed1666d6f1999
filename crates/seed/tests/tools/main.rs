//! The seed as programs that are not ours read it: `blkid`, `isoinfo`, `xorriso`, a shell,
//! systemd and cloud-init itself. Where one is missing its test says so and what brings it;
//! with `CI=true` it fails.

mod boothook;
mod cloud_init;
mod image;
mod yaml;

use egress_core::{
    machine::CloudConfig,
    proxy_config::{Auth, Limits, ProxydConfig, Verifier},
};
use egress_seed::{GuestAgent, Seed};
use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

const USER_DATA: &str = "\
#cloud-config
packages: [tcpdump]
package_update: false
write_files:
- path: /etc/motd
  permissions: '0644'
  content: hi
runcmd:
- [sh, -c, 'echo mine']
";

/// Whether the program is there; otherwise says what is not run, or fails where nothing may be
/// left out.
fn is_there(program: &str, package: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = path
        .split(':')
        .chain(["/usr/sbin", "/sbin"])
        .any(|folder| Path::new(folder).join(program).is_file());
    if !found {
        let told = format!("`{program}` is missing: apt-get install {package}");
        assert!(
            !std::env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1"),
            "{told}"
        );
        // Not by `eprintln!`, which a passing test keeps to itself.
        writeln!(std::io::stderr(), "NOT RUN: {told}").expect("a stream");
    }
    found
}

/// Runs a program and returns what it said on both streams; its failure fails the test.
fn said(program: &str, arguments: &[&str]) -> String {
    let (well, said) = ended(program, arguments);
    assert!(well, "{program} {arguments:?}: {said}");
    said
}

fn ended(program: &str, arguments: &[&str]) -> (bool, String) {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("LC_ALL", "C.UTF-8")
        .output()
        .expect("the program starts");
    let mut said = output.stdout;
    said.extend(output.stderr);
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

struct Made {
    folder: tempfile::TempDir,
    payload: Vec<u8>,
    config: ProxydConfig,
}

impl Made {
    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// The files as xorriso takes them out of the image.
    fn unpacked(&self) -> PathBuf {
        let to = self.folder.path().join("unpacked");
        let (image, to_text) = (self.path("seed.iso"), to.display().to_string());
        said(
            "xorriso",
            &[
                "-osirrox", "on", "-indev", &image, "-extract", "/", &to_text,
            ],
        );
        // The image's modes are for root alone; whoever runs this may change the copies.
        set_mode(&to, 0o755);
        for entry in fs::read_dir(&to).expect("a folder") {
            set_mode(&entry.expect("an entry").path(), 0o644);
        }
        to
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own file");
}

/// A seed image on the disk, with a program of 5 MiB.
fn made(guest_agent: GuestAgent, mac: Option<&str>) -> Made {
    let mut payload = b"\x7fELF\x02\x01".to_vec();
    payload.resize(64, 0); // the head of a program without program headers
    payload[18] = 62; // x86-64
    payload.extend((0..5 * 1024 * 1024_u32).map(|n| (n.wrapping_mul(n) >> 7) as u8));
    let config = ProxydConfig {
        key: "px-a".into(),
        attempt: 3,
        listen: "0.0.0.0:443".parse().expect("address"),
        management: None,
        egress: None,
        clients: Vec::new(),
        auth: Auth::Basic {
            verifiers: vec![Verifier::new("egress", "swordfish")],
            generation: 1,
        },
        limits: Limits::default(),
    };
    let user_data = CloudConfig::new(USER_DATA.to_owned());
    let image = Seed {
        proxyd: &config,
        mac,
        guest_agent,
        payload: guest_agent.needs_payload().then_some(&payload),
        user_data: Some(&user_data),
    }
    .render()
    .expect("image");
    let folder = tempfile::tempdir().expect("folder");
    fs::write(folder.path().join("seed.iso"), image).expect("written");
    Made {
        folder,
        payload,
        config,
    }
}
