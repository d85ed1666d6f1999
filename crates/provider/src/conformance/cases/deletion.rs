//! D1 to D6: gone altogether, and nothing else with it.

use super::{
    always,
    creation::{STEPS, half_made},
    lands_late, seeded,
    strangers::{Shape, namesake, taken_slots, untouched},
};
use crate::{
    Operation, PROOF_LIFETIME, Progress,
    conformance::{
        Case, Landing, Lock, PowerEvent, Tier,
        trial::Trial,
        verdict::{Miss, Verdict, may_repeat, poll_at_most, refused, refused_as, require},
    },
};
use egress_core::{Claim, ErrorClass, machine::MachineState};
use std::{sync::Arc, time::Duration};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case {
            rule: "D1",
            title: "delete removes the machine, and again is done at once",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(deleted_twice(t)),
        },
        Case {
            rule: "D1",
            title: "delete of what was never made is done",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(deleted_unmade(t)),
        },
        Case {
            rule: "D1",
            title: "a sealed machine boots without its seed and is deleted as a whole",
            tier: Tier::Basic,
            needs: seeded,
            run: |t| Box::pin(deleted_sealed(t)),
        },
        Case {
            rule: "D1",
            title: "a machine half made by any number of calls is deleted as a whole",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(deleted_half_made(t)),
        },
        Case {
            rule: "D1",
            title: "a process that ends after any call of delete is continued by the next one",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(deleted_by_the_next(t)),
        },
        Case {
            rule: "D2",
            title: "delete at the slot of another key's machine leaves it running",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(another_key_survives(t)),
        },
        Case {
            rule: "D2",
            title: "delete touches no stranger, whatever its shape",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(strangers_survive(t)),
        },
        Case {
            rule: "D2",
            title: "delete touches no machine that has our name and no mark",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(namesake_survives(t)),
        },
        Case {
            rule: "D2",
            title: "a person's copy of our machine outlives it",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(copy_survives(t)),
        },
        Case {
            rule: "D2",
            title: "a delete that was frozen does not hit the stranger who took the slot meanwhile",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(frozen_delete(t)),
        },
        Case {
            rule: "D3",
            title: "delete says done only when the machine cannot be seen any more",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(done_means_gone(t)),
        },
        Case {
            rule: "D3",
            title: "a stranger in our machine's former slot: done, and nothing is sent",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(stranger_after_us(t)),
        },
        Case {
            rule: "D3",
            title: "a delete whose request is lost is not done",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(lost_delete(t)),
        },
        Case {
            rule: "D4",
            title: "a protected machine needs an operator and is left running",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(protected(t)),
        },
        Case {
            rule: "D4",
            title: "without quorum delete sends nothing",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(no_quorum(t)),
        },
        Case {
            rule: "D4",
            title: "a machine in a backup is deleted after it",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(locked(t)),
        },
        Case {
            rule: "D4",
            title: "stopped, paused, hibernated, crashed and hung machines are deleted",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(any_power(t)),
        },
        Case {
            rule: "D5",
            title: "delete works from the record as it was stored, without the user's wish",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(from_stored_record(t)),
        },
        Case {
            rule: "D5",
            title: "a new process deletes from the record alone",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(from_record_alone(t)),
        },
        Case {
            rule: "D6",
            title: "a freed slot is not claimed again within the settle bound",
            tier: Tier::Basic,
            needs: lands_late,
            run: |t| Box::pin(slot_rests(t)),
        },
        Case {
            rule: "D6",
            title: "a slot that the caller calls spent is not claimed again",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(spent_slot(t)),
        },
    ]
}

async fn deleted_twice(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let claim = machine.claim.clone();
    t.down(&*t.provider.clone(), &mut machine).await?;
    t.gone(&mut machine).await?;
    for claim in [machine.claim.clone(), claim] {
        machine.claim = claim;
        let again = t.delete_once(&*t.provider.clone(), &mut machine).await??;
        require!(
            again == Progress::Done,
            "delete of an absent machine answered {again:?}"
        );
    }
    Ok(())
}

async fn deleted_unmade(t: Arc<Trial>) -> Verdict {
    let mut machine = t.claimed("a").await?;
    let answer = t.delete_once(&*t.provider.clone(), &mut machine).await??;
    require!(
        answer == Progress::Done,
        "delete of an unmade machine answered {answer:?}"
    );
    t.gone(&mut machine).await
}

async fn deleted_sealed(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let provider = t.provider.clone();
    t.sealed(&*provider, &mut machine).await?;
    let again = t.seal_once(&*provider, &mut machine).await??;
    require!(
        again == Progress::Done,
        "seal of a sealed machine answered {again:?}"
    );
    let listing = t.listing(&[machine.recorded()]).await?;
    let listed = listing
        .machines
        .iter()
        .find(|m| m.mark.uid == *machine.key.uid());
    require!(
        listed.is_some_and(|m| m.seed.is_none()),
        "after the seal the machine is listed as {listed:?}"
    );
    require!(
        listing
            .leftovers
            .iter()
            .all(|l| l.machine != machine.key.name()),
        "after the seal the seed is left over"
    );
    if t.harness.is_some() {
        match t.power(&machine, PowerEvent::Off).await {
            Ok(()) => {
                t.up(&*provider, &mut machine).await?;
                t.running(&*provider, &mut machine).await?;
                let listing = t.listing(&[machine.recorded()]).await?;
                let seeds = listing.machines.iter().filter(|m| m.seed.is_some());
                require!(
                    seeds.clone().all(|m| m.mark.uid != *machine.key.uid()),
                    "starting a sealed machine gave it a seed again"
                );
            }
            Err(Miss::NotRun(_)) => {}
            Err(failed) => return Err(failed),
        }
    }
    t.down(&*provider, &mut machine).await?;
    t.gone(&mut machine).await
}

async fn deleted_half_made(t: Arc<Trial>) -> Verdict {
    for steps in 1..=STEPS {
        let mut machine = t.claimed(&format!("after{steps}")).await?;
        let finished = half_made(&t, &mut machine, steps).await?;
        let next = t.restart().await?;
        t.down(&*next, &mut machine).await?;
        t.gone(&mut machine).await?;
        if finished {
            return Ok(());
        }
    }
    Err(Miss::Failed(format!(
        "create was not done after {STEPS} steps"
    )))
}

async fn deleted_by_the_next(t: Arc<Trial>) -> Verdict {
    for steps in 1..=STEPS {
        let mut machine = t.made(&format!("after{steps}")).await?;
        let process = t.restart().await?;
        let mut finished = false;
        for _ in 0..steps {
            finished = finished || t.delete_step(&*process, &mut machine).await?;
        }
        let next = t.restart().await?;
        t.down(&*next, &mut machine).await?;
        t.gone(&mut machine).await?;
        if finished {
            return Ok(());
        }
    }
    Err(Miss::Failed(format!(
        "delete was not done after {STEPS} steps"
    )))
}

async fn another_key_survives(t: Arc<Trial>) -> Verdict {
    let mut owner = t.made("owner").await?;
    let mut intruder = t.claimed("intruder").await?;
    intruder.claim.slot = owner.claim.slot.clone();
    let answer = t.delete_once(&*t.provider.clone(), &mut intruder).await??;
    require!(
        answer == Progress::Done,
        "delete at another key's slot answered {answer:?}"
    );
    let state = t.state(&mut owner).await?;
    require!(
        matches!(state, MachineState::Running(_)),
        "after another key's delete the machine is {state:?}"
    );
    t.alone(&owner).await?;
    t.down(&*t.provider.clone(), &mut owner).await
}

async fn strangers_survive(t: Arc<Trial>) -> Verdict {
    for (shape, mut machine, before) in taken_slots(&t).await? {
        t.sending(&mut machine);
        let sent = t.sent().await?;
        let answer = t.delete_once(&*t.provider.clone(), &mut machine).await?;
        untouched(&t, &machine, before.as_ref(), "delete").await?;
        t.nothing_sent_since(sent, &format!("delete at the slot of {shape:?}"))
            .await?;
        require!(
            matches!(answer, Ok(Progress::Done)),
            "delete at the slot of a stranger ({shape:?}) answered {answer:?}"
        );
    }
    Ok(())
}

async fn namesake_survives(t: Arc<Trial>) -> Verdict {
    let mut machine = t.claimed("a").await?;
    t.place(&machine.claim.slot, &namesake(&machine)).await?;
    let before = t.world()?.describe(&machine.claim.slot).await?;
    t.sending(&mut machine);
    let answer = t.delete_once(&*t.provider.clone(), &mut machine).await?;
    untouched(&t, &machine, before.as_ref(), "delete").await?;
    refused_as("delete of a namesake", answer, &[ErrorClass::NotOwned])?;
    Ok(())
}

async fn copy_survives(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let slot = t.world()?.copy(&machine.claim.slot).await?;
    t.disown(&slot);
    t.catch_up().await?;
    let before = t.world()?.describe(&slot).await?;
    t.down(&*t.provider.clone(), &mut machine).await?;
    let after = t.world()?.describe(&slot).await?;
    require!(
        before == after,
        "delete changed the copy of our machine: {before:?}, {after:?}"
    );
    let state = t.state(&mut machine).await?;
    require!(
        state == MachineState::Absent,
        "with only a copy left the machine is {state:?}"
    );
    Ok(())
}

async fn frozen_delete(t: Arc<Trial>) -> Verdict {
    // Each step of delete in turn is frozen, after one poll, after two, and so on.
    for steps in 0..STEPS {
        let mut ended = false;
        for polls in t.moments(8) {
            let mut machine = t.made(&format!("a{steps}-{polls}")).await?;
            let provider = t.provider.clone();
            for _ in 0..steps {
                if t.delete_step(&*provider, &mut machine).await? {
                    return Ok(());
                }
                t.rest(&mut machine).await?;
            }
            let permit = t.permit(&machine);
            let asked = machine.clone();
            let mut call = provider.delete(&asked.key, &asked.claim, &permit);
            if poll_at_most(&mut call, polls).await.is_some() {
                ended = true;
            } else {
                // Longer than a look is good for, which no fast world makes shorter.
                t.world()?
                    .pass(PROOF_LIFETIME + Duration::from_millis(100))
                    .await?;
                t.world()?.remove(&machine.claim.slot).await?;
                let stranger = Shape::Unmarked.at(&t, &machine)?;
                t.place(&machine.claim.slot, &stranger).await?;
                let before = t.world()?.describe(&machine.claim.slot).await?;
                let _any_answer = t.call(Operation::Delete, call).await?;
                untouched(&t, &machine, before.as_ref(), "a frozen delete").await?;
            }
            t.down(&*provider, &mut machine).await?;
            if ended {
                break;
            }
        }
    }
    Ok(())
}

async fn done_means_gone(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.down(&*t.provider.clone(), &mut machine).await?;
    for _ in 0..3 {
        t.gone(&mut machine).await?;
        t.wait(t.scaled(Duration::from_millis(300))).await;
    }
    if let Some(harness) = &t.harness {
        let left = harness.describe(&machine.claim.slot).await;
        require!(
            !matches!(left, Ok(Some(_))),
            "delete said done with {left:?} at the slot"
        );
    }
    Ok(())
}

async fn stranger_after_us(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.world()?.remove(&machine.claim.slot).await?;
    let stranger = Shape::Unmarked.at(&t, &machine)?;
    t.place(&machine.claim.slot, &stranger).await?;
    let before = t.world()?.describe(&machine.claim.slot).await?;
    let state = t.state(&mut machine).await?;
    require!(
        state == MachineState::Foreign,
        "a stranger in our former slot is {state:?}"
    );
    let sent = t.sent().await?;
    t.down(&*t.provider.clone(), &mut machine).await?;
    untouched(&t, &machine, before.as_ref(), "delete").await?;
    t.nothing_sent_since(sent, "delete with a stranger in our former slot")
        .await
}

async fn lost_delete(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.world()?.lose_answer(Landing::Lost).await?;
    let answer = t.delete_once(&*t.provider.clone(), &mut machine).await?;
    require!(
        !matches!(answer, Ok(Progress::Done)),
        "delete said done although its request was lost"
    );
    let state = t.state(&mut machine).await?;
    require!(
        state != MachineState::Absent,
        "the machine is called absent although the request was lost"
    );
    t.world()?.heal().await?;
    t.down(&*t.provider.clone(), &mut machine).await?;
    t.gone(&mut machine).await
}

async fn protected(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.world()?.protect(&machine.claim.slot).await?;
    t.catch_up().await?;
    let sent = t.sent().await?;
    for _ in 0..3 {
        let answer = t.delete_once(&*t.provider.clone(), &mut machine).await?;
        refused_as(
            "delete of a protected machine",
            answer,
            &[ErrorClass::NeedsOperator],
        )?;
    }
    t.nothing_sent_since(sent, "delete of a protected machine")
        .await?;
    let state = t.state(&mut machine).await?;
    require!(
        matches!(state, MachineState::Running(_)),
        "after a refused delete the protected machine is {state:?}"
    );
    t.world()?.unprotect(&machine.claim.slot).await?;
    t.catch_up().await?;
    t.down(&*t.provider.clone(), &mut machine).await?;
    t.gone(&mut machine).await
}

async fn no_quorum(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.world()?.lose_quorum().await?;
    t.catch_up().await?;
    let sent = t.sent().await?;
    let answer = t.delete_once(&*t.provider.clone(), &mut machine).await?;
    refused("delete without quorum", answer)?;
    t.nothing_sent_since(sent, "delete without quorum").await?;
    t.world()?.heal().await?;
    t.catch_up().await?;
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn locked(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.world()?.lock(&machine.claim.slot, Lock::Backup).await?;
    t.catch_up().await?;
    for _ in 0..3 {
        let answer = t.delete_once(&*t.provider.clone(), &mut machine).await?;
        require!(
            match &answer {
                Ok(progress) => *progress != Progress::Done,
                Err(error) => may_repeat(error) || error.class() == ErrorClass::NeedsOperator,
            },
            "delete of a machine in a backup answered {answer:?}"
        );
        t.wait(t.scaled(Duration::from_secs(1))).await;
    }
    let there = t.world()?.describe(&machine.claim.slot).await?;
    require!(there.is_some(), "the machine vanished while its backup ran");
    t.world()?.unlock(&machine.claim.slot).await?;
    t.catch_up().await?;
    t.down(&*t.provider.clone(), &mut machine).await?;
    t.gone(&mut machine).await
}

async fn any_power(t: Arc<Trial>) -> Verdict {
    let mut refusal = None;
    let mut met = 0;
    for event in [
        PowerEvent::Off,
        PowerEvent::Paused,
        PowerEvent::Hibernated,
        PowerEvent::Crashed,
        PowerEvent::IoError,
        PowerEvent::Hung,
    ] {
        let mut machine = t.made(&format!("{event:?}").to_lowercase()).await?;
        match t.power(&machine, event).await {
            Ok(()) => met += 1,
            Err(Miss::NotRun(why)) => refusal = Some(why),
            Err(failed) => return Err(failed),
        }
        t.down(&*t.provider.clone(), &mut machine).await?;
        t.gone(&mut machine).await?;
    }
    match refusal {
        Some(why) if met == 0 => Err(Miss::NotRun(why)),
        _ => Ok(()),
    }
}

/// The claim after a trip through the store's format.
fn stored(claim: &Claim) -> Verdict<Claim> {
    serde_json::to_string(claim)
        .and_then(|text| serde_json::from_str(&text))
        .map_err(|e| Miss::Failed(format!("the claim cannot be stored: {e}")))
}

async fn from_stored_record(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    machine.claim = stored(&machine.claim)?;
    t.down(&*t.provider.clone(), &mut machine).await?;
    t.gone(&mut machine).await
}

async fn from_record_alone(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    machine.claim = stored(&machine.claim)?;
    // Nothing of the old process and nothing of the user's is in reach.
    machine.wanted = t.wish("another")?.1;
    let process = t.restart().await?;
    t.down(&*process, &mut machine).await?;
    t.gone(&mut machine).await
}

async fn slot_rests(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let freed = machine.claim.slot.clone();
    t.down(&*t.provider.clone(), &mut machine).await?;
    let call = t.provider.claim(&machine.key, &machine.wanted, 2, &[]);
    let claim = t.call(Operation::Claim, call).await??;
    require!(
        claim.slot != freed,
        "the slot {freed}, freed a moment ago, was claimed again"
    );
    Ok(())
}

async fn spent_slot(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let freed = machine.claim.slot.clone();
    t.down(&*t.provider.clone(), &mut machine).await?;
    let call = t.provider.claim(
        &machine.key,
        &machine.wanted,
        2,
        std::slice::from_ref(&freed),
    );
    let claim = t.call(Operation::Claim, call).await??;
    require!(
        claim.slot != freed,
        "the spent slot {freed} was claimed again"
    );
    require!(
        claim.attempt == 2,
        "asked for attempt 2, claimed for {}",
        claim.attempt
    );
    Ok(())
}
