//! The crash walks over the provider for Proxmox VE and its simulator, in one process and in
//! virtual time.

use egress_core::ErrorClass;
use egress_proxmox::Config;
use egress_proxmox_sim::world::{NodeSetup, Setup, Timings};
use egress_simtest::{
    fuse::Trick,
    pve::Pve,
    walk::{self, Terrain, secs},
};
use std::time::Duration;

/// How late the effect of a request may come whose answer was lost.
const SETTLE: Duration = Duration::from_mins(15);

fn terrain(
    name: &'static str,
    setup: Setup,
    change: impl Fn(&mut Config) + 'static,
) -> Terrain<Pve> {
    Terrain::new(name, SETTLE, move || Pve::new(&setup, &change))
}

/// One host, as measured on a small one.
fn one_node() -> Terrain<Pve> {
    terrain("one node", Setup::default(), |_| {})
}

/// Two hosts on which everything takes long, and whose status lags further behind; a VLAN.
fn slow_cluster() -> Terrain<Pve> {
    let one = Setup::default();
    let second = NodeSetup {
        name: "pve2".to_owned(),
        address: "192.0.2.11".to_owned(),
        ..one.nodes[0].clone()
    };
    let timings = Timings {
        clone_disk: 25.0,
        upload: 15.0,
        resize: 5.0,
        start: 6.0,
        boot: 20.0,
        stop: 8.0,
        destroy: 6.0,
        delete_volume: 4.0,
        broadcast: 18.0,
        ..Timings::default()
    };
    let setup = Setup {
        cluster: Some("lab".to_owned()),
        nodes: vec![one.nodes[0].clone(), second],
        timings,
        ..one
    };
    terrain("a slow cluster", setup, |config| config.vlan_tag = Some(4))
}

/// Version 8, machines in a pool.
fn version_8() -> Terrain<Pve> {
    let mut setup = Setup {
        version: 8,
        ..Setup::default()
    };
    setup.pools[0].members.push(9000);
    for privileges in setup.roles.values_mut() {
        privileges.retain(|privilege| !privilege.starts_with("VM.GuestAgent"));
        privileges.push("VM.Monitor".to_owned());
    }
    terrain("version 8, a pool", setup, |config| {
        config.pool = Some("egress".to_owned());
    })
}

fn terrains() -> Vec<Terrain<Pve>> {
    vec![one_node(), slow_cluster(), version_8()]
}

#[test]
fn a_crash_at_any_effect_leaves_one_machine_and_then_none() {
    let runs = walk::one_crash(&terrains(), 240);
    println!("crash walk over Proxmox VE: {runs} runs with one crash");
    assert!(runs > 100, "{runs}");
}

#[test]
fn a_crash_before_any_request_leaves_one_machine_and_then_none() {
    let runs = walk::a_crash_at_any_request(&terrains(), 300);
    println!("crash walk over Proxmox VE: {runs} runs with a crash at any request");
    assert!(runs > 100, "{runs}");
}

#[test]
fn a_crash_with_a_request_on_its_way_leaves_one_machine_and_then_none() {
    let runs = walk::a_crash_with_a_request_on_its_way(&terrains(), 240);
    println!("crash walk over Proxmox VE: {runs} runs with a request on its way");
    assert!(runs > 100, "{runs}");
}

#[test]
fn a_kill_between_the_creating_request_and_its_answer_delays_no_deletion() {
    for terrain in terrains().iter().filter(|terrain| terrain.is_late()) {
        // Killed after the claim was written and before the request: a second one is sent.
        assert_eq!(walk::waits_after_a_crash(terrain), 1, "{}", terrain.name());
    }
}

#[test]
fn a_second_crash_during_recovery_changes_nothing() {
    let runs = walk::two_crashes(&terrains(), 180);
    println!("crash walk over Proxmox VE: {runs} runs with two crashes");
    assert!(runs > 100, "{runs}");
}

#[test]
fn a_lost_answer_or_a_refusal_at_any_effect_is_survived_without_a_restart() {
    let tricks = [
        Trick::LoseAnswer(None),
        Trick::LoseAnswer(Some(Duration::ZERO)),
        Trick::LoseAnswer(Some(secs(30))),
        Trick::LoseAnswer(Some(secs(400))),
        Trick::TimeOut(None),
        Trick::TimeOut(Some(Duration::ZERO)),
        Trick::TimeOut(Some(secs(45))),
        Trick::Refuse(ErrorClass::Busy),
        Trick::Refuse(ErrorClass::Transient),
        Trick::Refuse(ErrorClass::OutcomeUnknown),
        Trick::Refuse(ErrorClass::Unauthorized),
        Trick::Refuse(ErrorClass::NeedsOperator),
        Trick::Refuse(ErrorClass::Internal),
    ];
    let runs = walk::tricks(&terrains(), &tricks, 360);
    println!("crash walk over Proxmox VE: {runs} runs with a lost answer or a refusal");
    assert!(runs > 100, "{runs}");
}

#[test]
fn a_killed_task_leaves_nothing_that_a_person_was_not_told_of() {
    let runs = walk::killed_tasks(&terrains(), 160);
    println!("crash walk over Proxmox VE: {runs} runs with killed tasks");
    assert!(runs > 100, "{runs}");
}

#[test]
fn a_frozen_leader_that_wakes_with_an_expired_permit_changes_nothing() {
    let runs = walk::a_frozen_leader(&terrains(), 300);
    println!("crash walk over Proxmox VE: {runs} runs with a frozen leader");
    assert!(runs > 50, "{runs}");
}

#[test]
fn two_engines_at_once_still_make_one_machine() {
    let leads = [0, 1, 3, 7, 20, 60, 100, 250, 400, 999, 2_500, 5_001];
    let runs = walk::two_engines(&terrains(), &leads);
    println!("crash walk over Proxmox VE: {runs} runs with two engines");
}

#[test]
fn a_stranger_taking_the_vmid_at_any_moment_is_never_touched() {
    let runs = walk::a_stranger_at_the_slot(&terrains(), 180);
    println!("crash walk over Proxmox VE: {runs} runs with a stranger at the VMID");
}

#[test]
fn a_machine_removed_by_hand_at_any_moment_is_made_anew_and_then_gone() {
    let runs = walk::a_machine_removed_by_hand(&terrains(), 300);
    println!("crash walk over Proxmox VE: {runs} runs with a machine removed by hand");
}

#[test]
fn a_copy_is_never_touched_and_a_renamed_machine_stays_ours() {
    let runs = walk::copied_and_renamed(&terrains(), 90);
    println!("crash walk over Proxmox VE: {runs} runs with copies and other names");
}

#[test]
fn an_edited_record_misleads_where_to_look_and_never_whose_a_machine_is() {
    let runs = walk::edited_record(&terrains(), 220);
    println!("crash walk over Proxmox VE: {runs} runs with an edited record");
}

/// B14: a record that was lost hides no machine.
#[test]
fn a_machine_whose_record_was_lost_is_found_by_its_mark_and_removed() {
    walk::lost_record(&terrains());
}
