//! Whose turn it is to clone, where only so many may at once: who asked first.
//!
//! The first few wait at the door and are called in; those behind are told when to come again:
//! a thousand that wait cost a few questions a second.

use crate::client::Vmid;
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::{sync::Notify, time::Instant};

/// How many wait at the door, each in a call that meanwhile does nothing else.
const AT_THE_DOOR: usize = 4;
/// How long they do, before their call comes back without a turn.
pub(super) const DOOR_WAIT: Duration = Duration::from_secs(1);
/// When those behind them come again.
const SOON: Duration = Duration::from_millis(100);
/// No clone takes less.
const CLONE: Duration = Duration::from_millis(250);
/// Nobody comes again later than this: others may leave the line.
const LATEST: Duration = Duration::from_secs(30);
/// Who is so late gave up: its Proxy was deleted, or waits for something else.
/// Passes of a large crowd are late themselves, and who lost its place has to be looked at anew.
const GIVEN_UP: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug)]
struct Place {
    number: u64,
    expected: Instant,
}

/// What is left to who has no turn yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// To stand at the door until someone is called in.
    AtTheDoor,
    /// To come again after so long.
    Come(Duration),
}

/// The line. It is a hint: a new process begins with an empty one.
#[derive(Debug, Default)]
pub(super) struct Turns {
    places: HashMap<Vmid, Place>,
    next: u64,
    door: Arc<Notify>,
}

impl Turns {
    /// Asks for a turn while so many of `limit` clones run: `None` when it may clone now. It keeps its
    /// place until it leaves.
    pub(super) fn ask(&mut self, vmid: Vmid, running: usize, limit: usize) -> Option<Wait> {
        let now = Instant::now();
        self.places
            .retain(|at, place| *at == vmid || now < place.expected + GIVEN_UP);
        let number = self.places.get(&vmid).map_or(self.next, |p| p.number);
        self.next = self.next.max(number + 1);
        let before = self.places.values().filter(|p| p.number < number).count();
        let wait = (running + before >= limit).then(|| {
            if before < limit.min(AT_THE_DOOR) {
                return Wait::AtTheDoor;
            }
            let rounds = u32::try_from(before / limit.max(1)).unwrap_or(u32::MAX);
            let wait = CLONE.saturating_mul(rounds).saturating_add(SOON);
            Wait::Come(wait.min(LATEST))
        });
        let expected = match wait {
            None => now,
            Some(Wait::AtTheDoor) => now + DOOR_WAIT,
            Some(Wait::Come(wait)) => now + wait,
        };
        self.places.insert(vmid, Place { number, expected });
        wait
    }

    /// Whether it stands in the line.
    pub(super) fn waits(&self, vmid: Vmid) -> bool {
        self.places.contains_key(&vmid)
    }

    /// It clones, or cannot.
    pub(super) fn leave(&mut self, vmid: Vmid) {
        if self.places.remove(&vmid).is_some() {
            self.call_in();
        }
    }

    /// A clone ended, or the line moved: whoever stands at the door asks again.
    pub(super) fn call_in(&self) {
        self.door.notify_waiters();
    }

    /// The door to stand at. Take it before asking: a call between both is heard.
    pub(super) fn door(&self) -> Arc<Notify> {
        self.door.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vmid(number: u32) -> Vmid {
        number.to_string().parse().expect("a legal VMID")
    }

    #[tokio::test(start_paused = true)]
    async fn who_asked_first_is_first_and_those_behind_come_again_later() {
        let mut turns = Turns::default();
        assert_eq!(turns.ask(vmid(101), 0, 2), None);
        turns.leave(vmid(101));
        let waits: Vec<Option<Wait>> = (102..=106).map(|n| turns.ask(vmid(n), 2, 2)).collect();
        let (door, ms) = (Some(Wait::AtTheDoor), |n| {
            Some(Wait::Come(Duration::from_millis(n)))
        });
        assert_eq!(waits, [door, door, ms(350), ms(350), ms(600)]);
        // One ended: the first in the line may, and nobody behind it.
        assert!(turns.ask(vmid(103), 1, 2).is_some());
        assert!(turns.ask(vmid(110), 1, 2).is_some());
        assert_eq!(turns.ask(vmid(102), 1, 2), None);
        assert_eq!(
            turns.ask(vmid(102), 1, 2),
            None,
            "it keeps its place until it clones"
        );
        turns.leave(vmid(102));
        assert!(!turns.waits(vmid(102)));
        assert!(turns.waits(vmid(103)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_stand_at_the_door_whatever_the_limit_and_hear_every_call() {
        let mut turns = Turns::default();
        let waits: Vec<Option<Wait>> = (101..=106).map(|n| turns.ask(vmid(n), 50, 50)).collect();
        let soon = Some(Wait::Come(SOON));
        let door = Some(Wait::AtTheDoor);
        assert_eq!(waits, [door, door, door, door, soon, soon]);
        let stand = turns.door();
        let called = stand.notified();
        turns.call_in();
        called.await;
        let called = stand.notified();
        turns.leave(vmid(101));
        called.await;
        assert_eq!(turns.ask(vmid(105), 50, 50), door);
    }

    #[tokio::test(start_paused = true)]
    async fn who_never_comes_again_holds_up_nobody() {
        let mut turns = Turns::default();
        assert!(turns.ask(vmid(101), 1, 1).is_some());
        assert!(turns.ask(vmid(102), 1, 1).is_some());
        assert!(turns.ask(vmid(102), 0, 1).is_some());
        tokio::time::advance(GIVEN_UP + LATEST).await;
        assert_eq!(turns.ask(vmid(102), 0, 1), None);
        turns.leave(vmid(102));
        turns.ask(vmid(103), 1, 1);
        turns.leave(vmid(103));
        assert_eq!(turns.ask(vmid(104), 0, 1), None);
    }
}
