//! The proxies that are compared, each set up for the same job: loopback clients may, nobody
//! else; no logs, no cache, no limits in the way.

use crate::{
    load::Route,
    measure::{Kept, program},
};
use egress_core::proxy_config::{Auth, Limits, ProxydConfig};
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// One of those that are compared.
pub struct Contender {
    pub name: &'static str,
    pub route: Route,
    /// Whether it serves CONNECT: a reverse proxy does not.
    pub tunnels: bool,
    process: Option<Kept>,
}

impl Contender {
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.0.id())
    }

    /// No proxy at all: what load and origin cost themselves.
    pub fn direct() -> Self {
        Self {
            name: "direct",
            route: Route::Direct,
            tunnels: true,
            process: None,
        }
    }

    pub fn proxyd(dir: &Path) -> Self {
        let listen = free_address();
        let config = ProxydConfig {
            key: "bench".to_owned(),
            attempt: 1,
            listen,
            management: None,
            egress: None,
            clients: vec!["127.0.0.0/8".parse().expect("a network")],
            auth: Auth::None {},
            limits: Limits::default(),
        };
        let text = serde_json::to_string(&config).expect("plain data");
        let path = write(dir, "proxyd.json", &text);
        let mut command = Command::new(program("BENCH_PROXYD"));
        command.arg("--config").arg(path).env("PROXYD_LOG", "error");
        Self::start("proxyd", command, listen, true)
    }

    pub fn tinyproxy(dir: &Path) -> Option<Self> {
        let program = installed("tinyproxy")?;
        let listen = free_address();
        let config = format!(
            "Listen {}\nPort {}\nAllow 127.0.0.0/8\nTimeout 600\nMaxClients 4000\n\
             LogFile \"{}\"\nLogLevel Critical\nDisableViaHeader Yes\n",
            listen.ip(),
            listen.port(),
            dir.join("tinyproxy.log").display()
        );
        let mut command = Command::new(program);
        command.args(["-d", "-c"]);
        command.arg(write(dir, "tinyproxy.conf", &config));
        Some(Self::start("tinyproxy", command, listen, true))
    }

    pub fn squid(dir: &Path) -> Option<Self> {
        let program = installed("squid")?;
        let listen = free_address();
        let config = format!(
            "http_port {listen}\nacl loopback src 127.0.0.0/8\nhttp_access allow loopback\n\
             http_access deny all\ncache deny all\naccess_log none\ncache_log /dev/null\n\
             cache_store_log none\npid_filename none\npinger_enable off\nvia off\n\
             forwarded_for delete\nclient_db off\nvisible_hostname bench\n\
             max_filedescriptors 16384\nshutdown_lifetime 0 seconds\ncoredump_dir {}\n",
            dir.display()
        );
        let mut command = Command::new(program);
        command.args(["-N", "-f"]);
        command.arg(write(dir, "squid.conf", &config));
        Some(Self::start("squid", command, listen, true))
    }

    /// A reverse proxy in front of the same origins: how fast plain HTTP can be made.
    pub fn haproxy(dir: &Path, origins: &[SocketAddr]) -> Option<Self> {
        let program = installed("haproxy")?;
        let listen = free_address();
        let servers: Vec<String> = origins
            .iter()
            .enumerate()
            .map(|(number, origin)| format!("  server origin{number} {origin}\n"))
            .collect();
        let config = format!(
            "global\n  maxconn 4096\ndefaults\n  mode http\n  timeout connect 5s\n  \
             timeout client 60s\n  timeout server 60s\n  http-reuse always\nfrontend bench\n  \
             bind {listen}\n  default_backend origins\nbackend origins\n{}",
            servers.concat()
        );
        let mut command = Command::new(program);
        command.args(["-db", "-f"]);
        command.arg(write(dir, "haproxy.cfg", &config));
        Some(Self::start("haproxy", command, listen, false))
    }

    fn start(name: &'static str, mut command: Command, listen: SocketAddr, tunnels: bool) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn();
        let mut process = Kept(child.unwrap_or_else(|error| panic!("{name}: {error}")));
        let begun = Instant::now();
        while TcpStream::connect(listen).is_err() {
            let ended = process.0.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "{name} ended: {ended:?}");
            assert!(begun.elapsed() < Duration::from_secs(20), "{name} is mute");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self {
            name,
            route: Route::Proxy(listen),
            tunnels,
            process: Some(process),
        }
    }
}

/// Where the program of a Debian package lies; says loudly when it is missing.
fn installed(name: &str) -> Option<PathBuf> {
    let place = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let found = place.map(|dir| Path::new(dir).join(name));
    let found = found.into_iter().find(|path| path.is_file());
    if found.is_none() {
        let missing = format!("MISSING: {name}: compared without it; apt-get install {name}");
        eprintln!("{missing}");
        println!("**{missing}**\n");
    }
    found
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .expect("loopback has a free port")
}

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).expect("a file can be written");
    path
}
