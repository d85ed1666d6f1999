//! What a caller may do about an error, never how the provider found out.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The closed set of error classes. A caller acts on the class and never reads the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ErrorClass {
    /// The slot is someone else's: take another one.
    Conflict,
    /// The name is ours and the mark is not: a person must look; never modified.
    NotOwned,
    /// Held by a task or a lock: the same call again soon.
    Busy,
    /// The hypervisor, or the way to it, has trouble: the same call again with backoff.
    Transient,
    /// The request may have had its effect: look before any repeat.
    OutcomeUnknown,
    /// No room: elsewhere, or slowly again.
    Capacity,
    /// Credentials or privileges are missing: an admin must act.
    Unauthorized,
    /// The request can never succeed as it is: the user must change spec or configuration.
    Permanent,
    /// The hypervisor's state needs an admin: a stale lock, a protected machine.
    NeedsOperator,
    /// An answer that should not exist: a fault of ours, counted and alerted.
    Internal,
}

impl ErrorClass {
    /// Every class, in the order of the contract's table.
    pub const ALL: [Self; 10] = [
        Self::Conflict,
        Self::NotOwned,
        Self::Busy,
        Self::Transient,
        Self::OutcomeUnknown,
        Self::Capacity,
        Self::Unauthorized,
        Self::Permanent,
        Self::NeedsOperator,
        Self::Internal,
    ];
    /// The class as it stands in metrics, events and documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "Conflict",
            Self::NotOwned => "NotOwned",
            Self::Busy => "Busy",
            Self::Transient => "Transient",
            Self::OutcomeUnknown => "OutcomeUnknown",
            Self::Capacity => "Capacity",
            Self::Unauthorized => "Unauthorized",
            Self::Permanent => "Permanent",
            Self::NeedsOperator => "NeedsOperator",
            Self::Internal => "Internal",
        }
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
