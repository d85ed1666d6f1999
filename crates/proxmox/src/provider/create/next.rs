//! What `create` does next, from what one look shows. Pure.

use crate::{
    client::Lock,
    provider::{
        power::{LockMeaning, Power, meaning},
        waits,
    },
};
use egress_core::{
    ErrorClass,
    machine::{Mark, Whose},
};

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::provider) enum Next {
    /// It runs with its full configuration.
    Done,
    /// Someone works on it: this.
    Wait(String),
    Clone,
    Upload,
    Configure,
    Start,
    /// It runs without its configuration, or its guest died (C6).
    Stop(Box<Mark>),
}

/// What the slot holds, as far as `create` must know.
#[derive(Clone, Debug)]
pub(in crate::provider) enum Place {
    Free,
    Container,
    /// Taken, and not to be seen by this token.
    Hidden,
    Machine {
        lock: Option<Lock>,
        whose: Whose,
        /// `None` where nobody can have started it.
        power: Option<Power>,
        configured: bool,
    },
}

/// All that the decision depends on.
#[derive(Clone, Debug)]
pub(in crate::provider) struct Facts {
    pub(in crate::provider) place: Place,
    /// A clone to this VMID runs, as far as tasks tell.
    pub(in crate::provider) cloning: bool,
    /// The seed lies complete on its storage, uploaded by this attempt.
    pub(in crate::provider) uploaded: bool,
    /// An upload of this attempt's seed is wanted again: it was missing when needed.
    pub(in crate::provider) seed_lost: bool,
    /// A lock of a clone has stood without a task for too long, and what to do about it.
    pub(in crate::provider) stale: Option<String>,
    /// Whether a clone of ours may have been sent of which nothing is known.
    pub(in crate::provider) unknown: bool,
}

/// Why nothing can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::provider) struct Trouble {
    pub(in crate::provider) class: ErrorClass,
    pub(in crate::provider) said: String,
}

impl Trouble {
    pub(in crate::provider) fn new(class: ErrorClass, said: impl Into<String>) -> Self {
        Self {
            class,
            said: said.into(),
        }
    }
}

pub(in crate::provider) fn next(facts: &Facts) -> Result<Next, Trouble> {
    let (lock, whose, power, configured) = match &facts.place {
        Place::Free | Place::Hidden if facts.cloning => {
            return Ok(Next::Wait("clone".to_owned()));
        }
        Place::Free => return Ok(Next::Clone),
        Place::Container => {
            return Err(Trouble::new(
                ErrorClass::Conflict,
                "the VMID is a container's",
            ));
        }
        Place::Hidden if facts.unknown => {
            let said = "something that this token may not see holds the VMID, and may be this proxy's machine: grant the token VM.Audit on it, or remove it";
            return Err(Trouble::new(ErrorClass::NeedsOperator, said));
        }
        Place::Hidden => {
            let said = "something that this token may not see holds the VMID";
            return Err(Trouble::new(ErrorClass::Conflict, said));
        }
        Place::Machine {
            lock,
            whose,
            power,
            configured,
        } => (lock, whose, power, *configured),
    };
    // A lock comes before the name (F8): what is being made hides whose it is.
    if let Some(lock) = lock {
        let ours = matches!(whose, Whose::Ours(_));
        match meaning(lock) {
            LockMeaning::Busy if ours && configured && *power == Some(Power::Running) => {
                return Ok(Next::Done);
            }
            LockMeaning::Hibernated if ours => {
                return Err(Trouble::new(
                    ErrorClass::NeedsOperator,
                    "an admin hibernated the machine: `qm start` wakes it up",
                ));
            }
            LockMeaning::Making | LockMeaning::Deleting | LockMeaning::Suspending
                if facts.stale.is_some() && !facts.cloning =>
            {
                let said = facts.stale.clone().unwrap_or_default();
                return Err(Trouble::new(ErrorClass::NeedsOperator, said));
            }
            _ if matches!(whose, Whose::Foreign { .. }) && meaning(lock) == LockMeaning::Busy => {}
            _ => return Ok(Next::Wait(waits::lock(lock))),
        }
    }
    let mark = match whose {
        Whose::Ours(mark) => mark,
        Whose::Foreign { .. } => {
            return Err(Trouble::new(
                ErrorClass::Conflict,
                "the VMID is that of someone else's machine",
            ));
        }
        Whose::NotOwned => {
            let said = "the machine has this proxy's name and not its mark: restore the mark in its description, rename it, or remove it";
            return Err(Trouble::new(ErrorClass::NotOwned, said));
        }
    };
    // Unlocked and marked, and yet a clone that fails now would take it away again.
    if facts.cloning {
        return Ok(Next::Wait("clone".to_owned()));
    }
    match power {
        Some(Power::Running) if configured => Ok(Next::Done),
        Some(Power::Changing(word)) => Ok(Next::Wait(waits::power(word))),
        Some(Power::Paused) if configured => Err(Trouble::new(
            ErrorClass::NeedsOperator,
            "an admin paused the machine: `qm resume` lets it run on",
        )),
        Some(Power::IoError) if configured => Err(Trouble::new(
            ErrorClass::Capacity,
            "the machine stands still on an error of its storage: make room there, then `qm resume` lets it run on",
        )),
        Some(Power::Running | Power::Paused | Power::IoError | Power::Crashed) => {
            Ok(Next::Stop(mark.clone()))
        }
        None | Some(Power::Stopped) if facts.seed_lost => Ok(Next::Upload),
        None | Some(Power::Stopped) if configured => Ok(Next::Start),
        None | Some(Power::Stopped) if facts.uploaded => Ok(Next::Configure),
        None | Some(Power::Stopped) => Ok(Next::Upload),
    }
}

#[cfg(test)]
mod tests;
