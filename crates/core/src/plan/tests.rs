//! `docs/states.md` holds what is expected of each state, `rows` how each comes about. Neither
//! may have a row that the other lacks.

mod properties;
mod rows;
mod walks;
mod world;

use self::rows::{failed, rows, stopped};
use crate::{
    audit::audit,
    backoff::with_jitter,
    history::History,
    machine::{
        Claim, ErrorClass, Handle, Host, MachineState, Record, Retirement, Standing, StopReason,
    },
    plan::{Action, Phase, Plan, Waiting, plan},
    proxy::{Desired, Intent, Look, Observed, Recorded, Serving},
    status::{Reason, reason},
    support::{
        BOOT, answering, claim, configured, holding, key, proven, reporting, run, secs, seeing,
        showing, spec,
    },
};
use std::{collections::BTreeSet, time::Duration};

const PAGE: &str = include_str!("../../../../docs/states.md");

fn actions(plan: &Plan) -> String {
    let words: Vec<String> = plan.actions.iter().map(ToString::to_string).collect();
    if words.is_empty() {
        "-".into()
    } else {
        words.join(", ")
    }
}

fn again(plan: &Plan) -> String {
    match plan.recheck {
        None => "-".into(),
        Some(Duration::ZERO) => "at once".into(),
        Some(wait) if wait == with_jitter(spec().probe_interval, &key()) => "probe interval".into(),
        // Waits after a failure are up to a tenth shorter, by the key.
        Some(wait) => match wait.as_millis() {
            ms @ 0..1000 if ms % 100 == 0 => format!("{ms} ms"),
            ms @ 0..120_000 => format!("{} s", ms.div_ceil(1000)),
            ms => format!("{} min", ms.div_ceil(60_000)),
        },
    }
}

/// The row as it has to stand on the page.
fn written(name: &str, plan: &Plan) -> String {
    let why = plan
        .waiting
        .as_ref()
        .map_or("-".into(), |w| reason::of(w).0.to_string());
    format!(
        "| {name} | {} | {} | {why} | {} |",
        plan.phase.as_str(),
        actions(plan),
        again(plan)
    )
}

/// The rows of the page's one table, head and rule left out.
fn page() -> Vec<&'static str> {
    PAGE.lines()
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .collect()
}

#[test]
fn every_row_of_the_page_is_what_the_plan_says_and_none_is_missing() {
    let expected: Vec<String> = rows()
        .iter()
        .map(|(name, desired, seen)| written(name, &plan(desired, seen)))
        .collect();
    let differs: Vec<&String> = expected
        .iter()
        .filter(|row| !page().contains(&row.as_str()))
        .collect();
    assert!(differs.is_empty(), "not on docs/states.md as such:\n{}", {
        let lines: Vec<&str> = differs.iter().map(|row| row.as_str()).collect();
        lines.join("\n")
    });
    let surplus: Vec<&str> = page()
        .into_iter()
        .filter(|row| !expected.iter().any(|e| e == row))
        .collect();
    assert!(
        surplus.is_empty(),
        "no row in the code:\n{}",
        surplus.join("\n")
    );
    assert_eq!(
        page(),
        expected,
        "the page has the rows in another order, or twice"
    );
}

#[test]
fn row_names_are_unique() {
    let rows = rows();
    let names: BTreeSet<&str> = rows.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names.len(), rows.len());
}

#[test]
fn the_audit_finds_nothing_in_any_row() {
    for (name, desired, seen) in rows() {
        assert_eq!(
            audit(&desired, &seen, &plan(&desired, &seen)),
            vec![],
            "{name}"
        );
    }
}

#[test]
fn every_state_of_a_machine_has_a_row_for_running_replacing_and_deleting() {
    let missing = |wanted: &dyn Fn(&Desired, &Observed) -> bool| -> Vec<&str> {
        [
            "absent",
            "in progress",
            "running",
            "unknown",
            "foreign",
            "not owned",
        ]
        .into_iter()
        .filter(|word| {
            !rows().iter().any(|(_, desired, seen)| {
                wanted(desired, seen)
                    && seen.machine.seen().is_some_and(|m| m.state.word() == *word)
            })
        })
        .collect()
    };
    let retires = |seen: &Observed| seen.recorded.claim().is_some_and(|c| c.retiring.is_some());
    let runs = |d: &Desired, s: &Observed| matches!(d.intent, Intent::Run(_)) && !retires(s);
    assert!(missing(&runs).is_empty());
    assert!(missing(&|_: &Desired, s: &Observed| retires(s)).is_empty());
    assert!(missing(&|d: &Desired, _: &Observed| d.intent == Intent::Delete).is_empty());
}

#[test]
fn every_action_every_phase_and_every_cause_of_a_replacement_occurs_in_a_row() {
    let plans: Vec<Plan> = rows().iter().map(|(_, d, s)| plan(d, s)).collect();
    let actions: Vec<String> = plans
        .iter()
        .flat_map(|p| &p.actions)
        .map(|a| format!("{a:?}"))
        .collect();
    for action in [
        "HoldFinalizer",
        "RecordClaim",
        "Create",
        "Seal",
        "Delete",
        "RecordOutcome",
        "RecordProven",
        "DropClaim(Freed)",
        "DropClaim(Refused)",
        "ReleaseFinalizer",
    ] {
        assert!(actions.iter().any(|a| a.starts_with(action)), "{action}");
    }
    for phase in Phase::SHOWN
        .into_iter()
        .filter(|p| *p != Phase::Draining)
        .chain([Phase::Gone])
    {
        assert!(plans.iter().any(|p| p.phase == phase), "{phase:?}");
    }
    for why in Retirement::ALL {
        let waits = Some(Waiting::Replacing(why));
        assert!(plans.iter().any(|p| p.waiting == waits), "{why:?}");
    }
}

#[test]
fn only_a_pool_drains_so_no_plan_of_a_proxy_does() {
    assert!(
        rows()
            .iter()
            .all(|(_, d, s)| plan(d, s).phase != Phase::Draining)
    );
}

#[test]
fn the_hosts_name_and_the_mac_are_recorded_when_they_are_first_read() {
    let mut seen = seeing(
        holding(claim(Standing::Started)),
        MachineState::Provisioning,
    );
    if let Look::Seen(machine) = &mut seen.machine {
        machine.host = Some(Host::new("node-2"));
        machine.mac = Some("bc:24:11:00:00:01".into());
    }
    let learned = Claim {
        host: Some(Host::new("node-2")),
        mac: Some("bc:24:11:00:00:01".into()),
        ..claim(Standing::Started)
    };
    assert_eq!(
        plan(&run(), &seen).actions,
        [Action::RecordOutcome(learned.clone())]
    );
    // A second MAC is not believed: the recorded one is where the address is looked for.
    seen.recorded = Recorded::Held(holding(learned));
    if let Look::Seen(machine) = &mut seen.machine {
        machine.mac = Some("bc:24:11:00:00:02".into());
    }
    assert_eq!(plan(&run(), &seen).actions, []);
}

#[test]
fn the_tasks_of_a_create_are_forgotten_once_it_is_done_and_those_of_a_seal_are_kept() {
    let handles = || {
        vec![Handle {
            step: "clone".into(),
            id: "1".into(),
        }]
    };
    let task = |standing| Claim {
        handles: handles(),
        ..claim(standing)
    };
    let seen = seeing(holding(task(Standing::Accepted)), reporting());
    let done = claim(Standing::Started);
    assert_eq!(plan(&run(), &seen).actions, [Action::RecordOutcome(done)]);

    let record = Record {
        claim: Some(task(Standing::Started)),
        ..proven(Standing::Started)
    };
    let seen = Observed {
        provider: configured(true),
        serving: answering(),
        ..seeing(record, reporting())
    };
    assert_eq!(plan(&run(), &seen).actions, [Action::Seal]);
}

#[test]
fn a_machine_that_boots_once_more_has_the_whole_boot_time_again() {
    let record = proven(Standing::Started);
    let mut history = History::default();
    let at = |s: u64| secs(s);
    for (now, state) in [
        (at(0), MachineState::Provisioning),
        (at(30), reporting()),
        (at(5000), stopped(StopReason::PoweredOff)),
        (at(5010), MachineState::Provisioning),
    ] {
        history.note_record(Some(&record), now);
        let Look::Seen(machine) = showing(state) else {
            unreachable!()
        };
        history.note_machine(&record, &machine, now);
    }
    let seen = Observed {
        now: at(5020),
        history,
        ..seeing(record, MachineState::Provisioning)
    };
    assert_eq!(plan(&run(), &seen).waiting, Some(Waiting::NoAddress));
    let late = Observed {
        now: at(5010) + BOOT,
        ..seen
    };
    assert_eq!(
        plan(&run(), &late).waiting,
        Some(Waiting::Replacing(Retirement::NeverReported))
    );
}

#[test]
fn a_wait_that_a_person_must_end_fails_only_where_no_machine_serves() {
    let failed = failed(ErrorClass::Permanent);
    let absent = Observed {
        history: failed.clone(),
        ..seeing(holding(claim(Standing::Sent)), MachineState::Absent)
    };
    assert_eq!(plan(&run(), &absent).phase, Phase::Failed);
    let seal = Observed {
        history: failed,
        provider: configured(true),
        serving: answering(),
        ..seeing(proven(Standing::Started), reporting())
    };
    assert_eq!(plan(&run(), &seal).phase, Phase::Running);
}

#[test]
fn a_call_that_can_never_succeed_fails_the_proxy_in_the_same_pass() {
    for (phase, then) in [
        (Phase::Pending, Phase::Failed),
        (Phase::Provisioning, Phase::Failed),
        (Phase::Running, Phase::Running),
        (Phase::Deleting, Phase::Deleting),
    ] {
        let trouble = |class| crate::support::trouble(class);
        let plan = Plan::new(phase);
        assert_eq!(plan.in_trouble(trouble(ErrorClass::Permanent)).phase, then);
        assert_eq!(plan.in_trouble(trouble(ErrorClass::Busy)).phase, phase);
    }
}

#[test]
fn every_reason_that_a_plan_waits_for_is_on_the_page() {
    let on_page: BTreeSet<&str> = page()
        .iter()
        .filter_map(|row| row.split('|').nth(4))
        .map(str::trim)
        .collect();
    let waits = [
        Reason::Invalid,
        Reason::Suspended,
        Reason::RecordUnreadable,
        Reason::InstallationChanged,
        Reason::ProviderUnconfigured,
        Reason::SecretMissing,
        Reason::UserDataMissing,
        Reason::Creating,
        Reason::TaskRunning,
        Reason::NoAddress,
        Reason::Paused,
        Reason::Hibernated,
        Reason::IoError,
        Reason::PoweredOff,
        Reason::Crashed,
        Reason::CrashLoop,
        Reason::NoAgent,
        Reason::NeverReported,
        Reason::SpecChanged,
        Reason::ProviderChanged,
        Reason::ReplacementRefused,
        Reason::RemovedOutside,
        Reason::SlotTaken,
        Reason::ReplaceBackoff,
        Reason::MassDisappearance,
        Reason::CreateMayLand,
        Reason::Undecided,
        Reason::NotOwned,
        Reason::Deleting,
        Reason::Busy,
        Reason::Transient,
        Reason::Capacity,
        Reason::Unauthorized,
        Reason::Permanent,
        Reason::NeedsOperator,
        Reason::NotServing,
    ];
    for reason in waits {
        assert!(on_page.contains(reason.as_str()), "{reason}");
    }
}

#[test]
fn what_a_look_taught_is_written_down_also_while_a_seal_has_to_wait() {
    let moved = Serving::Answered {
        endpoint: ([192, 0, 2, 8], 3128).into(),
        credential_generation: 1,
    };
    let seen = Observed {
        provider: configured(true),
        history: failed(ErrorClass::NeedsOperator),
        serving: moved,
        ..seeing(proven(Standing::Started), reporting())
    };
    let plan = plan(&run(), &seen);
    assert!(matches!(plan.actions[..], [Action::RecordProven(_)]));
    assert!(matches!(
        plan.waiting,
        Some(Waiting::Trouble { looking: false, .. })
    ));
}
