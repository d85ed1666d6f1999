//! `list`: everything of ours, or an error.

use super::{Memory, machine::Machine, slot_at, volume};
use crate::{CopiedMark, Leftover, ListedMachine, Listing, Operation, RecordedSlot, Result};
use egress_core::machine::Sighting;
use egress_core::{ErrorClass, Host, MachineKey, Mark};
use std::{collections::BTreeMap, sync::Arc};
use tokio::time::Instant;

/// What one listing of the hypervisor shows.
struct Seen {
    machines: BTreeMap<u32, Machine>,
    seeds: BTreeMap<Arc<str>, Instant>,
}

impl Memory {
    pub(super) async fn list_machines(&self, recorded: &[RecordedSlot]) -> Result<Listing> {
        let call = self.call(Operation::List, self.name.as_str());
        let prefix = self.seed_prefix();
        let seen = call
            .read(|state, _| {
                if state.faults.partial || !state.faults.hosts_down.is_empty() {
                    return None;
                }
                // By range and by recorded slot too, since the search by mark lags.
                let in_range = state
                    .machines
                    .iter()
                    .filter(|(slot, _)| self.settings.range.contains(slot))
                    .map(|(slot, machine)| (*slot, machine.clone()));
                let recorded = recorded
                    .iter()
                    .filter_map(|known| known.slot.as_str().parse().ok());
                let beyond = recorded
                    .chain(state.marked())
                    .filter(|slot| !self.settings.range.contains(slot))
                    .filter_map(|slot| state.machines.get(&slot).map(|m| (slot, m.clone())));
                let seeds = state
                    .seeds
                    .range::<str, _>((
                        std::ops::Bound::Included(prefix.as_str()),
                        std::ops::Bound::Unbounded,
                    ))
                    .take_while(|(name, _)| name.starts_with(&prefix))
                    .map(|(name, stored)| (name.clone(), *stored));
                Some(Seen {
                    machines: in_range.chain(beyond).collect(),
                    seeds: seeds.collect(),
                })
            })
            .await?;
        match seen {
            Some(seen) => Ok(self.sort_out(seen, &prefix)),
            None => Err(call.error(
                ErrorClass::Transient,
                "a part of the cluster does not answer",
            )),
        }
    }

    fn sort_out(&self, mut seen: Seen, prefix: &str) -> Listing {
        let mut listing = Listing::default();
        for (number, machine) in &seen.machines {
            let Some(text) = machine.text.as_deref().filter(|_| !machine.hidden()) else {
                continue;
            };
            let slot = slot_at(*number);
            let sighting = Sighting {
                slot: &slot,
                cluster: &self.cluster,
                name: machine.name.as_deref(),
                text: Some(text),
                template: machine.template,
            };
            let Some(found) = Mark::find(text).filter(|mark| {
                mark.installation == self.identity.installation && mark.provider == self.name
            }) else {
                continue;
            };
            let Some(mark) = sighting.valid_mark() else {
                listing.copies.push(CopiedMark { slot, mark: found });
                continue;
            };
            let named = self.seed_name(&MachineKey::new(mark.uid.clone()), mark.attempt);
            let stored = seen.seeds.remove(named.as_str()).map(|_| named);
            if let Some(attached) = &machine.seed {
                seen.seeds.remove(attached);
            }
            listing.machines.push(ListedMachine {
                mark,
                host: Some(Host::new(self.world.host(machine.host))),
                seed: machine.seed.as_deref().or(stored.as_deref()).map(volume),
                created_at: Some(self.world.timestamp(machine.created)),
            });
        }
        listing.leftovers = seen
            .seeds
            .into_iter()
            .map(|(name, stored)| Leftover {
                volume: volume(&name),
                machine: name[prefix.len()..]
                    .split('.')
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
                created_at: Some(self.world.timestamp(stored)),
            })
            .collect();
        listing
    }
}
