//! A machine as the hypervisor keeps it. Cheap to copy: its texts are shared.

use egress_core::machine::{CloudConfig, ConfigHash, MachineSize};
use egress_core::{MachineUid, Mark, ProxyId};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};
use tokio::time::Instant;

use super::{Physics, gate::RequestKind};

/// Whether and how a machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Off.
    Stopped,
    /// On.
    Running,
    /// Halted in memory by an admin.
    Paused,
    /// Suspended to disk by an admin.
    Hibernated,
    /// Ended by a fault of its own.
    Crashed,
    /// Halted by the hypervisor on a storage error.
    IoError,
}

/// How a machine's guest agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agent {
    /// It reports the guest's interfaces once the guest has booted.
    Answering,
    /// There is none, and the hypervisor knows.
    Missing,
    /// It is there and does not answer now.
    Silent,
    /// It answers and the guest has no address.
    Addressless,
}

/// What holds a machine against changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lock {
    /// A task of this hypervisor.
    Task(RequestKind),
    /// Something outside: a backup, or a clone whose task is dead.
    Held {
        /// Why, in the hypervisor's words.
        reason: Arc<str>,
        /// Since when.
        since: Instant,
    },
}

/// The reason of a lock that hides name and mark, as a clone in the making does.
pub const CLONE_LOCK: &str = "clone";

/// What `configure` wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    /// The name that its guest answers with.
    pub key: Arc<str>,
    /// The attempt that its guest answers with.
    pub attempt: u32,
    /// Whose machine it is.
    pub proxy: ProxyId,
    /// Which configuration it was given.
    pub config: ConfigHash,
    /// Its size.
    pub size: MachineSize,
    /// The MAC of its NIC.
    pub mac: String,
    /// The port its proxy listens on, where the provider chose it.
    pub port: Option<u16>,
    /// The user's cloud-config in its seed.
    pub user_data: Option<CloudConfig>,
}

/// One machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its name, once the clone has ended.
    pub name: Option<Arc<str>>,
    /// The text that holds its mark, once the clone has ended.
    pub text: Option<Arc<str>>,
    /// Templates never run.
    pub template: bool,
    /// Protected against removal.
    pub protected: bool,
    /// How it runs.
    pub power: Power,
    /// What holds it.
    pub lock: Option<Lock>,
    /// The host it is on, as an index into the world's hosts.
    pub host: u8,
    /// When its slot was taken.
    pub created: Instant,
    /// What it was configured with, if it was.
    pub configured: Option<Arc<Configured>>,
    /// The seed that is attached to it.
    pub seed: Option<Arc<str>>,
    /// Since when it runs.
    pub up_since: Option<Instant>,
    /// Whether it was ever started with its configuration.
    pub started: bool,
    /// How its agent answers.
    pub agent: Agent,
    /// Whether its agent had reported an address in this run before it changed its answers.
    pub reported: bool,
}

impl Machine {
    /// A machine that exists and has nothing yet.
    pub fn bare(host: u8, created: Instant) -> Self {
        Self {
            name: None,
            text: None,
            template: false,
            protected: false,
            power: Power::Stopped,
            lock: None,
            host,
            created,
            configured: None,
            seed: None,
            up_since: None,
            started: false,
            agent: Agent::Answering,
            reported: false,
        }
    }

    /// The UID that its text names, valid or not.
    pub fn named_uid(&self) -> Option<MachineUid> {
        self.text
            .as_deref()
            .and_then(Mark::find)
            .map(|mark| mark.uid)
    }

    /// Whether name and mark cannot be read now.
    pub fn hidden(&self) -> bool {
        match &self.lock {
            Some(Lock::Task(kind)) => *kind == RequestKind::Clone,
            Some(Lock::Held { reason, .. }) => **reason == *CLONE_LOCK,
            None => false,
        }
    }

    /// Whether its guest is up far enough to have its address.
    pub fn booted(&self, physics: &Physics, now: Instant) -> bool {
        self.power == Power::Running
            && self
                .up_since
                .is_some_and(|since| now >= since + physics.boot_time)
    }

    /// Changes how the agent answers; remembers whether it had reported.
    pub fn set_agent(&mut self, agent: Agent, physics: &Physics, now: Instant) {
        self.reported |= self.agent == Agent::Answering && self.booted(physics, now);
        self.agent = agent;
    }

    /// Runs from now on.
    pub fn power_on(&mut self, now: Instant) {
        self.power = Power::Running;
        self.up_since = Some(now);
        self.started |= self.configured.is_some();
        self.reported = false;
    }

    /// Runs no more.
    pub fn power_off(&mut self, power: Power) {
        self.power = power;
        self.up_since = None;
        self.reported = false;
    }
}

/// A network interface as the guest's agent reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name in the guest.
    pub name: &'static str,
    /// Whether it is the NIC with the configured MAC.
    pub ours: bool,
    /// Its addresses.
    pub addresses: [IpAddr; 3],
}

/// The IPv4 address of the guest at a slot: `10.0.0.0/8` counted by slot.
pub const fn guest_ipv4(slot: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits((10 << 24) | (slot & 0x00ff_ffff))
}

/// The IPv6 address of the guest at a slot: `fd00::/104` counted by slot.
pub const fn guest_ipv6(slot: u32) -> Ipv6Addr {
    Ipv6Addr::from_bits((0xfd << 120) | (slot & 0x00ff_ffff) as u128)
}

/// The slot of a guest's address, the other way round.
pub const fn slot_of(address: IpAddr) -> Option<u32> {
    match address {
        IpAddr::V4(v4) if v4.octets()[0] == 10 => Some(v4.to_bits() & 0x00ff_ffff),
        IpAddr::V6(v6) if v6.to_bits() >> 24 == 0xfd << 96 => {
            Some((v6.to_bits() & 0x00ff_ffff) as u32)
        }
        _ => None,
    }
}

/// All interfaces of the guest at a slot; a loopback and a container bridge are among them.
pub const fn interfaces(slot: u32) -> [Interface; 3] {
    let link_local = IpAddr::V6(Ipv6Addr::from_bits((0xfe80 << 112) | slot as u128));
    let loopback = IpAddr::V6(Ipv6Addr::LOCALHOST);
    [
        Interface {
            name: "lo",
            ours: false,
            addresses: [IpAddr::V4(Ipv4Addr::LOCALHOST), loopback, loopback],
        },
        Interface {
            name: "eth0",
            ours: true,
            addresses: [
                IpAddr::V4(guest_ipv4(slot)),
                IpAddr::V6(guest_ipv6(slot)),
                link_local,
            ],
        },
        Interface {
            name: "docker0",
            ours: false,
            addresses: [
                IpAddr::V4(Ipv4Addr::new(172, 17, 0, 1)),
                link_local,
                link_local,
            ],
        },
    ]
}
