//! Every waiting time of the product, in one place.

use crate::machine::{ErrorClass, MachineKey};
use std::time::Duration;

const fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// After a lock or a running task, and after a step that needs another look.
pub const SOON: Duration = secs(2);
/// The first wait after trouble; doubles up to [`BACKOFF_MAX`].
pub const BACKOFF_MIN: Duration = secs(1);
/// The longest wait after trouble.
pub const BACKOFF_MAX: Duration = secs(300);
/// Where only a person or time can help.
pub const SLOWLY: Duration = secs(600);
/// A call to a provider ends by then.
pub const CALL_DEADLINE: Duration = secs(30);
/// The window in which stops count towards a crash loop.
pub const CRASH_WINDOW: Duration = secs(3600);
/// How many stops within [`CRASH_WINDOW`] make a crash loop.
pub const CRASH_LIMIT: usize = 3;
/// How long a machine that was started again may still look stopped: reads may lag, and a
/// machine that stops at once is not started in a tight loop.
pub const RESTART_GRACE: Duration = secs(10);
/// The first wait between two replacements that follow each other; doubles up to
/// [`REPLACE_MAX`].
pub const REPLACE_MIN: Duration = secs(30);
/// The longest wait between two replacements.
pub const REPLACE_MAX: Duration = secs(3600);
/// How long a slot that someone else held is not asked for again.
pub const REFUSED_FOR: Duration = secs(600);
/// How long a permit lasts when the store's lock is its source.
pub const PERMIT_LIFETIME: Duration = secs(30);

/// `base` less up to a tenth, by the key: machines made together do not move together.
pub fn with_jitter(base: Duration, key: &MachineKey) -> Duration {
    let millis = u64::try_from(base.as_millis()).unwrap_or(u64::MAX);
    base.saturating_sub(Duration::from_millis(key.spread(millis / 10 + 1)))
}

/// The wait before the `n`th repeat (from 1), doubling from `min` up to `max`.
pub fn doubling(min: Duration, max: Duration, n: u32) -> Duration {
    let factor = 1_u32.checked_shl(n.saturating_sub(1)).unwrap_or(u32::MAX);
    min.saturating_mul(factor).min(max)
}

/// How long to wait after the `count`th failure in a row (from 1) of this class.
pub fn after_failure(class: ErrorClass, count: u32, key: &MachineKey) -> Duration {
    let base = match class {
        ErrorClass::Conflict | ErrorClass::Busy => SOON,
        ErrorClass::OutcomeUnknown => doubling(SOON, BACKOFF_MAX, count),
        ErrorClass::Transient | ErrorClass::Internal => doubling(BACKOFF_MIN, BACKOFF_MAX, count),
        ErrorClass::Capacity
        | ErrorClass::Unauthorized
        | ErrorClass::NeedsOperator
        | ErrorClass::NotOwned => doubling(secs(5), SLOWLY, count),
        ErrorClass::Permanent => SLOWLY,
    };
    with_jitter(base, key)
}

#[cfg(test)]
mod tests;
