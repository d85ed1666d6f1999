//! Rows of machines that are lost, replaced or deleted.

use super::{
    MANY_MISSING, Row, blind, failed, moved, outdated, recorded, restarted, retiring,
    since_first_sight, stopped, without_user_data,
};
use crate::{
    backoff::CRASH_WINDOW,
    machine::{ErrorClass, MachineState, Retirement, Standing, StopReason},
    proxy::{CredentialSight, Look, Observed, ProviderSight},
    support::{
        SETTLE, claim, gone, holding, in_progress, not_owned, proven, record, reporting, run, secs,
        seeing, trouble, unknown,
    },
};

/// Rows of a machine that stopped, vanished or is to be another one.
pub(super) fn rows_of_a_lost_machine() -> Vec<Row> {
    let was = || proven(Standing::Started);
    let stops = |reason| seeing(was(), stopped(reason));
    vec![
        ("paused by an admin", run(), stops(StopReason::Paused)),
        (
            "hibernated by an admin",
            run(),
            stops(StopReason::Hibernated),
        ),
        ("stuck on its storage", run(), stops(StopReason::IoError)),
        ("powered off", run(), stops(StopReason::PoweredOff)),
        (
            "powered off, user data missing",
            run(),
            without_user_data(stops(StopReason::PoweredOff)),
        ),
        ("crashed", run(), stops(StopReason::Crashed)),
        (
            "crashed, started again a moment ago",
            run(),
            Observed {
                history: restarted(&[secs(4)]),
                ..stops(StopReason::Crashed)
            },
        ),
        (
            "crashed for the third time within an hour",
            run(),
            Observed {
                history: restarted(&[CRASH_WINDOW / 2, CRASH_WINDOW / 3]),
                ..stops(StopReason::Crashed)
            },
        ),
        ("without a guest agent", run(), stops(StopReason::NoAgent)),
        (
            "can never report an address",
            run(),
            stops(StopReason::NeverReported),
        ),
        (
            "removed outside",
            run(),
            seeing(was(), MachineState::Absent),
        ),
        (
            "removed outside, many machines missing",
            run(),
            Observed {
                presence: MANY_MISSING,
                ..seeing(was(), MachineState::Absent)
            },
        ),
        (
            "removed outside, create may land",
            run(),
            Observed {
                history: since_first_sight(SETTLE.saturating_sub(secs(5))),
                ..seeing(was(), MachineState::Absent)
            },
        ),
        (
            "removed outside, slot taken, create may land",
            run(),
            Observed {
                history: since_first_sight(SETTLE.saturating_sub(secs(5))),
                ..seeing(was(), MachineState::Foreign)
            },
        ),
        (
            "finished before, half made now",
            run(),
            stops(StopReason::HalfMade),
        ),
        (
            "removed outside, slot taken",
            run(),
            seeing(was(), MachineState::Foreign),
        ),
        ("spec changed, runs", run(), outdated(was(), reporting())),
        (
            "spec changed, runs, user data missing",
            run(),
            without_user_data(outdated(was(), reporting())),
        ),
        (
            "spec changed, runs, next one refused",
            run(),
            refusing(outdated(was(), reporting())),
        ),
        (
            "spec changed, runs, next one can be made",
            run(),
            Observed {
                next: Look::Seen(()),
                ..outdated(was(), reporting())
            },
        ),
        (
            "spec changed, runs, Secret missing",
            run(),
            Observed {
                credential: CredentialSight::Missing("Secret shop/login is missing".into()),
                ..outdated(was(), reporting())
            },
        ),
        (
            "spec changed, half made",
            run(),
            outdated(
                holding(claim(Standing::Accepted)),
                stopped(StopReason::HalfMade),
            ),
        ),
        (
            "spec changed, in progress",
            run(),
            outdated(holding(claim(Standing::Accepted)), in_progress()),
        ),
        (
            "spec changed, paused by an admin",
            run(),
            outdated(was(), stopped(StopReason::Paused)),
        ),
        (
            "moved to another provider",
            moved(),
            seeing(was(), reporting()),
        ),
        (
            "moved to another provider, next one refused",
            moved(),
            refusing(seeing(was(), reporting())),
        ),
        (
            "moved to another provider, user data missing",
            moved(),
            without_user_data(seeing(was(), reporting())),
        ),
    ]
}

/// Where the next machine could not be made.
fn refusing(seen: Observed) -> Observed {
    Observed {
        next: Look::Failed(trouble(ErrorClass::Permanent)),
        ..seen
    }
}

/// Rows of a machine that makes place for another one.
pub(super) fn rows_while_retiring() -> Vec<Row> {
    let old = || retiring(Standing::Started, Retirement::SpecChanged);
    vec![
        ("retiring, there", run(), seeing(old(), reporting())),
        ("retiring, in progress", run(), seeing(old(), in_progress())),
        ("retiring, undecided", run(), seeing(old(), unknown())),
        ("retiring, not owned", run(), seeing(old(), not_owned())),
        (
            "retiring, delete failed",
            run(),
            Observed {
                history: failed(ErrorClass::NeedsOperator),
                ..seeing(old(), reporting())
            },
        ),
        ("retiring, gone", run(), seeing(old(), MachineState::Absent)),
        (
            "retiring, gone, create may land",
            run(),
            Observed {
                history: since_first_sight(SETTLE.saturating_sub(secs(30))),
                ..seeing(
                    retiring(Standing::Sent, Retirement::SpecChanged),
                    MachineState::Absent,
                )
            },
        ),
        (
            "retiring as deleted, declared again",
            run(),
            seeing(
                retiring(Standing::Started, Retirement::Deleted),
                MachineState::Absent,
            ),
        ),
        (
            "retiring for a taken slot",
            run(),
            seeing(
                retiring(Standing::Sent, Retirement::SlotTaken),
                MachineState::Foreign,
            ),
        ),
    ]
}

/// Rows of a Proxy that should be gone.
pub(super) fn rows_while_deleting() -> Vec<Row> {
    let old = || proven(Standing::Started);
    let sent = || holding(claim(Standing::Sent));
    vec![
        ("deleted, nothing promised", gone(), recorded(record())),
        (
            "deleted, never sent",
            gone(),
            recorded(holding(claim(Standing::Unsent))),
        ),
        (
            "deleted, provider not configured",
            gone(),
            Observed {
                provider: ProviderSight::Unconfigured,
                ..recorded(old())
            },
        ),
        (
            "deleted, look failed",
            gone(),
            blind(
                ErrorClass::Transient,
                Observed {
                    machine: Look::Failed(trouble(ErrorClass::Transient)),
                    ..recorded(old())
                },
            ),
        ),
        ("deleted, not looked at", gone(), recorded(old())),
        ("deleted, there", gone(), seeing(old(), reporting())),
        (
            "deleted, there, written down",
            gone(),
            seeing(
                retiring(Standing::Started, Retirement::Deleted),
                reporting(),
            ),
        ),
        (
            "deleted, in progress",
            gone(),
            seeing(sent(), in_progress()),
        ),
        ("deleted, undecided", gone(), seeing(old(), unknown())),
        ("deleted, not owned", gone(), seeing(old(), not_owned())),
        (
            "deleted, delete failed",
            gone(),
            Observed {
                history: failed(ErrorClass::Busy),
                ..seeing(old(), reporting())
            },
        ),
        ("deleted, gone", gone(), seeing(old(), MachineState::Absent)),
        (
            "deleted, gone, create may land",
            gone(),
            Observed {
                history: since_first_sight(secs(0)),
                ..seeing(sent(), MachineState::Absent)
            },
        ),
        (
            "deleted, gone, settle bound passed",
            gone(),
            Observed {
                history: since_first_sight(SETTLE),
                ..seeing(sent(), MachineState::Absent)
            },
        ),
        (
            "deleted, slot taken",
            gone(),
            seeing(sent(), MachineState::Foreign),
        ),
    ]
}
