//! Why a state directory was not opened.

use crate::store::StoreError;
use egress_core::{Installation, WriterId};
use std::path::PathBuf;

/// Why a state directory was not opened; the text names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory is locked.
    #[error(
        "another engine{} uses the state directory {}: stop it, or give this one another \
         directory with --state-dir", in_words(*.pid), .directory.display()
    )]
    AlreadyRunning {
        /// The state directory.
        directory: PathBuf,
        /// The process that holds the lock, as far as the lock file tells.
        pid: Option<u32>,
    },
    /// It was written on another host: it may be a copy whose original is in use.
    #[error(
        "the state directory {} belongs to another host ({recorded}, this is {present}): when no \
         engine uses the original any more, start once with --take-over", .directory.display()
    )]
    OtherHost {
        /// The state directory.
        directory: PathBuf,
        /// The host that it names.
        recorded: String,
        /// This host.
        present: String,
    },
    /// It was written for another installation.
    #[error(
        "the state directory {} belongs to installation {recorded}, configured is {present}: \
         configure {recorded} again, give another directory with --state-dir, or start once \
         with --take-over", .directory.display()
    )]
    OtherInstallation {
        /// The state directory.
        directory: PathBuf,
        /// The installation that it names.
        recorded: Installation,
        /// The one that is configured.
        present: Installation,
    },
    /// The machines found bear another writer's marks.
    #[error(
        "the state directory {} is writer {recorded}, the machines of this installation were \
         made by writer {found}: give the state directory that made them, or start once with \
         --take-over", .directory.display()
    )]
    OtherWriter {
        /// The state directory.
        directory: PathBuf,
        /// The writer that it names.
        recorded: WriterId,
        /// The writer that the marks name.
        found: WriterId,
    },
    /// It holds records but does not say whose.
    #[error(
        "the state directory {} holds records but no identity.json: restore that file, or start \
         once with --take-over", .directory.display()
    )]
    IdentityMissing {
        /// The state directory.
        directory: PathBuf,
    },
    /// Its identity cannot be read; it was left as it is.
    #[error(
        "{} cannot be read: {why}: restore it, or move it away and start once with --take-over",
        .path.display()
    )]
    IdentityUnreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The directory holds something else.
    #[error(
        "{} is not a state directory, it holds {entry}: give an empty or a new directory with \
         --state-dir", .directory.display()
    )]
    NotAStateDirectory {
        /// The directory.
        directory: PathBuf,
        /// Something in it that is none of ours.
        entry: String,
    },
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] StoreError),
}

fn in_words(pid: Option<u32>) -> String {
    pid.map(|pid| format!(", pid {pid},")).unwrap_or_default()
}
