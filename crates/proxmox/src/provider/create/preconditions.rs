//! What is looked at before the first mutating request.

use super::Creation;
use crate::{
    client::NodeName,
    provider::{
        Proxmox,
        call::Call,
        check::reserved,
        grammar::boot_disk,
        names,
        shared::{Elsewhere, PERIOD, Snapshot},
        survey::{Survey, TemplateSight},
    },
};
use egress_core::{
    Claim, ErrorClass, MachineKey,
    machine::{MachineSize, WantedMachine},
};
use egress_provider::{CheckReason, Operation, Result};
use std::collections::BTreeSet;

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
        // A VMID comes free with the machine that goes, and room on the storage of disks.
        findings.retain(|finding| {
            let of_disks = finding.field.as_deref() == Some("storage");
            match finding.reason {
                CheckReason::LowCapacity => !of_disks,
                reason => reason != CheckReason::RangeInvalid,
            }
        });
        call.refuse_on(&findings)?;
        for template in &survey.templates {
            call.disk_fits(template, wanted)?;
        }
        let goes = names::vmid_of(&claim.slot).and_then(|vmid| snapshot.guests.get(&vmid));
        let goes = goes.filter(|_| claim.provider == self.name);
        let nodes: BTreeSet<&NodeName> = survey.storages.iter().map(|sight| &sight.node).collect();
        let mut refusal = None;
        for node in nodes {
            let freed = goes.filter(|guest| guest.node == *node);
            let (memory, disk) = freed.map_or((0, 0), |guest| guest.size);
            let room = Room {
                node,
                size: &wanted.size,
                at_once: 1,
                memory,
                disk,
            };
            match call.has_room(&room, &survey, &snapshot) {
                Ok(()) => {
                    refusal = None;
                    break;
                }
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        if let Some(error) = refusal {
            return Err(error);
        }
        call.render_seed(key, claim, wanted).map(|_| ())
    }
}

/// What is to fit on a node.
struct Room<'a> {
    node: &'a NodeName,
    size: &'a MachineSize,
    /// So many machines of this size.
    at_once: u64,
    /// Bytes that come free before.
    memory: u64,
    disk: u64,
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

    /// Whether so much fits on a node, by figures and never by text.
    fn has_room(&self, room: &Room<'_>, survey: &Survey, snapshot: &Snapshot) -> Result<()> {
        let (config, node) = (&self.provider.config, room.node);
        let host = snapshot.nodes.iter().find(|host| host.name == *node);
        if let Some(cpus) = host.and_then(|host| host.cpus)
            && u64::from(room.size.cpus) > cpus
        {
            let said = format!(
                "spec.machine.cpus: {}: node {node} has {cpus}, and no machine there may have more: ask for {cpus} or fewer",
                room.size.cpus
            );
            return Err(self.error(ErrorClass::Permanent, said));
        }
        let template = survey
            .template_on(node)
            .and_then(|t| t.config.as_ref().ok());
        let disk = template
            .and_then(|config_of| boot_disk(&config_of.keys, &config.seed_drive))
            .and_then(|(_, drive)| drive.bytes)
            .unwrap_or(0)
            .max(u64::from(room.size.disk_gib) << 30);
        if let Some(status) = survey.storage_on(node, &config.storage)
            && let (Some(total), Some(avail)) = (status.total, status.avail)
        {
            let avail = avail.saturating_add(room.disk);
            let needed = disk
                .saturating_mul(room.at_once)
                .saturating_add(reserved(config, total));
            if avail < needed {
                let said = format!(
                    "storage {} has {} GiB free, {} GiB are needed with the reserve and {} clones that run",
                    config.storage,
                    avail >> 30,
                    needed.div_ceil(1 << 30),
                    room.at_once - 1
                );
                return Err(self.error(ErrorClass::Capacity, said));
            }
        }
        if let Some((total, used)) = host.and_then(|host| host.memory) {
            let free = total.saturating_sub(used).saturating_add(room.memory);
            let each = u64::from(room.size.memory_mib);
            let needed = (each * room.at_once + config.reserve.memory_mib) << 20;
            if free < needed {
                let said = format!(
                    "node {node} has {} MiB of memory free, {} MiB are needed with the reserve",
                    free >> 20,
                    needed >> 20
                );
                return Err(self.error(ErrorClass::Capacity, said));
            }
        }
        Ok(())
    }
}

impl Creation<'_> {
    /// All that this and every later step needs, before the first mutating request (C4).
    pub(super) async fn check_preconditions(&self) -> Result<()> {
        let call = &self.call;
        let provider = call.provider;
        let snapshot = call.snapshot_for(self.key).await?;
        match call.elsewhere(self.key, Some(self.vmid), &snapshot).await? {
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

    /// Room for this machine beside those that are being cloned.
    fn has_room(&self, survey: &Survey) -> Result<()> {
        let room = Room {
            node: &self.node,
            size: &self.wanted.size,
            at_once: self.call.provider.hints().clones_beside(self.vmid) as u64 + 1,
            memory: 0,
            disk: 0,
        };
        self.call.has_room(&room, survey, &self.snapshot)
    }
}
