//! What libvirt's states mean (`virDomainState` and the reasons beside it).

use crate::client::DomainState;

/// A domain's power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Power {
    Running,
    /// It runs no more and is not gone yet, or is not there yet.
    Changing(&'static str),
    /// An admin paused it.
    Paused,
    /// It is stuck on its storage.
    IoError,
    /// Its memory lies on disk, or it sleeps.
    Hibernated,
    /// It ended by a fault of its own.
    Crashed,
    Off,
    /// A number that is not known here.
    Unknown(i32),
}

/// From the numbers; `saved` when its memory lies on disk.
pub(super) const fn power(state: DomainState, saved: bool) -> Power {
    match (state.state, state.reason) {
        // Running; blocked, which Xen says of an idle one.
        (1 | 2, _) => Power::Running,
        (3, 5) => Power::IoError,
        (3, 10) | (5, 3) | (6, _) => Power::Crashed,
        (3, 2) => Power::Changing("it moves to another host"),
        (3, 3) => Power::Changing("its memory is written to disk"),
        (3, 4) => Power::Changing("its memory is dumped"),
        (3, 8) | (4, _) => Power::Changing("it shuts down"),
        (3, 9) => Power::Changing("a snapshot is taken"),
        (3, 11) => Power::Changing("it starts"),
        (3, 12 | 13) => Power::Changing("its memory moves to another host"),
        (3, _) => Power::Paused,
        (5, _) if saved => Power::Hibernated,
        (5, _) => Power::Off,
        (7, _) => Power::Hibernated,
        (other, _) => Power::Unknown(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B99: paused or stuck is not running.
    #[test]
    fn every_state_has_a_meaning() {
        for (state, reason, saved, expected) in [
            (0, 0, false, Power::Unknown(0)),
            (1, 1, false, Power::Running),
            (2, 0, false, Power::Running),
            (3, 1, false, Power::Paused),
            (3, 5, false, Power::IoError),
            (3, 10, false, Power::Crashed),
            (3, 2, false, Power::Changing("it moves to another host")),
            (4, 1, false, Power::Changing("it shuts down")),
            (5, 0, false, Power::Off),
            (5, 1, false, Power::Off),
            (5, 2, false, Power::Off),
            (5, 3, false, Power::Crashed),
            (5, 5, true, Power::Hibernated),
            (5, 6, false, Power::Off),
            (6, 1, false, Power::Crashed),
            (7, 0, false, Power::Hibernated),
            (99, 0, false, Power::Unknown(99)),
        ] {
            let state = DomainState { state, reason };
            assert_eq!(power(state, saved), expected, "{state:?}");
        }
    }
}
