//! `get`: one complete look, and what it means. Changes nothing.

use super::{
    Kvm2,
    call::Call,
    hosts::Host,
    look::Machine,
    names::{self, VolumeKind},
    power::Power,
    scan::Elsewhere,
};
use crate::client::Session;
use egress_core::{
    Claim, Host as HostName, MachineKey, Mark, ProxyId, Standing,
    machine::{ConfigHash, MachineState, ObservedMachine, StopReason, Whose},
};
use egress_provider::{Operation, Result};
use uuid::Uuid;

struct Look<'a> {
    call: Call<'a>,
    key: &'a MachineKey,
    claim: &'a Claim,
    uuid: Uuid,
}

impl Kvm2 {
    pub(super) async fn get_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
    ) -> Result<ObservedMachine> {
        let (call, uuid) = self.call_at(Operation::Get, claim)?;
        let look = Look {
            call,
            key,
            claim,
            uuid,
        };
        look.run().await
    }
}

impl<'a> Look<'a> {
    async fn run(&self) -> Result<ObservedMachine> {
        let call = &self.call;
        let home = call.home(self.claim).await?;
        let session = call.kept(home).await?;
        let Some(machine) = call.look(&session, home, self.uuid).await? else {
            return self.elsewhere(home, MachineState::Absent).await;
        };
        match call.whose_at(self.key, &self.claim.slot, &machine) {
            Whose::Ours(mark) => self.ours(&session, &machine, &mark).await,
            Whose::NotOwned => {
                let restore = self.restored_mark(&machine).to_string();
                Ok(ObservedMachine::only(MachineState::NotOwned { restore }))
            }
            Whose::Foreign { .. } => self.elsewhere(home, MachineState::Foreign).await,
        }
    }

    /// What is not at the slot may still be elsewhere.
    async fn elsewhere(&self, home: &'a Host, state: MachineState) -> Result<ObservedMachine> {
        let call = &self.call;
        let provider = call.provider;
        let scan = call.scan().await?;
        match provider.elsewhere(&scan, self.key, Some((home, self.uuid))) {
            Elsewhere::Nowhere => Ok(ObservedMachine::only(state)),
            Elsewhere::Ours(host, uuid, mark) if uuid == self.uuid => {
                // It was moved there (G4).
                let host = &provider.hosts[host];
                let session = call.kept(host).await?;
                match call.look(&session, host, uuid).await? {
                    Some(machine) => self.ours(&session, &machine, &mark).await,
                    None => Ok(unknown("it moves from host to host".to_owned())),
                }
            }
            Elsewhere::Ours(host, uuid, _) => Ok(unknown(format!(
                "the domain {uuid} on {} bears this key's mark",
                provider.hosts[host].told()
            ))),
            Elsewhere::NotOwned(host, uuid) => Ok(unknown(format!(
                "the domain {uuid} on {} has this key's name or UID and is not proven ours",
                provider.hosts[host].told()
            ))),
            Elsewhere::Silent(why) => Ok(unknown(why)),
        }
    }

    async fn ours(
        &self,
        session: &Session,
        machine: &Machine<'_>,
        mark: &Mark,
    ) -> Result<ObservedMachine> {
        let call = &self.call;
        let provider = call.provider;
        let mac = self.mac(machine);
        let mut busy = None;
        let state = match machine.power {
            Power::Running => {
                let works = session.has_job(&machine.domain).await;
                // It may have ended since, and older servers know no jobs.
                if works.unwrap_or(false) {
                    busy = Some("a job of libvirt".to_owned());
                }
                let standing = self.claim.standing;
                call.addresses(session, machine, self.key, mac.as_deref(), standing)
                    .await?
            }
            Power::Changing(step) => MachineState::InProgress {
                step: step.to_owned(),
            },
            Power::Paused => MachineState::Stopped(StopReason::Paused),
            Power::IoError => MachineState::Stopped(StopReason::IoError),
            Power::Hibernated => MachineState::Stopped(StopReason::Hibernated),
            Power::Off | Power::Crashed => self.off(session, machine, mark).await?,
            Power::Unknown(state) => MachineState::Unknown {
                why: format!("libvirt gives it the state {state}, which is not known here"),
            },
        };
        if machine.power != Power::Running {
            provider.hints().starts(self.uuid, self.key);
        }
        provider.hints().marked(self.uuid, self.key, mark);
        Ok(ObservedMachine {
            state,
            host: machine.host.id().map(|id| HostName::new(id.name.as_str())),
            uptime: None,
            created_at: Some(mark.written),
            config_hash: Some(mark.config.clone()),
            attempt: Some(mark.attempt),
            busy,
            mac,
        })
    }

    /// The card we configured: the claim's where the domain has it, else its first.
    fn mac(&self, machine: &Machine<'_>) -> Option<String> {
        let macs = &machine.view.macs;
        let claimed = self.claim.mac.as_ref();
        let there = |mac: &&String| macs.iter().any(|m| m.eq_ignore_ascii_case(mac));
        claimed.filter(there).or_else(|| macs.first()).cloned()
    }

    async fn off(
        &self,
        session: &Session,
        machine: &Machine<'_>,
        mark: &Mark,
    ) -> Result<MachineState> {
        if self.claim.standing < Standing::Started {
            return Ok(MachineState::Stopped(StopReason::HalfMade));
        }
        let call = &self.call;
        // Without its disk it can only be replaced.
        let pool = call
            .pool(session, call.provider.pool_of(self.claim))
            .await?;
        let disk = call
            .provider
            .volume(self.key, mark.attempt, VolumeKind::Disk);
        let mut found = call.find_volume(session, &pool, &disk).await?;
        if found.is_none() {
            // The pool may not know of it yet, as where it was moved to.
            let anew = session.refresh_pool(&pool).await;
            anew.map_err(|failure| call.failed(failure))?;
            found = call.find_volume(session, &pool, &disk).await?;
        }
        if found.is_none() {
            tracing::warn!(domain = %self.uuid, disk, "its disk is gone: it can only be replaced");
            return Ok(MachineState::Stopped(StopReason::NeverReported));
        }
        Ok(MachineState::Stopped(if machine.power == Power::Crashed {
            StopReason::Crashed
        } else {
            StopReason::PoweredOff
        }))
    }

    /// The mark that would make a domain of our name ours again: the one it had when this
    /// process saw it last, else put together from what is left.
    fn restored_mark(&self, machine: &Machine<'_>) -> Mark {
        let provider = self.call.provider;
        if let Some(mark) = provider.hints().mark(self.uuid, self.key) {
            return mark;
        }
        let void = machine.view.mark.as_deref().and_then(Mark::find);
        let void = void.filter(|mark| mark.uid == *self.key.uid());
        let (proxy, config, written) = void.map_or_else(
            || {
                let config = ConfigHash::of(b"");
                (self.proxy(machine), config, jiff::Timestamp::now())
            },
            |mark| (mark.proxy, mark.config, mark.written),
        );
        Mark {
            installation: provider.identity.installation.clone(),
            writer: provider.identity.writer.clone(),
            provider: provider.name.clone(),
            cluster: self.claim.cluster.clone(),
            slot: names::slot_of(self.uuid),
            uid: self.key.uid().clone(),
            proxy,
            attempt: self.claim.attempt,
            config,
            written,
        }
    }

    /// Whose machine it is, as its title still says.
    fn proxy(&self, machine: &Machine<'_>) -> ProxyId {
        let title = machine.view.title.as_deref();
        let named = title.and_then(|title| title.rsplit(' ').next()?.parse().ok());
        named.unwrap_or_else(|| ProxyId::unknown(self.key))
    }
}

fn unknown(why: String) -> ObservedMachine {
    ObservedMachine::only(MachineState::Unknown { why })
}
