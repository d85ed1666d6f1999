//! All Proxies: who is looked at when, how many at once, and what is known of each.
//!
//! One task decides; passes run beside it. Passes of one Proxy never overlap, and each
//! provider has its own bounded share, so that a dead hypervisor starves nobody else.

use crate::{
    metrics::{EngineMetrics, PassLabel, PassResult, PhaseLabel},
    pass::{Outcome, Parts, PassError, pass},
    store::{StoreError, StoreErrorKind},
};
use egress_core::{
    ProviderName, ProxyId, backoff,
    events::{EventKind, events},
    history::History,
    plan::Phase,
    proxy::{Desired, Intent},
    status::ProxyStatus,
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    future::Future,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};

/// How many passes of one provider run at once.
const LANE_WIDTH: usize = 16;
/// How long passes in flight may go on when the engine stops.
const STOP_GRACE: Duration = Duration::from_secs(20);

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

#[derive(Debug)]
enum Command {
    Want(Box<Desired>),
    Wake(ProxyId),
    WakeAll,
}

/// What is shared between the engine, its passes and everyone who looks.
struct Shared {
    parts: Parts,
    metrics: EngineMetrics,
    epoch: Instant,
    views: RwLock<BTreeMap<ProxyId, Arc<ProxyView>>>,
    store_trouble: Mutex<Option<String>>,
    changed: watch::Sender<u64>,
}

/// A hold on a running engine.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Handle {
    /// Says what is wanted of a Proxy now. The same again changes nothing.
    pub fn want(&self, desired: Desired) {
        let _ = self.commands.send(Command::Want(Box::new(desired)));
    }
    /// Asks for a look at one Proxy now.
    pub fn wake(&self, id: ProxyId) {
        let _ = self.commands.send(Command::Wake(id));
    }
    /// Asks for a look at every Proxy now, as after a change of the configuration.
    pub fn wake_all(&self) {
        let _ = self.commands.send(Command::WakeAll);
    }
    /// Every Proxy that is known, by namespace and name.
    pub fn views(&self) -> Vec<Arc<ProxyView>> {
        self.read_views().values().cloned().collect()
    }
    /// One Proxy.
    pub fn view(&self, id: &ProxyId) -> Option<Arc<ProxyView>> {
        self.read_views().get(id).cloned()
    }
    /// What is wrong with the store, if its last use failed.
    pub fn store_trouble(&self) -> Option<String> {
        self.shared
            .store_trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
    /// Changes whenever a view does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }
    /// What the engine works with.
    pub fn parts(&self) -> &Parts {
        &self.shared.parts
    }
    fn read_views(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<ProxyId, Arc<ProxyView>>> {
        self.shared
            .views
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Idle,
    Queued,
    Running,
}

struct Entry {
    desired: Arc<Desired>,
    /// Out of the entry while a pass runs.
    history: Option<Box<History>>,
    turn: Turn,
    /// Asked for again while a pass ran.
    again: bool,
    due: Option<Instant>,
    lane: Option<ProviderName>,
    store_failures: u32,
}

#[derive(Default)]
struct Lane {
    waiting: VecDeque<ProxyId>,
    running: usize,
}

struct Done {
    id: ProxyId,
    lane: Option<ProviderName>,
    history: Box<History>,
    result: Result<Outcome, PassError>,
}

/// The engine; [`Engine::run`] is its life.
pub struct Engine {
    shared: Arc<Shared>,
    commands: mpsc::UnboundedReceiver<Command>,
    entries: HashMap<ProxyId, Entry>,
    lanes: HashMap<Option<ProviderName>, Lane>,
    timers: BinaryHeap<Reverse<(Instant, ProxyId)>>,
    passes: JoinSet<Done>,
}

impl Engine {
    /// An engine that knows nothing yet, and a hold on it.
    pub fn new(parts: Parts, metrics: EngineMetrics) -> (Self, Handle) {
        let (sender, commands) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            parts,
            metrics,
            epoch: Instant::now(),
            views: RwLock::default(),
            store_trouble: Mutex::default(),
            changed: watch::Sender::new(0),
        });
        let engine = Self {
            shared: shared.clone(),
            commands,
            entries: HashMap::new(),
            lanes: HashMap::new(),
            timers: BinaryHeap::new(),
            passes: JoinSet::new(),
        };
        (
            engine,
            Handle {
                shared,
                commands: sender,
            },
        )
    }

    /// Reads every record, so that the slots they name are spoken for before anything runs.
    /// Answers with the Proxies that have one; a record that cannot be read is in the list
    /// with its error.
    pub async fn load(
        &self,
    ) -> Result<Vec<(ProxyId, Result<egress_core::Record, StoreError>)>, StoreError> {
        let parts = &self.shared.parts;
        let mut found = Vec::new();
        for (id, stored) in parts.store.list().await? {
            if let Ok(stored) = &stored {
                parts.providers.note(None, Some(&stored.record), false);
            }
            found.push((id, stored.map(|s| s.record)));
        }
        Ok(found)
    }

    /// Works until `stop` resolves, then lets passes in flight end. Fails when the store is
    /// no longer ours: nothing was done since.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), StoreError> {
        tokio::pin!(stop);
        let lost = loop {
            self.start_passes();
            let next = self.timers.peek().map(|Reverse((at, _))| *at);
            tokio::select! {
                () = &mut stop => break None,
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => break None,
                },
                Some(done) = self.passes.join_next() => {
                    if let Some(lost) = self.finish(done) {
                        break Some(lost);
                    }
                }
                () = sleep_until(next) => self.wake_due(),
            }
        };
        let ended = tokio::time::timeout(STOP_GRACE, async {
            while self.passes.join_next().await.is_some() {}
        });
        if ended.await.is_err() {
            tracing::warn!(
                passes = self.passes.len(),
                "passes still run after {} s; they are resumed by the next start",
                STOP_GRACE.as_secs()
            );
        }
        lost.map_or(Ok(()), Err)
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Want(desired) => self.want(*desired),
            Command::Wake(id) => self.enqueue(&id),
            Command::WakeAll => {
                let ids: Vec<ProxyId> = self.entries.keys().cloned().collect();
                for id in ids {
                    self.enqueue(&id);
                }
            }
        }
    }

    fn want(&mut self, desired: Desired) {
        let id = desired.proxy.clone();
        if matches!(desired.intent, Intent::Delete | Intent::Abandon) {
            self.shared.parts.providers.unexpect(&id);
        }
        match self.entries.get_mut(&id) {
            Some(entry) if *entry.desired == desired => return,
            Some(entry) => {
                entry.desired = Arc::new(desired);
                if let Some(history) = &mut entry.history {
                    history.note_success(); // what failed before may succeed as it is now
                }
            }
            None => {
                self.entries.insert(
                    id.clone(),
                    Entry {
                        desired: Arc::new(desired),
                        history: Some(Box::default()),
                        turn: Turn::Idle,
                        again: false,
                        due: None,
                        lane: None,
                        store_failures: 0,
                    },
                );
            }
        }
        self.enqueue(&id);
    }

    fn enqueue(&mut self, id: &ProxyId) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        match entry.turn {
            Turn::Running => entry.again = true,
            Turn::Queued => {}
            Turn::Idle => {
                entry.turn = Turn::Queued;
                entry.due = None;
                let lane = entry
                    .lane
                    .clone()
                    .or_else(|| entry.desired.spec().map(|s| s.provider.clone()));
                entry.lane.clone_from(&lane);
                self.lanes
                    .entry(lane)
                    .or_default()
                    .waiting
                    .push_back(id.clone());
                self.shared.metrics.queued.inc();
            }
        }
    }

    fn wake_due(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, id))) = self.timers.peek() {
            if *at > now {
                break;
            }
            let (at, id) = (*at, id.clone());
            self.timers.pop();
            // A timer that was set anew, or of a Proxy that is gone, is stale.
            if self.entries.get(&id).is_some_and(|e| e.due == Some(at)) {
                self.enqueue(&id);
            }
        }
    }

    fn start_passes(&mut self) {
        for (name, lane) in &mut self.lanes {
            while lane.running < LANE_WIDTH {
                let Some(id) = lane.waiting.pop_front() else {
                    break;
                };
                self.shared.metrics.queued.dec();
                let Some(entry) = self.entries.get_mut(&id) else {
                    continue;
                };
                let Some(mut history) = entry.history.take() else {
                    continue;
                };
                entry.turn = Turn::Running;
                lane.running += 1;
                let (desired, shared, name) =
                    (entry.desired.clone(), self.shared.clone(), name.clone());
                self.passes.spawn(async move {
                    let begun = Instant::now();
                    let now = begun.duration_since(shared.epoch);
                    let result = pass(&shared.parts, &desired, now, &mut history).await;
                    shared
                        .metrics
                        .pass_seconds
                        .observe(begun.elapsed().as_secs_f64());
                    Done {
                        id,
                        lane: name,
                        history,
                        result,
                    }
                });
            }
        }
    }

    /// Takes a pass's result; an error means that the store is no longer ours.
    fn finish(&mut self, done: Result<Done, tokio::task::JoinError>) -> Option<StoreError> {
        let Done {
            id,
            lane,
            history,
            result,
        } = match done {
            Ok(done) => done,
            Err(e) => {
                // A panic in a pass is a broken invariant: stop rather than act on it.
                if e.is_panic() {
                    std::panic::resume_unwind(e.into_panic());
                }
                return None;
            }
        };
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.running -= 1;
        }
        let entry = self.entries.get_mut(&id)?;
        entry.turn = Turn::Idle;
        entry.history = Some(history);
        let label = |result| PassLabel { result };
        match result {
            Ok(outcome) => {
                self.shared
                    .metrics
                    .passes
                    .get_or_create(&label(PassResult::ok))
                    .inc();
                entry.store_failures = 0;
                entry.lane.clone_from(&outcome.status.provider);
                self.clear_store_trouble();
                self.settle(&id, outcome);
                None
            }
            Err(PassError::Store(e)) => {
                self.shared
                    .metrics
                    .passes
                    .get_or_create(&label(PassResult::store_error))
                    .inc();
                self.note_store_error(&id, e)
            }
        }
    }

    fn settle(&mut self, id: &ProxyId, outcome: Outcome) {
        let deleting = self
            .entries
            .get(id)
            .is_some_and(|e| matches!(e.desired.intent, Intent::Delete | Intent::Abandon));
        if outcome.gone && deleting {
            self.entries.remove(id);
            self.publish(id, None);
            tracing::info!(proxy = %id, "gone");
            return;
        }
        self.publish(id, Some(outcome.status));
        let again = self
            .entries
            .get_mut(id)
            .is_some_and(|e| std::mem::take(&mut e.again));
        match outcome.recheck {
            _ if again => self.enqueue(id),
            Some(wait) if wait.is_zero() => self.enqueue(id),
            Some(wait) => self.set_timer(id, wait),
            None => {}
        }
    }

    fn set_timer(&mut self, id: &ProxyId, wait: Duration) {
        if let Some(entry) = self.entries.get_mut(id) {
            let at = Instant::now() + wait;
            entry.due = Some(at);
            self.timers.push(Reverse((at, id.clone())));
        }
    }

    fn clear_store_trouble(&self) {
        let mut trouble = self
            .shared
            .store_trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if trouble.take().is_some() {
            tracing::info!("the store works again");
        }
    }

    fn note_store_error(&mut self, id: &ProxyId, error: StoreError) -> Option<StoreError> {
        if error.kind == StoreErrorKind::Lost {
            return Some(error);
        }
        let entry = self.entries.get_mut(id)?;
        entry.store_failures += 1;
        let again = std::mem::take(&mut entry.again);
        let wait = match error.kind {
            StoreErrorKind::Conflict => Duration::from_millis(50),
            _ => backoff::doubling(
                backoff::BACKOFF_MIN,
                backoff::BACKOFF_MAX,
                entry.store_failures,
            ),
        };
        if error.kind != StoreErrorKind::Conflict {
            let text = error.to_string();
            let mut trouble = self
                .shared
                .store_trouble
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if trouble.as_ref() != Some(&text) {
                tracing::error!(proxy = %id, "{text}");
                *trouble = Some(text);
            }
        }
        if again {
            self.enqueue(id);
        } else {
            self.set_timer(id, wait);
        }
        None
    }

    /// Publishes a Proxy's new status, and tells what changed after it is published.
    fn publish(&self, id: &ProxyId, status: Option<ProxyStatus>) {
        let mut views = self
            .shared
            .views
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let old = views.get(id).cloned();
        let Some(status) = status else {
            views.remove(id);
            drop(views);
            self.count_phase(old.as_ref().map(|v| v.status.phase), None);
            self.shared.changed.send_modify(|n| *n += 1);
            return;
        };
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
        let news = events(old.as_ref().map(|v| &v.status), &status);
        self.count_phase(old.as_ref().map(|v| v.status.phase), Some(status.phase));
        views.insert(
            id.clone(),
            Arc::new(ProxyView {
                proxy: id.clone(),
                status,
                since,
            }),
        );
        drop(views);
        self.shared.changed.send_modify(|n| *n += 1);
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

    fn count_phase(&self, old: Option<Phase>, new: Option<Phase>) {
        if old == new {
            return;
        }
        let gauge = |phase| {
            self.shared
                .metrics
                .proxies
                .get_or_create_owned(&PhaseLabel(phase))
        };
        if let Some(phase) = old {
            gauge(phase).dec();
        }
        if let Some(phase) = new {
            gauge(phase).inc();
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
