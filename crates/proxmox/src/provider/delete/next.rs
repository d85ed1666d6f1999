//! What `delete` does next, from what one look shows. Pure.

use crate::{
    client::Lock,
    provider::{
        create::next::Trouble,
        power::{LockMeaning, Power, meaning},
        waits,
    },
};
use egress_core::{
    ErrorClass,
    machine::{Mark, Whose},
};
use std::time::Duration;

/// A request to destroy whose answer never came is not repeated before this: it may still be
/// on its way, and a repeat that arrives late has destroyed a stranger (pve-flow §12).
pub(in crate::provider) const DOUBT: Duration = Duration::from_mins(1);

/// HA only takes note of a request to stop (read, §7.3): it gets so long before the next one.
pub(in crate::provider) const HA_PATIENCE: Duration = Duration::from_secs(20);

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::provider) enum Next {
    /// Nothing of this key is at the slot.
    Gone,
    Wait(String),
    /// Take away the protection that its template brought.
    Unprotect(Box<Mark>),
    Stop(Box<Mark>),
    Destroy(Box<Mark>),
}

/// What the slot holds.
#[derive(Clone, Debug)]
pub(in crate::provider) enum Place {
    Free,
    Container,
    Hidden,
    Machine {
        lock: Option<Lock>,
        whose: Whose,
        power: Power,
        configured: bool,
        protected: bool,
    },
}

/// All that the decision depends on.
#[derive(Clone, Debug)]
pub(in crate::provider) struct Facts {
    pub(in crate::provider) place: Place,
    /// A task works on the slot: this one.
    pub(in crate::provider) busy: Option<String>,
    /// A lock has stood without a task for too long, and what to do about it.
    pub(in crate::provider) stale: Option<String>,
    /// HA manages it, and was asked to stop it so long ago.
    pub(in crate::provider) ha_asked: Option<Duration>,
    /// For how long a request to destroy it has been without an answer.
    pub(in crate::provider) in_doubt: Option<Duration>,
}

pub(in crate::provider) fn next(facts: &Facts) -> Result<Next, Trouble> {
    let (lock, whose, power, configured, protected) = match &facts.place {
        Place::Free | Place::Hidden if facts.busy.is_some() => {
            return Ok(Next::Wait(facts.busy.clone().unwrap_or_default()));
        }
        Place::Free | Place::Container => return Ok(Next::Gone),
        Place::Hidden => {
            let said = "something that this token may not see holds the VMID, and may be this proxy's machine: grant the token VM.Audit on it, or remove it";
            return Err(Trouble::new(ErrorClass::NeedsOperator, said));
        }
        Place::Machine {
            lock,
            whose,
            power,
            configured,
            protected,
        } => (lock, whose, power, *configured, *protected),
    };
    if let Some(lock) = lock {
        match meaning(lock) {
            // Another one's machine is not touched, whatever works on it.
            LockMeaning::Busy if matches!(whose, Whose::Foreign { .. }) => return Ok(Next::Gone),
            LockMeaning::Suspending
                if *power == Power::Running && matches!(whose, Whose::Ours(_)) =>
            {
                let said = "the machine hangs half-way into hibernation and can neither be stopped nor started: run `qm unlock` and stop it";
                return Err(Trouble::new(ErrorClass::NeedsOperator, said));
            }
            // Destroys fine as it is (pve-flow §9); protected it cannot even be configured.
            LockMeaning::Hibernated => {}
            _ if facts.stale.is_some() && facts.busy.is_none() => {
                let said = facts.stale.clone().unwrap_or_default();
                return Err(Trouble::new(ErrorClass::NeedsOperator, said));
            }
            _ => return Ok(Next::Wait(waits::lock(lock))),
        }
    }
    let mark = match whose {
        Whose::Ours(mark) => mark.clone(),
        Whose::Foreign { .. } => return Ok(Next::Gone),
        Whose::NotOwned => {
            let said = "the machine has this proxy's name and not its mark: restore the mark in its description, rename it, or remove it";
            return Err(Trouble::new(ErrorClass::NotOwned, said));
        }
    };
    if let Some(step) = &facts.busy {
        return Ok(Next::Wait(step.clone()));
    }
    if protected {
        // Our config write takes a template's protection away; what came later is a person's.
        if configured || lock.is_some() {
            let said = "the machine is protected against removal: take the protection off (Options in the web page, or `qm set` with `--protection 0` and its number) and it goes";
            return Err(Trouble::new(ErrorClass::NeedsOperator, said));
        }
        return Ok(Next::Unprotect(mark));
    }
    if *power != Power::Stopped {
        if facts.ha_asked.is_some_and(|ago| ago < HA_PATIENCE) {
            let wait = format!(
                "HA was asked to stop it, and has {} s before it is asked again",
                HA_PATIENCE.as_secs()
            );
            return Ok(Next::Wait(wait));
        }
        return Ok(Next::Stop(mark));
    }
    match facts.in_doubt {
        Some(doubt) if doubt < DOUBT => Ok(Next::Wait(format!(
            "a request to destroy it had no answer and may still arrive: another one is sent {} s after it",
            DOUBT.as_secs()
        ))),
        _ => Ok(Next::Destroy(mark)),
    }
}

#[cfg(test)]
mod tests;
