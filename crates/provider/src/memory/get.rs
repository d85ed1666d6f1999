//! `get`: one complete look, and what it means. Changes nothing.

use super::{
    Memory,
    call::Elsewhere,
    create::wait_for,
    machine::{Agent, Lock, Machine, Power, interfaces},
    state::Look,
};
use crate::{Operation, Result};
use egress_core::machine::{
    Addresses, ConfigHash, MachineState, ObservedMachine, StopReason, Whose,
};
use egress_core::{Claim, Host, MachineKey, Mark, ProxyId, Standing};
use std::net::IpAddr;
use tokio::time::Instant;

impl Memory {
    pub(super) async fn get_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
    ) -> Result<ObservedMachine> {
        let (call, number) = self.call_at(Operation::Get, claim)?;
        let look = call.look(number, "", &[]).await?;
        if let Some(host) = &look.blind {
            return Ok(unknown(format!("{host} does not answer")));
        }
        let state = match &look.machine {
            Some(machine) => {
                let slot = &claim.slot;
                let whose = self.whose(key, &claim.cluster, Some(slot), slot, machine);
                match (whose, &machine.lock) {
                    (Whose::Ours(mark), _) => {
                        return Ok(self.ours(claim, number, &look, machine, &mark));
                    }
                    (_, Some(lock)) => {
                        return Ok(ObservedMachine::only(self.locked(lock, look.at)));
                    }
                    (Whose::NotOwned, None) => {
                        let restore = self.restored_mark(key, claim, machine).to_string();
                        return Ok(ObservedMachine::only(MachineState::NotOwned { restore }));
                    }
                    (Whose::Foreign { .. }, None) => MachineState::Foreign,
                }
            }
            None => match look.tasks.first() {
                Some(task) => MachineState::InProgress {
                    step: task.step.clone(),
                },
                None => MachineState::Absent,
            },
        };
        // What is not at the slot may still be elsewhere.
        Ok(match call.elsewhere(key, number, "").await? {
            Elsewhere::Nowhere => ObservedMachine::only(state),
            Elsewhere::Ours(other, ..) => {
                unknown(format!("the machine at {other} bears this key's mark"))
            }
            Elsewhere::Undecided(_, why) => unknown(why),
        })
    }

    fn ours(
        &self,
        claim: &Claim,
        number: u32,
        look: &Look,
        machine: &Machine,
        mark: &Mark,
    ) -> ObservedMachine {
        let runs = machine.power == Power::Running;
        let (state, busy) = match &machine.lock {
            None => (self.unlocked(claim, number, look.at, machine), None),
            Some(Lock::Held { reason, .. }) if runs => (
                self.unlocked(claim, number, look.at, machine),
                Some(reason.to_string()),
            ),
            Some(lock) => (self.locked(lock, look.at), None),
        };
        ObservedMachine {
            state,
            host: Some(Host::new(self.world.host(machine.host))),
            uptime: machine
                .up_since
                .map(|since| look.at.saturating_duration_since(since)),
            created_at: Some(self.world.timestamp(machine.created)),
            config_hash: Some(mark.config.clone()),
            attempt: Some(mark.attempt),
            busy,
            mac: machine
                .configured
                .as_ref()
                .map(|configured| configured.mac.clone()),
        }
    }

    fn locked(&self, lock: &Lock, now: Instant) -> MachineState {
        match wait_for(lock, now, self.settings.stale_lock) {
            Ok(step) => MachineState::InProgress { step },
            Err(stale) => MachineState::Unknown { why: stale.said },
        }
    }

    fn unlocked(&self, claim: &Claim, slot: u32, now: Instant, machine: &Machine) -> MachineState {
        let Some(configured) = machine.configured.as_ref() else {
            return MachineState::Stopped(StopReason::HalfMade);
        };
        let reason = match machine.power {
            Power::Stopped if !machine.started => StopReason::HalfMade,
            Power::Stopped => StopReason::PoweredOff,
            Power::Crashed => StopReason::Crashed,
            Power::Paused => StopReason::Paused,
            Power::Hibernated => StopReason::Hibernated,
            Power::IoError => StopReason::IoError,
            Power::Running => {
                let uptime = machine.up_since.map_or_else(Default::default, |since| {
                    now.saturating_duration_since(since)
                });
                let never = uptime >= self.settings.boot_timeout;
                let reported = claim.standing >= Standing::Sealed || machine.reported;
                match machine.agent {
                    Agent::Missing => StopReason::NoAgent,
                    Agent::Answering if machine.booted(self.world.physics(), now) => {
                        return MachineState::Running(Addresses::Reported {
                            addresses: reported_addresses(slot),
                            port: configured.port,
                        });
                    }
                    Agent::Silent if reported => {
                        return MachineState::Running(Addresses::Unreported);
                    }
                    Agent::Addressless if claim.standing >= Standing::Sealed => {
                        return MachineState::Running(Addresses::Unreported);
                    }
                    _ if never => StopReason::NeverReported,
                    _ => return MachineState::Provisioning,
                }
            }
        };
        MachineState::Stopped(reason)
    }

    /// The mark that would make a machine of our name ours again, from what else it bears.
    fn restored_mark(&self, key: &MachineKey, claim: &Claim, machine: &Machine) -> Mark {
        let void = machine.text.as_deref().and_then(Mark::find);
        let (proxy, config) = match (&machine.configured, void) {
            (Some(configured), _) => (configured.proxy.clone(), configured.config.clone()),
            (None, Some(void)) => (void.proxy, void.config),
            (None, None) => (ProxyId::unknown(key), ConfigHash::of(b"")),
        };
        Mark {
            installation: self.identity.installation.clone(),
            writer: self.identity.writer.clone(),
            provider: self.name.clone(),
            cluster: claim.cluster.clone(),
            slot: claim.slot.clone(),
            uid: key.uid().clone(),
            proxy,
            attempt: claim.attempt,
            config,
            written: self.world.timestamp(machine.created),
        }
    }
}

/// The addresses of the NIC we configured, those left out that reach nobody (G3).
fn reported_addresses(slot: u32) -> Vec<IpAddr> {
    interfaces(slot)
        .into_iter()
        .filter(|nic| nic.ours)
        .flat_map(|nic| nic.addresses)
        .filter(|address| match address {
            IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
        })
        .collect()
}

fn unknown(why: String) -> ObservedMachine {
    ObservedMachine::only(MachineState::Unknown { why })
}
