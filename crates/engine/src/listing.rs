//! One listing of a provider for all who ask at about the same time.

use egress_core::proxy::Trouble;
use egress_provider::{Listing, Provider, RecordedSlot};
use std::{sync::Arc, time::Duration};
use tokio::{sync::Mutex, time::Instant};

/// How long ago a listing may have begun that is shared.
const LIFETIME: Duration = Duration::from_secs(5);

type Listed = Result<Arc<Listing>, Trouble>;

/// The last listing, with when it began. Whoever asks meanwhile waits for it, and shares its
/// failure too: a provider that is away is asked once.
#[derive(Debug, Default)]
pub(crate) struct SharedListing(Mutex<Option<(Instant, Listed)>>);

impl SharedListing {
    /// A listing that began a moment ago, or a new one.
    pub(crate) async fn get(&self, provider: &dyn Provider, recorded: &[RecordedSlot]) -> Listed {
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        if let Some((began, listed)) = last.as_ref()
            && *began + LIFETIME > asked
        {
            return listed.clone();
        }
        let began = Instant::now();
        let listed = match provider.list(recorded).await {
            Ok(listing) => Ok(Arc::new(listing)),
            Err(error) => Err(crate::observe::trouble(&error)),
        };
        *last = Some((began, listed.clone()));
        listed
    }
}
