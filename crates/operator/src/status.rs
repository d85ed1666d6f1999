//! Writes how each Proxy stands into its object: what the engine shows, once it differs from
//! what the object says, and the events of the difference once it is written.

use crate::{
    api::{Failure, Proxies},
    cache::Cache,
    config::Present,
    news::News,
};
use egress_api::v1alpha1::{API_VERSION, PROXY_KIND, ProxyStatus};
use egress_core::{ProxyId, backoff::doubling, events::differences, status::Condition};
use egress_engine::{Handle, ProxyView};
use serde_json::json;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::Instant,
};

/// How many are written at once: fewer than there are passes that write records, which matter
/// more to an API server that has no time.
const WIDTH: usize = 8;
/// Changes within this time are written as one.
const GATHER: Duration = Duration::from_millis(50);
/// The first wait after a write failed; doubles up to [`PATIENT`].
const EAGER: Duration = Duration::from_millis(200);
/// The longest wait from one try to the next.
const PATIENT: Duration = Duration::from_secs(30);

/// How a status was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is in the object.
    Well,
    /// It is not; it is tried again.
    Failed,
}

/// Is told of every write.
pub type Counted = Arc<dyn Fn(Written) + Send + Sync>;

/// See the module. A clone is the same one.
#[derive(Clone)]
pub struct Statuses {
    shared: Arc<Shared>,
}

struct Shared {
    handle: Handle,
    proxies: Proxies,
    cache: Arc<Cache>,
    config: Arc<Present>,
    news: News,
    counted: Counted,
    due: Mutex<Due>,
    bell: Notify,
    /// Nothing is due, and nothing is being written.
    idle: watch::Sender<bool>,
}

/// Whose status is to be written, whoever asked first at the front: under load everybody is
/// behind alike, and what changes meanwhile is written once.
#[derive(Default)]
struct Due {
    line: VecDeque<ProxyId>,
    standing: HashSet<ProxyId>,
}

impl Due {
    fn insert(&mut self, id: ProxyId) {
        if self.standing.insert(id.clone()) {
            self.line.push_back(id);
        }
    }

    /// Takes so many from the front, but for those that are being written: they keep their place.
    fn take(&mut self, many: usize, busy: &HashSet<ProxyId>) -> Vec<ProxyId> {
        let mut taken = Vec::new();
        let mut passed = Vec::new();
        while taken.len() < many
            && let Some(id) = self.line.pop_front()
        {
            if busy.contains(&id) {
                passed.push(id);
            } else {
                self.standing.remove(&id);
                taken.push(id);
            }
        }
        for id in passed.into_iter().rev() {
            self.line.push_front(id);
        }
        taken
    }

    fn is_empty(&self) -> bool {
        self.line.is_empty()
    }
}

impl Statuses {
    /// Writes what this engine shows into these objects.
    pub fn new(
        handle: Handle,
        proxies: Proxies,
        cache: Arc<Cache>,
        config: Arc<Present>,
        news: News,
        counted: Counted,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                handle,
                proxies,
                cache,
                config,
                news,
                counted,
                due: Mutex::default(),
                bell: Notify::new(),
                idle: watch::Sender::new(true),
            }),
        }
    }

    /// Asks for a look at one Proxy: its object changed.
    pub fn note(&self, id: ProxyId) {
        self.shared.due().insert(id);
        self.shared.bell.notify_one();
    }

    /// Resolves once all that is known now is written.
    pub async fn settled(&self) {
        tokio::time::sleep(GATHER * 2).await;
        let _ = self.shared.idle.subscribe().wait_for(|idle| *idle).await;
    }

    /// Writes for as long as it is polled.
    pub async fn write_forever(&self) {
        let shared = &self.shared;
        let mut changes = shared.handle.changes();
        let mut shown: HashMap<ProxyId, Arc<ProxyView>> = HashMap::new();
        let mut failures: HashMap<ProxyId, u32> = HashMap::new();
        let mut told: Option<Instant> = None;
        let mut busy: HashSet<ProxyId> = HashSet::new();
        let mut writes: JoinSet<(ProxyId, Result<(), Failure>)> = JoinSet::new();
        let mut retries: JoinSet<ProxyId> = JoinSet::new();
        changes.mark_changed();
        loop {
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    shared.idle.send_replace(false);
                    tokio::time::sleep(GATHER).await;
                    changes.borrow_and_update();
                    shared.gather(&mut shown);
                }
                () = shared.bell.notified() => {}
                Some(Ok(id)) = retries.join_next() => {
                    shared.due().insert(id);
                }
                Some(ended) = writes.join_next() => {
                    let Ok((id, result)) = ended else { continue };
                    busy.remove(&id);
                    match result {
                        Ok(()) => {
                            failures.remove(&id);
                        }
                        Err(failure) => {
                            // One line tells of many that fail alike.
                            if told.is_none_or(|at| at.elapsed() >= PATIENT) {
                                told = Some(Instant::now());
                                tracing::warn!(proxy = %id, "its status is not written: {failure}");
                            }
                            let count = failures.entry(id.clone()).or_default();
                            *count += 1;
                            let wait = doubling(EAGER, PATIENT, *count);
                            retries.spawn(async move {
                                tokio::time::sleep(wait).await;
                                id
                            });
                        }
                    }
                }
            }
            let free = WIDTH.saturating_sub(writes.len());
            let next = shared.due().take(free, &busy);
            for id in next {
                busy.insert(id.clone());
                let shared = self.shared.clone();
                writes.spawn(async move {
                    let result = shared.write(&id).await;
                    (id, result)
                });
            }
            let idle = writes.is_empty() && shared.due().is_empty();
            shared.idle.send_replace(idle);
        }
    }
}

impl Shared {
    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the Proxies whose view is another one than the last time.
    fn gather(&self, shown: &mut HashMap<ProxyId, Arc<ProxyView>>) {
        let views = self.handle.views();
        let mut due = self.due();
        for view in &views {
            let before = shown.get(&view.proxy);
            if !before.is_some_and(|before| Arc::ptr_eq(before, view)) {
                due.insert(view.proxy.clone());
                shown.insert(view.proxy.clone(), view.clone());
            }
        }
        drop(due);
        if shown.len() > views.len() {
            let there: HashSet<&ProxyId> = views.iter().map(|view| &view.proxy).collect();
            shown.retain(|id, _| there.contains(id));
        }
    }

    async fn write(&self, id: &ProxyId) -> Result<(), Failure> {
        let (Some(view), Some(held)) = (self.handle.view(id), self.cache.get(id)) else {
            return Ok(()); // it is gone, or was not looked at yet
        };
        let before = held.status.as_deref();
        let status = self.rendered(&view, before);
        if before == Some(&status) {
            return Ok(());
        }
        let object = json!({
            "apiVersion": API_VERSION,
            "kind": PROXY_KIND,
            "metadata": {"name": id.name(), "namespace": id.namespace(), "uid": held.uid},
            "status": status,
        });
        let result = self.proxies.apply_status(id, &object).await;
        match result {
            Ok(after) => {
                (self.counted)(Written::Well);
                self.cache.put(after);
                let old = before.map(kept).unwrap_or_default();
                let news = differences(&old, &view.status.conditions);
                self.news.tell(id, &held.uid, news);
                Ok(())
            }
            // It went meanwhile: the watch tells.
            Err(Failure::Missing) => Ok(()),
            // Also a conflict: where another object has the name by now the next try sees it,
            // and an API server under load answers so for an object that is the same.
            Err(failure) => {
                (self.counted)(Written::Failed);
                Err(failure)
            }
        }
    }

    fn rendered(&self, view: &ProxyView, before: Option<&ProxyStatus>) -> ProxyStatus {
        let config = self.config.config();
        let provider = view.status.provider.as_ref();
        let kind = provider.and_then(|name| config.abilities(name.as_str()));
        let kind = kind.map(|abilities| abilities.kind);
        ProxyStatus::told(&view.status, kind, before, jiff::Timestamp::now())
    }
}

/// The conditions that an object holds, as far as this version knows their words.
fn kept(status: &ProxyStatus) -> Vec<Condition> {
    let read = |c: &egress_api::v1alpha1::Condition| {
        let words = json!({
            "type": c.r#type, "status": c.status, "reason": c.reason, "message": c.message,
        });
        serde_json::from_value(words).ok()
    };
    status.conditions.iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> ProxyId {
        ProxyId::new("shop", name).unwrap()
    }

    #[test]
    fn whoever_changes_all_the_time_holds_up_nobody_and_nobody_is_written_twice_at_once() {
        let mut due = Due::default();
        for name in ["b", "a", "b", "c"] {
            due.insert(id(name));
        }
        let busy = HashSet::from([id("b")]);
        assert_eq!(due.take(1, &busy), [id("a")]);
        due.insert(id("a"));
        // `b` kept its place in front, and `a` stands behind `c` by now.
        assert_eq!(due.take(1, &HashSet::new()), [id("b")]);
        assert_eq!(due.take(9, &busy), [id("c"), id("a")]);
        assert!(due.is_empty());
    }
}
