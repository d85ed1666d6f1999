//! Walks through the [`World`](super::world): every fault at every pass of a Proxy's life,
//! every two of them, and then many by chance.

use super::world::{FAULTS, Fault, World};
use proptest::{collection::vec, prelude::*, sample::select};

/// The three ways of a Proxy's life, each from where the one before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Replaced,
    Gone,
}

const LIFE: [Way; 3] = [Way::Up, Way::Replaced, Way::Gone];

fn set_out(world: &mut World, way: Way) {
    match way {
        Way::Up => world.want(1),
        Way::Replaced => world.want(2),
        Way::Gone => world.delete(),
    }
}

/// The world in which this way begins, reached without a fault.
fn beginning(way: Way, seals: bool) -> World {
    let mut world = World::new(seals);
    for step in LIFE {
        set_out(&mut world, step);
        if step == way {
            break;
        }
        world.settle_down();
    }
    world.told.clear();
    world
}

/// Tries every fault at every pass until the goal, and from each of those worlds again, as
/// often as `faults` says; every one of them must reach the goal, and then be deleted
/// without a trace. Answers with the number of worlds, one for each pass made.
fn walk(world: &World, faults: u32) -> usize {
    let mut world = world.clone();
    let mut worlds = 0;
    while faults > 0 && !world.at_goal() {
        for fault in FAULTS {
            let mut other = world.clone();
            other.pass(Some(fault));
            worlds += 1 + walk(&other, faults - 1);
        }
        world.pass(None);
        worlds += 1;
    }
    worlds += world.settle_down();
    world.delete();
    worlds + world.settle_down()
}

#[test]
fn with_any_fault_at_any_pass_there_is_one_machine_and_then_none() {
    let lives = LIFE.map(|way| {
        [
            walk(&beginning(way, false), 1),
            walk(&beginning(way, true), 1),
        ]
    });
    let worlds: usize = lives.iter().flatten().sum();
    println!("{worlds} worlds with one fault");
    assert!(
        worlds > 5_000,
        "{worlds}: the walk is shorter than it should be"
    );
}

#[test]
fn with_any_two_faults_at_any_passes_there_is_one_machine_and_then_none() {
    let worlds: usize = LIFE.map(|way| walk(&beginning(way, true), 2)).iter().sum();
    println!("{worlds} worlds with two faults");
    assert!(
        worlds > 500_000,
        "{worlds}: the walk is shorter than it should be"
    );
}

/// A fault, after so many passes without one.
fn any_fault() -> impl Strategy<Value = (u8, Fault)> {
    (0..6_u8, select(FAULTS.to_vec()))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn with_many_faults_in_a_whole_life_there_is_one_machine_and_then_none(
        life in vec(vec(any_fault(), 0..8), LIFE.len()),
        seals in any::<bool>(),
    ) {
        let mut world = World::new(seals);
        for (way, faults) in LIFE.into_iter().zip(life) {
            set_out(&mut world, way);
            for (quiet, fault) in faults {
                for _ in 0..quiet {
                    world.pass(None);
                }
                world.pass(Some(fault));
            }
            world.settle_down();
        }
        world.delete();
        world.settle_down();
    }
}
