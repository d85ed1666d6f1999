//! Where a Proxy stands, and what is waited for: data, so that nobody parses a sentence.

use crate::{
    finding::Finding,
    machine::{Retirement, StopReason},
    proxy::Trouble,
};
use std::time::Duration;

/// Where a Proxy stands, in one word.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum Phase {
    /// No machine is promised yet.
    Pending,
    /// A machine is promised or being made.
    Provisioning,
    /// The machine runs and has an address.
    Running,
    /// The machine still serves and takes nothing new.
    Draining,
    /// Machine and record are being removed.
    Deleting,
    /// Nothing more happens until a person acts.
    Failed,
    /// Nothing is left. Never shown: there is nothing to show it on.
    Gone,
}

impl Phase {
    /// Every phase that people can see.
    pub const SHOWN: [Self; 6] = [
        Self::Pending,
        Self::Provisioning,
        Self::Running,
        Self::Draining,
        Self::Deleting,
        Self::Failed,
    ];
    /// The phase as people see it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Provisioning => "Provisioning",
            Self::Running => "Running",
            Self::Draining => "Draining",
            Self::Deleting => "Deleting",
            Self::Failed => "Failed",
            Self::Gone => "Gone",
        }
    }
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The manifest cannot be accepted.
    Rejected(Vec<Finding>),
    /// The user paused the Proxy.
    Suspended,
    /// The record is there and cannot be read.
    RecordUnreadable(String),
    /// The record is of this other installation.
    InstallationChanged(String),
    /// The configuration names no such provider.
    ProviderUnconfigured,
    /// The user's Secret is missing or incomplete.
    SecretMissing(String),
    /// The cloud-config that the user refers to is missing.
    UserDataMissing(String),
    /// A call failed and is repeated when its class allows.
    Trouble {
        /// Whether it was a look: then nothing is known of the machine.
        looking: bool,
        /// What went wrong.
        trouble: Trouble,
    },
    /// The provider is making the machine.
    Creating {
        /// The step, in the provider's words; empty before the first answer.
        step: String,
    },
    /// A task of the hypervisor works on a machine that was finished before.
    TaskRunning {
        /// The step, in the provider's words.
        step: String,
    },
    /// The machine is started and has reported no address yet.
    NoAddress,
    /// The machine is stopped in a way that is an admin's doing or needs one.
    Stopped(StopReason),
    /// The machine was stopped and is being started again, for the n-th time in an hour.
    Restarting {
        /// Why it was stopped.
        reason: StopReason,
        /// Starts within the last hour, this one included.
        count: usize,
    },
    /// What the machine is cannot be decided now.
    Undecided(String),
    /// The machine has our name and not our mark.
    NotOwned {
        /// The line an admin can restore.
        restore: String,
    },
    /// The machine is being replaced.
    Replacing(Retirement),
    /// The machine was deleted by someone else; a new one is claimed.
    RemovedOutside,
    /// Someone else holds the slot; another one is claimed.
    SlotTaken,
    /// The machine should be another one, which could not be made, for this reason: it stays.
    ReplacementRefused(String),
    /// Faults follow each other: the next machine is made later.
    ReplaceBackoff {
        /// How long until then.
        left: Duration,
    },
    /// So many machines are missing at once that the provider's view is doubted.
    MassDisappearance {
        /// Machines missing.
        absent: u32,
        /// Machines that should be there.
        of: u32,
    },
    /// Nothing is there, and a create sent earlier may still land.
    CreateMayLand {
        /// How long until it is settled.
        left: Duration,
    },
    /// The machine is being deleted.
    Removing {
        /// The step, in the provider's words; empty before the first answer.
        step: String,
    },
    /// The proxy is being asked who it is.
    NotServing,
}
