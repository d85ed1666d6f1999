//! Where machines are put: ports and addresses that are free, taken, asked for or all in use.

use crate::{
    cases::identity,
    world::{Machine, World, kill, listen_after, wanted},
};
use egress_core::{ErrorClass, Standing, machine::MachineState};
use egress_provider::{CheckReason, Progress, Provider as _};
use std::{collections::BTreeMap, net::TcpListener};

cases![
    a_squatted_port_is_a_conflict_and_the_next_claim_goes_elsewhere,
    machines_have_egress_addresses_of_their_own_while_there_are_enough,
    a_port_squatted_while_the_machine_is_off_frees_its_directory,
    a_port_that_the_manifest_asks_for_is_used_or_its_holder_is_named,
    a_full_range_is_no_capacity,
];

async fn a_squatted_port_is_a_conflict_and_the_next_claim_goes_elsewhere() {
    let world = World::new();
    let provider = world.provider();
    let machine = Machine::claimed(&provider, "a").await;
    let squatter = TcpListener::bind(machine.socket()).unwrap();
    let error = machine.create(&provider).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
    let holder = format!("process {}", std::process::id());
    assert!(error.said().contains(&holder), "{error}");
    assert_eq!(machine.state(&provider).await, MachineState::Foreign);
    assert!(world.processes().is_empty());
    assert_eq!(machine.delete(&provider).await.unwrap(), Progress::Done);

    let taken = [machine.claim.slot.clone()];
    let claim = provider
        .claim(&machine.key, &machine.wanted, 2, &taken)
        .await
        .unwrap();
    assert_ne!(claim.slot, machine.claim.slot);
    let next = Machine { claim, ..machine };
    next.up(&provider).await;
    assert_eq!(identity(next.socket()).attempt, 2);
    next.down(&provider).await;
    drop(squatter);
}

async fn machines_have_egress_addresses_of_their_own_while_there_are_enough() {
    let mut world = World::new();
    world.config.addresses = (1..=4).map(|n| [127, 0, 77, n].into()).collect();
    let provider = world.provider();
    let mut used: BTreeMap<String, u32> = BTreeMap::new();
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let slot = Machine::made(&provider, name).await.claim.slot;
        let egress = slot.as_str().rsplit('_').next().unwrap().to_owned();
        *used.entry(egress).or_default() += 1;
        let (most, least) = (used.values().max(), used.values().min());
        let fair = most
            .zip(least)
            .is_some_and(|(most, least)| most - least <= 1);
        assert!(fair, "{used:?}");
    }
    assert_eq!(used.len(), 4, "{used:?}");
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        Machine::claimed(&provider, name)
            .await
            .down(&provider)
            .await;
    }
}

async fn a_port_squatted_while_the_machine_is_off_frees_its_directory() {
    let world = World::new();
    let provider = world.provider();
    let machine = Machine::made(&provider, "a").await;
    kill(world.only_process());
    let squatter = listen_after(machine.socket());
    let error = machine.create(&provider).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
    assert!(!world.directory(&machine.claim.slot).exists());
    assert_eq!(machine.state(&provider).await, MachineState::Foreign);
    let claim = provider
        .claim(&machine.key, &machine.wanted, 2, &[])
        .await
        .unwrap();
    assert_eq!((claim.standing, claim.attempt), (Standing::Unsent, 2));
    drop(squatter);
}

async fn a_port_that_the_manifest_asks_for_is_used_or_its_holder_is_named() {
    let world = World::new();
    let provider = world.provider();
    let mut wanted = wanted("a");
    wanted.settings.port = Some(24_500);
    let key = crate::world::key("a");
    let claim = provider.claim(&key, &wanted, 1, &[]).await.unwrap();
    let machine = Machine { key, wanted, claim };
    assert_eq!(machine.socket().port(), 24_500);
    machine.up(&provider).await;

    let mut other = crate::world::wanted("b");
    other.settings.port = Some(24_500);
    let error = provider
        .claim(&crate::world::key("b"), &other, 1, &[])
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Capacity);
    assert!(
        error.said().contains("belongs to another machine of ours"),
        "{error}"
    );
    machine.down(&provider).await;

    let squatter = TcpListener::bind(machine.socket()).unwrap();
    let error = provider
        .claim(&crate::world::key("b"), &other, 1, &[])
        .await
        .unwrap_err();
    let holder = format!("is held by process {}", std::process::id());
    assert!(error.said().contains(&holder), "{error}");
    drop(squatter);
}

async fn a_full_range_is_no_capacity() {
    let world = World::with_ports(2);
    let provider = world.provider();
    let (one, two) = (
        Machine::made(&provider, "a").await,
        Machine::made(&provider, "b").await,
    );
    assert_ne!(one.claim.slot, two.claim.slot);
    let error = provider
        .claim(&crate::world::key("c"), &wanted("c"), 1, &[])
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Capacity);
    assert!(error.said().contains("20000-20001"), "{error}");
    let report = provider.check().await.unwrap();
    assert_eq!(report.reason(), CheckReason::RangeInvalid);
    assert_eq!(report.free_slots, Some(0));
    one.down(&provider).await;
    assert_eq!(provider.check().await.unwrap().free_slots, Some(1));
    let third = Machine::made(&provider, "c").await;
    assert_eq!(third.claim.slot, one.claim.slot);
    two.down(&provider).await;
    third.down(&provider).await;
}
