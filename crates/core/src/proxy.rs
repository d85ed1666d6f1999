//! One Proxy as it is wanted, and the world around it as one look shows it.

use crate::{
    finding::Finding,
    history::History,
    machine::{
        Claim, ConfigHash, ErrorClass, Installation, MachineSize, MachineState, MachineUid,
        ObservedMachine, ProviderName, ProxyId, Record, StopReason,
    },
};
use ipnet::IpNet;
use std::{net::SocketAddr, time::Duration};

/// Where a proxy's credentials come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AuthSource {
    /// Made by us, once, and kept.
    Generated,
    /// A Secret of the user's, by name, in the Proxy's namespace.
    Secret(String),
    /// No credentials; the client list alone protects it.
    None,
}

/// What kind of object holds a user's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceKind {
    /// A `v1 Secret`.
    Secret,
    /// A `v1 ConfigMap`.
    ConfigMap,
}

impl SourceKind {
    /// The kind as manifests have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }
}

/// Where more cloud-config for a machine is written: one key of an object in the Proxy's
/// namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UserDataRef {
    /// What kind of object it is.
    pub kind: SourceKind,
    /// The object's name.
    pub name: String,
    /// The key within it.
    pub key: String,
}

impl UserDataRef {
    /// The object as people are told of it: `ConfigMap shop/extra`.
    pub fn named(&self, id: &ProxyId) -> String {
        format!("{} {}/{}", self.kind.as_str(), id.namespace(), self.name)
    }
}

/// What a user asked for, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySpec {
    /// The provider that makes the machine.
    pub provider: ProviderName,
    /// The machine's size.
    pub size: MachineSize,
    /// The proxy's port; `None` leaves it to the provider.
    pub port: Option<u16>,
    /// The networks whose clients may connect; empty means any.
    pub clients: Vec<IpNet>,
    /// Where credentials come from.
    pub auth: AuthSource,
    /// Where more cloud-config for the machine is written; it is read when one is made.
    pub user_data: Option<UserDataRef>,
    /// How often a running proxy is looked at.
    pub probe_interval: Duration,
    /// How long one probe may take.
    pub probe_timeout: Duration,
    /// How many probes in a row must fail before a proven proxy counts as not serving.
    pub failure_threshold: u32,
    /// Fingerprint over the user's machine, proxy and userData fields.
    pub config_hash: ConfigHash,
}

/// What is to become of a Proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// It should run like this.
    Run(ProxySpec),
    /// Nothing may be changed until the user lifts the pause.
    Paused(ProxySpec),
    /// The manifest cannot be accepted: say so, and leave what exists alone.
    Hold(Vec<Finding>),
    /// It should be gone.
    Delete,
    /// It should be forgotten without touching the machine.
    Abandon,
}

/// One Proxy as it is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// Which one.
    pub proxy: ProxyId,
    /// The UID a new record is made with; an existing record keeps its own.
    pub uid: MachineUid,
    /// This deployment.
    pub installation: Installation,
    /// The generation of the manifest, for the status.
    pub generation: i64,
    /// What is to become of it.
    pub intent: Intent,
}

impl Desired {
    /// What the user asked for, unless it should go or cannot be read.
    pub const fn spec(&self) -> Option<&ProxySpec> {
        match &self.intent {
            Intent::Run(spec) | Intent::Paused(spec) => Some(spec),
            Intent::Hold(_) | Intent::Delete | Intent::Abandon => None,
        }
    }
}

/// A failed call, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What may be done about it.
    pub class: ErrorClass,
    /// What was said, for people; never secret.
    pub text: String,
}

/// Our memory of this Proxy, as far as it could be read.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one a pass, and nearly always `Held`"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// There is none: nothing was ever begun, or all is gone.
    Nothing,
    /// This is it.
    Held(Record),
    /// It is there and cannot be read; the text says what to do.
    Unreadable(String),
    /// It was taken away, and what was asked for in its name may still come.
    Lost {
        /// What to do.
        text: String,
        /// How much longer.
        left: Duration,
    },
}

impl Recorded {
    /// The record, if it could be read.
    pub const fn record(&self) -> Option<&Record> {
        match self {
            Self::Held(record) => Some(record),
            Self::Nothing | Self::Unreadable(_) | Self::Lost { .. } => None,
        }
    }
    /// The present claim, if there is one.
    pub fn claim(&self) -> Option<&Claim> {
        self.record().and_then(|r| r.claim.as_ref())
    }
}

/// What the plan needs to know of the provider in question: the claim's, else the wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderSight {
    /// The configuration names no such provider.
    Unconfigured,
    /// It is there.
    Configured {
        /// Its kind, as it stands in a `providerID`.
        kind: &'static str,
        /// How long an unknown create stays unsettled.
        settle: Duration,
        /// How long a started machine may take to report an address.
        boot_timeout: Duration,
        /// Whether a seed has to be sealed away after the first proof.
        seals: bool,
    },
}

/// The result of a question that may not have been asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look<T> {
    /// There was no reason to ask.
    NotAsked,
    /// The answer.
    Seen(T),
    /// No answer.
    Failed(Trouble),
}

impl<T> Look<T> {
    /// The answer, if there is one.
    pub const fn seen(&self) -> Option<&T> {
        match self {
            Self::Seen(t) => Some(t),
            Self::NotAsked | Self::Failed(_) => None,
        }
    }
}

/// Whether so many of the provider's machines vanished at once that the provider's view is
/// to be doubted (E5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Not asked, or few enough.
    Normal,
    /// Too many are missing; no create until three listings over 60 s agree.
    MassDisappearance {
        /// Machines missing.
        absent: u32,
        /// Machines that should be there.
        of: u32,
    },
}

/// Why a proxy did not answer as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServingFault {
    /// The connection was refused or reset.
    PortClosed,
    /// Our credentials were refused.
    AuthRejected,
    /// Something answered, but not with our key.
    WrongProxy,
    /// No answer within the probe's time.
    Slow,
}

/// What a request to the proxy itself showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Serving {
    /// Not asked: no address, or nothing to ask with.
    NotAsked,
    /// It answered with our key.
    Answered {
        /// Where.
        endpoint: SocketAddr,
        /// The generation of the credentials in force there.
        credential_generation: u32,
    },
    /// It did not.
    Failed {
        /// Where it was asked.
        endpoint: SocketAddr,
        /// Why.
        fault: ServingFault,
        /// What was seen, for people.
        text: String,
    },
}

/// Whether the proxy's credentials are at hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSight {
    /// None are needed, or they are there.
    AtHand,
    /// None were made yet; creating makes them.
    NotMade,
    /// The password of a machine that runs is lost.
    Lost,
    /// The user's Secret is missing or lacks a key; the text says which.
    Missing(String),
}

/// The world around one Proxy. Errors of looking are data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// This process's monotonic clock.
    pub now: Duration,
    /// Our memory.
    pub recorded: Recorded,
    /// The provider in question.
    pub provider: ProviderSight,
    /// The machine at the claim; asked when there is a claim.
    pub machine: Look<ObservedMachine>,
    /// A new claim; asked when there is none and one is wanted. For a Proxy that should be
    /// gone and has no record: the claim of a machine that bears its mark all the same.
    pub offer: Look<Claim>,
    /// Whether many machines vanished at once; asked when a known machine is absent.
    pub presence: Presence,
    /// Whether the proxy answers; asked when it runs and has an address.
    pub serving: Serving,
    /// The credentials.
    pub credential: CredentialSight,
    /// Which of the user's objects lacks the cloud-config of the next machine, and what to do;
    /// `None`: nothing is missing, or no machine is to be made now.
    pub user_data_missing: Option<String>,
    /// Whether the machine that is to follow could be made; asked where one that runs was made
    /// for another provider or from another configuration than is wanted now.
    pub next: Look<()>,
    /// What this process remembers of earlier passes.
    pub history: History,
}

impl Observed {
    /// Whether a create that follows makes the machine, so that all that goes into it has to be
    /// at hand, and does not only start one that was finished before.
    pub fn is_unmade(&self) -> bool {
        self.recorded.claim().is_none()
            || self.machine.seen().is_some_and(|machine| {
                matches!(
                    machine.state,
                    MachineState::Absent
                        | MachineState::InProgress { .. }
                        | MachineState::Stopped(StopReason::HalfMade)
                )
            })
    }
    /// Why a machine that runs and should be another one is not taken away yet, if it is not:
    /// the next one could not be made.
    pub fn kept_for(&self) -> Option<&str> {
        let machine = self.machine.seen()?;
        if !matches!(machine.state, MachineState::Running(_)) {
            return None;
        }
        match (&self.user_data_missing, &self.credential, &self.next) {
            (Some(what), ..) | (None, CredentialSight::Missing(what), _) => Some(what),
            (None, _, Look::Failed(trouble)) => Some(&trouble.text),
            _ => None,
        }
    }
    /// Whether the machine was made for another provider or from another configuration than
    /// this.
    pub fn is_outdated(&self, spec: &ProxySpec) -> bool {
        let hash = self.machine.seen().and_then(|m| m.config_hash.as_ref());
        let elsewhere = self
            .recorded
            .claim()
            .is_some_and(|c| c.provider != spec.provider);
        elsewhere || hash.is_some_and(|hash| *hash != spec.config_hash)
    }
}
