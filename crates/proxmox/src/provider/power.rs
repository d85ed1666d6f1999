//! What locks and QEMU's own words mean (rule 8). Pure.

use crate::client::{Lock, VmStatus};
use std::time::Duration;

/// How long a lock of a clone or a destroy may stand without a task before a person must look.
pub(super) const STALE_LOCK: Duration = Duration::from_mins(5);

/// Whether and how a machine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Power {
    Running,
    Stopped,
    Paused,
    /// Stuck on its storage.
    IoError,
    /// Its process lives and its guest does not.
    Crashed,
    /// On its way to one of the others; QEMU's word for it.
    Changing(String),
}

/// From `status/current`; the list's `status` is the same words, up to 20 s late (F14, §5.2).
pub(super) fn power(status: &VmStatus) -> Power {
    if !status.running {
        return Power::Stopped;
    }
    match status.qmpstatus.as_str() {
        "running" => Power::Running,
        "paused" | "suspended" => Power::Paused,
        "io-error" => Power::IoError,
        "internal-error" | "guest-panicked" | "watchdog" | "shutdown" => Power::Crashed,
        other => Power::Changing(other.to_owned()),
    }
}

/// What a lock means for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockMeaning {
    /// The machine is being made: nothing about it can be read for sure.
    Making,
    /// Its disks are gone, its configuration is about to.
    Deleting,
    /// It is being hibernated.
    Suspending,
    /// It is hibernated.
    Hibernated,
    /// Someone works on it; everything about it stays readable.
    Busy,
}

pub(super) const fn meaning(lock: &Lock) -> LockMeaning {
    match lock {
        Lock::Clone | Lock::Create | Lock::Import | Lock::Rollback => LockMeaning::Making,
        Lock::Destroyed => LockMeaning::Deleting,
        Lock::Suspending => LockMeaning::Suspending,
        Lock::Suspended => LockMeaning::Hibernated,
        Lock::Backup | Lock::Migrate | Lock::Snapshot | Lock::SnapshotDelete | Lock::Other(_) => {
            LockMeaning::Busy
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(running: bool, qmpstatus: &str) -> VmStatus {
        VmStatus {
            running,
            qmpstatus: qmpstatus.to_owned(),
            lock: None,
            ha_managed: false,
            uptime_s: 0,
            agent: true,
            template: false,
            name: None,
            tags: Vec::new(),
        }
    }

    #[test]
    fn b99_every_word_of_qemu_has_a_meaning() {
        for (word, expected) in [
            ("running", Power::Running),
            ("paused", Power::Paused),
            ("suspended", Power::Paused),
            ("io-error", Power::IoError),
            ("internal-error", Power::Crashed),
            ("guest-panicked", Power::Crashed),
            ("shutdown", Power::Crashed),
            ("prelaunch", Power::Changing("prelaunch".to_owned())),
            ("inmigrate", Power::Changing("inmigrate".to_owned())),
        ] {
            assert_eq!(power(&status(true, word)), expected);
        }
        // F14: a stopped machine's words are the same; its process decides.
        assert_eq!(power(&status(false, "stopped")), Power::Stopped);
        assert_eq!(power(&status(false, "paused")), Power::Stopped);
    }

    #[test]
    fn every_lock_has_a_meaning() {
        for (word, expected) in [
            ("clone", LockMeaning::Making),
            ("create", LockMeaning::Making),
            ("import", LockMeaning::Making),
            ("rollback", LockMeaning::Making),
            ("destroyed", LockMeaning::Deleting),
            ("suspending", LockMeaning::Suspending),
            ("suspended", LockMeaning::Hibernated),
            ("backup", LockMeaning::Busy),
            ("migrate", LockMeaning::Busy),
            ("snapshot", LockMeaning::Busy),
            ("snapshot-delete", LockMeaning::Busy),
            ("something-new", LockMeaning::Busy),
        ] {
            assert_eq!(meaning(&Lock::parse(word)), expected, "{word}");
        }
    }
}
