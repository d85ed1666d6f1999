//! What a node answers about one machine, and what the guest's agent answers.

use super::{Answered, Misfit, scalars, shape};
use crate::client::{failure::Lock, lenient};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{collections::BTreeMap, net::IpAddr};

/// A machine's config, pending changes merged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// The checksum that a write can be bound to.
    pub digest: String,
    /// The lock.
    pub lock: Option<Lock>,
    /// The name.
    pub name: Option<String>,
    /// The description; white space at its end is lost on the way (F10).
    pub description: Option<String>,
    /// The tags.
    pub tags: Vec<String>,
    /// Whether it is a template.
    pub template: bool,
    /// Whether it is protected.
    pub protection: bool,
    /// Whether it starts with its node.
    pub onboot: bool,
    /// The agent setting as written; absent when the key is (F5).
    pub agent: Option<String>,
    /// The boot setting as written.
    pub boot: Option<String>,
    /// Where it came from; a clone carries its template's (F11).
    pub meta: Option<String>,
    /// Every key that is a scalar, as text, with those above.
    pub keys: BTreeMap<String, String>,
}

impl VmConfig {
    /// Whether the agent is enabled: `1`, `enabled=1`, with options or without.
    pub fn agent_enabled(&self) -> bool {
        self.agent.as_deref().is_some_and(|agent| {
            agent.split(',').any(|part| {
                let part = part.trim();
                let value = part.strip_prefix("enabled=").unwrap_or(part);
                !value.contains('=') && lenient::as_truth(&Value::from(value)) == Some(true)
            })
        })
    }
}

impl Answered for VmConfig {
    fn read(data: Value) -> Result<Self, Misfit> {
        let map: Map<String, Value> = shape(data)?;
        let keys = scalars(&map);
        let text = |key: &str| keys.get(key).cloned();
        let flag = |key: &str| {
            map.get(key)
                .map_or(Some(false), lenient::as_truth)
                .ok_or_else(|| format!("`{key}` is not a boolean"))
        };
        Ok(Self {
            digest: text("digest").ok_or("`digest` is missing")?,
            lock: text("lock").map(|l| Lock::parse(&l)),
            name: text("name"),
            description: text("description"),
            tags: text("tags").map_or_else(Vec::new, |t| lenient::split(&t)),
            template: flag("template")?,
            protection: flag("protection")?,
            onboot: flag("onboot")?,
            agent: text("agent"),
            boot: text("boot"),
            meta: text("meta"),
            keys,
        })
    }
}

/// What a machine does right now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmStatus {
    /// Whether its process lives: `running` or `stopped`.
    pub running: bool,
    /// QEMU's own word, such as `paused`; falls back to running or stopped.
    pub qmpstatus: String,
    /// The lock.
    pub lock: Option<Lock>,
    /// Whether HA manages it.
    pub ha_managed: bool,
    /// Seconds since its process began; 0 when stopped.
    pub uptime_s: u64,
    /// Whether the agent is enabled in the config.
    pub agent: bool,
    /// Whether it is a template.
    pub template: bool,
    /// The name, or `VM <id>`.
    pub name: Option<String>,
    /// The tags.
    pub tags: Vec<String>,
}

impl Answered for VmStatus {
    fn read(data: Value) -> Result<Self, Misfit> {
        #[derive(Default, Deserialize)]
        struct Ha {
            #[serde(default, deserialize_with = "lenient::truth")]
            managed: bool,
            #[serde(default)]
            state: Option<String>,
        }
        #[derive(Deserialize)]
        struct Wire {
            status: String,
            #[serde(default)]
            qmpstatus: Option<String>,
            #[serde(default)]
            lock: Option<String>,
            #[serde(default)]
            ha: Option<Ha>,
            #[serde(default, deserialize_with = "lenient::number")]
            uptime: Option<u64>,
            #[serde(default, deserialize_with = "lenient::truth")]
            agent: bool,
            #[serde(default, deserialize_with = "lenient::truth")]
            template: bool,
            #[serde(default, deserialize_with = "lenient::text")]
            name: Option<String>,
            #[serde(default, deserialize_with = "lenient::items")]
            tags: Vec<String>,
        }
        let wire: Wire = shape(data)?;
        let running = match wire.status.as_str() {
            "running" => true,
            "stopped" => false,
            other => return Err(format!("{other:?} is not a machine's status")),
        };
        let ha = wire.ha.unwrap_or_default();
        Ok(Self {
            running,
            qmpstatus: wire.qmpstatus.unwrap_or(wire.status),
            lock: wire.lock.map(|l| Lock::parse(&l)),
            // `ignored` means that HA leaves it alone (§10).
            ha_managed: ha.managed && ha.state.as_deref() != Some("ignored"),
            uptime_s: wire.uptime.unwrap_or(0),
            agent: wire.agent,
            template: wire.template,
            name: wire.name,
            tags: wire.tags,
        })
    }
}

/// A network interface as the guest's agent sees it (§9.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestInterface {
    /// Its name in the guest.
    pub name: String,
    /// Its MAC, lower case.
    pub mac: Option<String>,
    /// Its addresses, in the guest's order; none before a lease.
    pub addresses: Vec<IpAddr>,
}

/// The agent's answer: its interfaces, or its refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentAnswer {
    /// The interfaces.
    Interfaces(Vec<GuestInterface>),
    /// An error object inside a 200.
    Refused {
        /// The error's class.
        class: String,
        /// The error's text.
        said: String,
    },
}

impl Answered for AgentAnswer {
    fn read(data: Value) -> Result<Self, Misfit> {
        #[derive(Deserialize)]
        struct Address {
            #[serde(rename = "ip-address", default)]
            address: Option<String>,
        }
        #[derive(Deserialize)]
        struct Wire {
            #[serde(default)]
            name: String,
            #[serde(rename = "hardware-address", default)]
            mac: Option<String>,
            #[serde(rename = "ip-addresses", default)]
            addresses: Option<Vec<Address>>,
        }
        let result = data.get("result").cloned().ok_or("`result` is missing")?;
        if let Some(error) = result.get("error") {
            let part = |key: &str| error.get(key).and_then(lenient::as_text);
            return Ok(Self::Refused {
                class: part("class").unwrap_or_else(|| "GenericError".to_owned()),
                said: part("desc").unwrap_or_else(|| error.to_string()),
            });
        }
        Ok(Self::Interfaces(
            shape::<Vec<Wire>>(result)?
                .into_iter()
                .map(|wire| GuestInterface {
                    name: wire.name,
                    mac: wire.mac.map(|m| m.to_ascii_lowercase()),
                    addresses: wire
                        .addresses
                        .unwrap_or_default()
                        .into_iter()
                        .filter_map(|a| a.address?.parse().ok())
                        .collect(),
                })
                .collect(),
        ))
    }
}
