//! The closed set of reasons, and the sentence for everything that is waited for.

use super::in_words;
use crate::{
    machine::{ErrorClass, Retirement, StopReason},
    plan::Waiting,
};
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// Why a condition is as it is. An event's reason is a condition's reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Reason { $($(#[doc = $doc])* $name),* }
        impl Reason {
            /// Every reason.
            pub const ALL: &[Self] = &[$(Self::$name),*];
            /// The reason as people see it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
            /// What it means, in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),*)),* }
            }
        }
        impl fmt::Display for Reason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

reasons! {
    /// The manifest is sound and its provider is configured.
    Accepted,
    /// The manifest has faults; what exists is left alone.
    Invalid,
    /// The configuration names no such provider.
    ProviderUnconfigured,
    /// The record belongs to another installation; nothing is touched.
    InstallationChanged,
    /// The record cannot be read; nothing is touched.
    RecordUnreadable,
    /// The machine runs and has reported an address.
    Provisioned,
    /// Nothing was begun yet.
    Pending,
    /// The user paused the Proxy.
    Suspended,
    /// The user's Secret is missing or incomplete.
    SecretMissing,
    /// The Secret or ConfigMap that `userData` refers to is missing, or lacks the key.
    UserDataMissing,
    /// The provider is making the machine.
    Creating,
    /// A task of the hypervisor works on the machine.
    TaskRunning,
    /// The machine is started and has reported no address yet.
    NoAddress,
    /// An admin paused the machine; it is left alone.
    Paused,
    /// An admin hibernated the machine; it is left alone.
    Hibernated,
    /// The machine is stuck on its storage; it is not restarted.
    IoError,
    /// The machine was stopped and is being started again.
    PoweredOff,
    /// The machine crashed and is being started again.
    Crashed,
    /// The machine was half made and is being finished.
    HalfMade,
    /// The machine stopped three times within an hour and is replaced.
    CrashLoop,
    /// The machine has no guest agent and is replaced.
    NoAgent,
    /// The machine reported no address in time and is replaced.
    NeverReported,
    /// The spec changed and the machine is replaced.
    SpecChanged,
    /// The Proxy moved to another provider and the machine is replaced.
    ProviderChanged,
    /// What is wanted changed, and the next machine could not be made; the one that runs stays.
    ReplacementRefused,
    /// The machine was deleted by someone else and is made anew.
    RemovedOutside,
    /// Someone else holds the slot; another one is taken.
    SlotTaken,
    /// Faults follow each other; the next machine is made later.
    ReplaceBackoff,
    /// Too many machines of the provider are missing at once; nothing is created.
    MassDisappearance,
    /// Nothing is there, and a create sent earlier may still land.
    CreateMayLand,
    /// What the machine is cannot be decided now.
    Undecided,
    /// The machine has our name and not our mark; it is not touched.
    NotOwned,
    /// The Proxy is being deleted.
    Deleting,
    /// A lock or task holds the machine.
    Busy,
    /// The hypervisor or the way to it has trouble.
    Transient,
    /// A request may have had its effect; it is looked at first.
    OutcomeUnknown,
    /// The hypervisor has no room.
    Capacity,
    /// Credentials or privileges are missing.
    Unauthorized,
    /// The request cannot succeed until spec or configuration change.
    Permanent,
    /// A person who looks after the hypervisor has to act.
    NeedsOperator,
    /// An answer that should not exist: a fault of ours.
    Internal,
    /// The Proxy is forgotten; its machine, if there is one, is left behind.
    Abandoned,
    /// The machine has an address and its proxy has not answered yet.
    Starting,
    /// The proxy answered with the machine's key.
    Serving,
    /// The machine is not known to run.
    NotProvisioned,
    /// The generated password is lost; the machine keeps running.
    CredentialLost,
    /// The connection to the proxy was refused or reset.
    PortClosed,
    /// The proxy refused our credentials.
    AuthRejected,
    /// Something answered at the address, but not with the machine's key.
    WrongProxy,
    /// The proxy did not answer in time.
    Slow,
    /// The proxy was not asked in the last pass.
    NotAsked,
    /// This version does not probe traffic through the proxy.
    NotProven,
    /// The proxy does not serve.
    NotServing,
}

impl From<ErrorClass> for Reason {
    fn from(class: ErrorClass) -> Self {
        match class {
            ErrorClass::Conflict => Self::SlotTaken,
            ErrorClass::NotOwned => Self::NotOwned,
            ErrorClass::Busy => Self::Busy,
            ErrorClass::Transient => Self::Transient,
            ErrorClass::OutcomeUnknown => Self::OutcomeUnknown,
            ErrorClass::Capacity => Self::Capacity,
            ErrorClass::Unauthorized => Self::Unauthorized,
            ErrorClass::Permanent => Self::Permanent,
            ErrorClass::NeedsOperator => Self::NeedsOperator,
            ErrorClass::Internal => Self::Internal,
        }
    }
}

impl From<StopReason> for Reason {
    fn from(reason: StopReason) -> Self {
        match reason {
            StopReason::HalfMade => Self::HalfMade,
            StopReason::PoweredOff => Self::PoweredOff,
            StopReason::Crashed => Self::Crashed,
            StopReason::Paused => Self::Paused,
            StopReason::Hibernated => Self::Hibernated,
            StopReason::IoError => Self::IoError,
            StopReason::NoAgent => Self::NoAgent,
            StopReason::NeverReported => Self::NeverReported,
        }
    }
}

impl From<Retirement> for Reason {
    fn from(why: Retirement) -> Self {
        match why {
            Retirement::SpecChanged => Self::SpecChanged,
            Retirement::ProviderChanged => Self::ProviderChanged,
            Retirement::CrashLoop => Self::CrashLoop,
            Retirement::NoAgent => Self::NoAgent,
            Retirement::NeverReported => Self::NeverReported,
            Retirement::SlotTaken => Self::SlotTaken,
            Retirement::Deleted => Self::Deleting,
        }
    }
}

/// The reason and the sentence for what is waited for.
impl Waiting {
    /// The reason that people read, and the message beside it.
    pub fn told(&self) -> (Reason, String) {
        of(self)
    }
}

pub(crate) fn of(waiting: &Waiting) -> (Reason, String) {
    match waiting {
        Waiting::Rejected(_) => (
            Reason::Invalid,
            "the manifest has faults; see Accepted".into(),
        ),
        Waiting::Suspended => (
            Reason::Suspended,
            "spec.paused is true: nothing is changed until it is lifted".into(),
        ),
        Waiting::RecordUnreadable(text) => (Reason::RecordUnreadable, text.clone()),
        Waiting::InstallationChanged(theirs) => (
            Reason::InstallationChanged,
            format!("the record belongs to installation {theirs:?}"),
        ),
        Waiting::ProviderUnconfigured => (
            Reason::ProviderUnconfigured,
            "its provider is not configured, so nothing can be seen or done: add it to the configuration; see Accepted".into(),
        ),
        Waiting::SecretMissing(what) => (Reason::SecretMissing, what.clone()),
        Waiting::UserDataMissing(what) => (Reason::UserDataMissing, what.clone()),
        Waiting::Trouble { trouble, .. } => (trouble.class.into(), trouble.text.clone()),
        Waiting::Creating { step } if step.is_empty() => {
            (Reason::Creating, "the machine is being made".into())
        }
        Waiting::Creating { step } => (
            Reason::Creating,
            format!("the machine is being made: {step}"),
        ),
        Waiting::TaskRunning { step } => (
            Reason::TaskRunning,
            format!("a task of the hypervisor works on the machine: {step}"),
        ),
        Waiting::NoAddress => (
            Reason::NoAddress,
            "the machine is started and has reported no address that others can reach yet: it \
             boots, waits for DHCP, or has no guest agent; its console shows which"
                .into(),
        ),
        Waiting::Stopped(StopReason::IoError) => (
            Reason::IoError,
            "the machine is stuck on its storage: make room or mend the storage, then resume it"
                .into(),
        ),
        Waiting::Stopped(reason) => (
            (*reason).into(),
            format!("someone left the machine {reason}: it is not touched until they resume it"),
        ),
        Waiting::Restarting { reason, count } => (
            (*reason).into(),
            format!(
                "the machine was found stopped and is started again (restart {count} within an hour)"
            ),
        ),
        Waiting::Undecided(why) => (Reason::Undecided, why.clone()),
        Waiting::NotOwned { restore } => (
            Reason::NotOwned,
            format!(
                "the machine has our name but not our mark and is not touched; if it is ours, \
                 restore this line on it: {restore}"
            ),
        ),
        Waiting::Replacing(why) => ((*why).into(), replacing(*why).to_owned()),
        Waiting::ReplacementRefused(why) => (
            Reason::ReplacementRefused,
            format!("the machine is not replaced before this is mended: {why}"),
        ),
        Waiting::RemovedOutside => (
            Reason::RemovedOutside,
            "the machine was deleted by someone else; a new one is made".into(),
        ),
        Waiting::SlotTaken => (
            Reason::SlotTaken,
            "someone else holds the slot; another one is claimed".into(),
        ),
        Waiting::ReplaceBackoff { left } => (
            Reason::ReplaceBackoff,
            format!(
                "machines failed one after another; the next is made in {}",
                in_words(*left)
            ),
        ),
        Waiting::MassDisappearance { absent, of } => (
            Reason::MassDisappearance,
            format!(
                "{absent} of {of} machines of this provider are missing at once: nothing is created \
                 until three listings over 60 s agree"
            ),
        ),
        Waiting::CreateMayLand { left } => (
            Reason::CreateMayLand,
            format!(
                "nothing of ours is there, but a create sent earlier may still land; settled in {}",
                in_words(*left)
            ),
        ),
        Waiting::Removing { step } if step.is_empty() => {
            (Reason::Deleting, "the machine is being removed".into())
        }
        Waiting::Removing { step } => (
            Reason::Deleting,
            format!("the machine is being removed: {step}"),
        ),
        Waiting::NotServing => (
            Reason::NotServing,
            "the proxy is being asked who it is".into(),
        ),
    }
}

/// Why a machine makes place for another one, and what becomes of it.
const fn replacing(why: Retirement) -> &'static str {
    match why {
        Retirement::SpecChanged => "the spec changed: the machine is removed, then made anew",
        Retirement::ProviderChanged => {
            "the Proxy moved to another provider: the machine is removed here, then made there"
        }
        Retirement::CrashLoop => {
            "the machine stopped three times within an hour: it is removed, then made anew"
        }
        Retirement::NoAgent => {
            "the machine has no guest agent and can never report an address: it is removed, then \
             made anew; install the agent in the template"
        }
        Retirement::NeverReported => {
            "the machine reported no address in time: it is removed, then made anew; look at the \
             network and the guest agent of the template"
        }
        Retirement::SlotTaken => {
            "someone else holds the slot: what we left there is removed, theirs is not touched, \
             and another slot is taken"
        }
        Retirement::Deleted => {
            "the Proxy was deleted and is declared again: the old machine is removed, then another \
             one made"
        }
    }
}
