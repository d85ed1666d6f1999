//! What making a machine on one host depends on, read in one go. `check` tells what it shows,
//! and `create` refuses on the same findings (C4).

use super::{
    call::Call,
    descriptions::{VolumeView, pool_type},
};
use crate::{
    client::{Failure, Kind, Memory, Pool, PoolRoom, Session},
    config::{Config, Plug},
};
use egress_core::{
    Claim, ErrorClass, MachineKey,
    machine::{MachineSize, WantedMachine},
};
use egress_provider::{CheckFinding, CheckReason, Operation, Result, Severity};

/// Types of pools whose volumes are files, on which an overlay can stand.
const FILE_POOLS: [&str; 4] = ["dir", "fs", "netfs", "gluster"];
/// The oldest libvirt that is known to serve, and what it is called.
const OLDEST: (u64, &str) = (7_000_000, "7.0");

/// One host, as far as machines depend on it.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    pub(super) libvirt: u64,
    pub(super) hypervisor: u64,
    pub(super) findings: Vec<CheckFinding>,
    /// What the pool shows, where it can be used.
    pub(super) pool: Option<(Pool, PoolRoom)>,
    /// What the base image shows, where it can be used.
    pub(super) base: Option<VolumeView>,
    pub(super) memory: Memory,
}

impl Survey {
    fn error(&mut self, reason: CheckReason, field: &str, found: String, remedy: String) {
        self.findings.push(CheckFinding {
            reason,
            severity: Severity::Error,
            field: Some(field.to_owned()),
            found,
            remedy,
        });
    }
}

/// The bytes of a pool that stay free.
pub(super) fn reserved(config: &Config, room: PoolRoom) -> u64 {
    room.capacity / 100 * u64::from(config.reserve.storage_percent)
}

/// The bytes of memory that a host has for machines.
pub(super) fn free_memory(config: &Config, memory: Memory) -> u64 {
    memory
        .available
        .saturating_sub(config.reserve.memory_mib << 20)
}

impl Call<'_> {
    pub(super) async fn survey(&self, session: &Session) -> Result<Survey> {
        let failed = |failure| self.failed(failure);
        let mut survey = Survey {
            libvirt: session.libvirt_version().await.map_err(failed)?,
            hypervisor: session.hypervisor_version().await.map_err(failed)?,
            findings: Vec::new(),
            pool: None,
            base: None,
            memory: session.memory().await.map_err(failed)?,
        };
        if survey.libvirt < OLDEST.0 {
            survey.findings.push(CheckFinding {
                reason: CheckReason::VersionUnsupported,
                severity: Severity::Error,
                field: None,
                found: format!("libvirt is {}", version(survey.libvirt)),
                remedy: format!("use {} or newer", OLDEST.1),
            });
        }
        self.survey_pool(session, &mut survey).await?;
        self.survey_network(session, &mut survey).await?;
        self.survey_type(session, &mut survey).await?;
        self.survey_room(&mut survey);
        self.survey_payload(&mut survey);
        Ok(survey)
    }

    async fn survey_pool(&self, session: &Session, survey: &mut Survey) -> Result<()> {
        let config = &self.provider.config;
        let name = &config.pool;
        let pool = match session.pool(name).await {
            Ok(pool) => pool,
            Err(failure) if failure.kind == Kind::NoPool => {
                survey.error(
                    CheckReason::StorageUnavailable,
                    "pool",
                    format!("there is no storage pool {name}"),
                    "define it with `virsh pool-define-as`, or name another one".to_owned(),
                );
                return Ok(());
            }
            Err(failure) => return Err(self.failed(failure)),
        };
        let room = session.pool_room(&pool).await.map_err(|f| self.failed(f))?;
        if !room.is_running {
            survey.error(
                CheckReason::StorageUnavailable,
                "pool",
                format!("the storage pool {name} is not active"),
                format!("run `virsh pool-start {name}` and `virsh pool-autostart {name}`"),
            );
            return Ok(());
        }
        let xml = session.pool_xml(&pool).await.map_err(|f| self.failed(f))?;
        let kind = pool_type(&xml).map_err(|why| self.unreadable(&why))?;
        if !FILE_POOLS.contains(&kind.as_str()) {
            survey.error(
                CheckReason::StorageUnavailable,
                "pool",
                format!("the storage pool {name} is of type {kind}, whose volumes are no files"),
                "use a pool of type dir, fs or netfs".to_owned(),
            );
            return Ok(());
        }
        self.survey_base(session, &pool, survey).await?;
        survey.pool = Some((pool, room));
        Ok(())
    }

    async fn survey_base(&self, session: &Session, pool: &Pool, survey: &mut Survey) -> Result<()> {
        let image = &self.provider.config.base_image;
        let read = async {
            let volume = session.volume(pool, image).await?;
            session.volume_xml(&volume).await
        };
        let base = match read.await {
            Ok(xml) => VolumeView::read(&xml).map_err(|why| self.unreadable(&why))?,
            Err(failure) if failure.kind == Kind::NoVolume => {
                survey.error(
                    CheckReason::TemplateInvalid,
                    "baseImage",
                    format!("the pool {} has no volume {image}", pool.name),
                    format!(
                        "put the image there and run `virsh pool-refresh {}`, or name another one",
                        pool.name
                    ),
                );
                return Ok(());
            }
            Err(failure) => return Err(self.failed(failure)),
        };
        match base.format.as_deref() {
            Some("qcow2" | "raw") => survey.base = Some(base),
            other => survey.error(
                CheckReason::TemplateInvalid,
                "baseImage",
                format!(
                    "{image} is {}, not a disk",
                    other.unwrap_or("of no known format")
                ),
                "use an image in the format qcow2 or raw".to_owned(),
            ),
        }
        Ok(())
    }

    async fn survey_network(&self, session: &Session, survey: &mut Survey) -> Result<()> {
        // libvirt tells nothing of bridges that are not its own.
        let Plug::Network { name, .. } = self.provider.config.plug() else {
            return Ok(());
        };
        let active = async {
            let network = session.network(name).await?;
            session.network_is_active(&network).await
        };
        match active.await {
            Ok(true) => {}
            Ok(false) => survey.error(
                CheckReason::NetworkInvalid,
                "network",
                format!("the network {name} is not active"),
                format!("run `virsh net-start {name}` and `virsh net-autostart {name}`"),
            ),
            Err(failure) if failure.kind == Kind::NoNetwork => survey.error(
                CheckReason::NetworkInvalid,
                "network",
                format!("there is no network {name}"),
                "define it with `virsh net-define`, name another one, or a `bridge`".to_owned(),
            ),
            Err(failure) => return Err(self.failed(failure)),
        }
        Ok(())
    }

    async fn survey_type(&self, session: &Session, survey: &mut Survey) -> Result<()> {
        let config = &self.provider.config;
        let domain_type = config.domain_type.as_str();
        let offered = session
            .domain_capabilities("x86_64", &config.machine_type, domain_type)
            .await;
        match offered {
            Ok(_) => {}
            Err(Failure {
                kind: Kind::Unsupported | Kind::DescriptionRefused,
                said,
                ..
            }) => survey.error(
                CheckReason::DomainTypeInvalid,
                "domainType",
                format!(
                    "libvirt offers no machine {} of type {domain_type}: {said}",
                    config.machine_type
                ),
                "enable virtualization in the firmware and load the module kvm, or name another machineType"
                    .to_owned(),
            ),
            Err(failure) => return Err(self.failed(failure)),
        }
        Ok(())
    }

    fn survey_room(&self, survey: &mut Survey) {
        let config = &self.provider.config;
        if let Some((_, room)) = survey.pool
            && room.available < reserved(config, room)
        {
            let found = format!(
                "the pool {} has {} GiB of {} GiB free, less than the reserve of {} %",
                config.pool,
                room.available >> 30,
                room.capacity >> 30,
                config.reserve.storage_percent
            );
            let remedy = "make room, or lower reserve.storagePercent".to_owned();
            survey.error(
                CheckReason::LowCapacity,
                "reserve.storagePercent",
                found,
                remedy,
            );
        }
        if free_memory(config, survey.memory) == 0 {
            let found = format!(
                "{} MiB of memory are free, less than the reserve of {} MiB",
                survey.memory.available >> 20,
                config.reserve.memory_mib
            );
            let remedy = "free memory, or lower reserve.memoryMiB".to_owned();
            survey.error(CheckReason::LowCapacity, "reserve.memoryMiB", found, remedy);
        }
    }

    fn survey_payload(&self, survey: &mut Survey) {
        let provider = self.provider;
        let agent = egress_seed::GuestAgent::from(provider.config.guest_agent);
        let needed = agent.needs_payload();
        let there = provider.payload.as_ref().is_some_and(|path| path.is_file());
        if needed && !there {
            survey.findings.push(CheckFinding {
                reason: CheckReason::ConfigInvalid,
                severity: Severity::Error,
                field: Some("guestAgent".to_owned()),
                found: format!("`guestAgent: {agent}` needs the static proxyd, which is not there"),
                remedy: super::seed::NO_PAYLOAD.to_owned(),
            });
        }
    }

    /// A survey's first error as this call's own.
    pub(super) fn refuse_on(&self, findings: &[CheckFinding]) -> Result<()> {
        let first = findings.iter().find(|f| f.severity == Severity::Error);
        first.map_or(Ok(()), |finding| {
            let said = format!("{}: {}", finding.found, finding.remedy);
            Err(self.error(class_of(finding.reason), said))
        })
    }
}

impl Call<'_> {
    /// Refuses a machine that is too large for a host even where nothing else is on it.
    fn could_ever_hold(&self, host: &str, size: &MachineSize, survey: &Survey) -> Result<()> {
        let config = &self.provider.config;
        let memory = u64::from(size.memory_mib) + config.reserve.memory_mib;
        let total = survey.memory.total >> 20;
        if memory > total {
            let said = format!(
                "spec.machine.memoryMiB: {}: {host} has {total} MiB in all, {} of them reserved: \
                 ask for less",
                size.memory_mib, config.reserve.memory_mib
            );
            return Err(self.error(ErrorClass::Capacity, said));
        }
        if let Some((_, room)) = survey.pool {
            let disk = (u64::from(size.disk_gib) << 30).saturating_add(reserved(config, room));
            if disk > room.capacity {
                let said = format!(
                    "spec.machine.diskGiB: {}: the pool {} of {host} has {} GiB in all, {} % of \
                     them reserved: ask for less",
                    size.disk_gib,
                    config.pool,
                    room.capacity >> 30,
                    config.reserve.storage_percent
                );
                return Err(self.error(ErrorClass::Capacity, said));
            }
        }
        Ok(())
    }
}

/// What a caller of `create` may do about a finding.
const fn class_of(reason: CheckReason) -> ErrorClass {
    match reason {
        CheckReason::LowCapacity => ErrorClass::Capacity,
        CheckReason::Unreachable => ErrorClass::Transient,
        CheckReason::Unauthorized => ErrorClass::Unauthorized,
        CheckReason::ClusterChanged => ErrorClass::NeedsOperator,
        _ => ErrorClass::Permanent,
    }
}

impl super::Kvm2 {
    /// Whether the machine that follows the one of a claim could be made, on whatever host.
    pub(super) async fn survey_next(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
    ) -> Result<()> {
        let call = self.call(Operation::Survey, claim.slot.as_str());
        let mut refusal = None;
        for host in &self.hosts {
            let possible = async {
                let session = call.kept(host).await?;
                let mut survey = call.survey(&session).await?;
                // Room comes free with the machine that goes.
                survey
                    .findings
                    .retain(|finding| finding.reason != CheckReason::LowCapacity);
                call.refuse_on(&survey.findings)?;
                call.could_ever_hold(host.told(), &wanted.size, &survey)
            };
            match possible.await {
                Ok(()) => {
                    let mac = claim.mac.as_deref();
                    return call
                        .render_seed(key, claim.attempt, mac, wanted)
                        .await
                        .map(drop);
                }
                Err(error) => {
                    refusal.get_or_insert(error);
                }
            }
        }
        Err(refusal.unwrap_or_else(|| call.error(ErrorClass::Permanent, "no host is configured")))
    }
}

/// A version of libvirt's own counting, for people.
pub(super) fn version(number: u64) -> String {
    format!(
        "{}.{}.{}",
        number / 1_000_000,
        number / 1000 % 1000,
        number % 1000
    )
}
