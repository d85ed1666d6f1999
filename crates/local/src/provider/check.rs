//! `check`: whether machines can be made here, without making anything.

use super::{Local, RESERVE_BYTES};
use crate::{
    host,
    place::{
        PortSight, address_on_host, candidates, egress_of_sockets, free_sockets, look_at_port,
    },
    process::ProcessId,
};
use egress_core::{MachineKey, Mark};
use egress_provider::{CheckFinding, CheckReason, Report, Severity};
use rustix::{
    fs::{Access, StatVfsMountFlags, access, statvfs},
    process::{PidfdFlags, getpid, pidfd_open},
};
use std::{cmp::Reverse, fs, path::Path};

impl Local {
    pub(super) fn report(&self) -> Report {
        let mut findings = Vec::new();
        self.check_addresses(&mut findings);
        self.check_ports(&mut findings);
        self.check_state(&mut findings);
        self.check_directories(&mut findings);
        if let Err(error) = access(&self.program, Access::EXEC_OK) {
            findings.push(fault(
                CheckReason::TemplateInvalid,
                format!("{} cannot be run: {error}", self.program.display()),
                "put the program back, or start it from a path that stays",
            ));
        }
        check_kernel(&mut findings);
        findings.sort_by_key(|finding| Reverse(finding.severity));
        Report {
            version: Some(host::kernel()),
            findings,
            free_slots: self.free_slots(),
        }
    }

    /// The sockets of the range that nobody listens on and no machine of ours has.
    fn free_slots(&self) -> Option<u64> {
        let directories = self.directories.all().ok()?;
        let ours = egress_of_sockets(directories.iter().map(|directory| &directory.slot));
        Some(free_sockets(&self.config, &ours.into_keys().collect()))
    }

    fn check_addresses(&self, findings: &mut Vec<CheckFinding>) {
        let addresses = self.config.addresses();
        let missing: Vec<String> = addresses
            .iter()
            .chain(&self.config.listen)
            .filter(|address| !address_on_host(**address))
            .map(ToString::to_string)
            .collect();
        if missing.is_empty() {
            return;
        }
        let listen_missing = self
            .config
            .listen
            .is_some_and(|address| !address_on_host(address));
        let severity = if listen_missing || missing.len() >= addresses.len() {
            Severity::Error
        } else {
            Severity::Warning
        };
        findings.push(CheckFinding {
            reason: CheckReason::NetworkInvalid,
            severity,
            field: Some("addresses".to_owned()),
            found: format!("not on this host: {}", missing.join(", ")),
            remedy: "add the address to an interface, or take it out of the configuration"
                .to_owned(),
        });
    }

    fn check_ports(&self, findings: &mut Vec<CheckFinding>) {
        let range = self.config.port_range;
        let addresses = self.config.addresses();
        // Any key will do: it only says where to begin.
        let key = MachineKey::new("check".parse().expect("a legal UID"));
        let free = candidates(&self.config, &addresses, &key, None)
            .any(|place| look_at_port(place.socket()).is_ok_and(|sight| sight == PortSight::Free));
        if !free {
            findings.push(fault(
                CheckReason::RangeInvalid,
                format!("no port of {}-{} is free", range.from, range.to),
                "widen portRange, or end what uses its ports",
            ));
        }
        if let Some((low, high)) = ephemeral_ports()
            && range.from <= high
            && range.to >= low
        {
            findings.push(CheckFinding {
                reason: CheckReason::RangeInvalid,
                severity: Severity::Warning,
                field: Some("portRange".to_owned()),
                found: format!(
                    "portRange {}-{} overlaps {low}-{high}, where the kernel takes the ports of outgoing connections from",
                    range.from, range.to
                ),
                remedy: "move portRange, or set net.ipv4.ip_local_reserved_ports".to_owned(),
            });
        }
    }

    fn check_state(&self, findings: &mut Vec<CheckFinding>) {
        let root = self.directories.root();
        let Some(nearest) = root.ancestors().find(|path| path.exists()) else {
            return;
        };
        let what = nearest.display();
        if let Err(error) = access(nearest, Access::WRITE_OK | Access::EXEC_OK) {
            findings.push(fault(
                CheckReason::StorageUnavailable,
                format!("{what} cannot be written: {error}"),
                "give the directory to the user this runs as",
            ));
        }
        let Ok(room) = statvfs(nearest) else { return };
        if room.f_flag.contains(StatVfsMountFlags::RDONLY) {
            findings.push(fault(
                CheckReason::StorageUnavailable,
                format!("{what} is mounted read-only"),
                "mount it writable, or name another state directory",
            ));
        }
        let free = room.f_bavail * room.f_frsize;
        if free < RESERVE_BYTES || (room.f_files > 0 && room.f_favail == 0) {
            findings.push(fault(
                CheckReason::LowCapacity,
                format!(
                    "{} KiB and {} files left below {what}",
                    free >> 10,
                    room.f_favail
                ),
                "make room on that file system",
            ));
        }
    }
}

impl Local {
    /// What stands in a slot and bears no mark that could be read, as a power cut soon after
    /// a create leaves it: it is nobody's, so a person has to remove it.
    fn check_directories(&self, findings: &mut Vec<CheckFinding>) {
        let root = self.directories.root();
        let directories = match self.directories.all() {
            Ok(directories) => directories,
            Err(error) => {
                findings.push(fault(
                    CheckReason::StorageUnavailable,
                    format!("{} cannot be read: {error}", root.display()),
                    "give the directory to the user this runs as",
                ));
                return;
            }
        };
        let unmarked = directories.iter().filter(|directory| {
            let text = directory.label().ok().and_then(|label| label.text);
            text.is_none_or(|text| Mark::find(&text).is_none())
        });
        for directory in unmarked {
            findings.push(CheckFinding {
                reason: CheckReason::StorageUnavailable,
                severity: Severity::Warning,
                field: None,
                found: format!(
                    "{} bears no mark",
                    root.join(directory.slot.as_str()).display()
                ),
                remedy: "remove it if nobody needs it: its slot is not used".to_owned(),
            });
        }
    }
}

fn check_kernel(findings: &mut Vec<CheckFinding>) {
    if pidfd_open(getpid(), PidfdFlags::empty()).is_err() {
        findings.push(fault(
            CheckReason::VersionUnsupported,
            "the kernel has no pidfd".to_owned(),
            "use Linux 5.3 or newer",
        ));
    }
    let itself = i32::try_from(std::process::id())
        .ok()
        .and_then(|pid| ProcessId::of(pid).ok());
    if itself.flatten().is_none() || host::boot_id().is_empty() {
        findings.push(fault(
            CheckReason::VisibilityLimited,
            "/proc does not show this process".to_owned(),
            "mount the proc file system of this pid name space at /proc",
        ));
    }
}

fn ephemeral_ports() -> Option<(u16, u16)> {
    let text = fs::read_to_string(Path::new("/proc/sys/net/ipv4/ip_local_port_range")).ok()?;
    let mut ports = text.split_whitespace().map(str::parse);
    Some((ports.next()?.ok()?, ports.next()?.ok()?))
}

fn fault(reason: CheckReason, found: String, remedy: &str) -> CheckFinding {
    CheckFinding {
        reason,
        severity: Severity::Error,
        field: None,
        found,
        remedy: remedy.to_owned(),
    }
}
