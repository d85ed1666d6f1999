//! G1 to G7: what a look may say.

use super::{
    always,
    strangers::{Shape, taken_slots, untouched, written},
};
use crate::{
    AddressSource, Capabilities, Operation, Placement,
    conformance::{
        Agent, Case, Lock, Network, PowerEvent, Tier,
        trial::{Machine, Trial},
        verdict::{Miss, Verdict, refused, refused_as, require},
    },
};
use egress_core::{
    ErrorClass, Mark,
    machine::{Addresses, MachineState, StopReason},
};
use std::{net::IpAddr, sync::Arc, time::Duration};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case {
            rule: "G1",
            title: "check, claim, get and list change nothing that they show",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(reading_shows_the_same(t)),
        },
        Case {
            rule: "G1",
            title: "check, claim, get and list send no mutating request",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(reading_sends_nothing(t)),
        },
        Case {
            rule: "G2",
            title: "a key without a machine is absent, before its create and after its delete",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(absent_without_machine(t)),
        },
        Case {
            rule: "G2",
            title: "another key's machine at the slot is foreign",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(another_key_is_foreign(t)),
        },
        Case {
            rule: "G2",
            title: "a stranger at the slot is foreign, whatever its shape",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(strangers_are_foreign(t)),
        },
        Case {
            rule: "G2",
            title: "a renamed machine of ours stays ours",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(renamed(t)),
        },
        Case {
            rule: "G2",
            title: "our name with an edited mark is not owned, and the line to restore is told",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(edited_mark(t)),
        },
        Case {
            rule: "G2",
            title: "a machine removed outside is absent",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(removed_outside(t)),
        },
        Case {
            rule: "G2",
            title: "nothing is absent while a part of the world cannot be seen",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(blind_spot(t)),
        },
        Case {
            rule: "G2",
            title: "nothing is absent while the network is down",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(network_down(t)),
        },
        Case {
            rule: "G3",
            title: "the reported addresses are those of the configured NIC and can be reached",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(addresses(t)),
        },
        Case {
            rule: "G4",
            title: "a machine moved to another host is found, listed and deleted there",
            tier: Tier::Extended,
            needs: |c| c.placement == Placement::MultiHost,
            run: |t| Box::pin(migrated(t)),
        },
        Case {
            rule: "G5",
            title: "a machine without an agent is stopped: it can never report",
            tier: Tier::Extended,
            needs: by_agent,
            run: |t| Box::pin(no_agent(t)),
        },
        Case {
            rule: "G5",
            title: "a machine that reports no address within the boot time-out never will",
            tier: Tier::Extended,
            needs: by_agent,
            run: |t| Box::pin(never_reported(t)),
        },
        Case {
            rule: "G5",
            title: "paused, hibernated and storage-stuck machines say so instead of being waited for",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(stopped_reasons(t)),
        },
        Case {
            rule: "G6",
            title: "an agent that fell silent leaves the machine running, address unreported",
            tier: Tier::Extended,
            needs: by_agent,
            run: |t| Box::pin(silent_agent(t)),
        },
        Case {
            rule: "G6",
            title: "a proven machine whose agent is silent runs also for a new process",
            tier: Tier::Extended,
            needs: by_agent,
            run: |t| Box::pin(silent_after_restart(t)),
        },
        Case {
            rule: "G7",
            title: "a backup's lock on a running machine is running and busy",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(backup_lock(t)),
        },
    ]
}

fn by_agent(capabilities: &Capabilities) -> bool {
    capabilities.address == AddressSource::Agent
}

async fn read_all(t: &Trial, machine: &Machine) -> Verdict {
    t.call(Operation::Check, t.provider.check()).await??;
    let claim = t.provider.claim(&machine.key, &machine.wanted, 2, &[]);
    t.call(Operation::Claim, claim).await??;
    t.call(Operation::Get, t.provider.get(&machine.key, &machine.claim))
        .await??;
    t.call(Operation::List, t.provider.list(&[machine.recorded()]))
        .await??;
    Ok(())
}

async fn reading_shows_the_same(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let unmade = t.claimed("b").await?;
    t.alone(&machine).await?;
    let listed = own(&t, &machine).await?;
    let seen = t.state(&mut machine).await?;
    for _ in 0..3 {
        read_all(&t, &machine).await?;
        read_all(&t, &unmade).await?;
    }
    let (later, again) = (own(&t, &machine).await?, t.state(&mut machine).await?);
    require!(
        listed == later,
        "reading turned the listing {listed:?} into {later:?}"
    );
    require!(seen == again, "reading turned {seen:?} into {again:?}");
    t.down(&*t.provider.clone(), &mut machine).await
}

/// What is listed of this case's own machines; others may share the hypervisor.
async fn own(t: &Trial, machine: &Machine) -> Verdict<Vec<Mark>> {
    let listing = t.listing(&[machine.recorded()]).await?;
    let marks = listing.machines.into_iter().map(|m| m.mark);
    Ok(marks
        .filter(|m| m.uid.as_str().starts_with(&t.prefix))
        .collect())
}

async fn reading_sends_nothing(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let unmade = t.claimed("b").await?;
    let (sent, stock) = (t.sent().await?, t.world()?.inventory().await?);
    let before = t.world()?.describe(&machine.claim.slot).await?;
    let process = t.restart().await?;
    for of in [&machine, &unmade] {
        read_all(&t, of).await?;
        process.get(&of.key, &of.claim).await?;
        process.list(&[of.recorded()]).await?;
    }
    t.nothing_sent_since(sent, "reading").await?;
    let after = t.world()?.describe(&machine.claim.slot).await?;
    require!(before == after, "reading turned {before:?} into {after:?}");
    let left = t.world()?.inventory().await?;
    require!(
        stock == left,
        "reading turned the inventory {stock:?} into {left:?}"
    );
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn absent_without_machine(t: Arc<Trial>) -> Verdict {
    let mut machine = t.claimed("a").await?;
    let state = t.state(&mut machine).await?;
    require!(
        state == MachineState::Absent,
        "before its create the machine is {state:?}"
    );
    t.up(&*t.provider.clone(), &mut machine).await?;
    t.running(&*t.provider.clone(), &mut machine).await?;
    t.down(&*t.provider.clone(), &mut machine).await?;
    let state = t.state(&mut machine).await?;
    require!(
        state == MachineState::Absent,
        "after its delete the machine is {state:?}"
    );
    Ok(())
}

async fn another_key_is_foreign(t: Arc<Trial>) -> Verdict {
    let mut owner = t.made("owner").await?;
    let (key, _) = t.wish("other")?;
    let call = t.provider.get(&key, &owner.claim);
    let seen = t.call(Operation::Get, call).await??;
    require!(
        seen.state == MachineState::Foreign,
        "another key's machine at the slot is {:?}",
        seen.state
    );
    t.down(&*t.provider.clone(), &mut owner).await
}

async fn strangers_are_foreign(t: Arc<Trial>) -> Verdict {
    for (shape, mut machine, before) in taken_slots(&t).await? {
        let state = t.state(&mut machine).await?;
        require!(
            state == MachineState::Foreign,
            "a stranger ({shape:?}) is called {state:?}"
        );
        untouched(&t, &machine, before.as_ref(), "get").await?;
    }
    Ok(())
}

async fn renamed(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.world()?
        .rename(&machine.claim.slot, &format!("{}-renamed", t.prefix))
        .await?;
    t.catch_up().await?;
    let state = t.state(&mut machine).await?;
    require!(
        matches!(state, MachineState::Running(_)),
        "a renamed machine of ours is called {state:?}"
    );
    t.alone(&machine).await?;
    t.down(&*t.provider.clone(), &mut machine).await?;
    t.gone(&mut machine).await
}

async fn edited_mark(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let slot = machine.claim.slot.clone();
    let broken = format!("{}{{\"installation\":", egress_core::machine::MARK_PREFIX);
    for text in [None, Some("a note of an admin"), Some(broken.as_str())] {
        t.world()?.edit_mark(&slot, text).await?;
        t.catch_up().await?;
        let state = t.state(&mut machine).await?;
        let MachineState::NotOwned { restore } = state else {
            return Err(Miss::Failed(format!(
                "our name with the text {text:?} in place of the mark is called {state:?}"
            )));
        };
        let mark = Mark::find(&restore)
            .ok_or_else(|| Miss::Failed(format!("the line to restore is no mark: {restore}")))?;
        require!(
            mark.uid == *machine.key.uid() && mark.slot == slot,
            "the line to restore is for {} at {}",
            mark.uid,
            mark.slot
        );
        let before = t.world()?.describe(&slot).await?;
        let answer = t.create_once(&*t.provider.clone(), &mut machine).await?;
        refused_as("create without a mark", answer, &[ErrorClass::NotOwned])?;
        untouched(&t, &machine, before.as_ref(), "create").await?;
        t.world()?.edit_mark(&slot, Some(&restore)).await?;
        t.catch_up().await?;
        let state = t.state(&mut machine).await?;
        require!(
            matches!(state, MachineState::Running(_)),
            "with the mark restored the machine is {state:?}"
        );
    }
    // The mark of another key in our machine: its name and that mark contradict each other.
    let stranger = Shape::AnotherKey.at(&t, &machine)?;
    t.world()?
        .edit_mark(&slot, stranger.text.as_deref())
        .await?;
    t.catch_up().await?;
    let state = t.state(&mut machine).await?;
    require!(
        matches!(state, MachineState::NotOwned { .. }),
        "our name with another key's mark is called {state:?}"
    );
    t.world()?
        .edit_mark(&slot, Some(&written(&t.mark_of(&machine))))
        .await?;
    t.catch_up().await?;
    t.down(&*t.provider.clone(), &mut machine).await?;
    t.gone(&mut machine).await
}

async fn removed_outside(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.world()?.remove(&machine.claim.slot).await?;
    t.catch_up().await?;
    let state = t.state(&mut machine).await?;
    require!(
        state == MachineState::Absent,
        "a machine removed outside is {state:?}"
    );
    t.down(&*t.provider.clone(), &mut machine).await?;
    t.gone(&mut machine).await
}

/// `get` of these machines fails, or cannot decide; it never says absent.
async fn never_absent(t: &Trial, machines: &mut [Machine], while_: &str) -> Verdict {
    let process = t.restart().await?;
    for machine in machines {
        for provider in [&t.provider, &process] {
            let answer = t.look(&**provider, machine).await?;
            let state = answer.map(|seen| seen.state);
            require!(
                !matches!(state, Ok(MachineState::Absent | MachineState::Foreign)),
                "while {while_} the machine is called {state:?}"
            );
        }
    }
    Ok(())
}

async fn blind_spot(t: Arc<Trial>) -> Verdict {
    let machine = t.made("a").await?;
    let unmade = t.claimed("b").await?;
    let mut both = [machine, unmade];
    t.world()?.blind_spot().await?;
    t.catch_up().await?;
    never_absent(&t, &mut both, "a part of the world is hidden").await?;
    t.world()?.heal().await?;
    t.catch_up().await?;
    t.down(&*t.provider.clone(), &mut both[0]).await
}

async fn network_down(t: Arc<Trial>) -> Verdict {
    let machine = t.made("a").await?;
    let unmade = t.claimed("b").await?;
    let mut both = [machine, unmade];
    t.world()?.network(Network::Down).await?;
    never_absent(&t, &mut both, "the network is down").await?;
    let listed = t.call(Operation::List, t.provider.list(&[])).await?;
    refused("list without a network", listed)?;
    t.world()?.network(Network::Up).await?;
    t.down(&*t.provider.clone(), &mut both[0]).await
}

async fn addresses(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let state = t.state(&mut machine).await?;
    let MachineState::Running(Addresses::Reported { addresses, port }) = state else {
        return Err(Miss::Failed(format!(
            "a machine that had an address is {state:?}"
        )));
    };
    require!(!addresses.is_empty(), "reported, but no address");
    require!(port != Some(0), "the proxy's port is 0");
    for address in addresses {
        let usable = !address.is_unspecified() && !address.is_multicast() && !link_local(address);
        require!(usable, "{address} is not an address that can be reached");
        require!(
            t.caps.loopback || !address.is_loopback(),
            "{address} is a loopback address"
        );
    }
    t.down(&*t.provider.clone(), &mut machine).await
}

fn link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

async fn migrated(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let host = t.world()?.migrate(&machine.claim.slot).await?;
    t.catch_up().await?;
    let seen = t.look(&*t.provider.clone(), &mut machine).await??;
    require!(
        matches!(seen.state, MachineState::Running(_)),
        "a machine moved to {host} is {:?}",
        seen.state
    );
    require!(
        seen.host.as_ref() == Some(&host),
        "moved to {host}, seen on {:?}",
        seen.host
    );
    let listing = t.listing(&[machine.recorded()]).await?;
    let listed = listing
        .machines
        .iter()
        .find(|m| m.mark.uid == *machine.key.uid());
    require!(
        listed.is_some_and(|m| m.host.as_ref() == Some(&host)),
        "moved to {host}, listed as {listed:?}"
    );
    t.down(&*t.provider.clone(), &mut machine).await?;
    t.gone(&mut machine).await
}

/// Makes a machine whose agent is as given from its first moment on.
async fn made_with_agent(t: &Trial, agent: Agent) -> Verdict<Machine> {
    let mut machine = t.claimed("a").await?;
    let mut set = false;
    loop {
        let done = t.create_step(&*t.provider.clone(), &mut machine).await?;
        if !set && t.world()?.describe(&machine.claim.slot).await?.is_some() {
            t.world()?.agent(&machine.claim.slot, agent).await?;
            set = true;
        }
        if done {
            return Ok(machine);
        }
    }
}

async fn no_agent(t: Arc<Trial>) -> Verdict {
    let mut machine = made_with_agent(&t, Agent::Missing).await?;
    let limit = t.caps.boot_timeout + Duration::from_mins(1);
    let provider = t.provider.clone();
    t.until(
        &*provider,
        &mut machine,
        limit,
        "be stopped without an agent",
        |state| {
            matches!(
                state,
                MachineState::Stopped(StopReason::NoAgent | StopReason::NeverReported)
            )
        },
    )
    .await?;
    t.down(&*provider, &mut machine).await
}

async fn never_reported(t: Arc<Trial>) -> Verdict {
    let mut machine = made_with_agent(&t, Agent::Addressless).await?;
    let provider = t.provider.clone();
    let state = t.state(&mut machine).await?;
    require!(
        matches!(state, MachineState::Provisioning),
        "started a moment ago, no address yet: the machine is {state:?}"
    );
    // In pieces, for a harness that waits in earnest.
    let mut left = t.caps.boot_timeout + Duration::from_secs(5);
    while !left.is_zero() {
        let piece = left.min(Duration::from_mins(1));
        t.world()?.pass(piece).await?;
        t.look(&*provider, &mut machine).await??;
        left -= piece;
    }
    let state = t.state(&mut machine).await?;
    require!(
        state == MachineState::Stopped(StopReason::NeverReported),
        "after the boot time-out the machine is {state:?}"
    );
    t.down(&*provider, &mut machine).await
}

async fn stopped_reasons(t: Arc<Trial>) -> Verdict {
    let mut refusal = None;
    let mut seen = 0;
    for (event, reason) in [
        (PowerEvent::Paused, StopReason::Paused),
        (PowerEvent::Hibernated, StopReason::Hibernated),
        (PowerEvent::IoError, StopReason::IoError),
    ] {
        let mut machine = t.made(&format!("{event:?}").to_lowercase()).await?;
        match t.power(&machine, event).await {
            Ok(()) => {
                seen += 1;
                let state = t.state(&mut machine).await?;
                require!(
                    state == MachineState::Stopped(reason),
                    "after {event:?} the machine is {state:?}"
                );
            }
            Err(Miss::NotRun(why)) => refusal = Some(why),
            Err(failed) => return Err(failed),
        }
        t.down(&*t.provider.clone(), &mut machine).await?;
    }
    match refusal {
        Some(why) if seen == 0 => Err(Miss::NotRun(why)),
        _ => Ok(()),
    }
}

async fn silent_agent(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.world()?.agent(&machine.claim.slot, Agent::Silent).await?;
    t.catch_up().await?;
    for _ in 0..3 {
        let state = t.state(&mut machine).await?;
        require!(
            state == MachineState::Running(Addresses::Unreported),
            "with a silent agent the machine is {state:?}"
        );
        t.pass(Duration::from_secs(5)).await?;
    }
    t.world()?
        .agent(&machine.claim.slot, Agent::Answering)
        .await?;
    t.running(&*t.provider.clone(), &mut machine).await?;
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn silent_after_restart(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.sealed(&*t.provider.clone(), &mut machine).await?;
    t.world()?.agent(&machine.claim.slot, Agent::Silent).await?;
    t.catch_up().await?;
    let process = t.restart().await?;
    for _ in 0..3 {
        let state = t.look(&*process, &mut machine).await??.state;
        require!(
            state == MachineState::Running(Addresses::Unreported),
            "sealed, agent silent, process new: the machine is {state:?}"
        );
        t.world()?.pass(t.caps.boot_timeout).await?;
    }
    t.down(&*process, &mut machine).await
}

async fn backup_lock(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.world()?.lock(&machine.claim.slot, Lock::Backup).await?;
    t.catch_up().await?;
    let seen = t.look(&*t.provider.clone(), &mut machine).await??;
    require!(
        matches!(seen.state, MachineState::Running(_)),
        "a running machine in a backup is {:?}",
        seen.state
    );
    require!(
        seen.busy.is_some(),
        "a machine in a backup is not called busy"
    );
    t.world()?.unlock(&machine.claim.slot).await?;
    t.catch_up().await?;
    let seen = t.look(&*t.provider.clone(), &mut machine).await??;
    require!(
        seen.busy.is_none(),
        "busy with {:?} after the backup",
        seen.busy
    );
    t.down(&*t.provider.clone(), &mut machine).await
}
