//! What the tests stand on: a proxy in this process or in its own, targets that say exactly
//! what they are told to, and a client that speaks in bytes. Everything has a deadline.

use egress_core::proxy_config::{Auth, Limits, ProxydConfig, ReadyLine, Verifier};
use egress_proxyd::Server;
use std::{
    future::Future,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// No test waits longer than this for one thing.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// `egress:secret`, as clients send it.
pub const CREDENTIALS: &str = "Proxy-Authorization: Basic ZWdyZXNzOnNlY3JldA==\r\n";

/// A proxy for any client of this host, without credentials.
pub fn open_config() -> ProxydConfig {
    ProxydConfig {
        key: "proxy-test".to_owned(),
        attempt: 2,
        listen: "127.0.0.1:0".parse().unwrap(),
        management: None,
        egress: None,
        clients: vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()],
        auth: Auth::None {},
        limits: Limits::default(),
    }
}

/// A proxy that asks for `egress:secret`.
pub fn basic_config() -> ProxydConfig {
    let verifiers = vec![Verifier::new("egress", "secret")];
    ProxydConfig {
        clients: vec![],
        auth: Auth::Basic {
            verifiers,
            generation: 5,
        },
        ..open_config()
    }
}

/// [`open_config`] with some limits changed.
pub fn limited(change: impl FnOnce(&mut Limits)) -> ProxydConfig {
    let mut config = open_config();
    change(&mut config.limits);
    config
}

/// Fails the test when the future takes too long.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("this took too long")
}

/// Waits until the condition holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// A proxy in this process.
pub struct Proxy {
    pub address: SocketAddr,
    pub management: Option<SocketAddr>,
    stop: CancellationToken,
    served: JoinHandle<()>,
}

impl Proxy {
    pub fn start(config: ProxydConfig) -> Self {
        let server = Server::bind(config).unwrap();
        let stop = CancellationToken::new();
        let (address, management) = (server.local_addr(), server.management_addr());
        let served = tokio::spawn(server.serve(stop.clone().cancelled_owned()));
        Self {
            address,
            management,
            stop,
            served,
        }
    }

    pub fn drain(&self) {
        self.stop.cancel();
    }

    /// Waits for the end of the drain.
    pub async fn ended(self) {
        soon(self.served).await.unwrap();
    }
}

/// A proxy in a process of its own; killed when dropped.
pub struct Process {
    pub child: Child,
    pub ready: ReadyLine,
    _config: NamedTempFile,
}

impl Process {
    pub fn start(config: &ProxydConfig) -> Self {
        let file = config_file(config);
        let mut child = proxyd()
            .arg("--config")
            .arg(file.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready = serde_json::from_str(&line).unwrap();
        Self {
            child,
            ready,
            _config: file,
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))
            .unwrap()
            .count()
    }

    /// Waits for the exit; the exit code and what was logged.
    pub async fn exited(mut self) -> (Option<i32>, String) {
        let child = &mut self.child;
        eventually("proxyd exits", || child.try_wait().unwrap().is_some()).await;
        let code = self.child.wait().unwrap().code();
        let mut log = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        (code, log)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn proxyd() -> Command {
    Command::new(env!("CARGO_BIN_EXE_proxyd"))
}

pub fn config_file(config: &ProxydConfig) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    serde_json::to_writer(&file, config).unwrap();
    file
}

/// One side of a connection that speaks in bytes.
pub struct Wire {
    pub stream: TcpStream,
    /// Read, but not looked at yet.
    read: Vec<u8>,
}

impl Wire {
    pub fn over(stream: TcpStream) -> Self {
        Self {
            stream,
            read: Vec::new(),
        }
    }

    pub async fn to(address: SocketAddr) -> Self {
        Self::over(soon(TcpStream::connect(address)).await.unwrap())
    }

    pub async fn say(&mut self, text: &str) {
        soon(self.stream.write_all(text.as_bytes())).await.unwrap();
    }

    /// Reads up to and with the given text.
    pub async fn hear_until(&mut self, end: &str) -> String {
        let end = end.as_bytes();
        loop {
            if let Some(at) = self.read.windows(end.len()).position(|part| part == end) {
                let rest = self.read.split_off(at + end.len());
                let heard = std::mem::replace(&mut self.read, rest);
                return String::from_utf8(heard).unwrap();
            }
            let read = soon(self.stream.read_buf(&mut self.read)).await.unwrap();
            assert!(
                read > 0,
                "ended after {:?}",
                String::from_utf8_lossy(&self.read)
            );
        }
    }

    /// Reads one head, the empty line included.
    pub async fn hear_head(&mut self) -> String {
        self.hear_until("\r\n\r\n").await
    }

    /// Reads to the end; what came, and whether the end was an orderly one.
    pub async fn hear_end(&mut self) -> (String, bool) {
        loop {
            match soon(self.stream.read_buf(&mut self.read)).await {
                Ok(0) => return (self.heard(), true),
                Ok(_) => {}
                Err(_) => return (self.heard(), false),
            }
        }
    }

    fn heard(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.read)).unwrap()
    }

    /// Reads to the end, orderly or not.
    pub async fn rest(&mut self) -> String {
        self.hear_end().await.0
    }
}

/// Sends one request and reads the answer to the end of the connection.
pub async fn ask(address: SocketAddr, request: &str) -> String {
    let mut wire = Wire::to(address).await;
    wire.say(request).await;
    wire.rest().await
}

/// A GET through the proxy, as the last of its connection.
pub fn get(url: &str) -> String {
    format!("GET {url} HTTP/1.1\r\nHost: ignored.example\r\nConnection: close\r\n\r\n")
}

/// The status code of an answer.
pub fn status(answer: &str) -> u16 {
    answer
        .get(9..12)
        .and_then(|code| code.parse().ok())
        .unwrap_or_else(|| panic!("no status in {answer:?}"))
}

/// A target that the test plays by hand.
pub struct Target {
    listener: TcpListener,
    pub address: SocketAddr,
}

impl Target {
    pub async fn start() -> Self {
        Self::at("127.0.0.1:0").await
    }

    pub async fn at(address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        Self { listener, address }
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub async fn accept(&self) -> Wire {
        Wire::over(soon(self.listener.accept()).await.unwrap().0)
    }

    /// Whether a connection waits that nobody accepted yet.
    pub async fn has_another(&self) -> bool {
        timeout(Duration::from_millis(50), self.listener.accept())
            .await
            .is_ok()
    }
}

/// A tunnel through the proxy, with both of its ends.
pub async fn tunnel(proxy: SocketAddr, target: &Target) -> (Wire, Wire) {
    let mut client = Wire::to(proxy).await;
    client
        .say(&format!("CONNECT {} HTTP/1.1\r\n\r\n", target.address))
        .await;
    let far_end = target.accept().await;
    assert_eq!(status(&client.hear_head().await), 200);
    (client, far_end)
}

/// A page that says who asks, as its address.
pub async fn echo_page(address: &str) -> SocketAddr {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(egress_proxyd::echo::serve(listener, std::future::pending()));
    address
}
