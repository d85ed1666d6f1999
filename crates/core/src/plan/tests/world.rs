//! A model of a hypervisor, of the people around it and of the process that plans, all in
//! one value: it can be cloned, so every fault can be tried at every pass.
//!
//! What the model takes for granted, as the provider contract does: a creating request of
//! unknown outcome lands within the settle bound or never; one slot holds one machine; a
//! look of ours never shows less than an earlier one, but for a machine that was just made.

mod hypervisor;

use crate::{
    audit::audit,
    history::{History, Sent},
    machine::{
        Claim, ConfigHash, ErrorClass, Handle, MachineState, Record, Retirement, Slot, Standing,
        StopReason,
    },
    plan::{Action, Plan, Waiting, plan},
    proxy::{
        CredentialSight, Desired, Intent, Look, Observed, Presence, ProviderSight, ProxySpec,
        Recorded, Serving,
    },
    support::{answering, claim, desired, gone, hash, key, reporting, run, secs, spec, trouble},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub(super) const SETTLE: Duration = secs(120);
const LANDS_LATE: Duration = secs(100);
const BOOT_TIMEOUT: Duration = secs(60);
const CLONE_TIME: Duration = secs(4);
const BOOT_TIME: Duration = secs(6);
const DESTROY_TIME: Duration = secs(4);
const READ_LAG: Duration = secs(3);
/// Passes within which a world that is left alone reaches its goal.
const PATIENCE: usize = 300;

type Place = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Cloning,
    HalfMade,
    Booting,
    Up,
    Off(StopReason),
    Destroying,
}

/// A machine of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Machine {
    attempt: u32,
    config: ConfigHash,
    stage: Stage,
    /// When the stage ends by itself.
    until: Duration,
    made: Duration,
    /// It will never report an address.
    mute: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Cell {
    Ours(Machine),
    Strangers,
}

/// A creating request whose answer was lost and that is still on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Late {
    place: Place,
    attempt: u32,
    config: ConfigHash,
    at: Duration,
}

/// What goes wrong in a pass, or what someone does right before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The process dies before the n-th action of its plan, and another one starts.
    DieBefore(usize),
    /// It dies after the n-th action, before the answer is written down.
    DieAfter(usize),
    /// The effect happens and its answer is lost.
    LoseAnswer,
    /// A creating request is lost on its way and lands later. Other effects: as `LoseAnswer`.
    LandLate,
    /// The process dies while a creating request is on its way, which lands later.
    DieLate,
    /// The effect is refused with this class and does not happen.
    Refuse(ErrorClass),
    /// The look, or the offer, fails.
    Blind,
    /// The look shows the machine and cannot decide what it is.
    Undecided,
    /// The look does not show yet what was made a moment ago.
    Lag,
    /// Every write of the record fails.
    StoreFails,
    /// Someone deletes the machine. What belongs to it stays.
    Remove,
    /// Someone deletes the machine and puts one of their own in its place.
    Supplant,
    /// Someone makes a machine where ours is to be, or is proposed next.
    Occupy,
    /// Someone switches the machine off.
    PowerOff,
    /// The machine crashes.
    Crash,
    /// The task that makes the machine fails and leaves nothing.
    TaskFails,
    /// The machine will not report an address unless it is made anew.
    Mute,
    /// The user wants another configuration.
    Change,
    /// The user deletes the Proxy.
    Delete,
}

pub(super) const FAULTS: [Fault; 25] = [
    Fault::DieBefore(0),
    Fault::DieBefore(1),
    Fault::DieBefore(2),
    Fault::DieAfter(0),
    Fault::DieAfter(1),
    Fault::DieAfter(2),
    Fault::LoseAnswer,
    Fault::LandLate,
    Fault::DieLate,
    Fault::Refuse(ErrorClass::Busy),
    Fault::Refuse(ErrorClass::Transient),
    Fault::Refuse(ErrorClass::Permanent),
    Fault::Blind,
    Fault::Undecided,
    Fault::Lag,
    Fault::StoreFails,
    Fault::Remove,
    Fault::Supplant,
    Fault::Occupy,
    Fault::PowerOff,
    Fault::Crash,
    Fault::TaskFails,
    Fault::Mute,
    Fault::Change,
    Fault::Delete,
];

/// An answer of the hypervisor.
enum Answer {
    Done,
    InProgress(&'static str),
    Error(ErrorClass),
}

/// Whether a create may send the request that makes a machine: only where the look showed nothing.
fn makes(seen: &Observed) -> bool {
    seen.machine
        .seen()
        .is_none_or(|machine| machine.state == MachineState::Absent)
}

/// How far a plan was carried out.
enum Ended {
    Died,
    StoreFailed,
    Failed,
    InProgress,
    Complete,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    now: Duration,
    desired: Desired,
    seals: bool,
    record: Option<Record>,
    history: History,
    cells: BTreeMap<Place, Cell>,
    seeds: BTreeSet<Place>,
    late: Vec<Late>,
    strangers: usize,
    /// Every place that a creating request was sent for, by attempt: never two for one.
    places: BTreeMap<u32, Place>,
    pub(super) told: Vec<String>,
}

impl World {
    /// An empty world in which nothing is wanted yet.
    pub(super) fn new(seals: bool) -> Self {
        Self {
            now: secs(1000),
            desired: run(),
            seals,
            record: None,
            history: History::default(),
            cells: BTreeMap::new(),
            seeds: BTreeSet::new(),
            late: Vec::new(),
            strangers: 0,
            places: BTreeMap::new(),
            told: Vec::new(),
        }
    }

    /// The user wants the `n`th configuration from now on.
    pub(super) fn want(&mut self, n: u8) {
        let spec = ProxySpec {
            config_hash: hash(n),
            ..spec()
        };
        self.desired = desired(Intent::Run(spec));
        self.history.note_success();
    }

    pub(super) fn delete(&mut self) {
        self.desired = gone();
        self.history.note_success();
    }

    fn machines(&self) -> impl Iterator<Item = (Place, &Machine)> {
        self.cells.iter().filter_map(|(place, cell)| match cell {
            Cell::Ours(machine) => Some((*place, machine)),
            Cell::Strangers => None,
        })
    }

    fn claimed(&self) -> Option<(&Claim, Place)> {
        let claim = self.record.as_ref()?.claim.as_ref()?;
        Some((claim, claim.slot.as_str().parse().unwrap()))
    }

    fn ours(&mut self) -> Option<&mut Machine> {
        self.cells.values_mut().find_map(|cell| match cell {
            Cell::Ours(machine) => Some(machine),
            Cell::Strangers => None,
        })
    }

    /// Whether what is wanted has come about, and nothing else.
    pub(super) fn at_goal(&self) -> bool {
        let Some(spec) = self.desired.spec() else {
            return self.record.is_none();
        };
        let (Some((claim, place)), Some(record)) = (self.claimed(), &self.record) else {
            return false;
        };
        let machines: Vec<_> = self.machines().collect();
        let up = matches!(&machines[..], [(at, machine)]
            if *at == place && machine.stage == Stage::Up && machine.config == spec.config_hash);
        let sealed = !self.seals || (claim.standing == Standing::Sealed && self.seeds.is_empty());
        up && sealed && record.proven.is_some() && claim.retiring.is_none()
    }

    fn free_place(&self) -> Place {
        let taken: Vec<Slot> = self
            .record
            .as_ref()
            .map(|record| self.history.untouchable(record, SETTLE, self.now))
            .unwrap_or_default();
        let taken = |place: Place| taken.iter().any(|slot| slot.as_str() == place.to_string());
        (101..200)
            .find(|place| !self.cells.contains_key(place) && !taken(*place))
            .unwrap()
    }

    fn offer(&self) -> Claim {
        if let Some((place, machine)) = self.machines().next() {
            let slot = Slot::new(place.to_string());
            return Claim {
                slot,
                attempt: machine.attempt,
                ..claim(Standing::Seen)
            };
        }
        let attempt = self.record.as_ref().map_or(0, |r| r.last_attempt) + 1;
        let slot = Slot::new(self.free_place().to_string());
        Claim {
            slot,
            attempt,
            ..claim(Standing::Unsent)
        }
    }

    fn observe(&mut self, fault: Option<Fault>) -> Observed {
        self.history.note_record(self.record.as_ref(), self.now);
        let blind = fault == Some(Fault::Blind);
        let mut machine = Look::NotAsked;
        let mut offer = Look::NotAsked;
        let mut serving = Serving::NotAsked;
        if let Some((_, place)) = self.claimed() {
            machine = if blind {
                Look::Failed(trouble(ErrorClass::Transient))
            } else {
                Look::Seen(self.get(place, fault))
            };
        } else if self.desired.spec().is_some() && self.history.replace_at() <= self.now {
            offer = if blind {
                Look::Failed(trouble(ErrorClass::Transient))
            } else {
                Look::Seen(self.offer())
            };
        }
        if blind && (machine != Look::NotAsked || offer != Look::NotAsked) {
            self.history
                .note_look_failed(trouble(ErrorClass::Transient), &key(), self.now);
        } else {
            self.history.note_looked();
        }
        if let (Look::Seen(machine), Some(record)) = (&machine, &self.record) {
            self.history.note_machine(record, machine, self.now);
            if machine.state == reporting() && self.desired.spec().is_some() {
                serving = answering();
                self.history.note_serving(true);
            }
        }
        Observed {
            now: self.now,
            recorded: self
                .record
                .clone()
                .map_or(Recorded::Nothing, Recorded::Held),
            provider: ProviderSight::Configured {
                kind: "world",
                settle: SETTLE,
                boot_timeout: BOOT_TIMEOUT,
                seals: self.seals,
            },
            machine,
            offer,
            presence: Presence::Normal,
            serving,
            credential: CredentialSight::AtHand,
            user_data_missing: None,
            next: Look::NotAsked,
            history: self.history.clone(),
        }
    }

    /// One pass of a process that runs, with at most one fault. Answers with the wait.
    pub(super) fn pass(&mut self, fault: Option<Fault>) {
        if let Some(fault) = fault {
            self.meddle(fault);
        }
        self.advance();
        let seen = self.observe(fault);
        let plan = plan(&self.desired, &seen);
        assert_eq!(
            audit(&self.desired, &seen, &plan),
            vec![],
            "{plan:?} {}",
            self.tale()
        );
        let state = seen.machine.seen().map(|m| &m.state);
        self.told.push(format!(
            "{}s {fault:?} {state:?} -> {:?}",
            self.now.as_secs(),
            plan.actions
        ));
        let ended = self.execute(&plan, &seen, fault);
        let wait = match ended {
            Ended::Died => {
                self.history = History::default();
                secs(1)
            }
            Ended::StoreFailed => secs(1),
            Ended::InProgress => secs(2),
            Ended::Failed => {
                let until = self
                    .history
                    .holding(self.now)
                    .map(|failure| failure.retry_at);
                until.map_or(secs(1), |at| at.saturating_sub(self.now))
            }
            Ended::Complete => plan.recheck.unwrap_or(secs(30)),
        };
        self.now += wait.max(Duration::from_millis(10));
        self.check();
    }

    fn execute(&mut self, plan: &Plan, seen: &Observed, fault: Option<Fault>) -> Ended {
        for (n, action) in plan.actions.iter().enumerate() {
            if fault == Some(Fault::DieBefore(n)) {
                return Ended::Died;
            }
            if !action.is_effect() && fault == Some(Fault::StoreFails) {
                self.history.note_unsaved();
                return Ended::StoreFailed;
            }
            let dies = fault == Some(Fault::DieAfter(n))
                || (fault == Some(Fault::DieLate) && action.is_effect());
            if action.is_effect() {
                let answer = self.effect(action, fault);
                if dies {
                    return Ended::Died;
                }
                match self.outcome(action, &answer, plan, seen, fault) {
                    Ended::Complete => {}
                    ended => return ended,
                }
            } else {
                self.write(action, seen, plan);
                if dies {
                    return Ended::Died;
                }
            }
        }
        Ended::Complete
    }

    /// A record action, as the engine carries it out.
    fn write(&mut self, action: &Action, seen: &Observed, plan: &Plan) {
        let record = self.record.take();
        self.record = match action {
            Action::HoldFinalizer => Some(crate::support::record()),
            Action::RecordClaim(claim) | Action::RecordOutcome(claim) => record.map(|record| {
                self.history.note_recorded(record.claim.as_ref(), claim);
                record.with_claim(claim.clone())
            }),
            Action::RecordProven(proven) => record.map(|record| Record {
                proven: Some(proven.clone()),
                ..record
            }),
            Action::DropClaim(why) => record.map(|record| {
                let retiring = record.claim.as_ref().and_then(|c| c.retiring);
                let removed = plan.waiting == Some(Waiting::RemovedOutside);
                if retiring.map_or(removed, Retirement::is_fault) {
                    self.history.note_replacement(seen.now);
                }
                record.without_claim(*why)
            }),
            _ => {
                self.places.clear(); // who is wanted after this is another Proxy
                None
            }
        };
    }

    /// A call to the hypervisor, as far as the hypervisor is concerned.
    fn effect(&mut self, action: &Action, fault: Option<Fault>) -> Answer {
        if let Some(Fault::Refuse(class)) = fault {
            return Answer::Error(class);
        }
        let (claim, place) = self.claimed().expect("an effect has a claim");
        let attempt = claim.attempt;
        let config = self.desired.spec().map(|spec| spec.config_hash.clone());
        let vacant = !self.cells.contains_key(&place);
        let late = matches!(fault, Some(Fault::LandLate | Fault::DieLate));
        let answer = match (action, config) {
            (Action::Create, Some(config)) => {
                let before = self.places.insert(attempt, place).unwrap_or(place);
                assert_eq!(before, place, "one attempt, two places: {}", self.tale());
                if vacant && late {
                    let at = self.now + LANDS_LATE;
                    self.late.push(Late {
                        place,
                        attempt,
                        config,
                        at,
                    });
                    Answer::Done
                } else {
                    self.create(place, attempt, config)
                }
            }
            (Action::Delete, _) => self.destroy(place),
            (Action::Seal, _) => {
                self.seeds.remove(&place);
                Answer::Done
            }
            (other, _) => panic!("{other:?} for {:?}", self.desired.intent),
        };
        if late || fault == Some(Fault::LoseAnswer) {
            return Answer::Error(ErrorClass::OutcomeUnknown);
        }
        answer
    }

    /// What an answer means for record and history, as the engine has it.
    fn outcome(
        &mut self,
        action: &Action,
        answer: &Answer,
        plan: &Plan,
        seen: &Observed,
        fault: Option<Fault>,
    ) -> Ended {
        let now = self.now;
        let failed = match answer {
            Answer::Error(class) => Some(*class),
            _ => None,
        };
        let mut record = self.record.clone().expect("an effect has a record");
        let claim = record.claim.as_mut().expect("an effect has a claim");
        if *action == Action::Create {
            if makes(seen) {
                self.history
                    .note_created(claim.attempt, Sent::MACHINE, failed, now);
            }
            if failed.is_none() && matches!(plan.waiting, Some(Waiting::Restarting { .. })) {
                self.history.note_restart(now);
            }
        }
        match (action, answer) {
            (Action::Create, Answer::InProgress(step)) => {
                claim.standing = claim.standing.max(Standing::Accepted);
                claim.handles = vec![Handle {
                    step: (*step).into(),
                    id: "1".into(),
                }];
            }
            (Action::Create, Answer::Error(ErrorClass::Conflict)) => {
                claim.retiring = Some(Retirement::SlotTaken);
            }
            (Action::Seal, Answer::Done) => {
                claim.standing = Standing::Sealed;
                claim.handles.clear();
            }
            (Action::Delete, Answer::InProgress(step)) => {
                claim.handles = vec![Handle {
                    step: (*step).into(),
                    id: "2".into(),
                }];
            }
            (Action::Delete, Answer::Done) => claim.handles.clear(),
            _ => {}
        }
        let may_land = !self.history.may_land_for(claim, SETTLE, now).is_zero();
        claim.unsettled |= claim.standing == Standing::Accepted && may_land;
        let changed = self.record.as_ref() != Some(&record);
        let ended = match answer {
            Answer::Error(class) => {
                self.history.note_failure(trouble(*class), &key(), now);
                Ended::Failed
            }
            Answer::InProgress(_) => {
                self.history.note_success();
                Ended::InProgress
            }
            Answer::Done => {
                self.history.note_success();
                Ended::Complete
            }
        };
        if changed && fault == Some(Fault::StoreFails) {
            self.history.note_unsaved();
            return Ended::StoreFailed;
        }
        self.record = Some(record);
        ended
    }

    /// What must hold after every pass.
    fn check(&self) {
        let machines: Vec<_> = self.machines().collect();
        assert!(machines.len() <= 1, "two machines: {}", self.tale());
        let strangers = self
            .cells
            .values()
            .filter(|cell| **cell == Cell::Strangers)
            .count();
        assert_eq!(
            strangers,
            self.strangers,
            "a stranger was touched: {}",
            self.tale()
        );
        if let (Some((_, place)), [(at, _)]) = (self.claimed(), &machines[..]) {
            assert_eq!(
                place,
                *at,
                "the machine is not at its claim: {}",
                self.tale()
            );
        }
        if self.record.is_none() {
            let left = (&machines, &self.seeds, &self.late);
            let nothing = machines.is_empty() && self.seeds.is_empty() && self.late.is_empty();
            assert!(nothing, "forgotten with {left:?} left: {}", self.tale());
        }
    }

    /// Passes without a fault until the goal; answers with their number.
    pub(super) fn settle_down(&mut self) -> usize {
        for passes in 0..PATIENCE {
            if self.at_goal() {
                return passes;
            }
            self.pass(None);
        }
        panic!("never reaches its goal: {}", self.tale());
    }

    pub(super) fn tale(&self) -> String {
        format!(
            "{:#?}\n{:?}\n{:?} seeds {:?}",
            self.told, self.record, self.cells, self.seeds
        )
    }
}
