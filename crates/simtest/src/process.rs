//! One process of the product on a [`Ground`]: it remembers nothing of the one before it.

use crate::{
    ground::{Ground, Hypervisor},
    records::Opened,
};
use egress_core::{history::History, plan::Phase, proxy::Desired};
use egress_engine::{
    Outcome, PassError, PermitSource, Providers, pass, pass::Parts, store::StoreErrorKind,
};
use egress_provider::Permit;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How many passes may be needed before a goal counts as never reached.
const MAX_PASSES: usize = 2_000;
/// The longest a driver waits between two looks, whatever the plan says.
const MAX_WAIT: Duration = Duration::from_mins(2);

/// Gives permits until the lease ends; a permit outlives its lease by at most its lifetime.
#[derive(Clone, Debug, Default)]
pub struct Lease(Arc<Mutex<Option<Instant>>>);

/// How long one permit lasts.
pub const PERMIT: Duration = Duration::from_secs(30);

impl Lease {
    /// Ends the lease now: no permit lasts beyond `PERMIT` from here.
    pub fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

impl PermitSource for Lease {
    fn permit(&self, attempt: u32) -> Option<Permit> {
        let end = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + PERMIT;
        Some(Permit::new(
            attempt,
            end.map_or(until, |end| end.min(until)),
        ))
    }
}

/// A process that drives one Proxy.
pub struct Process {
    parts: Parts,
    records: Opened,
    history: History,
    epoch: Instant,
    client: u32,
}

/// What a Proxy should come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Its machine runs, is proven and its seed is sealed away.
    Serving,
    /// Nothing is left.
    Gone,
}

impl Process {
    /// A fresh process.
    pub fn start<H: Hypervisor>(ground: &Ground<H>, lease: Lease) -> Self {
        let (provider, client) = ground.world.provider();
        let permits = Arc::new(lease);
        let settle = provider.capabilities().late_create.settle();
        let records = ground.records.open(permits.clone(), settle);
        let parts = Parts {
            store: records.store.clone(),
            providers: Arc::new(Providers::new([provider])),
            credentials: ground.passwords.clone(),
            prober: ground.world.prober(),
            permits,
        };
        Self {
            parts,
            records,
            history: History::default(),
            epoch: Instant::now(),
            client,
        }
    }

    /// Its number in the hypervisor's log of requests.
    pub const fn client(&self) -> u32 {
        self.client
    }

    /// Reads all records, as a process does once when it starts.
    pub async fn load(&self) {
        self.records.refresh();
        let Ok(all) = self.parts.store.list().await else {
            return;
        };
        for (_, stored) in all {
            if let Ok(stored) = stored {
                self.parts.providers.note(None, Some(&stored.record), false);
            }
        }
    }

    /// One pass.
    pub async fn pass(&mut self, desired: &Desired) -> Result<Outcome, PassError> {
        let now = self.epoch.elapsed();
        pass(&self.parts, desired, now, &mut self.history).await
    }

    /// Passes until the goal is reached; `watch` is told after every pass and may end the
    /// run with a complaint. `Err`: what went wrong, for the test's message.
    pub async fn reach(
        &mut self,
        desired: &Desired,
        goal: Goal,
        mut watch: impl FnMut() -> Result<(), String>,
    ) -> Result<(), String> {
        self.records.see(desired);
        self.load().await;
        let mut last = String::new();
        for _ in 0..MAX_PASSES {
            let ended = self.pass(desired).await;
            watch()?;
            let wait = match ended {
                Ok(outcome) => {
                    if reached(&outcome, goal) {
                        return Ok(());
                    }
                    last = format!("{:?} {:?}", outcome.status.phase, outcome.plan);
                    outcome.recheck.unwrap_or(MAX_WAIT).min(MAX_WAIT)
                }
                Err(e) if e.store().kind == StoreErrorKind::Conflict => Duration::from_millis(50),
                Err(e) => {
                    last = format!(
                        "{e}: {:?}",
                        std::error::Error::source(&e).map(ToString::to_string)
                    );
                    Duration::from_secs(1)
                }
            };
            tokio::time::sleep(wait).await;
        }
        Err(format!("no {goal:?} in {MAX_PASSES} passes; last: {last}"))
    }
}

fn reached(outcome: &Outcome, goal: Goal) -> bool {
    match goal {
        Goal::Gone => outcome.gone,
        Goal::Serving => {
            let steady = outcome.plan.phase == Phase::Running
                && outcome.plan.actions.is_empty()
                && outcome.plan.waiting.is_none();
            steady
                && outcome
                    .recheck
                    .is_some_and(|wait| wait > Duration::from_secs(5))
        }
    }
}
