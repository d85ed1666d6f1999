//! `delete`: look, decide, send. Stops, destroys, proves it, and deletes the seed (rule 10).

pub(super) mod next;
pub(super) mod remains;

use super::{
    Proxmox,
    call::{Call, handle},
    create::next::Trouble,
    look::{Depth, Machine, Sight, is_configured, node_of},
    names,
    power::power,
    shared::{Elsewhere, PERIOD, Snapshot},
    tasks::{CLONE, DESTROY, Tasks},
};
use crate::client::{ConfigChange, Kind, NodeName, TaskEnd, Vmid};
use egress_core::{Claim, ErrorClass, Handle, MachineKey, Mark, Standing, machine::Whose};
use egress_provider::{Operation, Permit, Progress, Proof, Result};
use next::{Facts, Next, Place, next};
use std::{sync::Arc, time::Duration};

/// One call with what it is about. The slot may be another one than the claim's: where the
/// key's mark was found.
struct Deletion<'a> {
    call: Call<'a>,
    key: &'a MachineKey,
    claim: &'a Claim,
    permit: &'a Permit,
    snapshot: Arc<Snapshot>,
}

impl Proxmox {
    pub(super) async fn delete_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
        permit: &Permit,
    ) -> Result<Progress> {
        let (call, vmid) = self.call_at(Operation::Delete, claim)?;
        let snapshot = call.snapshot(PERIOD).await?;
        call.same_cluster(&claim.cluster, &snapshot)?;
        let tasks = call.poll(&claim.handles).await?;
        self.hints().take_untold(vmid, key);
        self.hints().leave_line(vmid);
        call.tell_failures(&tasks, vmid)?;
        if let Some(step) = tasks.live_step() {
            return Ok(call.in_progress(step, running(&tasks)));
        }
        let deletion = Deletion {
            call,
            key,
            claim,
            permit,
            snapshot,
        };
        deletion.run(vmid, &tasks).await
    }
}

fn running(tasks: &Tasks) -> Vec<Handle> {
    let mut kept = tasks.kept();
    // What has ended matters to `create` alone.
    kept.retain(|handle| {
        tasks.0.iter().any(|(known, standing)| {
            known == handle && *standing == super::tasks::Standing::Running
        })
    });
    kept
}

impl Deletion<'_> {
    async fn run(&self, claimed: Vmid, tasks: &Tasks) -> Result<Progress> {
        if let Some(TaskEnd::Warnings(_)) = tasks.ended(DESTROY) {
            self.look_for_remains(claimed).await?;
        }
        let hint = node_of(self.claim, claimed, &self.snapshot);
        let hint = hint.filter(|_| {
            self.claim.standing > Standing::Sent || self.snapshot.guests.contains_key(&claimed)
        });
        let step = self.step(claimed, hint, tasks).await?;
        if let Some(progress) = step {
            return Ok(progress);
        }
        // Nothing of this key at the slot: it may be elsewhere. Only a list that began now, with
        // quorum, proves that it is not.
        let snapshot = self.call.snapshot(Duration::ZERO).await?;
        self.call.same_cluster(&self.claim.cluster, &snapshot)?;
        self.call.has_quorum(&snapshot)?;
        match self
            .call
            .elsewhere(self.key, Some(claimed), &snapshot)
            .await?
        {
            Elsewhere::Nowhere => {}
            Elsewhere::Ours(vmid, _) => {
                let node = snapshot.guests.get(&vmid).map(|guest| guest.node.clone());
                if let Some(progress) = self.step(vmid, node, &Tasks::default()).await? {
                    return Ok(progress);
                }
                let said = format!(
                    "machine {vmid} bore this proxy's mark a moment ago: it is looked for again"
                );
                return Err(self.call.error(ErrorClass::Busy, said));
            }
            Elsewhere::NotOwned(vmid) => {
                let said = format!(
                    "machine {vmid} has this proxy's name or mark and is not proven ours: restore its mark, rename it, or remove it"
                );
                return Err(self.call.error(ErrorClass::NotOwned, said));
            }
        }
        let nodes = self.call.seed_nodes(self.claim, None, &snapshot);
        let seeds = self
            .call
            .delete_seeds(self.key, &nodes, claimed, self.permit)
            .await?;
        if seeds == Progress::Done {
            let was_ours = tasks.has(DESTROY) || self.claim.standing >= Standing::Accepted;
            self.call.provider.hints().gone(claimed, was_ours);
        }
        Ok(seeds)
    }

    /// One step at one slot; `None` when nothing of the key is there.
    async fn step(
        &self,
        vmid: Vmid,
        hint: Option<NodeName>,
        tasks: &Tasks,
    ) -> Result<Option<Progress>> {
        let call = &self.call;
        let sight = call.locate(vmid, hint, Depth::WithStatus).await?;
        let (facts, task) = self.facts(vmid, &sight, tasks).await?;
        let decided =
            next(&facts).map_err(|trouble: Trouble| call.error(trouble.class, trouble.said))?;
        let machine = match (&decided, &sight) {
            (Next::Gone, _) => return Ok(None),
            (Next::Wait(step), _) => {
                return Ok(Some(call.in_progress(step, task.into_iter().collect())));
            }
            (_, Sight::Machine(machine)) => machine,
            _ => {
                return Err(call.error(
                    ErrorClass::Internal,
                    "decided about a machine that is not there",
                ));
            }
        };
        // Looked at before anything is stopped (D4): with one node there is nothing to lose.
        let snapshot = self.call.snapshot(Duration::from_secs(2)).await?;
        call.same_cluster(&self.claim.cluster, &snapshot)?;
        call.has_quorum(&snapshot)?;
        let progress = match decided {
            Next::Unprotect(_) => self.unprotect(vmid, machine).await?,
            Next::Stop(mark) => self.stop(vmid, machine, &mark).await?,
            Next::Destroy(mark) => self.destroy(vmid, machine, &mark).await?,
            Next::Gone | Next::Wait(_) => unreachable!("returned above"),
        };
        Ok(Some(progress))
    }

    async fn facts(
        &self,
        vmid: Vmid,
        sight: &Sight,
        tasks: &Tasks,
    ) -> Result<(Facts, Option<Handle>)> {
        let call = &self.call;
        let provider = call.provider;
        let slot = names::slot_of(vmid);
        let mut task = None;
        let place = match sight {
            Sight::Free => Place::Free,
            Sight::Container => Place::Container,
            Sight::Hidden(_) => Place::Hidden,
            Sight::Machine(machine) => {
                let whose = call.whose_at(self.key, &slot, &self.claim.cluster, machine);
                let attempt = match &whose {
                    Whose::Ours(mark) => mark.attempt,
                    _ => self.claim.attempt,
                };
                let seeds = provider.seed_names(self.key, &[self.claim.attempt, attempt]);
                let started = self.claim.standing >= Standing::Started;
                if matches!(whose, Whose::Ours(_)) {
                    // A destroy that runs leaves the machine looking whole: only its task tells.
                    task = call.active_task(&machine.node, vmid).await?;
                }
                Place::Machine {
                    lock: machine.config.lock.clone(),
                    whose,
                    power: machine
                        .status
                        .as_ref()
                        .map_or(super::power::Power::Running, power),
                    configured: is_configured(machine, &seeds, started),
                    protected: machine.config.protection,
                }
            }
        };
        // An attempt that may still become a machine is waited for.
        let may_come = match &place {
            Place::Free => {
                self.claim.standing >= Standing::Sent
                    && self.claim.standing < Standing::Seen
                    && !tasks.has(CLONE)
            }
            Place::Hidden => true,
            Place::Container => false,
            Place::Machine {
                whose, configured, ..
            } => matches!(whose, Whose::Ours(_)) && !configured && !tasks.succeeded(CLONE),
        };
        if task.is_none() && may_come {
            task = call.find_clone(vmid, &self.snapshot).await?;
        }
        let stale = match sight {
            Sight::Machine(machine) => call.stale(vmid, machine),
            _ => None,
        };
        let managed = match sight {
            Sight::Machine(machine) => machine.status.as_ref().is_some_and(|s| s.ha_managed),
            _ => false,
        };
        let asked = provider.hints().stop_requested_for(vmid);
        let ha_asked = asked.filter(|_| managed);
        let busy = task.as_ref().map(|task: &Handle| task.step.clone());
        let facts = Facts {
            place,
            busy,
            stale,
            ha_asked,
            in_doubt: provider.hints().destroy_in_doubt_for(vmid),
        };
        Ok((facts, task))
    }

    async fn unprotect(&self, vmid: Vmid, machine: &Machine) -> Result<Progress> {
        let call = &self.call;
        let change = ConfigChange {
            digest: Some(machine.config.digest.clone()),
            protection: Some(false),
            ..ConfigChange::default()
        };
        let request = call.provider.client.set_config(&machine.node, vmid, change);
        let sent = call.send(self.permit, request, || Ok(())).await?;
        sent.map_err(|failure| call.failed(failure))?;
        Ok(call.in_progress(
            "the protection that its template brought was taken off",
            Vec::new(),
        ))
    }

    async fn stop(&self, vmid: Vmid, machine: &Machine, mark: &Mark) -> Result<Progress> {
        let proof = Proof::new(mark, machine.at);
        self.call
            .stop(&machine.node, vmid, proof, self.permit)
            .await
    }

    /// One request to destroy a VMID at a time: it takes no digest, so that a second one that
    /// arrives late hits whoever has the VMID then.
    async fn destroy(&self, vmid: Vmid, machine: &Machine, mark: &Mark) -> Result<Progress> {
        let call = &self.call;
        let provider = call.provider;
        provider.hints().changed(vmid);
        let request = provider.client.delete_vm(&machine.node, vmid);
        let proof = Proof::new(mark, machine.at);
        let ask = || {
            let last = proof.spend(call.operation, &names::slot_of(vmid))?;
            let mut hints = provider.hints();
            if hints.destroy_sent_since(vmid, machine.at) {
                let said = "another request to destroy it was sent meanwhile: what became of it is looked at first";
                return Err(call.error(ErrorClass::Busy, said));
            }
            // Until an answer says otherwise.
            hints.destroy_in_doubt(vmid);
            Ok(last)
        };
        let sent = call.send_proven(self.permit, request, ask).await?;
        match sent {
            Ok(upid) => {
                provider.hints().destroy_settled(vmid);
                Ok(call.in_progress(DESTROY, vec![handle(DESTROY, &upid)]))
            }
            Err(failure) => {
                if failure.class != ErrorClass::OutcomeUnknown {
                    provider.hints().destroy_settled(vmid);
                }
                if failure.kind == Kind::NotExistOnNode || failure.kind == Kind::IsRunning {
                    return Err(call.error(
                        ErrorClass::Busy,
                        format!("{failure}: it changed meanwhile, and is looked at again"),
                    ));
                }
                Err(call.failed(failure))
            }
        }
    }
}
