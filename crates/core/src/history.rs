//! What one process remembers of a Proxy between passes. A restart begins it anew: nothing
//! here is needed to be right, only to be patient.

use crate::{
    backoff::{self, CRASH_WINDOW, REFUSED_FOR, RESTART_GRACE},
    machine::{
        Claim, ErrorClass, MachineKey, MachineState, ObservedMachine, Record, Slot, SpentWhy,
        Standing,
    },
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

impl Failure {
    fn after(before: Option<&Self>, trouble: Trouble, key: &MachineKey, now: Duration) -> Self {
        let count = before
            .filter(|f| f.trouble.class == trouble.class)
            .map_or(1, |f| f.count.saturating_add(1));
        let retry_at = now + backoff::after_failure(trouble.class, count, key);
        Self {
            trouble,
            count,
            retry_at,
            looking: false,
        }
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The attempt that `restarts`, `boot` and `serving_faults` speak of.
    attempt: Option<u32>,
    /// The attempt whose outcome is unknown, and since when nothing more was sent for it.
    open: Option<(u32, Duration)>,
    /// The attempt all of whose calls were made, and answered, in this process.
    witnessed: Option<u32>,
    /// The last failed effect, until one succeeds.
    failure: Option<Failure>,
    /// The last failed look, until one is answered.
    unseen: Option<Failure>,
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
    /// To be told each pass, before planning: begins the timers of what is seen first, and
    /// forgets what was only true of an earlier machine.
    pub fn note_record(&mut self, record: Option<&Record>, now: Duration) {
        let Some(record) = record else {
            *self = Self {
                failure: self.failure.take(),
                unseen: self.unseen.take(),
                ..Self::default()
            };
            return;
        };
        let attempt = record.claim.as_ref().map(|claim| claim.attempt);
        if attempt != self.attempt {
            self.attempt = attempt;
            self.restarts.clear();
            self.boot = None;
            self.serving_faults = 0;
        }
        self.spent
            .retain(|attempt, _| record.spent.iter().any(|spent| spent.attempt == *attempt));
        for spent in &record.spent {
            self.spent.entry(spent.attempt).or_insert(now);
        }
        if let Some(claim) = &record.claim {
            let unknown = (claim.standing == Standing::Sent || claim.unsettled)
                && self.witnessed != Some(claim.attempt)
                && self
                    .open
                    .is_none_or(|(attempt, _)| attempt != claim.attempt);
            if unknown {
                self.open = Some((claim.attempt, now));
            }
        }
        self.restarts
            .retain(|at| now.saturating_sub(*at) < CRASH_WINDOW);
        self.replacements
            .retain(|at| now.saturating_sub(*at) < 2 * CRASH_WINDOW);
    }

    /// To be told each machine that was seen, before planning: runs the boot timer while it
    /// is started and reports no address, and stops it once it reports one or is off.
    pub fn note_machine(&mut self, record: &Record, machine: &ObservedMachine, now: Duration) {
        let Some(claim) = &record.claim else { return };
        match &machine.state {
            MachineState::Provisioning => self.note_booting(claim.attempt, now),
            MachineState::Running(addresses)
                if addresses.best().is_none() && record.proven.is_none() =>
            {
                self.note_booting(claim.attempt, now);
            }
            MachineState::InProgress { .. }
            | MachineState::Unknown { .. }
            | MachineState::NotOwned { .. } => {}
            MachineState::Running(_)
            | MachineState::Stopped(_)
            | MachineState::Absent
            | MachineState::Foreign => self.boot = None,
        }
    }

    /// To be told when the claim of a new attempt was recorded by this process.
    pub fn note_claimed(&mut self, claim: &Claim) {
        if claim.standing <= Standing::Sent {
            self.witnessed = Some(claim.attempt);
        }
    }

    /// To be told after a create: the class of its failure, or `None`.
    pub fn note_created(&mut self, attempt: u32, failed: Option<ErrorClass>, now: Duration) {
        let unknown = matches!(
            failed,
            Some(ErrorClass::OutcomeUnknown | ErrorClass::Internal)
        );
        if unknown || self.open.is_some_and(|(open, _)| open == attempt) {
            self.open = Some((attempt, now));
            self.witnessed = None;
        }
    }

    /// To be told when a create that starts a stopped machine again was answered without an
    /// error.
    pub fn note_restart(&mut self, now: Duration) {
        self.restarts.push(now);
        self.boot = None; // it boots once more
    }

    /// To be told when a machine is given up for a fault, not for a change of the spec.
    pub fn note_replacement(&mut self, now: Duration) {
        self.replacements.push(now);
        self.restarts.clear();
    }

    /// To be told each pass in which the machine is started and reports no address;
    /// [`note_machine`](Self::note_machine) does.
    pub fn note_booting(&mut self, attempt: u32, now: Duration) {
        if self.boot.is_none_or(|(of, _)| of != attempt) {
            self.boot = Some((attempt, now));
        }
    }

    /// To be told the result of each probe.
    pub const fn note_serving(&mut self, answered: bool) {
        self.boot = None; // only a machine with an address is asked
        self.serving_faults = if answered {
            0
        } else {
            self.serving_faults.saturating_add(1)
        };
    }

    /// To be told of every create, seal or delete that failed.
    pub fn note_failure(&mut self, trouble: Trouble, key: &MachineKey, now: Duration) {
        self.failure = Some(Failure::after(self.failure.as_ref(), trouble, key, now));
    }

    /// To be told of every look that failed. Looks and effects are counted apart: that a
    /// look is answered again does not mean that a create may be repeated.
    pub fn note_look_failed(&mut self, trouble: Trouble, key: &MachineKey, now: Duration) {
        let failure = Failure::after(self.unseen.as_ref(), trouble, key, now);
        self.unseen = Some(Failure {
            looking: true,
            ..failure
        });
    }

    /// To be told of every look that was answered.
    pub fn note_looked(&mut self) {
        self.unseen = None;
    }

    /// To be told when a create, seal or delete succeeded, or when the configuration or the
    /// provider's own report changed.
    pub fn note_success(&mut self) {
        self.failure = None;
        self.unseen = None;
    }

    /// To be told when what the user asks for changed: what failed as it was before may
    /// succeed now, and the faults of earlier machines say nothing about the next one.
    pub fn note_changed(&mut self) {
        self.note_success();
        self.replacements.clear();
    }

    /// How much longer a create of this attempt may still land; zero once it is settled. A
    /// machine that was seen does not settle it: create is repeated while an earlier request
    /// is on its way, and the one that lost may land once the slot is free again. Only asked
    /// after a look that was answered.
    pub fn may_land_for(&self, claim: &Claim, settle: Duration, now: Duration) -> Duration {
        match self.open {
            Some((attempt, since)) if attempt == claim.attempt => {
                (since + settle).saturating_sub(now)
            }
            _ => Duration::ZERO,
        }
    }

    /// The failure that still forbids another call, if any: that of a look before that of an
    /// effect.
    pub fn holding(&self, now: Duration) -> Option<&Failure> {
        [&self.unseen, &self.failure]
            .into_iter()
            .flatten()
            .find(|f| now < f.retry_at)
    }

    /// The last failure that no success followed: that of a look before that of an effect.
    pub fn failure(&self) -> Option<&Failure> {
        self.unseen.as_ref().or(self.failure.as_ref())
    }

    /// Restarts of the present machine within the last hour.
    pub const fn restarts(&self) -> usize {
        self.restarts.len()
    }

    /// How much longer a machine that was started again may still look stopped.
    pub fn restart_grace(&self, now: Duration) -> Duration {
        self.restarts.last().map_or(Duration::ZERO, |at| {
            (*at + RESTART_GRACE).saturating_sub(now)
        })
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
        self.boot
            .filter(|(of, _)| *of == attempt)
            .map(|(_, since)| since)
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

#[cfg(test)]
mod tests;
