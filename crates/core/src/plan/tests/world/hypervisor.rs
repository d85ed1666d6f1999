//! The hypervisor of the model, and the people who have a hand in it.

use super::{
    Answer, BOOT_TIME, CLONE_TIME, Cell, DESTROY_TIME, Fault, Late, Machine, Place, READ_LAG,
    Stage, World,
};
use crate::{
    machine::{ConfigHash, ErrorClass, MachineState, ObservedMachine, StopReason},
    support::reporting,
};
use std::collections::btree_map::Entry;

impl World {
    /// Lets the world go on by itself up to now.
    pub(super) fn advance(&mut self) {
        let now = self.now;
        self.cells.retain(|_, cell| match cell {
            Cell::Ours(m) => m.stage != Stage::Destroying || now < m.until,
            Cell::Strangers => true,
        });
        if let Some(machine) = self.ours().filter(|m| now >= m.until) {
            match machine.stage {
                Stage::Cloning => machine.stage = Stage::HalfMade,
                Stage::Booting if !machine.mute => machine.stage = Stage::Up,
                _ => {}
            }
        }
        let (landing, late) = self.late.drain(..).partition(|late| late.at <= now);
        self.late = late;
        for Late {
            place,
            attempt,
            config,
            ..
        } in landing
        {
            self.begin_clone(place, attempt, config);
        }
    }

    /// A creating request arrives. Where something is already, it fails.
    pub(super) fn begin_clone(&mut self, place: Place, attempt: u32, config: ConfigHash) {
        let (made, until) = (self.now, self.now + CLONE_TIME);
        if let Entry::Vacant(cell) = self.cells.entry(place) {
            let stage = Stage::Cloning;
            cell.insert(Cell::Ours(Machine {
                attempt,
                config,
                stage,
                until,
                made,
                mute: false,
            }));
            self.seeds.insert(place);
        }
    }

    /// What people and chance do right before a pass.
    pub(super) fn meddle(&mut self, fault: Fault) {
        let place = self.machines().next().map(|(place, _)| place);
        match fault {
            Fault::Remove => {
                if let Some(place) = place {
                    self.cells.remove(&place);
                }
            }
            Fault::Supplant => {
                if let Some(place) = place {
                    self.cells.insert(place, Cell::Strangers);
                    self.strangers += 1;
                }
            }
            Fault::Occupy => {
                let place = self
                    .claimed()
                    .map_or_else(|| self.free_place(), |(_, place)| place);
                if let Entry::Vacant(cell) = self.cells.entry(place) {
                    cell.insert(Cell::Strangers);
                    self.strangers += 1;
                }
            }
            Fault::PowerOff | Fault::Crash => {
                if let Some(machine) = self.ours()
                    && matches!(machine.stage, Stage::Booting | Stage::Up)
                {
                    let off = fault == Fault::PowerOff;
                    let reason = if off {
                        StopReason::PoweredOff
                    } else {
                        StopReason::Crashed
                    };
                    machine.stage = Stage::Off(reason);
                }
            }
            Fault::TaskFails => {
                if let Some(place) = place
                    && self.ours().is_some_and(|m| m.stage == Stage::Cloning)
                {
                    self.cells.remove(&place);
                }
            }
            Fault::Mute => {
                if let Some(machine) = self.ours() {
                    machine.mute = true;
                }
            }
            Fault::Change if self.desired.spec().is_some() => self.want(7),
            Fault::Delete => self.delete(),
            _ => {}
        }
    }

    pub(super) fn get(&self, place: Place, fault: Option<Fault>) -> ObservedMachine {
        let elsewhere = self.machines().any(|(at, _)| at != place);
        let state = match self.cells.get(&place) {
            _ if fault == Some(Fault::Undecided) => MachineState::Unknown {
                why: "the node does not answer".into(),
            },
            None | Some(Cell::Strangers) if elsewhere => MachineState::Unknown {
                why: "another place bears the mark".into(),
            },
            None => MachineState::Absent,
            Some(Cell::Strangers) => MachineState::Foreign,
            Some(Cell::Ours(machine)) => {
                let just_made = self.now < machine.made + READ_LAG;
                if fault == Some(Fault::Lag) && just_made && machine.stage == Stage::Cloning {
                    return ObservedMachine::only(MachineState::Absent);
                }
                let state = match machine.stage {
                    Stage::Cloning => MachineState::InProgress {
                        step: "clone".into(),
                    },
                    Stage::Destroying => MachineState::InProgress {
                        step: "destroy".into(),
                    },
                    Stage::HalfMade => MachineState::Stopped(StopReason::HalfMade),
                    Stage::Booting => MachineState::Provisioning,
                    Stage::Up => reporting(),
                    Stage::Off(reason) => MachineState::Stopped(reason),
                };
                let config_hash = Some(machine.config.clone());
                return ObservedMachine {
                    config_hash,
                    attempt: Some(machine.attempt),
                    ..ObservedMachine::only(state)
                };
            }
        };
        ObservedMachine::only(state)
    }

    pub(super) fn create(&mut self, place: Place, attempt: u32, config: ConfigHash) -> Answer {
        let now = self.now;
        match self.cells.get_mut(&place) {
            None => {
                self.begin_clone(place, attempt, config);
                Answer::InProgress("clone")
            }
            Some(Cell::Strangers) => Answer::Error(ErrorClass::Conflict),
            Some(Cell::Ours(machine)) => match machine.stage {
                Stage::Cloning => Answer::InProgress("clone"),
                Stage::Destroying => Answer::Error(ErrorClass::Busy),
                Stage::HalfMade | Stage::Off(_) => {
                    machine.stage = Stage::Booting;
                    machine.until = now + BOOT_TIME;
                    Answer::Done
                }
                Stage::Booting | Stage::Up => Answer::Done,
            },
        }
    }

    pub(super) fn destroy(&mut self, place: Place) -> Answer {
        let until = self.now + DESTROY_TIME;
        match self.cells.get_mut(&place) {
            None | Some(Cell::Strangers) => {
                self.seeds.remove(&place);
                Answer::Done
            }
            Some(Cell::Ours(machine)) => match machine.stage {
                Stage::Cloning => Answer::InProgress("clone"),
                Stage::Destroying => Answer::InProgress("destroy"),
                _ => {
                    (machine.stage, machine.until) = (Stage::Destroying, until);
                    Answer::InProgress("destroy")
                }
            },
        }
    }
}
