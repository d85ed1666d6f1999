//! The full guest with all of ours in it, as `docs/guides/images.md` tells people to bake theirs:
//! proxyd, which is its agent too, their units, and the rules. What is added goes into the file
//! system without a mount.

use super::{must, tool};
use crate::Stop;
use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

const PROXYD_UNIT: &str = include_str!("../../../crates/seed/src/vendor_data/proxyd.service");
const AGENT_UNIT: &str = include_str!("../../../crates/seed/src/vendor_data/agent.service");
const POLICY_UNIT: &str = include_str!("../../../crates/seed/src/vendor_data/policy.service");
const POLICY: &str = include_str!("../../../crates/seed/src/vendor_data/policy.nft");

/// The account that proxyd runs as, as packages write them.
const PASSWD: &str = "proxyd:x:989:989::/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "proxyd:x:989:\n";

const UNITS: &str = "/etc/systemd/system";

/// What writes into an ext4 without a mount; it comes with mkfs.ext4.
const DEBUGFS: &str = "debugfs";

/// Everything that decides what comes out, packages aside.
pub(super) fn recipe(proxyd: &Path) -> Result<String, Stop> {
    let program = fs::read(proxyd)?;
    Ok(format!(
        "{}{PROXYD_UNIT}{AGENT_UNIT}{POLICY_UNIT}{POLICY}{}{:016x}",
        include_str!("baked.rs"),
        super::debian::recipe(),
        super::fnv(&program)
    ))
}

/// Makes the disk in an empty folder and returns its path.
pub(super) fn build(scratch: &Path, debian: &Path, proxyd: &Path) -> Result<PathBuf, Stop> {
    let disk = scratch.join("disk.raw");
    must(
        tool("qemu-img")
            .args(["convert", "-O", "raw"])
            .arg(debian)
            .arg(&disk),
    )?;
    let root = Root::of(&disk)?;
    let add = |name: &str, mode: u32, text: &[u8]| -> Result<PathBuf, Stop> {
        let path = scratch.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(path)
    };
    let unit = PROXYD_UNIT
        .replace("@capabilities@", "CapabilityBoundingSet=")
        .replace("@stop-seconds@", "50");
    let account = |name: &str, line: &str| -> Result<Vec<u8>, Stop> {
        let mut text = root.read(&format!("/etc/{name}"))?;
        text.extend(line.as_bytes());
        Ok(text)
    };
    let files = [
        ("/usr/local/bin", "proxyd", 0o755, fs::read(proxyd)?),
        (UNITS, "proxyd.service", 0o644, unit.into_bytes()),
        (
            UNITS,
            "egress-proxies-agent.service",
            0o644,
            AGENT_UNIT.into(),
        ),
        (
            UNITS,
            "egress-proxies-policy.service",
            0o644,
            POLICY_UNIT.into(),
        ),
        ("/etc/egress-proxies", "policy.nft", 0o644, POLICY.into()),
        ("/etc", "passwd", 0o644, account("passwd", PASSWD)?),
        ("/etc", "group", 0o644, account("group", GROUP)?),
    ];
    let mut orders = vec!["mkdir /etc/egress-proxies".to_owned()];
    for (folder, name, mode, text) in &files {
        let from = add(name, *mode, text)?;
        if *folder == "/etc" {
            orders.push(format!("rm {folder}/{name}"));
        }
        orders.push(format!("cd {folder}\nwrite {} {name}", from.display()));
    }
    orders.push(format!(
        "cd {UNITS}/multi-user.target.wants\n\
         symlink egress-proxies-agent.service {UNITS}/egress-proxies-agent.service\n"
    ));
    let orders = orders.join("\n");
    root.change(&add("orders", 0o600, orders.as_bytes())?)?;
    let made = scratch.join("made.qcow2");
    must(
        tool("qemu-img")
            .args(["convert", "-f", "raw", "-O", "qcow2"])
            .arg(&disk)
            .arg(&made),
    )?;
    Ok(made)
}

/// The second partition of a disk, an ext4.
struct Root {
    /// The disk and where in it, as debugfs takes it.
    at: String,
}

impl Root {
    fn of(disk: &Path) -> Result<Self, Stop> {
        let mut record = [0; 512];
        File::open(disk)?.read_exact(&mut record)?;
        Ok(Self {
            at: format!("{}?offset={}", disk.display(), second_begins(&record)),
        })
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, Stop> {
        let output = tool(DEBUGFS)
            .args(["-R", &format!("cat {path}"), &self.at])
            .output()
            .map_err(|source| Stop::Because(format!("{DEBUGFS}: {source}")))?;
        if output.stdout.is_empty() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Stop::Because(format!("{path} of {}: {said}", self.at)));
        }
        Ok(output.stdout)
    }

    /// Carries out the orders of a file; debugfs ends well whatever became of them.
    fn change(&self, orders: &Path) -> Result<(), Stop> {
        let output = tool(DEBUGFS)
            .arg("-wf")
            .arg(orders)
            .arg(&self.at)
            .output()
            .map_err(|source| Stop::Because(format!("{DEBUGFS}: {source}")))?;
        let complaints = complaints(&String::from_utf8_lossy(&output.stderr));
        if !output.status.success() || !complaints.is_empty() {
            return Err(Stop::Because(format!(
                "{DEBUGFS} {}: {complaints}",
                self.at
            )));
        }
        must(tool("e2fsck").args(["-fn", &self.at]))
    }
}

/// What debugfs says beside its own name.
fn complaints(said: &str) -> String {
    let lines = said.lines().filter(|line| !line.starts_with("debugfs "));
    lines.collect::<Vec<_>>().join("\n")
}

/// Where the second partition begins, in bytes.
fn second_begins(record: &[u8; 512]) -> u64 {
    let sector = record[446 + 16 + 8..].first_chunk().copied();
    u64::from(u32::from_le_bytes(sector.unwrap_or_default())) * 512
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_partition_begins_where_the_table_says() {
        let mut record = [0; 512];
        record[446 + 16 + 8..446 + 16 + 12].copy_from_slice(&[0, 8, 1, 0]);
        assert_eq!(second_begins(&record), 0x0001_0800 * 512);
    }

    #[test]
    fn what_debugfs_says_beside_its_name_is_a_complaint() {
        assert_eq!(complaints("debugfs 1.47.0 (5-Feb-2023)\n"), "");
        let said = "debugfs 1.47.0 (5-Feb-2023)\nwrite: File exists\n";
        assert_eq!(complaints(said), "write: File exists");
    }

    #[test]
    fn no_placeholder_is_left_in_the_unit() {
        let left = PROXYD_UNIT
            .replace("@capabilities@", "")
            .replace("@stop-seconds@", "");
        let strange: Vec<&str> = left
            .lines()
            .filter(|line| line.matches('@').count() > 1)
            .collect();
        assert!(
            strange
                .iter()
                .all(|line| line.starts_with("SystemCallFilter="))
        );
    }
}
