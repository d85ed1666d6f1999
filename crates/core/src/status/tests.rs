use super::*;
use crate::{
    finding::Finding,
    history::History,
    machine::{
        Claim, ErrorClass, ObservedMachine, Proven, Record, Retirement, Standing, StopReason,
    },
    plan::plan,
    proxy::{Intent, Look, ProviderSight, Recorded, Trouble},
    support::{
        answering, claim, configured, desired, endpoint, gone, holding, observed, proven,
        reporting, run, secs, seeing, showing, spec, trouble,
    },
};
use std::collections::BTreeSet;

fn told(desired: &Desired, seen: &Observed) -> ProxyStatus {
    status(desired, seen, &plan(desired, seen))
}

fn says(status: &ProxyStatus, r#type: ConditionType) -> (ConditionStatus, Reason) {
    let condition = status.condition(r#type).unwrap();
    (condition.status, condition.reason)
}

fn failing(fault: ServingFault, times: u32, record: Record) -> Observed {
    let mut history = History::default();
    for _ in 0..times {
        history.note_serving(false);
    }
    let text = "it did not".to_owned();
    let serving = Serving::Failed {
        endpoint: endpoint(),
        fault,
        text,
    };
    Observed {
        serving,
        history,
        ..seeing(record, reporting())
    }
}

/// One of each thing that is waited for.
fn waitings() -> Vec<Waiting> {
    let finding = Finding::new("spec.proxy.port", "0", "is no port", "use 1 to 65535");
    let step = |text: &str| text.to_owned();
    let left = secs(90);
    let stops = [
        StopReason::Paused,
        StopReason::Hibernated,
        StopReason::IoError,
    ];
    let troubles = ErrorClass::ALL.map(|class| Waiting::Trouble {
        looking: false,
        trouble: trouble(class),
    });
    [
        Waiting::Rejected(vec![finding]),
        Waiting::Suspended,
        Waiting::RecordUnreadable("state/shop/eu-1.json: line 1 is no JSON: restore it".into()),
        Waiting::InstallationChanged("other".into()),
        Waiting::ProviderUnconfigured,
        Waiting::SecretMissing("Secret shop/login lacks the key password".into()),
        Waiting::UserDataMissing("ConfigMap shop/extra lacks the key k: add it".into()),
        Waiting::Creating { step: step("") },
        Waiting::Creating {
            step: step("clone"),
        },
        Waiting::TaskRunning {
            step: step("migrate"),
        },
        Waiting::NoAddress,
        Waiting::Restarting {
            reason: StopReason::PoweredOff,
            count: 1,
        },
        Waiting::Restarting {
            reason: StopReason::Crashed,
            count: 2,
        },
        Waiting::Undecided("node-2 does not answer".into()),
        Waiting::NotOwned {
            restore: "egress-proxies/v1 {}".into(),
        },
        Waiting::RemovedOutside,
        Waiting::SlotTaken,
        Waiting::ReplaceBackoff { left },
        Waiting::MassDisappearance { absent: 4, of: 5 },
        Waiting::CreateMayLand { left: secs(600) },
        Waiting::Removing { step: step("") },
        Waiting::Removing {
            step: step("destroy"),
        },
        Waiting::NotServing,
    ]
    .into_iter()
    .chain(stops.map(Waiting::Stopped))
    .chain(Retirement::ALL.map(Waiting::Replacing))
    .chain(troubles)
    .collect()
}

#[test]
fn what_is_waited_for_is_said_in_these_words() {
    let said: Vec<String> = waitings()
        .iter()
        .map(|waiting| {
            let (reason, message) = reason::of(waiting);
            format!("{reason}: {message}")
        })
        .collect();
    let expected: Vec<&str> = SENTENCES.lines().collect();
    assert_eq!(said, expected, "\n{}", said.join("\n"));
}

const SENTENCES: &str = r#"Invalid: the manifest has faults; see Accepted
Suspended: spec.paused is true: nothing is changed until it is lifted
RecordUnreadable: state/shop/eu-1.json: line 1 is no JSON: restore it
InstallationChanged: the record belongs to installation "other"
ProviderUnconfigured: the provider of the machine is not configured: nothing can be seen or done
SecretMissing: Secret shop/login lacks the key password
UserDataMissing: ConfigMap shop/extra lacks the key k: add it
Creating: the machine is being made
Creating: the machine is being made: clone
TaskRunning: a task of the hypervisor works on the machine: migrate
NoAddress: the machine is started and has reported no address yet
PoweredOff: the machine was found stopped and is started again (restart 1 within an hour)
Crashed: the machine was found stopped and is started again (restart 2 within an hour)
Undecided: node-2 does not answer
NotOwned: the machine has our name but not our mark and is not touched; if it is ours, restore this line on it: egress-proxies/v1 {}
RemovedOutside: the machine was deleted by someone else; a new one is made
SlotTaken: someone else holds the slot; another one is claimed
ReplaceBackoff: machines failed one after another; the next is made in 90 s
MassDisappearance: 4 of 5 machines of this provider are missing at once: nothing is created until three listings over 60 s agree
CreateMayLand: nothing of ours is there, but a create sent earlier may still land; settled in 10 min
Deleting: the machine is being removed
Deleting: the machine is being removed: destroy
NotServing: the proxy is being asked who it is
Paused: someone left the machine Paused: it is not touched until they resume it
Hibernated: someone left the machine Hibernated: it is not touched until they resume it
IoError: the machine is stuck on its storage: make room or mend the storage, then resume it
SpecChanged: the spec changed: the machine is removed, then made anew
ProviderChanged: the Proxy moved to another provider: the machine is removed here, then made there
CrashLoop: the machine stopped three times within an hour: it is removed, then made anew
NoAgent: the machine has no guest agent and can never report an address: it is removed, then made anew; install the agent in the template
NeverReported: the machine reported no address in time: it is removed, then made anew; look at the network and the guest agent of the template
SlotTaken: someone else holds the slot: what we left there is removed, theirs is not touched, and another slot is taken
Deleting: the Proxy was deleted and is declared again: the old machine is removed, then another one made
SlotTaken: the server said no
NotOwned: the server said no
Busy: the server said no
Transient: the server said no
OutcomeUnknown: the server said no
Capacity: the server said no
Unauthorized: the server said no
Permanent: the server said no
NeedsOperator: the server said no
Internal: the server said no"#;

#[test]
fn no_sentence_names_a_variant_of_the_code_or_ends_a_wait_in_nothing() {
    for waiting in waitings() {
        let (_, message) = reason::of(&waiting);
        for word in ["Some(", "None", "{", "Duration"] {
            let marks_line = matches!(waiting, Waiting::NotOwned { .. });
            assert!(marks_line || !message.contains(word), "{message}");
        }
        assert!(message.len() > 10, "{waiting:?}: {message}");
    }
}

#[test]
fn a_steady_proxy_serves_and_is_not_yet_proven_by_full_probes() {
    use ConditionStatus::{True, Unknown};
    let seen = Observed {
        serving: answering(),
        ..seeing(proven(Standing::Started), reporting())
    };
    let status = told(&run(), &seen);
    let conditions: Vec<_> = status
        .conditions
        .iter()
        .map(|c| (c.r#type, c.status, c.reason))
        .collect();
    assert_eq!(
        conditions,
        [
            (ConditionType::Accepted, True, Reason::Accepted),
            (ConditionType::Provisioned, True, Reason::Provisioned),
            (ConditionType::Serving, True, Reason::Serving),
            (ConditionType::Ready, Unknown, Reason::NotProven),
        ]
    );
    assert_eq!(status.phase, Phase::Running);
    assert_eq!(status.endpoint, Some(endpoint()));
    assert_eq!(status.addresses, [endpoint().ip()]);
    assert_eq!(status.machine.unwrap().id, Slot::new("101"));
}

#[test]
fn not_seen_is_not_gone_in_the_status_either() {
    let blind = Observed {
        machine: Look::Failed(trouble(ErrorClass::Transient)),
        ..observed(Recorded::Held(proven(Standing::Started)))
    };
    for desired in [run(), gone()] {
        let status = told(&desired, &blind);
        let unknown = (ConditionStatus::Unknown, Reason::Transient);
        assert_eq!(says(&status, ConditionType::Provisioned), unknown);
        let unknown = (ConditionStatus::Unknown, Reason::NotProvisioned);
        assert_eq!(says(&status, ConditionType::Serving), unknown);
        assert_eq!(
            status.addresses,
            [endpoint().ip()],
            "the proven address is shown meanwhile"
        );
    }
}

#[test]
fn a_machine_that_is_known_to_be_off_shows_no_address() {
    let off = MachineState::Stopped(StopReason::PoweredOff);
    let status = told(&run(), &seeing(proven(Standing::Started), off));
    assert_eq!((status.addresses, status.endpoint), (vec![], None));
}

#[test]
fn a_silent_machine_is_shown_where_it_was_proven() {
    let silent = MachineState::Running(Addresses::Unreported);
    let status = told(&run(), &seeing(proven(Standing::Started), silent));
    assert_eq!(status.endpoint, Some(endpoint()));
    assert_eq!(
        says(&status, ConditionType::Provisioned).0,
        ConditionStatus::True
    );
}

#[test]
fn a_port_that_the_provider_chose_is_the_endpoints_port() {
    let state = MachineState::Running(Addresses::Reported {
        addresses: vec![endpoint().ip()],
        port: Some(40_001),
    });
    let seen = seeing(proven(Standing::Started), state);
    assert_eq!(endpoint_port(&run(), &seen), Some(40_001));
    let desired = desired(Intent::Run(crate::proxy::ProxySpec {
        port: None,
        ..spec()
    }));
    let seen = seeing(proven(Standing::Started), reporting());
    assert_eq!(
        endpoint_port(&desired, &seen),
        Some(crate::proxy_config::DEFAULT_PORT)
    );
}

#[test]
fn a_silent_machine_is_asked_at_the_port_that_was_proven() {
    let record = Record {
        proven: Some(Proven {
            address: (endpoint().ip(), 40_001).into(),
            ..crate::support::proof()
        }),
        ..holding(claim(Standing::Started))
    };
    let seen = seeing(record, MachineState::Running(Addresses::Unreported));
    assert_eq!(endpoint_port(&run(), &seen), Some(40_001));
}

#[test]
fn what_was_proven_at_another_address_or_port_has_no_patience_here() {
    let (ip, port) = (endpoint().ip(), endpoint().port());
    for proven_at in [(ip, port + 1).into(), ([192, 0, 2, 99], port).into()] {
        let record = Record {
            proven: Some(Proven {
                address: proven_at,
                ..crate::support::proof()
            }),
            ..holding(claim(Standing::Started))
        };
        let status = told(&run(), &failing(ServingFault::PortClosed, 1, record));
        let expected = (ConditionStatus::False, Reason::Starting);
        assert_eq!(
            says(&status, ConditionType::Serving),
            expected,
            "{proven_at}"
        );
    }
}

fn endpoint_port(desired: &Desired, seen: &Observed) -> Option<u16> {
    super::endpoint(desired, seen).map(|endpoint| endpoint.port())
}

#[test]
fn a_lock_on_a_running_machine_is_named_and_changes_nothing_else() {
    let mut seen = seeing(proven(Standing::Started), reporting());
    if let Look::Seen(machine) = &mut seen.machine {
        machine.busy = Some("backup".into());
    }
    let status = told(&run(), &seen);
    let provisioned = status.condition(ConditionType::Provisioned).unwrap();
    assert_eq!(provisioned.status, ConditionStatus::True);
    assert!(
        provisioned.message.contains("(backup)"),
        "{}",
        provisioned.message
    );
}

#[test]
fn a_machine_being_replaced_or_removed_does_not_count_as_provisioned() {
    let retiring = Claim {
        retiring: Some(Retirement::SpecChanged),
        ..claim(Standing::Started)
    };
    let record = Record {
        claim: Some(retiring),
        ..proven(Standing::Started)
    };
    let mut held = History::default();
    held.note_failure(
        trouble(ErrorClass::Busy),
        &crate::support::key(),
        crate::support::NOW,
    );
    for (desired, history, reason) in [
        (run(), History::default(), Reason::SpecChanged),
        (run(), held.clone(), Reason::Busy),
        (gone(), History::default(), Reason::Deleting),
        (gone(), held, Reason::Busy),
    ] {
        let status = told(
            &desired,
            &Observed {
                history,
                ..seeing(record.clone(), reporting())
            },
        );
        let expected = (ConditionStatus::False, reason);
        assert_eq!(says(&status, ConditionType::Provisioned), expected);
    }
}

#[test]
fn a_paused_or_rejected_proxy_that_runs_is_still_provisioned() {
    let finding = Finding::new("spec.proxy.port", "0", "is no port", "use 1 to 65535");
    for intent in [Intent::Paused(spec()), Intent::Hold(vec![finding.clone()])] {
        let desired = desired(intent);
        let status = told(&desired, &seeing(proven(Standing::Started), reporting()));
        let expected = (ConditionStatus::True, Reason::Provisioned);
        assert_eq!(says(&status, ConditionType::Provisioned), expected);
        let accepted = says(&status, ConditionType::Accepted);
        let paused = matches!(desired.intent, Intent::Paused(_));
        let rejected = (ConditionStatus::False, Reason::Invalid);
        assert_eq!(accepted == rejected, !paused, "{accepted:?}");
    }
}

#[test]
fn a_proxy_that_just_starts_has_a_moment_to_answer_and_a_proven_one_a_threshold() {
    use ConditionStatus::{False, True};
    let unproven = || holding(claim(Standing::Started));
    let was = || proven(Standing::Started);
    for (fault, times, record, expected) in [
        (
            ServingFault::PortClosed,
            1,
            unproven(),
            (False, Reason::Starting),
        ),
        (ServingFault::Slow, 4, unproven(), (False, Reason::Starting)),
        (
            ServingFault::PortClosed,
            5,
            unproven(),
            (False, Reason::PortClosed),
        ),
        (ServingFault::Slow, 5, unproven(), (False, Reason::Slow)),
        (ServingFault::PortClosed, 2, was(), (True, Reason::Serving)),
        (
            ServingFault::PortClosed,
            3,
            was(),
            (False, Reason::PortClosed),
        ),
        (
            ServingFault::WrongProxy,
            1,
            unproven(),
            (False, Reason::WrongProxy),
        ),
        (
            ServingFault::WrongProxy,
            1,
            was(),
            (False, Reason::WrongProxy),
        ),
        (
            ServingFault::AuthRejected,
            1,
            unproven(),
            (False, Reason::AuthRejected),
        ),
        (
            ServingFault::AuthRejected,
            1,
            was(),
            (False, Reason::AuthRejected),
        ),
    ] {
        let status = told(&run(), &failing(fault, times, record));
        assert_eq!(
            says(&status, ConditionType::Serving),
            expected,
            "{fault:?}, {times} times"
        );
        let not_serving = (False, Reason::NotServing);
        let ready = says(&status, ConditionType::Ready);
        assert_eq!(ready == not_serving, expected.0 == False, "{ready:?}");
    }
}

#[test]
fn a_lost_or_missing_password_leaves_serving_unknown_and_says_why() {
    for (credential, reason) in [
        (CredentialSight::Lost, Reason::CredentialLost),
        (
            CredentialSight::Missing("Secret shop/login is missing".into()),
            Reason::SecretMissing,
        ),
    ] {
        let seen = Observed {
            credential,
            ..seeing(proven(Standing::Started), reporting())
        };
        let status = told(&run(), &seen);
        let expected = (ConditionStatus::Unknown, reason);
        assert_eq!(says(&status, ConditionType::Serving), expected);
        let expected = (ConditionStatus::True, Reason::Provisioned);
        assert_eq!(says(&status, ConditionType::Provisioned), expected);
    }
}

#[test]
fn a_machine_that_waits_for_user_data_before_it_is_replaced_serves_on_and_says_so() {
    let seen = Observed {
        user_data_missing: Some("ConfigMap shop/extra lacks the key k: add it".into()),
        serving: answering(),
        ..seeing(proven(Standing::Started), reporting())
    };
    let status = told(&run(), &seen);
    let provisioned = status.condition(ConditionType::Provisioned).unwrap();
    assert_eq!(
        provisioned.message,
        "the machine runs and has an address; it is not replaced before this is mended: \
         ConfigMap shop/extra lacks the key k: add it"
    );
    let expected = (ConditionStatus::True, Reason::Serving);
    assert_eq!(says(&status, ConditionType::Serving), expected);
}

#[test]
fn the_provider_that_is_missing_is_named_be_it_the_wanted_or_the_holding_one() {
    let other = Claim {
        provider: crate::support::name("old"),
        ..claim(Standing::Started)
    };
    for (recorded, named) in [
        (Recorded::Nothing, "\"pve\""),
        (Recorded::Held(holding(other)), "\"old\""),
    ] {
        let seen = Observed {
            provider: ProviderSight::Unconfigured,
            ..observed(recorded)
        };
        let status = told(&run(), &seen);
        let accepted = status.condition(ConditionType::Accepted).unwrap();
        assert_eq!(accepted.reason, Reason::ProviderUnconfigured);
        assert!(accepted.message.contains(named), "{}", accepted.message);
    }
}

#[test]
fn an_abandoned_machine_is_named_so_that_a_person_can_find_it() {
    let status = told(
        &desired(Intent::Abandon),
        &observed(Recorded::Held(proven(Standing::Started))),
    );
    let provisioned = status.condition(ConditionType::Provisioned).unwrap();
    assert_eq!(provisioned.reason, Reason::Abandoned);
    assert!(
        provisioned
            .message
            .contains("attempt 1 at 101, provider pve"),
        "{provisioned:?}"
    );
}

#[test]
fn a_status_is_stored_in_the_words_of_the_api() {
    let seen = Observed {
        serving: answering(),
        ..seeing(proven(Standing::Started), reporting())
    };
    let status = serde_json::to_value(told(&run(), &seen)).unwrap();
    assert_eq!(status["observedGeneration"], 1);
    assert_eq!(status["machine"]["name"], crate::support::key().name());
    assert_eq!(status["endpoint"], "192.0.2.7:3128");
    assert_eq!(status["conditions"][3]["type"], "Ready");
    assert_eq!(status["conditions"][3]["reason"], "NotProven");
    assert!(status.get("egressIp").is_none());
}

/// Statuses of all kinds, to see which reasons occur.
fn every_status() -> Vec<ProxyStatus> {
    let runs = seeing(proven(Standing::Started), reporting());
    let mut all: Vec<ProxyStatus> = waitings()
        .into_iter()
        .map(|waiting| {
            let phase = Phase::Provisioning;
            let plan = Plan {
                phase,
                actions: vec![],
                waiting: Some(waiting),
                recheck: None,
            };
            status(&run(), &runs, &plan)
        })
        .collect();
    let faults = [
        ServingFault::PortClosed,
        ServingFault::AuthRejected,
        ServingFault::WrongProxy,
        ServingFault::Slow,
    ];
    for times in [1, 9] {
        let record = || holding(claim(Standing::Started));
        all.extend(faults.map(|fault| told(&run(), &failing(fault, times, record()))));
    }
    let lost = Observed {
        credential: CredentialSight::Lost,
        ..runs.clone()
    };
    let found = Observed {
        offer: Look::Seen(claim(Standing::Seen)),
        provider: configured(true),
        ..observed(Recorded::Nothing)
    };
    let served = Observed {
        serving: answering(),
        ..runs.clone()
    };
    let abandoned = observed(Recorded::Held(proven(Standing::Started)));
    all.extend([lost, found, served, runs].map(|seen| told(&run(), &seen)));
    all.push(told(&desired(Intent::Abandon), &abandoned));
    all
}

#[test]
fn every_reason_occurs_but_those_that_only_pass_by() {
    // A half made machine is told as `Creating`: that is what is done about it.
    let never = BTreeSet::from([Reason::HalfMade]);
    let occurring: BTreeSet<Reason> = every_status()
        .iter()
        .flat_map(|s| &s.conditions)
        .map(|c| c.reason)
        .collect();
    let missing: BTreeSet<Reason> = Reason::ALL
        .iter()
        .copied()
        .filter(|reason| !occurring.contains(reason))
        .collect();
    assert_eq!(missing, never);
}

#[test]
fn every_reason_has_a_meaning_and_the_name_that_people_see() {
    for reason in Reason::ALL {
        assert!(reason.meaning().trim().ends_with('.'), "{reason}");
        assert_eq!(reason.as_str(), format!("{reason:?}"));
        let stored = serde_json::to_string(reason).unwrap();
        assert_eq!(stored, format!("\"{reason}\""));
    }
}

#[test]
fn a_wait_is_told_in_seconds_or_minutes_and_never_too_short() {
    for (wait, words) in [
        (secs(0), "less than a second"),
        (secs(1), "1 s"),
        (secs(119), "119 s"),
        (secs(120), "2 min"),
        (secs(121), "3 min"),
        (secs(3600), "60 min"),
    ] {
        assert_eq!(in_words(wait), words);
    }
}

#[test]
fn a_trouble_is_told_in_the_words_of_the_server() {
    let text = "lab: get machine 101: 500 no quorum".to_owned();
    let trouble = Trouble {
        class: ErrorClass::Transient,
        text: text.clone(),
    };
    let (reason, message) = reason::of(&Waiting::Trouble {
        looking: true,
        trouble,
    });
    assert_eq!((reason, message), (Reason::Transient, text));
}

#[test]
fn the_host_that_was_seen_is_shown_before_the_recorded_one() {
    let recorded = Claim {
        host: Some(Host::new("node-1")),
        ..claim(Standing::Started)
    };
    let mut seen = seeing(holding(recorded), reporting());
    let shown = |seen: &Observed| told(&run(), seen).machine.unwrap().host.unwrap();
    assert_eq!(shown(&seen), Host::new("node-1"));
    if let Look::Seen(machine) = showing(reporting()) {
        seen.machine = Look::Seen(ObservedMachine {
            host: Some(Host::new("node-2")),
            ..machine
        });
    }
    assert_eq!(shown(&seen), Host::new("node-2"));
}
