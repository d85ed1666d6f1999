//! One machine, then none, whatever dies when: the whole life of a Proxy (bring-up,
//! replacement, teardown) is cut at every single effect, on many grounds.

use egress_core::{ErrorClass, proxy::Desired};
use egress_provider::memory::{Physics, Stranger};
use egress_simtest::{
    fuse::{Fuse, Trick},
    ground::{Ground, unwanted, wanted},
    process::{Goal, Lease, PERMIT, Process},
};
use std::{fmt::Debug, future::Future, sync::Arc, time::Duration};

const fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// The grounds: task times, late births, lagging searches.
fn grounds() -> Vec<(&'static str, Physics)> {
    let lagging = |physics: Physics| Physics {
        read_lag: secs(20),
        ..physics
    };
    let late = |physics: Physics| Physics {
        birth_lag: secs(40),
        settle: secs(90),
        ..physics
    };
    vec![
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
}

/// The life of a Proxy, step by step: what is wanted and what it should come to.
fn life() -> [(Desired, Goal); 3] {
    [
        (wanted("a", 1), Goal::Serving),
        (wanted("a", 2), Goal::Serving),
        (unwanted("a"), Goal::Gone),
    ]
}

/// A clock of its own for every run: virtual time, one thread, no luck.
fn in_virtual_time<F: Future>(run: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can be built")
        .block_on(run)
}

struct Walk {
    ground: Ground,
    tale: String,
}

impl Walk {
    fn new(physics: Physics, tale: impl Debug) -> Self {
        Self {
            ground: Ground::new(physics),
            tale: format!("{tale:?}"),
        }
    }

    fn arm(&self, fuse: &Arc<Fuse>) {
        self.ground.world.set_gate(Some(fuse.clone()));
        self.ground.store.set_gate(Some(fuse.clone()));
    }

    fn never_two(&self) -> Result<(), String> {
        let found = self.ground.machines_of(&wanted("a", 1).uid);
        if found.len() > 1 {
            return Err(format!("{} machines of one key, at {found:?}", found.len()));
        }
        Ok(())
    }

    /// Lives on with a fresh process from `step` to the end; complains by panic.
    async fn finish(&self, step: usize) {
        for (desired, goal) in life().into_iter().skip(step) {
            let mut process = Process::start(&self.ground, Lease::default());
            let reached = process.reach(&desired, goal, || self.never_two()).await;
            assert_eq!(reached, Ok(()), "{} towards {goal:?}", self.tale);
            self.check(goal, &desired).await;
        }
    }

    async fn check(&self, goal: Goal, desired: &Desired) {
        let machines = self.ground.machines_of(&desired.uid);
        match goal {
            Goal::Serving => assert_eq!(machines.len(), 1, "{}", self.tale),
            Goal::Gone => {
                // Whatever may still land, lands by now.
                tokio::time::sleep(secs(600)).await;
                let machines = self.ground.machines_of(&desired.uid);
                assert_eq!(machines, Vec::<u32>::new(), "{}", self.tale);
                let inventory = self.ground.world.inventory();
                assert!(inventory.seeds.is_empty(), "{}: {inventory:?}", self.tale);
                let records = egress_engine::store::Store::list(&self.ground.store).await;
                assert!(
                    records.expect("memory can be read").is_empty(),
                    "{}",
                    self.tale
                );
            }
        }
    }

    /// Lives with one process a step until the fuse kills it; answers with the step it died
    /// in. Without a death the whole life was lived.
    async fn until_death(&self, fuse: &Arc<Fuse>) -> Option<usize> {
        self.arm(fuse);
        for (step, (desired, goal)) in life().into_iter().enumerate() {
            let mut process = Process::start(&self.ground, Lease::default());
            let died = tokio::select! {
                reached = process.reach(&desired, goal, || self.never_two()) => {
                    assert_eq!(reached, Ok(()), "{} towards {goal:?}", self.tale);
                    false
                }
                () = fuse.death() => true,
            };
            if died {
                return Some(step);
            }
            self.check(goal, &desired).await;
        }
        None
    }
}

/// How many effects the whole life has on a ground, undisturbed.
fn effects(physics: &Physics) -> u32 {
    in_virtual_time(async {
        let walk = Walk::new(physics.clone(), "undisturbed");
        let fuse = Fuse::counting();
        assert_eq!(walk.until_death(&fuse).await, None);
        fuse.count()
    })
}

#[test]
fn a_crash_at_any_effect_leaves_one_machine_and_then_none() {
    let mut runs = 0;
    for (name, physics) in grounds() {
        let effects = effects(&physics);
        for at in 1..=effects {
            for trick in [Trick::DieBefore, Trick::DieAfter] {
                for rest in [0, 7, 300] {
                    in_virtual_time(async {
                        let walk = Walk::new(physics.clone(), (name, at, trick, rest));
                        let step = walk.until_death(&Fuse::at(at, trick)).await;
                        let step = step.unwrap_or_else(|| panic!("{}: no death", walk.tale));
                        walk.arm(&Fuse::counting());
                        tokio::time::sleep(secs(rest)).await;
                        walk.finish(step).await;
                    });
                    runs += 1;
                }
            }
        }
    }
    println!("crash walk: {runs} runs with one crash");
    assert!(runs > 500, "{runs}");
}

#[test]
fn a_second_crash_during_recovery_changes_nothing() {
    let mut runs = 0;
    for (name, physics) in grounds() {
        let effects = effects(&physics);
        for first in 1..=effects {
            for second in 1..=12 {
                let trick = if (first + second) % 2 == 0 {
                    Trick::DieBefore
                } else {
                    Trick::DieAfter
                };
                in_virtual_time(async {
                    let walk = Walk::new(physics.clone(), (name, first, second, trick));
                    let step = walk.until_death(&Fuse::at(first, Trick::DieAfter)).await;
                    let mut step = step.unwrap_or_else(|| panic!("{}: no death", walk.tale));
                    let fuse = Fuse::at(second, trick);
                    walk.arm(&fuse);
                    while let Some((desired, goal)) = life().into_iter().nth(step) {
                        let mut process = Process::start(&walk.ground, Lease::default());
                        tokio::select! {
                            reached = process.reach(&desired, goal, || walk.never_two()) => {
                                assert_eq!(reached, Ok(()), "{}", walk.tale);
                                step += 1;
                            }
                            () = fuse.death() => break,
                        }
                    }
                    walk.arm(&Fuse::counting());
                    walk.finish(step.min(2)).await;
                });
                runs += 1;
            }
        }
    }
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
    let mut runs = 0;
    for (name, physics) in grounds() {
        for at in 1..=effects(&physics) {
            for trick in &tricks {
                let late = matches!(trick, Trick::LoseAnswer(Some(lag)) if !lag.is_zero());
                if late && physics.settle < secs(30) {
                    continue; // such a hypervisor promises that nothing lands late
                }
                in_virtual_time(async {
                    let walk = Walk::new(physics.clone(), (name, at, trick));
                    assert_eq!(walk.until_death(&Fuse::at(at, *trick)).await, None);
                });
                runs += 1;
            }
        }
    }
    println!("crash walk: {runs} runs with a lost answer or a refusal");
    assert!(runs > 500, "{runs}");
}

#[test]
fn a_frozen_leader_that_wakes_with_an_expired_permit_changes_nothing() {
    let mut runs = 0;
    for (name, physics) in grounds() {
        for at in 1..=effects(&physics) {
            in_virtual_time(async {
                let walk = Walk::new(physics.clone(), (name, at, "frozen"));
                // Shorter than any deadline of a call, longer than any permit.
                let fuse = Fuse::at(at, Trick::Freeze(secs(300)));
                walk.arm(&fuse);
                for (step, (desired, goal)) in life().into_iter().enumerate() {
                    let lease = Lease::default();
                    let mut old = Process::start(&walk.ground, lease.clone());
                    let client = old.client();
                    let old = old.reach(&desired, goal, || Ok(()));
                    tokio::pin!(old);
                    tokio::select! {
                        reached = &mut old => {
                            assert_eq!(reached, Ok(()), "{}", walk.tale);
                            continue;
                        }
                        () = fuse.freeze() => lease.end(),
                    }
                    let frozen_at = tokio::time::Instant::now();
                    // The next leader waits for the lease to end, then lives the rest of the
                    // life; in the midst of it the old one wakes and goes on as if nothing were.
                    tokio::time::sleep(PERMIT).await;
                    tokio::select! {
                        () = walk.finish(step) => {}
                        Err(complaint) = &mut old => panic!("{}: {complaint}", walk.tale),
                    }
                    let late = walk
                        .ground
                        .world
                        .requests()
                        .into_iter()
                        .find(|request| request.client == client && request.at > frozen_at);
                    assert_eq!(late, None, "{}: the old leader acted", walk.tale);
                    break;
                }
                assert!(fuse.burnt(), "{}", walk.tale);
            });
            runs += 1;
        }
    }
    println!("crash walk: {runs} runs with a frozen leader");
    assert!(runs > 50, "{runs}");
}

#[test]
fn two_engines_at_once_still_make_one_machine() {
    let mut runs = 0;
    for (name, physics) in grounds() {
        for lead in [0, 1, 3, 7, 20, 100, 400, 999, 2_500, 5_001] {
            in_virtual_time(async {
                let walk = Walk::new(physics.clone(), (name, lead, "two engines"));
                for (desired, goal) in life() {
                    let mut one = Process::start(&walk.ground, Lease::default());
                    let mut two = Process::start(&walk.ground, Lease::default());
                    let (first, second) =
                        tokio::join!(one.reach(&desired, goal, || walk.never_two()), async {
                            tokio::time::sleep(Duration::from_millis(lead)).await;
                            two.reach(&desired, goal, || walk.never_two()).await
                        });
                    assert_eq!((first, second), (Ok(()), Ok(())), "{}", walk.tale);
                    walk.check(goal, &desired).await;
                }
            });
            runs += 1;
        }
    }
    println!("crash walk: {runs} runs with two engines");
}

#[test]
fn a_stranger_taking_the_slot_at_any_moment_is_never_touched() {
    let mut runs = 0;
    for (name, physics) in grounds() {
        let effects = effects(&physics);
        // The slot that a Proxy takes first is always the same.
        let slot = in_virtual_time(async {
            let walk = Walk::new(physics.clone(), "scout");
            let (desired, goal) = life().into_iter().next().expect("a life has a beginning");
            let mut process = Process::start(&walk.ground, Lease::default());
            assert_eq!(process.reach(&desired, goal, || Ok(())).await, Ok(()));
            walk.ground.machines_of(&desired.uid)[0]
        });
        for at in 1..=effects {
            for remove_first in [false, true] {
                in_virtual_time(async {
                    let walk = Walk::new(physics.clone(), (name, at, remove_first, "stranger"));
                    let world = walk.ground.world.clone();
                    let placed = Arc::new(std::sync::atomic::AtomicBool::new(false));
                    let told = placed.clone();
                    let fuse = Fuse::meddling(at, move || {
                        if remove_first {
                            world.remove(slot);
                        }
                        let stranger = Stranger {
                            name: Some("payroll".into()),
                            ..Stranger::default()
                        };
                        told.store(
                            world.place(slot, &stranger),
                            std::sync::atomic::Ordering::SeqCst,
                        );
                    });
                    walk.arm(&fuse);
                    for (desired, goal) in life() {
                        let mut process = Process::start(&walk.ground, Lease::default());
                        let reached = process.reach(&desired, goal, || walk.never_two()).await;
                        assert_eq!(reached, Ok(()), "{}", walk.tale);
                        assert_eq!(
                            walk.ground.machines_of(&desired.uid).len(),
                            usize::from(goal == Goal::Serving),
                            "{}",
                            walk.tale
                        );
                    }
                    if placed.load(std::sync::atomic::Ordering::SeqCst) {
                        let inventory = walk.ground.world.inventory();
                        assert!(
                            inventory.machines.contains(&slot),
                            "{}: the stranger is gone",
                            walk.tale
                        );
                    }
                });
                runs += 1;
            }
        }
    }
    println!("crash walk: {runs} runs with a stranger at the slot");
}

#[test]
fn a_machine_removed_by_hand_at_any_moment_is_made_anew_and_then_gone() {
    let mut runs = 0;
    for (name, physics) in grounds() {
        for at in 1..=effects(&physics) {
            in_virtual_time(async {
                let walk = Walk::new(physics.clone(), (name, at, "removed by hand"));
                let (world, uid) = (walk.ground.clone(), wanted("a", 1).uid);
                let fuse = Fuse::meddling(at, move || {
                    for slot in world.machines_of(&uid) {
                        world.world.remove(slot);
                    }
                });
                assert_eq!(walk.until_death(&fuse).await, None, "{}", walk.tale);
            });
            runs += 1;
        }
    }
    println!("crash walk: {runs} runs with a machine removed by hand");
}

/// B14: a record that was lost hides no machine.
#[test]
fn a_machine_whose_record_was_lost_is_found_by_its_mark_and_removed() {
    for (name, physics) in grounds() {
        in_virtual_time(async {
            let walk = Walk::new(physics.clone(), (name, "record lost"));
            let (up, down) = (wanted("a", 1), unwanted("a"));
            let mut process = Process::start(&walk.ground, Lease::default());
            let reached = process.reach(&up, Goal::Serving, || walk.never_two()).await;
            assert_eq!(reached, Ok(()), "{}", walk.tale);
            tokio::time::sleep(secs(60)).await; // lagging reads show it by now
            let ground = Ground {
                store: egress_engine::store::memory::MemoryStore::new(),
                ..walk.ground.clone()
            };
            let mut process = Process::start(&ground, Lease::default());
            let reached = process.reach(&down, Goal::Gone, || walk.never_two()).await;
            assert_eq!(reached, Ok(()), "{}", walk.tale);
            assert_eq!(
                ground.machines_of(&down.uid),
                Vec::<u32>::new(),
                "{}",
                walk.tale
            );
            assert!(ground.world.inventory().seeds.is_empty(), "{}", walk.tale);
        });
    }
}
