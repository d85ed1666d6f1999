//! The contract, one file an operation.

mod agent;
mod call;
mod check;
mod claim;
mod create;
mod delete;
pub(crate) mod descriptions;
pub(crate) mod domain_xml;
mod get;
mod hints;
mod hosts;
mod list;
mod look;
mod marks;
pub(crate) mod names;
mod placement;
mod power;
mod scan;
mod seal;
mod seed;
mod survey;

use crate::{
    client::{Client, Dialer},
    config::Config,
};
use async_trait::async_trait;
use call::Call;
use egress_core::{
    Claim, ErrorClass, Identity, MachineKey, ProviderName, Slot,
    machine::{ObservedMachine, WantedMachine},
};
use egress_provider::{
    AddressSource, Capabilities, CreateKind, LateCreate, Listing, Operation, Pace, Permit,
    Placement, Progress, Provider, RecordedSlot, Report, Result, UserData,
};
use std::{
    fmt,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use uuid::Uuid;

/// How long a request that was cut off may still be worked on: libvirtd takes up at once what it
/// has read, and what is on its way through a network is lost or there within this time.
const SETTLE: Duration = Duration::from_mins(1);
/// How long a started machine may take to report an address, its agent's installation included.
const BOOT_TIMEOUT: Duration = Duration::from_mins(10);
const LEAST_BOOT_TIMEOUT: Duration = Duration::from_secs(5);

/// The provider that makes each proxy a domain of libvirt.
pub struct Kvm2 {
    name: ProviderName,
    identity: Identity,
    config: Config,
    /// The static proxyd that seeds carry; `None` where none was found.
    payload: Option<PathBuf>,
    hosts: Vec<hosts::Host>,
    last_scan: tokio::sync::Mutex<Option<std::sync::Arc<scan::Scan>>>,
    hints: Mutex<hints::Hints>,
    pace: Pace,
}

impl fmt::Debug for Kvm2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kvm2")
            .field("name", &self.name)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Kvm2 {
    /// A provider over libvirt's sockets. The configuration must be [valid](Config::validate);
    /// no file is opened and no host asked before the first call. `payload` is the static
    /// proxyd that seeds carry.
    pub fn new(
        name: ProviderName,
        identity: Identity,
        config: Config,
        payload: Option<PathBuf>,
    ) -> Self {
        let uris = config.hosts.iter().filter_map(|block| block.parsed().ok());
        let hosts = uris.map(|uri| {
            let dialer = Dialer::new(uri, config.tls_files());
            hosts::Host::new(Client::new(dialer))
        });
        Self {
            name,
            identity,
            payload,
            hosts: hosts.collect(),
            last_scan: tokio::sync::Mutex::default(),
            hints: Mutex::default(),
            pace: Pace::default(),
            config,
        }
    }

    /// Whose machines it makes.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The same provider, whose waits are so much shorter.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub(crate) fn at_speed(mut self, speed: f64) -> Self {
        self.pace = Pace::times(speed);
        self
    }

    /// The same provider with another program in the place of `ssh`.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn with_ssh(mut self, program: &std::path::Path) -> Self {
        let dialed = self.hosts.iter().map(|host| {
            let dialer = Dialer::new(host.client.uri().clone(), self.config.tls_files());
            hosts::Host::new(Client::new(dialer.with_ssh(program.to_owned())))
        });
        self.hosts = dialed.collect();
        self
    }

    /// How long a started machine may take to report an address.
    fn boot_timeout(&self) -> Duration {
        self.pace.wait(BOOT_TIMEOUT).max(LEAST_BOOT_TIMEOUT)
    }

    fn hints(&self) -> MutexGuard<'_, hints::Hints> {
        // No code panics while it holds this lock, so what it guards is whole.
        self.hints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the names of all our volumes begin with.
    fn volume_prefix(&self) -> String {
        names::volume_prefix(&self.identity.installation, &self.name)
    }

    /// A call about a claim, and the UUID that its slot is.
    fn call_at(&self, operation: Operation, claim: &Claim) -> Result<(Call<'_>, Uuid)> {
        let call = self.call(operation, claim.slot.as_str());
        let uuid = names::uuid_of(&claim.slot)
            .ok_or_else(|| call.error(ErrorClass::Permanent, "not a slot of this provider"))?;
        Ok((call, uuid))
    }
}

#[async_trait]
impl Provider for Kvm2 {
    fn name(&self) -> &ProviderName {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "kvm2"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            create: CreateKind::Synchronous,
            late_create: LateCreate::SameSlot {
                settle: self.pace.wait(SETTLE),
            },
            address: AddressSource::Agent,
            user_data: UserData::NocloudIso,
            placement: if self.hosts.len() > 1 {
                Placement::MultiHost
            } else {
                Placement::SingleHost
            },
            loopback: false,
            boot_timeout: self.boot_timeout(),
        }
    }

    async fn check(&self) -> Result<Report> {
        self.check_all().await
    }

    async fn claim(
        &self,
        key: &MachineKey,
        wanted: &WantedMachine,
        attempt: u32,
        taken: &[Slot],
    ) -> Result<Claim> {
        self.claim_slot(key, wanted, attempt, taken).await
    }

    async fn survey(&self, key: &MachineKey, claim: &Claim, wanted: &WantedMachine) -> Result<()> {
        self.survey_next(key, claim, wanted).await
    }

    async fn create(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
        permit: &Permit,
    ) -> Result<Progress> {
        self.create_machine(key, claim, wanted, permit).await
    }

    async fn get(&self, key: &MachineKey, claim: &Claim) -> Result<ObservedMachine> {
        self.get_machine(key, claim).await
    }

    async fn seal(&self, key: &MachineKey, claim: &Claim, permit: &Permit) -> Result<Progress> {
        self.seal_machine(key, claim, permit).await
    }

    async fn delete(&self, key: &MachineKey, claim: &Claim, permit: &Permit) -> Result<Progress> {
        self.delete_machine(key, claim, permit).await
    }

    async fn list(&self, recorded: &[RecordedSlot]) -> Result<Listing> {
        self.list_machines(recorded).await
    }
}
