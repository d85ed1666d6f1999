//! `create`: look, decide, send. Each call sends what can be sent now and comes back.

mod configure;
pub(super) mod next;
mod preconditions;

use super::{
    Proxmox, STALE,
    call::{Call, handle},
    look::{Depth, Machine, Sight, is_configured, node_of},
    names,
    power::{LockMeaning, meaning, power},
    seed::Arrival,
    shared::{PERIOD, Snapshot},
    tasks::{CLONE, RESIZE, START, Tasks, UPLOAD, is_unknown},
    turns::{self, Wait},
    waits,
};
use crate::client::{CloneVm, Kind, NodeName, Vmid};
use egress_core::{
    Claim, ErrorClass, Handle, MachineKey, Mark, Standing,
    machine::{WantedMachine, Whose},
};
use egress_provider::{Operation, Permit, Progress, Proof, Result};
use next::{Facts, Next, Place, next};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, timeout_at};

/// After so many attempts to attach a seed that the storage does not show, it is sent again.
const PATIENCE_WITH_SEED: u32 = 3;

/// One call with what it is about.
struct Creation<'a> {
    call: Call<'a>,
    key: &'a MachineKey,
    claim: &'a Claim,
    wanted: &'a WantedMachine,
    permit: &'a Permit,
    vmid: Vmid,
    /// The node that the machine is or is to be on.
    node: NodeName,
    snapshot: Arc<Snapshot>,
}

impl Proxmox {
    pub(super) async fn create_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
        permit: &Permit,
    ) -> Result<Progress> {
        let (call, vmid) = self.call_at(Operation::Create, claim)?;
        let snapshot = call.snapshot(PERIOD).await?;
        call.same_cluster(&claim.cluster, &snapshot)?;
        let sent_now = !claim.handles.is_empty()
            && claim.handles.iter().all(|handle| handle.step == CLONE)
            && self.hints().just_cloned(vmid)
            && self.hints().doubtful_upload(vmid).is_none();
        let tasks = if sent_now {
            // Sent a moment ago by this process: no need to ask before the seed is sent.
            Tasks::thought_running(&claim.handles)
        } else {
            let tasks = call.poll(&claim.handles).await?;
            if tasks.is_live(CLONE) {
                self.hints().seen_cloning(vmid);
            }
            tasks
        };
        let untold = self.hints().take_untold(vmid, key);
        call.tell_failures(&call.poll(&untold).await?, vmid)?;
        call.tell_failures(&tasks, vmid)?;
        let node = node_of(claim, vmid, &snapshot).or_else(|| {
            let places = self.template_places(&snapshot);
            places.into_iter().next().map(|(node, _)| node)
        });
        let Some(node) = node else {
            return Err(call.error(
                ErrorClass::Permanent,
                "the record names no node of the cluster, and no list shows machine or template",
            ));
        };
        let creation = Creation {
            call,
            key,
            claim,
            wanted,
            permit,
            vmid,
            node,
            snapshot,
        };
        let result = creation.run(tasks).await;
        if result.is_err() {
            self.hints().leave_line(vmid);
        }
        result
    }
}

impl Creation<'_> {
    async fn run(&self, tasks: Tasks) -> Result<Progress> {
        let provider = self.call.provider;
        // The seed has nothing to do with the machine until it is attached. One that may be on its
        // way is looked for when the clone has ended, and not overwritten meanwhile.
        let doubtful = provider.hints().doubtful_upload(self.vmid).is_some();
        if tasks.is_live(CLONE) && !tasks.has(UPLOAD) && !doubtful {
            return self.upload(tasks.kept()).await;
        }
        if let Some(step) = tasks.live_step() {
            return Ok(self.call.in_progress(step, tasks.kept()));
        }
        if tasks.succeeded(START) && !tasks.has(CLONE) {
            provider.hints().seed_is_there(self.vmid);
            return Ok(Progress::Done);
        }
        // It was looked at when it took its place in the line: now only its turn counts.
        let waits = tasks.0.is_empty() && provider.hints().waits_for_turn(self.vmid);
        if waits && let Some(wait) = self.turn().await {
            return Ok(wait);
        }
        let (sight, next, found) = self.decide(&tasks).await?;
        match next {
            Next::Done => Ok(Progress::Done),
            Next::Wait(step) => {
                let handles = tasks.kept().into_iter().chain(found).collect();
                Ok(self.call.in_progress(&step, handles))
            }
            Next::Clone => self.clone_template(&tasks).await,
            Next::Upload => self.upload_again(sight, &tasks).await,
            Next::Configure => {
                let machine = machine(sight, &self.call)?;
                self.configure(&machine).await
            }
            Next::Start => {
                let machine = machine(sight, &self.call)?;
                // Its success is final, whatever size the configuration shows (F20).
                if tasks.succeeded(RESIZE) {
                    return self.start(&machine.node).await;
                }
                self.grow_and_start(&machine).await
            }
            Next::Stop(mark) => {
                let machine = machine(sight, &self.call)?;
                self.stop(&machine, &mark).await
            }
        }
    }

    /// Looks, and says what is next; with the task of a clone that was found again.
    async fn decide(&self, tasks: &Tasks) -> Result<(Sight, Next, Option<Handle>)> {
        let provider = self.call.provider;
        let depth = if provider.hints().just_cloned(self.vmid) && !tasks.has(START) {
            Depth::Config
        } else {
            Depth::WithStatus
        };
        let fresh = tasks.0.is_empty() && self.claim.standing <= Standing::Sent;
        let sight = if fresh && provider.hints().is_free(self.vmid) {
            // Asked for a moment ago; the clone request decides anyway.
            Sight::Free
        } else {
            let hint = (!fresh).then(|| self.node.clone());
            self.call.locate(self.vmid, hint, depth).await?
        };
        let (facts, found) = self.facts(&sight, tasks).await?;
        let next = next(&facts).map_err(|trouble| self.call.error(trouble.class, trouble.said))?;
        Ok((sight, next, found))
    }

    async fn facts(&self, sight: &Sight, tasks: &Tasks) -> Result<(Facts, Option<Handle>)> {
        let provider = self.call.provider;
        let place = match sight {
            Sight::Free => Place::Free,
            Sight::Container => Place::Container,
            Sight::Hidden(_) => Place::Hidden,
            Sight::Machine(machine) => {
                let whose =
                    self.call
                        .whose_at(self.key, &self.claim.slot, &self.claim.cluster, machine);
                let attempt = match &whose {
                    Whose::Ours(mark) => mark.attempt,
                    _ => self.claim.attempt,
                };
                let seeds = provider.seed_names(self.key, &[self.claim.attempt, attempt]);
                let started = self.claim.standing >= Standing::Started;
                Place::Machine {
                    lock: machine.config.lock.clone(),
                    whose,
                    power: machine.status.as_ref().map(power),
                    configured: is_configured(machine, &seeds, started),
                }
            }
        };
        // A clone of which no task is known any more is looked for where it would matter.
        let doubtful = match &place {
            Place::Free | Place::Container => false,
            Place::Hidden => true,
            Place::Machine {
                lock,
                whose,
                configured,
                ..
            } => {
                let made = lock
                    .as_ref()
                    .is_some_and(|lock| meaning(lock) == LockMeaning::Making);
                made || (matches!(whose, Whose::Ours(_)) && !configured && !tasks.succeeded(CLONE))
            }
        };
        let found = if doubtful {
            self.call.find_clone(self.vmid, &self.snapshot).await?
        } else {
            None
        };
        if found.is_some() {
            provider.hints().seen_cloning(self.vmid);
        }
        let stale = match sight {
            Sight::Machine(machine) if found.is_none() => self.call.stale(self.vmid, machine),
            _ => None,
        };
        let missing = provider.hints().times_seed_missing(self.vmid);
        let seed_lost = match &place {
            Place::Machine {
                configured: true, ..
            } => missing > 0,
            _ => missing >= PATIENCE_WITH_SEED,
        };
        let facts = Facts {
            place,
            cloning: found.is_some(),
            uploaded: tasks.succeeded(UPLOAD),
            seed_lost,
            stale,
            unknown: is_unknown(self.claim),
        };
        Ok((facts, found))
    }

    /// Sends the one request that brings the machine into being.
    async fn clone_template(&self, tasks: &Tasks) -> Result<Progress> {
        let call = &self.call;
        let provider = call.provider;
        self.check_preconditions().await?;
        // Faults of the user's own data are found before anything is made.
        call.render_seed(self.key, self.claim, self.wanted)?;
        if let Some(wait) = self.turn().await {
            return Ok(wait);
        }
        let places = provider.template_places(&self.snapshot);
        let target = self.target();
        let own = places.iter().find(|(node, _)| *node == target);
        let Some((source, template)) = own.or_else(|| places.first()).cloned() else {
            return Err(call.error(ErrorClass::Permanent, "no template is on any list"));
        };
        let request = provider.client.clone_vm(CloneVm {
            target: (source != target).then_some(target),
            node: source,
            template,
            newid: self.vmid,
            name: self.key.name().to_owned(),
            description: names::description(&self.mark()),
            storage: provider.config.storage.clone(),
            pool: provider.config.pool.clone(),
        });
        provider.hints().clone_begun(self.vmid, self.key);
        provider.hints().changed(self.vmid);
        let ask = || self.permit.ask_creating(call.operation, &call.target);
        let sent = call.send(self.permit, request, ask).await;
        provider.hints().made(self.key);
        if !matches!(sent, Ok(Ok(_))) {
            provider.hints().clone_ended(self.vmid);
        }
        match sent? {
            Ok(upid) => {
                provider.hints().seen_cloning(self.vmid);
                provider.hints().clone_sent(&upid, self.vmid);
                let mut handles = tasks.kept();
                handles.retain(|kept| kept.step != CLONE);
                handles.push(handle(CLONE, &upid));
                // At once: the seed is sent while the clone runs.
                Ok(Progress::InProgress {
                    step: waits::told(CLONE).to_owned(),
                    handles,
                    recheck: Duration::ZERO,
                })
            }
            // Perhaps an earlier request of ours: only a look can tell (F4, rule 2).
            Err(failure) if failure.kind == Kind::VmidTaken => {
                let (_, next, found) = self.decide(tasks).await?;
                if next == Next::Clone {
                    let said = "the VMID was taken a moment ago: the next look shows by whom";
                    return Err(call.error(ErrorClass::Busy, said));
                }
                let handles = tasks.kept().into_iter().chain(found).collect();
                Ok(call.in_progress(CLONE, handles))
            }
            Err(failure) => Err(call.failed(failure)),
        }
    }

    /// What is waited for while others clone; `None`: it is this machine's turn.
    async fn turn(&self) -> Option<Progress> {
        let provider = self.call.provider;
        let configured = provider.config.max_concurrent_clones;
        let until = Instant::now() + provider.pace.wait(turns::DOOR_WAIT);
        let recheck = loop {
            let door = provider.hints().door();
            let called = door.notified();
            let wait = provider.hints().ask_for_turn(self.vmid, configured)?;
            match wait {
                Wait::Come(recheck) => break recheck,
                Wait::AtTheDoor if timeout_at(until, called).await.is_ok() => {}
                Wait::AtTheDoor => break Duration::ZERO,
            }
        };
        let limit = provider.hints().clone_limit(configured);
        let step = if limit < configured as usize {
            "it waits for its turn to clone: one at a time, since three clones failed within 10 min"
                .to_owned()
        } else {
            format!(
                "it waits for its turn to clone: {limit} at once, as `maxConcurrentClones` says"
            )
        };
        Some(Progress::InProgress {
            step,
            handles: Vec::new(),
            recheck,
        })
    }

    fn mark(&self) -> Mark {
        let provider = self.call.provider;
        Mark {
            installation: provider.identity.installation.clone(),
            writer: provider.identity.writer.clone(),
            provider: provider.name.clone(),
            cluster: self.claim.cluster.clone(),
            slot: self.claim.slot.clone(),
            uid: self.key.uid().clone(),
            proxy: self.wanted.proxy.clone(),
            attempt: self.claim.attempt,
            config: self.wanted.config_hash.clone(),
            written: jiff::Timestamp::now(),
        }
    }

    /// The clone has ended and no upload is known to have: it was not sent, failed, or lost its
    /// answer.
    async fn upload_again(&self, sight: Sight, tasks: &Tasks) -> Result<Progress> {
        let machine = machine(sight, &self.call)?;
        let provider = self.call.provider;
        let volume = &provider.seed_names(self.key, &[self.claim.attempt])[0];
        match self
            .call
            .upload_arrived(&machine.node, volume, self.vmid, &self.snapshot)
            .await?
        {
            Arrival::Running => Ok(self.call.in_progress(UPLOAD, tasks.kept())),
            Arrival::Whole => {
                provider.hints().upload_settled(self.vmid);
                self.configure(&machine).await
            }
            Arrival::No => self.upload_to(&machine.node, tasks.kept()).await,
        }
    }

    async fn upload(&self, handles: Vec<Handle>) -> Result<Progress> {
        let node = self.target();
        self.upload_to(&node, handles).await
    }

    /// The node that a clone goes to.
    fn target(&self) -> NodeName {
        let claimed = self.claim.host.as_ref();
        claimed
            .and_then(|host| host.as_str().parse().ok())
            .filter(|node| self.snapshot.has_node(node))
            .unwrap_or_else(|| self.node.clone())
    }

    async fn upload_to(&self, node: &NodeName, mut handles: Vec<Handle>) -> Result<Progress> {
        let image = self.call.render_seed(self.key, self.claim, self.wanted)?;
        let sent = self
            .call
            .upload(node, self.claim, self.key, image, self.permit, self.vmid)
            .await?;
        self.call.provider.hints().seed_is_there(self.vmid);
        handles.retain(|kept| kept.step != UPLOAD);
        handles.push(sent);
        Ok(self.call.in_progress(UPLOAD, handles))
    }

    /// Grows the disk first, where it is too small: a machine that starts before that ended
    /// has grown its file system to the old size.
    async fn grow_and_start(&self, machine: &Machine) -> Result<Progress> {
        match self.grow(machine).await? {
            Some(growing) => Ok(self.call.in_progress(RESIZE, vec![growing])),
            None => self.start(&machine.node).await,
        }
    }

    async fn start(&self, node: &NodeName) -> Result<Progress> {
        let call = &self.call;
        let request = call.provider.client.start(node, self.vmid);
        call.provider.hints().changed(self.vmid);
        let upid = call
            .send(self.permit, request, || Ok(()))
            .await?
            .map_err(|failure| call.failed(failure))?;
        Ok(call.in_progress(START, vec![handle(START, &upid)]))
    }

    async fn stop(&self, machine: &Machine, mark: &Mark) -> Result<Progress> {
        let call = &self.call;
        let proof = Proof::new(mark, machine.at);
        call.stop(&machine.node, self.vmid, proof, self.permit)
            .await
    }
}

fn machine(sight: Sight, call: &Call<'_>) -> Result<Box<Machine>> {
    match sight {
        Sight::Machine(machine) => Ok(machine),
        _ => Err(call.error(
            ErrorClass::Internal,
            "decided about a machine that is not there",
        )),
    }
}

impl Call<'_> {
    /// What to do about a lock that has stood without a task for too long.
    pub(super) fn stale(&self, vmid: Vmid, machine: &Machine) -> Option<String> {
        let Some(lock) = machine.config.lock.as_ref().filter(|lock| {
            meaning(lock) != LockMeaning::Busy && meaning(lock) != LockMeaning::Hibernated
        }) else {
            self.provider.hints().not_stale(vmid);
            return None;
        };
        let stood = self.provider.hints().stale_for(vmid);
        (stood >= STALE).then(|| {
            format!(
                "the lock ({lock}) has stood for {} min and no task is seen: when nothing works on the machine, run `qm unlock {vmid}` on node {}, remove it, and look for volumes vm-{vmid}-disk-* that it left on storage {} (a killed clone leaves them, and its copy may still run)",
                stood.as_secs() / 60,
                machine.node,
                self.provider.config.storage
            )
        })
    }
}
