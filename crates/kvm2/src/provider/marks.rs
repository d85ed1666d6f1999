//! What machines bear whose state directory was lost.

use super::{Kvm2, names};
use egress_core::{ErrorClass, Mark, machine::Sighting};
use egress_provider::{Operation, Result};

impl Kvm2 {
    /// The valid marks of this installation and provider, whichever state directory wrote them.
    /// Complete, or an error. Changes nothing.
    pub async fn marks(&self) -> Result<Vec<Mark>> {
        let call = self.call(Operation::List, "marks");
        let scan = call.scan().await?;
        if !scan.silent.is_empty() {
            return Err(call.error(ErrorClass::Transient, self.told_silent(&scan.silent)));
        }
        let valid = scan.seen.iter().filter_map(|seen| {
            let text = seen.text.as_deref();
            let slot = names::slot_of(seen.domain.uuid);
            let cluster = self.cluster_for(&self.hosts[seen.host], text);
            let sighting = Sighting {
                slot: &slot,
                cluster: &cluster,
                name: Some(&seen.domain.name),
                text,
                template: false,
            };
            sighting.valid_mark()
        });
        let mut marks: Vec<Mark> = valid.collect();
        marks.retain(|mark| {
            mark.installation == self.identity.installation && mark.provider == self.name
        });
        Ok(marks)
    }
}
