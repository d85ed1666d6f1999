//! E1 to E5: what may be said and done while things go wrong.

use super::{always, seeded};
use crate::{
    Error, Operation, Progress, Provider,
    conformance::{
        Case, Credentials, Landing, Network, Tier,
        capture::Transcript,
        trial::{Machine, Trial},
        verdict::{Miss, Verdict, refused, refused_as, require},
    },
};
use egress_core::{ErrorClass, machine::MachineState};
use std::{fmt, sync::Arc};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case {
            rule: "E1",
            title: "a create whose answer is lost says that its outcome is unknown",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(unknown_create(t)),
        },
        Case {
            rule: "E1",
            title: "a delete whose answer is lost says that its outcome is unknown",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(unknown_delete(t)),
        },
        Case {
            rule: "E1",
            title: "a seal whose answer is lost says that its outcome is unknown",
            tier: Tier::Extended,
            needs: seeded,
            run: |t| Box::pin(unknown_seal(t)),
        },
        Case {
            rule: "E2",
            title: "no secret in anything that a provider says, in good times and in bad",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(no_secret(t)),
        },
        Case {
            rule: "E3",
            title: "a rotated credential works without a restart",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(rotated(t)),
        },
        Case {
            rule: "E3",
            title: "a refused credential is Unauthorized, and works once it is mended",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(wrong_then_right(t)),
        },
        Case {
            rule: "E4",
            title: "an unreachable hypervisor causes no create and no delete",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(unreachable(t)),
        },
        Case {
            rule: "E4",
            title: "another cluster at the same address causes no create and no delete",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(another_cluster(t)),
        },
        Case {
            rule: "E5",
            title: "the disappearance of many can be seen: each is absent, the listing complete",
            tier: Tier::Extended,
            needs: always,
            run: |t| Box::pin(many_disappear(t)),
        },
    ]
}

async fn unknown_create(t: Arc<Trial>) -> Verdict {
    for landing in [Landing::Landed, Landing::Lost] {
        let mut machine = t.claimed(&format!("{landing:?}").to_lowercase()).await?;
        t.world()?.lose_answer(landing).await?;
        let answer = loop {
            match t.create_once(&*t.provider.clone(), &mut machine).await? {
                // Nothing was sent yet: a step before the first request.
                Ok(Progress::InProgress {
                    handles, recheck, ..
                }) if handles.is_empty() => {
                    t.wait(recheck).await;
                }
                answer => break answer,
            }
        };
        refused_as("create", answer, &[ErrorClass::OutcomeUnknown])?;
        t.up(&*t.provider.clone(), &mut machine).await?;
        t.alone(&machine).await?;
        t.down(&*t.provider.clone(), &mut machine).await?;
    }
    Ok(())
}

async fn unknown_delete(t: Arc<Trial>) -> Verdict {
    for landing in [Landing::Landed, Landing::Lost] {
        let mut machine = t.made(&format!("{landing:?}").to_lowercase()).await?;
        t.world()?.lose_answer(landing).await?;
        let answer = t.delete_once(&*t.provider.clone(), &mut machine).await?;
        refused_as("delete", answer, &[ErrorClass::OutcomeUnknown])?;
        t.down(&*t.provider.clone(), &mut machine).await?;
        t.gone(&mut machine).await?;
    }
    Ok(())
}

async fn unknown_seal(t: Arc<Trial>) -> Verdict {
    for landing in [Landing::Landed, Landing::Lost] {
        let mut machine = t.made(&format!("{landing:?}").to_lowercase()).await?;
        t.world()?.lose_answer(landing).await?;
        let answer = t.seal_once(&*t.provider.clone(), &mut machine).await?;
        refused_as("seal", answer, &[ErrorClass::OutcomeUnknown])?;
        t.sealed(&*t.provider.clone(), &mut machine).await?;
        t.running(&*t.provider.clone(), &mut machine).await?;
        t.down(&*t.provider.clone(), &mut machine).await?;
        t.gone(&mut machine).await?;
    }
    Ok(())
}

/// Writes down everything that an answer can show to a person.
fn tell<T: fmt::Debug>(transcript: &Transcript, answer: &crate::Result<T>) {
    match answer {
        Ok(answer) => transcript.say(format_args!("{answer:?}")),
        Err(error) => {
            transcript.say(format_args!(
                "{error} {error:?} {error:#?} {}",
                error.chain()
            ));
            let mut source = std::error::Error::source(error);
            while let Some(next) = source {
                transcript.say(format_args!("{next} {next:?}"));
                source = next.source();
            }
        }
    }
}

/// One call of every operation, listened to.
async fn all_operations(
    t: &Trial,
    provider: &dyn Provider,
    transcript: &Transcript,
    machine: &mut Machine,
) -> Verdict {
    let report = transcript
        .listen(t.call(Operation::Check, provider.check()))
        .await?;
    tell(transcript, &report);
    let claim = provider.claim(&machine.key, &machine.wanted, 2, &[]);
    tell(
        transcript,
        &transcript.listen(t.call(Operation::Claim, claim)).await?,
    );
    tell(
        transcript,
        &transcript.listen(t.create_once(provider, machine)).await?,
    );
    tell(
        transcript,
        &transcript.listen(t.look(provider, machine)).await?,
    );
    let recorded = [machine.recorded()];
    let list = t.call(Operation::List, provider.list(&recorded));
    tell(transcript, &transcript.listen(list).await?);
    tell(
        transcript,
        &transcript.listen(t.seal_once(provider, machine)).await?,
    );
    transcript.say(format_args!("{:?}", machine.claim));
    Ok(())
}

async fn no_secret(t: Arc<Trial>) -> Verdict {
    let secrets = t.world()?.secrets();
    if secrets.is_empty() {
        return Err(Miss::NotRun("the harness plants no secrets".into()));
    }
    let transcript = Transcript::default();
    let provider = t.provider.clone();
    let mut machine = t.claimed("a").await?;
    all_operations(&t, &*provider, &transcript, &mut machine).await?;
    transcript.listen(t.up(&*provider, &mut machine)).await?;
    transcript
        .listen(t.running(&*provider, &mut machine))
        .await?;
    all_operations(&t, &*provider, &transcript, &mut machine).await?;
    if let Ok(Some(text)) = t.world()?.describe(&machine.claim.slot).await {
        transcript.say(text);
    }
    for trouble in [
        "network",
        "credentials",
        "capacity",
        "answer",
        "blind spot",
        "cluster",
    ] {
        let world = t.world()?;
        let offered = match trouble {
            "network" => world.network(Network::Down).await,
            "credentials" => world.credentials(Credentials::Wrong).await,
            "capacity" => world.fill_up().await,
            "answer" => world.lose_answer(Landing::Lost).await,
            "blind spot" => world.blind_spot().await,
            _cluster => world.change_cluster().await,
        };
        match offered.map_err(Miss::from) {
            Ok(()) => {
                let fresh = t.restart().await?;
                for process in [&provider, &fresh] {
                    all_operations(&t, &**process, &transcript, &mut machine).await?;
                }
                let mut unmade = machine.clone();
                (unmade.key, unmade.wanted) = t.wish("unmade")?;
                tell(
                    &transcript,
                    &transcript.listen(t.look(&*provider, &mut unmade)).await?,
                );
                if matches!(trouble, "network" | "credentials" | "cluster") {
                    let call = transcript.listen(t.delete_once(&*provider, &mut machine));
                    tell(&transcript, &call.await?);
                }
            }
            Err(Miss::NotRun(_)) => {}
            Err(failed) => return Err(failed),
        }
        t.world()?.heal().await?;
        t.catch_up().await?;
        t.up(&*provider, &mut machine).await?;
    }
    transcript.listen(t.down(&*provider, &mut machine)).await?;
    let said = transcript.text();
    for secret in &secrets {
        let line = said.lines().find(|line| line.contains(secret.as_str()));
        // The line is shown without what must not be shown.
        require!(
            line.is_none(),
            "a secret was said: {}",
            line.unwrap_or_default()
                .replace(secret.as_str(), "<secret>")
        );
    }
    Ok(())
}

async fn rotated(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.world()?.credentials(Credentials::Rotated).await?;
    let state = t.state(&mut machine).await?;
    require!(
        matches!(state, MachineState::Running(_)),
        "after the exchange of the credential the machine is {state:?}"
    );
    let mut another = t.made("b").await?;
    t.down(&*t.provider.clone(), &mut another).await?;
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn wrong_then_right(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    t.world()?.credentials(Credentials::Wrong).await?;
    let before = t.sent().await?;
    let seen = t.look(&*t.provider.clone(), &mut machine).await?;
    refused_as(
        "get with a wrong credential",
        seen,
        &[ErrorClass::Unauthorized],
    )?;
    let deleted = t.delete_once(&*t.provider.clone(), &mut machine).await?;
    refused_as(
        "delete with a wrong credential",
        deleted,
        &[ErrorClass::Unauthorized],
    )?;
    t.nothing_sent_since(before, "calls with a wrong credential")
        .await?;
    t.world()?.credentials(Credentials::Right).await?;
    let state = t.state(&mut machine).await?;
    require!(
        matches!(state, MachineState::Running(_)),
        "with the right credential again the machine is {state:?}"
    );
    t.down(&*t.provider.clone(), &mut machine).await
}

/// Every operation that may change something, and each that reads, fails; nothing is sent.
async fn all_fail(t: &Trial, machine: &mut Machine, unmade: &mut Machine, why: &str) -> Verdict {
    let before = t.sent().await?;
    for provider in [t.provider.clone(), t.restart().await?] {
        let mut errors: Vec<Error> = Vec::new();
        let created = t.create_once(&*provider, unmade).await?;
        errors.push(refused(&format!("create with {why}"), created)?);
        let deleted = t.delete_once(&*provider, machine).await?;
        errors.push(refused(&format!("delete with {why}"), deleted)?);
        let deleted = t.delete_once(&*provider, unmade).await?;
        errors.push(refused(&format!("delete with {why}"), deleted)?);
        for machine in [&mut *machine, &mut *unmade] {
            let state = t.look(&*provider, machine).await?.map(|seen| seen.state);
            require!(
                !matches!(state, Ok(MachineState::Absent | MachineState::Foreign)),
                "with {why} a machine is called {state:?}"
            );
        }
        for error in errors {
            let slot_given_up = matches!(error.class(), ErrorClass::Conflict);
            require!(
                !slot_given_up,
                "with {why} a slot would be given up: {}",
                error.chain()
            );
        }
    }
    t.nothing_sent_since(before, &format!("calls with {why}"))
        .await
}

/// The process that was there before the trouble lists nothing. (A new one meets another
/// cluster as its own; there the claims' cluster tells.)
async fn no_listing(t: &Trial, machine: &Machine, why: &str) -> Verdict {
    let listed = t
        .call(Operation::List, t.provider.list(&[machine.recorded()]))
        .await?;
    refused(&format!("list with {why}"), listed).map(drop)
}

async fn unreachable(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let mut unmade = t.claimed("b").await?;
    t.world()?.network(Network::Down).await?;
    no_listing(&t, &machine, "the network down").await?;
    all_fail(&t, &mut machine, &mut unmade, "the network down").await?;
    t.world()?.network(Network::Up).await?;
    t.running(&*t.provider.clone(), &mut machine).await?;
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn another_cluster(t: Arc<Trial>) -> Verdict {
    let mut machine = t.made("a").await?;
    let mut unmade = t.claimed("b").await?;
    t.world()?.change_cluster().await?;
    t.catch_up().await?;
    no_listing(&t, &machine, "another cluster").await?;
    all_fail(&t, &mut machine, &mut unmade, "another cluster").await?;
    t.world()?.heal().await?;
    t.catch_up().await?;
    t.running(&*t.provider.clone(), &mut machine).await?;
    t.down(&*t.provider.clone(), &mut machine).await
}

async fn many_disappear(t: Arc<Trial>) -> Verdict {
    let mut machines = Vec::new();
    for label in ["a", "b", "c", "d"] {
        machines.push(t.made(label).await?);
    }
    let mut survivor = machines
        .pop()
        .ok_or_else(|| Miss::Failed("no machine".into()))?;
    for machine in &machines {
        t.world()?.remove(&machine.claim.slot).await?;
    }
    t.catch_up().await?;
    let recorded: Vec<_> = machines.iter().map(Machine::recorded).collect();
    let listing = t.listing(&recorded).await?;
    for machine in &mut machines {
        let state = t.state(machine).await?;
        require!(
            state == MachineState::Absent,
            "a machine removed outside is {state:?}"
        );
        require!(
            listing
                .machines
                .iter()
                .all(|m| m.mark.uid != *machine.key.uid()),
            "a machine removed outside is listed"
        );
    }
    t.alone(&survivor).await?;
    for mut machine in machines {
        t.down(&*t.provider.clone(), &mut machine).await?;
    }
    t.down(&*t.provider.clone(), &mut survivor).await
}
