//! What `check` found.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The closed set of reasons of a provider's readiness.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum CheckReason { $($(#[$doc])* $name),* }
        impl CheckReason {
            /// Every reason.
            pub const ALL: &[Self] = &[$(Self::$name),*];
            /// The reason as people see it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }
    };
}

reasons! {
    /// Nothing stands in the way.
    Ready,
    /// No answer from the hypervisor.
    Unreachable,
    /// The certificate is not trusted, not valid now, or for another name.
    CertificateInvalid,
    /// The credentials are missing, unreadable or refused.
    Unauthorized,
    /// The credentials lack privileges.
    MissingPrivileges,
    /// The template or base image cannot be used.
    TemplateInvalid,
    /// A storage or directory cannot be used.
    StorageUnavailable,
    /// A bridge, network or address cannot be used.
    NetworkInvalid,
    /// The resource pool cannot be used.
    PoolInvalid,
    /// The range of slots cannot be used.
    RangeInvalid,
    /// A configured host is not there.
    NodeInvalid,
    /// The hypervisor's version is not supported.
    VersionUnsupported,
    /// The domain type is not offered.
    DomainTypeInvalid,
    /// Tags of ours are not allowed.
    TagNotAllowed,
    /// The credentials see only a part of the machines.
    VisibilityLimited,
    /// The hypervisor's clock is off.
    ClockSkewed,
    /// The cluster has no quorum.
    NoQuorum,
    /// Another cluster answers than the recorded one.
    ClusterChanged,
    /// Little room is left.
    LowCapacity,
    /// The provider's block of the configuration cannot be used.
    ConfigInvalid,
}

impl fmt::Display for CheckReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Only errors make a provider not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing.
    Warning,
    /// No machine can be made until it is mended.
    Error,
}

/// One thing that `check` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckFinding {
    /// Its closed reason.
    pub reason: CheckReason,
    /// Whether it stands in the way.
    pub severity: Severity,
    /// The field of the provider's block of the configuration that it is about, as a path within
    /// the block (`reserve.memoryMiB`); `None`: it is about no field.
    pub field: Option<String>,
    /// What was found, for people.
    pub found: String,
    /// What to do about it, for people.
    pub remedy: String,
}

/// The answer of `check`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The hypervisor's version, as it says itself.
    pub version: Option<String>,
    /// All findings; none means ready.
    pub findings: Vec<CheckFinding>,
    /// How many places nobody was seen to hold; `None` where places have no number, or could not
    /// be looked at. A place is not yet room: memory and storage are findings.
    pub free_slots: Option<u64>,
}

impl CheckFinding {
    /// The same, about this field of the block.
    #[must_use]
    pub fn at(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }
}

impl Report {
    /// The reason that stands for the whole report: that of the first error, else `Ready`.
    pub fn reason(&self) -> CheckReason {
        self.findings
            .iter()
            .find(|f| f.severity == Severity::Error)
            .map_or(CheckReason::Ready, |f| f.reason)
    }
}
