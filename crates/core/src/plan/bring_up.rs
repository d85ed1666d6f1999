//! A Proxy that should run.

use super::{
    Action, Phase, Plan, Waiting, about_to_send, answered, held_back, teardown, with_sight,
};
use crate::{
    backoff::{CRASH_LIMIT, SLOWLY, SOON, doubling, with_jitter},
    machine::{
        Claim, MachineKey, MachineState, ObservedMachine, Proven, Record, Retirement, SpentWhy,
        Standing, StopReason,
    },
    proxy::{CredentialSight, Observed, Presence, ProviderSight, ProxySpec, Serving, ServingFault},
};
use std::time::Duration;

/// The Proxy should run as `spec` says.
pub(super) fn plan(spec: &ProxySpec, record: Option<&Record>, seen: &Observed) -> Plan {
    let mut plan = match record.and_then(|r| r.claim.as_ref().map(|c| (r, c))) {
        None => claim(record, seen),
        Some((record, claim)) => present(spec, record, claim, seen),
    };
    plan.phase = plan.phase_in_trouble();
    plan
}

/// Nothing may be changed: only say where it stands.
pub(super) fn watch(seen: &Observed, why: Waiting) -> Plan {
    let Some(record) = seen.recorded.record().filter(|r| r.claim.is_some()) else {
        let rejected = matches!(why, Waiting::Rejected(_));
        let phase = if rejected {
            Phase::Failed
        } else {
            Phase::Pending
        };
        return Plan::new(phase).waiting(why, SLOWLY);
    };
    let phase = match seen.machine.seen().map(|m| &m.state) {
        Some(MachineState::Running(_)) => Phase::Running,
        None | Some(MachineState::Unknown { .. }) => unseen(record),
        Some(_) => Phase::Provisioning,
    };
    Plan::new(phase).waiting(why, SOON * 5)
}

/// The phase of a machine that could not be seen: not seen is not gone.
const fn unseen(record: &Record) -> Phase {
    if record.proven.is_some() {
        Phase::Running
    } else {
        Phase::Provisioning
    }
}

/// No machine is promised: take the slot that is offered.
fn claim(record: Option<&Record>, seen: &Observed) -> Plan {
    if let CredentialSight::Missing(what) = &seen.credential {
        return Plan::new(Phase::Pending).waiting(Waiting::SecretMissing(what.clone()), SOON * 5);
    }
    if let Some(what) = &seen.user_data_missing {
        return Plan::new(Phase::Pending).waiting(Waiting::UserDataMissing(what.clone()), SOON * 5);
    }
    let left = seen.history.replace_at().saturating_sub(seen.now);
    if !left.is_zero() {
        return Plan::new(Phase::Pending).waiting(Waiting::ReplaceBackoff { left }, left);
    }
    let offer = match answered(Phase::Pending, &seen.offer, seen) {
        Ok(offer) => offer,
        Err(plan) => return plan,
    };
    let plan = Plan::new(Phase::Provisioning);
    let plan = if record.is_none() {
        plan.then(Action::HoldFinalizer)
    } else {
        plan
    };
    if offer.standing >= Standing::Seen {
        // A machine of ours is there already: write it down, then look at it.
        return plan
            .then(Action::RecordClaim(offer.clone()))
            .recheck(Duration::ZERO);
    }
    if let Some(wait) = doubted(Phase::Pending, seen).or_else(|| held_back(Phase::Pending, seen)) {
        return wait;
    }
    let sent = about_to_send(offer, seen).unwrap_or_else(|| offer.clone());
    plan.then(Action::RecordClaim(sent))
        .then(Action::Create)
        .waiting(creating(""), Duration::ZERO)
}

/// A machine is promised: see how it stands.
fn present(spec: &ProxySpec, record: &Record, claim: &Claim, seen: &Observed) -> Plan {
    let machine = match answered(unseen(record), &seen.machine, seen) {
        Ok(machine) => machine,
        Err(plan) => return plan,
    };
    if let Some(why) = claim.retiring {
        return teardown::retire(claim, machine, seen, why);
    }
    // A machine that serves is not taken away before the next one can be made.
    let kept = seen.kept_for().filter(|_| seen.is_outdated(spec));
    let stays = kept.is_some();
    if claim.provider != spec.provider && !stays {
        return begin_retiring(claim, machine, seen, Retirement::ProviderChanged);
    }
    let outdated = machine
        .config_hash
        .as_ref()
        .is_some_and(|hash| *hash != spec.config_hash);
    match &machine.state {
        MachineState::Absent if claim.standing >= Standing::Seen => removed_outside(claim, seen),
        MachineState::Absent => {
            doubted(Phase::Provisioning, seen).unwrap_or_else(|| create(claim, seen, creating("")))
        }
        MachineState::Foreign => taken(claim, seen),
        MachineState::NotOwned { restore } => not_owned(restore),
        MachineState::Unknown { why } => {
            Plan::new(unseen(record)).waiting(Waiting::Undecided(why.clone()), SOON * 5)
        }
        MachineState::Stopped(
            reason @ (StopReason::Paused | StopReason::Hibernated | StopReason::IoError),
        ) => Plan::new(Phase::Provisioning).waiting(Waiting::Stopped(*reason), SOON * 5),
        MachineState::InProgress { step } if claim.standing >= Standing::Started => {
            let waiting = Waiting::TaskRunning { step: step.clone() };
            Plan::new(Phase::Provisioning).waiting(waiting, SOON)
        }
        _ if outdated && !stays => begin_retiring(claim, machine, seen, Retirement::SpecChanged),
        MachineState::InProgress { step } => create(claim, seen, creating(step)),
        MachineState::Stopped(StopReason::HalfMade) => create(claim, seen, creating("")),
        MachineState::Stopped(StopReason::NoAgent) => {
            begin_retiring(claim, machine, seen, Retirement::NoAgent)
        }
        MachineState::Stopped(StopReason::NeverReported) => {
            begin_retiring(claim, machine, seen, Retirement::NeverReported)
        }
        MachineState::Stopped(reason @ (StopReason::PoweredOff | StopReason::Crashed)) => {
            restart(claim, machine, *reason, seen)
        }
        MachineState::Provisioning => booting(claim, machine, seen),
        MachineState::Running(addresses)
            if addresses.best().is_none() && record.proven.is_none() =>
        {
            booting(claim, machine, seen)
        }
        MachineState::Running(_) => {
            let plan = running(spec, record, claim, machine, seen);
            match kept {
                Some(why) => keeping(plan, why),
                None => plan,
            }
        }
    }
}

/// The plan for a machine that should be another one and has to stay.
fn keeping(plan: Plan, why: &str) -> Plan {
    let waiting = plan
        .waiting
        .or_else(|| Some(Waiting::ReplacementRefused(why.to_owned())));
    Plan { waiting, ..plan }
}

fn creating(step: &str) -> Waiting {
    Waiting::Creating {
        step: step.to_owned(),
    }
}

/// A person has to look first.
pub(super) fn not_owned(restore: &str) -> Plan {
    Plan::new(Phase::Failed).waiting(
        Waiting::NotOwned {
            restore: restore.to_owned(),
        },
        SLOWLY,
    )
}

/// Calls `create`, unless something of the user's that it needs is missing or an earlier failure
/// forbids it.
fn create(claim: &Claim, seen: &Observed, why: Waiting) -> Plan {
    let plan = Plan::new(Phase::Provisioning);
    if let CredentialSight::Missing(what) = &seen.credential {
        return plan.waiting(Waiting::SecretMissing(what.clone()), SOON * 5);
    }
    if let Some(what) = seen.user_data_missing.as_ref().filter(|_| seen.is_unmade()) {
        return plan.waiting(Waiting::UserDataMissing(what.clone()), SOON * 5);
    }
    if let Some(wait) = held_back(Phase::Provisioning, seen) {
        return wait;
    }
    let state = seen.machine.seen().map(|m| &m.state);
    let absent = matches!(state, Some(MachineState::Absent));
    // A machine that was finished before and is half made now landed late.
    let another = matches!(state, Some(MachineState::Stopped(StopReason::HalfMade)))
        && claim.standing >= Standing::Started;
    let fresh = absent || another || claim.standing == Standing::Unsent;
    let plan = match about_to_send(claim, seen).filter(|_| fresh) {
        // What was accepted, seen or sealed before no longer counts.
        Some(sent) => plan.then(Action::RecordClaim(sent)),
        None => plan,
    };
    plan.then(Action::Create).waiting(why, Duration::ZERO)
}

/// The wait while the provider's view is doubted (E5).
fn doubted(phase: Phase, seen: &Observed) -> Option<Plan> {
    let Presence::MassDisappearance { absent, of } = seen.presence else {
        return None;
    };
    let waiting = Waiting::MassDisappearance { absent, of };
    Some(Plan::new(phase).waiting(waiting, SOON * 5))
}

/// It was there and is gone, though nobody here deleted it. While a create sent earlier may
/// still land, the new machine is made in the same place: what lands is then no other one.
fn removed_outside(claim: &Claim, seen: &Observed) -> Plan {
    doubted(Phase::Provisioning, seen).unwrap_or_else(|| {
        if teardown::may_land_for(claim, seen).is_zero() {
            give_up(claim, seen, SpentWhy::Freed, Waiting::RemovedOutside)
        } else {
            create(claim, seen, Waiting::RemovedOutside)
        }
    })
}

/// The slot is proven someone else's. A machine that was ours there is missing.
fn taken(claim: &Claim, seen: &Observed) -> Plan {
    doubted(Phase::Provisioning, seen)
        .filter(|_| claim.standing >= Standing::Seen)
        .unwrap_or_else(|| give_up(claim, seen, SpentWhy::Refused, Waiting::SlotTaken))
}

/// Gives the claim up once nothing of ours may land at its slot.
fn give_up(claim: &Claim, seen: &Observed, spent: SpentWhy, why: Waiting) -> Plan {
    let plan = Plan::new(Phase::Provisioning);
    let left = teardown::may_land_for(claim, seen);
    if !left.is_zero() {
        return plan.waiting(Waiting::CreateMayLand { left }, left.min(SOON * 5));
    }
    held_back(Phase::Provisioning, seen).unwrap_or_else(|| {
        plan.then(Action::Delete)
            .then(Action::DropClaim(spent))
            .waiting(why, Duration::ZERO)
    })
}

/// Writes down that the machine is to be replaced, then begins.
fn begin_retiring(
    claim: &Claim,
    machine: &ObservedMachine,
    seen: &Observed,
    why: Retirement,
) -> Plan {
    let marked = Claim {
        retiring: Some(why),
        ..with_sight(claim, machine, seen)
    };
    let mut plan = teardown::retire(&marked, machine, seen, why);
    plan.actions.insert(0, Action::RecordClaim(marked));
    plan
}

/// It was stopped, but not by someone who wants it stopped.
fn restart(claim: &Claim, machine: &ObservedMachine, reason: StopReason, seen: &Observed) -> Plan {
    let (count, left) = (
        seen.history.restarts(),
        seen.history.restart_grace(seen.now),
    );
    if !left.is_zero() {
        let waiting = Waiting::Restarting { reason, count };
        return Plan::new(Phase::Provisioning).waiting(waiting, left);
    }
    let count = count + 1;
    if count >= CRASH_LIMIT {
        return begin_retiring(claim, machine, seen, Retirement::CrashLoop);
    }
    create(claim, seen, Waiting::Restarting { reason, count })
}

/// The claim with what this look at a started machine taught, if anything.
fn learned(claim: &Claim, machine: &ObservedMachine, seen: &Observed) -> Option<Claim> {
    let mut new = claim.clone();
    if new.standing < Standing::Started {
        new.standing = Standing::Started;
        new.handles.clear(); // create's tasks; later ones are a seal's or a start's
    }
    new.unsettled = !teardown::may_land_for(claim, seen).is_zero();
    new.host = machine.host.clone().or(new.host);
    new.mac = new.mac.or_else(|| machine.mac.clone());
    (new != *claim).then_some(new)
}

fn booting(claim: &Claim, machine: &ObservedMachine, seen: &Observed) -> Plan {
    let timeout = match seen.provider {
        ProviderSight::Configured { boot_timeout, .. } => boot_timeout,
        ProviderSight::Unconfigured => Duration::MAX,
    };
    let late = seen
        .history
        .booting_since(claim.attempt)
        .is_some_and(|since| seen.now.saturating_sub(since) >= timeout);
    if late {
        return begin_retiring(claim, machine, seen, Retirement::NeverReported);
    }
    let plan = Plan::new(Phase::Provisioning).waiting(Waiting::NoAddress, SOON);
    match learned(claim, machine, seen) {
        Some(claim) => plan.then(Action::RecordOutcome(claim)),
        None => plan,
    }
}

/// It runs, and has an address or had one when it was proven.
fn running(
    spec: &ProxySpec,
    record: &Record,
    claim: &Claim,
    machine: &ObservedMachine,
    seen: &Observed,
) -> Plan {
    let key = MachineKey::new(record.machine_uid.clone());
    let steady = with_jitter(spec.probe_interval, &key);
    let mut plan = Plan::new(Phase::Running).recheck(steady);
    if let Some(claim) = learned(claim, machine, seen) {
        plan = plan.then(Action::RecordOutcome(claim));
    }
    match &seen.serving {
        Serving::NotAsked => plan,
        Serving::Failed { fault, .. } => {
            let faults = seen.history.serving_faults();
            let patient = faults >= spec.failure_threshold.max(5);
            let wait = if patient {
                steady
            } else {
                probe_again(faults).min(steady)
            };
            let plan = plan.waiting(Waiting::NotServing, wait);
            if *fault == ServingFault::AuthRejected {
                exchange_credentials(plan, seen)
            } else {
                plan
            }
        }
        Serving::Answered {
            endpoint,
            credential_generation,
        } => {
            let proven = Proven {
                address: *endpoint,
                egress: record.proven.as_ref().and_then(|p| p.egress),
                credential_generation: *credential_generation,
            };
            if record.proven.as_ref() != Some(&proven) {
                plan = plan.then(Action::RecordProven(proven));
            }
            seal(plan, record, claim, seen)
        }
    }
}

/// The proxy refuses the credentials that are wanted now. Where a machine reads its
/// configuration at each start, `create` sees to it that it is the present one; what a seed
/// brought stays as it was.
fn exchange_credentials(plan: Plan, seen: &Observed) -> Plan {
    let rereads = matches!(
        seen.provider,
        ProviderSight::Configured { seals: false, .. }
    );
    if !rereads || seen.credential != CredentialSight::AtHand {
        return plan;
    }
    match held_back(Phase::Running, seen) {
        Some(wait) => Plan {
            actions: plan.actions,
            ..wait
        },
        None => plan.then(Action::Create),
    }
}

/// The seed is taken out in a pass after the one that recorded the first proof.
fn seal(plan: Plan, record: &Record, claim: &Claim, seen: &Observed) -> Plan {
    let seals = matches!(seen.provider, ProviderSight::Configured { seals: true, .. });
    if !seals || claim.standing >= Standing::Sealed {
        return plan;
    }
    if record.proven.is_none() {
        return plan.recheck(Duration::ZERO);
    }
    match held_back(Phase::Running, seen) {
        Some(wait) => Plan {
            actions: plan.actions,
            ..wait
        },
        None => plan.then(Action::Seal).recheck(Duration::ZERO),
    }
}

/// The wait before the next probe after `faults` failures in a row: a proxy that is just
/// starting answers within a moment.
fn probe_again(faults: u32) -> Duration {
    doubling(Duration::from_millis(100), SOON, faults)
}
