//! What the engine shares with everyone who looks: how each Proxy stands, and whether the
//! store works.

use super::inbox;
use crate::{
    metrics::{EngineMetrics, PhaseLabel, ProviderMetrics},
    pass::Parts,
};
use egress_core::{
    ProxyId,
    events::{Event, EventKind, events},
    plan::Phase,
    proxy::Desired,
    status::{ProxyStatus, Reason},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard},
};
use tokio::{sync::watch, time::Instant};

/// One Proxy as people see it.
#[derive(Clone, Debug)]
pub struct ProxyView {
    /// Which one.
    pub proxy: ProxyId,
    /// How it stood after its last pass.
    pub status: ProxyStatus,
    /// When each condition last changed its status, in the order of `status.conditions`.
    pub since: Vec<jiff::Timestamp>,
}

/// Is told the last news of a Proxy that is gone.
pub type Farewell = Arc<dyn Fn(&ProxyId, &[Event]) + Send + Sync>;

pub(super) struct Shared {
    pub(super) parts: Parts,
    pub(super) metrics: EngineMetrics,
    pub(super) epoch: Instant,
    views: RwLock<BTreeMap<ProxyId, Arc<ProxyView>>>,
    /// What the store last said, of each Proxy that waits for it.
    store_troubles: Mutex<BTreeMap<ProxyId, String>>,
    changed: watch::Sender<u64>,
    pub(super) farewell: std::sync::OnceLock<Farewell>,
}

impl Shared {
    pub(super) fn new(parts: Parts, metrics: EngineMetrics) -> Self {
        Self {
            parts,
            metrics,
            epoch: Instant::now(),
            views: RwLock::default(),
            store_troubles: Mutex::default(),
            changed: watch::Sender::new(0),
            farewell: std::sync::OnceLock::new(),
        }
    }

    fn store_troubles(&self) -> MutexGuard<'_, BTreeMap<ProxyId, String>> {
        self.store_troubles
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A Proxy waits for the store. Only the first one is logged: each says so in its status.
    pub(super) fn note_store_trouble(&self, id: &ProxyId, text: String) {
        let mut troubles = self.store_troubles();
        if troubles.is_empty() {
            tracing::error!(proxy = %id, "the store: {text}");
        }
        troubles.insert(id.clone(), text);
    }

    /// A Proxy has what it needs of the store.
    pub(super) fn clear_store_trouble(&self, id: &ProxyId) {
        let mut troubles = self.store_troubles();
        if troubles.remove(id).is_some() && troubles.is_empty() {
            tracing::info!("the store works again");
        }
    }

    /// Publishes a Proxy's new status, and tells what changed after it is published.
    pub(super) fn publish(&self, id: &ProxyId, status: ProxyStatus) {
        let mut views = self.views.write().unwrap_or_else(PoisonError::into_inner);
        let old = views.get(id).cloned();
        if old.as_ref().is_some_and(|v| v.status == status) {
            return;
        }
        let now = jiff::Timestamp::now();
        let since = status
            .conditions
            .iter()
            .enumerate()
            .map(|(i, c)| match &old {
                Some(v) if v.status.condition(c.r#type).map(|o| o.status) == Some(c.status) => {
                    v.since.get(i).copied().unwrap_or(now)
                }
                _ => now,
            })
            .collect();
        let old = old.as_ref().map(|v| &v.status);
        self.count_phase(old.map(|o| o.phase), Some(status.phase));
        let view = Arc::new(ProxyView {
            proxy: id.clone(),
            status,
            since,
        });
        views.insert(id.clone(), view.clone());
        drop(views);
        self.changed.send_modify(|n| *n += 1);
        tell(id, events(old, &view.status));
    }

    /// Takes a Proxy that is gone away, and tells what its last pass changed.
    pub(super) fn withdraw(&self, id: &ProxyId, last: &ProxyStatus) {
        let old = self.take(id);
        let news = last_words(old.as_ref().map(|v| &v.status), last);
        if let Some(farewell) = self.farewell.get() {
            farewell(id, &news);
        }
        tell(id, news);
        tracing::info!(proxy = %id, "gone");
    }

    /// Takes away what is known of a Proxy.
    pub(super) fn take(&self, id: &ProxyId) -> Option<Arc<ProxyView>> {
        let old = self
            .views
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(id);
        self.clear_store_trouble(id);
        if let Some(old) = &old {
            self.count_phase(Some(old.status.phase), None);
            self.changed.send_modify(|n| *n += 1);
        }
        old
    }

    fn count_phase(&self, old: Option<Phase>, new: Option<Phase>) {
        if old == new {
            return;
        }
        let gauge = |phase| self.metrics.proxies.get_or_create_owned(&PhaseLabel(phase));
        if let Some(phase) = old {
            gauge(phase).dec();
        }
        if let Some(phase) = new {
            gauge(phase).inc();
        }
    }
}

/// What is told of a Proxy that is gone. Of one that this process never saw, only that
/// something is left behind.
pub(super) fn last_words(old: Option<&ProxyStatus>, last: &ProxyStatus) -> Vec<Event> {
    let mut news = events(old, last);
    news.retain(|event| old.is_some() || event.reason == Reason::Abandoned);
    news
}

fn tell(id: &ProxyId, news: Vec<Event>) {
    for event in news {
        match event.kind {
            EventKind::Normal => {
                tracing::info!(proxy = %id, reason = %event.reason, "{}", event.message);
            }
            EventKind::Warning => {
                tracing::warn!(proxy = %id, reason = %event.reason, "{}", event.message);
            }
        }
    }
}

/// A hold on a running engine.
#[derive(Clone)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) inbox: inbox::Sender,
}

impl Handle {
    /// Says what is wanted of a Proxy now. The same again changes nothing.
    pub fn want(&self, desired: Desired) {
        self.inbox.ask(|asked| {
            asked.wanted.insert(desired.proxy.clone(), desired);
        });
    }
    /// Says that a Proxy is no longer there to be asked about: nothing is done for it any more,
    /// and what it had is left alone. One of the same name that is wanted after it is another
    /// one.
    pub fn forget(&self, id: ProxyId) {
        self.inbox.ask(|asked| {
            asked.wanted.remove(&id);
            asked.forgotten.insert(id);
        });
    }
    /// Asks for a look at one Proxy now.
    pub fn wake(&self, id: ProxyId) {
        self.inbox.ask(|asked| {
            asked.wake.insert(id);
        });
    }
    /// Says that something which a Proxy refers to is another one now: what failed with the old
    /// one is tried again at once.
    pub fn renew(&self, id: ProxyId) {
        self.inbox.ask(|asked| {
            asked.renewed.insert(id);
        });
    }
    /// Asks for a look at every Proxy now, as after a change of the configuration.
    pub fn wake_all(&self) {
        self.inbox.ask(|asked| asked.wake_all = true);
    }
    /// Every Proxy that is known, by namespace and name.
    pub fn views(&self) -> Vec<Arc<ProxyView>> {
        self.read_views().values().cloned().collect()
    }
    /// One Proxy.
    pub fn view(&self, id: &ProxyId) -> Option<Arc<ProxyView>> {
        self.read_views().get(id).cloned()
    }
    /// What is wrong with the store, while any Proxy waits for it.
    pub fn store_trouble(&self) -> Option<String> {
        let troubles = self.shared.store_troubles();
        let text = troubles.values().next()?;
        Some(match troubles.len() - 1 {
            0 => text.clone(),
            others => format!("{text} (and {others} more Proxies wait for the store)"),
        })
    }
    /// Changes whenever a view does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }
    /// Where it shows what providers say of themselves.
    pub(crate) fn provider_figures(&self) -> &ProviderMetrics {
        &self.shared.metrics.providers
    }
    /// What the engine works with.
    pub fn parts(&self) -> &Parts {
        &self.shared.parts
    }
    fn read_views(&self) -> RwLockReadGuard<'_, BTreeMap<ProxyId, Arc<ProxyView>>> {
        self.shared
            .views
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
