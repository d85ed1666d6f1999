//! A world of its own for each case: a state directory, addresses that nothing else uses,
//! and the end of every process that was started in it.

use egress_core::{
    Claim, ErrorClass, Identity, MachineKey, ProviderName, ProxyId, Slot, WriterId,
    machine::{ConfigHash, MachineSize, MachineState, ObservedMachine, WantedMachine},
    proxy_config::{Auth, GENERATED_USER, ProxySettings, Verifier},
};
use egress_local::{
    Config, Local, PortRange,
    bench::{Bench, Ground},
};
use egress_provider::{Permit, Progress, Provider as _, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU8, Ordering},
    time::{Duration, Instant},
};

pub use egress_local::bench::{PATIENCE, is_alive};

/// The password of every proxy here.
pub const PASSWORD: &str = "a password of this test";

/// See the module.
pub struct World {
    ground: Ground,
    // Removed after everything in it.
    _above: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        Self::with_ports(100)
    }

    /// A world with so many ports on one address.
    pub fn with_ports(count: u16) -> Self {
        let above = tempfile::tempdir().unwrap();
        let root = above.path().join("world");
        let ground = Ground::new(root, name(), Self::identity(), config(count)).unwrap();
        Self {
            ground,
            _above: above,
        }
    }

    pub fn identity() -> Identity {
        Identity {
            installation: "test".parse().unwrap(),
            writer: Some(WriterId::new("writer-1")),
        }
    }

    /// The one process of this world.
    pub fn only_process(&self) -> i32 {
        let processes = self.processes();
        assert_eq!(processes.len(), 1, "{processes:?}");
        processes[0].0
    }
}

impl Deref for World {
    type Target = Ground;
    fn deref(&self) -> &Ground {
        &self.ground
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Ground {
        &mut self.ground
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.ground.clear().unwrap();
    }
}

fn name() -> ProviderName {
    "local".parse().unwrap()
}

fn config(ports: u16) -> Config {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    // All of 127.0.0.0/8 is on this host, and other runs have another process id.
    let address = Ipv4Addr::new(127, high | 128, low, COUNT.fetch_add(1, Ordering::Relaxed));
    Config {
        addresses: vec![IpAddr::V4(address)],
        listen: None,
        port_range: PortRange {
            from: 20_000,
            to: 20_000 + ports - 1,
        },
        drain_seconds: 1,
    }
}

/// The bench of the conformance suite, and the directory above its own.
pub fn bench() -> (Bench, tempfile::TempDir) {
    let above = tempfile::tempdir().unwrap();
    let root = above.path().join("bench");
    let bench = Bench::new(root, name(), World::identity(), config(100)).unwrap();
    (bench, above)
}

/// Ends a process that a test started, and waits for its end.
pub fn kill(pid: i32) {
    if let Ok(fd) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) {
        let _ended_meanwhile = pidfd_send_signal(fd, Signal::KILL);
    }
    wait_until("a killed process ends", || !is_alive(pid));
}

/// Listens where a killed process listened: its other threads may hold the socket for a
/// moment after the first one has ended.
pub fn listen_after(socket: SocketAddr) -> std::net::TcpListener {
    let mut listener = None;
    wait_until("the socket of a killed process is free", || {
        listener = std::net::TcpListener::bind(socket).ok();
        listener.is_some()
    });
    listener.unwrap()
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn key(uid: &str) -> MachineKey {
    MachineKey::new(uid.parse().unwrap())
}

pub fn wanted(name: &str) -> WantedMachine {
    WantedMachine {
        proxy: ProxyId::new("default", name).unwrap(),
        size: MachineSize {
            cpus: 1,
            memory_mib: 512,
            disk_gib: 4,
        },
        settings: ProxySettings {
            port: None,
            clients: vec!["127.0.0.0/8".parse().unwrap()],
            auth: Auth::Basic {
                verifiers: vec![Verifier::new(GENERATED_USER, PASSWORD)],
                generation: 1,
            },
        },
        config_hash: ConfigHash::of(name.as_bytes()),
        user_data: None,
    }
}

pub fn permit() -> Permit {
    Permit::new(1, tokio::time::Instant::now() + Duration::from_mins(1))
}

/// The socket that a slot names.
pub fn socket(slot: &Slot) -> SocketAddr {
    let mut parts = slot.as_str().split('_');
    let ip = parts.next().unwrap().parse().unwrap();
    SocketAddr::new(ip, parts.next().unwrap().parse().unwrap())
}

/// One machine as the engine would keep it.
pub struct Machine {
    pub key: MachineKey,
    pub wanted: WantedMachine,
    pub claim: Claim,
}

impl Machine {
    pub async fn claimed(provider: &Local, name: &str) -> Self {
        let (key, wanted) = (key(name), wanted(name));
        let claim = provider.claim(&key, &wanted, 1, &[]).await.unwrap();
        Self { key, wanted, claim }
    }

    pub async fn made(provider: &Local, name: &str) -> Self {
        let machine = Self::claimed(provider, name).await;
        assert_eq!(machine.create(provider).await.unwrap(), Progress::Done);
        machine
    }

    pub async fn create(&self, provider: &Local) -> Result<Progress> {
        provider
            .create(&self.key, &self.claim, &self.wanted, &permit())
            .await
    }

    /// Creates until it is done.
    pub async fn up(&self, provider: &Local) {
        let end = Instant::now() + PATIENCE;
        while self.create(provider).await.unwrap() != Progress::Done {
            assert!(Instant::now() < end, "create does not come to an end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn delete(&self, provider: &Local) -> Result<Progress> {
        provider.delete(&self.key, &self.claim, &permit()).await
    }

    /// Deletes until it is done. A process that just ended may hold its lock for a moment
    /// after `/proc` shows nothing of it any more: that is `Busy`, to be asked again.
    pub async fn down(&self, provider: &Local) {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.delete(provider).await {
                Ok(Progress::Done) => return,
                Ok(Progress::InProgress { .. }) => {}
                Err(error) => assert_eq!(error.class(), ErrorClass::Busy, "{error}"),
            }
            assert!(Instant::now() < end, "delete does not come to an end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn get(&self, provider: &Local) -> ObservedMachine {
        provider.get(&self.key, &self.claim).await.unwrap()
    }

    pub async fn state(&self, provider: &Local) -> MachineState {
        self.get(provider).await.state
    }

    pub fn socket(&self) -> SocketAddr {
        socket(&self.claim.slot)
    }
}
