//! `list`: everything of ours, or an error.

use super::{
    Kvm2,
    names::{self, OwnVolume, VolumeKind, own_volume, volume_name},
};
use egress_core::{ErrorClass, MachineKey, Mark, SeedVolume, machine::Sighting};
use egress_provider::{
    CopiedMark, Leftover, ListedMachine, Listing, Operation, RecordedSlot, Result,
};
use std::collections::BTreeSet;

impl Kvm2 {
    /// Recorded slots need no look of their own: every domain of every host is looked at.
    pub(super) async fn list_machines(&self, _recorded: &[RecordedSlot]) -> Result<Listing> {
        let call = self.call(Operation::List, self.name.as_str());
        let scan = call.scan().await?;
        if !scan.silent.is_empty() {
            return Err(call.error(ErrorClass::Transient, self.told_silent(&scan.silent)));
        }
        let prefix = self.volume_prefix();
        let pool = &self.config.pool;
        // By host: pools of one name may hold different volumes.
        let mut volumes: Vec<BTreeSet<String>> = Vec::new();
        for host in &self.hosts {
            let session = call.kept(host).await?;
            let found = call.pool(&session, pool).await?;
            let known = session.volumes(&found).await.map_err(|f| call.failed(f))?;
            volumes.push(known.into_iter().map(|volume| volume.name).collect());
        }
        let mut listing = Listing::default();
        let mut used = BTreeSet::new();
        for seen in &scan.seen {
            let Some(text) = seen.text.as_deref() else {
                continue;
            };
            let host = &self.hosts[seen.host];
            let slot = names::slot_of(seen.domain.uuid);
            let cluster = self.cluster_for(host, Some(text));
            let sighting = Sighting {
                slot: &slot,
                cluster: &cluster,
                name: Some(&seen.domain.name),
                text: Some(text),
                template: false,
            };
            let found = Mark::find(text).filter(|mark| {
                mark.installation == self.identity.installation
                    && mark.writer == self.identity.writer
                    && mark.provider == self.name
            });
            let Some(found) = found else { continue };
            let Some(mark) = sighting.valid_mark() else {
                listing.copies.push(CopiedMark { slot, mark: found });
                continue;
            };
            let key = MachineKey::new(mark.uid.clone());
            let name = |kind| volume_name(&prefix, key.name(), mark.attempt, kind);
            for kind in [VolumeKind::Disk, VolumeKind::Seed] {
                // On whichever host they are: pools of one name may be one and the same storage,
                // and what a machine left where it was moved from goes with it.
                used.insert(name(kind));
            }
            let seed =
                Some(name(VolumeKind::Seed)).filter(|seed| volumes[seen.host].contains(seed));
            // Seen on two hosts while it moves: it is one.
            if listing
                .machines
                .iter()
                .any(|m: &ListedMachine| m.mark == mark)
            {
                continue;
            }
            listing.machines.push(ListedMachine {
                host: host.id().map(|id| id.name.clone()),
                seed: seed.map(|name| SeedVolume {
                    name,
                    location: pool.clone(),
                }),
                created_at: Some(mark.written),
                mark,
            });
        }
        let mut left = BTreeSet::new();
        for names in &volumes {
            for name in names {
                let Some(OwnVolume { machine, .. }) = own_volume(name, &prefix) else {
                    continue;
                };
                if !used.contains(name) && left.insert(name) {
                    listing.leftovers.push(Leftover {
                        volume: SeedVolume {
                            name: name.clone(),
                            location: pool.clone(),
                        },
                        machine: machine.to_owned(),
                        created_at: None,
                    });
                }
            }
        }
        Ok(listing)
    }
}
