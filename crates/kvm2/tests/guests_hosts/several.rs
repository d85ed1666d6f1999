//! Several hosts at once: where a machine is made, one that falls silent, one that a machine is
//! moved to, strangers and leftovers on each.

use crate::support::{
    Ground, Machine,
    host::{Host, Wish, virsh},
    provider,
};
use egress_core::{
    ErrorClass, Identity, Standing,
    machine::{Addresses, MachineState, StopReason},
};
use egress_kvm2::{Kvm2, bench::Bench, client::HostUri};
use egress_provider::{
    CheckReason, Listing, Progress, Provider,
    conformance::{Options, Outcome, Subject, Tier, render, run_until},
};
use std::{collections::BTreeSet, fs, sync::Arc};

/// A host beside libvirt-up's, whose name is `first`'s.
async fn second(ground: &Ground, subnet: u8, pool: Option<&std::path::Path>) -> Host {
    let wish = Wish {
        name: "second",
        subnet,
        tls: None,
        pool,
    };
    Host::start(ground, &wish, ground.empty_image().await).await
}

async fn of_two(ground: &Ground, second: &Host) -> Arc<Kvm2> {
    let config = ground.config_of(&[&ground.uri, &second.uri]).await;
    assert_eq!(config.validate("kvm2"), []);
    Arc::new(provider(config))
}

fn is_on(machine: &Machine, uri: &HostUri) -> bool {
    virsh(uri, &["list", "--all", "--name"])
        .lines()
        .any(|name| name == machine.key.name())
}

fn is_up(state: &MachineState) -> bool {
    matches!(
        state,
        MachineState::Provisioning
            | MachineState::Running(Addresses::Reported { .. } | Addresses::Unreported)
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_down_keeps_its_machines_and_new_ones_go_to_the_other() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let mut second = second(&ground, 161, None).await;
    let provider = of_two(&ground, &second).await;
    assert_eq!(provider.check().await.expect("a report").findings, []);

    // One on each; which is first depends on their memory, and both are this machine.
    let mut here = Machine::of(&provider, "one").await;
    here.up().await;
    let mut there = Machine::of(&provider, "two").await;
    there.up().await;
    if is_on(&here, &second.uri) {
        std::mem::swap(&mut here, &mut there);
    }
    assert!(is_on(&here, &ground.uri) && !is_on(&here, &second.uri));
    assert!(is_on(&there, &second.uri) && !is_on(&there, &ground.uri));
    // A place on the host that will be silent, and nothing there yet.
    let mut promised = Machine::of(&provider, "promised").await;
    promised.claim.cluster = there.claim.cluster.clone();
    promised.claim.host.clone_from(&there.claim.host);

    second.stop();
    for machine in [&there, &promised] {
        match machine.get().await {
            Ok(seen) => assert!(
                matches!(seen.state, MachineState::Unknown { .. }),
                "{seen:?}"
            ),
            Err(error) => assert_eq!(error.class(), ErrorClass::Transient, "{error}"),
        }
    }
    assert!(is_up(&here.state().await));
    let partial = provider.list(&[]).await.expect_err("not complete");
    assert_eq!(partial.class(), ErrorClass::Transient);
    let report = provider.check().await.expect("a report");
    assert_eq!(report.findings.len(), 1, "{report:?}");
    assert_eq!(report.findings[0].reason, CheckReason::Unreachable);
    assert_eq!(report.findings[0].field.as_deref(), Some("hosts[1].uri"));

    let mut new = Machine::of(&provider, "three").await;
    new.up().await;
    assert!(is_on(&new, &ground.uri));
    assert!(is_up(&new.state().await));
    let mut large = Machine::wished(&provider, "large");
    large.wanted.size.memory_mib = u32::MAX;
    let refused = large.claim().await.expect_err("no room");
    assert_eq!(refused.class(), ErrorClass::Capacity, "{refused}");
    // Another process cannot know what the silent host has.
    let process = Arc::new(crate::support::again(
        &provider,
        ground.config_of(&[&ground.uri, &second.uri]).await,
    ));
    let mut unknown = Machine::wished(&process, "four");
    let waits = unknown.claim().await.expect_err("it may be there");
    assert_eq!(waits.class(), ErrorClass::Transient, "{waits}");
    assert!(waits.said().contains("not every host answers"), "{waits}");

    // What was there is not gone, wherever it was; nothing of it is forgotten.
    let waits = there.delete().await.expect_err("its host is silent");
    assert_eq!(waits.class(), ErrorClass::Transient, "{waits}");
    assert!(waits.said().contains("libvirt-sock"), "{waits}");
    let end = crate::support::soon();
    let waits = loop {
        match here.delete().await {
            Ok(Progress::Done) => panic!("done, and nobody knows"),
            Ok(Progress::InProgress { recheck, .. }) => tokio::time::sleep(recheck).await,
            Err(error) => break error,
        }
        assert!(tokio::time::Instant::now() < end);
    };
    assert_eq!(waits.class(), ErrorClass::Transient, "{waits}");
    assert!(waits.said().contains("second: "), "{waits}");
    let gone = here.get().await.expect("it is looked for").state;
    assert!(matches!(gone, MachineState::Unknown { .. }), "{gone:?}");

    second.go().await;
    assert!(is_up(&there.state().await));
    for machine in [&here, &there, &new, &promised] {
        machine.gone().await;
    }
    assert_eq!(
        provider.list(&[]).await.expect("a listing"),
        Listing::default()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_was_moved_is_found_sealed_and_deleted_where_it_is() {
    let Some(ground) = Ground::find() else {
        return;
    };
    // As where machines are moved: both see the same disks.
    let shared = ground.dir.join("pool");
    let second = second(&ground, 162, Some(&shared)).await;
    let provider = of_two(&ground, &second).await;
    let mut machine = Machine::of(&provider, "moved").await;
    machine.up().await;
    let (from, to) = if is_on(&machine, &ground.uri) {
        (&ground.uri, &second.uri)
    } else {
        (&second.uri, &ground.uri)
    };
    let name = machine.key.name().to_owned();
    let name = name.as_str();
    let file = ground.dir.join("moved.xml");
    let definition = virsh(from, &["dumpxml", "--inactive", name]);
    fs::write(&file, definition).expect("written");
    virsh(from, &["destroy", name]);
    virsh(from, &["undefine", name]);
    let between = machine.get().await.expect("it is looked for").state;
    assert_eq!(between, MachineState::Absent, "it is nowhere");
    virsh(to, &["define", &file.display().to_string()]);
    let state = machine.state().await;
    assert_eq!(state, MachineState::Stopped(StopReason::PoweredOff));
    let told = machine.create().await.expect_err("it was moved");
    assert_eq!(told.class(), ErrorClass::NeedsOperator, "{told}");
    virsh(to, &["start", name]);

    let seen = machine.get().await.expect("it is seen");
    assert!(is_up(&seen.state), "{seen:?}");
    let host = virsh(to, &["hostname"]);
    assert_eq!(
        seen.host.map(|host| host.to_string()).as_deref(),
        Some(host.trim())
    );
    assert!(matches!(machine.create().await, Ok(Progress::Done)));
    assert!(!is_on(&machine, from), "it is not made again");
    // Its disk is on no list of leftovers, on neither host.
    let listing = provider.list(&[]).await.expect("a listing");
    assert_eq!(listing.machines.len(), 1, "{listing:?}");
    assert_eq!(listing.leftovers, []);
    machine.claim.standing = Standing::Started;
    assert!(matches!(machine.seal().await, Ok(Progress::Done)));
    let drives = virsh(to, &["domblklist", name]);
    assert!(!drives.contains(".iso"), "{drives}");
    machine.down().await;
    assert!(!is_on(&machine, to));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_taken_on_one_host_is_free_on_the_other() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let second = second(&ground, 163, None).await;
    let provider = of_two(&ground, &second).await;
    for (stranger, free) in [(&ground.uri, &second.uri), (&second.uri, &ground.uri)] {
        let mut machine = Machine::wished(&provider, "namesake");
        let name = machine.key.name().to_owned();
        let file = ground.dir.join(format!("{name}.xml"));
        let xml = format!(
            "<domain type='qemu'><name>{name}</name><memory unit='MiB'>16</memory><os><type arch='x86_64'>hvm</type></os></domain>"
        );
        fs::write(&file, xml).expect("written");
        virsh(stranger, &["define", &file.display().to_string()]);
        machine.claim().await.expect("a place");
        machine.up().await;
        assert!(is_on(&machine, free));
        assert!(is_up(&machine.state().await));
        machine.down().await;
        assert!(is_on(&machine, stranger), "the stranger's is still there");
        virsh(stranger, &["undefine", &name]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_accounts_for_is_listed_from_every_host() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let second = second(&ground, 164, None).await;
    let provider = of_two(&ground, &second).await;
    let mut machines = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let mut machine = Machine::of(&provider, name).await;
        machine.up().await;
        machines.push(machine);
    }
    let on = |uri| machines.iter().filter(|m| is_on(m, uri)).count();
    assert_eq!((on(&ground.uri), on(&second.uri)), (2, 2));
    // One of each loses its definition, and its volumes stay.
    let mut lost = Vec::new();
    for uri in [&ground.uri, &second.uri] {
        let machine = machines.iter().find(|m| is_on(m, uri)).expect("two");
        virsh(uri, &["destroy", machine.key.name()]);
        virsh(uri, &["undefine", machine.key.name()]);
        lost.push(machine.key.name());
    }
    // A process without any record sees the same.
    let config = ground.config_of(&[&ground.uri, &second.uri]).await;
    let process = crate::support::again(&provider, config);
    let listing = process.list(&[]).await.expect("a listing");
    let orphans: BTreeSet<_> = listing
        .machines
        .iter()
        .map(|m| m.mark.uid.as_str())
        .collect();
    let there = machines.iter().filter(|m| !lost.contains(&m.key.name()));
    assert_eq!(orphans, there.map(|m| m.key.uid().as_str()).collect());
    let hosts: BTreeSet<_> = listing
        .machines
        .iter()
        .filter_map(|m| m.host.clone())
        .collect();
    assert_eq!(hosts.len(), 2, "{hosts:?}");
    let leftovers: BTreeSet<_> = listing
        .leftovers
        .iter()
        .map(|l| l.machine.as_str())
        .collect();
    assert_eq!(leftovers, lost.iter().copied().collect());
    assert_eq!(
        listing.leftovers.len(),
        4,
        "disk and seed of each: {listing:?}"
    );
    let marks = process.marks().await.expect("all of them");
    assert_eq!(marks.len(), 2);
    for machine in &machines {
        machine.gone().await;
    }
    assert_eq!(
        provider.list(&[]).await.expect("a listing"),
        Listing::default()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_was_rebooted_has_its_machines_off_and_they_are_started_again() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let mut host = second(&ground, 166, None).await;
    let config = ground.config_of(&[&host.uri]).await;
    let mut machine = Machine::claimed("rebooted", config).await;
    machine.up().await;
    host.reboot().await;
    let state = machine.state().await;
    assert_eq!(state, MachineState::Stopped(StopReason::PoweredOff));
    machine.up().await;
    assert!(is_up(&machine.state().await));
    machine.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kvm2_keeps_the_contract_over_two_hosts() {
    let Some(ground) = Ground::find() else {
        return;
    };
    // Both are of its own: what is there before and after each case is compared.
    let first = second(&ground, 165, None).await;
    let second = second(&ground, 167, Some(&first.pool)).await;
    let run_id = uuid::Uuid::new_v4().simple().to_string();
    let identity = Identity {
        installation: format!("hosts-{}", &run_id[..8]).parse().expect("a name"),
        writer: None,
    };
    let directory = tempfile::tempdir().expect("a folder");
    let name = "kvm-a".parse().expect("a name");
    let config = ground.config().await;
    let bench = Bench::start(name, identity, config, None, &first.uri, directory.path())
        .and_then(|bench| bench.beside(&second.uri, directory.path()));
    let subject = Subject::on(Arc::new(bench.expect("a bench")));
    let mut options = Options::new(Tier::Extended, &run_id[..8]);
    options.size.memory_mib = 32;
    options.size.disk_gib = 1;
    // The cases that one host cannot show.
    for filter in ["G4", "part of the world"] {
        options.filter = Some(filter.to_owned());
        let (results, _) = run_until(&subject, &options, |_| {}, std::future::pending()).await;
        let told = render(&results);
        assert!(!results.is_empty(), "{filter}");
        let passed = results.iter().all(|case| case.outcome == Outcome::Passed);
        assert!(passed, "{told}");
    }
}
