//! C1: one machine, whatever happens.

use super::{always, lands_late};
use crate::{
    Operation, Progress, UserData,
    conformance::{
        Case, Landing, Miss, PowerEvent, Tier,
        trial::{Machine, Trial},
        verdict::{Verdict, refused_as, require},
    },
};
use egress_core::{
    ErrorClass, Standing,
    machine::{MachineState, StopReason},
    proxy_config::{Auth, GENERATED_USER, Verifier},
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case {
            rule: "C1",
            title: "create called again on a finished machine changes nothing",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(created_again(t)),
        },
        Case {
            rule: "C1",
            title: "claim answers the same slot again, and skips the taken ones",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(claimed_again(t)),
        },
        Case {
            rule: "C1",
            title: "claim answers first with the slot that bears the key's mark",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(claimed_where_marked(t)),
        },
        Case {
            rule: "C1",
            title: "two processes that create at once make one machine",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(created_by_two(t)),
        },
        Case {
            rule: "C1",
            title: "a process that ends after any call of create is continued by the next one",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(continued_by_the_next(t)),
        },
        Case {
            rule: "C1",
            title: "a create whose answer is lost ends in one machine, landed or not",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(created_without_answer(t)),
        },
        Case {
            rule: "C1",
            title: "a create that lands late ends in one machine",
            tier: Tier::Extended,
            needs: lands_late,
            run: |t| Box::pin(created_late(t)),
        },
        Case {
            rule: "C1",
            title: "a task of create that fails is done again, in the same place",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(created_after_failed_tasks(t)),
        },
        Case {
            rule: "C1",
            title: "create with other credentials keeps the machine, started again where it reads them",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(created_with_other_credentials(t)),
        },
        Case {
            rule: "C1",
            title: "create starts a stopped machine of ours again",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(started_again(t)),
        },
    ]
}

/// No provider needs more steps than this to make a machine.
pub(super) const STEPS: usize = 40;

async fn created_again(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let before = t.state(&mut machine).await?;
    for _ in 0..3 {
        let again = t.create_once(&*t.provider.clone(), &mut machine).await??;
        require!(
            again == Progress::Done,
            "create on a running machine answered {again:?}"
        );
    }
    let after = t.state(&mut machine).await?;
    require!(
        before == after,
        "create on a running machine turned {before:?} into {after:?}"
    );
    t.alone(&machine).await?;
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn claimed_again(t: Arc<Trial>) -> Verdict {
    let machine = t.claimed("a").await?;
    let mut taken = Vec::new();
    for round in 0..3 {
        let call = t.provider.claim(&machine.key, &machine.wanted, 1, &taken);
        let claim = t.call(Operation::Claim, call).await??;
        if round == 0 {
            require!(
                claim.slot == machine.claim.slot,
                "the first choice was {} and is now {}",
                machine.claim.slot,
                claim.slot
            );
        }
        require!(
            !taken.contains(&claim.slot),
            "claim answered the taken slot {}",
            claim.slot
        );
        taken.push(claim.slot);
    }
    Ok(())
}

async fn claimed_where_marked(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.alone(&machine).await?;
    let call = t.provider.claim(&machine.key, &machine.wanted, 2, &[]);
    let claim = t.call(Operation::Claim, call).await??;
    require!(
        claim.slot == machine.claim.slot,
        "the mark is at {}, claim answered {}",
        machine.claim.slot,
        claim.slot
    );
    require!(
        claim.standing == Standing::Seen && claim.attempt == 1,
        "the claim of a marked machine stands at {:?}, attempt {}",
        claim.standing,
        claim.attempt
    );
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn created_by_two(t: Arc<Trial>) -> Verdict {
    let mut machine = t.claimed("a").await?;
    let (one, two) = (t.restart().await?, t.restart().await?);
    let mut twin = machine.clone();
    let (first, second) = tokio::join!(t.up(&*one, &mut machine), t.up(&*two, &mut twin));
    first?;
    second?;
    t.running(&*one, &mut machine).await?;
    t.alone(&machine).await?;
    t.down(&*one, &mut machine).await?;
    t.gone(&mut machine).await
}

async fn continued_by_the_next(t: Arc<Trial>) -> Verdict {
    for steps in 1..=STEPS {
        let mut machine = t.claimed(&format!("after{steps}")).await?;
        let finished = half_made(&t, &mut machine, steps).await?;
        let next = t.restart().await?;
        t.up(&*next, &mut machine).await?;
        t.running(&*next, &mut machine).await?;
        t.alone(&machine).await?;
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

/// Begins so many steps of create on a new instance; true when it was done before that.
pub(super) async fn half_made(t: &Trial, machine: &mut Machine, steps: usize) -> Verdict<bool> {
    let process = t.restart().await?;
    for _ in 0..steps {
        if t.create_step(&*process, machine).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn created_without_answer(t: Arc<Trial>) -> Verdict {
    for landing in [Landing::Landed, Landing::Lost] {
        // The answer is lost at the first step, at the second, and so on.
        for steps in 0..STEPS {
            let mut machine = t
                .claimed(&format!("{landing:?}{steps}").to_lowercase())
                .await?;
            let finished = half_made(&t, &mut machine, steps).await?;
            t.world()?.lose_answer(landing).await?;
            let next = t.restart().await?;
            t.up(&*next, &mut machine).await?;
            t.world()?.heal().await?;
            t.running(&*next, &mut machine).await?;
            t.alone(&machine).await?;
            t.down(&*next, &mut machine).await?;
            t.gone(&mut machine).await?;
            if finished {
                break;
            }
        }
    }
    Ok(())
}

async fn created_late(t: Arc<Trial>) -> Verdict {
    let settle = t.caps.late_create.settle();
    let mut machine = t.claimed("a").await?;
    t.world()?.lose_answer(Landing::Late(settle / 2)).await?;
    let first = t.create_once(&*t.provider.clone(), &mut machine).await?;
    refused_as(
        "a create without an answer",
        first,
        &[ErrorClass::OutcomeUnknown],
    )?;
    // Another key must not be sent to this slot while the first create may still land.
    let (other, wanted) = t.wish("b")?;
    let taken = [machine.claim.slot.clone()];
    let call = t.provider.claim(&other, &wanted, 1, &taken);
    let elsewhere = t.call(Operation::Claim, call).await??;
    require!(
        elsewhere.slot != machine.claim.slot,
        "claim answered the taken slot"
    );
    let process = t.restart().await?;
    t.up(&*process, &mut machine).await?;
    t.world()?.pass(settle).await?;
    t.catch_up().await?;
    t.up(&*process, &mut machine).await?;
    t.running(&*process, &mut machine).await?;
    t.alone(&machine).await?;
    t.down(&*process, &mut machine).await?;
    t.gone(&mut machine).await
}

async fn created_after_failed_tasks(t: Arc<Trial>) -> Verdict {
    let mut failed = 0;
    for steps in 1..=STEPS {
        let mut machine = t.claimed(&format!("after{steps}")).await?;
        let finished = half_made(&t, &mut machine, steps).await?;
        failed += t.world()?.fail_tasks().await?;
        t.catch_up().await?;
        let slot = machine.claim.slot.clone();
        let next = t.restart().await?;
        t.up(&*next, &mut machine).await?;
        t.running(&*next, &mut machine).await?;
        require!(machine.claim.slot == slot, "the slot changed");
        t.alone(&machine).await?;
        t.down(&*next, &mut machine).await?;
        t.gone(&mut machine).await?;
        if finished {
            break;
        }
    }
    if failed == 0 {
        return Err(Miss::NotRun(
            "create never left a task that could fail".into(),
        ));
    }
    Ok(())
}

async fn created_with_other_credentials(t: Arc<Trial>) -> Verdict {
    let provider = t.provider.clone();
    let mut machine = t.made("a").await?;
    // Long enough up for a restart to show.
    t.wait(Duration::from_secs(1)).await;
    let looked = Instant::now();
    let before = t.running(&*provider, &mut machine).await?.uptime;
    machine.wanted.settings.auth = Auth::Basic {
        verifiers: vec![Verifier::new(GENERATED_USER, "another password")],
        generation: 2,
    };
    t.up(&*provider, &mut machine).await?;
    let after = t.running(&*provider, &mut machine).await?.uptime;
    if let (Some(before), Some(after)) = (before, after) {
        // A look may be of a moment ago: only what went backwards tells of a restart for sure.
        let as_it_should = if t.caps.user_data == UserData::ProcessArguments {
            after < before + looked.elapsed() / 2
        } else {
            after >= before
        };
        require!(
            as_it_should,
            "up for {before:?}, then asked for with other credentials, and now up for {after:?}"
        );
    }
    t.alone(&machine).await?;
    let again = t.create_once(&*provider, &mut machine).await??;
    require!(again == Progress::Done, "asked again it answered {again:?}");
    t.down(&*provider, &mut machine).await
}

async fn started_again(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    for event in [PowerEvent::Off, PowerEvent::Crashed] {
        t.power(&machine, event).await?;
        let state = t.state(&mut machine).await?;
        require!(
            matches!(
                state,
                MachineState::Stopped(StopReason::PoweredOff | StopReason::Crashed)
            ),
            "after {event:?} the machine is {state:?}"
        );
        t.up(&*t.provider.clone(), &mut machine).await?;
        t.running(&*t.provider.clone(), &mut machine).await?;
        t.alone(&machine).await?;
    }
    t.down(&*t.provider.clone(), &mut machine).await
}
