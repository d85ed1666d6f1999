//! What a hypervisor is asked for, and what comes of it.

use super::{gate::RequestKind, machine::Configured};
use egress_core::{ErrorClass, Handle};
use std::sync::Arc;

/// A mutating request with all it carries.
#[derive(Clone, Debug)]
pub(super) enum Order {
    Clone {
        name: Arc<str>,
        text: Arc<str>,
    },
    Upload {
        seed: Arc<str>,
    },
    Configure {
        seed: Arc<str>,
        configured: Arc<Configured>,
    },
    Start,
    Stop,
    Destroy,
    Detach,
    DeleteSeed {
        seed: Arc<str>,
    },
}

impl Order {
    pub const fn kind(&self) -> RequestKind {
        match self {
            Self::Clone { .. } => RequestKind::Clone,
            Self::Upload { .. } => RequestKind::Upload,
            Self::Configure { .. } => RequestKind::Configure,
            Self::Start => RequestKind::Start,
            Self::Stop => RequestKind::Stop,
            Self::Destroy => RequestKind::Destroy,
            Self::Detach => RequestKind::Detach,
            Self::DeleteSeed { .. } => RequestKind::DeleteSeed,
        }
    }
}

/// A task that runs.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub order: Order,
}

impl Task {
    pub fn handle(&self, id: u64) -> Handle {
        Handle {
            step: self.order.kind().as_str().to_owned(),
            id: format!("task-{id}"),
        }
    }
}

/// The number in a handle's id.
pub(super) fn task_id(handle: &Handle) -> Option<u64> {
    handle.id.strip_prefix("task-")?.parse().ok()
}

/// A task that ended without its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub kind: RequestKind,
    /// It was killed: what it did before is not known.
    pub unexpected: bool,
}

/// What happens at a moment to come.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A task ends.
    Ends(u32, u64),
    /// A request arrives that was sent before.
    Lands(u32, Order),
    /// The search sees the text at a slot.
    Refresh(u32),
    /// A freed slot may be used again.
    Forget(u32),
}

/// What the hypervisor answers when it does not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub class: ErrorClass,
    pub said: String,
}

impl Trouble {
    pub fn new(class: ErrorClass, said: impl Into<String>) -> Self {
        Self {
            class,
            said: said.into(),
        }
    }
    pub fn gone() -> Self {
        Self::new(ErrorClass::Busy, "the machine is gone: look again")
    }
    pub fn no_quorum() -> Self {
        Self::new(ErrorClass::Transient, "the cluster has no quorum")
    }
    pub fn protected() -> Self {
        Self::new(
            ErrorClass::NeedsOperator,
            "the machine is protected against removal",
        )
    }
    pub fn full() -> Self {
        Self::new(ErrorClass::Capacity, "no room for another machine")
    }
    pub fn no_template() -> Self {
        Self::new(ErrorClass::Permanent, "the template does not exist")
    }
    pub fn denied(kind: RequestKind) -> Self {
        Self::new(
            ErrorClass::Unauthorized,
            format!("the privilege to {kind} is missing"),
        )
    }
}
