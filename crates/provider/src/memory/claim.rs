//! `claim`: proposes a place, and changes nothing.

use super::{Memory, call::Elsewhere, slot_at, volume};
use crate::{Operation, Result};
use egress_core::machine::{WantedMachine, Whose};
use egress_core::{Claim, ErrorClass, MachineKey, Mark, Slot, Standing};
use std::collections::HashSet;

impl Memory {
    pub(super) async fn claim_slot(
        &self,
        key: &MachineKey,
        _wanted: &WantedMachine,
        attempt: u32,
        taken: &[Slot],
    ) -> Result<Claim> {
        let call = self.call(Operation::Claim, key.name());
        // No slot has the number `u32::MAX`: search everywhere.
        match call.elsewhere(key, u32::MAX, "").await? {
            Elsewhere::Ours(.., mark) => return Ok(self.claim_of(key, &mark)),
            Elsewhere::Undecided(class, said) => return Err(call.error(class, said)),
            Elsewhere::Nowhere => {}
        }
        let taken: HashSet<&Slot> = taken.iter().collect();
        let seen = call.read(|state, _| {
            for number in self.candidates(key) {
                match state.machines.get(&number) {
                    // The search lags behind: the key's own machine may stand on its way.
                    Some(machine) if !machine.hidden() => {
                        let slot = slot_at(number);
                        match self.whose(key, &self.cluster, None, &slot, machine) {
                            Whose::Ours(mark) => return Some(Err(mark)),
                            Whose::Foreign { .. } | Whose::NotOwned => {}
                        }
                    }
                    Some(_) => {}
                    None if state.faults.full || state.freed.contains_key(&number) => {}
                    None => {
                        let slot = slot_at(number);
                        if !taken.contains(&slot) {
                            return Some(Ok(slot));
                        }
                    }
                }
            }
            None
        });
        match seen.await? {
            Some(Ok(slot)) => Ok(self.claim_at(key, slot, attempt, Standing::Unsent)),
            Some(Err(mark)) => Ok(self.claim_of(key, &mark)),
            None => Err(call.error(
                ErrorClass::Capacity,
                format!(
                    "no free slot in {}-{}",
                    self.settings.range.start(),
                    self.settings.range.end()
                ),
            )),
        }
    }

    /// Every slot of the range, the key's first choice first.
    fn candidates(&self, key: &MachineKey) -> impl Iterator<Item = u32> + use<> {
        let (first, last) = (*self.settings.range.start(), *self.settings.range.end());
        let count = if first > last {
            0
        } else {
            u64::from(last - first) + 1
        };
        let choice = key.spread(count);
        (0..count).map(move |step| first + ((choice + step) % count) as u32)
    }

    fn claim_of(&self, key: &MachineKey, mark: &Mark) -> Claim {
        self.claim_at(key, mark.slot.clone(), mark.attempt, Standing::Seen)
    }

    fn claim_at(&self, key: &MachineKey, slot: Slot, attempt: u32, standing: Standing) -> Claim {
        let bits = key.spread(u64::MAX);
        Claim {
            provider: self.name.clone(),
            cluster: self.cluster.clone(),
            slot,
            host: None,
            attempt,
            standing,
            handles: Vec::new(),
            // Locally administered, and another one for each attempt.
            mac: Some(format!(
                "02:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}",
                bits as u8,
                (bits >> 8) as u8,
                (bits >> 16) as u8,
                (bits >> 24) as u8,
                attempt as u8
            )),
            seed: Some(volume(&self.seed_name(key, attempt))),
            unsettled: false,
            retiring: None,
        }
    }
}
