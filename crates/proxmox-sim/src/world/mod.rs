//! The data centre: requests and time in, answers out.
//!
//! Nothing here waits or reads a clock. What takes time is put into a queue and takes effect
//! when a later call says that its time has come, in the order of the times.
//!
//! Not modelled: snapshots, backups and replication as work (their locks are), live
//! migration as a task (people move machines at once), SDN beyond the local zone, mapped
//! devices, hot-plugging that fails, quotas, and two-factor login. A call that found no free
//! worker has its effect at once and only its answer late.

mod access;
mod agent;
mod answers;
mod clone;
mod cluster;
mod config;
mod control;
mod create;
mod deferred;
mod destroy;
mod disks;
mod dispatch;
mod faults;
mod guest;
mod inventory;
mod jobs;
mod locks;
mod params;
mod people;
mod permissions;
mod pools;
mod power;
mod resources;
mod schema;
mod setup;
mod storage;
mod tasks;
#[cfg(test)]
mod tests;
mod upload;
mod vitals;

pub use control::{AgentBehaviour, Control, Daemon, DaemonState, Landing, Network, Power};
pub use inventory::Guest;
pub use setup::{
    AclSetup, BridgeSetup, Datacenter, GuestSetup, NodeSetup, PoolSetup, Setup, StorageSetup,
    Timings, TokenSetup, UserSetup, VolumeSetup,
};

use crate::exchange::Request;
use faults::Faults;
use guest::{Drive, Machine, Running};
use locks::Flock;
use resources::Broadcasts;
use schema::Schema;
use setup::Pace;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use storage::{Storage, Volume, VolumeKey};
use tasks::{TaskId, Tasks};

/// A host.
#[derive(Clone, Debug)]
struct Node {
    setup: NodeSetup,
    up: bool,
    /// How far its clock is off, in seconds.
    skew: i64,
    /// When it came up, where that was after the beginning.
    since: Duration,
    /// Until when each worker of its pvedaemon is busy.
    workers: [Duration; 3],
}

/// Something that will happen.
#[derive(Clone, Debug)]
enum Event {
    /// A task goes on, if this is still its turn.
    Task(TaskId, u64),
    /// A waiting task looks again.
    Poke(TaskId),
    /// A node sends its status broadcast.
    Broadcast(String),
    /// A request has its effect after all; nobody hears the answer.
    Late(Box<Request>),
    /// A machine starts or stops without a task of the API: the HA manager acts on a request,
    /// or its node came up.
    Ha { vmid: u32, birth: u64, start: bool },
}

/// The data centre.
#[derive(Clone, Debug)]
pub struct World {
    setup: Setup,
    pace: Pace,
    version: u8,
    now: Duration,
    random: u64,
    queued: u64,
    queue: BTreeMap<(Duration, u64), Event>,
    nodes: BTreeMap<String, Node>,
    guests: BTreeMap<u32, Machine>,
    storages: BTreeMap<String, Storage>,
    volumes: BTreeMap<VolumeKey, Volume>,
    pools: BTreeMap<String, BTreeSet<u32>>,
    pool_storages: BTreeMap<String, BTreeSet<String>>,
    access: access::Access,
    tasks: Tasks,
    flocks: BTreeMap<(String, u32), Flock>,
    users_busy_until: Duration,
    broadcasts: Broadcasts,
    datacenter: Datacenter,
    identity: u64,
    births: u64,
    default_agent: AgentBehaviour,
    faults: Faults,
    hidden: BTreeMap<u32, Machine>,
    /// What the agents of guests that live outside answer, by machine and boot.
    reports: BTreeMap<(u32, u64), Vec<std::net::IpAddr>>,
    mutations: Vec<String>,
    /// Another cluster that answers in place of this one.
    elsewhere: Option<Box<World>>,
}

impl World {
    /// A world as the setup describes it, at its beginning.
    pub fn new(setup: Setup) -> Self {
        let mut world = Self {
            pace: Pace::new(setup.timings, setup.speed),
            version: if setup.version <= 8 { 8 } else { 9 },
            now: Duration::ZERO,
            random: setup.seed,
            queued: 0,
            queue: BTreeMap::new(),
            nodes: setup
                .nodes
                .iter()
                .map(|node| {
                    let fresh = Node {
                        setup: node.clone(),
                        up: true,
                        skew: 0,
                        since: Duration::ZERO,
                        workers: [Duration::ZERO; 3],
                    };
                    (node.name.clone(), fresh)
                })
                .collect(),
            guests: BTreeMap::new(),
            storages: setup
                .storages
                .iter()
                .map(|it| (it.name.clone(), Storage::new(it.clone())))
                .collect(),
            volumes: BTreeMap::new(),
            pools: setup
                .pools
                .iter()
                .map(|pool| (pool.name.clone(), pool.members.iter().copied().collect()))
                .collect(),
            pool_storages: setup
                .pools
                .iter()
                .map(|pool| (pool.name.clone(), pool.storages.iter().cloned().collect()))
                .collect(),
            access: access::Access::new(&setup),
            tasks: Tasks::default(),
            flocks: BTreeMap::new(),
            users_busy_until: Duration::ZERO,
            broadcasts: Broadcasts::default(),
            datacenter: setup.datacenter.clone(),
            identity: setup.seed,
            births: 0,
            default_agent: AgentBehaviour::Answering,
            faults: Faults::new(setup.seed),
            hidden: BTreeMap::new(),
            reports: BTreeMap::new(),
            mutations: Vec::new(),
            elsewhere: None,
            setup,
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        for guest in self.setup.guests.clone() {
            let node = guest.node.clone().unwrap_or_else(|| self.first_node());
            let mut made = self.born(&node);
            made.container = guest.container;
            made.config = guest.config;
            made.pending = guest.pending;
            made.ha = guest.ha;
            made.deaf = guest.deaf;
            made.copy_seconds = guest.copy_seconds;
            if guest.running {
                made.starts = 1;
                made.running = Some(Running {
                    pid: self.tasks.next_pid(),
                    since: Duration::ZERO,
                    qmp: "running",
                    hung: false,
                    agent_device: made.config.contains_key("agent"),
                });
            }
            for (key, value) in &made.config {
                let drive = Drive::parse(value);
                let known = (guest::is_drive(key) || guest::is_unused(key))
                    && drive.volume().is_some()
                    && !guest.diskless;
                if known && !drive.file.contains(":iso/") {
                    let size = drive.size().unwrap_or(4 << 20);
                    self.put_volume(&drive.file, &node, size, None);
                }
            }
            self.guests.insert(guest.vmid, made);
        }
        for volume in self.setup.volumes.clone() {
            let node = volume.node.clone().unwrap_or_else(|| self.first_node());
            self.put_volume(&volume.volid, &node, volume.size, volume.ctime);
        }
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in names {
            self.broadcast(&name);
        }
    }

    /// The first node, where what says nothing else lies.
    fn first_node(&self) -> String {
        let first = self.setup.nodes.first();
        first.map_or_else(|| "pve1".to_owned(), |node| node.name.clone())
    }

    /// A guest without anything yet.
    fn born(&mut self, node: &str) -> Machine {
        self.births += 1;
        Machine {
            node: node.to_owned(),
            birth: self.births,
            ..Machine::default()
        }
    }

    /// Lets time pass up to `now` and does all that is due.
    pub fn advance(&mut self, now: Duration) {
        if let Some(other) = &mut self.elsewhere {
            other.advance(now);
        }
        while let Some(entry) = self.queue.first_entry() {
            let at = entry.key().0;
            if at > now {
                break;
            }
            let event = entry.remove();
            self.now = self.now.max(at);
            self.happen(event);
        }
        self.now = self.now.max(now);
    }

    /// When the next thing is due; `None` when nothing is but the broadcasts.
    pub fn next_event(&self) -> Option<Duration> {
        self.queue
            .iter()
            .find(|(_, event)| !matches!(event, Event::Broadcast(_)))
            .map(|((at, _), _)| *at)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Task(id, turn) => self.wake_task(id, turn),
            Event::Poke(id) => self.poke_task(id),
            Event::Broadcast(node) => self.broadcast(&node),
            Event::Late(request) => {
                self.answer(&request);
            }
            Event::Ha { vmid, birth, start } => self.ha_acts(vmid, birth, start),
        }
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.queued += 1;
        self.queue.insert((at, self.queued), event);
    }

    /// The time of day on a node, in seconds since 1970.
    fn time_of_day(&self, node: &str) -> u64 {
        let skew = self.nodes.get(node).map_or(0, |node| node.skew);
        (self.setup.epoch + self.now.as_secs()).saturating_add_signed(skew)
    }

    /// The next random number; the same seed, the same numbers.
    fn draw(&mut self) -> u64 {
        draw(&mut self.random)
    }

    /// A new MAC address.
    fn draw_mac(&mut self) -> String {
        let number = self.draw();
        let [a, b, c, ..] = number.to_be_bytes();
        let prefix = &self.datacenter.mac_prefix;
        format!("{prefix}:{a:02X}:{b:02X}:{c:02X}")
    }

    /// A new UUID.
    fn draw_uuid(&mut self) -> String {
        let (a, b) = (self.draw(), self.draw());
        format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            a & 0xfff,
            (b >> 52) & 0xfff,
            b & 0xffff_ffff_ffff
        )
    }

    fn schema(&self) -> &'static Schema {
        Schema::of(self.version)
    }

    /// Whether the cluster has quorum.
    const fn has_quorum(&self) -> bool {
        self.faults.quorum
    }
}

/// The next number of a series (splitmix64).
const fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
