//! What machines bear whose state directory was lost.

use super::{Proxmox, call::Call, names, shared::Sighted};
use egress_core::{Mark, machine::Sighting};
use egress_provider::{Operation, Result};
use std::{collections::BTreeSet, time::Duration};

impl Proxmox {
    /// The valid marks of this installation and provider, whichever state directory wrote them.
    /// Complete, or an error. Changes nothing.
    pub async fn marks(&self) -> Result<Vec<Mark>> {
        let call: Call<'_> = self.call(Operation::List, "marks");
        let snapshot = call.snapshot(Duration::ZERO).await?;
        let candidates = call.candidates(&snapshot, &BTreeSet::new()).await?;
        let valid = |(vmid, sighted): (_, std::sync::Arc<Sighted>)| {
            let slot = names::slot_of(vmid);
            Sighting {
                slot: &slot,
                cluster: &snapshot.cluster,
                name: sighted.name.as_deref(),
                text: sighted.text.as_deref(),
                template: sighted.template,
            }
            .valid_mark()
        };
        let mut marks: Vec<Mark> = candidates.into_iter().filter_map(valid).collect();
        marks.retain(|mark| {
            mark.installation == self.identity.installation && mark.provider == self.name
        });
        Ok(marks)
    }
}
