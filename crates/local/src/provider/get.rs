//! `get`: one look, and what it means. Changes nothing.

use super::{
    Local, held,
    look::{OfKey, OurProcess},
    refused,
};
use crate::{
    directory::MachineDirectory,
    place::{Place, PortSight, look_at_port},
    process::Run,
};
use egress_core::{
    Claim, MachineKey, Mark, ProxyId,
    machine::{Addresses, ConfigHash, MachineState, ObservedMachine, StopReason, Whose},
};
use egress_provider::{Operation, Result};
use std::time::Duration;

impl Local {
    pub(super) async fn get_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
    ) -> Result<ObservedMachine> {
        let place = self.place(Operation::Get, claim)?;
        let slot = &claim.slot;
        let failed =
            |step: &'static str| move |error| refused(Operation::Get, slot.as_str(), step, error);
        let directory = self
            .directories
            .open(slot)
            .map_err(failed("cannot open its directory"))?;
        let hinted = self
            .hinted(key, slot, directory.as_ref())
            .map_err(failed("cannot look at its process"))?;
        if let Some(found) = hinted {
            return self.living(place, &found, directory.as_ref());
        }

        let look = self
            .everything(Operation::Get, slot.as_str(), Duration::ZERO)
            .await?;
        let mut seen = self.of_key(key, Some(slot), &look);
        let here = seen.processes.iter().position(|p| p.process.slot == *slot);
        if let Some(index) = here {
            let found = seen.processes.swap_remove(index);
            held(&self.seen_at).insert(slot.clone(), found.process.id);
            return self.living(place, &found, directory.as_ref());
        }
        held(&self.seen_at).remove(slot);
        // What is not at the slot may still be elsewhere.
        if let Some(other) = seen.elsewhere(Some(slot)) {
            return Ok(unknown(format!(
                "the machine at {other} bears this key's mark"
            )));
        }
        if let Some(other) = seen.not_owned.as_ref().filter(|other| *other != slot) {
            return Ok(unknown(format!(
                "the machine at {other} bears this key and is not ours"
            )));
        }
        self.lifeless(key, claim, place, &seen, directory.as_ref())
            .map_err(failed("cannot look at the slot"))
    }

    /// A machine whose process lives.
    fn living(
        &self,
        place: Place,
        found: &OurProcess,
        directory: Option<&MachineDirectory>,
    ) -> Result<ObservedMachine> {
        let id = found.process.id;
        let slot = found.mark.slot.as_str();
        let stopping = match directory {
            Some(directory) => directory
                .stopping()
                .map_err(|error| refused(Operation::Get, slot, "cannot read its state", error))?,
            None => None,
        };
        let draining = self
            .asked_to_end(id, stopping.as_ref())
            // One that does not end is to be deleted again: that kills it.
            .is_some_and(|ago| ago < self.drain_limit());
        let state = if draining {
            MachineState::InProgress {
                step: "draining".to_owned(),
            }
        } else if found.process.run == Run::Paused {
            MachineState::Stopped(StopReason::Paused)
        } else if self
            .listens(place, found, directory)
            .map_err(|error| refused(Operation::Get, slot, "cannot look at its port", error))?
        {
            MachineState::Running(Addresses::Reported {
                addresses: vec![place.reported()],
                port: Some(place.port),
            })
        } else {
            MachineState::Provisioning
        };
        Ok(ObservedMachine {
            uptime: Some(id.uptime()),
            ..self.marked(state, &found.mark)
        })
    }

    /// Whether a process of ours was seen to listen, or its port is taken now.
    pub(super) fn listens(
        &self,
        place: Place,
        found: &OurProcess,
        directory: Option<&MachineDirectory>,
    ) -> std::io::Result<bool> {
        let recorded = match directory {
            Some(directory) => directory.started()?,
            None => None,
        };
        let ready =
            recorded.is_some_and(|s| s.process == found.process.id && s.boot_id == self.boot_id);
        Ok(ready || look_at_port(place.socket())? == PortSight::Taken)
    }

    /// No process of this key lives anywhere, and nothing of it is at another slot.
    fn lifeless(
        &self,
        key: &MachineKey,
        claim: &Claim,
        place: Place,
        seen: &OfKey,
        directory: Option<&MachineDirectory>,
    ) -> std::io::Result<ObservedMachine> {
        let slot = &claim.slot;
        // Read again: what the look saw may have been renamed away since.
        let label = match directory {
            Some(directory) => Some(directory.label()?),
            None => None,
        };
        let whose = label.as_ref().map(|label| {
            (
                self.whose(key, Some(slot), &label.sighting(&self.cluster)),
                label,
            )
        });
        Ok(match (whose, directory) {
            (Some((Whose::Ours(mark), _)), Some(directory)) => {
                let ended = directory.stopping()?.map(|stopping| stopping.process);
                let reason = match directory.started()? {
                    // Nobody stopped it: we ended it, to start it again or to delete it.
                    Some(started) if ended == Some(started.process) => StopReason::HalfMade,
                    Some(_) => StopReason::PoweredOff,
                    None => StopReason::HalfMade,
                };
                self.marked(MachineState::Stopped(reason), &mark)
            }
            (Some((Whose::NotOwned, label)), directory) => {
                let started = match directory {
                    Some(directory) => directory.started()?.map(|started| started.mark),
                    None => None,
                };
                let last = [started.as_deref(), label.text.as_deref()];
                let restore = self.restored_mark(key, claim, &last).to_string();
                ObservedMachine::only(MachineState::NotOwned { restore })
            }
            (Some((Whose::Foreign { .. }, label)), Some(directory)) => {
                if label.text.is_none() && directory.is_locked()? {
                    unknown("its directory has no mark yet, and someone holds its lock".to_owned())
                } else {
                    ObservedMachine::only(MachineState::Foreign)
                }
            }
            _ if seen.not_owned.is_some() => {
                let restore = self.restored_mark(key, claim, &[]).to_string();
                ObservedMachine::only(MachineState::NotOwned { restore })
            }
            _ if seen.stranger_at_slot || look_at_port(place.socket())? == PortSight::Taken => {
                ObservedMachine::only(MachineState::Foreign)
            }
            _ => ObservedMachine::only(MachineState::Absent),
        })
    }

    fn marked(&self, state: MachineState, mark: &Mark) -> ObservedMachine {
        ObservedMachine {
            host: Some(self.host.clone()),
            created_at: Some(mark.written),
            config_hash: Some(mark.config.clone()),
            attempt: Some(mark.attempt),
            ..ObservedMachine::only(state)
        }
    }

    /// The mark that would make a machine of our name ours again, from what it still bears.
    fn restored_mark(&self, key: &MachineKey, claim: &Claim, last: &[Option<&str>]) -> Mark {
        let last = last.iter().flatten().find_map(|text| Mark::find(text));
        let last = last.filter(|mark| mark.uid == *key.uid());
        let (proxy, config, written) = match last {
            Some(mark) => (mark.proxy, mark.config, mark.written),
            None => (
                ProxyId::unknown(key),
                ConfigHash::of(b""),
                jiff::Timestamp::UNIX_EPOCH,
            ),
        };
        self.mark_of(key, claim, proxy, config, written)
    }
}

fn unknown(why: String) -> ObservedMachine {
    ObservedMachine::only(MachineState::Unknown { why })
}
