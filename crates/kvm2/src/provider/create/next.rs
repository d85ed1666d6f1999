//! What `create` does next, from what one look shows. Pure.

use crate::provider::power::Power;
use egress_core::{ErrorClass, machine::Whose};

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::provider) enum Next {
    /// It runs.
    Done,
    /// Someone works on it: this.
    Wait(&'static str),
    /// Make its disk and its seed.
    MakeVolumes,
    Define,
    Start,
}

/// What the slot holds.
#[derive(Clone, Debug)]
pub(in crate::provider) enum Place {
    Free,
    Machine { whose: Whose, power: Power },
}

/// Whether the volumes are as the machine needs them for its first start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider) enum Volumes {
    Whole,
    /// Missing, half made, or nobody knows whether they were written to their end.
    Doubtful,
}

/// Whether it was ever started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider) enum History {
    NeverStarted,
    Started,
}

/// All that the decision depends on.
#[derive(Clone, Debug)]
pub(in crate::provider) struct Facts {
    pub(in crate::provider) place: Place,
    pub(in crate::provider) volumes: Volumes,
    pub(in crate::provider) history: History,
}

/// Why nothing can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::provider) struct Trouble {
    pub(in crate::provider) class: ErrorClass,
    pub(in crate::provider) said: String,
}

impl Trouble {
    pub(in crate::provider) fn new(class: ErrorClass, said: impl Into<String>) -> Self {
        let said = said.into();
        Self { class, said }
    }
}

pub(in crate::provider) fn not_owned() -> Trouble {
    let said = "the domain has this proxy's name and not its mark: restore the mark in its metadata, rename it, or remove it";
    Trouble::new(ErrorClass::NotOwned, said)
}

pub(in crate::provider) fn next(facts: &Facts) -> Result<Next, Trouble> {
    let power = match &facts.place {
        Place::Free => {
            return Ok(match facts.volumes {
                Volumes::Whole => Next::Define,
                Volumes::Doubtful => Next::MakeVolumes,
            });
        }
        Place::Machine { whose, power } => match whose {
            Whose::Ours(_) => *power,
            Whose::Foreign { .. } => {
                let said = "a domain of someone else has the UUID";
                return Err(Trouble::new(ErrorClass::Conflict, said));
            }
            Whose::NotOwned => return Err(not_owned()),
        },
    };
    match power {
        Power::Running => Ok(Next::Done),
        Power::Changing(step) => Ok(Next::Wait(step)),
        Power::Paused => Err(Trouble::new(
            ErrorClass::NeedsOperator,
            "someone paused the domain: run `virsh resume`, or delete the Proxy",
        )),
        Power::Hibernated => Err(Trouble::new(
            ErrorClass::NeedsOperator,
            "the domain sleeps, or its memory was saved to disk: run `virsh start`, or delete the Proxy",
        )),
        Power::IoError => Err(Trouble::new(
            ErrorClass::Capacity,
            "the domain is stuck on its storage: make room in the pool and run `virsh resume`",
        )),
        Power::Unknown(state) => Err(Trouble::new(
            ErrorClass::Transient,
            format!("libvirt gives the domain the state {state}, which is not known here"),
        )),
        Power::Off | Power::Crashed => match (facts.history, facts.volumes) {
            // It boots from its disk, whatever became of the seed.
            (History::Started, _) | (History::NeverStarted, Volumes::Whole) => Ok(Next::Start),
            (History::NeverStarted, Volumes::Doubtful) => Ok(Next::MakeVolumes),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use egress_core::{ClusterId, Slot, machine::Mark};

    fn ours() -> Whose {
        Whose::Ours(Box::new(Mark {
            installation: "lab".parse().unwrap(),
            writer: None,
            provider: "kvm-a".parse().unwrap(),
            cluster: ClusterId::new("c"),
            slot: Slot::new("s"),
            uid: "uid".parse().unwrap(),
            proxy: "default/a".parse().unwrap(),
            attempt: 1,
            config: egress_core::machine::ConfigHash::of(b""),
            written: jiff::Timestamp::UNIX_EPOCH,
        }))
    }

    fn told(place: Place, volumes: Volumes, history: History) -> Result<Next, ErrorClass> {
        let facts = Facts {
            place,
            volumes,
            history,
        };
        next(&facts).map_err(|trouble| trouble.class)
    }

    #[test]
    fn a_free_place_gets_volumes_and_then_a_domain() {
        let never = History::NeverStarted;
        let free = told(Place::Free, Volumes::Doubtful, never);
        assert_eq!(free, Ok(Next::MakeVolumes));
        assert_eq!(told(Place::Free, Volumes::Whole, never), Ok(Next::Define));
    }

    #[test]
    fn only_what_is_ours_is_touched() {
        for (whose, class) in [
            (Whose::Foreign { copied: false }, ErrorClass::Conflict),
            (Whose::Foreign { copied: true }, ErrorClass::Conflict),
            (Whose::NotOwned, ErrorClass::NotOwned),
        ] {
            for power in [Power::Off, Power::Running, Power::Changing("x")] {
                let whose = whose.clone();
                let place = Place::Machine { whose, power };
                let told = told(place, Volumes::Whole, History::Started);
                assert_eq!(told, Err(class));
            }
        }
    }

    #[test]
    fn each_power_of_ours_has_its_step() {
        use History::{NeverStarted, Started};
        use Volumes::{Doubtful, Whole};
        let operator = Err(ErrorClass::NeedsOperator);
        for (power, volumes, history, expected) in [
            (Power::Running, Doubtful, NeverStarted, Ok(Next::Done)),
            (Power::Changing("x"), Whole, Started, Ok(Next::Wait("x"))),
            (Power::Off, Whole, NeverStarted, Ok(Next::Start)),
            (Power::Off, Doubtful, NeverStarted, Ok(Next::MakeVolumes)),
            (Power::Off, Doubtful, Started, Ok(Next::Start)),
            (Power::Crashed, Doubtful, Started, Ok(Next::Start)),
            (Power::Paused, Whole, Started, operator.clone()),
            (Power::Hibernated, Whole, Started, operator),
            (Power::IoError, Whole, Started, Err(ErrorClass::Capacity)),
            (
                Power::Unknown(9),
                Whole,
                Started,
                Err(ErrorClass::Transient),
            ),
        ] {
            let whose = ours();
            let place = Place::Machine { whose, power };
            assert_eq!(told(place, volumes, history), expected, "{power:?}");
        }
    }
}
