//! Many machines in one world.

use super::{
    super::{Physics, Settings, World, machine::Machine},
    claim, create, key, memory_with, state,
};
use crate::Provider;
use egress_core::machine::{Addresses, MachineState};
use std::collections::BTreeSet;

#[tokio::test(start_paused = true)]
async fn a_full_range_holds_one_machine_for_each_key() {
    const COUNT: u32 = 300;
    let world = World::new(Physics::instant());
    let range = 1000..=1000 + COUNT - 1;
    let memory = memory_with(
        &world,
        Settings {
            range: range.clone(),
            ..Settings::default()
        },
    );
    let mut slots = BTreeSet::new();
    for number in 0..COUNT {
        let key = key(number);
        let claim = claim(&memory, &key).await;
        create(&memory, &key, &claim).await;
        let seen = state(&memory, &key, &claim).await;
        assert!(
            matches!(seen, MachineState::Running(Addresses::Reported { .. })),
            "{seen:?}"
        );
        slots.insert(super::number(&claim));
    }
    assert_eq!(slots, range.collect());
    let listing = memory.list(&[]).await.expect("the world answers");
    assert_eq!(listing.machines.len(), COUNT as usize);
    assert!(listing.leftovers.is_empty() && listing.copies.is_empty());
}

#[test]
fn a_machine_is_small() {
    assert!(
        size_of::<Machine>() <= 192,
        "{} bytes",
        size_of::<Machine>()
    );
}
