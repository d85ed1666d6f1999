//! For each violation a plan that is bad in just this way: an audit that never says no would
//! make every property test worthless.

use super::*;
use crate::{
    history::History,
    machine::{ErrorClass, ProxyId, Record, Retirement, Slot, SpentWhy},
    plan::{Phase, Waiting},
    support::{
        NOW, answering, claim, desired, gone, holding, name, not_owned, observed, proof, proven,
        record, reporting, run, secs, seeing, spec, trouble, unknown,
    },
};
use std::collections::HashSet;

fn bad(actions: Vec<Action>) -> Plan {
    let recheck = Some(secs(1));
    Plan {
        phase: Phase::Provisioning,
        actions,
        waiting: None,
        recheck,
    }
}

fn recorded(record: Record) -> Observed {
    observed(Recorded::Held(record))
}

fn sent() -> Claim {
    claim(Standing::Sent)
}

/// A claim that may be sent once more.
fn again() -> Claim {
    Claim {
        unsettled: true,
        ..sent()
    }
}

fn retiring() -> Claim {
    Claim {
        retiring: Some(Retirement::SpecChanged),
        ..claim(Standing::Started)
    }
}

fn absent(record: Record) -> Observed {
    seeing(record, MachineState::Absent)
}

/// Each violation with a world and a plan that has it, and no other one.
fn cases() -> Vec<(Violation, Desired, Observed, Plan)> {
    use Action::{
        Create, Delete, DropClaim, HoldFinalizer, RecordClaim, RecordProven, ReleaseFinalizer, Seal,
    };
    let paused = || desired(Intent::Paused(spec()));
    let hold = RecordClaim;
    let theirs = Record {
        installation: name("other"),
        ..holding(sent())
    };
    let copy = Record {
        proxy: ProxyId::new("shop", "eu-2").unwrap(),
        ..holding(sent())
    };
    let open = {
        let mut history = History::default();
        history.note_record(Some(&holding(sent())), NOW);
        history
    };
    let elsewhere = Claim {
        slot: Slot::new("102"),
        ..claim(Standing::Started)
    };
    let doubt = Presence::MassDisappearance { absent: 4, of: 5 };
    let nothing = || observed(Recorded::Nothing);
    let runs = || seeing(holding(claim(Standing::Started)), reporting());
    vec![
        (
            Violation::TwoEffects,
            gone(),
            runs(),
            bad(vec![Delete, Delete]),
        ),
        (
            Violation::EffectBeforeFinalizer,
            run(),
            nothing(),
            bad(vec![hold(sent()), Create]),
        ),
        (
            Violation::CreateWithoutClaim,
            run(),
            nothing(),
            bad(vec![HoldFinalizer, hold(claim(Standing::Unsent)), Create]),
        ),
        (
            Violation::CreateWithoutClaim,
            run(),
            absent(holding(claim(Standing::Accepted))),
            bad(vec![Create]),
        ),
        (
            Violation::CreateAgainUnsaid,
            run(),
            absent(holding(sent())),
            bad(vec![Create]),
        ),
        (
            Violation::CreateUnwanted,
            gone(),
            absent(holding(again())),
            bad(vec![Create]),
        ),
        (
            Violation::CreateOnForeign,
            run(),
            seeing(holding(sent()), MachineState::Foreign),
            bad(vec![Create]),
        ),
        (
            Violation::CreateWhileRetiring,
            run(),
            absent(holding(retiring())),
            {
                bad(vec![
                    hold(Claim {
                        standing: Standing::Sent,
                        unsettled: true,
                        ..retiring()
                    }),
                    Create,
                ])
            },
        ),
        (
            Violation::CreateInMassDisappearance,
            run(),
            Observed {
                presence: doubt,
                ..absent(holding(again()))
            },
            bad(vec![Create]),
        ),
        (
            Violation::CreateWithoutUserData,
            run(),
            Observed {
                user_data_missing: Some("ConfigMap shop/extra is missing".into()),
                ..absent(holding(again()))
            },
            bad(vec![Create]),
        ),
        (
            Violation::EffectUnseen,
            gone(),
            Observed {
                machine: Look::Failed(trouble(ErrorClass::Transient)),
                ..recorded(holding(sent()))
            },
            bad(vec![Delete]),
        ),
        (
            Violation::EffectUnseen,
            run(),
            seeing(holding(claim(Standing::Started)), unknown()),
            bad(vec![Create]),
        ),
        (
            Violation::EffectUnseen,
            gone(),
            recorded(holding(sent())),
            bad(vec![Delete]),
        ),
        (
            Violation::EffectWithoutClaim,
            gone(),
            recorded(record()),
            bad(vec![Delete]),
        ),
        (
            Violation::EffectOnNotOwned,
            gone(),
            seeing(holding(sent()), not_owned()),
            bad(vec![Delete]),
        ),
        (
            Violation::EffectWhileHeld,
            paused(),
            seeing(proven(Standing::Started), reporting()),
            bad(vec![Seal]),
        ),
        (
            Violation::EffectWhileHeld,
            desired(Intent::Abandon),
            seeing(proven(Standing::Started), reporting()),
            bad(vec![Seal]),
        ),
        (
            Violation::ActionOnOthersRecord,
            gone(),
            absent(theirs),
            bad(vec![Delete]),
        ),
        (
            Violation::ActionOnOthersRecord,
            gone(),
            absent(copy),
            bad(vec![Delete]),
        ),
        (
            Violation::ActionOnOthersRecord,
            run(),
            observed(Recorded::Unreadable("line 1".into())),
            bad(vec![HoldFinalizer]),
        ),
        (
            Violation::DeleteWithoutReason,
            run(),
            runs(),
            bad(vec![Delete]),
        ),
        (Violation::SealUnproven, run(), runs(), bad(vec![Seal])),
        (
            Violation::SealUnproven,
            run(),
            seeing(proven(Standing::Started), MachineState::Provisioning),
            bad(vec![Seal]),
        ),
        (
            Violation::ProvenUnanswered,
            run(),
            runs(),
            bad(vec![RecordProven(proof())]),
        ),
        (
            Violation::ProvenUnanswered,
            run(),
            Observed {
                serving: answering(),
                ..recorded(record())
            },
            bad(vec![RecordProven(proof())]),
        ),
        (
            Violation::DroppedUncleaned,
            gone(),
            absent(holding(claim(Standing::Started))),
            bad(vec![DropClaim(SpentWhy::Freed)]),
        ),
        (
            Violation::DroppedWhileThere,
            gone(),
            runs(),
            bad(vec![Delete, DropClaim(SpentWhy::Freed)]),
        ),
        (
            Violation::DroppedUnsettled,
            gone(),
            Observed {
                history: open,
                ..absent(holding(sent()))
            },
            bad(vec![Delete, DropClaim(SpentWhy::Freed)]),
        ),
        (
            Violation::ReleasedWithClaim,
            gone(),
            absent(holding(sent())),
            bad(vec![ReleaseFinalizer]),
        ),
        (
            Violation::ReleasedUnwanted,
            run(),
            recorded(record()),
            bad(vec![ReleaseFinalizer]),
        ),
        (
            Violation::SlotSwapped,
            run(),
            runs(),
            bad(vec![hold(elsewhere)]),
        ),
        (
            Violation::WentBackwards,
            run(),
            runs(),
            bad(vec![Action::RecordOutcome(claim(Standing::Accepted))]),
        ),
        (
            Violation::WentBackwards,
            run(),
            recorded(Record {
                last_attempt: 1,
                ..record()
            }),
            bad(vec![hold(sent()), Create]),
        ),
        (
            Violation::ReplacedForNothing,
            run(),
            Observed {
                next: Look::Failed(trouble(ErrorClass::Permanent)),
                ..runs()
            },
            bad(vec![hold(retiring()), Delete]),
        ),
        (
            Violation::Stalled,
            run(),
            runs(),
            Plan {
                recheck: None,
                ..bad(vec![])
            },
        ),
    ]
}

#[test]
fn each_bad_plan_has_its_one_violation() {
    for (violation, desired, seen, plan) in cases() {
        let found: HashSet<Violation> = audit(&desired, &seen, &plan).into_iter().collect();
        assert_eq!(found, HashSet::from([violation]), "{:?}", plan.actions);
    }
}

#[test]
fn every_violation_has_a_bad_plan() {
    // A new one does not compile here until it is named, and then fails until it has a case.
    let number = |violation| match violation {
        Violation::TwoEffects => 0,
        Violation::EffectBeforeFinalizer => 1,
        Violation::CreateWithoutClaim => 2,
        Violation::CreateUnwanted => 3,
        Violation::CreateOnForeign => 4,
        Violation::CreateWhileRetiring => 5,
        Violation::CreateInMassDisappearance => 6,
        Violation::EffectWithoutClaim => 7,
        Violation::EffectUnseen => 8,
        Violation::EffectOnNotOwned => 9,
        Violation::EffectWhileHeld => 10,
        Violation::ActionOnOthersRecord => 11,
        Violation::DeleteWithoutReason => 12,
        Violation::SealUnproven => 13,
        Violation::ProvenUnanswered => 14,
        Violation::DroppedUncleaned => 15,
        Violation::DroppedWhileThere => 16,
        Violation::DroppedUnsettled => 17,
        Violation::ReleasedWithClaim => 18,
        Violation::ReleasedUnwanted => 19,
        Violation::SlotSwapped => 20,
        Violation::WentBackwards => 21,
        Violation::CreateWithoutUserData => 22,
        Violation::Stalled => 23,
        Violation::CreateAgainUnsaid => 24,
        Violation::ReplacedForNothing => 25,
    };
    let numbers: HashSet<usize> = cases()
        .iter()
        .map(|(violation, ..)| number(*violation))
        .collect();
    assert_eq!(numbers, (0..26).collect::<HashSet<_>>());
}

#[test]
fn a_wait_is_no_stall_and_neither_is_the_end() {
    let waits = Plan {
        waiting: Some(Waiting::Suspended),
        recheck: None,
        ..bad(vec![])
    };
    assert_eq!(audit(&run(), &recorded(record()), &waits), vec![]);
    let over = Plan {
        phase: Phase::Gone,
        recheck: None,
        ..bad(vec![])
    };
    assert_eq!(audit(&gone(), &observed(Recorded::Nothing), &over), vec![]);
}
