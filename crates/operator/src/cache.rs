//! All Proxies as last seen, by the watch or in an answer to a request of ours, whichever is
//! newer. It never goes back: what the watch still tells of an object that we changed since is
//! passed over.

use crate::objects::{Held, is_older};
use egress_core::ProxyId;
use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// How long it is remembered that an object is gone: an answer about it may still be on its way.
const MEMORIAL: Duration = Duration::from_mins(2);

/// See the module.
#[derive(Debug, Default)]
pub struct Cache {
    inner: Mutex<Inner>,
    bell: Notify,
    synced: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    objects: HashMap<ProxyId, Seen>,
    /// UIDs of objects that are gone, and since when.
    gone: HashMap<String, Instant>,
    /// Rises with every complete listing that begins.
    listing: u64,
    changed: BTreeSet<ProxyId>,
}

#[derive(Debug)]
struct Seen {
    held: Arc<Held>,
    listing: u64,
}

impl Cache {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an object, unless a newer state of it is known, or that it is gone.
    pub fn put(&self, held: Held) {
        if held.is_ending() {
            return self.remove(&held.id, &held.uid);
        }
        let mut inner = self.inner();
        let listing = inner.listing;
        if inner.gone.contains_key(&held.uid) {
            return;
        }
        let id = held.id.clone();
        if let Some(seen) = inner.objects.get_mut(&id) {
            seen.listing = listing;
            let before = &seen.held;
            if before.version == held.version || is_older(&held.version, &before.version) {
                return;
            }
        }
        let held = Arc::new(held);
        inner.objects.insert(id.clone(), Seen { held, listing });
        self.note(inner, id);
    }

    /// Takes an object of this UID out.
    pub fn remove(&self, id: &ProxyId, uid: &str) {
        let mut inner = self.inner();
        let now = Instant::now();
        inner
            .gone
            .retain(|_, since| now.duration_since(*since) < MEMORIAL);
        inner.gone.insert(uid.to_owned(), now);
        if inner.objects.get(id).is_some_and(|s| s.held.uid == uid) {
            inner.objects.remove(id);
            self.note(inner, id.clone());
        }
    }

    /// A complete listing begins: [`put`](Self::put) its objects, then [`finish`](Self::finish).
    pub fn begin(&self) {
        self.inner().listing += 1;
    }

    /// The listing that began last is complete: what it lacked and nobody saw since is gone.
    pub fn finish(&self) {
        let mut inner = self.inner();
        let listing = inner.listing;
        let missing: Vec<(ProxyId, String)> = inner
            .objects
            .iter()
            .filter(|(_, seen)| seen.listing < listing)
            .map(|(id, seen)| (id.clone(), seen.held.uid.clone()))
            .collect();
        for (id, uid) in missing {
            inner.objects.remove(&id);
            inner.gone.insert(uid, Instant::now());
            inner.changed.insert(id);
        }
        drop(inner);
        self.bell.notify_one();
        self.synced.store(true, Ordering::Relaxed);
    }

    /// Whether a complete listing was ever made.
    pub fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Relaxed)
    }

    /// One Proxy.
    pub fn get(&self, id: &ProxyId) -> Option<Arc<Held>> {
        self.inner().objects.get(id).map(|seen| seen.held.clone())
    }

    /// Every Proxy, in no order.
    pub fn all(&self) -> Vec<Arc<Held>> {
        let inner = self.inner();
        inner.objects.values().map(|s| s.held.clone()).collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.inner().objects.len()
    }

    /// Waits for a change; answers with the Proxies that came, went or changed since the last
    /// answer. For one caller; dropped before it answers, it loses nothing.
    pub async fn changed(&self) -> BTreeSet<ProxyId> {
        loop {
            let changed = std::mem::take(&mut self.inner().changed);
            if !changed.is_empty() {
                return changed;
            }
            self.bell.notified().await;
        }
    }

    fn note(&self, mut inner: MutexGuard<'_, Inner>, id: ProxyId) {
        inner.changed.insert(id);
        drop(inner);
        self.bell.notify_one();
    }
}
