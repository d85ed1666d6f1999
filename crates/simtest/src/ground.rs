//! What outlives a process: the hypervisor, the store, the passwords.

use crate::{fuse::Fuse, records::Records};
use async_trait::async_trait;
use egress_core::{
    Identity, MachineKey, MachineUid, ProxyId,
    machine::{ConfigHash, MachineSize},
    proxy::{AuthSource, Desired, Intent, ProxySpec, ServingFault, Trouble, UserDataRef},
    proxy_config::{GENERATED_USER, IdentityAnswer},
};
use egress_engine::{
    Credential, Credentials, Found, FoundText, Prober, probe::Fault, store::memory::MemoryStore,
};
use egress_provider::{
    Provider,
    memory::{Memory, Physics, Settings, Stranger, World},
};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// The name of the one provider of these worlds.
pub const PROVIDER: &str = "lab";

/// A hypervisor in virtual time with machines in it, and people who can meddle with them.
pub trait Hypervisor: Send + Sync + Sized + 'static {
    /// A provider that remembers nothing, and its number in the log of requests.
    fn provider(self: &Arc<Self>) -> (Arc<dyn Provider>, u32);
    /// What asks the proxies in its machines who they are.
    fn prober(self: &Arc<Self>) -> Arc<dyn Prober>;
    /// Sends every request through this fuse from now on.
    fn arm(&self, fuse: &Arc<Fuse>);
    /// The slots that hold machines of a key, by their valid marks.
    fn machines_of(&self, key: &MachineKey) -> Vec<u32>;
    /// What is there now and belongs neither to the world's beginning nor to its people.
    fn leftovers(&self) -> Vec<String>;
    /// The first mutating request that a client got through after this moment.
    fn acted_after(&self, client: u32, moment: Instant) -> Option<String>;
    /// A person puts a machine at a free slot; `false` where there is something.
    fn place(&self, slot: u32) -> bool;
    /// A person removes the machine at a slot.
    fn remove(&self, slot: u32);
    /// A person copies the machine at a slot; where to.
    fn copy(&self, slot: u32) -> Option<u32>;
    /// A person gives the machine at a slot another name.
    fn rename(&self, slot: u32, name: &str);
    /// Something that changes whenever the machine at a slot does; `None` where there is none.
    fn describe(&self, slot: u32) -> Option<String>;
    /// The mutating requests to a slot since a moment, and how long after it they came; nothing
    /// where a request names its machine by more than the slot.
    fn requests_at(&self, _slot: u32, _since: Instant) -> Vec<(Duration, String)> {
        Vec::new()
    }
    /// A person does what a status asks for, in their own time.
    fn attend(&self) {}
}

/// One hypervisor with one deployment of the product on it.
pub struct Ground<H = World> {
    /// The hypervisor.
    pub world: Arc<H>,
    /// The records.
    pub records: Records,
    /// The passwords.
    pub passwords: Arc<Passwords>,
}

impl<H> Clone for Ground<H> {
    fn clone(&self) -> Self {
        Self {
            world: self.world.clone(),
            records: self.records.clone(),
            passwords: self.passwords.clone(),
        }
    }
}

impl Ground {
    /// An empty one of the reference provider.
    pub fn new(physics: Physics) -> Self {
        Self::on(World::new(physics))
    }

    /// Who the product is on any ground.
    pub fn identity() -> Identity {
        Identity {
            installation: legal("sim"),
            writer: None,
        }
    }
}

impl<H> Ground<H> {
    /// A new deployment on this hypervisor, with its records in these.
    pub fn with_records(world: Arc<H>, records: Records) -> Self {
        Self {
            records,
            ..Self::on(world)
        }
    }

    /// A new deployment on this hypervisor.
    pub fn on(world: Arc<H>) -> Self {
        Self {
            world,
            records: Records::Memory(MemoryStore::new()),
            passwords: Arc::default(),
        }
    }
}

impl<H: Hypervisor> Ground<H> {
    /// The slots that hold machines of a key, by the judge's view.
    pub fn machines_of(&self, uid: &MachineUid) -> Vec<u32> {
        self.world.machines_of(&MachineKey::new(uid.clone()))
    }
}

impl Hypervisor for World {
    fn provider(self: &Arc<Self>) -> (Arc<dyn Provider>, u32) {
        let settings = Settings::default();
        let memory = Memory::new(legal(PROVIDER), Ground::identity(), self.clone(), settings);
        let client = memory.client();
        (Arc::new(memory), client)
    }
    fn prober(self: &Arc<Self>) -> Arc<dyn Prober> {
        Arc::new(GuestProber(self.clone()))
    }
    fn arm(&self, fuse: &Arc<Fuse>) {
        self.set_gate(Some(fuse.clone()));
    }
    fn machines_of(&self, key: &MachineKey) -> Vec<u32> {
        Self::machines_of(self, key)
    }
    fn leftovers(&self) -> Vec<String> {
        self.inventory().seeds.into_iter().collect()
    }
    fn acted_after(&self, client: u32, moment: Instant) -> Option<String> {
        self.requests()
            .into_iter()
            .find(|request| request.client == client && request.at > moment)
            .map(|request| request.to_string())
    }
    fn place(&self, slot: u32) -> bool {
        let stranger = Stranger {
            name: Some("payroll".into()),
            ..Stranger::default()
        };
        Self::place(self, slot, &stranger)
    }
    fn remove(&self, slot: u32) {
        Self::remove(self, slot);
    }
    fn copy(&self, slot: u32) -> Option<u32> {
        let to = (slot + 1..=slot + 100).find(|to| !self.inventory().machines.contains(to))?;
        Self::copy(self, slot, to).then_some(to)
    }
    fn rename(&self, slot: u32, name: &str) {
        Self::rename(self, slot, name);
    }
    fn describe(&self, slot: u32) -> Option<String> {
        let there = self.inventory().machines.contains(&slot);
        there.then(|| format!("a machine at {slot}"))
    }
}

pub(crate) fn legal<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("a name written in this crate is legal")
}

/// A Proxy that should run, the `version`th configuration of it.
pub fn wanted(name: &str, version: u32) -> Desired {
    Desired {
        proxy: ProxyId::new("default", name).expect("a name written in this crate is legal"),
        uid: legal(&format!("uid-{name}")),
        installation: Ground::identity().installation,
        generation: i64::from(version),
        intent: Intent::Run(spec(version)),
    }
}

/// The same Proxy, to be gone.
pub fn unwanted(name: &str) -> Desired {
    Desired {
        intent: Intent::Delete,
        ..wanted(name, 1)
    }
}

fn spec(version: u32) -> ProxySpec {
    ProxySpec {
        provider: legal(PROVIDER),
        size: MachineSize {
            cpus: 1,
            memory_mib: 512,
            disk_gib: 4,
        },
        port: None,
        clients: Vec::new(),
        auth: AuthSource::Generated,
        user_data: None,
        probe_interval: Duration::from_mins(1),
        probe_timeout: Duration::from_secs(5),
        failure_threshold: 3,
        config_hash: ConfigHash::of(&version.to_be_bytes()),
    }
}

/// Passwords in memory.
#[derive(Debug, Default)]
pub struct Passwords(Mutex<BTreeMap<ProxyId, u32>>);

#[async_trait]
impl Credentials for Passwords {
    async fn find(&self, id: &ProxyId, _: &AuthSource) -> Result<Found, Trouble> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(known.get(id).map_or(Found::Nothing, |generation| {
            Found::Known(password(*generation))
        }))
    }
    async fn ensure(&self, id: &ProxyId, _: &AuthSource) -> Result<Found, Trouble> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Found::Known(password(
            *known.entry(id.clone()).or_insert(1),
        )))
    }
    async fn cloud_config(&self, id: &ProxyId, source: &UserDataRef) -> Result<FoundText, Trouble> {
        Ok(FoundText::at(id, source, None))
    }
    async fn forget(&self, id: &ProxyId) -> Result<(), Trouble> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(id);
        Ok(())
    }
}

fn password(generation: u32) -> Credential {
    Credential {
        user: GENERATED_USER.into(),
        password: "simulated".into(),
        generation,
    }
}

/// Asks the guests of a [`World`].
pub struct GuestProber(pub Arc<World>);

#[async_trait]
impl Prober for GuestProber {
    async fn identify(
        &self,
        endpoint: SocketAddr,
        credential: Option<&Credential>,
        _: Duration,
    ) -> Result<IdentityAnswer, Fault> {
        let guest = self.0.guest_at(endpoint.ip()).ok_or_else(|| {
            (
                ServingFault::PortClosed,
                format!("nothing listens at {endpoint}"),
            )
        })?;
        Ok(IdentityAnswer {
            key: guest.key,
            attempt: guest.attempt,
            credential_generation: credential.map_or(0, |c| c.generation),
            version: "sim".into(),
            draining: false,
        })
    }
}
