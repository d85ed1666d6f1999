//! C1 to C6: one machine, of ours alone, or none.

use super::{
    always, lands_late,
    strangers::{namesake, taken_slots, untouched},
};
use crate::{
    Operation, Progress, Severity,
    conformance::{
        Case, Landing, Lock, Miss, PowerEvent, Tier,
        trial::{Machine, Trial, Verdict, may_repeat, refused_as, require},
    },
};
use egress_core::{
    ErrorClass, Standing,
    machine::{MachineState, StopReason},
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
            title: "create starts a stopped machine of ours again",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(started_again(t)),
        },
        Case {
            rule: "C2",
            title: "create at the slot of another key's machine is a conflict and leaves it alone",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(slot_of_another_key(t)),
        },
        Case {
            rule: "C2",
            title: "create at a stranger's slot is a conflict and touches nothing, whatever its shape",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(slot_of_a_stranger(t)),
        },
        Case {
            rule: "C2",
            title: "a machine with our name and no mark is never configured",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(slot_of_a_namesake(t)),
        },
        Case {
            rule: "C3",
            title: "a locked, nameless machine at our unsettled slot is ours and busy",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(nameless_at_our_slot(t)),
        },
        Case {
            rule: "C3",
            title: "our half-made machine stays ours while a lock hides its name and mark",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(half_made_and_hidden(t)),
        },
        Case {
            rule: "C4",
            title: "check finds nothing in the way, and names a remedy for what it warns of",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(checked(t)),
        },
        Case {
            rule: "C4",
            title: "without room nothing is sent",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(no_room(t)),
        },
        Case {
            rule: "C4",
            title: "a precondition of a later step is checked before the first request",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(broken_precondition(t)),
        },
        Case {
            rule: "C5",
            title: "a mutating request whose answer is lost is not sent twice by one call",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(sent_once(t)),
        },
        Case {
            rule: "C6",
            title: "a machine found running before it was configured is stopped, then configured",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(running_unconfigured(t)),
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

async fn slot_of_another_key(t: Arc<Trial>) -> Verdict {
    let mut owner = t.made("owner").await?;
    let mut intruder = t.claimed("intruder").await?;
    let own_slot = std::mem::replace(&mut intruder.claim.slot, owner.claim.slot.clone());
    let before = t.state(&mut owner).await?;
    let answer = t.create_once(&*t.provider.clone(), &mut intruder).await?;
    intruder.claim.slot = own_slot;
    t.sending(&mut intruder);
    refused_as(
        "create at another key's slot",
        answer,
        &[ErrorClass::Conflict],
    )?;
    let after = t.state(&mut owner).await?;
    require!(
        before == after,
        "another key's create turned {before:?} into {after:?}"
    );
    t.alone(&owner).await?;
    t.down(&*t.provider.clone(), &mut owner).await
}

async fn slot_of_a_stranger(t: Arc<Trial>) -> Verdict {
    for (shape, mut machine, before) in taken_slots(&t).await? {
        let answer = t.create_once(&*t.provider.clone(), &mut machine).await?;
        refused_as(
            &format!("create at the slot of {shape:?}"),
            answer,
            &[ErrorClass::Conflict],
        )?;
        untouched(&t, &machine, before.as_ref(), "create").await?;
    }
    Ok(())
}

async fn slot_of_a_namesake(t: Arc<Trial>) -> Verdict {
    let mut machine = t.claimed("a").await?;
    t.place(&machine.claim.slot, &namesake(&machine)).await?;
    let before = t.world()?.describe(&machine.claim.slot).await?;
    t.sending(&mut machine);
    let answer = t.create_once(&*t.provider.clone(), &mut machine).await?;
    refused_as("create on a namesake", answer, &[ErrorClass::NotOwned])?;
    untouched(&t, &machine, before.as_ref(), "create").await
}

/// What `get` may say of a machine that nobody can see well now.
fn hidden(state: &MachineState) -> bool {
    matches!(
        state,
        MachineState::InProgress { .. } | MachineState::Unknown { .. }
    )
}

/// What a call may answer that has to wait for someone else's lock.
fn waits(answer: &crate::Result<Progress>) -> bool {
    match answer {
        Ok(progress) => matches!(progress, Progress::InProgress { .. }),
        Err(error) => may_repeat(error) || error.class() == ErrorClass::NeedsOperator,
    }
}

async fn nameless_at_our_slot(t: Arc<Trial>) -> Verdict {
    let mut machine = t.claimed("a").await?;
    t.sending(&mut machine);
    t.world()?.lock(&machine.claim.slot, Lock::Clone).await?;
    t.catch_up().await?;
    let state = t.state(&mut machine).await?;
    require!(
        hidden(&state),
        "a locked, nameless machine at our slot is called {state:?}"
    );
    let answer = t.create_once(&*t.provider.clone(), &mut machine).await?;
    require!(
        waits(&answer),
        "create met a locked, nameless machine with {answer:?}"
    );
    let answer = t.delete_once(&*t.provider.clone(), &mut machine).await?;
    require!(
        waits(&answer),
        "delete met a locked, nameless machine with {answer:?}"
    );
    t.world()?.unlock(&machine.claim.slot).await?;
    t.catch_up().await?;
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn half_made_and_hidden(t: Arc<Trial>) -> Verdict {
    let mut met = false;
    let mut machine = t.claimed("a").await?;
    for _ in 0..STEPS {
        let done = t.create_step(&*t.provider.clone(), &mut machine).await?;
        t.rest(&mut machine).await?;
        if t.world()?.describe(&machine.claim.slot).await?.is_some() {
            met = true;
            t.world()?.lock(&machine.claim.slot, Lock::Clone).await?;
            t.catch_up().await?;
            let state = t.state(&mut machine).await?;
            require!(
                hidden(&state),
                "our locked, hidden machine is called {state:?}"
            );
            t.world()?.unlock(&machine.claim.slot).await?;
            t.catch_up().await?;
        }
        if done {
            break;
        }
    }
    require!(met, "create made nothing that could be looked at");
    t.up(&*t.provider.clone(), &mut machine).await?;
    t.alone(&machine).await?;
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn checked(t: Arc<Trial>) -> Verdict {
    let report = t.call(Operation::Check, t.provider.check()).await??;
    for finding in &report.findings {
        require!(
            finding.severity == Severity::Warning,
            "check found: {}",
            finding.found
        );
        require!(
            !finding.remedy.trim().is_empty(),
            "no remedy for: {}",
            finding.found
        );
    }
    Ok(())
}

async fn no_room(t: Arc<Trial>) -> Verdict {
    let mut machine = t.claimed("a").await?;
    t.world()?.fill_up().await?;
    t.catch_up().await?;
    let before = t.sent().await?;
    let answer = t.create_once(&*t.provider.clone(), &mut machine).await?;
    refused_as("create without room", answer, &[ErrorClass::Capacity])?;
    t.nothing_sent_since(before, "a create without room").await
}

async fn broken_precondition(t: Arc<Trial>) -> Verdict {
    let mut machine = t.claimed("a").await?;
    t.world()?.break_precondition().await?;
    t.catch_up().await?;
    let before = t.sent().await?;
    let answer = t.create_once(&*t.provider.clone(), &mut machine).await?;
    let lasting = [
        ErrorClass::Permanent,
        ErrorClass::Unauthorized,
        ErrorClass::NeedsOperator,
    ];
    refused_as("create without a precondition", answer, &lasting)?;
    t.nothing_sent_since(before, "a create without a precondition")
        .await?;
    let report = t.call(Operation::Check, t.provider.check()).await??;
    require!(
        report
            .findings
            .iter()
            .any(|f| f.severity == Severity::Error && !f.remedy.is_empty()),
        "check does not find the missing precondition: {report:?}"
    );
    Ok(())
}

async fn sent_once(t: Arc<Trial>) -> Verdict {
    let mut machine = t.claimed("a").await?;
    // Every step of create in turn loses the answer of its request, and so does delete's.
    let end = Instant::now() + t.patience();
    loop {
        let before = t.sent().await?;
        t.world()?.lose_answer(Landing::Landed).await?;
        let answer = t.create_once(&*t.provider.clone(), &mut machine).await?;
        no_repeat(&t, before, "create").await?;
        t.world()?.heal().await?;
        if done_or_wait(&t, answer).await {
            break;
        }
        require!(Instant::now() < end, "create does not come to an end");
    }
    let end = Instant::now() + t.patience();
    loop {
        let before = t.sent().await?;
        t.world()?.lose_answer(Landing::Landed).await?;
        let answer = t.delete_once(&*t.provider.clone(), &mut machine).await?;
        no_repeat(&t, before, "delete").await?;
        t.world()?.heal().await?;
        if done_or_wait(&t, answer).await {
            return Ok(());
        }
        require!(Instant::now() < end, "delete does not come to an end");
    }
}

/// Whether a call was done; else waits.
async fn done_or_wait(t: &Trial, answer: crate::Result<Progress>) -> bool {
    match answer {
        Ok(Progress::Done) => return true,
        Ok(Progress::InProgress { recheck, .. }) => t.wait(recheck).await,
        Err(_) => t.wait(Duration::from_secs(1)).await,
    }
    false
}

async fn no_repeat(t: &Trial, before: usize, during: &str) -> Verdict {
    let all = t.world()?.mutations().await?;
    let sent = all.get(before..).unwrap_or_default();
    let repeated = sent
        .iter()
        .enumerate()
        .find(|(at, line)| sent[..*at].contains(line));
    require!(
        repeated.is_none(),
        "one call of {during} sent a request twice: {sent:?}"
    );
    Ok(())
}

async fn running_unconfigured(t: Arc<Trial>) -> Verdict {
    let mut machine = t.claimed("a").await?;
    let mut half_made = false;
    while !half_made && !t.create_step(&*t.provider.clone(), &mut machine).await? {
        half_made = t.rest(&mut machine).await? == MachineState::Stopped(StopReason::HalfMade);
    }
    if !half_made {
        return Err(Miss::NotRun("create shows no half-made machine".into()));
    }
    t.power(&machine, PowerEvent::Started).await?;
    t.world()?.pass(Duration::from_secs(5)).await?;
    let state = t.state(&mut machine).await?;
    require!(
        !matches!(state, MachineState::Running(_)),
        "a machine that runs without its configuration is called {state:?}"
    );
    let begun = Instant::now();
    t.up(&*t.provider.clone(), &mut machine).await?;
    let seen = t.running(&*t.provider.clone(), &mut machine).await?;
    let since = begun.elapsed();
    if let Some(uptime) = seen.uptime {
        require!(
            uptime <= since + Duration::from_secs(1),
            "up for {uptime:?}, create began {since:?} ago: it was configured while it ran"
        );
    }
    t.alone(&machine).await?;
    t.down(&*t.provider.clone(), &mut machine).await
}
