//! The reference provider: the contract with nothing else in the way.
//!
//! [`World`] is a hypervisor in virtual time that works in tasks, as Proxmox VE does: a
//! `clone` holds its slot from its beginning, nameless and locked, and bears name and mark
//! when it ends; a seed is uploaded beside it; `configure` brings them together; `start`
//! runs it. [`Memory`] is one process's client to it, one file an operation. Everything a
//! network, a crash or a person can do to the two is in [`Gate`] and on [`World`].

mod call;
mod check;
mod claim;
mod create;
mod delete;
mod gate;
mod get;
#[cfg(feature = "conformance")]
mod harness;
mod list;
mod machine;
mod order;
mod people;
mod physics;
mod seal;
mod state;
mod world;

#[cfg(test)]
pub(crate) mod tests;

#[cfg(feature = "conformance")]
pub use harness::Bench;

pub use gate::{Gate, Request, RequestKind, Verdict};
pub use machine::{Agent, Power, guest_ipv4, guest_ipv6, slot_of};
pub use people::Stranger;
pub use physics::Physics;
pub use state::Network;
pub use world::{Guest, Inventory, World};

use crate::{
    AddressSource, Capabilities, CreateKind, LateCreate, Listing, Permit, Placement, Progress,
    Provider, RecordedSlot, Report, Result, UserData,
};
use egress_core::machine::{ObservedMachine, WantedMachine};
use egress_core::{Claim, ClusterId, Handle, Identity, MachineKey, ProviderName, SeedVolume, Slot};
use order::Failure;
use std::{
    collections::BTreeSet,
    ops::RangeInclusive,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// What one client was configured with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The slots it may take; numbers below 2^24.
    pub range: RangeInclusive<u32>,
    /// The port its machines serve on; `None` leaves it to the manifest.
    pub port: Option<u16>,
    /// How long a running machine may have no address before it never will.
    pub boot_timeout: Duration,
    /// How long one call may take.
    pub deadline: Duration,
    /// How soon to come back to a task.
    pub recheck: Duration,
    /// How long a lock without a task may stand before an admin must look.
    pub stale_lock: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            range: 100..=999_999,
            port: None,
            boot_timeout: Duration::from_mins(10),
            deadline: Duration::from_secs(30),
            recheck: Duration::from_secs(1),
            stale_lock: Duration::from_mins(5),
        }
    }
}

/// One process's client to a [`World`].
#[derive(Debug)]
pub struct Memory {
    name: ProviderName,
    identity: Identity,
    world: Arc<World>,
    settings: Settings,
    capabilities: Capabilities,
    /// The cluster that answered when the process began.
    cluster: ClusterId,
    client: u32,
    /// Failed tasks that were told already; a restart may tell one twice.
    told: Mutex<BTreeSet<u64>>,
}

impl Memory {
    /// A new process's client.
    pub fn new(
        name: ProviderName,
        identity: Identity,
        world: Arc<World>,
        settings: Settings,
    ) -> Self {
        let cluster = world.state().cluster.clone();
        let physics = world.physics();
        let late_create = if physics.settle.is_zero() {
            LateCreate::Never
        } else {
            LateCreate::SameSlot {
                settle: physics.settle,
            }
        };
        let capabilities = Capabilities {
            create: CreateKind::Task,
            late_create,
            address: AddressSource::Agent,
            user_data: UserData::NocloudIso,
            placement: Placement::MultiHost,
            loopback: false,
            boot_timeout: settings.boot_timeout,
        };
        let client = world.next_client();
        Self {
            name,
            identity,
            world,
            settings,
            capabilities,
            cluster,
            client,
            told: Mutex::new(BTreeSet::new()),
        }
    }

    /// The hypervisor it talks to.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// Its number in [`Request::client`].
    pub const fn client(&self) -> u32 {
        self.client
    }

    /// What the full name of every seed of ours begins with; no name holds a dot.
    fn seed_prefix(&self) -> String {
        format!(
            "{}.{}.",
            self.identity.installation.as_str(),
            self.name.as_str()
        )
    }

    /// The full name of the seed for one attempt.
    fn seed_name(&self, key: &MachineKey, attempt: u32) -> String {
        format!("{}{}.{attempt}.iso", self.seed_prefix(), key.name())
    }

    /// The seed that a claim records, else the one that its attempt would have.
    fn seed_of(&self, key: &MachineKey, claim: &Claim) -> Arc<str> {
        match &claim.seed {
            Some(volume) => volume.name.as_str().into(),
            None => self.seed_name(key, claim.attempt).into(),
        }
    }

    /// The first of these failures that this process has not told yet.
    fn untold(&self, failures: &[(u64, Failure)]) -> Option<Failure> {
        const KEPT: usize = 1024;
        if failures.is_empty() {
            return None;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let first = failures.iter().find(|(id, _)| told.insert(*id))?;
        while told.len() > KEPT {
            told.pop_first();
        }
        Some(first.1)
    }

    fn in_progress(&self, step: impl Into<String>, handles: Vec<Handle>) -> Progress {
        Progress::InProgress {
            step: step.into(),
            handles,
            recheck: self.settings.recheck,
        }
    }
}

/// A seed as the contract names it.
fn volume(name: &str) -> SeedVolume {
    SeedVolume {
        name: name.to_owned(),
        location: "memory".to_owned(),
    }
}

/// A slot as the contract names it.
fn slot_at(number: u32) -> Slot {
    Slot::new(number.to_string())
}

#[async_trait::async_trait]
impl Provider for Memory {
    fn name(&self) -> &ProviderName {
        &self.name
    }
    fn kind(&self) -> &'static str {
        "memory"
    }
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    async fn check(&self) -> Result<Report> {
        self.check_world().await
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
    async fn survey(&self, key: &MachineKey, _: &Claim, _: &WantedMachine) -> Result<()> {
        self.survey_world(key).await
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
