//! `seal`: takes the seed out of the machine, then deletes it (rule 11).

use super::{
    Proxmox,
    grammar::{Drive, drives},
    look::{Depth, Sight, is_configured, node_of},
    names,
    power::{LockMeaning, meaning},
    shared::PERIOD,
    waits,
};
use crate::client::ConfigChange;
use egress_core::{Claim, ErrorClass, MachineKey, machine::Whose};
use egress_provider::{Operation, Permit, Progress, Result};

impl Proxmox {
    pub(super) async fn seal_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
        permit: &Permit,
    ) -> Result<Progress> {
        let (call, vmid) = self.call_at(Operation::Seal, claim)?;
        let snapshot = call.snapshot(PERIOD).await?;
        call.same_cluster(&claim.cluster, &snapshot)?;
        let tasks = call.poll(&claim.handles).await?;
        call.tell_failures(&tasks, vmid)?;
        if let Some(step) = tasks.live_step() {
            return Ok(call.in_progress(step, tasks.kept()));
        }
        let hint = node_of(claim, vmid, &snapshot);
        let machine = match call.locate(vmid, hint, Depth::Config).await? {
            Sight::Machine(machine) => machine,
            Sight::Container => {
                return Err(call.error(ErrorClass::Conflict, "the VMID is a container's"));
            }
            Sight::Free | Sight::Hidden(_) => {
                return Err(call.error(
                    ErrorClass::Busy,
                    "no machine can be seen at its VMID: it is looked for again",
                ));
            }
        };
        let lock = machine.config.lock.as_ref();
        let hiding = lock.filter(|lock| meaning(lock) == LockMeaning::Making);
        let mark = match call.whose_at(key, &claim.slot, &claim.cluster, &machine) {
            Whose::Ours(mark) => mark,
            _ if let Some(lock) = hiding => {
                return Ok(call.in_progress(&waits::lock(lock), tasks.kept()));
            }
            Whose::Foreign { .. } => {
                return Err(call.error(ErrorClass::Conflict, "the VMID is someone else's machine"));
            }
            Whose::NotOwned => {
                let said = "the machine has this proxy's name and not its mark: restore the mark in its description, rename it, or remove it";
                return Err(call.error(ErrorClass::NotOwned, said));
            }
        };
        let seeds = self.seed_names(key, &[claim.attempt, mark.attempt]);
        let started = claim.standing >= egress_core::Standing::Started;
        if !is_configured(&machine, &seeds, started) {
            return Err(call.error(ErrorClass::Busy, "the machine still needs its seed"));
        }
        // In whatever drive it is: an admin may have moved it.
        let holder = drives(&machine.config.keys)
            .find(|(_, drive)| holds_seed(drive, &seeds))
            .map(|(slot, _)| slot.to_owned());
        if let Some(slot) = holder {
            if let Some(lock) = lock {
                return Ok(call.in_progress(&waits::lock(lock), tasks.kept()));
            }
            let text = machine.config.description.as_deref().unwrap_or_default();
            let change = ConfigChange {
                digest: Some(machine.config.digest.clone()),
                drive: Some((slot, "none,media=cdrom".to_owned())),
                description: names::sealed_description(text),
                ..ConfigChange::default()
            };
            self.hints().changed(vmid);
            let request = self.client.set_config(&machine.node, vmid, change);
            let sent = call.send(permit, request, || Ok(())).await?;
            sent.map_err(|failure| call.failed(failure))?;
        }
        let nodes = call.seed_nodes(claim, Some(&machine.node), &snapshot);
        call.delete_seeds(key, &nodes, vmid, permit).await
    }
}

fn holds_seed(drive: &Drive, seeds: &[String]) -> bool {
    drive
        .volume
        .as_ref()
        .is_some_and(|volume| seeds.contains(volume))
}
