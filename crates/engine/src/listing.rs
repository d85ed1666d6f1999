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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support;
    use egress_core::ErrorClass;
    use egress_provider::{
        Operation,
        layer::observed::{CallMetrics, Observed},
        memory::{Network, Physics, World},
    };

    #[tokio::test(start_paused = true)]
    async fn who_asks_at_about_the_same_time_shares_one_listing_or_one_failure() {
        let world = World::new(Physics::default());
        let metrics = CallMetrics::default();
        let provider = Observed::new(support::provider("mem", &world), &metrics);
        let count = |class| metrics.count(provider.name(), Operation::List, class);
        let shared = SharedListing::default();
        for (network, class) in [
            (Network::Up, None),
            (Network::Down, Some(ErrorClass::Transient)),
        ] {
            world.set_network(network);
            let ask = || shared.get(&provider, &[]);
            let (one, two, three) = tokio::join!(ask(), ask(), ask());
            assert_eq!(one.is_ok(), class.is_none());
            assert_eq!((&one, &two), (&two, &three));
            assert_eq!(count(class), 1);
            tokio::time::sleep(LIFETIME).await;
        }
        world.set_network(Network::Up);
        assert!(shared.get(&provider, &[]).await.is_ok());
        assert_eq!(count(None), 2, "an old one is not shared");
    }
}
