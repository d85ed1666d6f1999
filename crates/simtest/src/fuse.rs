//! What cuts a process down, or plays it a trick, at its n-th effect. An effect is a
//! mutating request to the hypervisor or a write of a record.

use async_trait::async_trait;
use egress_core::ErrorClass;
use egress_engine::store::StoreErrorKind;
use egress_engine::store::memory as store;
use egress_provider::memory as hypervisor;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// What happens at the n-th effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trick {
    /// The process dies before the effect.
    DieBefore,
    /// The process dies after the effect, before it hears of it.
    DieAfter,
    /// The process dies while the request that makes a machine is on its way: it lands so long
    /// after. Elsewhere the same as [`Trick::DieAfter`]: an upload ends with its connection, and
    /// what is asked of a machine that is gone by then has no effect.
    DieLate(Duration),
    /// The answer is lost; the effect comes so long after, or never. A record write is
    /// reported as an unknown outcome, landed if there is a time.
    LoseAnswer(Option<Duration>),
    /// The API server gives up on what works behind it and says so after its patience; the
    /// effect comes so long after the request, or never. Elsewhere the same as
    /// [`Trick::LoseAnswer`].
    TimeOut(Option<Duration>),
    /// The other side refuses with this class; nothing changes. A record write is refused
    /// as unavailable.
    Refuse(ErrorClass),
    /// The process is frozen for so long, and then goes on as if nothing were.
    Freeze(Duration),
}

type Meddle = Box<dyn FnOnce() + Send>;

/// Counts effects and plays its trick at one of them.
pub struct Fuse {
    at: u32,
    /// Whether reads of the hypervisor count as well, where it can tell of them.
    reads: bool,
    trick: Option<Trick>,
    meddle: Mutex<Option<Meddle>>,
    count: AtomicU32,
    dead: Notify,
    frozen: Notify,
}

impl Fuse {
    /// One that only counts.
    pub fn counting() -> Arc<Self> {
        Self::new(u32::MAX, None, None)
    }
    /// One that only counts, reads of the hypervisor included.
    pub fn counting_reads() -> Arc<Self> {
        Self::new_with(u32::MAX, true, None, None)
    }
    /// One that plays `trick` at the `at`th effect, from 1.
    pub fn at(at: u32, trick: Trick) -> Arc<Self> {
        Self::new(at, Some(trick), None)
    }
    /// One that lets the process die before the `at`th request or record write, reads included.
    pub fn at_any_request(at: u32) -> Arc<Self> {
        Self::new_with(at, true, Some(Trick::DieBefore), None)
    }
    /// One that lets someone meddle right before the `at`th effect, and then plays its trick.
    pub fn meddling(
        at: u32,
        trick: Option<Trick>,
        meddle: impl FnOnce() + Send + 'static,
    ) -> Arc<Self> {
        Self::new(at, trick, Some(Box::new(meddle)))
    }
    fn new(at: u32, trick: Option<Trick>, meddle: Option<Meddle>) -> Arc<Self> {
        Self::new_with(at, false, trick, meddle)
    }
    fn new_with(at: u32, reads: bool, trick: Option<Trick>, meddle: Option<Meddle>) -> Arc<Self> {
        Arc::new(Self {
            at,
            reads,
            trick,
            meddle: Mutex::new(meddle),
            count: AtomicU32::new(0),
            dead: Notify::new(),
            frozen: Notify::new(),
        })
    }
    /// Effects so far.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }
    /// Whether the trick was played, or the moment to meddle came.
    pub fn burnt(&self) -> bool {
        self.count() >= self.at
    }
    /// Resolves when the process has died.
    pub async fn death(&self) {
        self.dead.notified().await;
    }
    /// Resolves when the process has frozen.
    pub async fn freeze(&self) {
        self.frozen.notified().await;
    }
    /// A read is about to be sent.
    pub(crate) fn burn_at_read(&self) -> Option<Trick> {
        self.reads.then(|| self.burn()).flatten()
    }
    /// An effect is about to happen: the trick that is played on it.
    pub(crate) fn burn(&self) -> Option<Trick> {
        if self.count.fetch_add(1, Ordering::SeqCst) + 1 != self.at {
            return None;
        }
        let meddle = self
            .meddle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(meddle) = meddle {
            meddle();
        }
        match self.trick {
            Some(Trick::DieBefore | Trick::DieAfter | Trick::DieLate(_)) => self.dead.notify_one(),
            Some(Trick::Freeze(_)) => self.frozen.notify_one(),
            _ => {}
        }
        self.trick
    }
}

#[async_trait]
impl hypervisor::Gate for Fuse {
    async fn decide(&self, request: &hypervisor::Request) -> hypervisor::Verdict {
        use hypervisor::{RequestKind, Verdict};
        match self.burn() {
            None => Verdict::Pass,
            Some(Trick::DieBefore) => Verdict::HangBefore,
            Some(Trick::DieLate(lands)) if request.kind == RequestKind::Clone => {
                Verdict::HangLate { lands }
            }
            Some(Trick::DieAfter | Trick::DieLate(_)) => Verdict::HangAfter,
            Some(Trick::LoseAnswer(lands) | Trick::TimeOut(lands)) => Verdict::LoseAnswer { lands },
            Some(Trick::Refuse(class)) => Verdict::Refuse {
                class,
                said: "refused by the test".into(),
            },
            Some(Trick::Freeze(time)) => {
                tokio::time::sleep(time).await;
                Verdict::Pass
            }
        }
    }
}

#[async_trait]
impl store::Gate for Fuse {
    async fn judge(&self, write: &store::Write) -> store::Verdict {
        use store::Verdict;
        match self.burn() {
            None => Verdict::Pass,
            Some(Trick::DieBefore) => Verdict::HangBefore,
            Some(Trick::DieAfter | Trick::DieLate(_)) => Verdict::HangAfter,
            Some(Trick::LoseAnswer(None) | Trick::TimeOut(None)) => {
                Verdict::FailBefore(StoreErrorKind::OutcomeUnknown)
            }
            Some(Trick::LoseAnswer(Some(_)) | Trick::TimeOut(Some(_))) => {
                Verdict::FailAfter(StoreErrorKind::OutcomeUnknown)
            }
            Some(Trick::Refuse(_)) => Verdict::FailBefore(StoreErrorKind::Unavailable),
            Some(Trick::Freeze(time)) => {
                tokio::time::sleep(time).await;
                // A first write has no version to fail on: there the store itself notices
                // that its lock, or the object, was lost meanwhile.
                match &write.kind {
                    store::WriteKind::Save(record) if record.last_attempt <= 1 => {
                        Verdict::FailBefore(StoreErrorKind::Lost)
                    }
                    _ => Verdict::Pass,
                }
            }
        }
    }
}
