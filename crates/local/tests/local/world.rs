//! A world of its own for each case: a state directory, addresses that nothing else uses,
//! and the end of every process that was started in it.

use egress_core::{
    Claim, ErrorClass, Identity, MachineKey, ProxyId, Slot, WriterId,
    machine::{ConfigHash, MachineSize, MachineState, ObservedMachine, WantedMachine},
    proxy_config::{Auth, GENERATED_USER, ProxySettings, ProxydConfig, Verifier},
};
use egress_local::{Config, Local, PortRange};
use egress_provider::{Permit, Progress, Provider as _, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::atomic::{AtomicU8, Ordering},
    time::{Duration, Instant},
};

/// How long anything may take that is waited for.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The password of every proxy here.
pub const PASSWORD: &str = "a password of this test";

/// See the module.
pub struct World {
    pub root: tempfile::TempDir,
    pub config: Config,
}

impl World {
    pub fn new() -> Self {
        Self::with_ports(100)
    }

    /// A world with so many ports on one address.
    pub fn with_ports(count: u16) -> Self {
        static COUNT: AtomicU8 = AtomicU8::new(1);
        let [_, _, high, low] = std::process::id().to_be_bytes();
        // All of 127.0.0.0/8 is on this host, and other runs have another process id.
        let address = Ipv4Addr::new(127, high | 128, low, COUNT.fetch_add(1, Ordering::Relaxed));
        let config = Config {
            addresses: vec![IpAddr::V4(address)],
            listen: None,
            port_range: PortRange {
                from: 20_000,
                to: 20_000 + count - 1,
            },
            drain_seconds: 1,
        };
        let root = tempfile::tempdir().unwrap();
        symlink(
            std::env::current_exe().unwrap(),
            root.path().join("program"),
        )
        .unwrap();
        Self { root, config }
    }

    pub fn program(&self) -> PathBuf {
        self.root.path().join("program")
    }

    pub fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    pub fn identity() -> Identity {
        Identity {
            installation: "test".parse().unwrap(),
            writer: Some(WriterId::new("writer-1")),
        }
    }

    /// A provider as a new process of the engine makes it.
    pub fn provider(&self) -> Local {
        self.provider_as("local", Self::identity(), self.state())
    }

    pub fn provider_as(&self, name: &str, identity: Identity, state: PathBuf) -> Local {
        Local::new(
            name.parse().unwrap(),
            identity,
            self.config.clone(),
            state,
            self.program(),
        )
    }

    pub fn directory(&self, slot: &Slot) -> PathBuf {
        self.state().join("machines/local").join(slot.as_str())
    }

    /// Every process that runs from a configuration in this world, with its arguments.
    pub fn processes(&self) -> Vec<(i32, Vec<String>)> {
        let root = self.root.path().to_str().unwrap();
        let pids = fs::read_dir("/proc").unwrap().flatten();
        pids.filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let cmdline = fs::read_to_string(entry.path().join("cmdline")).ok()?;
            let arguments: Vec<String> = cmdline.split('\0').map(str::to_owned).collect();
            let ours = arguments
                .get(3)
                .is_some_and(|config| config.starts_with(root));
            ours.then_some((pid, arguments))
        })
        .collect()
    }

    /// The processes at a slot, in whatever state directory of this world.
    pub fn processes_at(&self, slot: &Slot) -> Vec<(i32, Vec<String>)> {
        let part = format!("/{slot}/");
        self.processes()
            .into_iter()
            .filter(|(_, a)| a[3].contains(&part))
            .collect()
    }

    /// The one process of this world.
    pub fn only_process(&self) -> i32 {
        let processes = self.processes();
        assert_eq!(processes.len(), 1, "{processes:?}");
        processes[0].0
    }

    /// Starts a process by hand, as a person would, with these arguments after the program.
    pub fn start(&self, arguments: &[String], lock: Option<File>, deaf: bool) -> i32 {
        let mut command = Command::new(self.program());
        command
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.stdin(lock.map_or_else(Stdio::null, Stdio::from));
        if deaf {
            command.env(super::DEAF, "1");
        }
        let mut child = command.spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // Reaped whenever it ends.
        std::thread::spawn(move || child.wait());
        pid
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for (pid, _) in self.processes() {
            kill(pid);
        }
    }
}

/// Ends a process that a test started, and waits for its end.
pub fn kill(pid: i32) {
    signal(pid, Signal::KILL);
    wait_until("a killed process ends", || !is_alive(pid));
}

pub fn signal(pid: i32, signal: Signal) {
    let Ok(fd) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) else {
        return;
    };
    let _ended_meanwhile = pidfd_send_signal(fd, signal);
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

/// Whether a process exists and is not just waiting to be reaped. While its first thread
/// waits for that, others may still be ending and hold sockets and locks.
pub fn is_alive(pid: i32) -> bool {
    let zombie = fs::read_to_string(format!("/proc/{pid}/stat"))
        .map(|stat| stat[stat.rfind(')').unwrap()..].starts_with(") Z"));
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    zombie.is_ok_and(|zombie| !zombie || threads > 1)
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn listens(address: SocketAddr) -> bool {
    std::net::TcpStream::connect(address).is_ok()
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

/// Holds the port of a configuration and takes no notice of SIGTERM.
pub fn be_deaf(config: &Path) -> ExitCode {
    let config: ProxydConfig = serde_json::from_slice(&fs::read(config).unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let kind = tokio::signal::unix::SignalKind::terminate();
        let mut terminate = tokio::signal::unix::signal(kind).unwrap();
        let _listener = std::net::TcpListener::bind(config.listen).unwrap();
        loop {
            terminate.recv().await;
        }
    })
}
