//! L1 to L3: all of ours, and nothing else.

use super::{
    always, seeded,
    strangers::{taken_slots, untouched},
};
use crate::{
    Operation,
    conformance::{
        Case, Network, Tier,
        trial::Trial,
        verdict::{Miss, Verdict, refused, require},
    },
};
use egress_core::machine::{MachineState, StopReason};
use std::sync::Arc;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case {
            rule: "L1",
            title: "list shows every machine of ours, recorded or not",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(all_are_listed(t)),
        },
        Case {
            rule: "L1",
            title: "a half-made machine is listed",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(half_made_is_listed(t)),
        },
        Case {
            rule: "L1",
            title: "list fails when a part of the world cannot be seen",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(never_partial(t)),
        },
        Case {
            rule: "L1",
            title: "list fails when the network is down",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(never_empty_for_want_of_a_network(t)),
        },
        Case {
            rule: "L1",
            title: "a seed that no machine uses is listed as left over",
            tier: Tier::Extended,
            needs: seeded,
            run: |t| Box::pin(leftover_seed(t)),
        },
        Case {
            rule: "L2",
            title: "strangers, templates and void marks are not listed as ours",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(strangers_are_not_listed(t)),
        },
        Case {
            rule: "L2",
            title: "a person's copy of our machine is reported as a copy, not as ours",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(copy_is_reported(t)),
        },
        Case {
            rule: "L2",
            title: "each listed machine bears a mark of this provider, one for each key",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(only_own_marks(t)),
        },
        Case {
            rule: "L3",
            title: "each listed mark is of this installation and writer",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(own_installation(t)),
        },
        Case {
            rule: "L3",
            title: "two installations neither list nor touch each other's machines",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(two_installations(t)),
        },
    ]
}

async fn all_are_listed(t: Arc<Trial>) -> Verdict {
    let mut machines = Vec::new();
    for label in ["a", "b", "c"] {
        machines.push(t.made(label).await?);
    }
    for machine in &machines {
        t.alone(machine).await?;
    }
    // No record leads there: marks and tags must.
    let listing = t.listing(&[]).await?;
    for machine in &machines {
        let listed = listing
            .machines
            .iter()
            .find(|m| m.mark.uid == *machine.key.uid());
        let Some(listed) = listed else {
            return Err(Miss::Failed(format!(
                "{} is not listed without a record",
                machine.key
            )));
        };
        require!(
            listed.mark.proxy == machine.wanted.proxy
                && listed.mark.config == machine.wanted.config_hash
                && listed.mark.attempt == machine.claim.attempt,
            "the mark of {} says {}",
            machine.key,
            listed.mark
        );
    }
    for mut machine in machines {
        t.down(&*t.provider.clone(), &mut machine).await?;
    }
    Ok(())
}

async fn half_made_is_listed(t: Arc<Trial>) -> Verdict {
    let mut machine = t.claimed("a").await?;
    let mut met = false;
    while !t.create_step(&*t.provider.clone(), &mut machine).await? {
        if t.rest(&mut machine).await? == MachineState::Stopped(StopReason::HalfMade) {
            met = true;
            t.alone(&machine).await?;
        }
    }
    t.down(&*t.provider.clone(), &mut machine).await?;
    if met {
        Ok(())
    } else {
        Err(Miss::NotRun("create shows no half-made machine".into()))
    }
}

async fn never_partial(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.world()?.blind_spot().await?;
    t.catch_up().await?;
    let answer = t
        .call(Operation::List, t.provider.list(&[machine.recorded()]))
        .await?;
    refused("list with a part of the world hidden", answer)?;
    t.world()?.heal().await?;
    t.catch_up().await?;
    t.alone(&machine).await?;
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn never_empty_for_want_of_a_network(t: Arc<Trial>) -> Verdict {
    t.world()?.network(Network::Down).await?;
    for provider in [t.provider.clone(), t.restart().await?] {
        let answer = t.call(Operation::List, provider.list(&[])).await?;
        refused("list without a network", answer)?;
    }
    Ok(())
}

async fn leftover_seed(t: Arc<Trial>) -> Verdict {
    let (key, _) = t.wish("a")?;
    let name = t.leave_seed(&key).await?;
    let mut machine = t.made("b").await?;
    let listing = t.listing(&[machine.recorded()]).await?;
    let left: Vec<_> = listing
        .leftovers
        .iter()
        .filter(|l| l.volume.name == name)
        .collect();
    require!(
        left.len() == 1,
        "the seed {name} is listed {} times",
        left.len()
    );
    require!(
        left[0].machine == key.name(),
        "the seed {name} is said to be {}'s",
        left[0].machine
    );
    require!(
        listing
            .leftovers
            .iter()
            .all(|l| l.machine != machine.key.name()),
        "the seed of a running machine is listed as left over"
    );
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn strangers_are_not_listed(t: Arc<Trial>) -> Verdict {
    use super::strangers::Shape;
    let taken = taken_slots(&t).await?;
    let recorded: Vec<_> = taken
        .iter()
        .map(|(_, machine, _)| machine.recorded())
        .collect();
    for recorded in [recorded.as_slice(), &[]] {
        let listing = t.listing(recorded).await?;
        for (shape, machine, before) in &taken {
            // A valid mark of another key of ours is ours, whatever our records say.
            let listed = listing
                .machines
                .iter()
                .any(|m| m.mark.slot == machine.claim.slot);
            require!(
                *shape == Shape::AnotherKey || !listed,
                "a stranger ({shape:?}) at {} is listed as ours",
                machine.claim.slot
            );
            untouched(&t, machine, before.as_ref(), "list").await?;
        }
        let lost = listing.machines.iter().filter(|m| {
            let elsewhere = m.mark.slot.as_str().ends_with("-elsewhere");
            m.mark.uid.as_str().starts_with(&t.prefix) && elsewhere
        });
        require!(lost.count() == 0, "a void mark is listed as ours");
    }
    Ok(())
}

async fn copy_is_reported(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let slot = t.world()?.copy(&machine.claim.slot).await?;
    t.disown(&slot);
    t.catch_up().await?;
    t.alone(&machine).await?;
    let listing = t.listing(&[machine.recorded()]).await?;
    let copies: Vec<_> = listing.copies.iter().filter(|c| c.slot == slot).collect();
    require!(
        copies.len() == 1,
        "the copy at {slot} is reported {} times",
        copies.len()
    );
    require!(
        copies[0].mark.uid == *machine.key.uid() && copies[0].mark.slot == machine.claim.slot,
        "the copy is reported with the mark {}",
        copies[0].mark
    );
    let state = t.state(&mut machine).await?;
    require!(
        matches!(state, MachineState::Running(_)),
        "next to its copy the machine is {state:?}"
    );
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn only_own_marks(t: Arc<Trial>) -> Verdict {
    let mut one = t.made("a").await?;
    let mut two = t.made("b").await?;
    let listing = t.listing(&[one.recorded(), two.recorded()]).await?;
    for (at, listed) in listing.machines.iter().enumerate() {
        require!(
            listed.mark.provider == *t.provider.name(),
            "the provider {}'s machine {} is listed",
            listed.mark.provider,
            listed.mark.uid
        );
        require!(
            listing.machines[..at]
                .iter()
                .all(|m| m.mark.slot != listed.mark.slot),
            "the slot {} is listed twice",
            listed.mark.slot
        );
    }
    t.down(&*t.provider.clone(), &mut one).await?;
    t.down(&*t.provider.clone(), &mut two).await
}

async fn own_installation(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let listing = t.listing(&[machine.recorded()]).await?;
    for listed in &listing.machines {
        require!(
            listed.mark.installation == t.identity.installation
                && listed.mark.writer == t.identity.writer,
            "a machine of the installation {} is listed",
            listed.mark.installation
        );
    }
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn two_installations(t: Arc<Trial>) -> Verdict {
    let other = t.other_installation().await?;
    let mut ours = t.made("ours").await?;
    let mut theirs = t.claimed_by(&other, "theirs").await?;
    t.up(&*other, &mut theirs).await?;
    t.running(&*other, &mut theirs).await?;
    let recorded = [ours.recorded(), theirs.recorded()];
    for (lister, foreign) in [(&t.provider, &theirs), (&other, &ours)] {
        let listing = t.call(Operation::List, lister.list(&recorded)).await??;
        require!(
            listing
                .machines
                .iter()
                .all(|m| m.mark.uid != *foreign.key.uid()),
            "another installation's machine is listed"
        );
        require!(
            listing
                .leftovers
                .iter()
                .all(|l| l.machine != foreign.key.name()),
            "another installation's seed is listed as left over"
        );
        let seen = lister.get(&foreign.key, &foreign.claim);
        let seen = t.call(Operation::Get, seen).await??;
        require!(
            !matches!(seen.state, MachineState::Running(_) | MachineState::Absent),
            "another installation's machine is called {:?}",
            seen.state
        );
    }
    // The very same claim in our hands: their machine stays as it is.
    let before = t.world()?.describe(&theirs.claim.slot).await?;
    let permit = t.permit(&theirs);
    let call = t.provider.delete(&theirs.key, &theirs.claim, &permit);
    let answer = t.call(Operation::Delete, call).await?;
    untouched(
        &t,
        &theirs,
        before.as_ref(),
        "another installation's delete",
    )
    .await?;
    refused("delete of another installation's machine", answer)?;
    let call = t
        .provider
        .create(&theirs.key, &theirs.claim, &theirs.wanted, &permit);
    let answer = t.call(Operation::Create, call).await?;
    untouched(
        &t,
        &theirs,
        before.as_ref(),
        "another installation's create",
    )
    .await?;
    refused("create on another installation's machine", answer)?;
    t.down(&*other, &mut theirs).await?;
    t.down(&*t.provider.clone(), &mut ours).await
}
