//! What differs between providers, as data. Each field is read by the engine or the suite;
//! the full set of axes is answered in the provider's spec document.

use std::time::Duration;

/// How create comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateKind {
    /// The calls have their effect when they return.
    Synchronous,
    /// The hypervisor works on in tasks that can be asked for.
    Task,
    /// It shows up some time after the call.
    Eventual,
}

/// Whether a create whose outcome is unknown may have its effect later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateCreate {
    /// Once the call is known to have ended, nothing appears any more.
    Never,
    /// It may still appear, at the same slot, for so long after it was last sent.
    SameSlot {
        /// The settle bound.
        settle: Duration,
    },
}

impl LateCreate {
    /// How long an unknown outcome stays unsettled.
    pub const fn settle(self) -> Duration {
        match self {
            Self::Never => Duration::ZERO,
            Self::SameSlot { settle } => settle,
        }
    }
}

/// Where addresses come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSource {
    /// Known as soon as the machine runs.
    Immediate,
    /// The guest's agent reports them.
    Agent,
    /// The network's leases show them.
    Lease,
}

/// How the machine gets its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserData {
    /// A field of the machine itself.
    Native,
    /// A seed volume, to be sealed away after the first proof.
    NocloudIso,
    /// A file or arguments of the process.
    ProcessArguments,
}

/// On how many hosts one provider's machines live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// One.
    SingleHost,
    /// Several; a machine may move between them.
    MultiHost,
}

/// See [`crate::Provider::capabilities`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// How create comes about.
    pub create: CreateKind,
    /// Whether an unknown create may land late.
    pub late_create: LateCreate,
    /// Where addresses come from.
    pub address: AddressSource,
    /// How the machine gets its configuration.
    pub user_data: UserData,
    /// Single or several hosts.
    pub placement: Placement,
    /// Whether loopback addresses may be reported (G3).
    pub loopback: bool,
    /// From the first sight of a started machine without an address until `NeverReported`.
    pub boot_timeout: Duration,
}
