//! `seal`: takes the seed out of the machine and deletes it.

use super::{
    Memory,
    create::{not_owned, wait_for},
    order::Order,
};
use crate::{Operation, Permit, Progress, Result};
use egress_core::machine::Whose;
use egress_core::{Claim, ErrorClass, MachineKey};
use std::sync::Arc;

impl Memory {
    pub(super) async fn seal_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
        permit: &Permit,
    ) -> Result<Progress> {
        let (call, slot) = self.call_at(Operation::Seal, claim)?;
        let mut seed: Arc<str> = self.seed_of(key, claim);
        let look = call.look(slot, &seed, &[]).await?;
        if let Some(host) = &look.blind {
            return Err(call.error(ErrorClass::Transient, format!("{host} does not answer")));
        }
        let Some(machine) = &look.machine else {
            return Err(call.error(ErrorClass::Busy, "no machine at the slot: look again"));
        };
        match self.whose(key, &claim.cluster, Some(&claim.slot), &claim.slot, machine) {
            Whose::Ours(_) => {}
            _ if machine.lock.is_some() => {}
            Whose::Foreign { .. } => {
                return Err(call.error(
                    ErrorClass::Conflict,
                    "the slot holds someone else's machine",
                ));
            }
            Whose::NotOwned => {
                let trouble = not_owned();
                return Err(call.error(trouble.class, trouble.said));
            }
        }
        if machine.configured.is_none() && machine.lock.is_none() {
            return Err(call.error(ErrorClass::Busy, "the machine still needs its seed"));
        }
        let ask = || permit.ask(call.operation, call.target);
        if let Some(attached) = &machine.seed {
            if let Some(lock) = &machine.lock {
                let step = wait_for(lock, look.at, self.settings.stale_lock)
                    .map_err(|trouble| call.error(trouble.class, trouble.said))?;
                return Ok(self.in_progress(step, look.tasks));
            }
            seed = attached.clone();
            call.send(slot, Order::Detach, ask).await?;
        } else if !look.seed {
            return Ok(Progress::Done);
        }
        call.send(slot, Order::DeleteSeed { seed }, ask).await?;
        Ok(Progress::Done)
    }
}
