//! What the provider adds to a machine: the time in which it waits for no answer of libvirt.

use super::{
    Ground,
    measure::{figure, median, row},
};
use egress_core::{
    Identity, MachineKey, Standing,
    machine::{ConfigHash, MachineSize, WantedMachine},
    proxy_config::{Auth, ProxySettings, Verifier},
};
use egress_kvm2::{
    Config, Kvm2,
    client::frame::{Frame, MessageType, REMOTE, Status},
};
use egress_provider::{Permit, Progress, Provider as _};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::AsyncWriteExt as _,
    net::{UnixListener, UnixStream, unix::OwnedReadHalf, unix::OwnedWriteHalf},
    time::Instant,
};

const HOPELESS: Duration = Duration::from_mins(2);

/// Makes so many machines, one after the other, and prints what each took.
pub fn measure(ground: &Ground, machines: u32) {
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(2).enable_all().build();
    let spans = runtime.expect("a runtime").block_on(make(ground, machines));
    let of = |time: fn(&Span) -> Duration| {
        let millis = spans.iter().map(|span| time(span).as_secs_f64() * 1000.0);
        median(&millis.collect::<Vec<_>>())
    };
    let (whole, waited) = (of(|s| s.whole), of(|s| s.libvirt));
    let own = of(|s| s.whole.saturating_sub(s.libvirt));
    row([
        "a machine by the provider, claim to start, ms".to_owned(),
        figure(whole),
    ]);
    row(["of it, waiting for libvirt, ms".to_owned(), figure(waited)]);
    row(["of it, our own, ms".to_owned(), figure(own)]);
}

struct Span {
    whole: Duration,
    libvirt: Duration,
}

async fn make(ground: &Ground, machines: u32) -> Vec<Span> {
    let socket = ground.dir.join("bench.sock");
    let watch = Watch::start(&socket, ground.dir.join("run/libvirt-sock"));
    let payload = ground.dir.join("bench-payload");
    std::fs::create_dir_all(&payload).expect("a directory");
    let program = payload.join("proxyd");
    std::fs::write(&program, &ground.proxyd).expect("written");
    let base = ground.debian.file_name().expect("a file").to_string_lossy();
    let config = serde_json::json!({
        "hosts": [{"uri": format!("qemu+unix:///system?socket={}", socket.display())}],
        "baseImage": base,
        "domainType": "qemu",
        "reserve": {"storagePercent": 0, "memoryMiB": 0},
    });
    let config: Config = serde_json::from_value(config).expect("a configuration");
    assert_eq!(config.validate("kvm2"), []);
    let identity = Identity {
        installation: "bench".parse().expect("a name"),
        writer: None,
    };
    let provider = Kvm2::new(
        "kvm-a".parse().expect("a name"),
        identity,
        config,
        Some(program),
    );
    let mut spans = Vec::new();
    for number in 0..machines {
        eprintln!("by the provider, {} of {machines}", number + 1);
        spans.push(one(&provider, number, &watch).await);
    }
    spans
}

async fn one(provider: &Kvm2, number: u32, watch: &Watch) -> Span {
    let key = MachineKey::new(format!("bench-{number}").parse().expect("a UID"));
    let wanted = WantedMachine {
        proxy: format!("default/bench-{number}").parse().expect("a name"),
        size: MachineSize {
            cpus: 1,
            memory_mib: 512,
            disk_gib: 4,
        },
        settings: ProxySettings {
            port: None,
            clients: Vec::new(),
            auth: Auth::Basic {
                verifiers: vec![Verifier::new("egress", "swordfish")],
                generation: 1,
            },
        },
        config_hash: ConfigHash::of(b"bench"),
        user_data: None,
    };
    let permit = || Permit::new(1, Instant::now() + HOPELESS);
    let (begun, answered) = (Instant::now(), watch.waited());
    let mut claim = provider
        .claim(&key, &wanted, 1, &[])
        .await
        .expect("a place");
    claim.standing = Standing::Sent;
    loop {
        let made = provider.create(&key, &claim, &wanted, &permit()).await;
        match made.unwrap_or_else(|error| panic!("{}", error.chain())) {
            Progress::Done => break,
            Progress::InProgress { recheck, .. } => tokio::time::sleep(recheck).await,
        }
        assert!(begun.elapsed() < HOPELESS, "it is not made");
    }
    let span = Span {
        whole: begun.elapsed(),
        libvirt: watch.waited().saturating_sub(answered),
    };
    claim.standing = Standing::Started;
    loop {
        match provider.delete(&key, &claim, &permit()).await {
            Ok(Progress::Done) => break,
            Ok(Progress::InProgress { recheck, .. }) => tokio::time::sleep(recheck).await,
            Err(error) => {
                eprintln!("  {}", error.chain());
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        assert!(begun.elapsed() < HOPELESS, "it is not removed");
    }
    span
}

/// Passes messages on to libvirtd and back, and sums up for how long an answer was due.
struct Watch(Arc<Mutex<Due>>);

#[derive(Default)]
struct Due {
    /// Calls without an answer, by connection and serial number; true for an upload.
    open: HashMap<(u64, u32), bool>,
    since: Option<Instant>,
    total: Duration,
    connections: u64,
}

/// The procedure that sends a stream after it.
const UPLOAD: u32 = 208;

impl Due {
    fn asked(&mut self, connection: u64, frame: &Frame) {
        if frame.header.program == REMOTE && frame.header.kind == MessageType::Call {
            let is_upload = frame.header.procedure == UPLOAD;
            self.open
                .insert((connection, frame.header.serial), is_upload);
            self.since.get_or_insert_with(Instant::now);
        }
    }

    fn answered(&mut self, connection: u64, frame: &Frame) {
        let at = (connection, frame.header.serial);
        let ends = match frame.header.kind {
            // An upload ends with the answer to its stream, unless it was refused.
            MessageType::Reply => {
                self.open.get(&at) == Some(&false) || frame.header.status == Status::Error
            }
            MessageType::Stream => frame.header.status != Status::Continue,
            MessageType::Call | MessageType::Event => false,
        };
        if ends && self.open.remove(&at).is_some() && self.open.is_empty() {
            self.close();
        }
    }

    fn close(&mut self) {
        if let Some(since) = self.since.take() {
            self.total += since.elapsed();
        }
    }
}

impl Watch {
    fn start(socket: &Path, libvirtd: PathBuf) -> Self {
        let due = Arc::new(Mutex::new(Due::default()));
        let listener = UnixListener::bind(socket).expect("a socket");
        let kept = due.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&libvirtd).await.expect("libvirtd");
                let connection = {
                    let mut due = kept.lock().expect("whole");
                    due.connections += 1;
                    due.connections
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let (up, down) = (kept.clone(), kept.clone());
                tokio::spawn(pass(from_client, to_server, move |frame| {
                    up.lock().expect("whole").asked(connection, frame);
                }));
                let ended = kept.clone();
                tokio::spawn(async move {
                    let see = move |frame: &Frame| {
                        down.lock().expect("whole").answered(connection, frame);
                    };
                    pass(from_server, to_client, see).await;
                    let mut due = ended.lock().expect("whole");
                    due.open.retain(|(of, _), _| *of != connection);
                    if due.open.is_empty() {
                        due.close();
                    }
                });
            }
        });
        Self(due)
    }

    /// For how long an answer was due so far.
    fn waited(&self) -> Duration {
        self.0.lock().expect("whole").total
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, see: impl Fn(&Frame)) {
    while let Ok(frame) = Frame::read(&mut from).await {
        see(&frame);
        let Some(bytes) = frame.encode() else { return };
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
