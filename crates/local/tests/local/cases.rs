//! What is special about machines that are processes, and the conformance suite.

use crate::world::{Machine, PASSWORD, PATIENCE, World, bench, is_alive, kill, permit, wait_until};
use egress_core::{
    ErrorClass, Standing,
    machine::{Addresses, MachineState, StopReason},
    proxy_config::{Auth, GENERATED_USER, IDENTITY_PATH, IdentityAnswer, Verifier},
};
use egress_provider::{
    CheckReason, Progress, Provider as _,
    conformance::{Options, Outcome, Subject, Tier, render, run},
};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
};

cases![
    the_conformance_suite_passes,
    a_machine_answers_with_its_key_and_has_a_session_and_few_secrets_of_its_own,
    a_machine_outlives_the_engine_and_is_adopted,
    two_engines_that_create_at_once_start_one_process,
    a_create_dropped_at_any_moment_is_continued,
    a_killed_process_is_powered_off_and_started_again,
    changed_credentials_start_the_same_machine_again_with_the_present_ones,
    an_open_proxy_is_never_made,
    without_its_program_nothing_is_made_and_the_check_says_so,
    what_a_crash_left_behind_is_listed_and_goes_with_the_machine,
    a_draining_machine_is_asked_to_end_once_even_by_a_new_engine,
    nothing_is_left_after_the_last_machine,
];

async fn the_conformance_suite_passes() {
    let (bench, above) = bench();
    let bench = Arc::new(bench);
    let subject = Subject::on(bench.clone());
    let results = run(&subject, &Options::new(Tier::Extended, "local")).await;
    bench.clear().unwrap();
    assert_eq!(fs::read_dir(above.path()).unwrap().count(), 0);
    println!("{}", render(&results));
    let failed: Vec<_> = results
        .iter()
        .filter(|r| matches!(r.outcome, Outcome::Failed(_)))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    // What is not run is what such a world cannot show: tasks, networks, agents, a cluster.
    let passed = results
        .iter()
        .filter(|r| r.outcome == Outcome::Passed)
        .count();
    assert!(passed >= 45, "only {passed} cases could be run");
}

/// The whole answer of a machine that is asked who it is, with this password.
fn request_identity(address: SocketAddr, password: &str) -> String {
    let pair = data_encoding::BASE64.encode(format!("{GENERATED_USER}:{password}").as_bytes());
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET {IDENTITY_PATH} HTTP/1.1\r\nHost: {address}\r\n\
         Proxy-Authorization: Basic {pair}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What a machine answers to who it is.
pub fn identity(address: SocketAddr) -> IdentityAnswer {
    let answer = request_identity(address, PASSWORD);
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

async fn a_machine_answers_with_its_key_and_has_a_session_and_few_secrets_of_its_own() {
    let world = World::new();
    let provider = world.provider();
    let machine = Machine::made(&provider, "a").await;
    let answer = identity(machine.socket());
    assert_eq!(
        (answer.key.as_str(), answer.attempt),
        (machine.key.name(), 1)
    );

    let seen = machine.get(&provider).await;
    let expected = Addresses::Reported {
        addresses: vec![machine.socket().ip()],
        port: Some(machine.socket().port()),
    };
    assert_eq!(seen.state, MachineState::Running(expected));
    assert_eq!(seen.config_hash, Some(machine.wanted.config_hash.clone()));
    assert!(seen.uptime.is_some() && seen.created_at.is_some() && seen.host.is_some());

    let pid = world.only_process();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat[stat.rfind(')').unwrap()..].split_whitespace().nth(4);
    assert_eq!(session, Some(pid.to_string().as_str()));
    let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    assert!(
        environment.is_empty() || environment.starts_with("PROXYD_LOG="),
        "{environment}"
    );
    let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(!arguments.contains("verifier"));
    machine.down(&provider).await;
}

async fn a_machine_outlives_the_engine_and_is_adopted() {
    let world = World::new();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let provider = world.provider();
    let machine = runtime
        .spawn(async move { Machine::made(&provider, "a").await })
        .await
        .unwrap();
    runtime.shutdown_background();
    let pid = world.only_process();

    let next = world.provider();
    let claim = next
        .claim(&machine.key, &machine.wanted, 2, &[])
        .await
        .unwrap();
    assert_eq!((claim.standing, claim.attempt), (Standing::Seen, 1));
    assert_eq!(claim.slot, machine.claim.slot);
    assert!(matches!(
        machine.state(&next).await,
        MachineState::Running(_)
    ));
    assert_eq!(machine.create(&next).await.unwrap(), Progress::Done);
    assert_eq!(world.only_process(), pid);
    machine.down(&next).await;
    assert!(!is_alive(pid));
}

async fn two_engines_that_create_at_once_start_one_process() {
    let world = World::new();
    let (one, two) = (world.provider(), world.provider());
    for name in ["a", "b", "c"] {
        let machine = Machine::claimed(&one, name).await;
        tokio::join!(machine.up(&one), machine.up(&two));
        assert_eq!(world.processes_at(&machine.claim.slot).len(), 1);
        assert_eq!(identity(machine.socket()).key, machine.key.name());
        machine.down(&two).await;
    }
}

async fn a_create_dropped_at_any_moment_is_continued() {
    let world = World::new();
    let provider = world.provider();
    for polls in 1..8 {
        let machine = Machine::claimed(&provider, &format!("a{polls}")).await;
        let permit = permit();
        let mut left = polls;
        let mut call = provider.create(&machine.key, &machine.claim, &machine.wanted, &permit);
        let ended = std::future::poll_fn(|context| {
            left -= 1;
            match call.as_mut().poll(context) {
                std::task::Poll::Pending if left > 0 => std::task::Poll::Pending,
                answer => std::task::Poll::Ready(answer.is_ready()),
            }
        })
        .await;
        drop(call);
        machine.up(&world.provider()).await;
        assert_eq!(world.processes_at(&machine.claim.slot).len(), 1);
        machine.down(&provider).await;
        if ended {
            return;
        }
    }
}

async fn a_killed_process_is_powered_off_and_started_again() {
    let world = World::new();
    let provider = world.provider();
    let machine = Machine::made(&provider, "a").await;
    let first = world.only_process();
    kill(first);
    for provider in [&provider, &world.provider()] {
        let state = machine.state(provider).await;
        assert_eq!(state, MachineState::Stopped(StopReason::PoweredOff));
    }
    machine.up(&provider).await;
    assert_ne!(world.only_process(), first);
    assert_eq!(identity(machine.socket()).key, machine.key.name());
    machine.down(&provider).await;
}

async fn changed_credentials_start_the_same_machine_again_with_the_present_ones() {
    let world = World::new();
    let provider = world.provider();
    let mut machine = Machine::made(&provider, "a").await;
    let (old, socket) = (world.only_process(), machine.socket());
    let created_at = machine.get(&provider).await.created_at;
    assert_eq!(machine.create(&provider).await.unwrap(), Progress::Done);
    assert_eq!(
        world.only_process(),
        old,
        "the same credentials change nothing"
    );

    machine.wanted.settings.auth = Auth::Basic {
        verifiers: vec![Verifier::new(GENERATED_USER, "another password")],
        generation: 1,
    };
    let ended = machine.create(&provider).await.unwrap();
    assert!(matches!(ended, Progress::InProgress { .. }), "{ended:?}");
    wait_until("the process has ended", || !is_alive(old));
    // Ended by us, so it counts as no fault of the machine, for a new engine neither.
    let state = machine.state(&world.provider()).await;
    assert_eq!(state, MachineState::Stopped(StopReason::HalfMade));
    machine.up(&world.provider()).await;
    assert_ne!(world.only_process(), old);
    assert_eq!(machine.socket(), socket);
    assert_eq!(machine.get(&provider).await.created_at, created_at);
    let answers = |password| request_identity(socket, password).starts_with("HTTP/1.1 200");
    assert!(answers("another password") && !answers(PASSWORD));
    machine.down(&provider).await;
}

async fn an_open_proxy_is_never_made() {
    let world = World::new();
    let provider = world.provider();
    let mut machine = Machine::claimed(&provider, "a").await;
    machine.wanted.settings.auth = Auth::None {};
    machine.wanted.settings.clients.clear();
    let error = machine.create(&provider).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
    assert!(!world.state().exists());
}

async fn without_its_program_nothing_is_made_and_the_check_says_so() {
    let world = World::new();
    let provider = world.provider();
    assert_eq!(provider.check().await.unwrap().reason(), CheckReason::Ready);
    let machine = Machine::claimed(&provider, "a").await;
    fs::remove_file(world.program()).unwrap();
    let error = machine.create(&provider).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::NeedsOperator);
    assert!(!world.state().exists());
    assert_eq!(
        provider.check().await.unwrap().reason(),
        CheckReason::TemplateInvalid
    );

    // A program that ends at once: what it did is told, and the next try goes on from there.
    std::os::unix::fs::symlink("/bin/false", world.program()).unwrap();
    let error = machine.create(&provider).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Transient);
    assert!(error.said().contains("exit status: 1"), "{error}");
    assert_eq!(
        machine.state(&provider).await,
        MachineState::Stopped(StopReason::HalfMade)
    );
    fs::remove_file(world.program()).unwrap();
    world.put_program().unwrap();
    machine.up(&provider).await;
    machine.down(&provider).await;
}

async fn what_a_crash_left_behind_is_listed_and_goes_with_the_machine() {
    let world = World::new();
    let provider = world.provider();
    let machine = Machine::made(&provider, "a").await;
    let root = world.state().join("machines/local");
    for prefix in [".new-", ".gone-"] {
        let left = root.join(format!("{prefix}{}.1.0", machine.key.name()));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("mark"), "").unwrap();
    }
    let leftovers = provider.list(&[]).await.unwrap().leftovers;
    assert_eq!(leftovers.len(), 2);
    assert!(
        leftovers
            .iter()
            .all(|left| left.machine == machine.key.name())
    );
    machine.down(&provider).await;
    assert!(!root.exists());
}

async fn a_draining_machine_is_asked_to_end_once_even_by_a_new_engine() {
    let mut world = World::new();
    world.config.drain_seconds = 60;
    let provider = world.provider();
    let machine = Machine::made(&provider, "a").await;
    // A tunnel that stays open, to a target that says nothing.
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = target.local_addr().unwrap();
    let pair = data_encoding::BASE64.encode(format!("{GENERATED_USER}:{PASSWORD}").as_bytes());
    let mut tunnel = TcpStream::connect(machine.socket()).unwrap();
    tunnel.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        tunnel,
        "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: Basic {pair}\r\n\r\n"
    )
    .unwrap();
    let (mut far, from) = target.accept().unwrap();
    assert_eq!(
        from.ip(),
        machine.socket().ip(),
        "traffic comes from the egress address"
    );
    let mut head = [0; 12];
    tunnel.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");

    let draining = |progress: &Progress| matches!(progress, Progress::InProgress { step, .. } if step == "draining");
    // A second SIGTERM would end the drain at once.
    for provider in [&provider, &world.provider()] {
        assert!(draining(&machine.delete(provider).await.unwrap()));
        let state = machine.state(provider).await;
        assert_eq!(
            state,
            MachineState::InProgress {
                step: "draining".to_owned()
            }
        );
        assert!(draining(&machine.create(provider).await.unwrap()));
    }
    far.write_all(b"still here").unwrap();
    let mut answer = Vec::new();
    drop(far);
    tunnel.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(b"still here"));
    drop(tunnel);
    machine.down(&world.provider()).await;
    assert!(world.processes().is_empty());
}

async fn nothing_is_left_after_the_last_machine() {
    let world = World::new();
    let provider = world.provider();
    fs::create_dir(world.state()).unwrap();
    let mut machines = Vec::new();
    for name in ["a", "b", "c"] {
        machines.push(Machine::made(&provider, name).await);
    }
    for machine in &machines {
        machine.down(&provider).await;
    }
    assert!(world.processes().is_empty());
    assert_eq!(fs::read_dir(world.state()).unwrap().count(), 0);
}
