//! `Proxy`: one machine running one proxy.

use super::{DurationText, Metadata, ProxyStatus, metadata::without_server_fields};
use egress_core::document::{Reading, read_document};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the group that a manifest is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ApiVersion {
    /// `egress-proxies.io/v1alpha1`.
    #[default]
    #[serde(rename = "egress-proxies.io/v1alpha1")]
    V1Alpha1,
}

/// The kind of a [`Proxy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProxyKind {
    /// `Proxy`.
    #[default]
    Proxy,
}

/// One machine running one proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Proxy {
    /// The version of this text.
    pub api_version: ApiVersion,
    /// The kind of this text.
    pub kind: ProxyKind,
    /// Names, labels and annotations.
    pub metadata: Metadata,
    /// What is asked for.
    pub spec: ProxySpec,
    /// What became of it. Written for people, never read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ProxyStatus>,
}

impl Proxy {
    /// Reads a manifest: every structural fault and everything [`Proxy::validate`] finds, at
    /// once. Fields that Kubernetes sets in an exported object are passed over.
    pub fn read(mut document: Value) -> Reading<Self> {
        without_server_fields(&mut document);
        read_document::<Self>(document).checked(Self::validate)
    }
}

/// What a user asks of a [`Proxy`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProxySpec {
    /// The configured provider that makes the machine.
    pub provider: String,
    /// The machine's size.
    #[serde(default)]
    pub machine: MachineSpec,
    /// How the proxy is set up.
    #[serde(default)]
    pub proxy: ServerSpec,
    /// More cloud-config for the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<UserDataSource>,
    /// Whether others may leave from the same address: `shared`. This version refuses the others.
    #[serde(default)]
    pub egress: Egress,
    /// How the proxy is proven.
    #[serde(default)]
    pub probe: ProbeSpec,
    /// Leaves everything as it is until it is lifted.
    #[serde(default)]
    pub paused: bool,
}

/// The size of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MachineSpec {
    /// Virtual CPUs, 1 to 64.
    pub cpus: i64,
    /// Memory in MiB, 128 to 1048576.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: i64,
    /// The system disk in GiB, 1 to 4096.
    #[serde(rename = "diskGiB")]
    pub disk_gib: i64,
}

impl Default for MachineSpec {
    fn default() -> Self {
        Self {
            cpus: 1,
            memory_mib: 512,
            disk_gib: 4,
        }
    }
}

/// How a proxy is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ServerSpec {
    /// The port it listens on, 1 to 65535; unset leaves it to the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    /// The protocols it speaks: `http`. This version refuses the others.
    pub protocols: Vec<Protocol>,
    /// The networks whose clients may connect, in CIDR notation; empty means any.
    pub clients: Vec<String>,
    /// Who may use it.
    pub auth: AuthSpec,
    /// Where its clients may go. This version refuses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destinations: Option<DestinationsSpec>,
}

impl Default for ServerSpec {
    fn default() -> Self {
        Self {
            port: None,
            protocols: vec![Protocol::Http],
            clients: Vec::new(),
            auth: AuthSpec::default(),
            destinations: None,
        }
    }
}

/// A protocol between client and proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Protocol {
    /// HTTP forward requests and CONNECT.
    Http,
    /// SOCKS version 5 (RFC 1928).
    Socks5,
}

/// Where a proxy's credentials come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum AuthSpec {
    /// Made and kept by us.
    Generated {},
    /// A Secret in the Proxy's namespace with the keys `username` and `password`.
    SecretRef {
        /// Its name.
        name: String,
    },
    /// None; only with `clients`.
    None {},
}

impl Default for AuthSpec {
    fn default() -> Self {
        Self::Generated {}
    }
}

/// Where clients of a proxy may go; a host name, an address or a network in each entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DestinationsSpec {
    /// Only to these; empty means anywhere.
    pub allow: Vec<String>,
    /// Never to these.
    pub deny: Vec<String>,
}

/// A key of a Secret or ConfigMap in the Proxy's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum UserDataSource {
    /// A key of a Secret.
    SecretRef {
        /// The Secret's name.
        name: String,
        /// The key within it.
        key: String,
    },
    /// A key of a ConfigMap.
    ConfigMapRef {
        /// The ConfigMap's name.
        name: String,
        /// The key within it.
        key: String,
    },
}

/// Whether others may leave from the same address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Egress {
    /// They may; home labs sit behind one address.
    #[default]
    Shared,
    /// No other proxy of its pool does.
    Unique,
}

/// How a proxy is proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProbeSpec {
    /// Pages that answer with the address they were asked from. This version refuses any.
    #[serde(rename = "echoURLs", skip_serializing_if = "Vec::is_empty")]
    pub echo_urls: Vec<String>,
    /// The networks its egress address must be in; empty means any. This version refuses any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expect_egress: Vec<String>,
    /// From one probe to the next, 1 s to 1 h.
    pub interval: DurationText,
    /// How long one probe may take, 100 ms to 60 s, and no longer than the interval.
    pub timeout: DurationText,
    /// How many probes in a row must fail before a proven proxy counts as not serving, 1 to 100.
    pub failure_threshold: i64,
}

impl Default for ProbeSpec {
    fn default() -> Self {
        Self {
            echo_urls: Vec::new(),
            expect_egress: Vec::new(),
            interval: DurationText::new("10s"),
            timeout: DurationText::new("5s"),
            failure_threshold: 3,
        }
    }
}
