//! The block of a provider's configuration.

use crate::client::{BadUri, HostUri, TlsFiles, Transport};
use egress_core::finding::{Finding, Findings};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, path::PathBuf};

/// One libvirt host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostBlock {
    /// Where it is: `qemu:///system`, `qemu+unix:///system?socket=/path`,
    /// `qemu+tls://host/system`, `qemu+ssh://user@host/system`. As written: what is wrong with it
    /// is told without a password that someone put there.
    pub uri: String,
}

impl HostBlock {
    /// The URI, where it is one.
    pub fn parsed(&self) -> Result<HostUri, BadUri> {
        self.uri.parse()
    }
}

/// A URI as it may be shown: whoever is named before the host is left out.
fn shown(uri: &str) -> String {
    match (uri.split_once("://"), uri.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://...@{rest}"),
        (None, Some((_, rest))) => format!("...@{rest}"),
        _ => uri.to_owned(),
    }
}

/// What runs a machine's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DomainType {
    /// The processor itself.
    #[default]
    Kvm,
    /// Software, many times slower: for tests.
    Qemu,
}

impl DomainType {
    /// The word in a domain's description.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Qemu => "qemu",
        }
    }
}

/// Where the seed's drive hangs: the guest's kernel must have a driver for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SeedBus {
    /// virtio-scsi, on every machine type.
    #[default]
    Scsi,
    /// IDE, on machines of type `pc` alone.
    Ide,
}

/// Where the guest agent comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GuestAgent {
    /// The proxyd that the seed carries is one, too.
    #[default]
    Builtin,
    /// The distribution's package is installed at the first boot.
    Package,
    /// The base image has it, and may have proxyd.
    Baked,
}

impl From<GuestAgent> for egress_seed::GuestAgent {
    fn from(agent: GuestAgent) -> Self {
        match agent {
            GuestAgent::Builtin => Self::Builtin,
            GuestAgent::Package => Self::Package,
            GuestAgent::Baked => Self::Baked,
        }
    }
}

/// What is left free for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Reserve {
    /// The part of the pool that stays free, in percent.
    pub storage_percent: u8,
    /// The memory that stays free on a host, in MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
}

impl Default for Reserve {
    fn default() -> Self {
        Self {
            storage_percent: 10,
            memory_mib: 1024,
        }
    }
}

/// The `kvm2:` block of a provider's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The hosts; a machine stays on the one it was made on.
    pub hosts: Vec<HostBlock>,
    /// For `qemu+tls`: the authority that signed the hosts' certificates, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// For `qemu+tls`: our certificate, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    /// For `qemu+tls`: its key, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// The storage pool of disks and seeds, on every host: one of files.
    #[serde(default = "default_name")]
    pub pool: String,
    /// The volume of that pool that every disk begins as; it is never written.
    pub base_image: String,
    /// The network of libvirt that machines join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The portgroup of that network, as for a VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub portgroup: Option<String>,
    /// A bridge of the hosts in place of a network of libvirt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// What runs the machines.
    #[serde(default)]
    pub domain_type: DomainType,
    /// QEMU's machine type, such as `q35` or `pc`.
    #[serde(default = "default_machine_type")]
    pub machine_type: String,
    /// Where the seed's drive hangs.
    #[serde(default)]
    pub seed_bus: SeedBus,
    /// Where the guest agent comes from.
    #[serde(default)]
    pub guest_agent: GuestAgent,
    /// What is left free for others.
    #[serde(default)]
    pub reserve: Reserve,
}

fn default_name() -> String {
    "default".to_owned()
}

fn default_machine_type() -> String {
    "q35".to_owned()
}

/// What a machine's card is plugged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plug<'a> {
    /// A network of libvirt.
    Network {
        name: &'a str,
        portgroup: Option<&'a str>,
    },
    /// A bridge of the host.
    Bridge(&'a str),
}

impl Config {
    /// What machines are plugged into: the network `default` where nothing is named.
    pub(crate) fn plug(&self) -> Plug<'_> {
        match &self.bridge {
            Some(bridge) => Plug::Bridge(bridge),
            None => Plug::Network {
                name: self.network.as_deref().unwrap_or("default"),
                portgroup: self.portgroup.as_deref(),
            },
        }
    }

    /// The files of a TLS connection; only hosts reached by TLS need them.
    pub(crate) fn tls_files(&self) -> TlsFiles {
        TlsFiles {
            ca: self.ca_file.clone().unwrap_or_default(),
            certificate: self.cert_file.clone().unwrap_or_default(),
            key: self.key_file.clone().unwrap_or_default(),
        }
    }

    /// Everything that is wrong with this block, which stands at `path` in its document.
    /// Opens no file and asks no host.
    pub fn validate(&self, path: &str) -> Vec<Finding> {
        let mut findings = Findings::at(path);
        self.validate_hosts(&mut findings);
        self.validate_storage(&mut findings);
        self.validate_network(&mut findings);
        self.validate_machine(&mut findings);
        findings.found
    }

    fn validate_hosts(&self, findings: &mut Findings<'_>) {
        if self.hosts.is_empty() {
            findings.add(
                "hosts",
                "[]",
                "names no host",
                "write at least one, as [{uri: \"qemu:///system\"}]",
            );
        }
        let mut seen = BTreeSet::new();
        for (index, host) in self.hosts.iter().enumerate() {
            let field = format!("hosts[{index}].uri");
            let uri = shown(&host.uri);
            if let Err(bad) = host.parsed() {
                findings.add(&field, uri, bad.problem(), bad.remedy());
            } else if !seen.insert(host.uri.as_str()) {
                findings.add(&field, uri, "listed twice", "name each host once");
            }
        }
        let tls = |host: &HostBlock| {
            let parsed = host.parsed();
            parsed.is_ok_and(|uri| matches!(uri.transport(), Transport::Tls { .. }))
        };
        let by_tls = self.hosts.iter().any(tls);
        for (field, file, what) in [
            ("caFile", &self.ca_file, "the authority's certificate"),
            ("certFile", &self.cert_file, "our certificate"),
            ("keyFile", &self.key_file, "our certificate's key"),
        ] {
            match file {
                None if by_tls => {
                    let remedy = format!("write the path of {what}, in PEM");
                    findings.add(field, "", "a host is reached by qemu+tls", remedy);
                }
                Some(file) if file.as_os_str().is_empty() => {
                    findings.add(field, "", "names no file", "write the path of the file");
                }
                Some(file) if !by_tls => {
                    let remedy = "remove it, or reach a host by qemu+tls";
                    findings.add(field, file.display(), "no host is reached by TLS", remedy);
                }
                _ => {}
            }
        }
    }

    fn validate_storage(&self, findings: &mut Findings<'_>) {
        if !is_name(&self.pool) {
            let remedy = "write the name of a pool, as `virsh pool-list --all` shows it";
            findings.add("pool", &self.pool, "not the name of a pool", remedy);
        }
        if !is_name(&self.base_image) || self.base_image.contains('/') {
            findings.add(
                "baseImage",
                &self.base_image,
                "not the name of a volume",
                "write the name that `virsh vol-list POOL` shows, not a path",
            );
        } else if self.base_image.starts_with("px-") {
            findings.add(
                "baseImage",
                &self.base_image,
                "looks like a volume of a machine of ours",
                "give the image a name that does not begin with px-",
            );
        }
        if self.reserve.storage_percent > 90 {
            findings.add(
                "reserve.storagePercent",
                self.reserve.storage_percent,
                "leaves no room for machines",
                "use 90 or less",
            );
        }
    }

    fn validate_network(&self, findings: &mut Findings<'_>) {
        if let (Some(network), Some(_)) = (&self.network, &self.bridge) {
            let remedy = "keep one of the two";
            findings.add("network", network, "named next to `bridge`", remedy);
        }
        if let (Some(portgroup), Some(_)) = (&self.portgroup, &self.bridge) {
            findings.add(
                "portgroup",
                portgroup,
                "named next to `bridge`",
                "only networks of libvirt have portgroups: name the network, or remove it",
            );
        }
        for (field, value) in [("network", &self.network), ("portgroup", &self.portgroup)] {
            if let Some(value) = value
                && !is_name(value)
            {
                let remedy = "write the name that `virsh net-list --all` or the network shows";
                findings.add(field, value, "not a name of libvirt", remedy);
            }
        }
        if let Some(bridge) = &self.bridge
            && !is_interface(bridge)
        {
            let remedy = "write the name of a bridge of the hosts, as `ip link` shows it";
            findings.add("bridge", bridge, "not the name of a bridge", remedy);
        }
    }

    fn validate_machine(&self, findings: &mut Findings<'_>) {
        let legal = !self.machine_type.is_empty()
            && self
                .machine_type
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if !legal {
            findings.add(
                "machineType",
                &self.machine_type,
                "not a machine type",
                "write q35, pc, or one that `qemu-system-x86_64 -machine help` lists",
            );
        }
        if self.seed_bus == SeedBus::Ide && self.machine_type.contains("q35") {
            findings.add(
                "seedBus",
                "ide",
                "a machine of type q35 has no IDE",
                "use scsi, or machineType: pc",
            );
        }
    }
}

/// What libvirt takes for a name: nothing that ends a line, and not too long.
fn is_name(text: &str) -> bool {
    (1..=255).contains(&text.len())
        && !text.starts_with('.')
        && text.chars().all(|c| !c.is_control() && c != '/')
}

/// A network interface of Linux.
fn is_interface(text: &str) -> bool {
    (1..=15).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

#[cfg(test)]
mod tests;
