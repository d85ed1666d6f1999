//! The simulator of Proxmox VE as a [`Hypervisor`]: in one process and in virtual time.
//!
//! Requests of each provider go through a wire of its own, which knows the fuse. Machines are
//! who the seed in their drive says at the first start at which there is one.

use crate::{
    fuse::Fuse,
    ground::{Ground, Hypervisor, PROVIDER, legal},
};
use async_trait::async_trait;
use egress_core::{MachineKey, machine::Mark, proxy::ServingFault, proxy_config::IdentityAnswer};
use egress_engine::{Credential, Prober, probe::Fault};
use egress_provider::Provider;
use egress_proxmox::{Config, Payload, Proxmox};
use egress_proxmox_sim::world::{Control, Setup, World};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::Instant;

mod wire;

/// A person comes so long after the status began to ask for one.
const ATTENDS_AFTER: Duration = Duration::from_mins(20);

/// A data centre, its people, and the ways to it.
pub struct Pve {
    inner: Mutex<Inner>,
    began: Instant,
    clients: AtomicU32,
    config: Config,
    /// Holds the token file.
    _directory: TempDir,
}

struct Inner {
    world: World,
    fuse: Arc<Fuse>,
    /// Mutating requests that got through: client, moment, method and path.
    requests: Vec<(u32, Instant, String)>,
    /// Lines of the inventory that are the world's own, or its people's.
    theirs: BTreeSet<String>,
    /// Who the machines are, by what tells one machine from another.
    guests: BTreeMap<String, (String, u32)>,
    /// Who was known to have booted when the world was looked at last.
    boots: u64,
    /// What is to happen, in the order of time.
    later: Vec<(Instant, Value)>,
    /// Machines with a lock that no task stands behind, and since when.
    stuck: BTreeMap<u32, Instant>,
    killed: u64,
}

impl Pve {
    /// A new data centre, and the product's configuration for it, changed in this way.
    pub fn new(setup: &Setup, change: impl FnOnce(&mut Config)) -> Arc<Self> {
        let directory = tempfile::tempdir().expect("a directory for the token can be made");
        let token = directory.path().join("token");
        let secret = &setup.tokens[0];
        std::fs::write(&token, format!("{}={}\n", secret.id, secret.secret))
            .expect("the token can be written");
        let mut config: Config = serde_json::from_value(json!({
            "urls": ["https://pve1:8006"],
            "caFile": directory.path().join("ca.pem"),
            "tokenFile": token,
            "template": 9000,
            "storage": "local-lvm",
            "isoStorage": "proxy-seeds",
            "vmidRange": {"from": 100_000, "to": 199_999},
            "guestAgent": "baked",
        }))
        .expect("a configuration written in this crate is right");
        change(&mut config);
        let world = World::new(setup.clone());
        let theirs = world.inventory().into_iter().collect();
        Arc::new(Self {
            inner: Mutex::new(Inner {
                world,
                fuse: Fuse::counting(),
                requests: Vec::new(),
                theirs,
                guests: BTreeMap::new(),
                boots: 0,
                later: Vec::new(),
                stuck: BTreeMap::new(),
                killed: 0,
            }),
            began: Instant::now(),
            clients: AtomicU32::new(0),
            config,
            _directory: directory,
        })
    }

    /// The world as it is now.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.catch_up(self.began);
        inner
    }

    /// Something happens beside the API, so long from now.
    pub fn tell_after(&self, wait: Duration, order: Value) {
        let at = Instant::now() + wait;
        let mut inner = self.inner();
        inner.later.push((at, order));
        inner.later.sort_by_key(|(at, _)| *at);
        inner.catch_up(self.began);
    }

    /// Something happens beside the API, now.
    pub fn tell(&self, order: Value) -> Result<Value, String> {
        let now = self.began.elapsed();
        self.inner().tell(order, now)
    }

    /// How many tasks were killed so far.
    pub fn killed(&self) -> u64 {
        self.inner().killed
    }

    /// What is told of a person's doing: their machines, disks and files stay as they are.
    fn people_make(&self, order: Value) -> Result<Value, String> {
        let now = self.began.elapsed();
        let mut inner = self.inner();
        let before: BTreeSet<String> = inner.world.inventory().into_iter().collect();
        let answer = inner.tell(order, now)?;
        let made = inner.world.inventory().into_iter();
        let made: Vec<String> = made.filter(|line| !before.contains(line)).collect();
        inner.theirs.extend(made);
        Ok(answer)
    }
}

impl Inner {
    /// Lets happen what is due, and notes who the machines are that run.
    fn catch_up(&mut self, began: Instant) {
        let now = Instant::now();
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            let (at, order) = self.later.remove(0);
            // What it is about may be gone by now.
            let _ = self.tell(order, at.saturating_duration_since(began));
        }
        let now = now.saturating_duration_since(began);
        let boots = self.world.boots(now);
        if std::mem::replace(&mut self.boots, boots) == boots {
            return;
        }
        for guest in self.world.guests(now) {
            let Some((_, seed)) = guest.seed else {
                continue;
            };
            if self.guests.contains_key(&guest.identity) {
                continue;
            }
            if let Some(who) = instance(&seed) {
                self.guests.insert(guest.identity, who);
                let addresses = [address_of(guest.vmid)];
                let order = json!({"do": "addresses", "vmid": guest.vmid, "addresses": addresses});
                self.tell(order, now).expect("it runs");
            }
        }
    }

    fn tell(&mut self, order: Value, now: Duration) -> Result<Value, String> {
        let control: Control = serde_json::from_value(order).map_err(|error| error.to_string())?;
        let kills = matches!(control, Control::KillTasks { .. });
        let answer = self.world.control(control, now)?;
        if kills {
            self.killed += answer.as_u64().unwrap_or(0);
        }
        Ok(answer)
    }

    fn describe(&mut self, vmid: u32, now: Duration) -> Option<String> {
        let told = self.tell(json!({"do": "describe", "vmid": vmid}), now);
        told.ok()?.as_str().map(str::to_owned)
    }

    /// The machines in the range of the product.
    fn machines(&self) -> Vec<u32> {
        let lines = self.world.inventory().into_iter();
        lines
            .filter_map(|line| {
                line.strip_prefix("machine ")?
                    .split(' ')
                    .next()?
                    .parse()
                    .ok()
            })
            .filter(|vmid| (100_000..200_000).contains(vmid))
            .collect()
    }
}

/// Where the guest of a VMID is reached.
fn address_of(vmid: u32) -> IpAddr {
    Ipv4Addr::from((10 << 24) | vmid).into()
}

fn vmid_at(address: IpAddr) -> Option<u32> {
    let IpAddr::V4(v4) = address else {
        return None;
    };
    let vmid = u32::from(v4) & 0x00ff_ffff;
    (address_of(vmid) == address).then_some(vmid)
}

/// What `instance-id: "NAME-ATTEMPT"` on a seed says.
fn instance(seed: &[u8]) -> Option<(String, u32)> {
    const LINE: &[u8] = b"instance-id: \"";
    let found = seed.windows(LINE.len()).position(|window| window == LINE)?;
    let rest = &seed[found + LINE.len()..];
    let end = rest.iter().position(|byte| *byte == b'"')?;
    let (name, attempt) = std::str::from_utf8(&rest[..end]).ok()?.rsplit_once('-')?;
    Some((name.to_owned(), attempt.parse().ok()?))
}

impl Hypervisor for Pve {
    fn provider(self: &Arc<Self>) -> (Arc<dyn Provider>, u32) {
        let client = self.clients.fetch_add(1, Ordering::Relaxed) + 1;
        let wire = wire::SimWire {
            pve: self.clone(),
            client,
        };
        let provider = Proxmox::over(
            legal(PROVIDER),
            Ground::identity(),
            self.config.clone(),
            Payload::new(None),
            Arc::new(wire),
        );
        (Arc::new(provider), client)
    }

    fn prober(self: &Arc<Self>) -> Arc<dyn Prober> {
        Arc::new(PveProber(self.clone()))
    }

    fn arm(&self, fuse: &Arc<Fuse>) {
        self.inner().fuse = fuse.clone();
    }

    fn machines_of(&self, key: &MachineKey) -> Vec<u32> {
        let now = self.began.elapsed();
        let mut inner = self.inner();
        let mut found = inner.machines();
        found.retain(|vmid| {
            let text = inner.describe(*vmid, now).unwrap_or_default();
            let mark = Mark::find(&text);
            mark.is_some_and(|m| m.uid == *key.uid() && m.slot.as_str() == vmid.to_string())
        });
        found
    }

    fn leftovers(&self) -> Vec<String> {
        let inner = self.inner();
        let mut lines = inner.world.inventory();
        lines.retain(|line| !inner.theirs.contains(line));
        lines
    }

    fn acted_after(&self, client: u32, moment: Instant) -> Option<String> {
        let inner = self.inner();
        inner
            .requests
            .iter()
            .find(|(by, at, _)| *by == client && *at > moment)
            .map(|(_, _, line)| line.clone())
    }

    fn requests_at(&self, slot: u32, since: Instant) -> Vec<(Duration, String)> {
        let parts = [format!("/qemu/{slot}/"), format!("/qemu/{slot}?")];
        let inner = self.inner();
        let named = inner
            .requests
            .iter()
            .filter(|(_, at, line)| *at >= since && parts.iter().any(|part| line.contains(part)));
        named
            .map(|(_, at, line)| (*at - since, line.clone()))
            .collect()
    }

    fn place(&self, slot: u32) -> bool {
        let order = json!({"do": "place", "vmid": slot, "name": "payroll", "text": "not yours"});
        self.people_make(order).is_ok()
    }

    /// Not while it is locked or a task is at it: Proxmox VE keeps people from that.
    fn remove(&self, slot: u32) {
        let now = self.began.elapsed();
        let mut inner = self.inner();
        let text = inner.describe(slot, now).unwrap_or_default();
        let locked = text.lines().any(|line| line.starts_with("lock: "));
        let at_work = inner.world.inventory().iter().any(|line| {
            line.starts_with("task ") && line.split(':').any(|part| part == slot.to_string())
        });
        if !text.is_empty() && !locked && !at_work {
            let order = json!({"do": "remove", "vmid": slot});
            inner.tell(order, now).expect("it is there");
        }
    }

    fn copy(&self, slot: u32) -> Option<u32> {
        let copy = self.people_make(json!({"do": "copy", "vmid": slot})).ok()?;
        copy.as_u64()?.try_into().ok()
    }

    fn rename(&self, slot: u32, name: &str) {
        // What is gone needs no name.
        let _ = self.tell(json!({"do": "rename", "vmid": slot, "name": name}));
    }

    fn describe(&self, slot: u32) -> Option<String> {
        let now = self.began.elapsed();
        self.inner().describe(slot, now)
    }

    /// A lock that a killed task left: the person unlocks, and removes the machine and its
    /// volumes, as the status says.
    fn attend(&self) {
        let now = self.began.elapsed();
        let mut inner = self.inner();
        if inner.killed == 0 {
            return;
        }
        let lines = inner.world.inventory();
        let mut stuck = BTreeMap::new();
        for vmid in inner.machines() {
            let text = inner.describe(vmid, now).unwrap_or_default();
            let locked = text.lines().any(|line| line.starts_with("lock: "));
            let at_work = lines
                .iter()
                .any(|line| line.starts_with("task ") && !line.contains(":imgcopy:"));
            if locked && !at_work {
                let since = inner.stuck.get(&vmid).copied();
                stuck.insert(vmid, since.unwrap_or_else(Instant::now));
            }
        }
        inner.stuck = stuck;
        let due: Vec<u32> = inner
            .stuck
            .iter()
            .filter(|(_, since)| since.elapsed() >= ATTENDS_AFTER)
            .map(|(vmid, _)| *vmid)
            .collect();
        for vmid in due {
            inner
                .tell(json!({"do": "remove", "vmid": vmid}), now)
                .expect("a machine that is there can be removed");
        }
    }
}

/// Asks the guests of a [`Pve`].
struct PveProber(Arc<Pve>);

#[async_trait]
impl Prober for PveProber {
    async fn identify(
        &self,
        endpoint: SocketAddr,
        credential: Option<&Credential>,
        _: Duration,
    ) -> Result<IdentityAnswer, Fault> {
        let now = self.0.began.elapsed();
        let mut inner = self.0.inner();
        let guest = vmid_at(endpoint.ip()).and_then(|vmid| inner.world.guest(vmid, now));
        let awake = guest.filter(|guest| !guest.paused);
        let who = awake.and_then(|guest| inner.guests.get(&guest.identity).cloned());
        let Some((key, attempt)) = who else {
            return Err((
                ServingFault::PortClosed,
                format!("nothing listens at {endpoint}"),
            ));
        };
        Ok(IdentityAnswer {
            key,
            attempt,
            credential_generation: credential.map_or(0, |c| c.generation),
            version: "sim".into(),
            draining: false,
        })
    }
}
