//! How each row of `docs/states.md` comes about: its name, what is wanted, what is seen.

mod endings;

use self::endings::{rows_of_a_lost_machine, rows_while_deleting, rows_while_retiring};
use crate::{
    finding::Finding,
    history::{History, Sent},
    machine::{
        Addresses, Claim, ErrorClass, MachineState, ProxyId, Record, Retirement, Standing,
        StopReason,
    },
    proxy::{
        CredentialSight, Desired, Intent, Look, Observed, Presence, ProviderSight, ProxySpec,
        Recorded, Serving, ServingFault,
    },
    support::{
        BOOT, NOW, answering, claim, configured, desired, endpoint, gone, hash, holding,
        in_progress, installation, key, name, not_owned, observed, proven, record, reporting, run,
        secs, seeing, spec, trouble, uid, unknown,
    },
};
use std::time::Duration;

pub(super) type Row = (&'static str, Desired, Observed);

const MANY_MISSING: Presence = Presence::MassDisappearance { absent: 4, of: 5 };

fn paused() -> Desired {
    desired(Intent::Paused(spec()))
}

fn rejected() -> Desired {
    let finding = Finding::new("spec.proxy.port", "0", "is no port", "use 1 to 65535");
    desired(Intent::Hold(vec![finding]))
}

fn recorded(record: Record) -> Observed {
    observed(Recorded::Held(record))
}

fn offered(recorded: Recorded, standing: Standing) -> Observed {
    Observed {
        offer: Look::Seen(claim(standing)),
        ..observed(recorded)
    }
}

/// A claim that stands so, being given up for this cause.
fn retiring(standing: Standing, why: Retirement) -> Record {
    holding(Claim {
        retiring: Some(why),
        ..claim(standing)
    })
}

/// After an effect that failed a moment ago with this class.
pub(super) fn failed(class: ErrorClass) -> History {
    let mut history = History::default();
    history.note_failure(trouble(class), &key(), NOW);
    history
}

/// A look that fails with this class, as the process remembers it.
fn blind(class: ErrorClass, seen: Observed) -> Observed {
    let mut history = History::default();
    history.note_look_failed(trouble(class), &key(), NOW);
    Observed { history, ..seen }
}

/// After the claim was found to stand at `Sent`, by a process that began to run so long ago.
fn since_first_sight(age: Duration) -> History {
    let mut history = History::default();
    history.note_record(
        Some(&holding(claim(Standing::Sent))),
        NOW.saturating_sub(age),
    );
    history
}

/// After this process promised a place, and its first create was refused.
fn refused_before() -> History {
    let mut history = History::default();
    history.note_recorded(None, &claim(Standing::Sent));
    let failed = Some(ErrorClass::Busy);
    history.note_created(1, Sent::MACHINE, failed, NOW.saturating_sub(secs(60)));
    history
}

/// A record of which a creating request may have been sent more than once.
fn sent_twice() -> Record {
    holding(Claim {
        unsettled: true,
        ..claim(Standing::Sent)
    })
}

/// After the machine was started again, so long ago each time.
fn restarted(ages: &[Duration]) -> History {
    let mut history = History::default();
    for age in ages {
        history.note_restart(NOW.saturating_sub(*age));
    }
    history
}

/// After the machine was first seen started and without an address, so long ago.
fn booting(age: Duration) -> History {
    let mut history = History::default();
    history.note_booting(1, NOW.saturating_sub(age));
    history
}

/// After so many probes in a row that failed.
fn unanswered(times: u32) -> History {
    let mut history = History::default();
    for _ in 0..times {
        history.note_serving(false);
    }
    history
}

fn refused() -> Serving {
    let text = "connection refused".into();
    Serving::Failed {
        endpoint: endpoint(),
        fault: ServingFault::PortClosed,
        text,
    }
}

fn rejecting() -> Serving {
    Serving::Failed {
        endpoint: endpoint(),
        fault: ServingFault::AuthRejected,
        text: "answered 407".into(),
    }
}

/// A machine that shows this state and was made from a configuration of before.
fn outdated(record: Record, state: MachineState) -> Observed {
    let mut seen = seeing(record, state);
    if let Look::Seen(machine) = &mut seen.machine {
        machine.config_hash = Some(hash(9));
    }
    seen
}

fn moved() -> Desired {
    desired(Intent::Run(ProxySpec {
        provider: name("other"),
        ..spec()
    }))
}

pub(super) fn stopped(reason: StopReason) -> MachineState {
    MachineState::Stopped(reason)
}

/// Where the cloud-config that the user refers to is missing.
fn without_user_data(seen: Observed) -> Observed {
    Observed {
        user_data_missing: Some("ConfigMap shop/extra is missing".into()),
        ..seen
    }
}

/// Rows that no machine has a part in.
fn rows_without_a_machine() -> Vec<Row> {
    let nothing = || observed(Recorded::Nothing);
    let copy = Record::new(uid(), installation(), ProxyId::new("shop", "eu-2").unwrap());
    let theirs = Record {
        installation: name("other"),
        ..holding(claim(Standing::Started))
    };
    let faults = {
        let mut history = History::default();
        history.note_replacement(NOW.saturating_sub(secs(20)));
        history.note_replacement(NOW.saturating_sub(secs(10)));
        history
    };
    vec![
        (
            "record unreadable",
            run(),
            observed(Recorded::Unreadable("line 1".into())),
        ),
        (
            "record taken away",
            gone(),
            observed(Recorded::Lost {
                text: "wait".into(),
                left: secs(90),
            }),
        ),
        ("record is a copy", run(), recorded(copy)),
        ("record of another installation", gone(), recorded(theirs)),
        ("deleted, nothing recorded", gone(), nothing()),
        (
            "deleted, record lost, machine found",
            gone(),
            offered(Recorded::Nothing, Standing::Seen),
        ),
        (
            "deleted, record lost, search failed",
            gone(),
            blind(
                ErrorClass::Transient,
                Observed {
                    offer: Look::Failed(trouble(ErrorClass::Transient)),
                    ..nothing()
                },
            ),
        ),
        (
            "abandoned",
            desired(Intent::Abandon),
            recorded(holding(claim(Standing::Started))),
        ),
        (
            "abandoned, record is a copy",
            desired(Intent::Abandon),
            recorded(Record::new(
                uid(),
                installation(),
                ProxyId::new("shop", "eu-2").unwrap(),
            )),
        ),
        (
            "abandoned, record of another installation",
            desired(Intent::Abandon),
            recorded(Record {
                installation: name("other"),
                ..holding(claim(Standing::Started))
            }),
        ),
        ("paused, nothing promised", paused(), nothing()),
        ("rejected, nothing promised", rejected(), nothing()),
        (
            "wanted, Secret missing",
            run(),
            Observed {
                credential: CredentialSight::Missing("Secret shop/login is missing".into()),
                ..offered(Recorded::Nothing, Standing::Unsent)
            },
        ),
        (
            "wanted, user data missing",
            run(),
            without_user_data(offered(Recorded::Nothing, Standing::Unsent)),
        ),
        (
            "wanted, provider not configured",
            run(),
            Observed {
                provider: ProviderSight::Unconfigured,
                ..nothing()
            },
        ),
        (
            "wanted, offer failed",
            run(),
            blind(
                ErrorClass::Capacity,
                Observed {
                    offer: Look::Failed(trouble(ErrorClass::Capacity)),
                    ..nothing()
                },
            ),
        ),
        (
            "wanted, offer refused for good",
            run(),
            blind(
                ErrorClass::Permanent,
                Observed {
                    offer: Look::Failed(trouble(ErrorClass::Permanent)),
                    ..nothing()
                },
            ),
        ),
        ("wanted, no offer asked for", run(), nothing()),
        (
            "wanted, slot offered",
            run(),
            offered(Recorded::Nothing, Standing::Unsent),
        ),
        (
            "wanted again, slot offered",
            run(),
            offered(Recorded::Held(record()), Standing::Unsent),
        ),
        (
            "wanted, own machine found",
            run(),
            offered(Recorded::Nothing, Standing::Seen),
        ),
        (
            "wanted again, faults follow each other",
            run(),
            Observed {
                history: faults,
                ..offered(Recorded::Held(record()), Standing::Unsent)
            },
        ),
        (
            "wanted again, many machines missing",
            run(),
            Observed {
                presence: MANY_MISSING,
                ..offered(Recorded::Held(record()), Standing::Unsent)
            },
        ),
        (
            "wanted again, a call failed",
            run(),
            Observed {
                history: failed(ErrorClass::Transient),
                ..offered(Recorded::Held(record()), Standing::Unsent)
            },
        ),
    ]
}

/// Rows of a machine that nobody may touch.
fn rows_while_held() -> Vec<Row> {
    let blind = |record| {
        blind(
            ErrorClass::Transient,
            Observed {
                machine: Look::Failed(trouble(ErrorClass::Transient)),
                ..recorded(record)
            },
        )
    };
    vec![
        (
            "paused, runs",
            paused(),
            seeing(proven(Standing::Started), reporting()),
        ),
        (
            "paused, stopped",
            paused(),
            seeing(proven(Standing::Started), stopped(StopReason::PoweredOff)),
        ),
        (
            "paused, look failed",
            paused(),
            blind(proven(Standing::Started)),
        ),
        (
            "rejected, runs",
            rejected(),
            seeing(proven(Standing::Started), reporting()),
        ),
        (
            "rejected, absent",
            rejected(),
            seeing(holding(claim(Standing::Sent)), MachineState::Absent),
        ),
    ]
}

/// Rows of a machine that is being made.
fn rows_until_started() -> Vec<Row> {
    let sent = || holding(claim(Standing::Sent));
    let accepted = || holding(claim(Standing::Accepted));
    let absent = || seeing(sent(), MachineState::Absent);
    vec![
        (
            "claimed, look failed",
            run(),
            blind(
                ErrorClass::Transient,
                Observed {
                    machine: Look::Failed(trouble(ErrorClass::Transient)),
                    ..recorded(sent())
                },
            ),
        ),
        (
            "claimed, provider not configured",
            run(),
            Observed {
                provider: ProviderSight::Unconfigured,
                ..recorded(sent())
            },
        ),
        ("claimed, not looked at", run(), recorded(sent())),
        (
            "sent, absent, refused before",
            run(),
            Observed {
                history: refused_before(),
                ..absent()
            },
        ),
        ("sent, absent", run(), absent()),
        (
            "sent twice, absent",
            run(),
            seeing(sent_twice(), MachineState::Absent),
        ),
        (
            "sent, half made",
            run(),
            seeing(sent(), stopped(StopReason::HalfMade)),
        ),
        (
            "accepted, absent",
            run(),
            seeing(accepted(), MachineState::Absent),
        ),
        (
            "unsent, half made",
            run(),
            seeing(
                holding(claim(Standing::Unsent)),
                stopped(StopReason::HalfMade),
            ),
        ),
        (
            "sent, absent, create failed",
            run(),
            Observed {
                history: failed(ErrorClass::Unauthorized),
                ..absent()
            },
        ),
        (
            "sent, absent, create can never succeed",
            run(),
            Observed {
                history: failed(ErrorClass::Permanent),
                ..absent()
            },
        ),
        (
            "sent, absent, Secret missing",
            run(),
            Observed {
                credential: CredentialSight::Missing("key password is missing".into()),
                ..absent()
            },
        ),
        (
            "sent, absent, user data missing",
            run(),
            without_user_data(absent()),
        ),
        (
            "half made, user data missing",
            run(),
            without_user_data(seeing(accepted(), stopped(StopReason::HalfMade))),
        ),
        (
            "sent, absent, many machines missing",
            run(),
            Observed {
                presence: MANY_MISSING,
                ..absent()
            },
        ),
        ("in progress", run(), seeing(accepted(), in_progress())),
        (
            "half made",
            run(),
            seeing(accepted(), stopped(StopReason::HalfMade)),
        ),
        ("slot taken", run(), seeing(sent(), MachineState::Foreign)),
        (
            "slot taken, create may land",
            run(),
            Observed {
                history: since_first_sight(secs(60)),
                ..seeing(sent(), MachineState::Foreign)
            },
        ),
        ("not owned", run(), seeing(sent(), not_owned())),
        ("undecided", run(), seeing(sent(), unknown())),
        (
            "started, no address",
            run(),
            seeing(accepted(), MachineState::Provisioning),
        ),
        (
            "started, no address in time",
            run(),
            Observed {
                history: booting(BOOT),
                ..seeing(
                    holding(claim(Standing::Started)),
                    MachineState::Provisioning,
                )
            },
        ),
        (
            "silent, never proven",
            run(),
            seeing(accepted(), MachineState::Running(Addresses::Unreported)),
        ),
    ]
}

/// Rows of a machine that was started.
fn rows_of_a_running_machine() -> Vec<Row> {
    let started = || holding(claim(Standing::Started));
    let runs = |record| seeing(record, reporting());
    let answers = |record| Observed {
        serving: answering(),
        ..runs(record)
    };
    vec![
        (
            "proven, look failed",
            run(),
            blind(
                ErrorClass::Transient,
                Observed {
                    machine: Look::Failed(trouble(ErrorClass::Transient)),
                    ..recorded(proven(Standing::Started))
                },
            ),
        ),
        (
            "proven, undecided",
            run(),
            seeing(proven(Standing::Started), unknown()),
        ),
        ("runs, not asked", run(), runs(started())),
        (
            "runs, does not answer yet", // B183
            run(),
            Observed {
                serving: refused(),
                history: unanswered(1),
                ..runs(started())
            },
        ),
        (
            "proven, refuses our credentials", // B186
            run(),
            Observed {
                serving: rejecting(),
                ..seeing(proven(Standing::Started), reporting())
            },
        ),
        (
            "proven, refuses our credentials, reconfiguring failed",
            run(),
            Observed {
                serving: rejecting(),
                history: failed(ErrorClass::Transient),
                ..seeing(proven(Standing::Started), reporting())
            },
        ),
        (
            "proven, refuses our credentials, had a seed",
            run(),
            Observed {
                serving: rejecting(),
                provider: configured(true),
                ..seeing(proven(Standing::Sealed), reporting())
            },
        ),
        (
            "runs, has not answered for long",
            run(),
            Observed {
                serving: refused(),
                history: unanswered(5),
                ..runs(started())
            },
        ),
        (
            "runs, answers for the first time",
            run(),
            answers(holding(claim(Standing::Sent))),
        ),
        (
            "runs, answers for the first time, has a seed",
            run(),
            Observed {
                provider: configured(true),
                ..answers(started())
            },
        ),
        (
            "proven, has a seed",
            run(),
            Observed {
                provider: configured(true),
                ..answers(proven(Standing::Started))
            },
        ),
        (
            "proven, has a seed, seal failed",
            run(),
            Observed {
                provider: configured(true),
                history: failed(ErrorClass::NeedsOperator),
                ..answers(proven(Standing::Started))
            },
        ),
        ("proven, answers", run(), answers(proven(Standing::Started))),
        (
            "proven, answers elsewhere",
            run(),
            Observed {
                serving: Serving::Answered {
                    endpoint: ([192, 0, 2, 8], 3128).into(),
                    credential_generation: 1,
                },
                ..runs(proven(Standing::Started))
            },
        ),
        (
            "proven, silent",
            run(),
            Observed {
                serving: answering(),
                ..seeing(
                    proven(Standing::Started),
                    MachineState::Running(Addresses::Unreported),
                )
            },
        ),
        (
            "proven, settle bound passed",
            run(),
            answers(Record {
                claim: Some(Claim {
                    unsettled: true,
                    ..claim(Standing::Started)
                }),
                ..proven(Standing::Started)
            }),
        ),
        (
            "started, task runs",
            run(),
            seeing(proven(Standing::Started), in_progress()),
        ),
    ]
}

pub(super) fn rows() -> Vec<Row> {
    [
        rows_without_a_machine(),
        rows_while_held(),
        rows_until_started(),
        rows_of_a_running_machine(),
        rows_of_a_lost_machine(),
        rows_while_retiring(),
        rows_while_deleting(),
    ]
    .concat()
}
