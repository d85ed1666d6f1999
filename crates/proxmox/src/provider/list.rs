//! `list`: everything of ours, or an error; never a part (L1).

use super::{Proxmox, check::sees_template, names, shared::Snapshot};
use crate::client::NodeName;
use egress_core::{ErrorClass, Host, MachineKey, SeedVolume, machine::Sighting};
use egress_provider::{
    CopiedMark, Leftover, ListedMachine, Listing, Operation, RecordedSlot, Result,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Seeds by volume: where each lies and when it was made.
type Seeds = BTreeMap<String, (NodeName, Option<jiff::Timestamp>)>;

impl Proxmox {
    pub(super) async fn list_machines(&self, recorded: &[RecordedSlot]) -> Result<Listing> {
        let call = self.call(Operation::List, self.name.as_str());
        let snapshot = call.snapshot(Duration::ZERO).await?;
        call.has_quorum(&snapshot)?;
        if !sees_template(&self.config, &snapshot) {
            // A token without VM.Audit is shown an empty list and no error (§5.2).
            let said = "not even the template is on the list: the token lacks VM.Audit, or the template is gone";
            return Err(call.error(ErrorClass::Unauthorized, said));
        }
        let recorded: BTreeSet<_> = recorded
            .iter()
            .filter_map(|known| names::vmid_of(&known.slot))
            .collect();
        let sightings = call.candidates(&snapshot, &recorded).await?;
        let mut seeds = self.seeds(&call, &snapshot).await?;

        let mut listing = Listing::default();
        let mut used = BTreeSet::new();
        for (vmid, sighted) in &sightings {
            used.extend(sighted.volumes.iter().cloned());
            let Some(found) = sighted.mark() else {
                continue;
            };
            let slot = names::slot_of(*vmid);
            let seen = Sighting {
                slot: &slot,
                cluster: &snapshot.cluster,
                name: sighted.name.as_deref(),
                text: sighted.text.as_deref(),
                template: sighted.template,
            };
            let valid = seen.valid_mark();
            let by_us = found.installation == self.identity.installation
                && found.writer == self.identity.writer;
            if by_us && valid.is_some() {
                // Also another provider block's: its seed is no leftover of this one.
                let key = MachineKey::new(found.uid.clone());
                used.extend(self.seed_names(&key, &[found.attempt]));
            }
            if !by_us || found.provider != self.name {
                continue;
            }
            let Some(mark) = valid else {
                listing.copies.push(CopiedMark { slot, mark: found });
                continue;
            };
            let key = MachineKey::new(mark.uid.clone());
            let named = &self.seed_names(&key, &[mark.attempt])[0];
            let seed = seeds.get(named).map(|(node, _)| SeedVolume {
                name: named.clone(),
                location: node.to_string(),
            });
            let node = snapshot
                .guests
                .get(vmid)
                .map(|guest| Host::new(guest.node.as_str()));
            listing.machines.push(ListedMachine {
                created_at: Some(mark.written),
                mark,
                host: node,
                seed,
            });
        }
        seeds.retain(|volume, _| !used.contains(volume));
        let prefix = names::seed_prefix(&self.identity.installation);
        listing.leftovers = seeds
            .into_iter()
            .filter_map(|(volume, (node, created_at))| {
                let machine = names::machine_of_seed(&volume, &prefix)?.to_owned();
                let volume = SeedVolume {
                    name: volume,
                    location: node.to_string(),
                };
                Some(Leftover {
                    volume,
                    machine,
                    created_at,
                })
            })
            .collect();
        Ok(listing)
    }

    /// Every seed of this installation, on every node that has the seed storage and answers:
    /// what lies on one that is off waits for it, and holds nobody up.
    async fn seeds(&self, call: &super::call::Call<'_>, snapshot: &Snapshot) -> Result<Seeds> {
        let storage = &self.config.iso_storage;
        let shared = snapshot.shared_storages.contains(storage);
        let most = if shared { 1 } else { usize::MAX };
        let nodes: Vec<_> = snapshot.online_with(storage).take(most).cloned().collect();
        let prefix = names::seed_prefix(&self.identity.installation);
        let mut seeds = Seeds::new();
        for node in nodes {
            let volumes = call
                .reads()
                .storage_content(&node, storage, Some("iso"), None)
                .await
                .map_err(|failure| call.failed(failure))?;
            for volume in volumes {
                if names::machine_of_seed(&volume.volid, &prefix).is_some() {
                    let created = volume
                        .ctime
                        .and_then(|at| i64::try_from(at).ok())
                        .and_then(|at| jiff::Timestamp::from_second(at).ok());
                    seeds.insert(volume.volid, (node.clone(), created));
                }
            }
        }
        Ok(seeds)
    }
}
