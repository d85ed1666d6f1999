//! `create`: look, decide, send. Each call takes one step and comes back.

pub(super) mod next;
mod volumes;

use super::{
    Kvm2,
    call::Call,
    descriptions::VolumeView,
    domain_xml::{self, DomainSpec},
    hosts::Host,
    look::Machine,
    names::VolumeKind,
    scan::Elsewhere,
    survey::{Survey, free_memory, reserved},
};
use crate::client::{Kind, Session};
use egress_core::{
    Claim, ErrorClass, MachineKey, Mark, Standing,
    machine::{WantedMachine, Whose},
};
use egress_provider::{Operation, Permit, Progress, Result};
use next::{Facts, History, Next, Place, Volumes, next};
use std::time::Duration;
use uuid::Uuid;

/// Looked at again at once: the step is done.
const AT_ONCE: Duration = Duration::ZERO;
/// How soon to come back to what someone else works on.
const SOON: Duration = Duration::from_secs(1);

/// One call with what it is about.
struct Creation<'a> {
    call: Call<'a>,
    key: &'a MachineKey,
    claim: &'a Claim,
    wanted: &'a WantedMachine,
    permit: &'a Permit,
    uuid: Uuid,
    host: &'a Host,
    session: Session,
}

impl Kvm2 {
    pub(super) async fn create_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
        permit: &Permit,
    ) -> Result<Progress> {
        let (call, uuid) = self.call_at(Operation::Create, claim)?;
        let host = call.home(claim).await?;
        let session = call.fresh(host).await?;
        let creation = Creation {
            call,
            key,
            claim,
            wanted,
            permit,
            uuid,
            host,
            session,
        };
        creation.run().await
    }
}

impl Creation<'_> {
    async fn run(&self) -> Result<Progress> {
        let call = &self.call;
        let machine = call.look(&self.session, self.host, self.uuid).await?;
        if machine.is_none()
            && let Some(progress) = self.moved().await?
        {
            return Ok(progress);
        }
        let facts = self.facts(machine.as_ref()).await?;
        let next = next(&facts).map_err(|trouble| call.error(trouble.class, trouble.said))?;
        match (next, machine) {
            (Next::Done, _) => Ok(Progress::Done),
            (Next::Wait(step), _) => Ok(call.in_progress(step, SOON)),
            (Next::MakeVolumes, machine) => {
                let made = self.make_volumes(machine.as_ref()).await?;
                match (made, machine) {
                    // Defined at once: its place shows a machine from here on, also to a look
                    // that another host's silence keeps from ever saying "absent".
                    (None, None) => self.define().await,
                    (None, Some(_)) => Ok(call.in_progress("its volumes are made", AT_ONCE)),
                    (Some(progress), _) => Ok(progress),
                }
            }
            (Next::Define, _) => self.define().await,
            (Next::Start, Some(machine)) => self.start(&machine).await,
            (Next::Start, None) => {
                let said = "decided about a domain that is not there";
                Err(call.error(ErrorClass::Internal, said))
            }
        }
    }

    /// The machine of this slot on another host: it was moved there, and is not made again.
    async fn moved(&self) -> Result<Option<Progress>> {
        let call = &self.call;
        for host in &call.provider.hosts {
            if std::ptr::eq(host, self.host) {
                continue;
            }
            let session = match call.kept(host).await {
                Ok(session) => session,
                // What nobody has seen was moved by nobody.
                Err(_) if self.claim.standing < Standing::Seen => continue,
                Err(error) => return Err(error),
            };
            let Some(machine) = call.look(&session, host, self.uuid).await? else {
                continue;
            };
            if let Whose::Ours(_) = call.whose_at(self.key, &self.claim.slot, &machine) {
                use super::power::Power;
                if machine.power == Power::Running {
                    return Ok(Some(Progress::Done));
                }
                let said = format!(
                    "the machine was moved to {} and does not run there: start it, or remove it",
                    host.told()
                );
                return Err(call.error(ErrorClass::NeedsOperator, said));
            }
        }
        Ok(None)
    }

    async fn facts(&self, machine: Option<&Machine<'_>>) -> Result<Facts> {
        let call = &self.call;
        let history = if self.claim.standing >= Standing::Started {
            History::Started
        } else {
            History::NeverStarted
        };
        let place = machine.map_or(Place::Free, |machine| Place::Machine {
            whose: call.whose_at(self.key, &self.claim.slot, machine),
            power: machine.power,
        });
        let volumes = match (&place, history) {
            // Neither is looked at.
            (
                Place::Machine {
                    whose: Whose::Ours(_),
                    ..
                },
                History::Started,
            ) => Volumes::Whole,
            (
                Place::Machine {
                    whose: Whose::Ours(_),
                    ..
                }
                | Place::Free,
                _,
            ) => self.volumes(machine).await?,
            _ => Volumes::Doubtful,
        };
        Ok(Facts {
            place,
            volumes,
            history,
        })
    }

    /// Whether disk and seed are whole. A seed was, when its domain was defined; before that
    /// only the process that wrote it knows.
    async fn volumes(&self, machine: Option<&Machine<'_>>) -> Result<Volumes> {
        let call = &self.call;
        let written = machine.is_some() || call.provider.hints().has_seed(self.uuid, self.wanted);
        if !written {
            return Ok(Volumes::Doubtful);
        }
        let pool = call.pool(&self.session, self.pool_name()).await?;
        for kind in [VolumeKind::Disk, VolumeKind::Seed] {
            let name = self.volume(kind);
            if call
                .find_volume(&self.session, &pool, &name)
                .await?
                .is_none()
            {
                return Ok(Volumes::Doubtful);
            }
        }
        Ok(Volumes::Whole)
    }

    fn volume(&self, kind: VolumeKind) -> String {
        let provider = self.call.provider;
        provider.volume(self.key, self.claim.attempt, kind)
    }

    fn pool_name(&self) -> &str {
        self.call.provider.pool_of(self.claim)
    }

    /// All that this and every later step needs, before the first request (C4).
    async fn preconditions(&self) -> Result<Survey> {
        let call = &self.call;
        let provider = call.provider;
        let scan = call.scan().await?;
        let place = Some((self.host, self.uuid));
        let elsewhere = if self.claim.standing < Standing::Seen {
            provider.elsewhere_when_new(&scan, self.key, place)
        } else {
            provider.elsewhere(&scan, self.key, place)
        };
        match elsewhere {
            Elsewhere::Nowhere => {}
            Elsewhere::Ours(host, uuid, _) => {
                let said = format!(
                    "the domain {uuid} on {} bears this proxy's mark already, and the record names {}: remove the one that is not to stay",
                    provider.hosts[host].told(),
                    self.uuid
                );
                return Err(call.error(ErrorClass::NeedsOperator, said));
            }
            Elsewhere::NotOwned(host, uuid) => {
                return Err(call.not_owned(&provider.hosts[host], uuid));
            }
            Elsewhere::Silent(said) => return Err(call.error(ErrorClass::Transient, said)),
        }
        let namesake = scan.seen.iter().find(|seen| {
            std::ptr::eq(&raw const provider.hosts[seen.host], self.host)
                && seen.domain.name == self.key.name()
                && seen.domain.uuid != self.uuid
        });
        if let Some(seen) = namesake {
            let said = format!(
                "the domain {} on {} has this machine's name and is not ours: rename or remove it",
                seen.domain.uuid,
                self.host.told()
            );
            return Err(call.error(ErrorClass::NeedsOperator, said));
        }
        // libvirt knows how much is free from its last look at the directory, and machines that
        // write make it less.
        if let Ok(pool) = self.session.pool(self.pool_name()).await {
            call.look_anew(&self.session, &pool).await;
        }
        let survey = call.survey(&self.session).await?;
        call.refuse_on(&survey.findings)?;
        self.has_room(&survey)?;
        Ok(survey)
    }

    /// Room for this machine, by figures and never by text.
    fn has_room(&self, survey: &Survey) -> Result<()> {
        let call = &self.call;
        let config = &call.provider.config;
        let Some((_, room)) = survey.pool else {
            return Err(call.error(ErrorClass::Internal, "a survey without a pool"));
        };
        // An overlay grows as it is written: room for it is room that may be needed.
        let disk = self.disk_bytes(survey)?;
        let needed = disk.saturating_add(reserved(config, room));
        if room.available < needed {
            let said = format!(
                "the pool {} has {} MiB free, {} MiB are needed with the reserve",
                config.pool,
                room.available >> 20,
                needed.div_ceil(1 << 20)
            );
            return Err(call.error(ErrorClass::Capacity, said));
        }
        let memory = u64::from(self.wanted.size.memory_mib) << 20;
        let free = free_memory(config, survey.memory);
        if free < memory {
            let said = format!(
                "{} has {} MiB of memory free beside the reserve, {} MiB are needed",
                self.host.told(),
                free >> 20,
                self.wanted.size.memory_mib
            );
            return Err(call.error(ErrorClass::Capacity, said));
        }
        Ok(())
    }

    /// The card's MAC: the claim's, else what the domain has.
    fn mac(&self, machine: Option<&Machine<'_>>) -> Result<String> {
        let defined = machine.and_then(|machine| machine.view.macs.first());
        let mac = defined.or(self.claim.mac.as_ref());
        mac.cloned().ok_or_else(|| {
            self.call
                .error(ErrorClass::Internal, "a claim without a MAC")
        })
    }

    async fn define(&self) -> Result<Progress> {
        let call = &self.call;
        let provider = call.provider;
        self.preconditions().await?;
        let pool = call.pool(&self.session, self.pool_name()).await?;
        let mut paths = Vec::new();
        for kind in [VolumeKind::Disk, VolumeKind::Seed] {
            let name = self.volume(kind);
            let Some(volume) = call.find_volume(&self.session, &pool, &name).await? else {
                provider.hints().seed_lost(self.uuid);
                return Ok(call.in_progress("its volumes went away and are made again", AT_ONCE));
            };
            let xml = self.session.volume_xml(&volume).await;
            let xml = xml.map_err(|f| call.failed(f))?;
            let view = VolumeView::read(&xml).map_err(|why| call.unreadable(&why))?;
            paths.push(view.path);
        }
        let mark = self.mark();
        let spec = DomainSpec {
            domain_type: provider.config.domain_type,
            machine_type: &provider.config.machine_type,
            name: self.key.name(),
            uuid: self.uuid,
            title: format!("egress proxy {}", mark.proxy),
            mark: mark.to_string(),
            memory_mib: self.wanted.size.memory_mib,
            cpus: self.wanted.size.cpus,
            disk: &paths[0],
            seed: &paths[1],
            seed_bus: provider.config.seed_bus,
            plug: provider.config.plug(),
            mac: &self.mac(None)?,
        };
        let xml = domain_xml::render(&spec);
        self.permit.ask_creating(call.operation, &call.target)?;
        self.host.gets(self.key);
        let last = self.permit.not_after();
        match self.session.define(self.key.name(), &xml, 0, last).await {
            Ok(_) => Ok(call.in_progress("it is defined", AT_ONCE)),
            // Between the look and the request: the next look says whose it is.
            Err(failure) if failure.kind == Kind::DomainTaken => {
                Err(call.error(ErrorClass::Busy, failure.to_string()))
            }
            Err(failure) => Err(call.failed(failure)),
        }
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

    async fn start(&self, machine: &Machine<'_>) -> Result<Progress> {
        let call = &self.call;
        call.provider.hints().starts(self.uuid, self.key);
        let last = call.may(self.permit)?;
        match self.session.start(&machine.domain, last).await {
            Ok(()) => Ok(Progress::Done),
            // Another call was quicker.
            Err(failure) if matches!(failure.kind, Kind::WrongState | Kind::NoDomain) => {
                Err(call.error(ErrorClass::Busy, failure.to_string()))
            }
            Err(failure) => Err(call.failed(failure)),
        }
    }
}
