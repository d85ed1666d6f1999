//! `get`: one look in the order of rule 8, and what it means. Changes nothing.

use super::{
    Proxmox, agent,
    agent::Running,
    call::Call,
    grammar::Nic,
    hints::LastLook,
    look::{Depth, Machine, Sight, is_configured, node_of},
    names,
    power::{LockMeaning, Power, meaning, power},
    shared::{Elsewhere, PERIOD, Snapshot},
    tasks::{CLONE, DESTROY, is_unknown},
    waits,
};
use crate::client::{Vmid, VmidState};
use egress_core::{
    Claim, Host, MachineKey, Mark, ProxyId, Standing,
    machine::{Addresses, ConfigHash, MachineState, ObservedMachine, StopReason, Whose},
};
use egress_provider::{Operation, Result};
use std::time::Duration;

/// One call with what it is about.
struct Looking<'a> {
    call: Call<'a>,
    key: &'a MachineKey,
    claim: &'a Claim,
    vmid: Vmid,
}

impl Proxmox {
    pub(super) async fn get_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
    ) -> Result<ObservedMachine> {
        let (call, vmid) = self.call_at(Operation::Get, claim)?;
        let snapshot = call.snapshot(PERIOD).await?;
        call.same_cluster(&claim.cluster, &snapshot)?;
        if let Some(seen) = self.unchanged(key, claim, vmid, &snapshot) {
            return Ok(seen);
        }
        if self.still_stands_in_line(claim, vmid, &snapshot) {
            return Ok(ObservedMachine::only(MachineState::Absent));
        }
        let looking = Looking {
            call,
            key,
            claim,
            vmid,
        };
        looking.run(&snapshot).await
    }

    /// Whether a machine is as absent as when it took its place in the line of those that wait to
    /// clone: nothing was sent for it since that complete look, and the shared list shows nothing
    /// there. Were an earlier process's request to land now, the clone request would be refused.
    fn still_stands_in_line(&self, claim: &Claim, vmid: Vmid, snapshot: &Snapshot) -> bool {
        claim.handles.is_empty()
            && !claim.unsettled
            && claim.retiring.is_none()
            && !snapshot.guests.contains_key(&vmid)
            && self.hints().waits_for_turn(vmid)
    }

    /// What the last look showed, where nothing says that it changed: a machine that boots is
    /// looked at as often as its agent may be asked, one that is proven and sealed as often as
    /// its turn comes; between them the shared list is enough.
    fn unchanged(
        &self,
        key: &MachineKey,
        claim: &Claim,
        vmid: Vmid,
        snapshot: &Snapshot,
    ) -> Option<ObservedMachine> {
        if !claim.handles.is_empty() || claim.unsettled || claim.retiring.is_some() {
            return None;
        }
        let mut hints = self.hints();
        let last = hints.look(vmid, key)?;
        let (age, world_age) = (last.at.elapsed(), self.pace.since(last.at));
        let guest = snapshot.guests.get(&vmid);
        match &last.seen.state {
            MachineState::Provisioning if claim.standing >= Standing::Started => {
                let listed =
                    last.at > snapshot.at || guest.is_some_and(|guest| guest.lock.is_none());
                (listed && world_age < agent::GAP).then(|| last.seen.clone())
            }
            MachineState::Running(Addresses::Reported { .. })
                if claim.standing >= Standing::Sealed =>
            {
                let guest = guest?;
                let known = hints.sighted(vmid)?;
                let same = guest.lock.is_none()
                    && guest.node == last.node
                    && guest.status.as_deref() == Some("running")
                    && known.still_fits(guest);
                let mut seen = last.seen.clone();
                seen.uptime = seen.uptime.map(|uptime| uptime + age);
                let still = same
                    && last.seen.busy.is_none()
                    && (world_age < agent::steady_gap(hints.running) || !hints.take_steady_turn());
                still.then_some(seen)
            }
            _ => None,
        }
    }
}

impl Looking<'_> {
    async fn run(&self, snapshot: &Snapshot) -> Result<ObservedMachine> {
        let call = &self.call;
        // A task that runs tells enough, and costs one request.
        let tasks = call.poll(&self.claim.handles).await?;
        for handle in tasks.failed() {
            call.provider
                .hints()
                .saw_failure(self.vmid, self.key, handle);
        }
        if let Some(step) = tasks.live_step() {
            return Ok(ObservedMachine {
                host: self.claim.host.clone(),
                ..ObservedMachine::only(in_progress(step))
            });
        }
        let hint = node_of(self.claim, self.vmid, snapshot);
        // Before anything was seen there most likely is nothing.
        let hint = hint.filter(|_| {
            self.claim.standing > Standing::Sent || snapshot.guests.contains_key(&self.vmid)
        });
        match call.locate(self.vmid, hint, Depth::WithStatus).await? {
            Sight::Free => self.nothing_there(MachineState::Absent).await,
            Sight::Container => self.nothing_there(MachineState::Foreign).await,
            Sight::Hidden(said) => {
                if call.find_clone(self.vmid, snapshot).await?.is_some() {
                    return Ok(ObservedMachine::only(in_progress(CLONE)));
                }
                let whose = if is_unknown(self.claim) {
                    ", which may be this proxy's machine"
                } else {
                    ""
                };
                Ok(unknown(format!(
                    "this token may not see what is there{whose}: {said}: grant it VM.Audit there, or remove it"
                )))
            }
            Sight::Machine(machine) => self.machine(&machine, snapshot).await,
        }
    }

    /// Nothing of this key is at the slot. Absence needs one complete look that began now: with
    /// quorum, and with the key's mark nowhere else (G2).
    async fn nothing_there(&self, state: MachineState) -> Result<ObservedMachine> {
        let call = &self.call;
        let snapshot = call.snapshot(Duration::ZERO).await?;
        call.same_cluster(&self.claim.cluster, &snapshot)?;
        match &snapshot.quorate {
            Ok(true) => {}
            Ok(false) => {
                return Ok(unknown(
                    "the cluster has no quorum: what it lists may be old".to_owned(),
                ));
            }
            Err(why) => {
                return Ok(unknown(format!(
                    "whether the cluster has quorum is not known: {why}"
                )));
            }
        }
        let may_come =
            self.claim.standing >= Standing::Sent && self.claim.standing < Standing::Seen;
        if state == MachineState::Absent {
            if may_come && call.find_clone(self.vmid, &snapshot).await?.is_some() {
                return Ok(ObservedMachine::only(in_progress(CLONE)));
            }
            // It may have come while the list was read.
            if snapshot.guests.contains_key(&self.vmid)
                && call.existence(self.vmid).await? == VmidState::Taken
            {
                return Ok(unknown(
                    "it appeared while it was looked for, and is looked at again".to_owned(),
                ));
            }
        }
        Ok(
            match call.elsewhere(self.key, Some(self.vmid), &snapshot).await? {
                Elsewhere::Nowhere => {
                    if state == MachineState::Absent {
                        call.provider.hints().gone(self.vmid, false);
                    }
                    ObservedMachine::only(state)
                }
                Elsewhere::Ours(vmid, _) => unknown(format!(
                    "machine {vmid} bears this proxy's mark, and not the one that the record names: remove it, or restore the record"
                )),
                Elsewhere::NotOwned(vmid) => unknown(format!(
                    "machine {vmid} has this proxy's name or mark and is not proven ours: restore its mark, rename it, or remove it"
                )),
            },
        )
    }

    async fn machine(&self, machine: &Machine, snapshot: &Snapshot) -> Result<ObservedMachine> {
        let call = &self.call;
        let lock = machine.config.lock.as_ref();
        let whose = call.whose_at(self.key, &self.claim.slot, &self.claim.cluster, machine);
        let stale = call.stale(self.vmid, machine);
        match (lock.map(|lock| (lock, meaning(lock))), whose) {
            (
                Some((_, LockMeaning::Making | LockMeaning::Deleting | LockMeaning::Suspending)),
                _,
            ) if stale.is_some() => {
                if call.find_clone(self.vmid, snapshot).await?.is_some() {
                    return Ok(ObservedMachine::only(in_progress(CLONE)));
                }
                Ok(unknown(stale.unwrap_or_default()))
            }
            (Some((_, LockMeaning::Deleting)), _) => {
                Ok(ObservedMachine::only(in_progress(DESTROY)))
            }
            (Some((lock, LockMeaning::Making)), _) => {
                Ok(ObservedMachine::only(in_progress(&waits::lock(lock))))
            }
            (lock, Whose::Ours(mark)) => {
                self.ours(
                    machine,
                    &mark,
                    lock.map(|(lock, what)| (lock.as_str(), what)),
                )
                .await
            }
            (Some((lock, _)), _) => Ok(ObservedMachine::only(in_progress(&waits::lock(lock)))),
            (None, Whose::NotOwned) => {
                let restore = self.restored_mark(machine).to_string();
                Ok(ObservedMachine::only(MachineState::NotOwned { restore }))
            }
            (None, Whose::Foreign { .. }) => self.nothing_there(MachineState::Foreign).await,
        }
    }

    async fn ours(
        &self,
        machine: &Machine,
        mark: &Mark,
        lock: Option<(&str, LockMeaning)>,
    ) -> Result<ObservedMachine> {
        let provider = self.call.provider;
        let status = machine.status.as_ref();
        let uptime = status.map_or(Duration::ZERO, |status| {
            Duration::from_secs(status.uptime_s)
        });
        let mac = machine
            .config
            .keys
            .get("net0")
            .and_then(|text| Nic::parse(text))
            .and_then(|nic| nic.mac().map(str::to_owned));
        let state = match lock {
            Some((_, LockMeaning::Hibernated)) => MachineState::Stopped(StopReason::Hibernated),
            Some((_, LockMeaning::Suspending)) => in_progress("it is being hibernated"),
            _ => {
                let seeds = provider.seed_names(self.key, &[self.claim.attempt, mark.attempt]);
                let started = self.claim.standing >= Standing::Started;
                let configured = is_configured(machine, &seeds, started);
                let power = status.map_or(Power::Stopped, power);
                if provider.hints().is_broken(self.vmid) {
                    // Its own disk is gone: it can only be replaced.
                    MachineState::Stopped(StopReason::NeverReported)
                } else {
                    let asked = Running {
                        key: self.key,
                        vmid: self.vmid,
                        node: &machine.node,
                        mac: mac.as_deref(),
                        uptime,
                        standing: self.claim.standing,
                    };
                    self.state(machine, power, configured, &asked).await?
                }
            }
        };
        let busy = lock
            .filter(|(_, what)| *what == LockMeaning::Busy)
            .map(|(lock, _)| lock.to_owned());
        let seen = ObservedMachine {
            state,
            host: Some(Host::new(machine.node.as_str())),
            uptime: status.filter(|status| status.running).map(|_| uptime),
            created_at: Some(mark.written),
            config_hash: Some(mark.config.clone()),
            attempt: Some(mark.attempt),
            busy,
            mac,
        };
        provider.hints().looked(
            self.vmid,
            self.key,
            LastLook {
                at: machine.at,
                node: machine.node.clone(),
                seen: seen.clone(),
                mark: mark.clone(),
            },
        );
        Ok(seen)
    }

    async fn state(
        &self,
        machine: &Machine,
        power: Power,
        configured: bool,
        asked: &Running<'_>,
    ) -> Result<MachineState> {
        if !configured {
            return Ok(MachineState::Stopped(StopReason::HalfMade));
        }
        Ok(match power {
            Power::Running
                if !machine.config.agent_enabled() && self.claim.standing < Standing::Sealed =>
            {
                MachineState::Stopped(StopReason::NoAgent)
            }
            Power::Running => self.call.agent_turn(asked).await?,
            Power::Paused => MachineState::Stopped(StopReason::Paused),
            Power::IoError => MachineState::Stopped(StopReason::IoError),
            Power::Crashed => MachineState::Stopped(StopReason::Crashed),
            Power::Changing(word) => in_progress(&waits::power(&word)),
            Power::Stopped => {
                // While it is destroyed it looks whole (pve-flow): only the task tells.
                match self.call.active_task(&machine.node, self.vmid).await? {
                    Some(task) => in_progress(&task.step),
                    None if self.claim.standing < Standing::Started => {
                        MachineState::Stopped(StopReason::HalfMade)
                    }
                    None => MachineState::Stopped(StopReason::PoweredOff),
                }
            }
        })
    }

    /// The mark that would make a machine of our name ours again: the one it had when this
    /// process saw it last, else put together from what is left.
    fn restored_mark(&self, machine: &Machine) -> Mark {
        let provider = self.call.provider;
        if let Some(last) = provider.hints().look(self.vmid, self.key) {
            return last.mark;
        }
        let void = machine.config.description.as_deref().and_then(Mark::find);
        let void = void.filter(|mark| mark.uid == *self.key.uid());
        let (proxy, config, written) = void.map_or_else(
            || {
                (
                    ProxyId::unknown(self.key),
                    ConfigHash::of(b""),
                    jiff::Timestamp::now(),
                )
            },
            |mark| (mark.proxy, mark.config, mark.written),
        );
        Mark {
            installation: provider.identity.installation.clone(),
            writer: provider.identity.writer.clone(),
            provider: provider.name.clone(),
            cluster: self.claim.cluster.clone(),
            slot: names::slot_of(self.vmid),
            uid: self.key.uid().clone(),
            proxy,
            attempt: self.claim.attempt,
            config,
            written,
        }
    }
}

fn in_progress(step: &str) -> MachineState {
    MachineState::InProgress {
        step: waits::told(step).to_owned(),
    }
}

fn unknown(why: String) -> ObservedMachine {
    ObservedMachine::only(MachineState::Unknown { why })
}
