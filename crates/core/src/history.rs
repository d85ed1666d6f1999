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

/// What a call of `create` sent that has an effect when it lands late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The request that brings the machine into being.
    pub machine: bool,
    /// A request that makes something beside it, as a seed.
    pub others: bool,
}

impl Sent {
    /// The request that brings the machine into being, and no other one.
    pub const MACHINE: Self = Self {
        machine: true,
        others: false,
    };
}

/// An attempt whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    attempt: u32,
    /// Since when nothing more was sent for it.
    since: Duration,
    /// Only one request is on its way, and it makes the machine: whoever sees the machine has
    /// seen it land.
    alone: bool,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The attempt that `restarts`, `boot` and `serving_faults` speak of.
    attempt: Option<u32>,
    /// The attempt of which something may still land.
    open: Option<Open>,
    /// The attempt all of whose requests are known to have ended.
    witnessed: Option<u32>,
    /// The attempt of which no request that could make a machine was sent, but for refused ones.
    unsent: Option<u32>,
    /// The attempt for which something beside a machine was sent, as a seed.
    beside: Option<u32>,
    /// The attempt that this process knows to be recorded as unsettled.
    marked: Option<u32>,
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
    /// When the machine of this attempt was made, for people.
    created: Option<(u32, jiff::Timestamp)>,
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
            self.note_claim(claim, now);
        }
        self.restarts
            .retain(|at| now.saturating_sub(*at) < CRASH_WINDOW);
        self.replacements
            .retain(|at| now.saturating_sub(*at) < 2 * CRASH_WINDOW);
    }

    fn note_claim(&mut self, claim: &Claim, now: Duration) {
        if !claim.unsettled {
            self.marked = None;
        } else if self.marked != Some(claim.attempt) {
            // Somebody else says so: this process does not know all that was sent.
            self.marked = Some(claim.attempt);
            self.witnessed = None;
            if let Some(open) = &mut self.open {
                open.alone = false;
            }
        }
        let unknown = (claim.standing == Standing::Sent || claim.unsettled)
            && self.witnessed != Some(claim.attempt)
            && self.open.is_none_or(|open| open.attempt != claim.attempt);
        if unknown {
            self.open = Some(Open {
                attempt: claim.attempt,
                since: now,
                // Before a second request the claim says that it is unsettled.
                alone: claim.standing == Standing::Sent && !claim.unsettled,
            });
        }
    }

    /// To be told each machine that was seen, before planning: a request that was alone has
    /// landed when its machine is seen. Runs the boot timer while the machine is started and
    /// reports no address, and stops it once it reports one or is off.
    pub fn note_machine(&mut self, record: &Record, machine: &ObservedMachine, now: Duration) {
        let Some(claim) = &record.claim else { return };
        if let Some(at) = machine.created_at {
            self.created = Some((claim.attempt, at));
        }
        let landed = |open: Open| {
            open.alone && open.attempt == claim.attempt && machine.attempt == Some(claim.attempt)
        };
        if self.open.is_some_and(landed) {
            self.open = None;
            self.witnessed = Some(claim.attempt);
        }
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

    /// To be told when this process records a claim: the one before it, and the new one.
    pub fn note_recorded(&mut self, before: Option<&Claim>, claim: &Claim) {
        let begins = claim.standing <= Standing::Sent;
        // A claim that stood at `Sent` may have been sent by a process before this one.
        if begins && before.is_none_or(|before| before.standing != Standing::Sent) {
            self.witnessed = Some(claim.attempt);
        }
        if begins && before.is_none_or(|before| before.standing == Standing::Unsent) {
            self.unsent = Some(claim.attempt);
        }
        self.marked = claim.unsettled.then_some(claim.attempt);
    }

    /// To be told when the record could not be written: whoever wrote it meanwhile may have sent
    /// something too.
    pub const fn note_unsaved(&mut self) {
        self.witnessed = None;
        self.unsent = None;
    }

    /// To be told after a create that sent something which can land late: what, and the class of
    /// the call's failure, or `None`.
    pub fn note_created(
        &mut self,
        attempt: u32,
        sent: Sent,
        failed: Option<ErrorClass>,
        now: Duration,
    ) {
        let unknown = matches!(
            failed,
            Some(ErrorClass::OutcomeUnknown | ErrorClass::Internal)
        );
        let first = self.is_unsent(attempt);
        if sent.machine && (unknown || failed.is_none()) {
            self.unsent = None;
        }
        if sent.others {
            self.beside = Some(attempt);
        }
        let open = self.open.filter(|open| open.attempt == attempt);
        if unknown || open.is_some() {
            let alone = open.map_or(sent.machine && !sent.others && first, |open| {
                open.alone && !sent.machine && !unknown
            });
            self.open = Some(Open {
                attempt,
                since: now,
                alone,
            });
            self.witnessed = None;
        }
    }

    /// Whether no request of this attempt can have made a machine: this process promised it, and
    /// knows of each that was sent that it was refused.
    pub fn is_unsent(&self, attempt: u32) -> bool {
        self.unsent == Some(attempt)
    }

    /// Whether there is an attempt of which [`is_unsent`](Self::is_unsent) says so.
    pub const fn has_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    /// Whether this claim stands at `Sent` for nothing: no request of its attempt made or left
    /// anything, nor can one still. Only this process knows, so it takes the word back before it
    /// ends; the next one would wait for what was never sent.
    pub fn sent_nothing(&self, claim: &Claim) -> bool {
        let attempt = claim.attempt;
        claim.standing == Standing::Sent
            && !claim.unsettled
            && self.is_unsent(attempt)
            && self.beside != Some(attempt)
            && self.open.is_none_or(|open| open.attempt != attempt)
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
    /// machine that was seen settles it only where one request was sent: where create was repeated
    /// while an earlier one was on its way, the one that lost may land once the slot is free
    /// again. Only asked after a look that was answered.
    pub fn may_land_for(&self, claim: &Claim, settle: Duration, now: Duration) -> Duration {
        match self.open {
            Some(open) if open.attempt == claim.attempt => {
                (open.since + settle).saturating_sub(now)
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

    /// When the machine of this attempt was made, as a look showed it.
    pub fn created_at(&self, attempt: u32) -> Option<jiff::Timestamp> {
        self.created
            .filter(|(of, _)| *of == attempt)
            .map(|(_, at)| at)
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
