//! C2 to C6: what create leaves alone, and what it looks at first.

use super::{
    always,
    creation::STEPS,
    strangers::{namesake, taken_slots, untouched},
};
use crate::{
    Operation, Progress, Severity,
    conformance::{
        Case, Landing, Lock, Miss, PowerEvent, Tier,
        trial::Trial,
        verdict::{Verdict, may_repeat, refused_as, require},
    },
};
use egress_core::{
    ErrorClass,
    machine::{MachineState, StopReason},
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

pub(super) fn cases() -> Vec<Case> {
    vec![
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
            rule: "C4",
            title: "what create would refuse for the next machine, survey refuses while this one runs",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(surveyed(t)),
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

async fn surveyed(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let survey = async || {
        let call = t
            .provider
            .survey(&machine.key, &machine.claim, &machine.wanted);
        t.call(Operation::Survey, call).await
    };
    let before = t.sent().await?;
    survey().await??;
    t.world()?.break_precondition().await?;
    t.catch_up().await?;
    let lasting = [
        ErrorClass::Permanent,
        ErrorClass::Unauthorized,
        ErrorClass::NeedsOperator,
    ];
    let answer = survey().await?;
    refused_as("survey without a precondition", answer, &lasting)?;
    t.world()?.heal().await?;
    t.catch_up().await?;
    survey().await??;
    t.nothing_sent_since(before, "survey").await?;
    t.running(&*t.provider.clone(), &mut machine).await?;
    t.down(&*t.provider.clone(), &mut machine).await
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
        Err(_) => t.wait(t.scaled(Duration::from_secs(1))).await,
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
    t.pass(Duration::from_secs(5)).await?;
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
