//! The crash walks where records lie in annotations: over the reference provider and an API
//! server in memory, in virtual time. An effect is a request to the hypervisor or a patch of an
//! object.

use egress_core::ErrorClass;
use egress_provider::memory::{Physics, World};
use egress_simtest::{
    fuse::Trick,
    walk::{self, Terrain, secs},
};
use std::time::Duration;

/// So many runs of each walk; `CRASH_WALK_ALL=1` makes all.
const MOST: usize = 400;

/// The two grounds that differ most.
fn terrains() -> Vec<Terrain<World>> {
    let late = Physics {
        birth_lag: secs(40),
        settle: secs(90),
        read_lag: secs(20),
        ..Physics::default()
    };
    [
        ("cluster, instant", Physics::instant()),
        ("cluster, tasks, late births, lagging reads", late),
    ]
    .map(|(name, physics)| {
        Terrain::new(name, physics.settle, move || World::new(physics.clone())).on_cluster()
    })
    .into()
}

#[test]
fn a_crash_at_any_effect_leaves_one_machine_and_then_none() {
    let runs = walk::one_crash(&terrains(), MOST);
    println!("crash walk: {runs} runs with one crash");
    assert!(runs > 100, "{runs}");
}

#[test]
fn a_second_crash_during_recovery_changes_nothing() {
    let runs = walk::two_crashes(&terrains(), MOST);
    println!("crash walk: {runs} runs with two crashes");
    assert!(runs > 100, "{runs}");
}

#[test]
fn a_lost_answer_or_a_refusal_at_any_effect_is_survived_without_a_restart() {
    let tricks = [
        Trick::LoseAnswer(None),
        Trick::LoseAnswer(Some(Duration::ZERO)),
        Trick::TimeOut(None),
        Trick::TimeOut(Some(secs(30))),
        Trick::Refuse(ErrorClass::Transient),
        Trick::Refuse(ErrorClass::OutcomeUnknown),
    ];
    let runs = walk::tricks(&terrains(), &tricks, MOST);
    println!("crash walk: {runs} runs with a lost answer or a refusal");
    assert!(runs > 100, "{runs}");
}

#[test]
fn a_frozen_leader_that_wakes_with_an_expired_permit_changes_nothing() {
    let runs = walk::a_frozen_leader(&terrains(), MOST);
    println!("crash walk: {runs} runs with a frozen leader");
    assert!(runs > 20, "{runs}");
}

#[test]
fn two_engines_at_once_still_make_one_machine() {
    let runs = walk::two_engines(&terrains(), &[0, 7, 100, 999, 5_001]);
    println!("crash walk: {runs} runs with two engines");
}

#[test]
fn a_machine_removed_by_hand_at_any_moment_is_made_anew_and_then_gone() {
    let runs = walk::a_machine_removed_by_hand(&terrains(), MOST);
    println!("crash walk: {runs} runs with a machine removed by hand");
}

/// B14: a record that was lost hides no machine.
#[test]
fn a_machine_whose_record_was_lost_is_found_by_its_mark_and_removed() {
    walk::lost_record(&terrains());
}
