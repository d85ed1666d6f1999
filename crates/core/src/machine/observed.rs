//! What a look at one machine can show.

use super::{ConfigHash, Host};
use serde::{Deserialize, Serialize};
use std::{fmt, net::IpAddr, time::Duration};

/// Why a machine does not run as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StopReason {
    /// It exists but was never configured and started to the end: `create` resumes it.
    HalfMade,
    /// Something or someone stopped it.
    PoweredOff,
    /// It ended by a fault of its own.
    Crashed,
    /// An admin paused it.
    Paused,
    /// An admin hibernated it.
    Hibernated,
    /// It is stuck on its storage.
    IoError,
    /// It has no guest agent: it can never report an address.
    NoAgent,
    /// The hypervisor says that it can never report an address.
    NeverReported,
}

impl StopReason {
    /// The reason as people see it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HalfMade => "HalfMade",
            Self::PoweredOff => "PoweredOff",
            Self::Crashed => "Crashed",
            Self::Paused => "Paused",
            Self::Hibernated => "Hibernated",
            Self::IoError => "IoError",
            Self::NoAgent => "NoAgent",
            Self::NeverReported => "NeverReported",
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a running machine says of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Addresses {
    /// It reported these, IPv4 and IPv6, best first, and serves its proxy on `port`.
    Reported {
        /// The addresses of the NIC we configured.
        addresses: Vec<IpAddr>,
        /// Where its proxy listens, where the provider chose the port; `None`: the spec's.
        port: Option<u16>,
    },
    /// It reported before and is silent now: the recorded address serves while traffic proves it.
    Unreported,
}

impl Addresses {
    /// The best reported address, if any is reported.
    pub fn best(&self) -> Option<IpAddr> {
        match self {
            Self::Reported { addresses, .. } => addresses.first().copied(),
            Self::Unreported => None,
        }
    }
}

/// The state of the machine at a claim, as one complete look shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineState {
    /// A complete look shows no machine of this key, neither at the slot nor elsewhere.
    Absent,
    /// A task of the hypervisor works on it (deleting included).
    InProgress {
        /// The step, in the provider's words.
        step: String,
    },
    /// Started; no address yet.
    Provisioning,
    /// Running with its full configuration.
    Running(Addresses),
    /// Not running as it should.
    Stopped(StopReason),
    /// Listed, but what it is cannot be decided now.
    Unknown {
        /// Why, for people.
        why: String,
    },
    /// The slot holds a machine that is proven someone else's.
    Foreign,
    /// The machine has our name but not our mark: never modified.
    NotOwned {
        /// The mark line that an admin can restore to hand it back to us.
        restore: String,
    },
}

impl MachineState {
    /// A short word for people and logs.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::InProgress { .. } => "in progress",
            Self::Provisioning => "provisioning",
            Self::Running(_) => "running",
            Self::Stopped(_) => "stopped",
            Self::Unknown { .. } => "unknown",
            Self::Foreign => "foreign",
            Self::NotOwned { .. } => "not owned",
        }
    }
}

/// One look at one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedMachine {
    /// Its state.
    pub state: MachineState,
    /// The host it lives on now.
    pub host: Option<Host>,
    /// How long it has been up.
    pub uptime: Option<Duration>,
    /// When it was made, as the provider's `created-at` axis says.
    pub created_at: Option<jiff::Timestamp>,
    /// The configuration it was made from, as its mark says.
    pub config_hash: Option<ConfigHash>,
    /// The attempt that made it, as its mark says; `None` where the mark could not be read.
    pub attempt: Option<u32>,
    /// A lock or task that holds a running machine, for people (`backup`).
    pub busy: Option<String>,
    /// The MAC of its NIC, once the provider has read it.
    pub mac: Option<String>,
}

impl ObservedMachine {
    /// A look that shows this state and nothing more.
    pub const fn only(state: MachineState) -> Self {
        Self {
            state,
            host: None,
            uptime: None,
            created_at: None,
            config_hash: None,
            attempt: None,
            busy: None,
            mac: None,
        }
    }
}
