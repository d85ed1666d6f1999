//! Kept connections to targets, one pool a server and so one source address a pool.
//!
//! hyper-util has a pool too, with a task for each connection and its own rules on URIs and
//! retries; a proxy needs neither, and polls its connections itself (see [`crate::link`]).

use crate::{link::Link, metrics::Metrics, target::Target};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    sync::Notify,
    time::{Duration, Instant, sleep},
};

/// How long an unused connection is kept. Short, because many servers close after 5 to 60 s
/// and a request must not meet the closing one.
const KEEP: Duration = Duration::from_secs(15);
/// How often unused connections are looked at while there are any.
const SWEEP: Duration = Duration::from_secs(3);
/// How many are kept, over all targets.
const MOST_KEPT: usize = 512;

struct Kept {
    link: Box<Link>,
    since: Instant,
}

#[derive(Default)]
struct Shelves {
    by_target: HashMap<Target, Vec<Kept>>,
    count: usize,
}

/// Kept connections to targets.
pub(crate) struct Pool {
    shelves: Mutex<Shelves>,
    filled: Notify,
    metrics: Arc<Metrics>,
}

impl Pool {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            shelves: Mutex::default(),
            filled: Notify::new(),
            metrics,
        }
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most recently used connection to the target that is still open.
    pub(crate) fn take(&self, target: &Target) -> Option<Box<Link>> {
        loop {
            let mut kept = {
                let mut shelves = self.shelves();
                let kept = shelves.by_target.get_mut(target)?.pop()?;
                shelves.count -= 1;
                kept
            };
            self.metrics.kept_connections.dec();
            if kept.since.elapsed() < KEEP && kept.link.is_usable() {
                return Some(kept.link);
            }
        }
    }

    /// Keeps a connection for the next request, if there is room.
    pub(crate) fn put(&self, target: Target, link: Box<Link>) {
        let mut shelves = self.shelves();
        if shelves.count >= MOST_KEPT {
            return;
        }
        let first = shelves.count == 0;
        shelves.count += 1;
        let kept = Kept {
            link,
            since: Instant::now(),
        };
        shelves.by_target.entry(target).or_default().push(kept);
        drop(shelves);
        self.metrics.kept_connections.inc();
        if first {
            self.filled.notify_one();
        }
    }

    /// Drops what is too old or closed, for as long as the future is polled. It sleeps while
    /// the pool is empty.
    pub(crate) async fn keep_swept(&self) {
        loop {
            self.filled.notified().await;
            while self.sweep() > 0 {
                sleep(SWEEP).await;
            }
        }
    }

    /// Drops what is too old or closed; the number that stays.
    fn sweep(&self) -> usize {
        let mut shelves = self.shelves();
        let before = shelves.count;
        shelves.by_target.retain(|_, shelf| {
            shelf.retain_mut(|kept| kept.since.elapsed() < KEEP && kept.link.is_usable());
            !shelf.is_empty()
        });
        let left = shelves.by_target.values().map(Vec::len).sum();
        shelves.count = left;
        drop(shelves);
        self.metrics
            .kept_connections
            .dec_by(i64::try_from(before - left).unwrap_or(i64::MAX));
        left
    }

    /// Closes all kept connections.
    pub(crate) fn clear(&self) {
        let shelves = std::mem::take(&mut *self.shelves());
        self.metrics
            .kept_connections
            .dec_by(i64::try_from(shelves.count).unwrap_or(i64::MAX));
    }
}
