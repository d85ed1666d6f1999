//! What one process remembers of a Proxy between passes. A restart begins it anew: nothing
//! here is needed to be right, only to be patient.

use crate::{
    backoff::{self, CRASH_WINDOW, REFUSED_FOR},
    machine::{Claim, ErrorClass, MachineKey, Record, Slot, SpentWhy, Standing},
    proxy::Trouble,
};
use std::{collections::BTreeMap, time::Duration};

/// A call that failed, and how often in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong.
    pub trouble: Trouble,
    /// Failures in a row.
    pub count: u32,
    /// No call before this moment.
    pub retry_at: Duration,
    /// Whether it was a look: the next one that is answered clears it.
    pub looking: bool,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The attempt whose outcome is unknown, and since when nothing more was sent for it.
    open: Option<(u32, Duration)>,
    /// The attempt all of whose calls were made, and answered, in this process.
    witnessed: Option<u32>,
    /// The last failed call, until one succeeds.
    failure: Option<Failure>,
    /// When a stopped machine was started again.
    restarts: Vec<Duration>,
    /// When a machine was given up for a fault.
    replacements: Vec<Duration>,
    /// First sight of the attempt started and without an address.
    boot: Option<(u32, Duration)>,
    /// First sight of each spent slot, by attempt.
    spent: BTreeMap<u32, Duration>,
    /// Probes in a row that failed.
    serving_faults: u32,
}

impl History {
    /// To be told each pass, before planning: begins the timers of what is seen first.
    pub fn note_record(&mut self, record: Option<&Record>, now: Duration) {
        let Some(record) = record else {
            *self = Self { failure: self.failure.take(), ..Self::default() };
            return;
        };
        for spent in &record.spent {
            self.spent.entry(spent.attempt).or_insert(now);
        }
        if let Some(claim) = &record.claim {
            let unknown = claim.standing == Standing::Sent
                && self.witnessed != Some(claim.attempt)
                && self.open.is_none_or(|(attempt, _)| attempt != claim.attempt);
            if unknown {
                self.open = Some((claim.attempt, now));
            }
        }
        self.restarts.retain(|at| now.saturating_sub(*at) < CRASH_WINDOW);
        self.replacements.retain(|at| now.saturating_sub(*at) < 2 * CRASH_WINDOW);
    }

    /// To be told when the claim of a new attempt was recorded by this process.
    pub fn note_claimed(&mut self, claim: &Claim) {
        if claim.standing <= Standing::Sent {
            self.witnessed = Some(claim.attempt);
        }
    }

    /// To be told after a create: the class of its failure, or `None`.
    pub fn note_created(&mut self, attempt: u32, failed: Option<ErrorClass>, now: Duration) {
        let unknown = matches!(failed, Some(ErrorClass::OutcomeUnknown | ErrorClass::Internal));
        if unknown || self.open.is_some_and(|(open, _)| open == attempt) {
            self.open = Some((attempt, now));
            self.witnessed = None;
        }
    }

    /// To be told when a stopped machine is started again.
    pub fn note_restart(&mut self, now: Duration) {
        self.restarts.push(now);
    }

    /// To be told when a machine is given up for a fault, not for a change of the spec.
    pub fn note_replacement(&mut self, now: Duration) {
        self.replacements.push(now);
        self.restarts.clear();
    }

    /// To be told each pass in which the machine is started and reports no address.
    pub fn note_booting(&mut self, attempt: u32, now: Duration) {
        if self.boot.is_none_or(|(of, _)| of != attempt) {
            self.boot = Some((attempt, now));
        }
    }

    /// To be told the result of each probe.
    pub const fn note_serving(&mut self, answered: bool) {
        self.serving_faults = if answered { 0 } else { self.serving_faults.saturating_add(1) };
    }

    /// To be told of every create, seal or delete that failed.
    pub fn note_failure(&mut self, trouble: Trouble, key: &MachineKey, now: Duration) {
        self.fail(trouble, key, now, false);
    }

    /// To be told of every look that failed.
    pub fn note_look_failed(&mut self, trouble: Trouble, key: &MachineKey, now: Duration) {
        self.fail(trouble, key, now, true);
    }

    /// To be told of every look that was answered.
    pub fn note_looked(&mut self) {
        if self.failure.as_ref().is_some_and(|f| f.looking) {
            self.failure = None;
        }
    }

    fn fail(&mut self, trouble: Trouble, key: &MachineKey, now: Duration, looking: bool) {
        let count = self
            .failure
            .as_ref()
            .filter(|f| f.trouble.class == trouble.class)
            .map_or(1, |f| f.count.saturating_add(1));
        let retry_at = now + backoff::after_failure(trouble.class, count, key);
        self.failure = Some(Failure { trouble, count, retry_at, looking });
    }

    /// To be told when a call succeeded, or what the user asks for changed.
    pub fn note_success(&mut self) {
        self.failure = None;
    }

    /// How much longer a create of this attempt may still land; zero once it is settled.
    /// Seen machines have landed. Only asked after a look that was answered.
    pub fn may_land_for(&self, claim: &Claim, settle: Duration, now: Duration) -> Duration {
        match self.open {
            Some((attempt, since)) if attempt == claim.attempt && claim.standing < Standing::Seen => {
                (since + settle).saturating_sub(now)
            }
            _ => Duration::ZERO,
        }
    }

    /// The failure that still forbids another call, if any.
    pub fn holding(&self, now: Duration) -> Option<&Failure> {
        self.failure.as_ref().filter(|f| now < f.retry_at)
    }

    /// The last failure, until a call succeeds.
    pub const fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Restarts within the last hour.
    pub const fn restarts(&self) -> usize {
        self.restarts.len()
    }

    /// When the next machine may be claimed: at once after the first fault, later and later
    /// when faults follow each other.
    pub fn replace_at(&self) -> Duration {
        let n = u32::try_from(self.replacements.len()).unwrap_or(u32::MAX);
        match (n, self.replacements.last()) {
            (0 | 1, _) | (_, None) => Duration::ZERO,
            (n, Some(last)) => {
                *last + backoff::doubling(backoff::REPLACE_MIN, backoff::REPLACE_MAX, n - 1)
            }
        }
    }

    /// Since when this attempt is started and without an address.
    pub fn booting_since(&self, attempt: u32) -> Option<Duration> {
        self.boot.filter(|(of, _)| *of == attempt).map(|(_, since)| since)
    }

    /// Probes in a row that failed.
    pub const fn serving_faults(&self) -> u32 {
        self.serving_faults
    }

    /// The slots of this record that must not be proposed now: those someone else held, for
    /// a while, and those freed less than the settle bound ago (D6).
    pub fn untouchable(&self, record: &Record, settle: Duration, now: Duration) -> Vec<Slot> {
        record
            .spent
            .iter()
            .filter(|spent| {
                let since = self.spent.get(&spent.attempt).copied().unwrap_or(now);
                let hold = match spent.why {
                    SpentWhy::Refused => REFUSED_FOR,
                    SpentWhy::Freed => settle,
                };
                now < since + hold
            })
            .map(|spent| spent.slot.clone())
            .collect()
    }
}
