//! What is looked at before the first mutating request.

use super::Creation;
use crate::provider::{check::reserved, grammar::boot_disk, shared::Elsewhere, survey::Survey};
use egress_core::ErrorClass;
use egress_provider::Result;

impl Creation<'_> {
    /// All that this and every later step needs, before the first mutating request (C4).
    pub(super) async fn check_preconditions(&self) -> Result<()> {
        let call = &self.call;
        let provider = call.provider;
        match call
            .elsewhere(self.key, Some(self.vmid), &self.snapshot)
            .await?
        {
            Elsewhere::Nowhere => {}
            Elsewhere::Ours(vmid, _) => {
                let said = format!(
                    "machine {vmid} bears this proxy's mark already, and the record names {}: remove the one that is not to stay",
                    self.vmid
                );
                return Err(call.error(ErrorClass::NeedsOperator, said));
            }
            Elsewhere::NotOwned(vmid) => {
                let said = format!(
                    "machine {vmid} has this proxy's name or mark and is not proven ours: restore its mark, rename it, or remove it"
                );
                return Err(call.error(ErrorClass::NotOwned, said));
            }
        }
        call.has_quorum(&self.snapshot)?;
        let survey = call
            .survey(false)
            .await
            .map_err(|why| call.no_survey(why))?;
        call.refuse_on(&provider.findings(&survey, Some(&self.node)))?;
        self.has_room(&survey)
    }

    /// Room for this machine beside those that are being cloned, by figures and never by text.
    fn has_room(&self, survey: &Survey) -> Result<()> {
        let call = &self.call;
        let config = &call.provider.config;
        let beside = call.provider.hints().clones_beside(self.vmid) as u64;
        let template = survey
            .template_on(&self.node)
            .and_then(|t| t.config.as_ref().ok());
        let disk = template
            .and_then(|config_of| boot_disk(&config_of.keys, &config.seed_drive))
            .and_then(|(_, drive)| drive.bytes)
            .unwrap_or(0)
            .max(u64::from(self.wanted.size.disk_gib) << 30);
        if let Some(status) = survey.storage_on(&self.node, &config.storage)
            && let (Some(total), Some(avail)) = (status.total, status.avail)
        {
            let needed = disk
                .saturating_mul(beside + 1)
                .saturating_add(reserved(config, total));
            if avail < needed {
                let said = format!(
                    "storage {} has {} GiB free, {} GiB are needed with the reserve and {beside} clones that run",
                    config.storage,
                    avail >> 30,
                    needed.div_ceil(1 << 30)
                );
                return Err(call.error(ErrorClass::Capacity, said));
            }
        }
        let host = self
            .snapshot
            .nodes
            .iter()
            .find(|host| host.name == self.node);
        if let Some((total, used)) = host.and_then(|host| host.memory) {
            let each = u64::from(self.wanted.size.memory_mib);
            let needed = (each * (beside + 1) + config.reserve.memory_mib) << 20;
            if total.saturating_sub(used) < needed {
                let said = format!(
                    "node {} has {} MiB of memory free, {} MiB are needed with the reserve",
                    self.node,
                    total.saturating_sub(used) >> 20,
                    needed >> 20
                );
                return Err(call.error(ErrorClass::Capacity, said));
            }
        }
        Ok(())
    }
}
