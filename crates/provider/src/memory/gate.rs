//! The one gate that every mutating request goes through, and the log of what went through.

use egress_core::{ErrorClass, ProviderName};
use std::{fmt, time::Duration};
use tokio::time::Instant;

/// The mutating requests of this hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RequestKind {
    /// Brings a machine into being (a task).
    Clone,
    /// Stores a seed (a task; may run beside the clone).
    Upload,
    /// Attaches the seed; writes size, MAC and configuration.
    Configure,
    /// Starts a machine (a task).
    Start,
    /// Stops a machine at once, deaf guest or not (a task).
    Stop,
    /// Removes a machine with its disks (a task).
    Destroy,
    /// Takes the seed out of a machine.
    Detach,
    /// Deletes a stored seed.
    DeleteSeed,
}

impl RequestKind {
    /// Every kind, in the order of a machine's life.
    pub const ALL: [Self; 8] = [
        Self::Clone,
        Self::Upload,
        Self::Configure,
        Self::Start,
        Self::Stop,
        Self::Destroy,
        Self::Detach,
        Self::DeleteSeed,
    ];
    /// The kind as the step of a handle.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Clone => "clone",
            Self::Upload => "upload",
            Self::Configure => "configure",
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Destroy => "destroy",
            Self::Detach => "detach",
            Self::DeleteSeed => "delete-seed",
        }
    }
}

impl fmt::Display for RequestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One mutating request: what the gate is asked about and what the log keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it was sent; at the gate: when the caller got there.
    pub at: Instant,
    /// Which [`Memory`](super::Memory) sent it, in the order they were made, from 1.
    pub client: u32,
    /// The provider that client stands for.
    pub provider: ProviderName,
    /// What it asks for.
    pub kind: RequestKind,
    /// The slot it is about.
    pub slot: u32,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} by {}#{}",
            self.kind, self.slot, self.provider, self.client
        )
    }
}

/// What becomes of one mutating request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It arrives and is answered.
    Pass,
    /// It arrives and is answered with this error; nothing changes.
    Refuse {
        /// The class of the error.
        class: ErrorClass,
        /// What the hypervisor says.
        said: String,
    },
    /// It is sent and the connection breaks: the caller gets `OutcomeUnknown`.
    LoseAnswer {
        /// How long after it was sent it has its effect; `None`: never.
        lands: Option<Duration>,
    },
    /// It is never sent and the caller is never answered: a crash before the effect, once the
    /// caller's future is dropped. A caller that stays runs into its deadline.
    HangBefore,
    /// It has its effect (a clone only after [`Physics::birth_lag`](super::Physics)) and the
    /// caller is never answered: a crash after the effect, once its future is dropped.
    HangAfter,
    /// It has its effect so long after it was sent, and the caller is never answered: a crash
    /// while the request is on its way.
    HangLate {
        /// How long after it was sent it has its effect.
        lands: Duration,
    },
}

/// Decides over every mutating request. While it takes its time the caller counts as frozen:
/// no deadline runs, and permit and proof are asked only afterwards.
#[async_trait::async_trait]
pub trait Gate: Send + Sync {
    /// What becomes of this request.
    async fn decide(&self, request: &Request) -> Verdict;
}
