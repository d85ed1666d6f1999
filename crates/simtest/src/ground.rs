//! What outlives a process: the hypervisor, the store, the passwords.

use async_trait::async_trait;
use egress_core::{
    Identity, MachineKey, MachineUid, ProxyId,
    machine::{ConfigHash, MachineSize},
    proxy::{AuthSource, Desired, Intent, ProxySpec, ServingFault, Trouble},
    proxy_config::{GENERATED_USER, IdentityAnswer},
};
use egress_engine::{
    Credential, Credentials, Found, Prober, probe::Fault, store::memory::MemoryStore,
};
use egress_provider::memory::{Physics, World};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// The name of the one provider of these worlds.
pub const PROVIDER: &str = "lab";

/// One hypervisor with one deployment of the product on it.
#[derive(Clone)]
pub struct Ground {
    /// The hypervisor.
    pub world: Arc<World>,
    /// The records.
    pub store: MemoryStore,
    /// The passwords.
    pub passwords: Arc<Passwords>,
}

impl Ground {
    /// An empty one.
    pub fn new(physics: Physics) -> Self {
        Self {
            world: World::new(physics),
            store: MemoryStore::new(),
            passwords: Arc::default(),
        }
    }

    /// Who the product is on this ground.
    pub fn identity() -> Identity {
        Identity {
            installation: legal("sim"),
            writer: None,
        }
    }

    /// The slots that hold machines of a key, by the judge's view.
    pub fn machines_of(&self, uid: &MachineUid) -> Vec<u32> {
        self.world.machines_of(&MachineKey::new(uid.clone()))
    }
}

fn legal<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
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
