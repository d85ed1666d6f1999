//! The crash walks over the reference provider, in virtual time.

use egress_core::ErrorClass;
use egress_provider::memory::{Physics, World};
use egress_simtest::{
    fuse::Trick,
    walk::{self, Terrain, secs},
};
use std::time::Duration;

/// All runs: the reference provider is fast.
const ALL: usize = usize::MAX;

/// The grounds: task times, late births, lagging searches.
fn terrains() -> Vec<Terrain<World>> {
    let lagging = |physics: Physics| Physics {
        read_lag: secs(20),
        ..physics
    };
    let late = |physics: Physics| Physics {
        birth_lag: secs(40),
        settle: secs(90),
        ..physics
    };
    [
        ("instant", Physics::instant()),
        ("tasks", Physics::default()),
        ("tasks, late births", late(Physics::default())),
        ("instant, late births", late(Physics::instant())),
        ("tasks, lagging reads", lagging(Physics::default())),
        (
            "tasks, late births, lagging reads",
            lagging(late(Physics::default())),
        ),
    ]
    .map(|(name, physics)| Terrain::new(name, physics.settle, move || World::new(physics.clone())))
    .into()
}

#[test]
fn a_crash_at_any_effect_leaves_one_machine_and_then_none() {
    let runs = walk::one_crash(&terrains(), ALL);
    println!("crash walk: {runs} runs with one crash");
    assert!(runs > 500, "{runs}");
}

#[test]
fn a_crash_with_a_request_on_its_way_leaves_one_machine_and_then_none() {
    let runs = walk::a_crash_with_a_request_on_its_way(&terrains(), ALL);
    println!("crash walk: {runs} runs with a request on its way");
    assert!(runs > 300, "{runs}");
}

#[test]
fn only_a_kill_around_the_creating_request_delays_a_deletion() {
    for terrain in terrains().iter().filter(|terrain| terrain.is_late()) {
        // Killed before the request, or while its task hides whose the machine is: a second
        // request may be sent.
        assert_eq!(walk::waits_after_a_crash(terrain), 2, "{}", terrain.name());
    }
}

#[test]
fn a_second_crash_during_recovery_changes_nothing() {
    let runs = walk::two_crashes(&terrains(), ALL);
    println!("crash walk: {runs} runs with two crashes");
    assert!(runs > 1000, "{runs}");
}

#[test]
fn a_lost_answer_or_a_refusal_at_any_effect_is_survived_without_a_restart() {
    let mut tricks = vec![
        Trick::LoseAnswer(None),
        Trick::LoseAnswer(Some(Duration::ZERO)),
        Trick::LoseAnswer(Some(secs(30))),
    ];
    tricks.extend(
        [
            ErrorClass::Busy,
            ErrorClass::Transient,
            ErrorClass::OutcomeUnknown,
            ErrorClass::Capacity,
            ErrorClass::Unauthorized,
            ErrorClass::NeedsOperator,
            ErrorClass::Internal,
        ]
        .map(Trick::Refuse),
    );
    let runs = walk::tricks(&terrains(), &tricks, ALL);
    println!("crash walk: {runs} runs with a lost answer or a refusal");
    assert!(runs > 500, "{runs}");
}

#[test]
fn a_frozen_leader_that_wakes_with_an_expired_permit_changes_nothing() {
    let runs = walk::a_frozen_leader(&terrains(), ALL);
    println!("crash walk: {runs} runs with a frozen leader");
    assert!(runs > 50, "{runs}");
}

#[test]
fn two_engines_at_once_still_make_one_machine() {
    let leads = [0, 1, 3, 7, 20, 100, 400, 999, 2_500, 5_001];
    let runs = walk::two_engines(&terrains(), &leads);
    println!("crash walk: {runs} runs with two engines");
}

#[test]
fn a_stranger_taking_the_slot_at_any_moment_is_never_touched() {
    let runs = walk::a_stranger_at_the_slot(&terrains(), ALL);
    println!("crash walk: {runs} runs with a stranger at the slot");
}

#[test]
fn a_machine_removed_by_hand_at_any_moment_is_made_anew_and_then_gone() {
    let runs = walk::a_machine_removed_by_hand(&terrains(), ALL);
    println!("crash walk: {runs} runs with a machine removed by hand");
}

/// B14: a record that was lost hides no machine.
#[test]
fn a_machine_whose_record_was_lost_is_found_by_its_mark_and_removed() {
    walk::lost_record(&terrains());
}
