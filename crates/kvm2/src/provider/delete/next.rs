//! What `delete` does next at one place, from what one look shows. Pure.

use crate::provider::{
    create::next::{Trouble, not_owned},
    power::Power,
};
use egress_core::machine::{Mark, Whose};
use std::time::Duration;

/// How long a machine may take to shut down once it was asked to.
pub(in crate::provider) const GRACE: Duration = Duration::from_secs(20);

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::provider) enum Next {
    /// Nothing of this key is there.
    Gone,
    Wait(&'static str),
    /// Ask its agent to shut it down.
    ShutDown(Box<Mark>),
    Destroy(Box<Mark>),
    Undefine(Box<Mark>),
}

/// What is there.
#[derive(Clone, Debug)]
pub(in crate::provider) enum Place {
    Free,
    Machine { whose: Whose, power: Power },
}

/// All that the decision depends on.
#[derive(Clone, Debug)]
pub(in crate::provider) struct Facts {
    pub(in crate::provider) place: Place,
    /// How long ago it was asked to shut down, in this process's life.
    pub(in crate::provider) asked: Option<Duration>,
}

pub(in crate::provider) fn next(facts: Facts) -> Result<Next, Trouble> {
    let (mark, power) = match facts.place {
        Place::Free => return Ok(Next::Gone),
        Place::Machine { whose, power } => match whose {
            Whose::Ours(mark) => (mark, power),
            Whose::Foreign { .. } => return Ok(Next::Gone),
            Whose::NotOwned => return Err(not_owned()),
        },
    };
    let patient = facts.asked.is_none_or(|ago| ago < GRACE);
    Ok(match power {
        Power::Running if facts.asked.is_none() => Next::ShutDown(mark),
        Power::Running if patient => Next::Wait("it shuts down"),
        Power::Changing(step) if patient => Next::Wait(step),
        // Its guest cannot hear a polite word, or did not listen to it.
        Power::Running
        | Power::Changing(_)
        | Power::Paused
        | Power::IoError
        | Power::Unknown(_) => Next::Destroy(mark),
        Power::Off | Power::Crashed | Power::Hibernated => Next::Undefine(mark),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use egress_core::{ClusterId, ErrorClass, Slot};

    fn mark() -> Box<Mark> {
        Box::new(Mark {
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
        })
    }

    #[test]
    fn each_power_of_ours_ends_in_a_definition_that_is_removed() {
        let long = Some(GRACE);
        let just = Some(Duration::from_secs(1));
        for (power, asked, expected) in [
            (Power::Running, None, Next::ShutDown(mark())),
            (Power::Running, just, Next::Wait("it shuts down")),
            (Power::Running, long, Next::Destroy(mark())),
            (Power::Changing("x"), None, Next::Wait("x")),
            (Power::Changing("x"), long, Next::Destroy(mark())),
            (Power::Paused, None, Next::Destroy(mark())),
            (Power::IoError, None, Next::Destroy(mark())),
            (Power::Unknown(9), None, Next::Destroy(mark())),
            (Power::Off, None, Next::Undefine(mark())),
            (Power::Crashed, just, Next::Undefine(mark())),
            (Power::Hibernated, None, Next::Undefine(mark())),
        ] {
            let whose = Whose::Ours(mark());
            let place = Place::Machine { whose, power };
            assert_eq!(next(Facts { place, asked }), Ok(expected), "{power:?}");
        }
    }

    #[test]
    fn what_is_not_ours_is_gone_or_a_persons_to_look_at() {
        let asked = None;
        for power in [Power::Running, Power::Off, Power::Changing("x")] {
            let whose = Whose::Foreign { copied: true };
            let place = Place::Machine { whose, power };
            assert_eq!(next(Facts { place, asked }), Ok(Next::Gone));
            let whose = Whose::NotOwned;
            let place = Place::Machine { whose, power };
            let trouble = next(Facts { place, asked }).unwrap_err();
            assert_eq!(trouble.class, ErrorClass::NotOwned);
        }
        let place = Place::Free;
        assert_eq!(next(Facts { place, asked }), Ok(Next::Gone));
    }
}
