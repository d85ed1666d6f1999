//! `claim`: proposes a VMID and a node, and changes nothing.

use super::{
    Proxmox, SETTLE,
    call::Call,
    grammar, names,
    placement::{self, Candidate, NoNode},
    shared::{Elsewhere, Snapshot},
    survey::TemplateSight,
};
use crate::client::{NodeName, Vmid, VmidState};
use egress_core::{
    Claim, ErrorClass, Host, MachineKey, Mark, Slot, Standing, machine::WantedMachine,
};
use egress_provider::{Operation, Result};
use std::collections::BTreeSet;

/// How many VMIDs one call asks for: another call goes on where this one ended.
const MOST_PROBES: usize = 200;

impl Proxmox {
    pub(super) async fn claim_slot(
        &self,
        key: &MachineKey,
        wanted: &WantedMachine,
        attempt: u32,
        taken: &[Slot],
    ) -> Result<Claim> {
        let call = self.call(Operation::Claim, key.name());
        let snapshot = call.snapshot_for(key).await?;
        match call.elsewhere(key, None, &snapshot).await? {
            Elsewhere::Ours(vmid, mark) => return Ok(self.claim_of(key, vmid, &mark, &snapshot)),
            Elsewhere::NotOwned(vmid) => {
                let said = format!(
                    "machine {vmid} has this proxy's name or mark and is not proven ours: restore its mark, rename it, or remove it"
                );
                return Err(call.error(ErrorClass::NotOwned, said));
            }
            Elsewhere::Nowhere => {}
        }
        let node = self.place(&call, &snapshot, wanted).await?;
        let taken: BTreeSet<Vmid> = taken.iter().filter_map(names::vmid_of).collect();
        let vmid = self.free_vmid(&call, key, &snapshot, &taken).await?;
        Ok(Claim {
            provider: self.name.clone(),
            cluster: snapshot.cluster.clone(),
            slot: names::slot_of(vmid),
            host: Some(Host::new(node.as_str())),
            attempt,
            standing: Standing::Unsent,
            handles: Vec::new(),
            // Proxmox VE chooses it.
            mac: None,
            seed: Some(self.seed_volume(key, attempt, &node)),
            unsettled: false,
            retiring: None,
        })
    }

    /// A claim on what bears the key's mark already.
    fn claim_of(&self, key: &MachineKey, vmid: Vmid, mark: &Mark, snapshot: &Snapshot) -> Claim {
        let node = snapshot.guests.get(&vmid).map(|guest| &guest.node);
        Claim {
            provider: self.name.clone(),
            cluster: snapshot.cluster.clone(),
            slot: names::slot_of(vmid),
            host: node.map(|node| Host::new(node.as_str())),
            attempt: mark.attempt,
            standing: Standing::Seen,
            handles: Vec::new(),
            mac: None,
            seed: node.map(|node| self.seed_volume(key, mark.attempt, node)),
            unsettled: false,
            retiring: None,
        }
    }

    /// The first candidate that nothing holds. The list shows most of what is taken; what it
    /// calls free is asked for, since it hides what the token may not see.
    async fn free_vmid(
        &self,
        call: &Call<'_>,
        key: &MachineKey,
        snapshot: &Snapshot,
        taken: &BTreeSet<Vmid>,
    ) -> Result<Vmid> {
        let mut probes = 0;
        for vmid in names::candidates(self.config.vmid_range, key) {
            let resting = self.hints().is_resting(vmid, SETTLE);
            if resting || taken.contains(&vmid) || snapshot.guests.contains_key(&vmid) {
                continue;
            }
            probes += 1;
            if probes > MOST_PROBES {
                break;
            }
            if call.existence(vmid).await? == VmidState::Free {
                self.hints().seen_free(vmid);
                return Ok(vmid);
            }
        }
        let range = self.config.vmid_range;
        let said = format!(
            "no free VMID in {}-{}, where one that was given up rests for {} min: widen vmidRange, or wait",
            range.from,
            range.to,
            SETTLE.as_secs() / 60
        );
        Err(call.error(ErrorClass::Capacity, said))
    }

    /// The node for a new machine (rule 17).
    async fn place(
        &self,
        call: &Call<'_>,
        snapshot: &Snapshot,
        wanted: &WantedMachine,
    ) -> Result<NodeName> {
        let mut nodes: BTreeSet<NodeName> = self
            .template_places(snapshot)
            .into_iter()
            .map(|(node, _)| node)
            .collect();
        if nodes.is_empty() {
            // A privilege that lacks hides it: that is told by its name and path.
            let survey = call.survey(false).await;
            let survey = survey.map_err(|why| call.no_survey(why))?;
            call.refuse_on(&self.findings(&survey, None))?;
            let vmids = self.config.template_vmids();
            let said = format!("no template {vmids:?} is on any list of this token");
            return Err(call.error(ErrorClass::Permanent, said));
        }
        if self.may_spread(snapshot) {
            let survey = call.survey(false).await;
            let survey = survey.map_err(|why| call.no_survey(why))?;
            if self.spreads(snapshot, &survey.templates) {
                nodes.extend(snapshot.online().cloned());
            }
        }
        // Where none will do, `create` says what the node lacks.
        if nodes.iter().any(|node| self.has_storages(node, snapshot)) {
            nodes.retain(|node| self.has_storages(node, snapshot));
        }
        let candidates: Vec<Candidate> = nodes
            .iter()
            .map(|node| self.candidate(node, snapshot))
            .collect();
        let needed = (u64::from(wanted.size.memory_mib) + self.config.reserve.memory_mib) << 20;
        let chosen = placement::choose(&candidates, needed).map_err(|none| match none {
            NoNode::Offline(nodes) => {
                let said = format!(
                    "every node with the template is offline: {}",
                    nodes.join(", ")
                );
                call.error(ErrorClass::Transient, said)
            }
            NoNode::Full(nodes) => {
                let said = format!(
                    "no node has {} MiB of memory free: {}",
                    needed >> 20,
                    nodes.join(", ")
                );
                call.error(ErrorClass::Capacity, said)
            }
        })?;
        chosen
            .node
            .parse()
            .map_err(|_| call.error(ErrorClass::Internal, "a node's name does not read back"))
    }

    fn candidate(&self, node: &NodeName, snapshot: &Snapshot) -> Candidate {
        let host = snapshot.nodes.iter().find(|host| host.name == *node);
        let ours = snapshot.guests.values().filter(|guest| {
            guest.node == *node && self.config.vmid_range.contains(guest.vmid.get())
        });
        Candidate {
            node: node.to_string(),
            online: host.is_some_and(|host| host.online),
            memory: host
                .and_then(|host| host.memory)
                .map(|(total, used)| placement::Memory { total, used }),
            machines: ours.count(),
        }
    }

    /// Whether a machine on a node could have its disks and its seed there.
    pub(super) fn has_storages(&self, node: &NodeName, snapshot: &Snapshot) -> bool {
        let mut both = [&self.config.storage, &self.config.iso_storage].into_iter();
        both.all(|storage| snapshot.has_storage(node, storage))
    }

    /// Whether machines could come to nodes without a template, whatever its disks lie on.
    fn may_spread(&self, snapshot: &Snapshot) -> bool {
        self.config.template.is_some()
            && snapshot.nodes.len() > 1
            && snapshot.shared_storages.contains(&self.config.storage)
    }

    /// Whether clones of the only template may go to other nodes: its disks and theirs lie on
    /// shared storage, and its own node, where the clone is made, has theirs.
    pub(super) fn spreads(&self, snapshot: &Snapshot, templates: &[TemplateSight]) -> bool {
        let Some((node, config)) = templates
            .first()
            .and_then(|template| Some((&template.node, template.config.as_ref().ok()?)))
        else {
            return false;
        };
        self.may_spread(snapshot)
            && snapshot.has_storage(node, &self.config.storage)
            && grammar::cloned(&config.keys)
                .filter_map(|drive| drive.storage().map(str::to_owned))
                .all(|storage| snapshot.shared_storages.contains(&storage))
    }
}
