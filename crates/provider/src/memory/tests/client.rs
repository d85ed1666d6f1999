//! The client: one machine from its claim to its end.

use super::{
    super::{
        Agent, Memory, Physics, Power, RequestKind, Settings, Stranger, World, machine::CLONE_LOCK,
    },
    HALF_MADE, claim, create, delete, identity, key, memory, memory_with, number, permit, scene,
    state, wanted,
};
use crate::{Progress, Provider, RecordedSlot};
use egress_core::machine::{Addresses, MachineState, Mark, StopReason};
use egress_core::{ErrorClass, Slot, Standing};
use std::time::Duration;

fn kinds(world: &World) -> Vec<RequestKind> {
    world
        .requests()
        .into_iter()
        .map(|request| request.kind)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_made_sealed_and_deleted_in_the_documented_steps() {
    let (world, memory, key, mut claim) = scene(Physics::default()).await;
    assert_eq!(create(&memory, &key, &claim).await, ["clone", "start"]);
    assert_eq!(
        state(&memory, &key, &claim).await,
        MachineState::Provisioning
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    let MachineState::Running(Addresses::Reported {
        addresses,
        port: None,
    }) = state(&memory, &key, &claim).await
    else {
        panic!("no address after the boot time");
    };
    assert_eq!(addresses.len(), 2, "{addresses:?}");
    for address in addresses {
        let guest = world
            .guest_at(address)
            .expect("the guest answers at each address");
        assert_eq!((guest.key.as_str(), guest.attempt), (key.name(), 1));
    }
    claim.standing = Standing::Started;
    let sealed = memory
        .seal(&key, &claim, &permit())
        .await
        .expect("nothing goes wrong");
    assert_eq!(sealed, Progress::Done);
    assert!(world.inventory().seeds.is_empty());
    assert_eq!(delete(&memory, &key, &claim).await, ["stop", "destroy"]);
    assert_eq!(state(&memory, &key, &claim).await, MachineState::Absent);
    assert_eq!(world.inventory(), super::super::Inventory::default());
    let mut seen = kinds(&world);
    seen.sort_unstable();
    assert_eq!(seen, RequestKind::ALL, "each request was sent once");
}

#[tokio::test(start_paused = true)]
async fn a_new_process_goes_on_where_the_old_one_ended() {
    let (world, first, key, claim) = scene(Physics::default()).await;
    first
        .create(&key, &claim, &wanted(), &permit())
        .await
        .expect("nothing goes wrong");
    drop(first);
    // The handles were never recorded.
    assert_eq!(
        create(&memory(&world), &key, &claim).await,
        ["clone", "start"]
    );
    assert_eq!(
        kinds(&world)
            .iter()
            .filter(|kind| **kind == RequestKind::Clone)
            .count(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_sealed_machine_starts_again_without_a_seed() {
    let (world, memory, key, claim) = scene(Physics::default()).await;
    create(&memory, &key, &claim).await;
    memory
        .seal(&key, &claim, &permit())
        .await
        .expect("nothing goes wrong");
    world.set_power(number(&claim), Power::Stopped);
    assert_eq!(
        state(&memory, &key, &claim).await,
        MachineState::Stopped(StopReason::PoweredOff)
    );
    assert_eq!(create(&memory, &key, &claim).await, ["start"]);
    assert!(world.inventory().seeds.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_machine_with_no_mark_any_more_shows_the_line_that_restores_it() {
    let (world, memory, key, claim) = scene(Physics::default()).await;
    create(&memory, &key, &claim).await;
    world.edit_text(number(&claim), Some("tidied up"));
    let MachineState::NotOwned { restore } = state(&memory, &key, &claim).await else {
        panic!("a machine with our name and no mark is not owned");
    };
    let mark = Mark::find(&restore).expect("the line holds a mark");
    assert_eq!(
        (mark.proxy, mark.config),
        (wanted().proxy, wanted().config_hash)
    );
    let before = world.request_count();
    let refused = memory
        .delete(&key, &claim, &permit())
        .await
        .map_err(|e| e.class());
    assert_eq!(refused, Err(ErrorClass::NotOwned));
    assert_eq!(world.request_count(), before);
    world.edit_text(number(&claim), Some(&restore));
    assert_eq!(delete(&memory, &key, &claim).await, ["stop", "destroy"]);
}

#[tokio::test(start_paused = true)]
async fn a_stale_clone_lock_is_waited_for_and_then_needs_an_operator() {
    let (world, memory, key, claim) = scene(Physics::default()).await;
    memory
        .create(&key, &claim, &wanted(), &permit())
        .await
        .expect("nothing goes wrong");
    assert_eq!(world.kill_tasks(number(&claim)), 2, "clone and upload");
    let waits = memory.create(&key, &claim, &wanted(), &permit()).await;
    assert!(matches!(waits, Ok(Progress::InProgress { ref handles, .. }) if handles.is_empty()));
    tokio::time::sleep(Duration::from_mins(5)).await;
    for refused in [
        memory.create(&key, &claim, &wanted(), &permit()).await,
        memory.delete(&key, &claim, &permit()).await,
    ] {
        assert_eq!(
            refused.map_err(|e| e.class()),
            Err(ErrorClass::NeedsOperator)
        );
    }
    assert!(matches!(
        state(&memory, &key, &claim).await,
        MachineState::Unknown { .. }
    ));
    assert!(world.unlock(number(&claim)));
    assert_eq!(state(&memory, &key, &claim).await, MachineState::Foreign);
}

#[tokio::test(start_paused = true)]
async fn a_failed_task_is_told_once_and_then_begun_anew() {
    let (world, memory, key, mut claim) = scene(Physics::default()).await;
    let begun = memory.create(&key, &claim, &wanted(), &permit()).await;
    let Ok(Progress::InProgress { handles, .. }) = begun else {
        panic!("{begun:?}")
    };
    assert_eq!(handles.len(), 2);
    claim.handles = handles;
    assert_eq!(world.fail_tasks(number(&claim)), 2);
    for _ in 0..2 {
        let told = memory.create(&key, &claim, &wanted(), &permit()).await;
        assert_eq!(told.map_err(|e| e.class()), Err(ErrorClass::Transient));
    }
    assert_eq!(create(&memory, &key, &claim).await, ["clone", "start"]);
}

#[tokio::test(start_paused = true)]
async fn a_killed_start_has_an_unknown_outcome() {
    let (world, memory, key, mut claim) = scene(Physics::default()).await;
    memory
        .create(&key, &claim, &wanted(), &permit())
        .await
        .expect("nothing goes wrong");
    tokio::time::sleep(Duration::from_secs(4)).await;
    let begun = memory.create(&key, &claim, &wanted(), &permit()).await;
    let Ok(Progress::InProgress { step, handles, .. }) = begun else {
        panic!("{begun:?}")
    };
    assert_eq!(step, "start");
    claim.handles = handles;
    assert_eq!(world.kill_tasks(number(&claim)), 1);
    let told = memory.create(&key, &claim, &wanted(), &permit()).await;
    assert_eq!(told.map_err(|e| e.class()), Err(ErrorClass::OutcomeUnknown));
    assert_eq!(state(&memory, &key, &claim).await, HALF_MADE);
    assert_eq!(create(&memory, &key, &claim).await, ["start"]);
}

#[tokio::test(start_paused = true)]
async fn silence_before_the_first_address_is_waited_for_no_longer_than_the_boot_time_out() {
    let (world, memory, key, claim) = scene(Physics::default()).await;
    create(&memory, &key, &claim).await;
    world.set_agent(number(&claim), Agent::Silent);
    assert_eq!(
        state(&memory, &key, &claim).await,
        MachineState::Provisioning
    );
    tokio::time::sleep(Duration::from_mins(10)).await;
    let never = MachineState::Stopped(StopReason::NeverReported);
    assert_eq!(state(&memory, &key, &claim).await, never);
}

#[tokio::test(start_paused = true)]
async fn a_mark_elsewhere_is_never_absence_and_never_a_second_machine() {
    let (world, memory, key, first) = scene(Physics::default()).await;
    create(&memory, &key, &first).await;
    let mut second = first.clone();
    second.slot = Slot::new((number(&first) + 1).to_string());
    second.standing = Standing::Unsent;
    assert!(matches!(
        state(&memory, &key, &second).await,
        MachineState::Unknown { .. }
    ));
    let refused = memory.create(&key, &second, &wanted(), &permit()).await;
    assert_eq!(
        refused.map_err(|e| e.class()),
        Err(ErrorClass::NeedsOperator)
    );
    assert_eq!(world.machines_of(&key), [number(&first)]);
    assert_eq!(delete(&memory, &key, &second).await, ["stop", "destroy"]);
    assert!(world.inventory().machines.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_claim_finds_its_own_machine_before_the_lagging_search_does() {
    let lag = Physics {
        read_lag: Duration::from_mins(1),
        ..Physics::default()
    };
    let (_, memory, key, claim) = scene(lag).await;
    create(&memory, &key, &claim).await;
    let again = super::claim(&memory, &key).await;
    assert_eq!((again.slot, again.standing), (claim.slot, Standing::Seen));
}

#[tokio::test(start_paused = true)]
async fn a_claim_probes_past_taken_and_held_slots_and_gives_up_at_the_end_of_its_range() {
    let world = World::new(Physics::default());
    let memory = memory_with(
        &world,
        Settings {
            range: 10..=12,
            ..Settings::default()
        },
    );
    let first = claim(&memory, &key(1)).await;
    let stranger = Stranger {
        name: Some("db".to_owned()),
        ..Stranger::default()
    };
    assert!(world.place(number(&first), &stranger));
    let second = claim(&memory, &key(1)).await;
    assert_ne!(second.slot, first.slot);
    let third = memory
        .claim(&key(1), &wanted(), 1, std::slice::from_ref(&second.slot))
        .await;
    let third = third.expect("one slot is left");
    let none = memory
        .claim(&key(1), &wanted(), 1, &[second.slot, third.slot])
        .await;
    assert_eq!(none.map_err(|e| e.class()), Err(ErrorClass::Capacity));
}

#[tokio::test(start_paused = true)]
async fn a_listing_tells_machines_copies_and_leftovers_apart() {
    let (world, memory, key, claim) = scene(Physics::default()).await;
    create(&memory, &key, &claim).await;
    let at = number(&claim);
    assert!(world.copy(at, at + 1));
    world.leave_seed("ours.lab.proxy-gone.3.iso");
    world.leave_seed("theirs.lab.proxy-other.1.iso");
    let beyond = RecordedSlot {
        key: key.clone(),
        slot: Slot::new("5"),
    };
    let listing = memory.list(&[beyond]).await.expect("the world answers");
    assert_eq!(listing.machines.len(), 1);
    assert_eq!(listing.machines[0].seed, claim.seed);
    assert_eq!(listing.copies.len(), 1);
    assert_eq!(listing.copies[0].slot.as_str(), (at + 1).to_string());
    assert_eq!(listing.leftovers.len(), 1);
    assert_eq!(listing.leftovers[0].machine, "proxy-gone");
}

#[tokio::test(start_paused = true)]
async fn a_recorded_slot_beyond_the_range_is_listed_whatever_the_search_shows() {
    let lag = Physics {
        read_lag: Duration::from_hours(1),
        ..Physics::default()
    };
    let (world, first, key, claim) = scene(lag).await;
    create(&first, &key, &claim).await;
    let narrow = memory_with(
        &world,
        Settings {
            range: 1..=2,
            ..Settings::default()
        },
    );
    assert!(
        narrow
            .list(&[])
            .await
            .expect("the world answers")
            .machines
            .is_empty()
    );
    let recorded = RecordedSlot {
        key,
        slot: claim.slot,
    };
    assert_eq!(
        narrow
            .list(&[recorded])
            .await
            .expect("the world answers")
            .machines
            .len(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_locked_machine_of_someone_else_frees_no_slot_before_it_can_be_read() {
    let (world, memory, key, claim) = scene(Physics::default()).await;
    let stranger = Stranger {
        lock: Some(CLONE_LOCK.to_owned()),
        ..Stranger::default()
    };
    assert!(world.place(number(&claim), &stranger));
    let waits = memory.create(&key, &claim, &wanted(), &permit()).await;
    assert!(
        matches!(waits, Ok(Progress::InProgress { .. })),
        "{waits:?}"
    );
    world.unlock(number(&claim));
    world.rename(number(&claim), "db");
    let refused = memory.create(&key, &claim, &wanted(), &permit()).await;
    assert_eq!(refused.map_err(|e| e.class()), Err(ErrorClass::Conflict));
    assert_eq!(
        delete(&memory, &key, &claim).await,
        [""; 0],
        "nothing of ours is there"
    );
    assert_eq!(world.request_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_no_number_is_refused() {
    let (_, memory, key, mut claim) = scene(Physics::default()).await;
    claim.slot = Slot::new("/run/somewhere");
    let refused = memory.get(&key, &claim).await.map_err(|e| e.class());
    assert_eq!(refused, Err(ErrorClass::Permanent));
}

#[tokio::test(start_paused = true)]
async fn two_providers_share_a_world_without_seeing_each_other() {
    let (world, ours, key, claim) = scene(Physics::default()).await;
    create(&ours, &key, &claim).await;
    let name = "other".parse().expect("legal");
    let other = Memory::new(name, identity(), world.clone(), Settings::default());
    let listing = other.list(&[]).await.expect("the world answers");
    assert_eq!(listing, crate::Listing::default());
}
