//! `delete`: look, decide, send. Ends the domain, removes its definition, then its volumes, the
//! seed last, and proves it.

pub(super) mod next;

use super::{
    Kvm2,
    call::Call,
    hosts::Host,
    look::Machine,
    names::{VolumeKind, own_volume},
    scan::Elsewhere,
};
use crate::client::{Failure, Kind, Session, shutdown, undefine};
use egress_core::{Claim, ErrorClass, MachineKey, Mark};
use egress_provider::{Operation, Permit, Progress, Proof, Result};
use next::{Facts, Next, Place, next};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;
use uuid::Uuid;

/// Since this version `undefine` knows of the state of TPMs.
const KNOWS_TPM: u64 = 8_009_000;

/// One call with what it is about.
struct Deletion<'a> {
    call: Call<'a>,
    key: &'a MachineKey,
    claim: &'a Claim,
    permit: &'a Permit,
    uuid: Uuid,
}

impl Kvm2 {
    pub(super) async fn delete_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
        permit: &Permit,
    ) -> Result<Progress> {
        let (call, uuid) = self.call_at(Operation::Delete, claim)?;
        let deletion = Deletion {
            call,
            key,
            claim,
            permit,
            uuid,
        };
        deletion.run().await
    }
}

impl<'a> Deletion<'a> {
    async fn run(&self) -> Result<Progress> {
        let call = &self.call;
        let provider = call.provider;
        let home = call.home(self.claim).await?;
        let session = call.fresh(home).await?;
        if let Some(progress) = self.step(&session, home, self.uuid).await? {
            return Ok(progress);
        }
        // Nothing of this key at the slot: it may be elsewhere.
        let scan = call.scan().await?;
        match provider.elsewhere(&scan, self.key, Some((home, self.uuid))) {
            Elsewhere::Nowhere => {}
            Elsewhere::Ours(host, uuid, _) => {
                let host = &provider.hosts[host];
                let session = call.fresh(host).await?;
                if let Some(progress) = self.step(&session, host, uuid).await? {
                    return Ok(progress);
                }
                let said = format!(
                    "the domain {uuid} bore this proxy's mark a moment ago: it is looked for again"
                );
                return Err(call.error(ErrorClass::Busy, said));
            }
            Elsewhere::NotOwned(host, uuid) => {
                return Err(call.not_owned(&provider.hosts[host], uuid));
            }
            Elsewhere::Silent(said) => return Err(call.error(ErrorClass::Transient, said)),
        }
        self.delete_volumes(&session).await?;
        for host in &provider.hosts {
            if !std::ptr::eq(host, home) {
                // A machine that was moved had its volumes there, or shares the pool.
                let session = call.fresh(host).await?;
                self.delete_volumes(&session).await?;
            }
        }
        provider.hints().gone(self.uuid, self.key);
        Ok(Progress::Done)
    }

    /// One step at one place; `None` when nothing of the key is there.
    async fn step(
        &self,
        session: &Session,
        host: &'a Host,
        uuid: Uuid,
    ) -> Result<Option<Progress>> {
        let call = &self.call;
        let provider = call.provider;
        let machine = call.look(session, host, uuid).await?;
        let slot = super::names::slot_of(uuid);
        let place = machine
            .as_ref()
            .map_or(Place::Free, |machine| Place::Machine {
                whose: call.whose_at(self.key, &slot, machine),
                power: machine.power,
            });
        let asked = provider.hints().stop_asked(uuid);
        let asked = asked.map(|at| provider.pace.since(at));
        let decided = next(Facts { place, asked })
            .map_err(|trouble| call.error(trouble.class, trouble.said))?;
        let Some(machine) = machine else {
            return Ok(None);
        };
        let progress = match decided {
            Next::Gone => return Ok(None),
            Next::Wait(step) => call.in_progress(step, Duration::from_secs(1)),
            Next::ShutDown(mark) => self.shut_down(session, &machine, &mark).await?,
            Next::Destroy(mark) => self.destroy(session, &machine, &mark).await?,
            Next::Undefine(mark) => self.undefine(session, &machine, &mark).await?,
        };
        Ok(Some(progress))
    }

    /// Spends a proof of ownership and asks the permit, and says until when the request may be
    /// written.
    fn may(&self, machine: &Machine<'_>, mark: &Mark) -> Result<Instant> {
        let call = &self.call;
        let last = call.may(self.permit)?;
        let proof = Proof::new(mark, machine.at);
        Ok(last.min(proof.spend(call.operation, &mark.slot)?))
    }

    async fn shut_down(
        &self,
        session: &Session,
        machine: &Machine<'_>,
        mark: &Mark,
    ) -> Result<Progress> {
        let call = &self.call;
        let last = self.may(machine, mark)?;
        let sent = session
            .shut_down(&machine.domain, shutdown::BY_AGENT, last)
            .await;
        // Whatever came of it, it is not asked twice.
        call.provider.hints().asked_to_stop(machine.domain.uuid);
        match sent {
            Ok(()) => Ok(call.in_progress("it shuts down", Duration::from_secs(1))),
            Err(failure) if failure.class == ErrorClass::OutcomeUnknown => {
                Err(call.failed(failure))
            }
            // Nobody there who could: an agent that is missing, deaf, or not up yet.
            Err(_) => self.destroy(session, machine, mark).await,
        }
    }

    async fn destroy(
        &self,
        session: &Session,
        machine: &Machine<'_>,
        mark: &Mark,
    ) -> Result<Progress> {
        let call = &self.call;
        let last = self.may(machine, mark)?;
        let sent = session.destroy(&machine.domain, last).await;
        self.done_or_gone(sent)?;
        Ok(call.in_progress("it is off", Duration::ZERO))
    }

    async fn undefine(
        &self,
        session: &Session,
        machine: &Machine<'_>,
        mark: &Mark,
    ) -> Result<Progress> {
        let call = &self.call;
        let libvirt = session
            .libvirt_version()
            .await
            .map_err(|f| call.failed(f))?;
        let mut flags = undefine::MANAGED_SAVE
            | undefine::SNAPSHOTS_METADATA
            | undefine::CHECKPOINTS_METADATA
            | undefine::NVRAM;
        if libvirt >= KNOWS_TPM {
            flags |= undefine::TPM;
        }
        let last = self.may(machine, mark)?;
        let sent = session.undefine(&machine.domain, flags, last).await;
        self.done_or_gone(sent)?;
        Ok(call.in_progress("its definition is removed", Duration::ZERO))
    }

    /// A domain that went, or stopped, by itself is as well.
    fn done_or_gone(&self, sent: std::result::Result<(), Failure>) -> Result<()> {
        match sent {
            Err(failure) if !matches!(failure.kind, Kind::NoDomain | Kind::WrongState) => {
                Err(self.call.failed(failure))
            }
            _ => Ok(()),
        }
    }

    /// Deletes the key's volumes up to this attempt; nothing else in the pool is ours to touch.
    async fn delete_volumes(&self, session: &Session) -> Result<()> {
        let call = &self.call;
        let provider = call.provider;
        let prefix = provider.volume_prefix();
        let recorded = provider.pool_of(self.claim);
        let pools: BTreeSet<&str> = [recorded, provider.config.pool.as_str()].into();
        for name in pools {
            let pool = match session.pool(name).await {
                // A pool that is gone took its volumes along; the configured one must be there.
                Err(failure) if failure.kind == Kind::NoPool && name != provider.config.pool => {
                    continue;
                }
                _ => call.pool(session, name).await?,
            };
            // A file that came behind its back is ours to delete, too.
            call.look_anew(session, &pool).await;
            let volumes = session.volumes(&pool).await.map_err(|f| call.failed(f))?;
            let mut ours: Vec<_> = volumes
                .into_iter()
                .filter_map(|volume| {
                    let own = own_volume(&volume.name, &prefix)?;
                    let of_it = own.machine == self.key.name() && own.attempt <= self.claim.attempt;
                    let kind = own.kind;
                    of_it.then_some((kind, volume))
                })
                .collect();
            // The seed last: while it is there, everyone can see that something is left.
            ours.sort_by_key(|(kind, volume)| (*kind == VolumeKind::Seed, volume.name.clone()));
            for (_, volume) in ours {
                call.delete_volume(session, &volume, self.permit).await?;
            }
        }
        Ok(())
    }
}
