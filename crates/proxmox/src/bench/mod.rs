//! The conformance suite's test bench over the simulator: its abilities in words of the
//! simulator's control channel. They are data (JSON), so that no type is shared with it.

mod http;

pub use http::HttpControl;

use crate::{Config, Payload, Proxmox, client::Wire, provider::seed_file};
use async_trait::async_trait;
use egress_core::{Host, Identity, Installation, MachineKey, ProviderName, Slot};
use egress_provider::{
    Provider,
    conformance::{
        Agent, Credentials, Harness, Landing, Lock, Network, Offered, PowerEvent, Refusal, Stranger,
    },
};
use serde_json::{Value, json};
use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// Beyond what shared reads and surveys may be old, and what the hypervisor's own lag is.
const LAG: Duration = Duration::from_secs(22);
/// So much time passes in earnest, if it must.
const PATIENCE: Duration = Duration::from_mins(1);
/// Beyond what the hypervisor's own lag becomes in a fast world, for the way there and back.
const MARGIN: Duration = Duration::from_millis(200);

/// A way to tell a simulator what happens beside its API.
#[async_trait]
pub trait ControlChannel: Send + Sync {
    /// Tells it one thing, as `{"do": …}`; answers what it answers.
    async fn control(&self, order: Value) -> Result<Value, String>;
}

/// One simulated world and all that can happen in it.
pub struct Bench {
    name: ProviderName,
    identity: Identity,
    config: Config,
    payload: Option<PathBuf>,
    wire: Arc<dyn Wire>,
    channel: Arc<dyn ControlChannel>,
    /// Whether time is tokio's alone, so that it can be let pass at will.
    virtual_time: bool,
    /// The token's id, and the secret it began with.
    token: (String, String),
    /// The secret that the world takes now.
    secret: Mutex<String>,
    exchanges: AtomicU32,
    /// How much faster than time the world runs, once it was asked.
    speed: OnceLock<f64>,
}

impl Bench {
    /// A bench over the world behind this wire and channel. The token of `config` is copied to
    /// a file below `directory`, which the bench writes to; the original is left alone.
    pub fn new(
        name: ProviderName,
        identity: Identity,
        mut config: Config,
        payload: Option<PathBuf>,
        wire: Arc<dyn Wire>,
        channel: Arc<dyn ControlChannel>,
        directory: &Path,
    ) -> io::Result<Self> {
        let text = fs::read_to_string(&config.token_file)?;
        let (id, secret) = text
            .trim()
            .rsplit_once('=')
            .ok_or_else(|| io::Error::other("the token file holds no token"))?;
        let token = (id.to_owned(), secret.to_owned());
        config.token_file = directory.join("bench-token");
        let bench = Self {
            name,
            identity,
            config,
            payload,
            wire,
            channel,
            virtual_time: false,
            secret: Mutex::new(token.1.clone()),
            token,
            exchanges: AtomicU32::new(0),
            speed: OnceLock::new(),
        };
        bench.write_token(&bench.token.1)?;
        Ok(bench)
    }

    /// The same bench in a world whose time is tokio's paused clock.
    #[must_use]
    pub const fn in_virtual_time(mut self) -> Self {
        self.virtual_time = true;
        self
    }

    fn write_token(&self, secret: &str) -> io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&self.config.token_file)?;
        writeln!(file, "{}={secret}", self.token.0)
    }

    fn secret(&self) -> String {
        self.secret
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    async fn tell(&self, order: Value) -> Offered<Value> {
        self.channel.control(order).await.map_err(Refusal::Stumbled)
    }

    async fn order(&self, order: Value) -> Offered {
        self.tell(order).await.map(drop)
    }

    async fn lines(&self, order: Value) -> Offered<Vec<String>> {
        let answer = self.tell(order).await?;
        serde_json::from_value(answer).map_err(stumbled)
    }

    /// The world takes this secret from now on.
    async fn rotate(&self, secret: String) -> Offered {
        self.order(json!({"do": "rotate-token", "id": self.token.0, "secret": secret}))
            .await?;
        *self.secret.lock().unwrap_or_else(PoisonError::into_inner) = secret;
        Ok(())
    }

    /// How much faster than time the world runs; 1 where time is the world's own.
    async fn speed(&self) -> Offered<f64> {
        if self.virtual_time {
            return Ok(1.0);
        }
        if let Some(speed) = self.speed.get() {
            return Ok(*speed);
        }
        let facts = self.tell(json!({"do": "facts"})).await?;
        let speed = facts.get("speed").and_then(Value::as_f64).unwrap_or(1.0);
        Ok(*self.speed.get_or_init(|| speed.max(1.0)))
    }

    async fn provider(&self, identity: Identity) -> Offered<Arc<dyn Provider>> {
        let speed = self.speed().await?;
        let provider = Proxmox::over(
            self.name.clone(),
            identity,
            self.config.clone(),
            Payload::new(self.payload.clone()),
            self.wire.clone(),
        );
        Ok(Arc::new(provider.at_speed(speed)))
    }

    /// The nodes that new machines do not come to.
    async fn other_nodes(&self) -> Offered<Vec<String>> {
        let facts = self.tell(json!({"do": "facts"})).await?;
        let nodes: Vec<String> = facts
            .get("nodes")
            .and_then(Value::as_array)
            .map(|nodes| {
                let name = |node: &Value| {
                    node.as_str()
                        .or_else(|| node.get("name")?.as_str())
                        .map(str::to_owned)
                };
                nodes.iter().filter_map(name).collect()
            })
            .unwrap_or_default();
        Ok(nodes.into_iter().skip(1).collect())
    }
}

fn stumbled(error: impl std::fmt::Display) -> Refusal {
    Refusal::Stumbled(error.to_string())
}

fn vmid(slot: &Slot) -> Offered<u32> {
    slot.as_str()
        .parse()
        .map_err(|_| stumbled(format!("{slot} is no VMID")))
}

#[async_trait]
impl Harness for Bench {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    async fn restart(&self) -> Offered<Arc<dyn Provider>> {
        self.provider(self.identity.clone()).await
    }

    async fn heal(&self) -> Offered {
        self.order(json!({"do": "heal"})).await?;
        self.order(json!({"do": "quorum", "on": true})).await?;
        for node in self.other_nodes().await? {
            self.order(json!({"do": "node", "node": node, "up": true}))
                .await?;
        }
        if self.secret() != self.token.1 {
            self.rotate(self.token.1.clone()).await?;
        }
        self.write_token(&self.token.1).map_err(stumbled)
    }

    async fn inventory(&self) -> Offered<Vec<String>> {
        self.lines(json!({"do": "inventory"})).await
    }

    fn call_deadline(&self) -> Duration {
        // The reads of a call, and a mutation or an upload that was written before they ended.
        Duration::from_mins(7)
    }

    fn secrets(&self) -> Vec<String> {
        vec![self.token.1.clone(), self.secret()]
    }

    async fn pace(&self) -> Offered<f64> {
        self.speed().await
    }

    async fn pass(&self, time: Duration) -> Offered {
        if !self.virtual_time && time > PATIENCE {
            return Err(Refusal::NotOffered("let more than a minute pass"));
        }
        tokio::time::sleep(time).await;
        Ok(())
    }

    async fn catch_up(&self) -> Offered {
        let lag = LAG.div_f64(self.speed().await?);
        let margin = if self.virtual_time {
            Duration::ZERO
        } else {
            MARGIN
        };
        tokio::time::sleep(lag + margin).await;
        Ok(())
    }

    async fn other_installation(&self) -> Offered<Arc<dyn Provider>> {
        let name = format!("not-{}", self.identity.installation);
        let installation: Installation = name.parse().map_err(stumbled)?;
        self.provider(Identity {
            installation,
            writer: self.identity.writer.clone(),
        })
        .await
    }

    async fn mutations(&self) -> Offered<Vec<String>> {
        self.lines(json!({"do": "mutations"})).await
    }

    async fn describe(&self, slot: &Slot) -> Offered<Option<String>> {
        let answer = self
            .tell(json!({"do": "describe", "vmid": vmid(slot)?}))
            .await?;
        Ok(match answer {
            Value::Null => None,
            Value::String(text) => Some(text),
            other => Some(other.to_string()),
        })
    }

    async fn place(&self, slot: &Slot, stranger: &Stranger) -> Offered {
        self.order(json!({
            "do": "place",
            "vmid": vmid(slot)?,
            "name": stranger.name,
            "text": stranger.text,
            "template": stranger.template,
        }))
        .await
    }

    async fn copy(&self, slot: &Slot) -> Offered<Slot> {
        let copy = self
            .tell(json!({"do": "copy", "vmid": vmid(slot)?}))
            .await?;
        let copy = copy
            .as_u64()
            .ok_or_else(|| stumbled("the copy has no number"))?;
        Ok(Slot::new(copy.to_string()))
    }

    async fn remove(&self, slot: &Slot) -> Offered {
        self.order(json!({"do": "remove", "vmid": vmid(slot)?}))
            .await
    }

    async fn rename(&self, slot: &Slot, name: &str) -> Offered {
        self.order(json!({"do": "rename", "vmid": vmid(slot)?, "name": name}))
            .await
    }

    async fn edit_mark(&self, slot: &Slot, text: Option<&str>) -> Offered {
        self.order(json!({"do": "edit-description", "vmid": vmid(slot)?, "text": text}))
            .await
    }

    async fn power(&self, slot: &Slot, event: PowerEvent) -> Offered {
        let event = match event {
            PowerEvent::Started => "started",
            PowerEvent::Off => "off",
            PowerEvent::Paused => "paused",
            PowerEvent::Hibernated => "hibernated",
            PowerEvent::Crashed => "crashed",
            PowerEvent::IoError => "io-error",
            PowerEvent::Hung => "hung",
        };
        self.order(json!({"do": "power", "vmid": vmid(slot)?, "event": event}))
            .await
    }

    async fn protect(&self, slot: &Slot) -> Offered {
        self.order(json!({"do": "protect", "vmid": vmid(slot)?}))
            .await
    }

    async fn unprotect(&self, slot: &Slot) -> Offered {
        self.order(json!({"do": "unprotect", "vmid": vmid(slot)?}))
            .await
    }

    async fn lock(&self, slot: &Slot, lock: Lock) -> Offered {
        let lock = match lock {
            Lock::Backup => "backup",
            Lock::Clone => "clone",
        };
        self.order(json!({"do": "lock", "vmid": vmid(slot)?, "lock": lock}))
            .await
    }

    async fn unlock(&self, slot: &Slot) -> Offered {
        self.order(json!({"do": "unlock", "vmid": vmid(slot)?}))
            .await
    }

    async fn migrate(&self, slot: &Slot) -> Offered<Host> {
        if self.other_nodes().await?.is_empty() {
            return Err(Refusal::NotOffered(
                "move a machine: the world has one node only",
            ));
        }
        let host = self
            .tell(json!({"do": "migrate", "vmid": vmid(slot)?}))
            .await?;
        let host = host.as_str().ok_or_else(|| stumbled("it moved nowhere"))?;
        Ok(Host::new(host))
    }

    async fn agent(&self, slot: &Slot, agent: Agent) -> Offered {
        let agent = match agent {
            Agent::Answering => "answering",
            Agent::Missing => "missing",
            Agent::Silent => "silent",
            Agent::Addressless => "addressless",
        };
        self.order(json!({"do": "agent", "vmid": vmid(slot)?, "agent": agent}))
            .await
    }

    async fn leave_seed(&self, key: &MachineKey) -> Offered<String> {
        // As a seed of ours is called, and for an attempt that no machine has.
        let name = seed_file(&self.identity.installation, key, 0);
        let order = json!({"do": "leave-seed", "name": name, "storage": self.config.iso_storage});
        let volume = self.tell(order).await?;
        volume
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| stumbled("the seed has no name"))
    }

    async fn remove_seed(&self, name: &str) -> Offered {
        self.order(json!({"do": "remove-seed", "name": name})).await
    }

    async fn fail_tasks(&self) -> Offered<usize> {
        let count = self.tell(json!({"do": "fail-tasks"})).await?;
        let count = count.as_u64().and_then(|count| usize::try_from(count).ok());
        count.ok_or_else(|| stumbled("how many tasks failed was not told"))
    }

    async fn lose_answer(&self, landing: Landing) -> Offered {
        let (landing, seconds) = match landing {
            Landing::Landed => ("landed", 0.0),
            Landing::Lost => ("lost", 0.0),
            Landing::Late(after) => ("late", after.as_secs_f64()),
        };
        self.order(json!({"do": "lose-answer", "landing": landing, "seconds": seconds}))
            .await
    }

    async fn network(&self, network: Network) -> Offered {
        let state = match network {
            Network::Up => "up",
            Network::Down => "down",
            Network::Hanging => "hanging",
        };
        self.order(json!({"do": "network", "state": state})).await
    }

    async fn credentials(&self, credentials: Credentials) -> Offered {
        match credentials {
            Credentials::Right => self.write_token(&self.secret()).map_err(stumbled),
            Credentials::Wrong => {
                let wrong = "00000000-0000-4000-8000-000000000bad";
                self.write_token(wrong).map_err(stumbled)
            }
            Credentials::Rotated => {
                let number = self.exchanges.fetch_add(1, Ordering::Relaxed) + 1;
                self.rotate(format!("00000000-0000-4000-9000-{number:012}"))
                    .await?;
                self.write_token(&self.secret()).map_err(stumbled)
            }
        }
    }

    async fn change_cluster(&self) -> Offered {
        self.order(json!({"do": "change-cluster"})).await
    }

    async fn fill_up(&self) -> Offered {
        self.order(json!({"do": "fill-storage", "storage": self.config.storage}))
            .await
    }

    async fn break_precondition(&self) -> Offered {
        // Only create's last step needs it.
        self.order(json!({"do": "remove-privilege", "privilege": "VM.PowerMgmt"}))
            .await
    }

    async fn lose_quorum(&self) -> Offered {
        self.order(json!({"do": "quorum", "on": false})).await
    }

    async fn blind_spot(&self) -> Offered {
        let nodes = self.other_nodes().await?;
        let Some(node) = nodes.first() else {
            return Err(Refusal::NotOffered("hide a node: the world has one only"));
        };
        // Of two nodes the one that is left has no majority.
        self.order(json!({"do": "node", "node": node, "up": false}))
            .await?;
        if nodes.len() == 1 {
            self.order(json!({"do": "quorum", "on": false})).await?;
        }
        Ok(())
    }
}
