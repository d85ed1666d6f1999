//! One call of the contract on its way: its deadline, its reads and its mutating requests.

use super::{
    Memory,
    machine::Machine,
    order::{Order, Trouble},
    slot_at,
    state::{Look, State},
    world::Sender,
};
use crate::{Error, Operation, Result};
use egress_core::machine::{Sighting, Whose, whose};
use egress_core::{Claim, ClusterId, ErrorClass, Handle, MachineKey, Mark, Slot};
use tokio::time::Instant;

/// One call. Its target is what its errors name.
pub(super) struct Call<'a> {
    pub memory: &'a Memory,
    pub operation: Operation,
    pub target: &'a str,
    cluster: &'a ClusterId,
    deadline: Instant,
}

/// What the search for a key's mark found away from the claimed slot.
pub(super) enum Elsewhere {
    /// Nothing that could be this key's.
    Nowhere,
    /// A machine that bears the key's valid mark.
    Ours(u32, Box<Look>, Box<Mark>),
    /// A machine that is neither ours nor foreign, for this reason.
    Undecided(ErrorClass, String),
}

impl Memory {
    /// A call that is about no claim.
    pub(super) fn call<'a>(&'a self, operation: Operation, target: &'a str) -> Call<'a> {
        let deadline = Instant::now() + self.settings.deadline;
        Call {
            memory: self,
            operation,
            target,
            cluster: &self.cluster,
            deadline,
        }
    }

    /// A call about a claim, and the number of its slot.
    pub(super) fn call_at<'a>(
        &'a self,
        operation: Operation,
        claim: &'a Claim,
    ) -> Result<(Call<'a>, u32)> {
        let mut call = self.call(operation, claim.slot.as_str());
        call.cluster = &claim.cluster;
        match claim.slot.as_str().parse() {
            Ok(slot) => Ok((call, slot)),
            Err(_) => Err(call.error(ErrorClass::Permanent, "not a slot of this provider")),
        }
    }

    /// Whose a machine at a slot is, for one key.
    pub(super) fn whose(
        &self,
        key: &MachineKey,
        cluster: &ClusterId,
        recorded: Option<&Slot>,
        slot: &Slot,
        machine: &Machine,
    ) -> Whose {
        let seen = Sighting {
            slot,
            cluster,
            name: machine.name.as_deref(),
            text: machine.text.as_deref(),
            template: machine.template,
        };
        whose(key, &self.identity, &self.name, recorded, &seen)
    }
}

impl Call<'_> {
    /// An error of this call.
    pub fn error(&self, class: ErrorClass, said: impl Into<String>) -> Error {
        Error::new(class, self.operation, self.target, said)
    }

    fn trouble(&self, trouble: Trouble) -> Error {
        self.error(trouble.class, trouble.said)
    }

    /// A read of the cluster that the call is about; any other one is an error.
    pub async fn read<R>(&self, look: impl FnOnce(&mut State, Instant) -> R) -> Result<R> {
        let answer = self
            .memory
            .world
            .read(self.deadline, |state, now| {
                if state.cluster != *self.cluster {
                    let said = format!("cluster {} answers, not {}", state.cluster, self.cluster);
                    return Err(Trouble::new(ErrorClass::NeedsOperator, said));
                }
                Ok(look(state, now))
            })
            .await;
        answer.flatten().map_err(|trouble| self.trouble(trouble))
    }

    /// A look at a slot, for the seed and the tasks of a claim.
    pub async fn look(&self, slot: u32, seed: &str, handles: &[Handle]) -> Result<Look> {
        self.read(|state, now| state.look(slot, seed, handles, now))
            .await
    }

    /// Looks at every machine that the search for the key's mark shows, but for one slot.
    pub async fn elsewhere(&self, key: &MachineKey, but: u32, seed: &str) -> Result<Elsewhere> {
        let found = self
            .read(|state, now| {
                let slots = state.find(key.uid());
                slots
                    .into_iter()
                    .filter(|slot| *slot != but)
                    .map(|slot| (slot, state.look(slot, seed, &[], now)))
                    .collect::<Vec<_>>()
            })
            .await?;
        let mut undecided = None;
        for (number, look) in found {
            let Some(machine) = &look.machine else {
                continue;
            };
            if machine.hidden() {
                let said = format!("the machine at {number} is locked, and its mark hidden");
                undecided = Some((ErrorClass::Busy, said));
                continue;
            }
            match self
                .memory
                .whose(key, self.cluster, None, &slot_at(number), machine)
            {
                Whose::Ours(mark) => return Ok(Elsewhere::Ours(number, Box::new(look), mark)),
                Whose::Foreign { .. } => {}
                Whose::NotOwned => {
                    let said = format!("the machine at {number} bears this key and is not ours");
                    undecided = Some((ErrorClass::NotOwned, said));
                }
            }
        }
        Ok(undecided.map_or(Elsewhere::Nowhere, |(class, said)| {
            Elsewhere::Undecided(class, said)
        }))
    }

    /// Sends one mutating request; `ask` is asked right before.
    pub async fn send(
        &self,
        slot: u32,
        order: Order,
        ask: impl FnOnce() -> Result<()>,
    ) -> Result<Option<Handle>> {
        let sender = Sender {
            client: self.memory.client,
            provider: &self.memory.name,
            deadline: self.deadline,
        };
        let answer = self.memory.world.request(sender, slot, order, ask).await?;
        answer.map_err(|trouble| self.trouble(trouble))
    }

    /// The error of a failed task among the claim's handles, once in this process's life.
    pub fn tell_failures(&self, look: &Look) -> Result<()> {
        let Some(failure) = self.memory.untold(&look.failures) else {
            return Ok(());
        };
        let kind = failure.kind;
        Err(if failure.unexpected {
            self.error(
                ErrorClass::OutcomeUnknown,
                format!("{kind} ended: unexpected status"),
            )
        } else {
            self.error(ErrorClass::Transient, format!("{kind} ended in an error"))
        })
    }
}
