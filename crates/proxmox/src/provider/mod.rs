//! The contract, one file an operation.

mod agent;
mod allowance;
mod call;
mod check;
mod claim;
mod create;
mod delete;
mod get;
mod grammar;
mod hints;
mod list;
mod look;
mod marks;
mod names;
mod placement;
mod power;
mod seal;
mod seed;
mod shared;
mod stop;
mod survey;
mod tasks;
mod turns;
mod waits;

pub use allowance::CONFORMANCE_LINE;
#[cfg(feature = "conformance")]
pub(crate) use names::seed_file;
pub use seed::Payload;

use crate::{
    client::{Client, ClientConfig, HttpsWire, Vmid, Wire},
    config::Config,
};
use async_trait::async_trait;
use call::Call;
use egress_core::{
    Claim, ClusterId, ErrorClass, Identity, MachineKey, ProviderName, Slot,
    machine::{ObservedMachine, WantedMachine},
};
use egress_provider::{
    AddressSource, Capabilities, CreateKind, LateCreate, Listing, Operation, Pace, Permit,
    Placement, Progress, Provider, RecordedSlot, Report, Result, UserData,
};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

/// How long a create whose outcome is unknown may still land.
const SETTLE: Duration = Duration::from_mins(15);
/// How long a started machine may take to report an address, its agent's installation included.
const BOOT_TIMEOUT: Duration = Duration::from_mins(10);
const LEAST_BOOT_TIMEOUT: Duration = Duration::from_secs(5);
/// When a lock without a task is called stale.
const STALE: Duration = power::STALE_LOCK;

/// The provider that makes each proxy a virtual machine of Proxmox VE.
pub struct Proxmox {
    name: ProviderName,
    identity: Identity,
    config: Config,
    payload: Payload,
    client: Client,
    /// The cluster that answered first.
    home: OnceLock<ClusterId>,
    snapshot: tokio::sync::Mutex<shared::Last>,
    survey: tokio::sync::Mutex<Option<Arc<survey::Survey>>>,
    hints: Mutex<hints::Hints>,
    turns: agent::Turns,
    pace: Pace,
}

impl fmt::Debug for Proxmox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxmox")
            .field("name", &self.name)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Proxmox {
    /// A provider over HTTPS. The configuration must be [valid](Config::validate); no file is
    /// opened and no host asked before the first call.
    pub fn new(name: ProviderName, identity: Identity, config: Config, payload: Payload) -> Self {
        let wire = Arc::new(HttpsWire::new(config.ca_file.clone()));
        Self::over(name, identity, config, payload, wire)
    }

    /// A provider over another wire, for tests.
    pub fn over(
        name: ProviderName,
        identity: Identity,
        config: Config,
        payload: Payload,
        wire: Arc<dyn Wire>,
    ) -> Self {
        let urls = config
            .urls
            .iter()
            .filter_map(|url| url.parse().ok())
            .collect();
        let token_file = config.token_file.clone();
        Self {
            name,
            identity,
            config,
            payload,
            client: Client::new(ClientConfig { urls, token_file }, wire),
            home: OnceLock::new(),
            snapshot: tokio::sync::Mutex::default(),
            survey: tokio::sync::Mutex::default(),
            hints: Mutex::default(),
            turns: agent::Turns::default(),
            pace: Pace::default(),
        }
    }

    /// The client, for what is not part of the contract (recording answers of a host).
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The same provider in a world that runs so much faster than time.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub(crate) fn at_speed(mut self, speed: f64) -> Self {
        self.pace = Pace::times(speed);
        self.hints().pace = self.pace;
        self.turns.pace = self.pace;
        self
    }

    /// How long a started machine may take to report an address.
    fn boot_timeout(&self) -> Duration {
        // A guest that is real boots in time of its own, however fast the world.
        self.pace.wait(BOOT_TIMEOUT).max(LEAST_BOOT_TIMEOUT)
    }

    fn hints(&self) -> MutexGuard<'_, hints::Hints> {
        held(&self.hints)
    }

    /// A call about a claim, and its VMID.
    fn call_at(&self, operation: Operation, claim: &Claim) -> Result<(Call<'_>, Vmid)> {
        let call = self.call(operation, claim.slot.as_str());
        let vmid = names::vmid_of(&claim.slot)
            .ok_or_else(|| call.error(ErrorClass::Permanent, "not a slot of this provider"))?;
        Ok((call, vmid))
    }
}

/// No code panics while it holds one of these locks, so what they guard is whole.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Provider for Proxmox {
    fn name(&self) -> &ProviderName {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "proxmox"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            create: CreateKind::Task,
            late_create: LateCreate::SameSlot {
                settle: self.pace.wait(SETTLE),
            },
            address: AddressSource::Agent,
            user_data: UserData::NocloudIso,
            placement: Placement::MultiHost,
            loopback: self.config.allow_loopback,
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
