//! The simulator in one process, on tokio's clock, and a provider's bench over it.

use async_trait::async_trait;
use egress_core::{Identity, ProviderName};
use egress_proxmox::{
    Config,
    bench::{Bench, ControlChannel},
    client::{Reuse, Wire, WireAnswer, WireError, WireRequest},
};
use egress_proxmox_sim::{
    exchange::{Answer, Request},
    world::{Control, NodeSetup, Setup, World},
};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::{Instant, sleep, sleep_until};

/// The token of the default world.
const TOKEN: &str = "op@pve!t1=a3b1c5d7-0000-4000-8000-000000000001";

/// A simulated world that is asked and told things in one process.
pub struct Sim {
    world: Mutex<World>,
    began: Instant,
    /// Every request, as `GET /path`, oldest first.
    requests: Mutex<Vec<String>>,
    /// How long a connection for a mutation takes.
    connecting: Mutex<Duration>,
}

impl Sim {
    pub fn new(setup: Setup) -> Arc<Self> {
        Arc::new(Self {
            world: Mutex::new(World::new(setup)),
            began: Instant::now(),
            requests: Mutex::default(),
            connecting: Mutex::default(),
        })
    }

    /// From now on a connection for a mutation takes so long.
    #[allow(dead_code, reason = "most tests connect at once")]
    pub fn connect_within(&self, time: Duration) {
        *self.connecting.lock().unwrap() = time;
    }

    /// The requests since the last time.
    #[allow(dead_code, reason = "not every test counts requests")]
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }

    /// Something happens beside the API.
    pub fn tell(&self, order: Value) -> Result<Value, String> {
        let control: Control = serde_json::from_value(order).map_err(|error| error.to_string())?;
        let now = self.began.elapsed();
        self.world.lock().unwrap().control(control, now)
    }

    /// What the API tells the token below a path.
    #[allow(dead_code, reason = "not every test asks by itself")]
    pub fn read(&self, path: &str) -> Value {
        let answer = self.step(&Request {
            node: "pve1".to_owned(),
            method: "GET".to_owned(),
            target: format!("/api2/json{path}"),
            headers: vec![("authorization".to_owned(), format!("PVEAPIToken={TOKEN}"))],
            body: Vec::new(),
        });
        let Answer::Response { body, .. } = answer else {
            panic!("{path} has no answer");
        };
        let mut body: Value = serde_json::from_slice(&body).unwrap();
        body["data"].take()
    }

    fn step(&self, request: &Request) -> Answer {
        self.world
            .lock()
            .unwrap()
            .step(request, self.began.elapsed())
    }
}

fn cut_off(why: &str) -> WireError {
    WireError::CutOff {
        why: why.to_owned(),
    }
}

#[async_trait]
impl Wire for Sim {
    async fn send(&self, request: WireRequest) -> Result<WireAnswer, WireError> {
        let not_sent = |why: &str| WireError::NotSent {
            why: why.to_owned(),
        };
        // As a connection takes a moment, so does this: a call can be frozen or dropped here.
        tokio::task::yield_now().await;
        if request.reuse == Reuse::Fresh {
            let connecting = *self.connecting.lock().unwrap();
            sleep(connecting).await;
        }
        if request
            .write_before
            .is_some_and(|moment| Instant::now() >= moment)
        {
            return Err(not_sent(
                "the permit, or the look at whose machine it is, expired before the connection was ready",
            ));
        }
        let mut headers: Vec<(String, String)> = request
            .headers
            .iter()
            .map(|(name, value)| {
                (
                    name.to_string(),
                    String::from_utf8_lossy(value.as_bytes()).into_owned(),
                )
            })
            .collect();
        headers.push(("host".to_owned(), request.base.authority()));
        if !request.body.is_empty() || matches!(request.method.as_str(), "POST" | "PUT") {
            headers.push(("content-length".to_owned(), request.body.len().to_string()));
        }
        let node = request
            .base
            .host()
            .split('.')
            .next()
            .unwrap_or_default()
            .to_owned();
        let told = Request {
            node,
            method: request.method.to_string(),
            target: request.target.clone(),
            headers,
            body: request.body.to_vec(),
        };
        let line = format!(
            "{} {}",
            told.method,
            told.target.trim_start_matches("/api2/json")
        );
        self.requests.lock().unwrap().push(line);
        match self.step(&told) {
            Answer::Response {
                status,
                reason,
                headers,
                body,
                after,
                ..
            } => {
                sleep(after).await;
                let mut map = HeaderMap::new();
                for (name, value) in headers {
                    if let (Ok(name), Ok(value)) =
                        (HeaderName::try_from(name), HeaderValue::try_from(value))
                    {
                        map.append(name, value);
                    }
                }
                Ok(WireAnswer {
                    status,
                    reason,
                    headers: map,
                    body: body.into(),
                })
            }
            Answer::Refused => Err(not_sent("connection refused")),
            Answer::Dropped { after } => {
                sleep(after).await;
                Err(cut_off("the connection was closed without an answer"))
            }
            Answer::Silence => {
                sleep_until(request.deadline).await;
                Err(cut_off("no answer"))
            }
        }
    }
}

/// The control channel in the same process.
struct Channel(Arc<Sim>);

#[async_trait]
impl ControlChannel for Channel {
    async fn control(&self, order: Value) -> Result<Value, String> {
        self.0.tell(order)
    }
}

/// Two nodes, so that machines can move.
#[allow(dead_code, reason = "one node is enough for some tests")]
pub fn two_nodes() -> Setup {
    let one = Setup::default();
    let second = NodeSetup {
        name: "pve2".to_owned(),
        address: "192.0.2.11".to_owned(),
        ..one.nodes[0].clone()
    };
    Setup {
        cluster: Some("lab".to_owned()),
        nodes: vec![one.nodes[0].clone(), second],
        ..one
    }
}

/// The configuration of a provider in such a world.
pub fn config(directory: &Path) -> Config {
    let token = directory.join("token");
    fs::write(&token, format!("{TOKEN}\n")).unwrap();
    serde_json::from_value(json!({
        "urls": ["https://pve1:8006"],
        "caFile": directory.join("ca.pem"),
        "tokenFile": token,
        "template": 9000,
        "storage": "local-lvm",
        "isoStorage": "proxy-seeds",
        "vmidRange": {"from": 100_000, "to": 199_999},
        "guestAgent": "baked",
    }))
    .unwrap()
}

pub fn identity() -> Identity {
    Identity {
        installation: "conformance".parse().unwrap(),
        writer: None,
    }
}

pub fn name() -> ProviderName {
    "pv1".parse().unwrap()
}

/// A bench over a new world.
#[allow(dead_code, reason = "some tests change the configuration")]
pub fn bench(setup: Setup, directory: &Path) -> (Arc<Sim>, Arc<Bench>) {
    bench_with(setup, directory, |_| {})
}

/// A bench over a new world, with a configuration changed in this way.
pub fn bench_with(
    setup: Setup,
    directory: &Path,
    change: impl FnOnce(&mut Config),
) -> (Arc<Sim>, Arc<Bench>) {
    let mut config = config(directory);
    change(&mut config);
    let sim = Sim::new(setup);
    let channel = Arc::new(Channel(sim.clone()));
    let bench = Bench::new(
        name(),
        identity(),
        config,
        None,
        sim.clone(),
        channel,
        directory,
    )
    .unwrap()
    .in_virtual_time();
    (sim, Arc::new(bench))
}
