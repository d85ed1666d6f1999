//! A second opinion on a plan: what must hold for any plan, written without a line of the
//! planner. Runs in every test and in debug builds.

use crate::{
    machine::{Claim, MachineState, Retirement, Standing, StopReason},
    plan::{Action, Plan},
    proxy::{
        CredentialSight, Desired, Intent, Look, Observed, Presence, ProviderSight, Recorded,
        Serving,
    },
};

/// Something a plan must never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// More than one provider call in one pass.
    TwoEffects,
    /// A provider call before the finalizer is held.
    EffectBeforeFinalizer,
    /// A create without a recorded claim that says it may have been sent; where nothing is
    /// there, so that the request makes a machine, exactly that.
    CreateWithoutClaim,
    /// A create that may make a machine while an earlier one may have been sent, without a claim
    /// that says so.
    CreateAgainUnsaid,
    /// A create for a Proxy that should be gone, is paused or is rejected.
    CreateUnwanted,
    /// A create where someone else's machine is proven to be.
    CreateOnForeign,
    /// A create for a machine that is being replaced.
    CreateWhileRetiring,
    /// A create while too many machines are missing at once.
    CreateInMassDisappearance,
    /// A create that makes the machine while a text that should go into it is missing.
    CreateWithoutUserData,
    /// A seal or a delete without a claim that says where.
    EffectWithoutClaim,
    /// A provider call though the look failed, or could not decide and it is no delete.
    EffectUnseen,
    /// A provider call on a machine that is not ours.
    EffectOnNotOwned,
    /// A provider call for a paused, rejected or abandoned Proxy.
    EffectWhileHeld,
    /// Anything on a record that is unreadable, a copy, or of another installation, but for its
    /// release by a Proxy that is forgotten.
    ActionOnOthersRecord,
    /// A delete that no deletion, replacement or absence calls for.
    DeleteWithoutReason,
    /// A seal before the proxy was proven, or of a machine that does not run.
    SealUnproven,
    /// A proof recorded though the proxy did not answer with our key, or without a claim.
    ProvenUnanswered,
    /// A claim given up without a delete before it for what a machine leaves behind.
    DroppedUncleaned,
    /// A claim given up while its machine is there.
    DroppedWhileThere,
    /// A claim given up while a create may still land.
    DroppedUnsettled,
    /// The finalizer released while a claim is held.
    ReleasedWithClaim,
    /// The finalizer released though the Proxy should stay.
    ReleasedUnwanted,
    /// A claim replaced by one for another place without being dropped.
    SlotSwapped,
    /// An attempt number used again, or a standing moved back past what was seen though the
    /// machine that was seen is still there.
    WentBackwards,
    /// A machine that runs begins to be replaced for a change, though the next one could not be made.
    ReplacedForNothing,
    /// No action, no wait and no moment to look again, though the Proxy is not gone.
    Stalled,
}

#[cfg(test)]
mod tests;

/// All that is wrong with a plan; empty is good.
pub fn audit(desired: &Desired, seen: &Observed, plan: &Plan) -> Vec<Violation> {
    let mut wrong = Vec::new();
    let mut note = |bad: bool, violation: Violation| {
        if bad {
            wrong.push(violation);
        }
    };
    let (before, finalizer_before) = match &seen.recorded {
        Recorded::Held(record) => (record.claim.clone(), true),
        Recorded::Nothing => (None, false),
        Recorded::Unreadable(_) | Recorded::Lost { .. } => {
            note(!plan.actions.is_empty(), Violation::ActionOnOthersRecord);
            return wrong;
        }
    };
    let record = match &seen.recorded {
        Recorded::Held(record) => Some(record),
        _ => None,
    };
    if let Some(record) = record
        && (record.installation != desired.installation || record.proxy != desired.proxy)
    {
        let forgotten = matches!(desired.intent, Intent::Abandon)
            && matches!(plan.actions[..], [Action::ReleaseFinalizer]);
        note(
            !plan.actions.is_empty() && !forgotten,
            Violation::ActionOnOthersRecord,
        );
        return wrong;
    }
    let state = match &seen.machine {
        Look::Seen(machine) => Some(&machine.state),
        _ => None,
    };
    let undecided = match (&seen.machine, state) {
        (Look::Failed(_), _) | (_, Some(MachineState::Unknown { .. })) => true,
        (Look::NotAsked, _) => before
            .as_ref()
            .is_some_and(|c| c.standing != Standing::Unsent),
        _ => false,
    };
    let unknown = matches!(state, Some(MachineState::Unknown { .. }));
    let there = !matches!(state, Some(MachineState::Absent | MachineState::Foreign));
    let may_land = before.as_ref().is_some_and(|claim| match seen.provider {
        ProviderSight::Configured { settle, .. } => {
            !seen.history.may_land_for(claim, settle, seen.now).is_zero()
        }
        ProviderSight::Unconfigured => claim.standing != Standing::Unsent,
    });
    let anew = matches!(
        state,
        Some(MachineState::Absent | MachineState::Stopped(StopReason::HalfMade))
    );
    let mut claim: Option<Claim> = before.clone();
    let mut finalizer = finalizer_before;
    let mut effects = 0;
    for action in &plan.actions {
        if matches!(action, Action::Create | Action::Seal | Action::Delete) {
            effects += 1;
            note(!finalizer, Violation::EffectBeforeFinalizer);
            let finds = matches!(action, Action::Delete) && unknown;
            note(undecided && !finds, Violation::EffectUnseen);
            note(
                matches!(state, Some(MachineState::NotOwned { .. })),
                Violation::EffectOnNotOwned,
            );
            note(
                !matches!(desired.intent, Intent::Run(_) | Intent::Delete),
                Violation::EffectWhileHeld,
            );
        }
        match action {
            Action::HoldFinalizer => finalizer = true,
            Action::RecordClaim(new) | Action::RecordOutcome(new) => {
                let runs = matches!(state, Some(MachineState::Running(_)));
                let changed = matches!(
                    new.retiring,
                    Some(Retirement::SpecChanged | Retirement::ProviderChanged)
                );
                let begins = claim.as_ref().is_none_or(|old| old.retiring.is_none());
                let refused = matches!(seen.next, Look::Failed(_))
                    || matches!(seen.credential, CredentialSight::Missing(_))
                    || seen.user_data_missing.is_some();
                note(
                    runs && changed && begins && refused,
                    Violation::ReplacedForNothing,
                );
                if let Some(old) = &claim {
                    note(
                        old.slot != new.slot
                            || old.provider != new.provider
                            || old.cluster != new.cluster,
                        Violation::SlotSwapped,
                    );
                    note(
                        old.attempt != new.attempt
                            || (new.standing < old.standing
                                && old.standing >= Standing::Seen
                                && !anew),
                        Violation::WentBackwards,
                    );
                } else {
                    let used = record.map_or(0, |r| r.last_attempt);
                    note(
                        new.attempt <= used && new.standing < Standing::Seen,
                        Violation::WentBackwards,
                    );
                }
                claim = Some(new.clone());
            }
            Action::Create => {
                let absent = matches!(state, None | Some(MachineState::Absent));
                let announced = claim.as_ref().is_some_and(|c| match c.standing {
                    Standing::Unsent => false,
                    Standing::Sent => true,
                    _ => !absent,
                });
                note(!announced, Violation::CreateWithoutClaim);
                let again = before.as_ref().is_some_and(|c| {
                    c.standing != Standing::Unsent && !seen.history.is_unsent(c.attempt)
                });
                let said = claim.as_ref().is_some_and(|c| c.unsettled);
                note(
                    announced && absent && again && !said,
                    Violation::CreateAgainUnsaid,
                );
                note(
                    !matches!(desired.intent, Intent::Run(_)),
                    Violation::CreateUnwanted,
                );
                note(
                    matches!(state, Some(MachineState::Foreign)),
                    Violation::CreateOnForeign,
                );
                note(
                    claim.as_ref().is_some_and(|c| c.retiring.is_some()),
                    Violation::CreateWhileRetiring,
                );
                note(
                    seen.presence != Presence::Normal
                        && matches!(state, None | Some(MachineState::Absent)),
                    Violation::CreateInMassDisappearance,
                );
                note(
                    seen.user_data_missing.is_some()
                        && (absent
                            || anew
                            || matches!(state, Some(MachineState::InProgress { .. }))),
                    Violation::CreateWithoutUserData,
                );
            }
            Action::Seal => {
                let runs = matches!(state, Some(MachineState::Running(_)));
                let proven = record.is_some_and(|r| r.proven.is_some());
                note(!proven || !runs, Violation::SealUnproven);
                note(claim.is_none(), Violation::EffectWithoutClaim);
            }
            Action::Delete => {
                let called_for = matches!(desired.intent, Intent::Delete)
                    || claim.as_ref().is_some_and(|c| c.retiring.is_some())
                    || !there;
                note(!called_for, Violation::DeleteWithoutReason);
                note(claim.is_none(), Violation::EffectWithoutClaim);
            }
            Action::DropClaim(_) => {
                let nothing_sent = before
                    .as_ref()
                    .is_some_and(|c| c.standing == Standing::Unsent);
                note(there && !nothing_sent, Violation::DroppedWhileThere);
                let cleaned = plan.actions.contains(&Action::Delete);
                note(!cleaned && !nothing_sent, Violation::DroppedUncleaned);
                note(may_land, Violation::DroppedUnsettled);
                claim = None;
            }
            Action::ReleaseFinalizer => {
                note(
                    claim.is_some() && !matches!(desired.intent, Intent::Abandon),
                    Violation::ReleasedWithClaim,
                );
                note(
                    !matches!(desired.intent, Intent::Delete | Intent::Abandon),
                    Violation::ReleasedUnwanted,
                );
                finalizer = false;
            }
            Action::RecordProven(_) => {
                let answered = matches!(seen.serving, Serving::Answered { .. });
                note(!answered || claim.is_none(), Violation::ProvenUnanswered);
            }
        }
    }
    note(effects > 1, Violation::TwoEffects);
    let idle = plan.actions.is_empty() && plan.waiting.is_none() && plan.recheck.is_none();
    note(idle && !plan.is_gone(), Violation::Stalled);
    wrong
}
