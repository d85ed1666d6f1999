//! What is not ours, or not ours alone, and is never touched.

use crate::world::{Machine, World, is_alive, kill, wait_until};
use egress_core::{
    ClusterId, ErrorClass, Standing,
    machine::{MachineState, StopReason},
};
use egress_provider::{CheckReason, Progress, Provider as _};
use std::{
    fs,
    net::TcpStream,
    process::{Command, Stdio},
};

cases![
    someone_elses_process_at_the_recorded_pid_is_never_touched,
    a_process_that_only_bears_our_mark_at_another_slot_is_a_copy_and_is_never_touched,
    with_the_state_directory_deleted_machines_are_found_by_their_arguments,
    a_claim_of_another_host_is_left_alone,
    two_providers_of_one_installation_leave_each_other_alone,
    a_directory_that_lost_its_mark_is_nobodys_and_the_check_names_it,
];

/// A process that is nobody's machine; ended when dropped.
struct Sleeper(std::process::Child);

impl Sleeper {
    fn new() -> Self {
        let mut command = Command::new("sleep");
        Self(command.arg("300").stdin(Stdio::null()).spawn().unwrap())
    }
    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

async fn someone_elses_process_at_the_recorded_pid_is_never_touched() {
    let world = World::new();
    let provider = world.provider();
    let machine = Machine::made(&provider, "a").await;
    kill(world.only_process());
    let mut sleeper = Sleeper::new();
    let pid = sleeper.0.id();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let start_time = stat[stat.rfind(')').unwrap()..]
        .split_whitespace()
        .nth(20)
        .unwrap();
    let hint = world.directory(&machine.claim.slot).join("process.json");
    let mut started: serde_json::Value = serde_json::from_slice(&fs::read(&hint).unwrap()).unwrap();
    started["process"]["pid"] = pid.into();
    started["process"]["startTime"] = start_time.parse::<u64>().unwrap().into();
    fs::write(&hint, started.to_string()).unwrap();

    for provider in [&provider, &world.provider()] {
        let state = machine.state(provider).await;
        assert_eq!(state, MachineState::Stopped(StopReason::PoweredOff));
    }
    machine.down(&world.provider()).await;
    assert!(sleeper.is_alive());
}

async fn a_process_that_only_bears_our_mark_at_another_slot_is_a_copy_and_is_never_touched() {
    let world = World::new();
    let provider = world.provider();
    let machine = Machine::made(&provider, "a").await;
    let address = machine.socket().ip();
    // The arguments of a machine, run by a person from a directory of another name.
    let (_, mut arguments) = world.processes().remove(0);
    let elsewhere = world
        .root()
        .join("copies")
        .join(format!("{address}_24000_{address}"));
    fs::create_dir_all(&elsewhere).unwrap();
    let config = fs::read_to_string(&arguments[3]).unwrap();
    let own_port = format!(":{}\"", machine.socket().port());
    let copied = elsewhere.join("config.json");
    fs::write(&copied, config.replace(&own_port, ":24000\"")).unwrap();
    copied.to_str().unwrap().clone_into(&mut arguments[3]);
    let copy = world.start(&arguments[1..7], None).unwrap();
    wait_until("the copy listens", || {
        TcpStream::connect((address, 24_000)).is_ok()
    });

    let listing = provider.list(&[]).await.unwrap();
    assert_eq!((listing.machines.len(), listing.copies.len()), (1, 1));
    assert_eq!(listing.copies[0].mark.slot, machine.claim.slot);
    machine.down(&provider).await;
    assert!(is_alive(copy));
    assert_eq!(machine.state(&provider).await, MachineState::Absent);
}

async fn with_the_state_directory_deleted_machines_are_found_by_their_arguments() {
    let world = World::new();
    let machine = Machine::made(&world.provider(), "a").await;
    let pid = world.only_process();
    fs::remove_dir_all(world.state()).unwrap();

    let provider = world.provider();
    assert!(matches!(
        machine.state(&provider).await,
        MachineState::Running(_)
    ));
    let claim = provider
        .claim(&machine.key, &machine.wanted, 2, &[])
        .await
        .unwrap();
    assert_eq!(
        (claim.slot, claim.standing),
        (machine.claim.slot.clone(), Standing::Seen)
    );
    let marks = egress_local::marks_on_this_host().unwrap();
    assert!(marks.iter().any(|mark| mark.uid == *machine.key.uid()));
    let listed = provider.list(&[]).await.unwrap().machines;
    assert_eq!(listed.len(), 1);
    assert_eq!(
        machine.create(&world.provider()).await.unwrap(),
        Progress::Done
    );
    assert_eq!(world.only_process(), pid);
    machine.down(&world.provider()).await;
    assert!(!is_alive(pid));
    assert_eq!(machine.state(&provider).await, MachineState::Absent);
}

async fn a_claim_of_another_host_is_left_alone() {
    let world = World::new();
    let provider = world.provider();
    let mut machine = Machine::made(&provider, "a").await;
    let own = std::mem::replace(&mut machine.claim.cluster, ClusterId::new("another host"));
    let create = machine.create(&provider).await.map(drop);
    let delete = machine.delete(&provider).await.map(drop);
    let get = provider.get(&machine.key, &machine.claim).await.map(drop);
    for answer in [create, delete, get] {
        let error = answer.unwrap_err();
        assert_eq!(error.class(), ErrorClass::NeedsOperator);
        for remedy in [
            "another host",
            "delete the Proxy on that host",
            "egress-proxies.io/abandon",
        ] {
            assert!(error.said().contains(remedy), "{error}");
        }
    }
    machine.claim.cluster = own;
    assert!(matches!(
        machine.state(&provider).await,
        MachineState::Running(_)
    ));

    // A copy of the state directory, as it would lie on the other host: its marks are void.
    machine.down(&provider).await;
    let machine = Machine::claimed(&provider, "b").await;
    machine.up(&provider).await;
    kill(world.only_process());
    let mark = world.directory(&machine.claim.slot).join("mark");
    let text = fs::read_to_string(&mark).unwrap();
    fs::write(
        &mark,
        text.replace(machine.claim.cluster.as_str(), "another host"),
    )
    .unwrap();
    let state = machine.state(&provider).await;
    assert!(matches!(state, MachineState::NotOwned { .. }), "{state:?}");
    let error = machine.delete(&provider).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::NotOwned);
    assert!(provider.list(&[]).await.unwrap().machines.is_empty());
}

async fn two_providers_of_one_installation_leave_each_other_alone() {
    let world = World::new();
    let one = world.provider();
    let two = world.provider_as("second".parse().unwrap(), World::identity(), world.state());
    let machine = Machine::made(&one, "a").await;
    let theirs = Machine::made(&two, "b").await;
    assert_ne!(machine.claim.slot, theirs.claim.slot);
    for (lister, ours) in [(&one, &machine), (&two, &theirs)] {
        let listed = lister.list(&[]).await.unwrap().machines;
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].mark.uid, *ours.key.uid());
    }
    let error = machine.delete(&two).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::NotOwned);
    assert_eq!(world.processes().len(), 2);
    machine.down(&one).await;
    theirs.down(&two).await;
}

async fn a_directory_that_lost_its_mark_is_nobodys_and_the_check_names_it() {
    let world = World::new();
    let provider = world.provider();
    let machine = Machine::made(&provider, "a").await;
    kill(world.only_process());
    // As a power cut leaves files that were never written back.
    for file in ["mark", "config.json", "process.json"] {
        fs::write(world.directory(&machine.claim.slot).join(file), "").unwrap();
    }
    assert_eq!(machine.state(&provider).await, MachineState::Foreign);
    assert_eq!(machine.delete(&provider).await.unwrap(), Progress::Done);
    assert!(world.directory(&machine.claim.slot).exists());
    let report = provider.check().await.unwrap();
    assert_eq!(report.reason(), CheckReason::Ready);
    let slot = machine.claim.slot.as_str();
    assert!(
        report
            .findings
            .iter()
            .any(|finding| finding.found.contains(slot)),
        "{report:?}"
    );
    let claim = provider
        .claim(&machine.key, &machine.wanted, 2, &[])
        .await
        .unwrap();
    assert_ne!(claim.slot, machine.claim.slot);
}
