mod reasons;
mod words;

use super::*;
use crate::{
    finding::Finding,
    history::History,
    machine::{
        Claim, ConfigHash, ErrorClass, ObservedMachine, Proven, Record, Retirement, Standing,
        StopReason,
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
fn a_paused_proxy_says_that_it_is_and_whether_another_machine_follows() {
    let present = told(
        &desired(Intent::Paused(spec())),
        &seeing(proven(Standing::Started), reporting()),
    );
    let mut changed = spec();
    changed.config_hash = ConfigHash::of(b"another one");
    let outdated = told(
        &desired(Intent::Paused(changed)),
        &seeing(proven(Standing::Started), reporting()),
    );
    for (status, follows) in [(present, false), (outdated, true)] {
        let message = &status
            .condition(ConditionType::Provisioned)
            .unwrap()
            .message;
        assert!(message.contains("spec.paused is true"), "{message}");
        assert_eq!(message.contains("replaced"), follows, "{message}");
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
        ..outdated_at_port(endpoint().port())
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
    for (provider, left) in [
        (configured(true), "proxmox://pve/101, attempt 1"),
        (
            ProviderSight::Unconfigured,
            "101 of the provider pve, which is not configured, attempt 1",
        ),
    ] {
        let seen = Observed {
            provider,
            ..observed(Recorded::Held(proven(Standing::Started)))
        };
        let status = told(&desired(Intent::Abandon), &seen);
        let provisioned = status.condition(ConditionType::Provisioned).unwrap();
        assert_eq!(provisioned.reason, Reason::Abandoned);
        assert!(provisioned.message.ends_with(left), "{provisioned:?}");
    }
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

/// A machine of a configuration of before, of which a look shows this, proven at another port.
fn outdated_at_port(port: u16) -> Observed {
    let record = Record {
        proven: Some(Proven {
            address: (endpoint().ip(), port).into(),
            ..crate::support::proof()
        }),
        ..holding(claim(Standing::Started))
    };
    let mut seen = seeing(record, reporting());
    if let Look::Seen(machine) = &mut seen.machine {
        machine.config_hash = Some(crate::support::hash(9));
    }
    seen
}

#[test]
fn a_machine_that_is_not_replaced_yet_is_shown_at_the_port_it_was_proven_at() {
    let paused = desired(Intent::Paused(spec()));
    let rejected = desired(Intent::Hold(Vec::new()));
    for desired in [paused, rejected, run()] {
        let status = told(&desired, &outdated_at_port(40_001));
        let expected = status.phase == Phase::Running;
        let port = status.endpoint.map(|endpoint| endpoint.port());
        assert_eq!(port, Some(40_001), "{:?} {expected}", desired.intent);
    }
    // Made from what is wanted: it listens where that says, whatever was proven before.
    let mut seen = outdated_at_port(40_001);
    if let Look::Seen(machine) = &mut seen.machine {
        machine.config_hash = Some(crate::support::hash(1));
    }
    assert_eq!(endpoint_port(&run(), &seen), spec().port);
}

#[test]
fn what_keeps_a_machine_from_being_replaced_is_its_reason_and_in_words() {
    let mut seen = outdated_at_port(3128);
    seen.next = Look::Failed(crate::proxy::Trouble {
        class: ErrorClass::Permanent,
        text: "template 9001 is not a template".into(),
    });
    let status = told(&run(), &seen);
    let provisioned = status.condition(ConditionType::Provisioned).unwrap();
    assert_eq!(provisioned.status, ConditionStatus::True);
    assert_eq!(provisioned.reason, Reason::ReplacementRefused);
    let message = &provisioned.message;
    assert!(message.contains("template 9001 is not"), "{message}");
}

#[test]
fn while_a_look_fails_the_last_address_and_age_stay_and_are_said_to_be_unconfirmed() {
    let record = proven(Standing::Started);
    let made: jiff::Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    let mut history = History::default();
    let seen = ObservedMachine {
        created_at: Some(made),
        ..ObservedMachine::only(reporting())
    };
    history.note_machine(&record, &seen, crate::support::NOW);
    let failed = Look::Failed(trouble(ErrorClass::Transient));
    let undecided = crate::support::showing(crate::support::unknown());
    for machine in [failed, undecided] {
        let blind = Observed {
            machine,
            history: history.clone(),
            ..observed(Recorded::Held(record.clone()))
        };
        let status = told(&run(), &blind);
        assert_eq!(status.endpoint, Some(endpoint()));
        assert_eq!(status.machine.as_ref().unwrap().created_at, Some(made));
        let serving = status.condition(ConditionType::Serving).unwrap();
        assert_eq!(serving.status, ConditionStatus::Unknown);
        let said = format!("{} answered before", endpoint());
        assert!(serving.message.contains(&said), "{}", serving.message);
        // It is shown, and not asked.
        assert_eq!(super::endpoint(&run(), &blind), None);
    }
}
