//! What is looked at before the first mutating request.

use super::Creation;
use crate::provider::{
    Proxmox,
    call::Call,
    check::reserved,
    grammar::boot_disk,
    shared::{Elsewhere, PERIOD},
    survey::{Survey, TemplateSight},
};
use egress_core::{Claim, ErrorClass, MachineKey, machine::WantedMachine};
use egress_provider::{CheckReason, Operation, Result};

impl Proxmox {
    /// Whether the machine that follows the one of a claim could be made.
    pub(in crate::provider) async fn survey_next(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
    ) -> Result<()> {
        let call = self.call(Operation::Survey, claim.slot.as_str());
        let snapshot = call.snapshot(PERIOD).await?;
        if claim.provider == self.name {
            call.same_cluster(&claim.cluster, &snapshot)?;
        }
        call.has_quorum(&snapshot)?;
        let survey = call
            .survey(false)
            .await
            .map_err(|why| call.no_survey(why))?;
        let mut findings = self.findings(&survey, None);
        // Room and VMID come free with the machine that goes.
        findings.retain(|finding| {
            !matches!(
                finding.reason,
                CheckReason::LowCapacity | CheckReason::RangeInvalid
            )
        });
        call.refuse_on(&findings)?;
        for template in &survey.templates {
            call.disk_fits(template, wanted)?;
        }
        call.render_seed(key, claim, wanted).map(|_| ())
    }
}

impl Call<'_> {
    /// Disks only grow: one that is asked for smaller than the template's is refused.
    fn disk_fits(&self, template: &TemplateSight, wanted: &WantedMachine) -> Result<()> {
        let read = template.config.as_ref().ok();
        let bytes = read
            .and_then(|read| boot_disk(&read.keys, &self.provider.config.seed_drive))
            .and_then(|(_, drive)| drive.bytes)
            .unwrap_or(0);
        let least = bytes.div_ceil(1 << 30);
        if u64::from(wanted.size.disk_gib) >= least {
            return Ok(());
        }
        let said = format!(
            "spec.machine.diskGiB: {}: the disk of template {} has {least} GiB and cannot shrink: ask for {least} or more",
            wanted.size.disk_gib, template.vmid
        );
        Err(self.error(ErrorClass::Permanent, said))
    }
}

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
        if let Some(template) = survey.template_on(&self.node) {
            call.disk_fits(template, self.wanted)?;
        }
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
