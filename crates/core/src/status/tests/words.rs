//! What is waited for, in words.

use super::*;

/// One of each thing that is waited for.
pub(super) fn waitings() -> Vec<Waiting> {
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
        Waiting::ReplacementRefused("the template is none".into()),
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
ProviderUnconfigured: its provider is not configured, so nothing can be seen or done: add it to the configuration; see Accepted
SecretMissing: Secret shop/login lacks the key password
UserDataMissing: ConfigMap shop/extra lacks the key k: add it
Creating: the machine is being made
Creating: the machine is being made: clone
TaskRunning: a task of the hypervisor works on the machine: migrate
NoAddress: the machine is started and has reported no address that others can reach yet: it boots, waits for DHCP, or has no guest agent; its console shows which
PoweredOff: the machine was found stopped and is started again (restart 1 within an hour)
Crashed: the machine was found stopped and is started again (restart 2 within an hour)
Undecided: node-2 does not answer
NotOwned: the machine has our name but not our mark and is not touched; if it is ours, restore this line on it: egress-proxies/v1 {}
ReplacementRefused: the machine is not replaced before this is mended: the template is none
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
