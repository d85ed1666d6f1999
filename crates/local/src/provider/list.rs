//! `list`: everything on this host that bears a mark of ours; complete, or an error.

use super::{Local, look::Everything};
use egress_core::{Mark, SeedVolume, machine::Sighting};
use egress_provider::{CopiedMark, Leftover, ListedMachine, Listing, Operation, Result};
use std::{collections::BTreeMap, time::Duration};

impl Local {
    pub(super) async fn list_machines(&self) -> Result<Listing> {
        let look = self
            .everything(Operation::List, self.name.as_str(), Duration::ZERO)
            .await?;
        Ok(self.listing(&look))
    }

    fn listing(&self, look: &Everything) -> Listing {
        let mut machines = BTreeMap::new();
        let mut copies = Vec::new();
        // Processes first: what runs tells more than what lies on the disk.
        let processes = look
            .processes
            .iter()
            .map(|process| process.sighting(&self.cluster));
        let directories = look
            .directories
            .iter()
            .map(|label| label.sighting(&self.cluster));
        for seen in processes.chain(directories) {
            let Some(mark) = seen
                .text
                .and_then(Mark::find)
                .filter(|mark| self.is_by_us(mark))
            else {
                continue;
            };
            if is_void(&seen) {
                let copy = CopiedMark {
                    slot: seen.slot.clone(),
                    mark,
                };
                if !copies.contains(&copy) {
                    copies.push(copy);
                }
            } else {
                machines
                    .entry((mark.slot.clone(), mark.uid.clone()))
                    .or_insert(mark);
            }
        }
        let machines = machines.into_values().map(|mark| ListedMachine {
            host: Some(self.host.clone()),
            seed: None,
            created_at: Some(mark.written),
            mark,
        });
        let location = self.directories.root().display().to_string();
        let leftovers = look.traces.iter().map(|trace| Leftover {
            volume: SeedVolume {
                name: trace.name.clone(),
                location: location.clone(),
            },
            machine: trace.machine.clone(),
            created_at: None,
        });
        Listing {
            machines: machines.collect(),
            leftovers: leftovers.collect(),
            copies,
        }
    }

    fn is_by_us(&self, mark: &Mark) -> bool {
        mark.installation == self.identity.installation
            && mark.writer == self.identity.writer
            && mark.provider == self.name
    }
}

fn is_void(seen: &Sighting<'_>) -> bool {
    seen.valid_mark().is_none()
}
