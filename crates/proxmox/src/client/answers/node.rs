//! What a node answers about itself and its storages.

use super::{Answered, Misfit, entries, shape};
use crate::client::{ids::NodeName, lenient};
use serde::Deserialize;
use serde_json::Value;

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Whether it is online, as the answering node sees it.
    pub online: bool,
    /// Memory in bytes: the whole; needs Sys.Audit.
    pub maxmem: Option<u64>,
    /// Memory in bytes: in use; needs Sys.Audit.
    pub mem: Option<u64>,
}

impl Answered for Vec<Node> {
    fn read(data: Value) -> Result<Self, Misfit> {
        #[derive(Deserialize)]
        struct Wire {
            node: String,
            #[serde(default)]
            status: String,
            #[serde(default, deserialize_with = "lenient::number")]
            maxmem: Option<u64>,
            #[serde(default, deserialize_with = "lenient::number")]
            mem: Option<u64>,
        }
        shape::<Vec<Wire>>(data)?
            .into_iter()
            .map(|wire| {
                Ok(Node {
                    name: wire.node.parse().map_err(|e| format!("{e}"))?,
                    online: wire.status == "online",
                    maxmem: wire.maxmem,
                    mem: wire.mem,
                })
            })
            .collect()
    }
}

/// A node's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTime {
    /// Seconds since 1970.
    pub seconds: u64,
    /// The time zone's name.
    pub timezone: Option<String>,
}

impl Answered for NodeTime {
    fn read(data: Value) -> Result<Self, Misfit> {
        #[derive(Deserialize)]
        struct Wire {
            #[serde(deserialize_with = "lenient::needed_number")]
            time: u64,
            #[serde(default)]
            timezone: Option<String>,
        }
        let wire: Wire = shape(data)?;
        Ok(Self {
            seconds: wire.time,
            timezone: wire.timezone,
        })
    }
}

/// A certificate file of a node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Certificate {
    /// The file, such as `pve-root-ca.pem`.
    #[serde(default)]
    pub filename: String,
    /// SHA-256, as pairs of hexadecimal digits with colons.
    #[serde(default)]
    pub fingerprint: String,
    /// The subject.
    #[serde(default)]
    pub subject: String,
    /// The names it is for.
    #[serde(default, deserialize_with = "lenient::items")]
    pub san: Vec<String>,
    /// When it ends, in seconds since 1970.
    #[serde(default, deserialize_with = "lenient::number")]
    pub notafter: Option<u64>,
}

impl Answered for Vec<Certificate> {
    fn read(data: Value) -> Result<Self, Misfit> {
        shape(data)
    }
}

/// The fingerprint of the cluster's own authority: its identity (rule 14).
pub fn cluster_fingerprint(certificates: &[Certificate]) -> Option<&str> {
    certificates
        .iter()
        .find(|c| c.filename == "pve-root-ca.pem" && !c.fingerprint.is_empty())
        .map(|c| c.fingerprint.as_str())
}

/// A bridge, or a vnet of SDN, of a node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Bridge {
    /// Its name.
    pub iface: String,
    /// `bridge`, `OVSBridge` or `vnet`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// Whether it passes tagged frames by VLAN; absent means no.
    #[serde(
        default,
        rename = "bridge_vlan_aware",
        deserialize_with = "lenient::truth"
    )]
    pub vlan_aware: bool,
    /// Whether it is up; not told by every host.
    #[serde(default, deserialize_with = "lenient::truth")]
    pub active: bool,
}

impl Answered for Vec<Bridge> {
    fn read(data: Value) -> Result<Self, Misfit> {
        entries(data)
    }
}

/// A virtual network of SDN.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Vnet {
    /// Its name, which network cards give as their bridge.
    pub vnet: String,
    /// The zone that it is in, and with it its path in the access control list.
    pub zone: Option<String>,
}

impl Answered for Vec<Vnet> {
    fn read(data: Value) -> Result<Self, Misfit> {
        entries(data)
    }
}

/// A storage as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StorageStatus {
    /// Whether its backend can be reached.
    #[serde(default, deserialize_with = "lenient::truth")]
    pub active: bool,
    /// Whether it is enabled, and for this node.
    #[serde(default, deserialize_with = "lenient::truth")]
    pub enabled: bool,
    /// The kinds of content it takes.
    #[serde(default, deserialize_with = "lenient::items")]
    pub content: Vec<String>,
    /// Its type, such as `lvmthin`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// Whether all nodes see the same storage.
    #[serde(default, deserialize_with = "lenient::truth")]
    pub shared: bool,
    /// Bytes in all.
    #[serde(default, deserialize_with = "lenient::number")]
    pub total: Option<u64>,
    /// Bytes free.
    #[serde(default, deserialize_with = "lenient::number")]
    pub avail: Option<u64>,
    /// Bytes in use.
    #[serde(default, deserialize_with = "lenient::number")]
    pub used: Option<u64>,
}

impl Answered for StorageStatus {
    fn read(data: Value) -> Result<Self, Misfit> {
        if data.get("active").is_none() {
            return Err("`active` is missing".to_owned());
        }
        shape(data)
    }
}

/// A volume on a storage.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Volume {
    /// Its id, such as `isos:iso/x.iso`.
    pub volid: String,
    /// Its size in bytes, where the storage tells it.
    #[serde(default, deserialize_with = "lenient::number")]
    pub size: Option<u64>,
    /// The VMID it belongs to by name.
    #[serde(default, deserialize_with = "lenient::number")]
    pub vmid: Option<u64>,
    /// When it was made, in seconds since 1970.
    #[serde(default, deserialize_with = "lenient::number")]
    pub ctime: Option<u64>,
}

impl Answered for Vec<Volume> {
    fn read(data: Value) -> Result<Self, Misfit> {
        shape(data)
    }
}
