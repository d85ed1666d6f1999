//! How far a call came.

use egress_core::Handle;
use std::time::Duration;

/// The answer of `create`, `seal` and `delete`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The promise of the operation holds.
    Done,
    /// A step was begun, or still runs: record the handles, call again after `recheck`.
    InProgress {
        /// The step, in the provider's words.
        step: String,
        /// Every task that is open now; replaces the claim's handles. Empty when nothing
        /// was begun (someone else's lock is waited for).
        handles: Vec<Handle>,
        /// How long to wait before the next call.
        recheck: Duration,
    },
}
