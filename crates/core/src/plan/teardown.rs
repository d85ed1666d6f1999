//! A Proxy that should be gone, and a machine that is to make place for another.

use super::{Action, Phase, Plan, Waiting, answered, bring_up::not_owned, held_back, with_sight};
use crate::{
    backoff::SOON,
    machine::{Claim, MachineState, ObservedMachine, Record, Retirement, SpentWhy, Standing},
    proxy::{Look, Observed, ProviderSight},
};
use std::time::Duration;

/// The Proxy should be gone and nothing is recorded. A machine that bears its mark all the
/// same, because the record was lost, is written down first and then removed like any other.
pub(super) fn unrecorded(seen: &Observed) -> Plan {
    if seen.offer == Look::NotAsked {
        return Plan::new(Phase::Gone);
    }
    match answered(Phase::Deleting, &seen.offer, seen) {
        Ok(claim) if claim.standing >= Standing::Seen => Plan::new(Phase::Deleting)
            .then(Action::HoldFinalizer)
            .then(Action::RecordClaim(claim.clone()))
            .waiting(removing(""), Duration::ZERO),
        Ok(_) => Plan::new(Phase::Gone),
        Err(plan) => plan,
    }
}

/// The Proxy should be gone.
pub(super) fn plan(record: &Record, seen: &Observed) -> Plan {
    let Some(claim) = &record.claim else {
        return Plan::new(Phase::Deleting).then(Action::ReleaseFinalizer);
    };
    if claim.standing == Standing::Unsent {
        // Nothing was ever asked for, so nothing can be there or come.
        return Plan::new(Phase::Deleting)
            .then(Action::DropClaim(SpentWhy::Freed))
            .then(Action::ReleaseFinalizer);
    }
    let machine = match answered(Phase::Deleting, &seen.machine, seen) {
        Ok(machine) => machine,
        Err(plan) => return plan,
    };
    match remove(Phase::Deleting, claim, machine, seen, removing("")) {
        Removal::Going(plan) => written_first(plan, claim, machine, seen),
        Removal::Gone(plan) => plan
            .then(Action::DropClaim(SpentWhy::Freed))
            .then(Action::ReleaseFinalizer),
    }
}

/// Before the first delete, the claim says that the machine is to go: after a crash nobody
/// takes its absence for a loss.
fn written_first(
    mut plan: Plan,
    claim: &Claim,
    machine: &ObservedMachine,
    seen: &Observed,
) -> Plan {
    if claim.retiring.is_none() && plan.actions.contains(&Action::Delete) {
        let marked = Claim {
            retiring: Some(Retirement::Deleted),
            ..with_sight(claim, machine, seen)
        };
        plan.actions.insert(0, Action::RecordClaim(marked));
    }
    plan
}

/// The machine is to make place for another one, for the reason that its claim names.
pub(super) fn retire(
    claim: &Claim,
    machine: &ObservedMachine,
    seen: &Observed,
    why: Retirement,
) -> Plan {
    let spent = match why {
        Retirement::SlotTaken => SpentWhy::Refused,
        _ => SpentWhy::Freed,
    };
    match remove(
        Phase::Provisioning,
        claim,
        machine,
        seen,
        Waiting::Replacing(why),
    ) {
        Removal::Going(plan) => plan,
        Removal::Gone(plan) => plan
            .then(Action::DropClaim(spent))
            .waiting(Waiting::Replacing(why), Duration::ZERO),
    }
}

fn removing(step: &str) -> Waiting {
    Waiting::Removing {
        step: step.to_owned(),
    }
}

/// How far a removal is.
enum Removal {
    /// Something is there, or may be, or may come.
    Going(Plan),
    /// Nothing is there and nothing may come. The plan deletes once more, for what a machine
    /// leaves behind; if that is done, the claim may be given up.
    Gone(Plan),
}

/// Calls `delete` until a look shows nothing and nothing may come.
fn remove(
    phase: Phase,
    claim: &Claim,
    machine: &ObservedMachine,
    seen: &Observed,
    why: Waiting,
) -> Removal {
    if let Some(plan) = held_back(phase, seen) {
        return Removal::Going(plan);
    }
    let plan = Plan::new(phase);
    Removal::Going(match &machine.state {
        MachineState::Absent | MachineState::Foreign => {
            let left = may_land_for(claim, seen);
            if left.is_zero() {
                return Removal::Gone(plan.then(Action::Delete));
            }
            plan.waiting(Waiting::CreateMayLand { left }, left.min(SOON * 5))
        }
        MachineState::InProgress { step } => {
            let why = if phase == Phase::Deleting {
                removing(step)
            } else {
                why
            };
            plan.waiting(why, SOON)
        }
        // The record may name the wrong place: `delete` looks for the mark itself, and touches
        // nothing that it cannot prove ours.
        MachineState::Unknown { why } => plan
            .then(Action::Delete)
            .waiting(Waiting::Undecided(why.clone()), SOON),
        MachineState::NotOwned { restore } => not_owned(restore),
        MachineState::Provisioning | MachineState::Running(_) | MachineState::Stopped(_) => {
            plan.then(Action::Delete).waiting(why, Duration::ZERO)
        }
    })
}

/// How much longer a create may still land, as far as the provider's bound says.
pub(super) fn may_land_for(claim: &Claim, seen: &Observed) -> Duration {
    match seen.provider {
        ProviderSight::Configured { settle, .. } => {
            seen.history.may_land_for(claim, settle, seen.now)
        }
        ProviderSight::Unconfigured => Duration::MAX,
    }
}
