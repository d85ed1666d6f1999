//! Who may act: leader election by a Lease, and permits that end before anyone else can lead.
//!
//! A permit is good until the moment at which the newest successful renewal was *sent*, plus the
//! lease's duration, less [`MARGIN`]. Another replica takes the lease only after it has watched
//! it unchanged for that duration, and it cannot have seen the renewal before it was sent. So at
//! most one process acts, also when a process is frozen, the API server is away, or clocks of
//! hosts differ: only their rates count.

#[cfg(test)]
mod tests;

use crate::api::{FIELD_MANAGER, Failure, in_time};
use egress_core::backoff::PERMIT_LIFETIME;
use egress_engine::PermitSource;
use egress_provider::Permit;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use rustix::time::{ClockId, clock_gettime};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// What a permit ends before the lease does: clocks that run at different rates, and a request
/// on its way.
pub const MARGIN: Duration = Duration::from_secs(3);

/// How a Lease is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// The Lease's namespace.
    pub namespace: String,
    /// The Lease's name.
    pub name: String,
    /// Who we are: another text for every process.
    pub identity: String,
    /// How long it lasts without a renewal, whole seconds, more than [`MARGIN`].
    pub duration: Duration,
}

impl LeaseSettings {
    /// From one renewal to the next.
    fn renewal(&self) -> Duration {
        self.duration / 3
    }
    /// From one look at somebody else's lease to the next, and from a failure to the next try.
    fn retry(&self) -> Duration {
        (self.duration / 10).min(Duration::from_secs(2))
    }
}

/// A moment on a clock that stands still while the machine sleeps, and on one that does not.
#[derive(Clone, Copy)]
struct Moment {
    running: Instant,
    with_sleep: Duration,
}

impl Moment {
    fn now() -> Self {
        let since_boot = clock_gettime(ClockId::Boottime);
        let secs = u64::try_from(since_boot.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(since_boot.tv_nsec).unwrap_or(0);
        Self {
            running: Instant::now(),
            with_sleep: Duration::new(secs, nanos),
        }
    }

    fn elapsed(self) -> Duration {
        let now = Self::now();
        let running = now.running.duration_since(self.running);
        running.max(now.with_sleep.saturating_sub(self.with_sleep))
    }
}

/// The right to act as it stands now. A clone is the same one.
#[derive(Clone, Default)]
pub struct Leadership {
    /// When the newest renewal that succeeded was sent, and for how long it counts.
    held: Arc<Mutex<Option<(Moment, Duration)>>>,
}

impl Leadership {
    fn held(&self) -> MutexGuard<'_, Option<(Moment, Duration)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long this process may still act, by the newest renewal.
    pub fn left(&self) -> Duration {
        let held = *self.held();
        held.map_or(Duration::ZERO, |(sent, counts)| {
            counts.saturating_sub(sent.elapsed())
        })
    }
}

impl PermitSource for Leadership {
    fn permit(&self, attempt: u32) -> Option<Permit> {
        let left = self.left().min(PERMIT_LIFETIME);
        (!left.is_zero()).then(|| Permit::new(attempt, Instant::now() + left))
    }
}

/// What an elector last found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has not looked yet.
    Unknown,
    /// This process leads.
    Leading,
    /// Somebody else does.
    Following(String),
    /// The Lease cannot be read or written; the text says why and what to do.
    Trouble(String),
}

/// Takes, renews and gives up one Lease.
pub struct Elector {
    api: Api<Lease>,
    settings: LeaseSettings,
    leadership: Leadership,
    standing: watch::Sender<Standing>,
    /// The lease as last seen, and when it was first seen so.
    seen: Option<(Lease, Instant)>,
}

impl Elector {
    /// Will hold this Lease by this client.
    pub fn new(client: Client, settings: LeaseSettings) -> Self {
        Self {
            api: Api::namespaced(client, &settings.namespace),
            settings,
            leadership: Leadership::default(),
            standing: watch::Sender::new(Standing::Unknown),
            seen: None,
        }
    }

    /// The permits that come from it.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// What it last found.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// Holds the Lease whenever it can, until dropped or `stop` resolves; then gives it up at
    /// once.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        loop {
            let wait = self.turn().await;
            tokio::select! {
                () = &mut stop => break,
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.give_up().await;
    }

    /// One try; answers with the wait before the next.
    async fn turn(&mut self) -> Duration {
        let sent = Moment::now();
        // A request that is answered later than the permits would end is worth nothing.
        let patience = self.settings.duration / 2;
        let tried = tokio::time::timeout(patience, self.take_or_renew()).await;
        let tried = tried.unwrap_or_else(|_| Err(Failure::Unknown("no answer in time".into())));
        let standing = match tried {
            Ok(None) => {
                let counts = self.settings.duration.saturating_sub(MARGIN);
                *self.leadership.held() = Some((sent, counts));
                Standing::Leading
            }
            Ok(Some(other)) => {
                *self.leadership.held() = None;
                Standing::Following(other)
            }
            Err(_) if !self.leadership.left().is_zero() => Standing::Leading,
            Err(failure) => Standing::Trouble(self.told(&failure)),
        };
        let wait = if standing == Standing::Leading && self.is_fresh(sent) {
            self.settings.renewal()
        } else {
            self.settings.retry()
        };
        self.standing.send_if_modified(|before| {
            let differs = *before != standing;
            *before = standing;
            differs
        });
        wait
    }

    /// Whether the renewal that was sent then is the newest one.
    fn is_fresh(&self, sent: Moment) -> bool {
        let held = *self.leadership.held();
        held.is_some_and(|(newest, _)| newest.running == sent.running)
    }

    fn told(&self, failure: &Failure) -> String {
        format!(
            "Lease {}/{}: {failure}: nothing is changed meanwhile",
            self.settings.namespace, self.settings.name
        )
    }

    /// Holds the lease, `None`, or says who does.
    async fn take_or_renew(&mut self) -> Result<Option<String>, Failure> {
        let mine = self.settings.identity.clone();
        let Some(found) = in_time(self.api.get_opt(&self.settings.name)).await? else {
            // Whoever held the one that was removed may act until it would have expired.
            if let Some((before, since)) = &self.seen
                && let Some(other) = holder(before).filter(|holder| *holder != mine)
                && since.elapsed() < self.settings.duration + self.settings.renewal()
            {
                return Ok(Some(other));
            }
            let made = self.lease(None, None);
            return match in_time(self.api.create(&params(), &made)).await {
                Ok(made) => {
                    self.note(made);
                    Ok(None)
                }
                // Somebody was first.
                Err(Failure::Conflict) => Ok(Some(String::new())),
                Err(other) => Err(other),
            };
        };
        self.note(found.clone());
        let spec = found.spec.as_ref();
        let holder = holder(&found);
        if let Some(other) = holder.as_ref().filter(|holder| **holder != mine)
            && !self.is_expired(spec)
        {
            return Ok(Some(other.clone()));
        }
        let renewed = holder.as_ref() == Some(&mine);
        let next = self.lease(Some(&found), spec.filter(|_| renewed));
        match in_time(self.api.replace(&self.settings.name, &params(), &next)).await {
            Ok(written) => {
                self.note(written);
                Ok(None)
            }
            // Somebody touched it who does not want it, or a renewal of ours came late: again.
            Err(Failure::Conflict) if renewed => Err(Failure::Conflict),
            Err(Failure::Conflict | Failure::Missing) => Ok(Some(holder.unwrap_or_default())),
            Err(other) => Err(other),
        }
    }

    /// Keeps what was seen, and since when it is so.
    fn note(&mut self, found: Lease) {
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        let same = self
            .seen
            .as_ref()
            .is_some_and(|(before, _)| version(before) == version(&found));
        if !same {
            self.seen = Some((found, Instant::now()));
        }
    }

    /// Whether somebody else's lease was seen unchanged for as long as it lasts.
    fn is_expired(&self, spec: Option<&LeaseSpec>) -> bool {
        let Some((_, since)) = &self.seen else {
            return false;
        };
        let theirs = spec
            .and_then(|s| s.lease_duration_seconds)
            .and_then(|secs| u64::try_from(secs).ok())
            .map_or(self.settings.duration, Duration::from_secs);
        since.elapsed() >= theirs.max(self.settings.duration)
    }

    /// The lease as ours; `renewed` is what it was where it was ours before.
    fn lease(&self, found: Option<&Lease>, renewed: Option<&LeaseSpec>) -> Lease {
        let now = MicroTime(Timestamp::now());
        let before = found.and_then(|lease| lease.spec.as_ref());
        let transitions = before.and_then(|s| s.lease_transitions).unwrap_or(0);
        let duration = i32::try_from(self.settings.duration.as_secs()).unwrap_or(i32::MAX);
        Lease {
            metadata: found.map_or_else(
                || ObjectMeta {
                    name: Some(self.settings.name.clone()),
                    namespace: Some(self.settings.namespace.clone()),
                    ..ObjectMeta::default()
                },
                |lease| lease.metadata.clone(),
            ),
            spec: Some(LeaseSpec {
                holder_identity: Some(self.settings.identity.clone()),
                lease_duration_seconds: Some(duration),
                acquire_time: renewed
                    .and_then(|spec| spec.acquire_time.clone())
                    .or_else(|| Some(now.clone())),
                renew_time: Some(now),
                lease_transitions: Some(transitions + i32::from(renewed.is_none())),
                ..LeaseSpec::default()
            }),
        }
    }

    /// Lets the next one lead at once.
    async fn give_up(&mut self) {
        *self.leadership.held() = None;
        let Some((lease, _)) = self.seen.take() else {
            return;
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_ref() != Some(&self.settings.identity) {
            return;
        }
        let empty = Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(String::new()),
                lease_duration_seconds: Some(1),
                renew_time: Some(MicroTime(Timestamp::now())),
                ..spec
            }),
            ..lease
        };
        // Whoever changed it meanwhile leads already.
        let given = in_time(self.api.replace(&self.settings.name, &params(), &empty)).await;
        match given {
            Ok(_) => tracing::info!("the lease is given up"),
            Err(e) => tracing::warn!("{}", self.told(&e)),
        }
        self.standing.send_replace(Standing::Unknown);
    }
}

fn holder(lease: &Lease) -> Option<String> {
    let holder = lease.spec.as_ref()?.holder_identity.clone()?;
    (!holder.is_empty()).then_some(holder)
}

fn params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PostParams::default()
    }
}
