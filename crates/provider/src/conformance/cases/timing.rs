//! T1 to T3 and O1: calls that end, are dropped, come too late; and calls that are counted.

use super::{
    always,
    creation::{STEPS, half_made},
};
use crate::{
    Operation, Permit, Progress, Provider as _,
    conformance::{
        Case, Network, Tier,
        capture::Transcript,
        trial::{Machine, Trial},
        verdict::{Verdict, may_repeat, poll_at_most, refused, refused_as, require},
    },
    layer::observed::{CallMetrics, Observed},
};
use egress_core::{ErrorClass, machine::MachineState};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case {
            rule: "T1",
            title: "every call ends by its deadline when the hypervisor hangs",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(hanging(t)),
        },
        Case {
            rule: "T2",
            title: "calls dropped at a later await each time still end in one machine, then none",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(dropped_again_and_again(t)),
        },
        Case {
            rule: "T2",
            title: "create dropped at any await is continued by a new process",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(dropped_create(t)),
        },
        Case {
            rule: "T2",
            title: "delete dropped at any await is continued by a new process",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(dropped_delete(t)),
        },
        Case {
            rule: "T3",
            title: "with an expired permit nothing is made and nothing is deleted",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(expired(t)),
        },
        Case {
            rule: "T3",
            title: "with an expired permit create, seal and delete send nothing, at any step",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(expired_at_any_step(t)),
        },
        Case {
            rule: "T3",
            title: "a call that was frozen past its permit sends nothing when it wakes",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(frozen(t)),
        },
        Case {
            rule: "O1",
            title: "under the layer observed each call is counted and carries a span",
            tier: Tier::Basic,
            needs: always,
            run: |t| Box::pin(counted_and_traced(t)),
        },
        Case {
            rule: "O1",
            title: "each error names the operation that failed, for its counter and span",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(errors_name_their_operation(t)),
        },
    ]
}

async fn hanging(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let mut unmade = t.claimed("b").await?;
    t.world()?.network(Network::Hanging).await?;
    for provider in [t.provider.clone(), t.restart().await?] {
        // `call` fails the case when a call does not end. A report of the trouble is an
        // answer as well; nothing else may be.
        let _report = t.call(Operation::Check, provider.check()).await?;
        let call = provider.claim(&unmade.key, &unmade.wanted, 2, &[]);
        refused(
            "claim while all hangs",
            t.call(Operation::Claim, call).await?,
        )?;
        let call = provider.survey(&machine.key, &machine.claim, &machine.wanted);
        refused(
            "survey while all hangs",
            t.call(Operation::Survey, call).await?,
        )?;
        refused(
            "create while all hangs",
            t.create_once(&*provider, &mut unmade).await?,
        )?;
        refused(
            "delete while all hangs",
            t.delete_once(&*provider, &mut machine).await?,
        )?;
        let recorded = [machine.recorded()];
        let call = provider.list(&recorded);
        refused("list while all hangs", t.call(Operation::List, call).await?)?;
        let state = t
            .look(&*provider, &mut machine)
            .await?
            .map(|seen| seen.state);
        require!(
            !matches!(state, Ok(MachineState::Absent | MachineState::Foreign)),
            "while all hangs the machine is called {state:?}"
        );
        let permit = t.permit(&machine);
        let call = provider.seal(&machine.key, &machine.claim, &permit);
        // Where there is nothing to seal, nothing is asked for.
        let _either = t.call(Operation::Seal, call).await?;
    }
    t.world()?.network(Network::Up).await?;
    t.down(&*t.provider.clone(), &mut unmade).await?;
    t.down(&*t.provider.clone(), &mut machine).await
}

/// Which call is dropped.
#[derive(Clone, Copy)]
enum Call {
    Create,
    Delete,
}

/// Makes a call and drops it after so many polls; `None` when it was dropped.
async fn cut(
    t: &Trial,
    provider: &dyn crate::Provider,
    machine: &mut Machine,
    which: Call,
    polls: usize,
) -> Option<crate::Result<Progress>> {
    t.sending(machine);
    let permit = t.permit(machine);
    let (key, claim, wanted) = (&machine.key, &machine.claim, &machine.wanted);
    let mut call = match which {
        Call::Create => provider.create(key, claim, wanted, &permit),
        Call::Delete => provider.delete(key, claim, &permit),
    };
    poll_at_most(&mut call, polls).await
}

/// Drops one call after another, each later than the one before, until one ends by itself;
/// true when nothing more is to be done, or none ended at all.
async fn cut_until_one_ends(t: &Trial, machine: &mut Machine, which: Call) -> Verdict<bool> {
    for polls in t.moments(STEPS) {
        match cut(t, &*t.provider, machine, which, polls).await {
            Some(Ok(Progress::Done)) => return Ok(true),
            Some(Ok(_)) => return Ok(false),
            Some(Err(error)) if may_repeat(&error) => {}
            Some(Err(error)) => return Err(error.into()),
            None => {}
        }
        t.wait(t.scaled(Duration::from_millis(200))).await;
    }
    Ok(true)
}

async fn dropped_again_and_again(t: Arc<Trial>) -> Verdict {
    let mut machine = t.claimed("a").await?;
    for _ in 0..STEPS {
        if cut_until_one_ends(&t, &mut machine, Call::Create).await? {
            break;
        }
        t.wait(t.scaled(Duration::from_millis(500))).await;
    }
    t.up(&*t.provider.clone(), &mut machine).await?;
    t.running(&*t.provider.clone(), &mut machine).await?;
    t.alone(&machine).await?;
    for _ in 0..STEPS {
        if cut_until_one_ends(&t, &mut machine, Call::Delete).await? {
            break;
        }
        t.wait(t.scaled(Duration::from_millis(500))).await;
    }
    t.down(&*t.provider.clone(), &mut machine).await?;
    t.gone(&mut machine).await
}

async fn dropped_create(t: Arc<Trial>) -> Verdict {
    // Each step of create in turn is dropped, after one poll, after two, and so on.
    for steps in 0..STEPS {
        for polls in t.moments(STEPS) {
            let mut machine = t.claimed(&format!("a{steps}-{polls}")).await?;
            let finished = half_made(&t, &mut machine, steps).await?;
            t.rest(&mut machine).await?;
            let old = t.restart().await?;
            let ended = cut(&t, &*old, &mut machine, Call::Create, polls)
                .await
                .is_some();
            let next = t.restart().await?;
            t.up(&*next, &mut machine).await?;
            t.running(&*next, &mut machine).await?;
            t.alone(&machine).await?;
            t.down(&*next, &mut machine).await?;
            t.gone(&mut machine).await?;
            if finished {
                return Ok(());
            }
            if ended {
                break;
            }
        }
    }
    Ok(())
}

async fn dropped_delete(t: Arc<Trial>) -> Verdict {
    for steps in 0..STEPS {
        for polls in t.moments(STEPS) {
            let mut machine = t.made(&format!("a{steps}-{polls}")).await?;
            let old = t.restart().await?;
            for _ in 0..steps {
                if t.delete_step(&*old, &mut machine).await? {
                    return Ok(());
                }
                t.rest(&mut machine).await?;
            }
            let ended = cut(&t, &*old, &mut machine, Call::Delete, polls)
                .await
                .is_some();
            let next = t.restart().await?;
            t.down(&*next, &mut machine).await?;
            t.gone(&mut machine).await?;
            if ended {
                break;
            }
        }
    }
    Ok(())
}

fn expired_permit(machine: &Machine) -> Permit {
    Permit::new(machine.claim.attempt, Instant::now())
}

/// Create, seal and delete with a permit that has run out. What they answer may be an error
/// or the news that nothing is to be done; it is checked elsewhere that nothing was.
async fn call_all_expired(t: &Trial, machine: &Machine) -> Verdict {
    let (key, claim) = (&machine.key, &machine.claim);
    let permit = expired_permit(machine);
    let create = t.provider.create(key, claim, &machine.wanted, &permit);
    let _created = t.call(Operation::Create, create).await?;
    let permit = expired_permit(machine);
    let _sealed = t
        .call(Operation::Seal, t.provider.seal(key, claim, &permit))
        .await?;
    let permit = expired_permit(machine);
    let _deleted = t
        .call(Operation::Delete, t.provider.delete(key, claim, &permit))
        .await?;
    Ok(())
}

async fn expired(t: Arc<Trial>) -> Verdict {
    let mut unmade = t.claimed("a").await?;
    t.sending(&mut unmade);
    let permit = expired_permit(&unmade);
    let call = t
        .provider
        .create(&unmade.key, &unmade.claim, &unmade.wanted, &permit);
    let answer = t.call(Operation::Create, call).await?;
    refused_as(
        "create with an expired permit",
        answer,
        &[ErrorClass::Transient],
    )?;
    t.wait(t.scaled(Duration::from_secs(2))).await;
    let state = t.state(&mut unmade).await?;
    require!(
        state == MachineState::Absent,
        "an expired permit made a machine: {state:?}"
    );
    let mut machine = t.made("b").await?;
    let permit = expired_permit(&machine);
    let call = t.provider.delete(&machine.key, &machine.claim, &permit);
    let answer = t.call(Operation::Delete, call).await?;
    refused_as(
        "delete with an expired permit",
        answer,
        &[ErrorClass::Transient],
    )?;
    t.wait(t.scaled(Duration::from_secs(2))).await;
    let state = t.state(&mut machine).await?;
    require!(
        matches!(state, MachineState::Running(_)),
        "after a delete with an expired permit the machine is {state:?}"
    );
    t.down(&*t.provider.clone(), &mut machine).await
}

/// Nothing is sent with an expired permit as things stand now.
async fn nothing_when_expired(t: &Trial, machine: &Machine) -> Verdict {
    let before = t.sent().await?;
    call_all_expired(t, machine).await?;
    t.nothing_sent_since(before, "calls with an expired permit")
        .await
}

async fn expired_at_any_step(t: Arc<Trial>) -> Verdict {
    let mut machine = t.claimed("a").await?;
    nothing_when_expired(&t, &machine).await?;
    while !t.create_step(&*t.provider.clone(), &mut machine).await? {
        nothing_when_expired(&t, &machine).await?;
        t.rest(&mut machine).await?;
        nothing_when_expired(&t, &machine).await?;
    }
    t.running(&*t.provider.clone(), &mut machine).await?;
    nothing_when_expired(&t, &machine).await?;
    while !t.delete_step(&*t.provider.clone(), &mut machine).await? {
        nothing_when_expired(&t, &machine).await?;
        t.rest(&mut machine).await?;
        nothing_when_expired(&t, &machine).await?;
    }
    Ok(())
}

async fn frozen(t: Arc<Trial>) -> Verdict {
    // A permit expires in time of its own; this is enough to begin a call within.
    let life = t
        .scaled(Duration::from_secs(1))
        .max(Duration::from_millis(100));
    for steps in 0..STEPS {
        for polls in t.moments(STEPS) {
            let mut machine = t.claimed(&format!("a{steps}-{polls}")).await?;
            let finished = half_made(&t, &mut machine, steps).await?;
            t.rest(&mut machine).await?;
            t.sending(&mut machine);
            let provider = t.restart().await?;
            let until = Instant::now() + life;
            let permit = Permit::new(machine.claim.attempt, until);
            let asked = machine.clone();
            let mut call = provider.create(&asked.key, &asked.claim, &asked.wanted, &permit);
            let ended = poll_at_most(&mut call, polls).await.is_some();
            if !ended {
                t.world()?.pass(2 * life).await?;
                let before = t.sent().await?;
                let _any_answer = t.call(Operation::Create, call).await?;
                t.nothing_sent_since(before, "a create that woke after its permit")
                    .await?;
            }
            t.up(&*t.provider.clone(), &mut machine).await?;
            t.down(&*t.provider.clone(), &mut machine).await?;
            if finished {
                return Ok(());
            }
            if ended {
                break;
            }
        }
    }
    Ok(())
}

async fn errors_name_their_operation(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let mut unmade = t.claimed("b").await?;
    t.world()?.network(Network::Down).await?;
    let provider = t.provider.clone();
    let recorded = [machine.recorded()];
    let mut errors = Vec::new();
    let call = provider.claim(&unmade.key, &unmade.wanted, 2, &[]);
    errors.push((
        Operation::Claim,
        refused("claim", t.call(Operation::Claim, call).await?)?,
    ));
    let call = provider.survey(&machine.key, &machine.claim, &machine.wanted);
    // One of a moment ago will do for a survey: nothing is changed on its word.
    if let Err(error) = t.call(Operation::Survey, call).await? {
        errors.push((Operation::Survey, error));
    }
    let create = t.create_once(&*provider, &mut unmade).await?;
    errors.push((Operation::Create, refused("create", create)?));
    let list = t.call(Operation::List, provider.list(&recorded)).await?;
    errors.push((Operation::List, refused("list", list)?));
    let delete = t.delete_once(&*provider, &mut machine).await?;
    errors.push((Operation::Delete, refused("delete", delete)?));
    if let Err(error) = t.look(&*provider, &mut machine).await? {
        errors.push((Operation::Get, error));
    }
    for (operation, error) in errors {
        require!(
            error.operation() == operation,
            "the error of {operation} names {}: {}",
            error.operation(),
            error.chain()
        );
        require!(
            !error.target().is_empty(),
            "the error of {operation} names no target"
        );
    }
    t.world()?.network(Network::Up).await?;
    t.down(&*provider, &mut machine).await
}

async fn counted_and_traced(t: Arc<Trial>) -> Verdict {
    let metrics = CallMetrics::default();
    let observed = Observed::new(t.provider.clone(), &metrics);
    let transcript = Transcript::default();
    let mut machine = t.claimed("a").await?;
    let life = async {
        let claim = observed
            .claim(&machine.key, &machine.wanted, 1, &[])
            .await?;
        require!(
            claim.slot == machine.claim.slot,
            "the layer changed the claimed slot"
        );
        observed.check().await?;
        t.up(&observed, &mut machine).await?;
        t.running(&observed, &mut machine).await?;
        observed
            .survey(&machine.key, &machine.claim, &machine.wanted)
            .await?;
        observed.list(&[machine.recorded()]).await?;
        t.sealed(&observed, &mut machine).await?;
        t.down(&observed, &mut machine).await
    };
    transcript.listen(life).await?;
    let said = transcript.text();
    for operation in Operation::ALL {
        let counted = metrics.count(t.provider.name(), operation, None);
        require!(counted > 0, "{operation} was called and not counted");
        let spans = said
            .lines()
            .filter(|line| line.starts_with("span ") && line.contains(operation.as_str()))
            .count() as u64;
        require!(
            spans >= counted,
            "{operation}: {counted} calls, {spans} spans"
        );
    }
    Ok(())
}
