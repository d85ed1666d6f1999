//! A world for the tests of this crate: one hypervisor in memory, records in memory, a store
//! that can be full, and an engine on them.

use crate::{
    Always, Credential, Credentials, Engine, Found, FoundText, Handle, Prober, Providers,
    metrics::EngineMetrics,
    pass::Parts,
    probe::Fault,
    store::{Store, StoreError, StoreErrorKind, Stored, Version, memory::MemoryStore},
};
use async_trait::async_trait;
use egress_core::{
    Identity, MachineKey, ProxyId, Record,
    machine::{ConfigHash, MachineSize},
    proxy::{AuthSource, Desired, Intent, ProxySpec, ServingFault, Trouble, UserDataRef},
    proxy_config::IdentityAnswer,
    status::{ConditionType, Reason},
};
use egress_provider::{
    Provider,
    memory::{Memory, Physics, Settings, World},
};
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Semaphore, oneshot},
    task::JoinHandle,
    time::Instant,
};

pub(crate) const fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

pub(crate) fn legal<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().expect("a name that a test writes is legal")
}

pub(crate) fn id(name: &str) -> ProxyId {
    ProxyId::new("shop", name).expect("a name that a test writes is legal")
}

pub(crate) fn key(name: &str) -> MachineKey {
    MachineKey::new(legal(&format!("uid-{name}")))
}

pub(crate) fn desired(name: &str, intent: Intent) -> Desired {
    Desired {
        proxy: id(name),
        uid: key(name).uid().clone(),
        installation: legal("lab"),
        generation: 1,
        intent,
    }
}

pub(crate) fn spec() -> ProxySpec {
    ProxySpec {
        provider: legal("mem"),
        size: MachineSize {
            cpus: 1,
            memory_mib: 512,
            disk_gib: 4,
        },
        port: None,
        clients: Vec::new(),
        auth: AuthSource::Generated,
        user_data: None,
        probe_interval: secs(5),
        probe_timeout: secs(2),
        failure_threshold: 3,
        config_hash: ConfigHash::of(b"one"),
    }
}

pub(crate) fn wanted(name: &str) -> Desired {
    desired(name, Intent::Run(spec()))
}

/// A new client of the hypervisor, as each process and each reload makes one.
pub(crate) fn provider(name: &str, world: &Arc<World>) -> Arc<dyn Provider> {
    let identity = Identity {
        installation: legal("lab"),
        writer: None,
    };
    let settings = Settings::default();
    Arc::new(Memory::new(legal(name), identity, world.clone(), settings))
}

/// A store whose disk can be full.
#[derive(Clone, Default)]
pub(crate) struct Shelf {
    pub(crate) records: MemoryStore,
    pub(crate) full: Arc<AtomicBool>,
}

#[async_trait]
impl Store for Shelf {
    async fn load(&self, id: &ProxyId) -> Result<Option<Stored>, StoreError> {
        self.records.load(id).await
    }
    async fn save(
        &self,
        id: &ProxyId,
        record: &Record,
        expected: Option<&Version>,
    ) -> Result<Version, StoreError> {
        if self.full.load(Ordering::Relaxed) {
            return Err(StoreError {
                kind: StoreErrorKind::Unavailable,
                text: format!("cannot write the record of {id}: free some space"),
                source: Some(io::Error::from(io::ErrorKind::StorageFull)),
            });
        }
        self.records.save(id, record, expected).await
    }
    async fn remove(&self, id: &ProxyId, expected: &Version) -> Result<(), StoreError> {
        self.records.remove(id, expected).await
    }
    async fn list(&self) -> Result<Vec<(ProxyId, Result<Stored, StoreError>)>, StoreError> {
        self.records.list().await
    }
}

/// One password for all, and one text. While it is shut, passes wait at its door.
pub(crate) struct Doorman {
    pub(crate) door: Semaphore,
    pub(crate) waiting: AtomicUsize,
    /// Whether the next one is refused for good.
    pub(crate) refuses_one: AtomicBool,
    /// Whether all are told to come again in a moment.
    pub(crate) busy: AtomicBool,
    /// The text behind every reference to user data.
    text: Mutex<Option<String>>,
    /// How often it was looked for.
    pub(crate) text_reads: AtomicUsize,
}

impl Default for Doorman {
    fn default() -> Self {
        Self {
            door: Semaphore::new(Semaphore::MAX_PERMITS),
            waiting: AtomicUsize::new(0),
            refuses_one: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            text: Mutex::default(),
            text_reads: AtomicUsize::new(0),
        }
    }
}

impl Doorman {
    pub(crate) fn shut(&self) {
        self.door.forget_permits(Semaphore::MAX_PERMITS);
    }
    pub(crate) fn open(&self) {
        self.door.add_permits(Semaphore::MAX_PERMITS);
    }
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
    pub(crate) fn set_text(&self, text: Option<&str>) {
        *self.text.lock().expect("no test panics with it") = text.map(str::to_owned);
    }
    async fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        drop(self.door.acquire().await);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

fn password() -> Found {
    Found::Known(Credential {
        user: "egress".into(),
        password: "for tests".into(),
        generation: 1,
    })
}

#[async_trait]
impl Credentials for Doorman {
    async fn find(&self, _: &ProxyId, _: &AuthSource) -> Result<Found, Trouble> {
        Ok(password())
    }
    async fn ensure(&self, _: &ProxyId, _: &AuthSource) -> Result<Found, Trouble> {
        self.pass().await;
        if self.busy.load(Ordering::Relaxed) {
            return Err(Trouble {
                class: egress_core::ErrorClass::Busy,
                text: "somebody holds its lock".into(),
            });
        }
        if self.refuses_one.swap(false, Ordering::Relaxed) {
            return Err(Trouble {
                class: egress_core::ErrorClass::Permanent,
                text: "no password will do".into(),
            });
        }
        Ok(password())
    }
    async fn cloud_config(&self, id: &ProxyId, source: &UserDataRef) -> Result<FoundText, Trouble> {
        self.text_reads.fetch_add(1, Ordering::Relaxed);
        let text = self.text.lock().expect("no test panics with it");
        Ok(FoundText::at(id, source, text.as_deref()))
    }
    async fn forget(&self, _: &ProxyId) -> Result<(), Trouble> {
        Ok(())
    }
}

/// Asks the guests of a world.
struct GuestProber(Arc<World>);

#[async_trait]
impl Prober for GuestProber {
    async fn identify(
        &self,
        endpoint: SocketAddr,
        _: Option<&Credential>,
        _: Duration,
    ) -> Result<IdentityAnswer, Fault> {
        let guest = self.0.guest_at(endpoint.ip()).ok_or_else(|| {
            let text = format!("nothing listens at {endpoint}");
            (ServingFault::PortClosed, text)
        })?;
        Ok(IdentityAnswer {
            key: guest.key,
            attempt: guest.attempt,
            credential_generation: 1,
            version: "test".into(),
            draining: false,
        })
    }
}

/// What outlives an engine.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) world: Arc<World>,
    pub(crate) shelf: Shelf,
    pub(crate) doorman: Arc<Doorman>,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self {
            world: World::new(Physics::default()),
            shelf: Shelf::default(),
            doorman: Arc::default(),
        }
    }

    pub(crate) fn parts(&self) -> Parts {
        Parts {
            store: Arc::new(self.shelf.clone()),
            providers: Arc::new(Providers::new([provider("mem", &self.world)])),
            credentials: self.doorman.clone(),
            prober: Arc::new(GuestProber(self.world.clone())),
            permits: Arc::new(Always),
        }
    }

    /// An engine that read all records and runs.
    pub(crate) async fn start(&self) -> Running {
        let (engine, handle) = Engine::new(self.parts(), EngineMetrics::default());
        engine.load().await.expect("the records can be listed");
        let (stop, stopped) = oneshot::channel::<()>();
        let life = tokio::spawn(async move {
            let end = engine
                .run(async {
                    let _ = stopped.await;
                })
                .await;
            end.expect("the store stays ours");
        });
        Running {
            handle,
            life,
            stop: Some(stop),
        }
    }

    /// The machines of a Proxy, by the judge's view.
    pub(crate) fn machines(&self, name: &str) -> Vec<u32> {
        self.world.machines_of(&key(name))
    }
}

/// A running engine. Dropped, it dies as by `kill -9`.
pub(crate) struct Running {
    pub(crate) handle: Handle,
    life: JoinHandle<()>,
    stop: Option<oneshot::Sender<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.life.abort();
    }
}

impl Running {
    /// Ends it as by SIGTERM.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        (&mut self.life).await.expect("it ends by itself");
    }

    pub(crate) fn reason(&self, name: &str, condition: ConditionType) -> Option<Reason> {
        let view = self.handle.view(&id(name))?;
        view.status.condition(condition).map(|c| c.reason)
    }

    pub(crate) fn message(&self, name: &str, condition: ConditionType) -> String {
        let view = self.handle.view(&id(name));
        let condition = view.as_ref().and_then(|v| v.status.condition(condition));
        condition.map(|c| c.message.clone()).unwrap_or_default()
    }

    pub(crate) async fn wait_serving(&self, names: &[&str]) {
        for name in names {
            let serves = || self.reason(name, ConditionType::Serving) == Some(Reason::Serving);
            wait_for(name, secs(120), serves).await;
        }
    }
}

/// Waits in virtual time until this holds; answers with how long that took.
pub(crate) async fn wait_for(what: &str, limit: Duration, holds: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    begun.elapsed()
}
