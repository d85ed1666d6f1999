//! Why a call gave no result.

use egress_core::ErrorClass;
use std::fmt;

/// What libvirt, or the way to it, meant. Closed: the table in [`super::errors`] sorts every
/// known error into one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No domain of this name or UUID.
    NoDomain,
    /// The domain bears no metadata of that namespace.
    NoMetadata,
    /// Another domain has the name or the UUID.
    DomainTaken,
    /// The domain is not in a state for that: not running, already running.
    WrongState,
    /// The guest's agent does not answer.
    AgentSilent,
    /// The domain has no channel for an agent.
    NoAgent,
    /// No pool of this name.
    NoPool,
    /// The pool is not active, or works on something else.
    PoolInactive,
    /// No volume of this name.
    NoVolume,
    /// A volume of this name is there already.
    VolumeTaken,
    /// No room where a volume or a file should go.
    NoRoom,
    /// No network of this name.
    NoNetwork,
    /// The network is not active.
    NetworkInactive,
    /// A lock on the domain, held by another call for too long.
    Busy,
    /// This libvirt cannot do that.
    Unsupported,
    /// The description was refused.
    DescriptionRefused,
    /// The host could not do it: QEMU did not start, a file is missing.
    HostFailed,
    /// The server wants another way to authenticate, or refuses this one.
    Unauthenticated,
    /// A privilege is missing.
    AccessDenied,
    /// An error that the table does not know.
    Unclassified,
    /// Never sent: there is no connection.
    NotSent,
    /// Sent, and no answer came.
    CutOff,
    /// Another authority signed the server's certificate.
    CertificateUntrusted,
    /// The server's certificate is not valid at this time.
    CertificateExpired,
    /// The server's certificate is for another name.
    CertificateForOthers,
    /// The server's certificate is not acceptable for another reason.
    CertificateInvalid,
    /// The server does not accept our certificate.
    CertificateRefused,
    /// The host does not let our ssh in.
    LoginRefused,
    /// The host shows another ssh key than the known one.
    HostKeyChanged,
    /// The host shows an ssh key that nobody vouched for.
    HostKeyUnknown,
    /// A file with certificates or keys cannot be used.
    FilesUnusable,
    /// The answer has not the shape it should have.
    UnexpectedAnswer,
}

/// A call that gave no result: what was asked, what was answered, and what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What the caller may do.
    pub class: ErrorClass,
    /// What it means.
    pub kind: Kind,
    /// libvirt's own number of the error, if it answered.
    pub code: Option<i32>,
    /// The procedure, or the way to the host, it is about.
    pub asked: String,
    /// What the other side said, in one line.
    pub said: String,
}

impl Failure {
    /// No connection could be made, or none was left: nothing was sent.
    pub fn not_sent(asked: impl Into<String>, said: impl Into<String>) -> Self {
        Self {
            class: ErrorClass::Transient,
            kind: Kind::NotSent,
            code: None,
            asked: asked.into(),
            said: said.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "{}: {} (libvirt's error {code})", self.asked, self.said),
            None => write!(f, "{}: {}", self.asked, self.said),
        }
    }
}

impl std::error::Error for Failure {}
