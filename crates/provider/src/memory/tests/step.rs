//! The world's pure step.

use super::super::{
    RequestKind,
    machine::{Lock, Power},
    order::{Order, task_id},
    physics::Physics,
    state::State,
};
use egress_core::{Claim, ErrorClass, Handle};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

fn clone_of(name: &str) -> Order {
    Order::Clone {
        name: name.into(),
        text: format!("a note of {name}").into(),
    }
}

fn begin(state: &mut State, slot: u32, order: Order, now: Instant) -> Handle {
    state
        .apply(slot, order, now)
        .expect("not refused")
        .expect("a task")
}

#[test]
fn a_clone_holds_its_slot_nameless_and_locked_until_it_ends() {
    let now = Instant::now();
    let mut state = State::new(Physics::default());
    let handle = begin(&mut state, 7, clone_of("one"), now);
    state.advance(now + 3 * SECOND);
    let look = state.look(7, "", &[], now);
    let machine = look.machine.expect("the slot is held");
    assert_eq!((machine.name, machine.text), (None, None));
    assert_eq!(machine.lock, Some(Lock::Task(RequestKind::Clone)));
    assert_eq!(look.tasks, [handle]);

    state.advance(now + 4 * SECOND);
    let look = state.look(7, "", &[], now);
    let machine = look.machine.expect("the slot is held");
    assert_eq!(machine.name.as_deref(), Some("one"));
    assert_eq!(machine.lock, None);
    assert!(look.tasks.is_empty());
}

#[test]
fn events_happen_in_the_order_of_their_times_however_late_they_are_looked_at() {
    let now = Instant::now();
    let mut state = State::new(Physics::default());
    begin(&mut state, 7, clone_of("one"), now);
    state.advance(now + 4 * SECOND);
    begin(&mut state, 7, Order::Start, now + 4 * SECOND);
    state.schedule_late(7, Order::Stop, now + 10 * SECOND);
    state.advance(now + 60 * SECOND);
    assert_eq!(
        state.machines[&7].power,
        Power::Stopped,
        "the late stop came after the start"
    );
    assert_eq!(state.machines[&7].up_since, None);
}

#[test]
fn a_late_clone_loses_against_whoever_holds_the_slot_by_then() {
    let now = Instant::now();
    let mut state = State::new(Physics::default());
    state.schedule_late(7, clone_of("late"), now + 5 * SECOND);
    begin(&mut state, 7, clone_of("early"), now);
    state.advance(now + 60 * SECOND);
    assert_eq!(state.machines[&7].name.as_deref(), Some("early"));
    assert_eq!(state.machines.len(), 1);
}

#[test]
fn requests_that_do_not_fit_the_machine_are_refused() {
    let now = Instant::now();
    let mut state = State::new(Physics::instant());
    let class = |state: &mut State, order| {
        state.advance(now);
        state.apply(7, order, now).map_err(|trouble| trouble.class)
    };
    assert_eq!(
        class(&mut state, Order::Start),
        Err(ErrorClass::Busy),
        "nothing is there"
    );
    begin(&mut state, 7, clone_of("one"), now);
    assert_eq!(
        class(&mut state, clone_of("two")),
        Err(ErrorClass::Conflict)
    );
    assert_eq!(
        class(&mut state, Order::Stop),
        Err(ErrorClass::Busy),
        "it does not run"
    );
    assert!(class(&mut state, Order::Start).is_ok());
    assert_eq!(
        class(&mut state, Order::Start),
        Err(ErrorClass::Busy),
        "it runs"
    );
    assert_eq!(
        class(&mut state, Order::Destroy),
        Err(ErrorClass::Busy),
        "it runs"
    );
    assert!(class(&mut state, Order::Stop).is_ok());
    state.advance(now);
    state.machines.get_mut(&7).expect("it is there").protected = true;
    assert_eq!(
        class(&mut state, Order::Destroy),
        Err(ErrorClass::NeedsOperator)
    );
}

#[test]
fn a_failed_clone_frees_its_slot_and_a_killed_one_leaves_its_lock() {
    let now = Instant::now();
    let mut state = State::new(Physics::default());
    let failed = begin(&mut state, 7, clone_of("one"), now);
    let killed = begin(&mut state, 8, clone_of("two"), now);
    for (slot, handle, unexpected) in [(7, &failed, false), (8, &killed, true)] {
        let id = task_id(handle).expect("a handle of this world");
        assert!(state.break_task(slot, id, unexpected, now));
        assert!(
            !state.break_task(slot, id, unexpected, now),
            "it ends only once"
        );
    }
    state.advance(now + 60 * SECOND);
    assert!(!state.machines.contains_key(&7));
    assert!(
        state.machines[&8].hidden(),
        "name and mark of a killed clone stay unreadable"
    );
    let told = state.look(8, "", &[failed, killed], now).failures;
    assert_eq!(
        told.iter().map(|(_, f)| f.unexpected).collect::<Vec<_>>(),
        [false, true]
    );
}

#[test]
fn the_search_by_mark_lags_and_never_shows_what_is_gone() {
    let now = Instant::now();
    let key = super::key(1);
    let mark = |slot: u32| {
        let claim: Claim = serde_json::from_value(serde_json::json!({
            "provider": "lab", "cluster": "memory-1", "slot": slot.to_string(),
            "attempt": 1, "standing": "Unsent",
        }))
        .expect("a claim");
        let json = serde_json::json!({
            "installation": "ours", "provider": "lab", "cluster": "memory-1",
            "slot": claim.slot, "uid": key.uid(), "proxy": "default/one", "attempt": 1,
            "config": "00", "written": "2026-01-01T00:00:00Z",
        });
        Arc::from(format!("{}{json}", egress_core::machine::MARK_PREFIX))
    };
    let mut state = State::new(Physics {
        read_lag: 8 * SECOND,
        ..Physics::default()
    });
    let order = Order::Clone {
        name: key.name().into(),
        text: mark(7),
    };
    begin(&mut state, 7, order, now);
    state.advance(now + 11 * SECOND);
    assert!(
        state.find(key.uid()).is_empty(),
        "the mark is four seconds old by then"
    );
    state.advance(now + 12 * SECOND);
    assert_eq!(state.find(key.uid()), [7]);
    assert!(state.free(7, now + 13 * SECOND).is_some());
    assert!(state.find(key.uid()).is_empty());
}

#[test]
fn a_freed_slot_is_remembered_for_the_settle_bound() {
    let now = Instant::now();
    let mut state = State::new(Physics {
        settle: 30 * SECOND,
        ..Physics::default()
    });
    begin(&mut state, 7, clone_of("one"), now);
    state.free(7, now);
    state.advance(now + 29 * SECOND);
    assert!(state.freed.contains_key(&7));
    state.advance(now + 30 * SECOND);
    assert!(state.freed.is_empty());
    assert!(state.live.is_empty(), "the clone went with its machine");
}

#[test]
fn the_settle_bound_covers_both_lags() {
    let physics = Physics {
        birth_lag: 20 * SECOND,
        read_lag: 8 * SECOND,
        ..Physics::default()
    };
    assert_eq!(State::new(physics).physics.settle, 28 * SECOND);
}
