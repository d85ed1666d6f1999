//! Why a call gave no result.

use super::tls::CertificateTrouble;
use egress_core::ErrorClass;
use std::{collections::BTreeMap, fmt};

/// A config lock as the wire names it (§5.1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lock {
    /// A backup runs; the machine may be running.
    Backup,
    /// A clone is being written here.
    Clone,
    /// It is being created or restored.
    Create,
    /// A half-finished destroy: its disks are gone.
    Destroyed,
    /// A disk is being imported.
    Import,
    /// It moves to another node.
    Migrate,
    /// It goes back to a snapshot.
    Rollback,
    /// A snapshot is being taken.
    Snapshot,
    /// A snapshot is being removed.
    SnapshotDelete,
    /// Its state lies on disk: hibernated.
    Suspended,
    /// Its state is being written to disk.
    Suspending,
    /// A word this client does not know.
    Other(String),
}

impl Lock {
    /// From the word on the wire.
    pub fn parse(word: &str) -> Self {
        match word {
            "backup" => Self::Backup,
            "clone" => Self::Clone,
            "create" => Self::Create,
            "destroyed" => Self::Destroyed,
            "import" => Self::Import,
            "migrate" => Self::Migrate,
            "rollback" => Self::Rollback,
            "snapshot" => Self::Snapshot,
            "snapshot-delete" => Self::SnapshotDelete,
            "suspended" => Self::Suspended,
            "suspending" => Self::Suspending,
            other => Self::Other(other.to_owned()),
        }
    }
    /// The word on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Backup => "backup",
            Self::Clone => "clone",
            Self::Create => "create",
            Self::Destroyed => "destroyed",
            Self::Import => "import",
            Self::Migrate => "migrate",
            Self::Rollback => "rollback",
            Self::Snapshot => "snapshot",
            Self::SnapshotDelete => "snapshot-delete",
            Self::Suspended => "suspended",
            Self::Suspending => "suspending",
            Self::Other(word) => word,
        }
    }
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What Proxmox VE, or the way to it, meant. Closed: the table in [`super::errors`] sorts
/// every known text into one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The VMID of a clone is in use, by whatever guest on whatever node (F4).
    VmidTaken,
    /// No such guest **on that node**; it may be on another one (F2, §10).
    NotExistOnNode,
    /// Another worker held a lock for too long: the machine's, the storage's, or the user file's.
    LockTimeout,
    /// The config carries this lock.
    Locked(Lock),
    /// The config changed since it was read.
    DigestMismatch,
    /// The machine is protected from removal.
    ProtectionMode,
    /// HA manages the machine and the request does not allow for it.
    HaManaged,
    /// The machine is not running.
    NotRunning,
    /// A start found it running.
    AlreadyRunning,
    /// A destroy found it running.
    IsRunning,
    /// The machine is a template.
    IsTemplate,
    /// A disk has linked clones, or a template is in use by them.
    VolumeInUse,
    /// A new disk's name is taken by one that outlived its machine: this VMID cannot be used.
    VolumeExists,
    /// QEMU did not start, or stopped answering.
    QemuTrouble,
    /// The guest's agent gave no answer within 3 s.
    AgentNotRunning,
    /// The agent answered the ping, then not the question.
    AgentSilent,
    /// The config has no `agent` key (F5).
    NoAgentConfigured,
    /// The agent refused the question: 200 with an error object (§9.3).
    AgentRefused {
        /// The agent's error class, such as `CommandNotFound`.
        class: String,
    },
    /// The token is missing, wrong, expired or disabled (F22).
    Unauthenticated,
    /// A privilege is missing.
    Forbidden {
        /// The ACL path, when it is told.
        path: Option<String>,
        /// The first missing privilege, or alternatives joined with `|`, when told.
        privilege: Option<String>,
    },
    /// The datacenter does not let this token add or remove a tag (§3.5).
    ForbiddenTag {
        /// The tag.
        tag: String,
    },
    /// A key that only root may write.
    RootOnly,
    /// The pool does not exist.
    PoolMissing,
    /// The cluster has no quorum: nothing can be written.
    NoQuorum,
    /// The API server cannot reach the node, and did not deliver the request.
    NodeUnreachable,
    /// No such node.
    NodeUnknown,
    /// The node's API server or cluster file system is down.
    NodeTrouble,
    /// The storage is disabled, offline or not for this node.
    StorageUnavailable,
    /// No such storage.
    StorageMissing,
    /// The storage cannot hold this kind of content.
    StorageUnfit,
    /// No room on the storage, as some lower program puts it.
    StorageFull,
    /// The volume does not exist.
    VolumeMissing,
    /// A disk, a slot or a bridge that the request names does not exist or is in use otherwise.
    DeviceUnfit,
    /// A clone cannot go to that node or storage.
    CannotPlace,
    /// The upload's content was refused.
    UploadRefused,
    /// The node knows no such task; asked on another node, or rotated away.
    NoSuchTask,
    /// The task was stopped by a signal.
    TaskInterrupted,
    /// Nobody knows how the task ended.
    TaskUnexpected,
    /// The worker never ran.
    TaskNotBegun,
    /// The task runs, but its id was lost (§1.6).
    TaskUnlisted,
    /// A step inside the task failed with a text of some lower program.
    TaskFailed,
    /// A parameter was refused.
    ParameterInvalid {
        /// What was said about each.
        fields: BTreeMap<String, String>,
    },
    /// The API has no such call, or refused the way it was sent.
    RequestRefused,
    /// The answer is not one of Proxmox VE: a proxy, a portal, another program.
    SomethingInFront,
    /// Sent, and no whole answer came.
    CutOff,
    /// Never sent: no connection.
    NotSent,
    /// The server's certificate is not acceptable.
    CertificateInvalid(Box<CertificateTrouble>),
    /// The file with the certificate authorities cannot be used.
    CaUnusable,
    /// The token file cannot be used.
    TokenUnusable,
    /// The answer came from the API and has not the shape it should have.
    UnexpectedAnswer,
    /// An error text that the table does not know.
    Unclassified,
}

impl Kind {
    /// The kind as it stands in logs and metrics, without what it carries.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::VmidTaken => "VmidTaken",
            Self::NotExistOnNode => "NotExistOnNode",
            Self::LockTimeout => "LockTimeout",
            Self::Locked(_) => "Locked",
            Self::DigestMismatch => "DigestMismatch",
            Self::ProtectionMode => "ProtectionMode",
            Self::HaManaged => "HaManaged",
            Self::NotRunning => "NotRunning",
            Self::AlreadyRunning => "AlreadyRunning",
            Self::IsRunning => "IsRunning",
            Self::IsTemplate => "IsTemplate",
            Self::VolumeInUse => "VolumeInUse",
            Self::VolumeExists => "VolumeExists",
            Self::QemuTrouble => "QemuTrouble",
            Self::AgentNotRunning => "AgentNotRunning",
            Self::AgentSilent => "AgentSilent",
            Self::NoAgentConfigured => "NoAgentConfigured",
            Self::AgentRefused { .. } => "AgentRefused",
            Self::Unauthenticated => "Unauthenticated",
            Self::Forbidden { .. } => "Forbidden",
            Self::ForbiddenTag { .. } => "ForbiddenTag",
            Self::RootOnly => "RootOnly",
            Self::PoolMissing => "PoolMissing",
            Self::NoQuorum => "NoQuorum",
            Self::NodeUnreachable => "NodeUnreachable",
            Self::NodeUnknown => "NodeUnknown",
            Self::NodeTrouble => "NodeTrouble",
            Self::StorageUnavailable => "StorageUnavailable",
            Self::StorageMissing => "StorageMissing",
            Self::StorageUnfit => "StorageUnfit",
            Self::StorageFull => "StorageFull",
            Self::VolumeMissing => "VolumeMissing",
            Self::DeviceUnfit => "DeviceUnfit",
            Self::CannotPlace => "CannotPlace",
            Self::UploadRefused => "UploadRefused",
            Self::NoSuchTask => "NoSuchTask",
            Self::TaskInterrupted => "TaskInterrupted",
            Self::TaskUnexpected => "TaskUnexpected",
            Self::TaskNotBegun => "TaskNotBegun",
            Self::TaskUnlisted => "TaskUnlisted",
            Self::TaskFailed => "TaskFailed",
            Self::ParameterInvalid { .. } => "ParameterInvalid",
            Self::RequestRefused => "RequestRefused",
            Self::SomethingInFront => "SomethingInFront",
            Self::CutOff => "CutOff",
            Self::NotSent => "NotSent",
            Self::CertificateInvalid(_) => "CertificateInvalid",
            Self::CaUnusable => "CaUnusable",
            Self::TokenUnusable => "TokenUnusable",
            Self::UnexpectedAnswer => "UnexpectedAnswer",
            Self::Unclassified => "Unclassified",
        }
    }
}

/// A call that gave no result: what was asked, what was answered, and what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What the caller may do.
    pub class: ErrorClass,
    /// What it means.
    pub kind: Kind,
    /// The status code, if there was an answer.
    pub status: Option<u16>,
    /// Method and path of the request, or the task, it is about; never a header.
    pub asked: String,
    /// What the other side said, in one line; never holds the token.
    pub said: String,
    /// Whether the request may have reached the API: `false` is a proof that it had no effect.
    pub sent: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "{}: {status} {}", self.asked, self.said),
            None => write!(f, "{}: {}", self.asked, self.said),
        }
    }
}

impl std::error::Error for Failure {}
