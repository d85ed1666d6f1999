//! Where the right to change something comes from.

use egress_core::backoff::PERMIT_LIFETIME;
use egress_provider::Permit;
use tokio::time::Instant;

/// Gives permits while this process may act: it holds the store's lock, or the lease.
pub trait PermitSource: Send + Sync {
    /// A permit for one call of this attempt; `None`: this process may not act now.
    fn permit(&self, attempt: u32) -> Option<Permit>;
}

/// For one process that needs no leave: tests and benches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Always;

impl PermitSource for Always {
    fn permit(&self, attempt: u32) -> Option<Permit> {
        Some(Permit::new(attempt, Instant::now() + PERMIT_LIFETIME))
    }
}

/// For a process that only looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Never;

impl PermitSource for Never {
    fn permit(&self, _: u32) -> Option<Permit> {
        None
    }
}
