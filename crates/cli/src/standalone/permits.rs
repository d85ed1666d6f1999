//! The right to act comes from the lock on the state directory.

use egress_core::backoff::PERMIT_LIFETIME;
use egress_engine::{PermitSource, store::file::FileStore};
use egress_provider::Permit;
use tokio::time::Instant;

/// Gives permits while the locked directory is still in its place.
pub struct StoreLock(pub FileStore);

impl PermitSource for StoreLock {
    fn permit(&self, attempt: u32) -> Option<Permit> {
        self.0.check_lock().ok()?;
        Some(Permit::new(attempt, Instant::now() + PERMIT_LIFETIME))
    }
}
