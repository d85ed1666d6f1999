//! `delete`: look, decide, act. Stops, destroys, deletes the seed, and proves it.

use super::{
    Memory,
    call::Elsewhere,
    create::{not_owned, wait_for},
    machine::Power,
    order::{Order, Trouble},
    slot_at,
    state::Look,
};
use crate::{Operation, Permit, Progress, Proof, Result};
use egress_core::machine::{Mark, Whose};
use egress_core::{Claim, ErrorClass, MachineKey, Slot};

/// What `delete` does next at one slot.
#[derive(Debug)]
enum Next {
    /// Nothing of this key is at the slot.
    Gone,
    /// For this step to end.
    Wait(String),
    Stop(Box<Mark>),
    Destroy(Box<Mark>),
}

impl Memory {
    pub(super) async fn delete_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
        permit: &Permit,
    ) -> Result<Progress> {
        let (call, claimed) = self.call_at(Operation::Delete, claim)?;
        let seed = self.seed_of(key, claim);
        let mut number = claimed;
        let mut look = call.look(claimed, &seed, &claim.handles).await?;
        call.tell_failures(&look)?;
        if call.read(|state, _| state.faults.no_quorum).await? {
            return Err(call.error(ErrorClass::Transient, Trouble::no_quorum().said));
        }
        let seed_stored = look.seed;
        let mut next = self
            .next_for_delete(key, claim, &claim.slot, &look)
            .map_err(|trouble| call.error(trouble.class, trouble.said))?;
        if matches!(next, Next::Gone) {
            match call.elsewhere(key, claimed, &seed).await? {
                Elsewhere::Nowhere => {}
                Elsewhere::Ours(other, seen, _) => {
                    number = other;
                    look = *seen;
                    next = self
                        .next_for_delete(key, claim, &slot_at(other), &look)
                        .map_err(|trouble| call.error(trouble.class, trouble.said))?;
                }
                Elsewhere::Undecided(class, said) => return Err(call.error(class, said)),
            }
        }
        let (order, mark) = match next {
            Next::Gone if !seed_stored => return Ok(Progress::Done),
            Next::Gone => {
                let ask = || permit.ask(call.operation, call.target);
                call.send(claimed, Order::DeleteSeed { seed }, ask).await?;
                return Ok(Progress::Done);
            }
            Next::Wait(step) => return Ok(self.in_progress(step, look.tasks)),
            Next::Stop(mark) => (Order::Stop, mark),
            Next::Destroy(mark) => (Order::Destroy, mark),
        };
        let step = order.kind().as_str();
        let proof = Proof::new(&mark, look.at);
        let ask = || {
            permit.ask(call.operation, call.target)?;
            proof.spend(call.operation, &mark.slot).map(drop)
        };
        let begun = call.send(number, order, ask).await?;
        Ok(self.in_progress(step, begun.into_iter().collect()))
    }

    fn next_for_delete(
        &self,
        key: &MachineKey,
        claim: &Claim,
        slot: &Slot,
        look: &Look,
    ) -> Result<Next, Trouble> {
        if let Some(host) = &look.blind {
            return Err(Trouble::new(
                ErrorClass::Transient,
                format!("{host} does not answer"),
            ));
        }
        if let Some(lock) = look
            .machine
            .as_ref()
            .and_then(|machine| machine.lock.as_ref())
        {
            return wait_for(lock, look.at, self.settings.stale_lock).map(Next::Wait);
        }
        // A seed that is still on its way would be left behind.
        if let Some(task) = look.tasks.first() {
            return Ok(Next::Wait(task.step.clone()));
        }
        let Some(machine) = &look.machine else {
            return Ok(Next::Gone);
        };
        let mark = match self.whose(key, &claim.cluster, Some(&claim.slot), slot, machine) {
            Whose::Ours(mark) => mark,
            Whose::Foreign { .. } => return Ok(Next::Gone),
            Whose::NotOwned => return Err(not_owned()),
        };
        if machine.protected {
            return Err(Trouble::protected());
        }
        Ok(match machine.power {
            Power::Running | Power::Paused | Power::IoError => Next::Stop(mark),
            Power::Stopped | Power::Crashed | Power::Hibernated => Next::Destroy(mark),
        })
    }
}
