//! What a world looks like when it begins.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// A whole data centre, as data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setup {
    /// The major version of Proxmox VE: 8 or 9; 7 tells its version and does as 8 does.
    pub version: u8,
    /// The time of day at the beginning, in seconds since 1970.
    pub epoch: u64,
    /// Where MAC addresses, UUIDs and certificates are drawn from: the same seed, the same world.
    pub seed: u64,
    /// Divides every duration of [`Timings`].
    pub speed: f64,
    /// The cluster's name; `None` for a single host outside a cluster.
    pub cluster: Option<String>,
    /// The hosts.
    pub nodes: Vec<NodeSetup>,
    /// Bridges that every node has.
    pub bridges: Vec<BridgeSetup>,
    /// The storages.
    pub storages: Vec<StorageSetup>,
    /// Volumes that belong to no guest listed below.
    pub volumes: Vec<VolumeSetup>,
    /// Machines and templates.
    pub guests: Vec<GuestSetup>,
    /// Resource pools.
    pub pools: Vec<PoolSetup>,
    /// Roles beside the built-in ones: name and privileges.
    pub roles: BTreeMap<String, Vec<String>>,
    /// Users beside `root@pam`.
    pub users: Vec<UserSetup>,
    /// API tokens.
    pub tokens: Vec<TokenSetup>,
    /// Who may do what where.
    pub acl: Vec<AclSetup>,
    /// How long everything takes.
    pub timings: Timings,
    /// Options of the data centre.
    pub datacenter: Datacenter,
    /// The SHA-256 fingerprint of the certificate authority, where a real one answers for this
    /// world; made up if left out.
    pub ca_fingerprint: Option<String>,
    /// Whether guests live outside: their agents are silent until [`World::guest_reports`]
    /// says what they answer.
    ///
    /// [`World::guest_reports`]: super::World::guest_reports
    pub outside_guests: bool,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeSetup {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// Its memory in bytes.
    pub memory: u64,
    /// What it uses itself, in bytes.
    pub memory_used: u64,
    /// Its processors.
    pub cpus: u32,
    /// The size of its root file system in bytes.
    pub disk: u64,
    /// What of it is used, in bytes.
    pub disk_used: u64,
    /// Whether it can be reached by name and address; a node left over in the cluster's files
    /// may have neither.
    pub resolvable: bool,
    /// How long it had been up when the world began, in seconds.
    pub uptime: u64,
    /// Whether processors offer virtualisation: without it, `cpu: host` does not start.
    pub kvm: bool,
}

impl Default for NodeSetup {
    fn default() -> Self {
        Self {
            name: "pve1".to_owned(),
            address: "192.0.2.10".to_owned(),
            memory: 25_276_514_304,
            memory_used: 2_517_667_840,
            cpus: 2,
            disk: 270_553_174_016,
            disk_used: 23_549_661_184,
            resolvable: true,
            uptime: 1_000,
            kvm: true,
        }
    }
}

/// A network bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeSetup {
    /// Its name.
    pub name: String,
    /// Whether it passes VLANs on.
    #[serde(default)]
    pub vlan_aware: bool,
    /// Its port; empty for none. The first bridge with a port bears the node's address.
    #[serde(default)]
    pub port: String,
}

/// A storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageSetup {
    /// Its name.
    pub name: String,
    /// `dir`, `nfs`, `lvmthin`, `zfspool`, `rbd`.
    pub kind: String,
    /// What it may hold: `images`, `iso`, `rootdir` and so on.
    pub content: Vec<String>,
    /// Whether all nodes see the same volumes.
    pub shared: bool,
    /// The nodes that have it; empty means all.
    pub nodes: Vec<String>,
    /// Whether it is switched on.
    pub enabled: bool,
    /// Its size in bytes.
    pub total: u64,
    /// What strangers use of it, in bytes.
    pub used: u64,
    /// Where it lies, for kinds that have a path; empty means `/srv/<name>`.
    pub path: String,
}

impl Default for StorageSetup {
    fn default() -> Self {
        Self {
            name: "vmdata".to_owned(),
            kind: "dir".to_owned(),
            content: vec!["images".to_owned(), "rootdir".to_owned()],
            shared: false,
            nodes: Vec::new(),
            enabled: true,
            total: 270_553_174_016,
            used: 23_703_187_456,
            path: String::new(),
        }
    }
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeSetup {
    /// Storage and name: `isos:iso/x.iso`.
    pub volid: String,
    /// Its node, where the storage is not shared; the first node if left out.
    #[serde(default)]
    pub node: Option<String>,
    /// Its size in bytes.
    pub size: u64,
    /// When it was made, in seconds since 1970; the beginning of the world if left out.
    #[serde(default)]
    pub ctime: Option<u64>,
}

/// A machine, template or container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuestSetup {
    /// Its number.
    pub vmid: u32,
    /// Its node; the first one if left out.
    pub node: Option<String>,
    /// Whether it is a container.
    pub container: bool,
    /// Its configuration. Disks named in it lie on their storages.
    pub config: BTreeMap<String, String>,
    /// Changes that wait for its next start.
    pub pending: BTreeMap<String, String>,
    /// Whether it runs when the world begins.
    pub running: bool,
    /// Whether the disks its configuration names are missing.
    pub diskless: bool,
    /// How long a full copy of each of its disks takes beyond the base time, in seconds.
    pub copy_seconds: f64,
    /// Whether high availability looks after it.
    pub ha: bool,
    /// Whether it ignores requests to shut down.
    pub deaf: bool,
}

impl Default for GuestSetup {
    fn default() -> Self {
        Self {
            vmid: 9000,
            node: None,
            container: false,
            config: BTreeMap::new(),
            pending: BTreeMap::new(),
            running: false,
            diskless: false,
            copy_seconds: 0.0,
            ha: false,
            deaf: false,
        }
    }
}

/// A resource pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolSetup {
    /// Its name, with parents: `a/b`.
    pub name: String,
    /// The guests in it.
    pub members: Vec<u32>,
    /// The storages in it.
    pub storages: Vec<String>,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserSetup {
    /// `name@realm`.
    pub id: String,
    /// Whether it may log in.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// When it ends, in seconds since 1970; 0 for never.
    #[serde(default)]
    pub expire: u64,
}

/// An API token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenSetup {
    /// `user@realm!name`.
    pub id: String,
    /// Its secret.
    pub secret: String,
    /// Whether its privileges are separated: it then has what both it and its user have.
    #[serde(default = "yes")]
    pub separated: bool,
    /// When it ends, in seconds since 1970; 0 for never.
    #[serde(default)]
    pub expire: u64,
}

/// One entry of the access control list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AclSetup {
    /// Where.
    pub path: String,
    /// A user or a token.
    pub who: String,
    /// The role.
    pub role: String,
    /// Whether it also holds below the path.
    #[serde(default = "yes")]
    pub propagate: bool,
}

const fn yes() -> bool {
    true
}

/// Options of the data centre.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Datacenter {
    /// Who may use which tags: `free`, `existing`, `list` or `none`.
    pub user_allow: String,
    /// The tags of `list`.
    pub user_allow_list: Vec<String>,
    /// Tags that only Sys.Modify on `/` may set.
    pub registered_tags: Vec<String>,
    /// Whether tags keep their case.
    pub case_sensitive_tags: bool,
    /// The first three bytes of new MAC addresses.
    pub mac_prefix: String,
    /// The first VMID that `nextid` offers.
    pub next_id_lower: u32,
    /// The first VMID that it does not offer any more.
    pub next_id_upper: u32,
}

impl Default for Datacenter {
    fn default() -> Self {
        Self {
            user_allow: "free".to_owned(),
            user_allow_list: Vec::new(),
            registered_tags: Vec::new(),
            case_sensitive_tags: false,
            mac_prefix: "BC:24:11".to_owned(),
            next_id_lower: 100,
            next_id_upper: 1_000_000,
        }
    }
}

/// How long things take, in seconds at speed 1. The defaults are as measured on a small host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timings {
    /// The answer of a read.
    pub read: f64,
    /// The answer of a mutating request.
    pub mutation: f64,
    /// From the clone request to the first, nameless configuration.
    pub clone_begins: f64,
    /// The full copy of one disk, beyond what its contents take.
    pub clone_disk: f64,
    /// From the last disk to the unlocked machine, and again to the end of the task.
    pub clone_ends: f64,
    /// The copy of an uploaded file to its storage.
    pub upload: f64,
    /// The copy of 1 GiB of an uploaded file.
    pub upload_gib: f64,
    /// A resize.
    pub resize: f64,
    /// A start.
    pub start: f64,
    /// From the start to the first answer of the guest's agent.
    pub boot: f64,
    /// A stop.
    pub stop: f64,
    /// A shutdown that the guest follows.
    pub shutdown: f64,
    /// A destroy, up to the removal of the disks and again to that of the configuration.
    pub destroy: f64,
    /// The removal of a volume.
    pub delete_volume: f64,
    /// How long an agent call waits for a silent guest.
    pub agent_silence: f64,
    /// How long a refused login is held back.
    pub refused_login: f64,
    /// The period of the status broadcast.
    pub broadcast: f64,
    /// How long a worker of the API server keeps a broadcast.
    pub broadcast_cache: f64,
    /// After how long a silent node's broadcast is worth nothing.
    pub broadcast_expires: f64,
    /// How long a task waits for the lock of a machine or a storage.
    pub lock_wait: f64,
    /// How long a clone waits for the locks of source and target.
    pub clone_lock_wait: f64,
    /// How long a hung QEMU is asked to quit, before the first signal.
    pub quit_wait: f64,
    /// How long it is given after the first signal.
    pub term_wait: f64,
    /// After how long the API server gives up on the daemon behind it.
    pub proxy_timeout: f64,
    /// How long the HA manager takes to act on a request.
    pub ha: f64,
    /// A migration.
    pub migrate: f64,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            read: 0.003,
            mutation: 0.025,
            clone_begins: 0.03,
            clone_disk: 0.16,
            clone_ends: 0.01,
            upload: 0.08,
            upload_gib: 2.0,
            resize: 0.08,
            start: 0.2,
            boot: 9.0,
            stop: 0.1,
            shutdown: 2.0,
            destroy: 0.06,
            delete_volume: 0.03,
            agent_silence: 3.0,
            refused_login: 3.0,
            broadcast: 10.0,
            broadcast_cache: 2.0,
            broadcast_expires: 300.0,
            lock_wait: 10.0,
            clone_lock_wait: 1.0,
            quit_wait: 60.0,
            term_wait: 10.0,
            proxy_timeout: 30.0,
            ha: 3.0,
            migrate: 2.0,
        }
    }
}

/// [`Timings`] made ready for use: divided by the speed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) t: Timings,
    speed: f64,
}

impl Pace {
    pub(super) fn new(t: Timings, speed: f64) -> Self {
        let speed = if speed.is_finite() && speed > 0.0 {
            speed
        } else {
            1.0
        };
        Self { t, speed }
    }

    /// So many seconds at speed 1, as they pass in this world.
    pub(super) fn of(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64((seconds / self.speed).max(0.0))
    }
}

impl Setup {
    /// The default world with so many nodes, `pve1` and on, each like the first; more than one
    /// are a cluster.
    #[must_use]
    pub fn of_nodes(count: u8) -> Self {
        let one = Self::default();
        let nodes = (1..=count).filter_map(|number| {
            one.nodes.first().map(|first| NodeSetup {
                name: format!("pve{number}"),
                address: format!("192.0.2.{}", 9 + u16::from(number)),
                ..first.clone()
            })
        });
        Self {
            cluster: (count > 1).then(|| "lab".to_owned()),
            nodes: nodes.collect(),
            ..one
        }
    }
}

impl Default for Setup {
    /// One node with the template 9000, image storage `local-lvm`, ISO storage `proxy-seeds`,
    /// bridge `vmbr0`, pool `egress`, and the token `op@pve!t1` that may do all the product
    /// needs.
    fn default() -> Self {
        let strings = |all: &[&str]| all.iter().map(|&s| s.to_owned()).collect::<Vec<_>>();
        let template: BTreeMap<String, String> = [
            ("agent", "1"),
            ("boot", "order=scsi0"),
            ("cores", "1"),
            (
                "description",
                "Template of the simulator\negress-proxies: conformance allowed",
            ),
            ("memory", "512"),
            ("meta", "creation-qemu=10.0.13,ctime=1796004790"),
            ("name", "tmpl-debian"),
            ("net0", "virtio=BC:24:11:DF:E6:EF,bridge=vmbr0"),
            ("ostype", "l26"),
            ("scsi0", "local-lvm:base-9000-disk-0,size=2G"),
            ("scsihw", "virtio-scsi-single"),
            ("serial0", "socket"),
            ("smbios1", "uuid=588b1572-0000-4000-8000-000000000000"),
            ("template", "1"),
            ("vga", "serial0"),
            ("vmgenid", "03336d4a-0000-4000-8000-000000000000"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        Self {
            version: 9,
            epoch: 1_796_000_000,
            seed: 1,
            speed: 1.0,
            cluster: None,
            nodes: vec![NodeSetup {
                memory: 68_719_476_736,
                memory_used: 2_517_667_840,
                cpus: 16,
                ..NodeSetup::default()
            }],
            bridges: vec![BridgeSetup {
                name: "vmbr0".to_owned(),
                vlan_aware: true,
                port: "eth0".to_owned(),
            }],
            storages: vec![
                StorageSetup {
                    name: "local-lvm".to_owned(),
                    kind: "lvmthin".to_owned(),
                    total: 4_398_046_511_104,
                    used: 0,
                    ..StorageSetup::default()
                },
                StorageSetup {
                    name: "proxy-seeds".to_owned(),
                    content: strings(&["iso"]),
                    used: 0,
                    ..StorageSetup::default()
                },
            ],
            volumes: Vec::new(),
            guests: vec![GuestSetup {
                config: template,
                ..GuestSetup::default()
            }],
            pools: vec![PoolSetup {
                name: "egress".to_owned(),
                ..PoolSetup::default()
            }],
            roles: [(
                "Operator".to_owned(),
                strings(super::access::privileges_of_the_product(9)),
            )]
            .into(),
            users: vec![UserSetup {
                id: "op@pve".to_owned(),
                enabled: true,
                expire: 0,
            }],
            tokens: vec![TokenSetup {
                id: "op@pve!t1".to_owned(),
                secret: "a3b1c5d7-0000-4000-8000-000000000001".to_owned(),
                separated: false,
                expire: 0,
            }],
            acl: vec![AclSetup {
                path: "/".to_owned(),
                who: "op@pve".to_owned(),
                role: "Operator".to_owned(),
                propagate: true,
            }],
            timings: Timings::default(),
            datacenter: Datacenter::default(),
            ca_fingerprint: None,
            outside_guests: false,
        }
    }
}
