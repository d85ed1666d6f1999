//! The one table from what Proxmox VE says to what it means.
//!
//! The texts are wire behaviour: recorded from running code, read in its source, or reported
//! by others. A star stands for any text. The first row that fits counts.

use super::failure::{Kind, Lock};
use egress_core::ErrorClass;
use std::collections::BTreeMap;

/// What was going on when the text came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A request that changes nothing.
    Read,
    /// A request that changes something, answered by the API.
    Mutation,
    /// A task that a mutation began, by its exit status.
    Task,
}

/// A row of the table.
pub struct Row {
    /// The text, with stars for what varies.
    pub text: &'static str,
    /// What it means, given what the stars stand for.
    kind: fn(&[&str]) -> Kind,
}

impl Row {
    /// What it means, with its varying parts left empty.
    pub fn kind(&self) -> Kind {
        (self.kind)(&[""; 8])
    }
}

macro_rules! table {
    ($($text:literal => $kind:expr,)*) => { &[$(Row { text: $text, kind: $kind }),*] };
}

/// Every known text.
pub const TABLE: &[Row] = table! {
    // The VMID is the lock (F4, rule 2).
    "unable to create VM *: config file already exists" => |_| Kind::VmidTaken,
    "unable to create * - * already exists on node *" => |_| Kind::VmidTaken,
    "*close (rename) atomic file '*.conf' failed: File exists" => |_| Kind::VmidTaken,
    "VM * already exists" => |_| Kind::VmidTaken,
    "CT * already exists" => |_| Kind::VmidTaken,
    // Absent on one node (F2).
    "Configuration file '*' does not exist" => |_| Kind::NotExistOnNode,
    "unable to find configuration file for VM *" => |_| Kind::NotExistOnNode,
    // Quorum (§1.5), before the lock texts that resemble it.
    "*cluster not ready - no quorum?*" => |_| Kind::NoQuorum,
    "*error: no quorum!*" => |_| Kind::NoQuorum,
    "*unable to open file '/etc/pve/*' - Permission denied*" => |_| Kind::NoQuorum,
    "*unable to * '/etc/pve/*Permission denied*" => |_| Kind::NoQuorum,
    // Task machinery (§1.6), before the lock texts.
    "*can't lock file '/var/log/pve/tasks/*' - got timeout" => |_| Kind::TaskUnlisted,
    "got no worker upid*" => |_| Kind::TaskNotBegun,
    "starting worker failed*" => |_| Kind::TaskNotBegun,
    "no such task" => |_| Kind::NoSuchTask,
    // Locks (§6.2).
    "VM is locked (*)*" => |c| Kind::Locked(Lock::parse(c[0])),
    "*can't lock file '*' - got timeout*" => |_| Kind::LockTimeout,
    "*can't acquire lock '*' - got timeout*" => |_| Kind::LockTimeout,
    "*got lock request timeout*" => |_| Kind::LockTimeout,
    "*trying to acquire lock*timeout*" => |_| Kind::LockTimeout,
    "checksum mismatch (file change by other user?)*" => |_| Kind::DigestMismatch,
    "*detected modified configuration*" => |_| Kind::DigestMismatch,
    // Power and protection (§7.3, §7.5).
    "VM * already running" => |_| Kind::AlreadyRunning,
    "VM * is running - destroy failed" => |_| Kind::IsRunning,
    "VM * is not running" => |_| Kind::NotRunning,
    "VM * not running" => |_| Kind::NotRunning,
    "*protection mode enabled*" => |_| Kind::ProtectionMode,
    "*used in HA resources*" => |_| Kind::HaManaged,
    "you can't start a vm if it's a template*" => |_| Kind::IsTemplate,
    "*base volume '*' is still in use by linked clone*" => |_| Kind::VolumeInUse,
    "*already in use by another guest*" => |_| Kind::VolumeInUse,
    "VM is paused - cannot shutdown" => |_| Kind::QemuTrouble,
    "VM quit/powerdown failed*" => |_| Kind::QemuTrouble,
    "start failed: *" => |_| Kind::QemuTrouble,
    "hotplug problem - *" => |_| Kind::QemuTrouble,
    // The guest's agent (§9).
    "No QEMU guest agent configured" => |_| Kind::NoAgentConfigured,
    "QEMU guest agent is not running" => |_| Kind::AgentNotRunning,
    "VM * qga command '*' failed*" => |_| Kind::AgentSilent,
    "VM * qmp command 'guest-*' failed*" => |_| Kind::AgentSilent,
    "VM * qmp command '*' failed*" => |_| Kind::QemuTrouble,
    "*unable to connect to VM * socket*" => |_| Kind::QemuTrouble,
    // Rights (§3).
    "authentication failure*" => |_| Kind::Unauthenticated,
    "Authentication failed!" => |_| Kind::Unauthenticated,
    "No ticket" => |_| Kind::Unauthenticated,
    "no such token '*' for user '*'" => |_| Kind::Unauthenticated,
    "Permission check failed (/, Sys.Modify for modifying tag '*')" => |c| Kind::ForbiddenTag { tag: c[0].to_owned() },
    "Permission check failed (pool '*' does not exist)" => |_| Kind::PoolMissing,
    "Permission check failed (URI *" => |_| Kind::Forbidden { path: None, privilege: None },
    "Permission check failed (*, *)" => |c| Kind::Forbidden {
        path: Some(c[0].to_owned()),
        privilege: Some(c[1].to_owned()),
    },
    "Permission check failed*" => |_| Kind::Forbidden { path: None, privilege: None },
    "only root can *" => |_| Kind::RootOnly,
    "Only root may use this option." => |_| Kind::RootOnly,
    "*pool '*' does not exist" => |_| Kind::PoolMissing,
    // Nodes (§1.2, §1.4).
    "no such cluster node '*'" => |_| Kind::NodeUnknown,
    "hostname lookup '*' failed*" => |_| Kind::NodeUnreachable,
    "address lookup for '*' did not find any IP address" => |_| Kind::NodeUnreachable,
    "RPCEnvironment init request failed*" => |_| Kind::NodeTrouble,
    "ipcc_send_rec*" => |_| Kind::NodeTrouble,
    "proxy loop detected*" => |_| Kind::NodeTrouble,
    "MAX * vcpus allowed per VM on this node*" => |_| Kind::CannotPlace,
    "can't clone VM to node '*'*" => |_| Kind::CannotPlace,
    "Can't clone VM to node '*'*" => |_| Kind::CannotPlace,
    "can't clone to non-shared storage '*'*" => |_| Kind::CannotPlace,
    "Can't clone to non-shared storage '*'*" => |_| Kind::CannotPlace,
    // Storages (§6.1, §8).
    "*No such storage.*" => |_| Kind::StorageMissing,
    "*storage '*' does not exist*" => |_| Kind::StorageMissing,
    "*storage '*' is disabled*" => |_| Kind::StorageUnavailable,
    "*storage '*' is not available*" => |_| Kind::StorageUnavailable,
    "*storage '*' is not online*" => |_| Kind::StorageUnavailable,
    "*storage is not online*" => |_| Kind::StorageUnavailable,
    "*storage '*' does not support *" => |_| Kind::StorageUnfit,
    "can't upload to storage type '*'" => |_| Kind::StorageUnfit,
    "Full clone feature is not supported*" => |_| Kind::StorageUnfit,
    "Linked clone feature *" => |_| Kind::StorageUnfit,
    "parameter '*' not allowed for linked clones" => |_| Kind::StorageUnfit,
    "content type needs to be *" => |_| Kind::StorageUnfit,
    "*No space left on device*" => |_| Kind::StorageFull,
    "*not enough free space*" => |_| Kind::StorageFull,
    "*insufficient free space*" => |_| Kind::StorageFull,
    "*disk image '*' already exists*" => |_| Kind::VolumeExists,
    "*Logical Volume * already exists*" => |_| Kind::VolumeExists,
    "*dataset already exists*" => |_| Kind::VolumeExists,
    "*volume '*' does not exist*" => |_| Kind::VolumeMissing,
    "volume_size_info on '*' failed*" => |_| Kind::VolumeMissing,
    "*no such volume '*'*" => |_| Kind::VolumeMissing,
    "*no such logical volume*" => |_| Kind::VolumeMissing,
    // What a config write names (§7).
    "*cloud-init drive is already attached at '*'" => |_| Kind::DeviceUnfit,
    "invalid bootorder: device '*' does not exist'" => |_| Kind::DeviceUnfit,
    "*disk '*' does not exist*" => |_| Kind::DeviceUnfit,
    "*you can't resize a cdrom*" => |_| Kind::DeviceUnfit,
    "*shrinking disks is not supported*" => |_| Kind::DeviceUnfit,
    "*bridge '*' does not exist*" => |_| Kind::DeviceUnfit,
    "explicit 'media=cdrom' is required for iso images" => |_| Kind::DeviceUnfit,
    "snapshot '*' does not exist" => |_| Kind::DeviceUnfit,
    // Uploads (§8.1).
    "checksum mismatch: got '*" => |_| Kind::UploadRefused,
    "*wrong file extension*" => |_| Kind::UploadRefused,
    "*Failed to get * lock*" => |_| Kind::LockTimeout,
    "*failed: got timeout*" => |_| Kind::TaskFailed,
    // How the request was made.
    "no options specified" => |_| Kind::RequestRefused,
    "upload failed*" => |_| Kind::RequestRefused,
    "wrong field name *" => |_| Kind::RequestRefused,
    "malformed JSON string*" => |_| Kind::RequestRefused,
    "unable to parse worker upid" => |_| Kind::RequestRefused,
    // How tasks end (§4.2).
    "*interrupted by signal*" => |_| Kind::TaskInterrupted,
    "*received interrupt*" => |_| Kind::TaskInterrupted,
    "unexpected status" => |_| Kind::TaskUnexpected,
    "unable to get last line from task log*" => |_| Kind::TaskUnexpected,
    "clone failed: *" => |_| Kind::TaskFailed,
};

/// Finds the row of a text.
pub fn row_of(text: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| captures(row.text, text).is_some())
}

/// What a text means, if the table knows it. Prefixes that only say which step it was are
/// taken off first; if nothing but the prefix is known, that counts.
pub fn kind_of(text: &str) -> Option<Kind> {
    let text = bare(text);
    for prefix in ["clone failed: ", "unable to apply pending change: "] {
        if let Some(kind) = text.strip_prefix(prefix).and_then(kind_of) {
            return Some(kind);
        }
    }
    TABLE
        .iter()
        .find_map(|row| captures(row.text, text).map(|found| (row.kind)(&found)))
}

/// A text without what Perl adds: the place in the source, an exception's code, white space.
fn bare(text: &str) -> &str {
    let text = text.trim();
    let text = text
        .rfind(" at /usr/share/perl5/")
        .map_or(text, |at| &text[..at]);
    let (code, rest) = text.split_once(' ').unwrap_or(("", text));
    if code.len() == 3 && code.bytes().all(|b| b.is_ascii_digit()) {
        rest
    } else {
        text
    }
}

/// What the stars of a pattern stand for, if the text fits.
fn captures<'t>(pattern: &str, text: &'t str) -> Option<Vec<&'t str>> {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let mut rest = text.strip_prefix(first)?;
    let mut found = Vec::new();
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        let at = if last {
            rest.len()
                .checked_sub(part.len())
                .filter(|at| rest.is_char_boundary(*at) && rest[*at..] == *part)?
        } else {
            rest.find(part)?
        };
        found.push(&rest[..at]);
        rest = &rest[at + part.len()..];
    }
    (rest.is_empty()).then_some(found)
}

/// What an error answer of the API means.
pub fn kind_of_answer(status: u16, text: &str, fields: &BTreeMap<String, String>) -> Kind {
    match status {
        401 => Kind::Unauthenticated,
        // The connection to the node failed before the request was passed on.
        595 => Kind::NodeUnreachable,
        596 if text.contains("certificate") => Kind::NodeUnreachable,
        596..=599 => Kind::CutOff,
        403 => kind_of(text).unwrap_or(Kind::Forbidden {
            path: None,
            privilege: None,
        }),
        400 => {
            let told = fields.values().find_map(|said| kind_of(said));
            match told {
                Some(kind) => kind,
                None if fields.is_empty() => kind_of(text).unwrap_or(Kind::RequestRefused),
                None => Kind::ParameterInvalid {
                    fields: fields.clone(),
                },
            }
        }
        501 | 505 | 506 => Kind::RequestRefused,
        500 => kind_of(text).unwrap_or(Kind::Unclassified),
        _ => Kind::SomethingInFront,
    }
}

/// What a failed task's exit status means.
pub fn kind_of_task(text: &str) -> Kind {
    if let Some(rest) = text
        .trim()
        .strip_prefix("400 Parameter verification failed.")
    {
        // `key: text`, on one line.
        let fields: BTreeMap<String, String> = rest
            .trim()
            .split_once(": ")
            .map(|(key, said)| (key.to_owned(), said.trim().to_owned()))
            .into_iter()
            .collect();
        return kind_of_answer(400, text, &fields);
    }
    kind_of(text).unwrap_or(Kind::Unclassified)
}

/// What the caller may do about it. `status` is that of the answer, if there was one.
pub const fn class_of(kind: &Kind, effect: Effect, status: Option<u16>) -> ErrorClass {
    use ErrorClass as C;
    let unknown = match kind {
        Kind::CutOff | Kind::Unclassified | Kind::UnexpectedAnswer => true,
        // Whoever refused it with a code of its own did not pass it on; a gateway that
        // answers 5xx, or something else for a success, may have.
        Kind::SomethingInFront => !matches!(status, Some(300..=499)),
        _ => false,
    };
    if unknown && matches!(effect, Effect::Mutation) {
        return C::OutcomeUnknown;
    }
    match kind {
        Kind::VmidTaken | Kind::VolumeExists => C::Conflict,
        Kind::LockTimeout
        | Kind::Locked(_)
        | Kind::DigestMismatch
        | Kind::HaManaged
        | Kind::NotRunning
        | Kind::AlreadyRunning
        | Kind::IsRunning => C::Busy,
        Kind::NotExistOnNode
        | Kind::QemuTrouble
        | Kind::AgentNotRunning
        | Kind::AgentSilent
        | Kind::NoQuorum
        | Kind::NodeUnreachable
        | Kind::NodeTrouble
        | Kind::StorageUnavailable
        | Kind::VolumeMissing
        // Not Capacity: that is read from figures, which the next look has.
        | Kind::StorageFull
        | Kind::NoSuchTask
        | Kind::TaskNotBegun
        | Kind::TaskFailed
        | Kind::NotSent
        | Kind::CutOff
        | Kind::SomethingInFront
        | Kind::Unclassified => C::Transient,
        Kind::ProtectionMode | Kind::IsTemplate | Kind::VolumeInUse => C::NeedsOperator,
        Kind::NoAgentConfigured
        | Kind::PoolMissing
        | Kind::NodeUnknown
        | Kind::StorageMissing
        | Kind::StorageUnfit
        | Kind::DeviceUnfit
        | Kind::CannotPlace
        | Kind::UploadRefused
        | Kind::ParameterInvalid { .. }
        | Kind::CertificateInvalid(_)
        | Kind::CaUnusable => C::Permanent,
        Kind::AgentRefused { class } => match class.as_bytes() {
            b"CommandNotFound" | b"CommandDisabled" => C::Permanent,
            _ => C::Transient,
        },
        Kind::Unauthenticated
        | Kind::Forbidden { .. }
        | Kind::ForbiddenTag { .. }
        | Kind::RootOnly
        | Kind::TokenUnusable => C::Unauthorized,
        Kind::TaskInterrupted | Kind::TaskUnexpected | Kind::TaskUnlisted => C::OutcomeUnknown,
        Kind::RequestRefused | Kind::UnexpectedAnswer => C::Internal,
    }
}
