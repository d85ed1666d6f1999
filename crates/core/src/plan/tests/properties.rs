//! What holds for any plan, whatever is wanted and whatever is seen.

use crate::{
    audit::audit,
    finding::Finding,
    history::{History, Sent},
    machine::{
        Addresses, Claim, ErrorClass, Handle, MachineState, ObservedMachine, ProxyId, Record,
        Retirement, Slot, Spent, SpentWhy, Standing, StopReason,
    },
    plan::{Action, Phase, Plan, plan},
    proxy::{
        CredentialSight, Desired, Intent, Look, Observed, Presence, ProviderSight, Recorded,
        Serving, ServingFault,
    },
    status::{self, status},
    support::{
        BOOT, NOW, SETTLE, claim, desired, endpoint, hash, in_progress, key, name, not_owned,
        proof, provider, record, reporting, secs, spec, trouble, unknown,
    },
};
use proptest::{option, prelude::*, sample::select};

fn any_class() -> impl Strategy<Value = ErrorClass> {
    select(ErrorClass::ALL.to_vec())
}

fn any_standing() -> impl Strategy<Value = Standing> {
    use Standing::{Accepted, Sealed, Seen, Sent, Started, Unsent};
    select(vec![Unsent, Sent, Accepted, Seen, Started, Sealed])
}

fn any_claim() -> impl Strategy<Value = Claim> {
    let retiring = option::weighted(0.25, select(Retirement::ALL.to_vec()));
    (
        any_standing(),
        1..4_u32,
        retiring,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(standing, attempt, retiring, unsettled, tasks, elsewhere)| Claim {
                attempt,
                retiring,
                unsettled: unsettled && standing > Standing::Unsent,
                handles: if tasks {
                    vec![Handle {
                        step: "clone".into(),
                        id: "1".into(),
                    }]
                } else {
                    Vec::new()
                },
                provider: if elsewhere && attempt == 3 {
                    name("other")
                } else {
                    provider()
                },
                slot: Slot::new(format!("{}", 100 + attempt)),
                ..claim(standing)
            },
        )
}

fn any_record() -> impl Strategy<Value = Record> {
    (option::weighted(0.9, any_claim()), any::<bool>(), 0..20_u8).prop_map(
        |(claim, proven, rare)| {
            let spent = Spent {
                provider: provider(),
                slot: Slot::new("100"),
                attempt: 1,
                why: SpentWhy::Freed,
            };
            let record = Record {
                spent: vec![spent],
                last_attempt: 1,
                ..record()
            };
            let mut record = match claim {
                Some(claim) => Record {
                    proven: (proven && claim.standing >= Standing::Started).then(proof),
                    ..record.with_claim(claim)
                },
                None => record,
            };
            match rare {
                0 => record.installation = name("other"),
                1 => record.proxy = ProxyId::new("shop", "copy").unwrap(),
                _ => {}
            }
            record
        },
    )
}

fn any_recorded() -> impl Strategy<Value = Recorded> {
    prop_oneof![
        2 => Just(Recorded::Nothing),
        16 => any_record().prop_map(Recorded::Held),
        1 => Just(Recorded::Unreadable("line 1 is no JSON".into())),
        1 => Just(Recorded::Lost { text: "taken away".into(), left: std::time::Duration::from_mins(1) }),
    ]
}

fn any_state() -> impl Strategy<Value = MachineState> {
    use StopReason::{
        Crashed, HalfMade, Hibernated, IoError, NeverReported, NoAgent, Paused, PoweredOff,
    };
    let stopped = vec![
        HalfMade,
        PoweredOff,
        Crashed,
        Paused,
        Hibernated,
        IoError,
        NoAgent,
        NeverReported,
    ];
    let nowhere = Addresses::Reported {
        addresses: Vec::new(),
        port: None,
    };
    prop_oneof![
        3 => Just(MachineState::Absent),
        1 => Just(in_progress()),
        1 => Just(MachineState::Provisioning),
        3 => Just(reporting()),
        1 => Just(MachineState::Running(Addresses::Unreported)),
        1 => Just(MachineState::Running(nowhere)),
        4 => select(stopped).prop_map(MachineState::Stopped),
        1 => Just(unknown()),
        2 => Just(MachineState::Foreign),
        1 => Just(not_owned()),
    ]
}

fn any_look() -> impl Strategy<Value = Look<ObservedMachine>> {
    prop_oneof![
        1 => Just(Look::NotAsked),
        2 => any_class().prop_map(|class| Look::Failed(trouble(class))),
        12 => (any_state(), option::of(1..3_u8)).prop_map(|(state, made_from)| {
            let config_hash = made_from.map(hash);
            let attempt = config_hash.as_ref().map(|_| 1);
            Look::Seen(ObservedMachine { config_hash, attempt, ..ObservedMachine::only(state) })
        }),
    ]
}

fn any_serving() -> impl Strategy<Value = Serving> {
    use ServingFault::{AuthRejected, PortClosed, Slow, WrongProxy};
    prop_oneof![
        Just(Serving::NotAsked),
        (0..3_u32).prop_map(|credential_generation| Serving::Answered {
            endpoint: endpoint(),
            credential_generation,
        }),
        select(vec![PortClosed, AuthRejected, WrongProxy, Slow]).prop_map(|fault| {
            Serving::Failed {
                endpoint: endpoint(),
                fault,
                text: "it did not".into(),
            }
        }),
    ]
}

/// Something a process may have lived through before this pass.
#[derive(Clone, Debug)]
enum Memory {
    Created(Option<ErrorClass>),
    Failed(ErrorClass),
    LookFailed(ErrorClass),
    Restarted,
    Replaced,
    Booting,
    Served(bool),
    Claimed,
}

fn any_memory() -> impl Strategy<Value = Memory> {
    prop_oneof![
        option::of(any_class()).prop_map(Memory::Created),
        any_class().prop_map(Memory::Failed),
        any_class().prop_map(Memory::LookFailed),
        Just(Memory::Restarted),
        Just(Memory::Replaced),
        Just(Memory::Booting),
        any::<bool>().prop_map(Memory::Served),
        Just(Memory::Claimed),
    ]
}

/// The history of a process that lived through these, each so many seconds ago.
fn lived(record: Option<&Record>, memories: Vec<(u64, Memory)>) -> History {
    let mut history = History::default();
    let claim = record.and_then(|r| r.claim.as_ref());
    let attempt = claim.map_or(1, |c| c.attempt);
    for (ago, memory) in memories {
        let at = NOW.saturating_sub(secs(ago));
        match memory {
            Memory::Created(failed) => {
                if claim.is_some_and(|c| c.standing > Standing::Unsent) {
                    history.note_created(attempt, Sent::MACHINE, failed, at);
                }
            }
            Memory::Failed(class) => history.note_failure(trouble(class), &key(), at),
            Memory::LookFailed(class) => history.note_look_failed(trouble(class), &key(), at),
            Memory::Restarted => history.note_restart(at),
            Memory::Replaced => history.note_replacement(at),
            Memory::Booting => history.note_booting(attempt, at),
            Memory::Served(answered) => history.note_serving(answered),
            Memory::Claimed => {
                if let Some(claim) = claim {
                    history.note_recorded(None, claim);
                }
            }
        }
    }
    history
}

fn any_intent() -> impl Strategy<Value = Intent> {
    let finding = Finding::new("spec.proxy.port", "0", "is no port", "use 1 to 65535");
    prop_oneof![
        6 => Just(Intent::Run(spec())),
        1 => Just(Intent::Paused(spec())),
        1 => Just(Intent::Hold(vec![finding])),
        4 => Just(Intent::Delete),
        1 => Just(Intent::Abandon),
    ]
}

fn any_provider() -> impl Strategy<Value = ProviderSight> {
    prop_oneof![
        1 => Just(ProviderSight::Unconfigured),
        8 => (any::<bool>(), any::<bool>()).prop_map(|(late, seals)| ProviderSight::Configured {
            kind: "any",
            settle: if late { SETTLE } else { secs(0) },
            boot_timeout: BOOT,
            seals,
        }),
    ]
}

fn any_world() -> impl Strategy<Value = (Desired, Observed)> {
    let credential = prop_oneof![
        4 => Just(CredentialSight::AtHand),
        1 => Just(CredentialSight::NotMade),
        1 => Just(CredentialSight::Lost),
        1 => Just(CredentialSight::Missing("Secret shop/login is missing".into())),
    ];
    let missing = option::weighted(0.2, Just("ConfigMap shop/extra is missing".to_owned()));
    let next = prop_oneof![
        Just(Look::NotAsked),
        Just(Look::Seen(())),
        any_class().prop_map(|class| Look::Failed(trouble(class))),
    ];
    let presence = prop_oneof![
        4 => Just(Presence::Normal),
        1 => Just(Presence::MassDisappearance { absent: 4, of: 5 }),
    ];
    let offer = prop_oneof![
        Just(None),
        any_class().prop_map(|class| Some(Err(class))),
        any::<bool>().prop_map(|there| Some(Ok(there))),
    ];
    let memories = proptest::collection::vec((0..2000_u64, any_memory()), 0..5);
    let asked = (any_look(), offer, any_serving());
    (
        any_intent(),
        any_recorded(),
        any_provider(),
        asked,
        (credential, missing, next),
        presence,
        memories,
    )
        .prop_map(
            |(
                intent,
                recorded,
                provider,
                (look, offer, serving),
                (credential, user_data_missing, next),
                presence,
                memories,
            )| {
                let reachable = provider != ProviderSight::Unconfigured;
                let promised = recorded.claim().is_some();
                let attempt = recorded.record().map_or(1, |r| r.last_attempt + 1);
                let mut history = lived(recorded.record(), memories);
                history.note_record(recorded.record(), NOW);
                // As `observe` asks: of a Proxy that should be gone only where nothing is
                // recorded.
                let going = matches!(intent, Intent::Delete | Intent::Abandon);
                let asked_for = !going || recorded == Recorded::Nothing;
                let offer = match offer.filter(|_| reachable && !promised && asked_for) {
                    None => Look::NotAsked,
                    Some(Err(class)) => Look::Failed(trouble(class)),
                    Some(Ok(there)) => {
                        let standing = if there {
                            Standing::Seen
                        } else {
                            Standing::Unsent
                        };
                        Look::Seen(Claim {
                            attempt,
                            ..claim(standing)
                        })
                    }
                };
                let machine = if reachable && promised {
                    look
                } else {
                    Look::NotAsked
                };
                let now = NOW;
                let seen = Observed {
                    now,
                    recorded,
                    provider,
                    machine,
                    offer,
                    presence,
                    serving,
                    credential,
                    user_data_missing,
                    next,
                    history,
                };
                (desired(intent), seen)
            },
        )
}

/// The record after the actions up to the first effect, none of which was carried out.
fn after_records(desired: &Desired, seen: &Observed, plan: &Plan) -> Recorded {
    let mut record = seen.recorded.record().cloned();
    for action in plan.actions.iter().take_while(|action| !action.is_effect()) {
        record = match (action, record) {
            (Action::HoldFinalizer, _) => {
                let installation = desired.installation.clone();
                Some(Record::new(
                    desired.uid.clone(),
                    installation,
                    desired.proxy.clone(),
                ))
            }
            (Action::RecordClaim(claim) | Action::RecordOutcome(claim), Some(record)) => {
                Some(record.with_claim(claim.clone()))
            }
            (Action::RecordProven(proven), Some(record)) => Some(Record {
                proven: Some(proven.clone()),
                ..record
            }),
            (Action::DropClaim(why), Some(record)) => Some(record.without_claim(*why)),
            (_, _) => None,
        };
    }
    match (&seen.recorded, record) {
        (unreadable @ (Recorded::Unreadable(_) | Recorded::Lost { .. }), _) => unreadable.clone(),
        (_, Some(record)) => Recorded::Held(record),
        (_, None) => Recorded::Nothing,
    }
}

fn effects(plan: &Plan) -> Vec<&Action> {
    plan.actions
        .iter()
        .filter(|action| action.is_effect())
        .collect()
}

proptest! {
    // What fails once becomes a row or a test of its own, not a file of seeds.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_audit_finds_nothing_in_any_plan((desired, seen) in any_world()) {
        let plan = plan(&desired, &seen);
        prop_assert_eq!(audit(&desired, &seen, &plan), vec![], "{:?}", plan);
    }

    #[test]
    fn planning_again_after_only_writing_down_writes_nothing_more(
        (desired, seen) in any_world()
    ) {
        let first = plan(&desired, &seen);
        prop_assert_eq!(&plan(&desired.clone(), &seen.clone()), &first);
        let mut history = seen.history.clone();
        for action in &first.actions {
            if let Action::RecordClaim(claim) | Action::RecordOutcome(claim) = action {
                history.note_recorded(seen.recorded.claim(), claim);
            }
        }
        let recorded = after_records(&desired, &seen, &first);
        let written = Observed { recorded, history, ..seen };
        let second = plan(&desired, &written);
        let records: Vec<&Action> =
            second.actions.iter().take_while(|action| !action.is_effect()).collect();
        prop_assert!(records.is_empty(), "{:?} then {:?}", first, second);
    }

    #[test]
    fn a_look_or_an_offer_that_failed_or_was_not_made_leads_to_no_effect(
        (desired, seen) in any_world()
    ) {
        if seen.machine.seen().is_none() && seen.offer.seen().is_none() {
            let plan = plan(&desired, &seen);
            prop_assert!(effects(&plan).is_empty(), "{:?}", plan);
        }
    }

    #[test]
    fn nothing_is_called_before_the_moment_that_a_failure_set((desired, seen) in any_world()) {
        if seen.history.holding(seen.now).is_some() {
            let plan = plan(&desired, &seen);
            prop_assert!(effects(&plan).is_empty(), "{:?}", plan);
        }
    }

    #[test]
    fn every_plan_ends_or_says_when_to_look_again((desired, seen) in any_world()) {
        let plan = plan(&desired, &seen);
        let ends = plan.is_gone() || plan.actions.last() == Some(&Action::ReleaseFinalizer);
        prop_assert!(ends || plan.recheck.is_some(), "{:?}", plan);
        let spins = plan.actions.is_empty() && plan.recheck.is_some_and(|wait| wait.is_zero());
        prop_assert!(!spins, "nothing to do, and again at once: {:?}", plan);
    }

    #[test]
    fn a_machine_is_deleted_only_after_the_cause_was_written_down(
        (desired, seen) in any_world()
    ) {
        let plan = plan(&desired, &seen);
        let there = seen.machine.seen().is_some_and(|m| {
            !matches!(m.state, MachineState::Absent | MachineState::Foreign)
        });
        if matches!(desired.intent, Intent::Run(_)) && there && plan.actions.contains(&Action::Delete) {
            let written = match (&plan.actions[0], seen.recorded.claim()) {
                (Action::RecordClaim(claim), _) => claim.retiring,
                (_, claim) => claim.and_then(|c| c.retiring),
            };
            prop_assert!(written.is_some(), "{:?}", plan);
        }
    }

    #[test]
    fn every_plan_can_be_told((desired, seen) in any_world()) {
        let plan = plan(&desired, &seen);
        let told = status(&desired, &seen, &plan);
        prop_assert_eq!(told.conditions.len(), 4);
        for condition in &told.conditions {
            prop_assert!(!condition.message.trim().is_empty(), "{:?}", condition);
        }
        if told.phase == Phase::Running && seen.machine.seen().is_some() {
            prop_assert!(told.condition(status::ConditionType::Provisioned).is_some());
        }
    }
}
