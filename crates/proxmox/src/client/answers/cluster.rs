//! What the cluster as a whole answers: version, options, quorum, the list, privileges, pools.

use super::{Answered, Misfit, entries, entries_of_text, scalars, shape};
use crate::client::{
    failure::Lock,
    ids::{NodeName, Vmid},
    lenient,
};
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};
use std::collections::{BTreeMap, BTreeSet};

/// The version of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// As written, such as `9.2.11`.
    pub text: String,
    /// The first number.
    pub major: u32,
    /// The second number; 0 when there is none.
    pub minor: u32,
}

impl Answered for Version {
    fn read(data: Value) -> Result<Self, Misfit> {
        #[derive(Deserialize)]
        struct Wire {
            version: String,
        }
        let text = shape::<Wire>(data)?.version;
        let mut numbers = text.split(['.', '-', '~', '+']).map(str::parse);
        let Some(Ok(major)) = numbers.next() else {
            return Err(format!("{text:?} is not a version"));
        };
        let minor = numbers.next().and_then(Result::ok).unwrap_or(0);
        Ok(Self { text, major, minor })
    }
}

/// What the datacenter allows and sets, as far as the token may see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterOptions {
    /// The tags that this token may use when `user-allow` is a list; absent on old hosts.
    pub allowed_tags: Option<Vec<String>>,
    /// `free`, `existing`, `list` or `none`, when set and visible.
    pub user_allow: Option<String>,
    /// All settings that are scalars.
    pub keys: BTreeMap<String, String>,
}

impl Answered for ClusterOptions {
    fn read(data: Value) -> Result<Self, Misfit> {
        let map: Map<String, Value> = shape(data)?;
        let user_allow = match map.get("user-tag-access") {
            Some(Value::Object(access)) => access.get("user-allow").and_then(lenient::as_text),
            Some(Value::String(access)) => access
                .split(',')
                .find_map(|part| part.trim().strip_prefix("user-allow="))
                .map(str::to_owned),
            _ => None,
        };
        Ok(Self {
            allowed_tags: map
                .get("allowed-tags")
                .and_then(|tags| lenient::items(tags).ok()),
            user_allow,
            keys: scalars(&map),
        })
    }
}

/// The cluster as the answering node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The cluster's name; a lone node has none.
    pub name: Option<String>,
    /// Whether a majority of nodes is in touch; a lone node always has quorum.
    pub quorate: bool,
    /// Its nodes.
    pub nodes: Vec<ClusterNode>,
}

/// A node as corosync sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// Its name.
    pub name: String,
    /// Whether it is in touch.
    pub online: bool,
    /// Whether it is the node that answered.
    pub local: bool,
    /// Its address.
    pub ip: Option<String>,
}

impl Answered for ClusterStatus {
    fn read(data: Value) -> Result<Self, Misfit> {
        #[derive(Deserialize)]
        struct Wire {
            #[serde(rename = "type")]
            kind: String,
            name: String,
            #[serde(default, deserialize_with = "lenient::truth")]
            quorate: bool,
            #[serde(default, deserialize_with = "lenient::truth")]
            online: bool,
            #[serde(default, deserialize_with = "lenient::truth")]
            local: bool,
            #[serde(default)]
            ip: Option<String>,
        }
        let entries: Vec<Wire> = shape(data)?;
        let cluster = entries.iter().find(|e| e.kind == "cluster");
        Ok(Self {
            name: cluster.map(|c| c.name.clone()),
            quorate: cluster.is_none_or(|c| c.quorate),
            nodes: entries
                .iter()
                .filter(|e| e.kind == "node")
                .map(|e| ClusterNode {
                    name: e.name.clone(),
                    online: e.online,
                    local: e.local,
                    ip: e.ip.clone(),
                })
                .collect(),
        })
    }
}

/// What an entry of the cluster list is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceKind {
    /// A virtual machine.
    Qemu,
    /// A container.
    Lxc,
    /// A node.
    Node,
    /// A storage, once for each node that has it.
    Storage,
    /// A pool.
    Pool,
    /// Anything else.
    Other,
}

/// An entry of `/cluster/resources`. Live are `vmid`, `node`, `lock`, `tags`, `pool` and
/// `hastate`; everything else may be 10 s late, missing, or a previous owner's (§5.2, F8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// What it is.
    pub kind: ResourceKind,
    /// Its id on the list, such as `qemu/101`.
    pub id: String,
    /// The guest.
    pub vmid: Option<Vmid>,
    /// The node it is on.
    pub node: Option<NodeName>,
    /// The name as last reported.
    pub name: Option<String>,
    /// The status as last reported; `unknown` without a report.
    pub status: Option<String>,
    /// The config lock.
    pub lock: Option<Lock>,
    /// The tags.
    pub tags: Vec<String>,
    /// The pool, with Pool.Audit.
    pub pool: Option<String>,
    /// Whether it is a template, as last reported.
    pub template: bool,
    /// The HA state.
    pub hastate: Option<String>,
    /// Logical processors.
    pub maxcpu: Option<u64>,
    /// Memory in bytes: the whole.
    pub maxmem: Option<u64>,
    /// Memory in bytes: in use.
    pub mem: Option<u64>,
    /// Disk in bytes: the whole.
    pub maxdisk: Option<u64>,
    /// Disk in bytes: in use.
    pub disk: Option<u64>,
    /// The storage's name.
    pub storage: Option<String>,
    /// The storage's content kinds.
    pub content: Vec<String>,
    /// Whether all nodes see the same storage.
    pub shared: bool,
}

#[derive(Deserialize)]
struct ResourceWire {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    id: String,
    #[serde(default, deserialize_with = "lenient::number")]
    vmid: Option<u64>,
    #[serde(default)]
    node: Option<String>,
    #[serde(default, deserialize_with = "lenient::text")]
    name: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    lock: Option<String>,
    #[serde(default, deserialize_with = "lenient::items")]
    tags: Vec<String>,
    #[serde(default)]
    pool: Option<String>,
    #[serde(default, deserialize_with = "lenient::truth")]
    template: bool,
    #[serde(default)]
    hastate: Option<String>,
    #[serde(default, deserialize_with = "lenient::number")]
    maxcpu: Option<u64>,
    #[serde(default, deserialize_with = "lenient::number")]
    maxmem: Option<u64>,
    #[serde(default, deserialize_with = "lenient::number")]
    mem: Option<u64>,
    #[serde(default, deserialize_with = "lenient::number")]
    maxdisk: Option<u64>,
    #[serde(default, deserialize_with = "lenient::number")]
    disk: Option<u64>,
    #[serde(default)]
    storage: Option<String>,
    #[serde(default, deserialize_with = "lenient::items")]
    content: Vec<String>,
    #[serde(default, deserialize_with = "lenient::truth")]
    shared: bool,
}

impl From<ResourceWire> for Resource {
    fn from(wire: ResourceWire) -> Self {
        Self {
            kind: match wire.kind.as_str() {
                "qemu" => ResourceKind::Qemu,
                "lxc" => ResourceKind::Lxc,
                "node" => ResourceKind::Node,
                "storage" => ResourceKind::Storage,
                "pool" => ResourceKind::Pool,
                _ => ResourceKind::Other,
            },
            id: wire.id,
            vmid: wire
                .vmid
                .and_then(|v| u32::try_from(v).ok())
                .and_then(Vmid::new),
            node: wire.node.and_then(|n| n.parse().ok()),
            name: wire.name.filter(|n| !n.is_empty()),
            status: wire.status,
            lock: wire.lock.filter(|l| !l.is_empty()).map(|l| Lock::parse(&l)),
            tags: wire.tags,
            pool: wire.pool.filter(|p| !p.is_empty()),
            template: wire.template,
            hastate: wire.hastate,
            maxcpu: wire.maxcpu,
            maxmem: wire.maxmem,
            mem: wire.mem,
            maxdisk: wire.maxdisk,
            disk: wire.disk,
            storage: wire.storage,
            content: wire.content,
            shared: wire.shared,
        }
    }
}

impl Answered for Vec<Resource> {
    fn read(data: Value) -> Result<Self, Misfit> {
        let wires: Vec<ResourceWire> = entries(data)?;
        Ok(wires.into_iter().map(Resource::from).collect())
    }

    fn read_text(json: &RawValue) -> Result<Self, Misfit> {
        let wires: Vec<ResourceWire> = entries_of_text(json)?;
        Ok(wires.into_iter().map(Resource::from).collect())
    }
}

/// Whether a VMID is in use by any guest of any node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmidState {
    /// Nothing has it.
    Free,
    /// Something has it.
    Taken,
}

/// The token's own privileges at one path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Privileges(BTreeSet<String>);

impl Privileges {
    /// Whether this privilege is held.
    pub fn has(&self, privilege: &str) -> bool {
        self.0.contains(privilege)
    }
    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The answer for one path; the map has no entry, or an empty one, without privileges.
impl Answered for Privileges {
    fn read(data: Value) -> Result<Self, Misfit> {
        let paths: BTreeMap<String, BTreeMap<String, Value>> = match data {
            Value::Array(none) if none.is_empty() => BTreeMap::new(),
            data => shape(data)?,
        };
        Ok(Self(
            paths.into_values().flat_map(BTreeMap::into_keys).collect(),
        ))
    }
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub poolid: String,
    /// What is in it, as far as the token may see it.
    pub members: Vec<Resource>,
}

impl Answered for Pool {
    fn read(data: Value) -> Result<Self, Misfit> {
        #[derive(Deserialize)]
        struct Wire {
            poolid: String,
            #[serde(default)]
            members: Option<Value>,
        }
        let wire = shape::<Vec<Wire>>(data)?
            .into_iter()
            .next()
            .ok_or("no pool in the answer")?;
        Ok(Self {
            poolid: wire.poolid,
            members: wire.members.map_or_else(|| Ok(Vec::new()), Vec::read)?,
        })
    }
}
