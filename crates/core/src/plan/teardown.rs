//! A Proxy that should be gone, and a machine that is to make place for another.

use super::{Action, Phase, Plan, Waiting, held_back, unanswered};
use crate::{
    backoff::SOON,
    machine::{Claim, MachineState, ObservedMachine, Record, Retirement, SpentWhy, Standing},
    proxy::{Observed, ProviderSight},
};
use std::time::Duration;

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
    if let Some(plan) = unanswered(Phase::Deleting, &seen.machine, seen) {
        return plan;
    }
    let Some(machine) = seen.machine.seen() else {
        return Plan::new(Phase::Deleting).recheck(SOON);
    };
    remove(Phase::Deleting, claim, machine, seen, Waiting::Removing { step: String::new() }, |plan| {
        plan.then(Action::DropClaim(SpentWhy::Freed)).then(Action::ReleaseFinalizer)
    })
}

/// The machine is to make place for another one.
pub(super) fn retire(claim: &Claim, machine: &ObservedMachine, seen: &Observed, why: Waiting) -> Plan {
    let spent = match claim.retiring {
        Some(Retirement::SlotTaken) => SpentWhy::Refused,
        _ => SpentWhy::Freed,
    };
    remove(Phase::Provisioning, claim, machine, seen, why, |plan| {
        plan.then(Action::DropClaim(spent)).recheck(Duration::ZERO)
    })
}

/// Calls `delete` until a look shows nothing and nothing may come; then, after one more
/// `delete` for what a machine leaves behind, `finish`.
fn remove(
    phase: Phase,
    claim: &Claim,
    machine: &ObservedMachine,
    seen: &Observed,
    why: Waiting,
    finish: impl FnOnce(Plan) -> Plan,
) -> Plan {
    if let Some(plan) = held_back(phase, seen) {
        return plan;
    }
    match &machine.state {
        MachineState::Absent | MachineState::Foreign => {
            let left = may_land_for(claim, seen);
            if left.is_zero() {
                finish(Plan::new(phase).then(Action::Delete))
            } else {
                Plan::new(phase).waiting(Waiting::CreateMayLand { left }, left.min(SOON * 5))
            }
        }
        MachineState::InProgress { step } => {
            let why = match why {
                Waiting::Removing { .. } => Waiting::Removing { step: step.clone() },
                other => other,
            };
            Plan::new(phase).waiting(why, SOON)
        }
        MachineState::Unknown { why } => {
            Plan::new(phase).waiting(Waiting::Undecided(why.clone()), SOON)
        }
        MachineState::NotOwned { restore } => Plan::new(Phase::Failed).waiting(
            Waiting::NotOwned { restore: restore.clone() },
            crate::backoff::SLOWLY,
        ),
        MachineState::Provisioning | MachineState::Running(_) | MachineState::Stopped(_) => {
            Plan::new(phase).then(Action::Delete).waiting(why, Duration::ZERO)
        }
    }
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
