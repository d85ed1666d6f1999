//! All Proxies: who is looked at when, how many at once, and what is known of each.
//!
//! One task decides; passes run beside it. Passes of one Proxy never overlap, and each
//! provider has its own bounded share, so that a dead hypervisor starves nobody else.

mod ending;
mod inbox;
mod lane;
mod shared;
#[cfg(test)]
mod tests;

pub use shared::{Farewell, Handle, ProxyView};

use crate::{
    metrics::{EngineMetrics, PassLabel, PassResult},
    pass::{Outcome, Parts, PassError, pass},
    store::{StoreError, StoreErrorKind},
};
use egress_core::{
    ProviderName, ProxyId, backoff,
    history::History,
    plan::Waiting,
    proxy::{Desired, Intent},
};
use inbox::Asked;
use lane::Lane;
use shared::Shared;
use std::{
    collections::{BTreeSet, HashMap},
    future::Future,
    sync::Arc,
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};
use tracing::Instrument as _;

/// How many passes of one provider run at once.
const LANE_WIDTH: usize = 16;
/// How long until a record that someone else wrote meanwhile is read again; doubles.
const CONFLICT_WAIT: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Idle,
    Queued,
    Running,
}

/// Waits of some seconds and more end at moments that lie this far apart: who is due about the
/// same time shares one wake-up.
const MOMENT: Duration = Duration::from_millis(100);

/// What changed since a call last failed, so that its wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Changed {
    Nothing,
    /// The provider's configuration or check.
    Provider,
    /// What is wanted, or something that it refers to.
    Wish,
}

impl Changed {
    /// Tells the history; answers with whether anything was waited for.
    fn forgive(self, history: &mut History) -> bool {
        let waited = history.failure().is_some();
        match self {
            Self::Nothing => return false,
            Self::Provider => history.note_success(),
            Self::Wish => history.note_changed(),
        }
        waited
    }
}

/// Whether another Proxy took the name of one that was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgotten {
    ForGood,
    SucceededBy,
}

/// What a Proxy last failed to do with its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreWait {
    Read,
    Write,
}

struct Entry {
    desired: Arc<Desired>,
    /// Out of the entry while a pass runs.
    history: Option<Box<History>>,
    turn: Turn,
    /// Asked for again while a pass ran.
    again: bool,
    /// Changed while a pass ran.
    changed: Changed,
    /// Forgotten while a pass ran.
    forgotten: Option<Forgotten>,
    due: Option<Instant>,
    /// Tasks of its own ran after its last pass.
    moving: bool,
    lane: Option<ProviderName>,
    store_wait: Option<StoreWait>,
    store_failures: u32,
}

impl Entry {
    fn new(desired: Desired) -> Self {
        Self {
            desired: Arc::new(desired),
            history: Some(Box::default()),
            turn: Turn::Idle,
            again: false,
            changed: Changed::Nothing,
            forgotten: None,
            due: None,
            moving: false,
            lane: None,
            store_wait: None,
            store_failures: 0,
        }
    }

    fn is_going(&self) -> bool {
        matches!(self.desired.intent, Intent::Delete | Intent::Abandon)
    }

    /// Ends the wait after a failure; answers with whether a look is due.
    fn forgive(&mut self, changed: Changed) -> bool {
        if let Some(history) = &mut self.history {
            changed.forgive(history)
        } else {
            self.changed = self.changed.max(changed);
            false // the pass that runs tells how it ended
        }
    }
}

struct Done {
    id: ProxyId,
    lane: Option<ProviderName>,
    history: Box<History>,
    result: Result<Outcome, PassError>,
}

/// When a wait that ends at `at` really ends: never early.
fn shared_moment(epoch: Instant, at: Instant, wait: Duration) -> Instant {
    if wait < 50 * MOMENT {
        return at;
    }
    let moment = MOMENT.as_nanos();
    let past = at.saturating_duration_since(epoch).as_nanos() % moment;
    let rest = (moment - past) % moment;
    at + Duration::from_nanos(rest as u64)
}

/// The engine; [`Engine::run`] is its life.
pub struct Engine {
    shared: Arc<Shared>,
    inbox: inbox::Receiver,
    entries: HashMap<ProxyId, Entry>,
    lanes: HashMap<Option<ProviderName>, Lane>,
    /// At most one of each Proxy: its `due`.
    timers: BTreeSet<(Instant, ProxyId)>,
    passes: JoinSet<Done>,
}

impl Engine {
    /// An engine that knows nothing yet, and a hold on it.
    pub fn new(parts: Parts, metrics: EngineMetrics) -> (Self, Handle) {
        let (sender, inbox) = inbox::inbox();
        let shared = Arc::new(Shared::new(parts, metrics));
        let engine = Self {
            shared: shared.clone(),
            inbox,
            entries: HashMap::new(),
            lanes: HashMap::new(),
            timers: BTreeSet::new(),
            passes: JoinSet::new(),
        };
        let handle = Handle {
            shared,
            inbox: sender,
        };
        (engine, handle)
    }

    /// Tells `farewell` the last news of each Proxy that is gone. Once, before it runs.
    #[must_use]
    pub fn with_farewell(self, farewell: Farewell) -> Self {
        let _ = self.shared.farewell.set(farewell);
        self
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
        let shared = self.shared.clone();
        let lost = loop {
            self.start_passes();
            let next = self.timers.first().map(|(at, _)| *at);
            tokio::select! {
                () = &mut stop => break None,
                asked = self.inbox.take() => match asked {
                    Some(asked) => self.obey(asked),
                    None => break None,
                },
                names = shared.parts.providers.changed() => self.retry(&names),
                Some(done) = self.passes.join_next() => {
                    if let Some(lost) = self.finish(done) {
                        break Some(lost);
                    }
                }
                () = sleep_until(next) => self.wake_due(),
            }
        };
        self.end(lost.is_none()).await;
        lost.map_or(Ok(()), Err)
    }

    fn obey(&mut self, asked: Asked) {
        for id in &asked.forgotten {
            self.forget(id);
        }
        for desired in asked.wanted.into_values() {
            self.want(desired);
        }
        for id in asked.renewed {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.forgive(Changed::Wish);
            }
            self.enqueue(&id);
        }
        for id in asked.wake {
            self.enqueue(&id);
        }
        if asked.wake_all {
            let ids: Vec<ProxyId> = self.entries.keys().cloned().collect();
            for id in ids {
                self.enqueue(&id);
            }
        }
    }

    fn forget(&mut self, id: &ProxyId) {
        self.shared.parts.providers.unexpect(id);
        if let Some(entry) = self.entries.get_mut(id)
            && entry.turn == Turn::Running
        {
            entry.forgotten = Some(Forgotten::ForGood);
            return;
        }
        if let Some(entry) = self.entries.remove(id)
            && let Some(at) = entry.due
        {
            self.timers.remove(&(at, id.clone()));
        }
        self.shared.take(id);
    }

    fn want(&mut self, desired: Desired) {
        let id = desired.proxy.clone();
        if matches!(desired.intent, Intent::Delete | Intent::Abandon) {
            self.shared.parts.providers.unexpect(&id);
        }
        match self.entries.get_mut(&id) {
            Some(entry) if entry.forgotten.is_some() => {
                entry.desired = Arc::new(desired);
                entry.forgotten = Some(Forgotten::SucceededBy);
                return;
            }
            Some(entry) if *entry.desired == desired => return,
            Some(entry) => {
                entry.desired = Arc::new(desired);
                entry.forgive(Changed::Wish);
            }
            None => {
                self.entries.insert(id.clone(), Entry::new(desired));
            }
        }
        self.enqueue(&id);
    }

    /// Looks again at what failed at these providers, which changed since.
    fn retry(&mut self, names: &BTreeSet<ProviderName>) {
        let mut due = Vec::new();
        for (id, entry) in &mut self.entries {
            // Where no provider is known yet, any may have been the one that failed.
            let concerned = entry.lane.as_ref().is_none_or(|name| names.contains(name));
            if concerned && entry.forgive(Changed::Provider) {
                due.push(id.clone());
            }
        }
        for id in due {
            self.enqueue(&id);
        }
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
                if let Some(at) = entry.due.take() {
                    self.timers.remove(&(at, id.clone()));
                }
                let lane = entry
                    .lane
                    .clone()
                    .or_else(|| entry.desired.spec().map(|s| s.provider.clone()));
                entry.lane.clone_from(&lane);
                let moving = entry.moving;
                let lane = self.lanes.entry(lane).or_default();
                let queue = if moving {
                    &mut lane.moving
                } else {
                    &mut lane.waiting
                };
                queue.push_back(id.clone());
                self.shared.metrics.queued.inc();
            }
        }
    }

    fn wake_due(&mut self) {
        let now = Instant::now();
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, id)) = self.timers.pop_first() {
                self.enqueue(&id);
            }
        }
    }

    fn start_passes(&mut self) {
        for (name, lane) in &mut self.lanes {
            while lane.running < LANE_WIDTH {
                let Some(id) = lane.next() else {
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
                    let span = tracing::debug_span!(
                        "pass",
                        proxy = %id,
                        phase = tracing::field::Empty,
                        otel.status_code = tracing::field::Empty,
                        "error.type" = tracing::field::Empty,
                    );
                    let passed = pass(&shared.parts, &desired, now, &mut history);
                    let result = passed.instrument(span.clone()).await;
                    if let Ok(outcome) = &result {
                        span.record("phase", outcome.status.phase.as_str());
                    } else {
                        span.record("otel.status_code", "ERROR");
                        span.record("error.type", "store_error");
                    }
                    drop(span);
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
            mut history,
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
        let changed = std::mem::replace(&mut entry.changed, Changed::Nothing);
        entry.again |= changed.forgive(&mut history);
        entry.history = Some(history);
        let result_label = if result.is_ok() {
            PassResult::ok
        } else {
            PassResult::store_error
        };
        let label = PassLabel {
            result: result_label,
        };
        self.shared.metrics.passes.get_or_create(&label).inc();
        if let Some(forgotten) = entry.forgotten {
            let successor = (forgotten == Forgotten::SucceededBy).then(|| entry.desired.clone());
            self.entries.remove(&id);
            self.shared.take(&id);
            if let Some(desired) = successor {
                self.want(Desired::clone(&desired));
            }
            return None;
        }
        match result {
            Ok(outcome) => {
                entry.lane.clone_from(&outcome.status.provider);
                self.note_store(&id, &outcome);
                self.settle(&id, outcome);
                None
            }
            Err(PassError::Read(e)) => self.note_store_error(&id, StoreWait::Read, e),
            Err(PassError::Write { error, status }) => {
                if error.kind != StoreErrorKind::Conflict {
                    self.shared.publish(&id, *status);
                }
                self.note_store_error(&id, StoreWait::Write, error)
            }
        }
    }

    fn settle(&mut self, id: &ProxyId, outcome: Outcome) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        if outcome.gone && entry.is_going() {
            self.entries.remove(id);
            self.shared.withdraw(id, &outcome.status);
            return;
        }
        let again = std::mem::take(&mut entry.again);
        entry.moving = outcome.moving;
        self.shared.publish(id, outcome.status);
        match outcome.recheck {
            _ if again => self.enqueue(id),
            Some(wait) if wait.is_zero() => self.enqueue(id),
            Some(wait) => self.set_timer(id, wait),
            None => {}
        }
    }

    fn set_timer(&mut self, id: &ProxyId, wait: Duration) {
        if let Some(entry) = self.entries.get_mut(id) {
            let at = shared_moment(self.shared.epoch, Instant::now() + wait, wait);
            if let Some(before) = entry.due.replace(at) {
                self.timers.remove(&(before, id.clone()));
            }
            self.timers.insert((at, id.clone()));
        }
    }

    /// A pass went well. Who could not write before waits for the store until it wrote, or
    /// saw that there is nothing to write.
    fn note_store(&mut self, id: &ProxyId, outcome: &Outcome) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        let blind = matches!(
            outcome.plan.waiting,
            Some(Waiting::Trouble { .. } | Waiting::Undecided(_))
        );
        if entry.store_wait == Some(StoreWait::Write) && blind && !outcome.wrote {
            return;
        }
        entry.store_failures = 0;
        if entry.store_wait.take().is_some() {
            self.shared.clear_store_trouble(id);
        }
    }

    fn note_store_error(
        &mut self,
        id: &ProxyId,
        wait: StoreWait,
        error: StoreError,
    ) -> Option<StoreError> {
        if error.kind == StoreErrorKind::Lost {
            return Some(error);
        }
        let entry = self.entries.get_mut(id)?;
        entry.store_failures = entry.store_failures.saturating_add(1);
        let again = std::mem::take(&mut entry.again);
        let first = if error.kind == StoreErrorKind::Conflict {
            CONFLICT_WAIT
        } else {
            entry.store_wait = Some(wait);
            self.shared.note_store_trouble(id, error.chain());
            backoff::BACKOFF_MIN
        };
        let wait = backoff::doubling(first, backoff::BACKOFF_MAX, entry.store_failures);
        if again {
            self.enqueue(id);
        } else {
            self.set_timer(id, wait);
        }
        None
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
