//! What the gate can do to requests, and what permits and proofs make of it.

use super::{
    super::{Gate, Network, Physics, Request, RequestKind, Verdict, World},
    HALF_MADE, create, delete, number, permit, scene, state, wanted,
};
use crate::{Permit, Progress, Provider};
use async_trait::async_trait;
use egress_core::ErrorClass;
use egress_core::machine::MachineState;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Meets the next request of one kind, once: waits, then decides.
struct Once {
    kind: RequestKind,
    freeze: Duration,
    verdict: Mutex<Option<Verdict>>,
}

#[async_trait]
impl Gate for Once {
    async fn decide(&self, request: &Request) -> Verdict {
        if request.kind != self.kind {
            return Verdict::Pass;
        }
        let verdict = self
            .verdict
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(verdict) = verdict else {
            return Verdict::Pass;
        };
        tokio::time::sleep(self.freeze).await;
        verdict
    }
}

fn meet(world: &World, kind: RequestKind, freeze: Duration, verdict: Verdict) {
    let verdict = Mutex::new(Some(verdict));
    world.set_gate(Some(Arc::new(Once {
        kind,
        freeze,
        verdict,
    })));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_frozen_at_the_gate_finds_its_permit_expired() {
    let (world, memory, key, claim) = scene(Physics::default()).await;
    meet(
        &world,
        RequestKind::Clone,
        Duration::from_hours(1),
        Verdict::Pass,
    );
    let refused = memory.create(&key, &claim, &wanted(), &permit()).await;
    assert_eq!(refused.map_err(|e| e.class()), Err(ErrorClass::Transient));
    assert_eq!(world.request_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_proof_that_grew_old_at_the_gate_stops_nothing() {
    let (world, memory, key, claim) = scene(Physics::default()).await;
    create(&memory, &key, &claim).await;
    let before = world.request_count();
    meet(
        &world,
        RequestKind::Stop,
        Duration::from_secs(3),
        Verdict::Pass,
    );
    let refused = memory.delete(&key, &claim, &permit()).await;
    assert_eq!(refused.map_err(|e| e.class()), Err(ErrorClass::Busy));
    assert_eq!(world.request_count(), before);
    delete(&memory, &key, &claim).await;
}

#[tokio::test(start_paused = true)]
async fn one_permit_sends_one_creating_request() {
    let (world, memory, key, claim) = scene(Physics::default()).await;
    let permit = permit();
    memory
        .create(&key, &claim, &wanted(), &permit)
        .await
        .expect("nothing goes wrong");
    world.remove(number(&claim));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let refused = memory.create(&key, &claim, &wanted(), &permit).await;
    assert_eq!(refused.map_err(|e| e.class()), Err(ErrorClass::Internal));
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_an_unknown_outcome_whether_or_not_it_landed() {
    for (lands, slots) in [(None, 0), (Some(Duration::ZERO), 1)] {
        let (world, memory, key, claim) = scene(Physics::default()).await;
        meet(
            &world,
            RequestKind::Clone,
            Duration::ZERO,
            Verdict::LoseAnswer { lands },
        );
        let lost = memory.create(&key, &claim, &wanted(), &permit()).await;
        assert_eq!(lost.map_err(|e| e.class()), Err(ErrorClass::OutcomeUnknown));
        assert_eq!(world.inventory().machines.len(), slots);
        create(&memory, &key, &claim).await;
        assert_eq!(world.machines_of(&key), [number(&claim)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_clone_and_its_repetition_make_one_machine() {
    let physics = Physics {
        birth_lag: Duration::from_secs(20),
        ..Physics::default()
    };
    let (world, memory, key, claim) = scene(physics).await;
    meet(
        &world,
        RequestKind::Clone,
        Duration::ZERO,
        Verdict::HangAfter,
    );
    let call = memory
        .create(&key, &claim, &wanted(), &Permit::new(1, soon()))
        .await;
    assert_eq!(call.map_err(|e| e.class()), Err(ErrorClass::OutcomeUnknown));
    // The call ended by its deadline of 30 s; the clone began 20 s after it was sent.
    create(&memory, &key, &claim).await;
    assert_eq!(world.inventory().machines.len(), 1);
    let clones = world
        .requests()
        .into_iter()
        .filter(|r| r.kind == RequestKind::Clone);
    assert_eq!(clones.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_clone_refused_because_our_own_late_one_came_first_is_waited_for() {
    let (world, memory, key, claim) = scene(Physics::default()).await;
    // While the second process stands at the gate, the first one's clone lands.
    let second = super::memory(&world);
    meet(
        &world,
        RequestKind::Clone,
        Duration::from_secs(1),
        Verdict::Pass,
    );
    let (wanted, permits) = (wanted(), [permit(), permit()]);
    let (late, early) = tokio::join!(
        second.create(&key, &claim, &wanted, &permits[0]),
        memory.create(&key, &claim, &wanted, &permits[1]),
    );
    for answer in [late, early] {
        assert!(
            matches!(answer, Ok(Progress::InProgress { .. })),
            "{answer:?}"
        );
    }
    assert_eq!(world.inventory().machines.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_in_a_hanging_request_leaves_a_world_to_go_on_from() {
    for (verdict, state_then) in [
        (Verdict::HangBefore, HALF_MADE),
        (
            Verdict::HangAfter,
            MachineState::InProgress {
                step: "start".to_owned(),
            },
        ),
    ] {
        let (world, memory, key, claim) = scene(Physics::default()).await;
        memory
            .create(&key, &claim, &wanted(), &permit())
            .await
            .expect("nothing goes wrong");
        tokio::time::sleep(Duration::from_secs(4)).await;
        meet(&world, RequestKind::Start, Duration::ZERO, verdict);
        let (wanted, permit) = (wanted(), permit());
        let call = memory.create(&key, &claim, &wanted, &permit);
        let dropped = tokio::time::timeout(Duration::from_millis(1), call).await;
        assert!(dropped.is_err(), "the request hangs");
        assert_eq!(state(&memory, &key, &claim).await, state_then);
        create(&memory, &key, &claim).await;
        assert_eq!(world.machines_of(&key), [number(&claim)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_passed_on_with_its_class_and_words() {
    let (world, memory, key, claim) = scene(Physics::default()).await;
    let said = "storage is read-only".to_owned();
    let verdict = Verdict::Refuse {
        class: ErrorClass::NeedsOperator,
        said: said.clone(),
    };
    meet(&world, RequestKind::Upload, Duration::ZERO, verdict);
    let error = memory
        .create(&key, &claim, &wanted(), &permit())
        .await
        .expect_err("refused");
    assert_eq!(
        (error.class(), error.said()),
        (ErrorClass::NeedsOperator, said.as_str())
    );
}

#[tokio::test(start_paused = true)]
async fn no_answer_ends_every_call_by_its_deadline() {
    let (world, memory, key, claim) = scene(Physics::default()).await;
    world.set_network(Network::Silent);
    let begun = Instant::now();
    let silent = memory.get(&key, &claim).await.map_err(|e| e.class());
    assert_eq!(silent, Err(ErrorClass::Transient));
    assert_eq!(begun.elapsed(), Duration::from_secs(30));
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(1)
}
