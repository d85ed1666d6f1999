//! A Proxy that should run.

use super::{
    Action, Phase, Plan, Waiting, about_to_send, held_back, is_failed, teardown, unanswered,
};
use crate::{
    backoff::{CRASH_LIMIT, SLOWLY, SOON, with_jitter},
    machine::{
        Addresses, Claim, MachineKey, MachineState, ObservedMachine, Proven, Record, Retirement,
        SpentWhy, Standing, StopReason,
    },
    proxy::{
        CredentialSight, Look, Observed, Presence, ProviderSight, ProxySpec, Serving,
    },
};
use std::time::Duration;

/// The Proxy should run as `spec` says.
pub(super) fn plan(spec: &ProxySpec, record: Option<&Record>, seen: &Observed) -> Plan {
    let mut plan = match record.and_then(|r| r.claim.as_ref().map(|c| (r, c))) {
        None => claim(record, seen),
        Some((record, claim)) => present(spec, record, claim, seen),
    };
    if let Some(Waiting::Trouble { trouble, .. }) = &plan.waiting
        && is_failed(trouble.class)
        && plan.phase != Phase::Running
    {
        plan.phase = Phase::Failed;
    }
    plan
}

/// Nothing may be changed: only say where it stands.
pub(super) fn watch(seen: &Observed, why: Waiting) -> Plan {
    let phase = match (seen.recorded.claim(), seen.machine.seen().map(|m| &m.state)) {
        (Some(_), Some(MachineState::Running(_))) => Phase::Running,
        (Some(_), _) => Phase::Provisioning,
        (None, _) if matches!(why, Waiting::Rejected(_)) => Phase::Failed,
        (None, _) => Phase::Pending,
    };
    let recheck = if seen.recorded.claim().is_some() { SOON * 5 } else { SLOWLY };
    Plan::new(phase).waiting(why, recheck)
}

/// No machine is promised: take the slot that is offered.
fn claim(record: Option<&Record>, seen: &Observed) -> Plan {
    if let CredentialSight::Missing(what) = &seen.credential {
        return Plan::new(Phase::Pending)
            .waiting(Waiting::SecretMissing(what.clone()), SOON * 5);
    }
    let left = seen.history.replace_at().saturating_sub(seen.now);
    if !left.is_zero() {
        return Plan::new(Phase::Pending).waiting(Waiting::ReplaceBackoff { left }, left);
    }
    if let Some(plan) = unanswered(Phase::Pending, &seen.offer, seen) {
        return plan;
    }
    let Look::Seen(offer) = &seen.offer else {
        return Plan::new(Phase::Pending).recheck(SOON);
    };
    let plan = match record {
        None => Plan::new(Phase::Provisioning).then(Action::HoldFinalizer),
        Some(_) => Plan::new(Phase::Provisioning),
    };
    if offer.standing >= Standing::Seen {
        // A machine of ours is there already: write it down, then look at it.
        return plan.then(Action::RecordClaim(offer.clone())).recheck(Duration::ZERO);
    }
    let sent = about_to_send(offer).unwrap_or_else(|| offer.clone());
    plan.then(Action::RecordClaim(sent)).then(Action::Create).waiting(creating(""), Duration::ZERO)
}

/// A machine is promised: see how it stands.
fn present(spec: &ProxySpec, record: &Record, claim: &Claim, seen: &Observed) -> Plan {
    if let Some(mut plan) = unanswered(Phase::Provisioning, &seen.machine, seen) {
        if record.proven.is_some() {
            plan.phase = Phase::Running; // not seen is not gone
        }
        return plan;
    }
    let Some(machine) = seen.machine.seen() else {
        return Plan::new(Phase::Provisioning).recheck(SOON);
    };
    if let Some(why) = claim.retiring {
        return teardown::retire(claim, machine, seen, Waiting::Replacing(why));
    }
    if claim.provider != spec.provider {
        return begin_retiring(claim, machine, seen, Retirement::ProviderChanged);
    }
    let outdated = machine.config_hash.as_ref().is_some_and(|hash| *hash != spec.config_hash);
    match &machine.state {
        MachineState::Absent if claim.standing >= Standing::Seen => removed_outside(seen),
        MachineState::Absent => create(claim, seen, creating("")),
        MachineState::Foreign => taken(claim, seen),
        MachineState::NotOwned { restore } => Plan::new(Phase::Failed)
            .waiting(Waiting::NotOwned { restore: restore.clone() }, SLOWLY),
        MachineState::Unknown { why } => {
            let phase = if record.proven.is_some() { Phase::Running } else { Phase::Provisioning };
            Plan::new(phase).waiting(Waiting::Undecided(why.clone()), SOON * 5)
        }
        MachineState::InProgress { step } if claim.standing >= Standing::Started => {
            Plan::new(Phase::Provisioning)
                .waiting(Waiting::TaskRunning { step: step.clone() }, SOON)
        }
        MachineState::InProgress { step } => create(claim, seen, creating(step)),
        MachineState::Stopped(reason) => stopped(claim, machine, *reason, outdated, seen),
        MachineState::Provisioning | MachineState::Running(_) if outdated => {
            begin_retiring(claim, machine, seen, Retirement::SpecChanged)
        }
        MachineState::Provisioning => booting(claim, machine, seen),
        MachineState::Running(addresses) => {
            running(spec, record, claim, machine, addresses, seen)
        }
    }
}

fn creating(step: &str) -> Waiting {
    Waiting::Creating { step: step.to_owned() }
}

/// Calls `create`, unless an earlier failure forbids it.
fn create(claim: &Claim, seen: &Observed, why: Waiting) -> Plan {
    if let Some(plan) = held_back(Phase::Provisioning, seen) {
        return plan;
    }
    let absent = matches!(seen.machine.seen().map(|m| &m.state), Some(MachineState::Absent));
    let plan = Plan::new(Phase::Provisioning);
    let plan = match about_to_send(claim).filter(|_| absent) {
        // Another creating request may go out: what was accepted before no longer counts.
        Some(sent) => plan.then(Action::RecordClaim(sent)),
        None => plan,
    };
    plan.then(Action::Create).waiting(why, Duration::ZERO)
}

/// It was there and is gone, though nobody here deleted it.
fn removed_outside(seen: &Observed) -> Plan {
    match seen.presence {
        Presence::MassDisappearance { absent, of } => Plan::new(Phase::Provisioning)
            .waiting(Waiting::MassDisappearance { absent, of }, SOON * 5),
        Presence::Normal => held_back(Phase::Provisioning, seen).unwrap_or_else(|| {
            Plan::new(Phase::Provisioning)
                .then(Action::Delete)
                .then(Action::DropClaim(SpentWhy::Freed))
                .waiting(Waiting::RemovedOutside, Duration::ZERO)
        }),
    }
}

/// The slot is proven someone else's: give it up once nothing of ours may land there.
fn taken(claim: &Claim, seen: &Observed) -> Plan {
    if claim.standing >= Standing::Seen && seen.presence != Presence::Normal {
        return removed_outside(seen);
    }
    let left = teardown::may_land_for(claim, seen);
    if !left.is_zero() {
        return Plan::new(Phase::Provisioning)
            .waiting(Waiting::CreateMayLand { left }, left.min(SOON * 5));
    }
    held_back(Phase::Provisioning, seen).unwrap_or_else(|| {
        Plan::new(Phase::Provisioning)
            .then(Action::Delete)
            .then(Action::DropClaim(SpentWhy::Refused))
            .waiting(Waiting::SlotTaken, Duration::ZERO)
    })
}

/// Writes down that the machine is to be replaced, then begins.
fn begin_retiring(
    claim: &Claim,
    machine: &ObservedMachine,
    seen: &Observed,
    why: Retirement,
) -> Plan {
    let marked = Claim { retiring: Some(why), ..claim.clone() };
    let mut plan = teardown::retire(&marked, machine, seen, Waiting::Replacing(why));
    plan.actions.insert(0, Action::RecordClaim(marked));
    plan
}

fn stopped(
    claim: &Claim,
    machine: &ObservedMachine,
    reason: StopReason,
    outdated: bool,
    seen: &Observed,
) -> Plan {
    match reason {
        StopReason::Paused | StopReason::Hibernated | StopReason::IoError => {
            Plan::new(Phase::Provisioning).waiting(Waiting::Stopped(reason), SOON * 5)
        }
        StopReason::NoAgent => begin_retiring(claim, machine, seen, Retirement::NoAgent),
        StopReason::NeverReported => {
            begin_retiring(claim, machine, seen, Retirement::NeverReported)
        }
        StopReason::HalfMade | StopReason::PoweredOff | StopReason::Crashed if outdated => {
            begin_retiring(claim, machine, seen, Retirement::SpecChanged)
        }
        StopReason::HalfMade => create(claim, seen, creating("")),
        StopReason::PoweredOff | StopReason::Crashed => {
            let count = seen.history.restarts() + 1;
            if count >= CRASH_LIMIT {
                begin_retiring(claim, machine, seen, Retirement::CrashLoop)
            } else {
                create(claim, seen, Waiting::Restarting { reason, count })
            }
        }
    }
}

/// The claim with what this look taught, if anything.
fn learned(claim: &Claim, machine: &ObservedMachine) -> Option<Claim> {
    let mut new = claim.clone();
    new.standing = new.standing.max(Standing::Started);
    new.handles.clear();
    if new.host.is_some() || machine.host.is_some() {
        new.host = machine.host.clone().or(new.host);
    }
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
    match learned(claim, machine) {
        Some(claim) => plan.then(Action::RecordOutcome(claim)),
        None => plan,
    }
}

fn running(
    spec: &ProxySpec,
    record: &Record,
    claim: &Claim,
    machine: &ObservedMachine,
    addresses: &Addresses,
    seen: &Observed,
) -> Plan {
    let key = MachineKey::new(record.machine_uid.clone());
    let steady = with_jitter(spec.probe_interval, &key);
    let mut plan = Plan::new(Phase::Running).recheck(steady);
    if let Some(claim) = learned(claim, machine) {
        plan = plan.then(Action::RecordOutcome(claim));
    }
    if *addresses == Addresses::Unreported && record.proven.is_none() {
        plan.phase = Phase::Provisioning;
        return plan.waiting(Waiting::NoAddress, SOON);
    }
    match &seen.serving {
        Serving::Answered { endpoint, credential_generation } => {
            let proven = Proven {
                address: endpoint.ip(),
                egress: record.proven.as_ref().and_then(|p| p.egress),
                credential_generation: *credential_generation,
            };
            if record.proven.as_ref() != Some(&proven) {
                plan = plan.then(Action::RecordProven(proven));
            }
        }
        Serving::Failed { .. } => {
            let wait = if seen.history.serving_faults() < spec.failure_threshold.max(5) {
                probe_again(seen.history.serving_faults())
            } else {
                steady
            };
            plan = plan.waiting(Waiting::NotServing, wait.min(steady));
        }
        Serving::NotAsked => {}
    }
    let seals = matches!(seen.provider, ProviderSight::Configured { seals: true, .. });
    let to_seal = seals && record.proven.is_some() && claim.standing < Standing::Sealed;
    if to_seal && matches!(seen.serving, Serving::Answered { .. }) {
        return match held_back(Phase::Running, seen) {
            Some(wait) => Plan { actions: plan.actions, ..wait },
            None => plan.then(Action::Seal).recheck(Duration::ZERO),
        };
    }
    if seals && record.proven.is_none() && matches!(seen.serving, Serving::Answered { .. }) {
        return plan.recheck(Duration::ZERO); // proven in this pass, sealed in the next
    }
    plan
}

/// The wait before the next probe after `faults` failures in a row: a proxy that is just
/// starting answers within a moment.
fn probe_again(faults: u32) -> Duration {
    crate::backoff::doubling(Duration::from_millis(100), SOON, faults)
}
