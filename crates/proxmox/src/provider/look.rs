//! Looking at one slot, wherever its machine is now.

use super::{call::Call, names, shared::Snapshot};
use crate::client::{Failure, Kind, NodeName, VmConfig, VmStatus, Vmid, VmidState};
use egress_core::{Claim, ClusterId, ErrorClass, MachineKey, Slot, machine::Whose};
use egress_provider::Result;
use std::time::Duration;
use tokio::time::Instant;

/// What a slot holds.
#[derive(Clone, Debug)]
pub(super) enum Sight {
    /// Nothing, of whatever kind, on whatever node.
    Free,
    Machine(Box<Machine>),
    /// A container: never a machine of ours.
    Container,
    /// Something that this token may not see. With a pool that is what a machine looks like
    /// until its clone has joined (§3.4).
    Hidden(String),
}

/// A machine, its configuration read last.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// When its configuration was asked for.
    pub(super) at: Instant,
    pub(super) node: NodeName,
    pub(super) config: VmConfig,
    /// `None` where it was not asked for.
    pub(super) status: Option<VmStatus>,
}

/// What to read beside the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    Config,
    WithStatus,
}

impl Call<'_> {
    /// Whether the VMID is in use: live, cluster-wide, and without a privilege (rule 4).
    pub(super) async fn existence(&self, vmid: Vmid) -> Result<VmidState> {
        let state = self.reads().vmid_state(vmid).await;
        state.map_err(|failure| self.failed(failure))
    }

    /// Finds what a slot holds, beginning at the node where it is thought to be.
    pub(super) async fn locate(
        &self,
        vmid: Vmid,
        hint: Option<NodeName>,
        depth: Depth,
    ) -> Result<Sight> {
        let mut node = hint;
        // It may move between two reads; more often than this is trouble.
        for _ in 0..3 {
            let place = match node.take() {
                Some(place) => place,
                None => match self.find(vmid).await? {
                    Found::At(place) => place,
                    Found::Nothing => return Ok(Sight::Free),
                    Found::Container => return Ok(Sight::Container),
                    Found::Hidden => {
                        return Ok(Sight::Hidden("it is on no list of this token".to_owned()));
                    }
                },
            };
            match self.read_at(&place, vmid, depth).await {
                Ok(machine) => {
                    self.provider.hints().sight(vmid, &machine.config);
                    return Ok(Sight::Machine(Box::new(machine)));
                }
                Err(failure) if failure.kind == Kind::NotExistOnNode => {}
                // An error whose text was lost on the way may be the one above.
                Err(failure) if failure.kind == Kind::Unclassified => {
                    return match self.existence(vmid).await? {
                        VmidState::Free => Ok(Sight::Free),
                        VmidState::Taken => Err(self.failed(failure)),
                    };
                }
                Err(failure) if self.may_be_hidden(&failure) => {
                    return match self.existence(vmid).await? {
                        VmidState::Free => Ok(Sight::Free),
                        VmidState::Taken => Ok(Sight::Hidden(failure.said)),
                    };
                }
                Err(failure) => return Err(self.failed(failure)),
            }
        }
        Err(self.error(
            ErrorClass::Busy,
            "the machine moves from node to node: it is looked for again",
        ))
    }

    async fn read_at(
        &self,
        node: &NodeName,
        vmid: Vmid,
        depth: Depth,
    ) -> std::result::Result<Machine, Failure> {
        let status = match depth {
            Depth::Config => None,
            Depth::WithStatus => Some(self.reads().vm_status(node, vmid).await?),
        };
        let at = Instant::now();
        let config = self.reads().vm_config(node, vmid).await?;
        Ok(Machine {
            at,
            node: node.clone(),
            config,
            status,
        })
    }

    async fn find(&self, vmid: Vmid) -> Result<Found> {
        if self.existence(vmid).await? == VmidState::Free {
            return Ok(Found::Nothing);
        }
        let snapshot = self.snapshot(Duration::ZERO).await?;
        Ok(match snapshot.guests.get(&vmid) {
            Some(guest) if guest.qemu => Found::At(guest.node.clone()),
            Some(_) => Found::Container,
            None => Found::Hidden,
        })
    }

    /// With a pool, a machine that is not there or not in it yet is 403 (§3.4). Without one, a
    /// 403 is a missing privilege.
    fn may_be_hidden(&self, failure: &Failure) -> bool {
        self.provider.config.pool.is_some() && matches!(failure.kind, Kind::Forbidden { .. })
    }

    /// Whose a machine is, for the key whose slot this is.
    pub(super) fn whose_at(
        &self,
        key: &MachineKey,
        slot: &Slot,
        cluster: &ClusterId,
        machine: &Machine,
    ) -> Whose {
        let seen = egress_core::machine::Sighting {
            slot,
            cluster,
            name: machine.config.name.as_deref(),
            text: machine.config.description.as_deref(),
            template: machine.config.template,
        };
        let provider = self.provider;
        egress_core::machine::whose(key, &provider.identity, &provider.name, Some(slot), &seen)
    }
}

/// Whether the machine got its configuration, and with it its seed. A machine that was started
/// once had it, whatever became of the drive since.
pub(super) fn is_configured(machine: &Machine, seeds: &[String], started: bool) -> bool {
    let text = machine.config.description.as_deref().unwrap_or_default();
    started
        || names::is_sealed(text)
        || super::grammar::drives(&machine.config.keys)
            .filter_map(|(_, drive)| drive.volume)
            .any(|volume| seeds.contains(&volume))
}

enum Found {
    Nothing,
    At(NodeName),
    Container,
    Hidden,
}

/// Where a claim's machine is thought to be: as listed, else as claimed. A claimed node that is
/// not of the cluster (it left, or a person wrote it) says nothing.
pub(super) fn node_of(claim: &Claim, vmid: Vmid, snapshot: &Snapshot) -> Option<NodeName> {
    let listed = snapshot.guests.get(&vmid).filter(|guest| guest.qemu);
    listed
        .map(|guest| guest.node.clone())
        .or_else(|| claim.host.as_ref()?.as_str().parse().ok())
        .filter(|node| snapshot.has_node(node))
}
