//! What people are told of a Proxy. Written, never read.

use serde::{Deserialize, Serialize};

/// What became of a Proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyStatus {
    /// Where it stands, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Provider and machine: `proxmox://<provider>/<vmid>`, never the host.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// The machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineStatus>,
    /// The machine's addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Where clients connect, `address:port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The address that targets see, as last proven; empty in this version, which proves no traffic
    /// through the proxy.
    #[serde(rename = "egressIP", skip_serializing_if = "Option::is_none")]
    pub egress_ip: Option<String>,
    /// `Accepted`, `Provisioned`, `Serving`, `Ready`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Where a Proxy stands, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
pub enum Phase {
    /// Nothing was begun yet.
    Pending,
    /// Its machine is being made.
    Provisioning,
    /// Its machine runs.
    Running,
    /// It takes no new clients and ends the present ones.
    Draining,
    /// Its machine is being taken down.
    Deleting,
    /// It can not go on without a person.
    Failed,
}

/// The machine as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// Its name on the hypervisor.
    pub name: String,
    /// Its id there.
    pub id: String,
    /// The host it lives on, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// A condition as Kubernetes writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which one.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one word of a closed set.
    pub reason: String,
    /// Why, for people, with what to do about it.
    pub message: String,
    /// When `status` last changed (RFC 3339).
    pub last_transition_time: String,
    /// The generation of the spec that this speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
