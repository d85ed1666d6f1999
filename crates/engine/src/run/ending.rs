//! How an engine ends: passes in flight end, and promises for which nothing was sent are taken
//! back.

use super::{Done, Engine, LANE_WIDTH};
use crate::store::{Store, StoreError, Stored};
use egress_core::{ProxyId, Standing, history::History};
use std::time::Duration;
use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};

/// How long passes in flight may go on when the engine stops.
const STOP_GRACE: Duration = Duration::from_secs(20);

impl Engine {
    /// Lets passes in flight end. Records are put in order while the store is `ours`.
    pub(super) async fn end(&mut self, ours: bool) {
        let until = Instant::now() + STOP_GRACE;
        let ended = tokio::time::timeout_at(until, async {
            while let Some(done) = self.passes.join_next().await {
                self.keep_history(done);
            }
        });
        if ended.await.is_err() {
            tracing::warn!(
                passes = self.passes.len(),
                "passes still run after {} s; they are resumed by the next start",
                STOP_GRACE.as_secs()
            );
        }
        if ours {
            // What is not taken back in time is waited for by the next start.
            let _late = tokio::time::timeout_at(until, self.take_back()).await;
        }
    }

    /// Keeps what a last pass learned.
    fn keep_history(&mut self, done: Result<Done, JoinError>) {
        if let Ok(Done { id, history, .. }) = done
            && let Some(entry) = self.entries.get_mut(&id)
        {
            entry.history = Some(history);
        }
    }

    /// Says of each claim for which nothing was sent after all that it is unsent again: after a
    /// restart nobody could know, and its deletion would wait for a machine that never comes.
    async fn take_back(&mut self) {
        let entries = std::mem::take(&mut self.entries);
        let mut open = entries
            .into_iter()
            .filter_map(|(id, entry)| Some((id, entry.history?)))
            .filter(|(_, history)| history.has_unsent());
        let mut writes = JoinSet::new();
        loop {
            while writes.len() < LANE_WIDTH
                && let Some((id, history)) = open.next()
            {
                let store = self.shared.parts.store.clone();
                writes.spawn(async move { unsend(store.as_ref(), &id, &history).await });
            }
            match writes.join_next().await {
                None => return,
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(e))) => tracing::warn!("{}", e.chain()),
                Some(Err(e)) => tracing::warn!("{e}"),
            }
        }
    }
}

/// Records that nothing was sent for this Proxy's claim, where that is so.
async fn unsend(store: &dyn Store, id: &ProxyId, history: &History) -> Result<(), StoreError> {
    let Some(Stored {
        mut record,
        version,
    }) = store.load(id).await?
    else {
        return Ok(());
    };
    match &mut record.claim {
        Some(claim) if history.sent_nothing(claim) => claim.standing = Standing::Unsent,
        _ => return Ok(()),
    }
    store.save(id, &record, Some(&version)).await.map(drop)
}
