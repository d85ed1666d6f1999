//! The `proxmox:` block of a provider's configuration.

use crate::client::{BaseUrl, NodeName, Vmid};
use egress_core::finding::{Finding, Findings};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, path::PathBuf};

/// The VMIDs that machines may get, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VmidRange {
    /// The first VMID.
    pub from: u32,
    /// The last VMID.
    pub to: u32,
}

impl VmidRange {
    /// How many VMIDs there are; 0 when the ends are reversed.
    pub const fn count(self) -> u64 {
        if self.to < self.from {
            0
        } else {
            (self.to - self.from) as u64 + 1
        }
    }
    /// Whether a VMID lies within.
    pub const fn contains(self, vmid: u32) -> bool {
        self.from <= vmid && vmid <= self.to
    }
}

/// A template on one node, for storage that nodes do not share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeTemplate {
    /// The node it lies on.
    pub node: String,
    /// Its VMID.
    pub vmid: u32,
}

/// What to do with a cloud-init drive of Proxmox that the template brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CloudInitDrive {
    /// Refuse the template.
    #[default]
    Refuse,
    /// Put the seed in its place in the clone; the template stays as it is.
    Replace,
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
    /// The template has it, and may have proxyd.
    Baked,
}

/// What is left free for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Reserve {
    /// The part of the clones' storage that stays free, in percent.
    pub storage_percent: u8,
    /// The memory that stays free on a node, in MiB.
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

/// The `proxmox:` block of a provider's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// API servers of one cluster, as `https://host:8006`; the next one serves when one does not.
    pub urls: Vec<String>,
    /// The certificate authority that signed their certificates, in PEM.
    pub ca_file: PathBuf,
    /// A file with `user@realm!id=secret`, read again for each request.
    pub token_file: PathBuf,
    /// The template's VMID, where one serves all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<u32>,
    /// A template for each node, where nodes share no storage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub templates: Vec<NodeTemplate>,
    /// Where the disks of machines go.
    pub storage: String,
    /// Where seeds go; the token needs `Datastore.Allocate` on it.
    pub iso_storage: String,
    /// The VMIDs of this installation, on every storage that it shares with others.
    pub vmid_range: VmidRange,
    /// Another bridge than the template's NIC has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// The VLAN of the NIC, 1 to 4094; unset leaves what the template has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan_tag: Option<u16>,
    /// The resource pool that machines join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The drive that holds the seed.
    #[serde(default = "default_seed_drive")]
    pub seed_drive: String,
    /// What to do with a cloud-init drive of the template.
    #[serde(default)]
    pub cloud_init_drive: CloudInitDrive,
    /// Where the guest agent comes from.
    #[serde(default)]
    pub guest_agent: GuestAgent,
    /// Takes loopback addresses for a machine's own: for a simulator only.
    #[serde(default)]
    pub allow_loopback: bool,
    /// What is left free for others.
    #[serde(default)]
    pub reserve: Reserve,
    /// How many clones may run at once on one storage.
    #[serde(default = "default_clones")]
    pub max_concurrent_clones: u32,
    /// The simulator's control URL, on a loopback address: the extended conformance suite
    /// needs it, and nothing else reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_url: Option<String>,
}

fn default_seed_drive() -> String {
    "ide2".to_owned()
}

const fn default_clones() -> u32 {
    4
}

impl Config {
    /// The VMIDs of all templates, in the order configured.
    pub fn template_vmids(&self) -> Vec<u32> {
        let mut vmids: Vec<u32> = self.template.into_iter().collect();
        for template in &self.templates {
            if !vmids.contains(&template.vmid) {
                vmids.push(template.vmid);
            }
        }
        vmids
    }

    /// Everything that is wrong with this block, which stands at `path` in its document.
    /// Opens no file and asks no host.
    pub fn validate(&self, path: &str) -> Vec<Finding> {
        let mut findings = Findings::at(path);
        self.validate_urls(&mut findings);
        self.validate_files(&mut findings);
        self.validate_templates(&mut findings);
        self.validate_range(&mut findings);
        self.validate_machine(&mut findings);
        findings.found
    }

    fn validate_urls(&self, findings: &mut Findings<'_>) {
        if self.urls.is_empty() {
            findings.add(
                "urls",
                "[]",
                "names no API server",
                "write at least one, as https://192.0.2.8:8006",
            );
        }
        let mut seen = BTreeSet::new();
        for (index, url) in self.urls.iter().enumerate() {
            let field = format!("urls[{index}]");
            match url.parse::<BaseUrl>() {
                Err(bad) => {
                    let remedy = "write https://host:8006, with a name or address that the host's certificate holds";
                    findings.add(&field, url, bad.to_string(), remedy);
                }
                Ok(url) if !seen.insert(url.clone()) => {
                    findings.add(&field, &url, "listed twice", "name each API server once");
                }
                Ok(_) => {}
            }
        }
        if let Some(control) = &self.control_url {
            let loopback = ["http://127.", "http://[::1]", "http://localhost"];
            if !loopback.iter().any(|start| control.starts_with(start)) {
                findings.add(
                    "controlUrl",
                    control,
                    "not on a loopback address",
                    "remove it: only a simulator on this host has one",
                );
            }
        }
    }

    fn validate_files(&self, findings: &mut Findings<'_>) {
        for (field, file) in [("caFile", &self.ca_file), ("tokenFile", &self.token_file)] {
            if file.as_os_str().is_empty() {
                findings.add(field, "", "names no file", "write the path of the file");
            }
        }
    }

    fn validate_templates(&self, findings: &mut Findings<'_>) {
        match (self.template, self.templates.is_empty()) {
            (None, true) => findings.add(
                "template",
                "",
                "no template is named",
                "write `template: VMID`, or `templates: [{node: NAME, vmid: VMID}]` for storage that nodes do not share",
            ),
            (Some(vmid), false) => findings.add(
                "template",
                vmid,
                "named next to `templates`",
                "keep one of the two",
            ),
            _ => {}
        }
        if let Some(vmid) = self.template {
            self.validate_template_vmid("template", vmid, findings);
        }
        let mut nodes = BTreeSet::new();
        for (index, template) in self.templates.iter().enumerate() {
            let node = format!("templates[{index}].node");
            if template.node.parse::<NodeName>().is_err() {
                let remedy = "write the short name that the cluster knows the node by";
                findings.add(&node, &template.node, "not a node name", remedy);
            } else if !nodes.insert(&template.node) {
                let remedy = "name one template a node";
                findings.add(&node, &template.node, "the node is listed twice", remedy);
            }
            self.validate_template_vmid(
                &format!("templates[{index}].vmid"),
                template.vmid,
                findings,
            );
        }
    }

    fn validate_template_vmid(&self, field: &str, vmid: u32, findings: &mut Findings<'_>) {
        if Vmid::new(vmid).is_none() {
            let remedy = format!("use {} to {}", Vmid::MIN, Vmid::MAX);
            findings.add(field, vmid, "not a VMID", remedy);
        } else if self.vmid_range.contains(vmid) {
            let remedy = "choose a range for machines that holds nothing else";
            findings.add(field, vmid, "lies within vmidRange", remedy);
        }
    }

    fn validate_range(&self, findings: &mut Findings<'_>) {
        let VmidRange { from, to } = self.vmid_range;
        for (field, end) in [("vmidRange.from", from), ("vmidRange.to", to)] {
            if Vmid::new(end).is_none() {
                let remedy = format!("use {} to {}", Vmid::MIN, Vmid::MAX);
                findings.add(field, end, "not a VMID", remedy);
            }
        }
        if to < from {
            findings.add(
                "vmidRange",
                format_args!("{from}-{to}"),
                "ends before it begins: it holds no VMID",
                "write the lower VMID in from and the higher one in to",
            );
        }
    }

    fn validate_machine(&self, findings: &mut Findings<'_>) {
        for (field, storage) in [
            ("storage", &self.storage),
            ("isoStorage", &self.iso_storage),
        ] {
            if !is_storage_id(storage) {
                let remedy = "write the id of a storage, as `pvesm status` shows it";
                findings.add(field, storage, "not a storage id", remedy);
            }
        }
        if self.storage == self.iso_storage && is_storage_id(&self.storage) {
            let remedy = "use a storage for seeds alone: the token may delete whatever lies there";
            findings.add(
                "isoStorage",
                &self.iso_storage,
                "the same as storage",
                remedy,
            );
        }
        if let Some(bridge) = &self.bridge
            && !is_bridge(bridge)
        {
            let remedy = if bridge.contains('.') {
                "write the bridge without a VLAN, and the VLAN in `vlanTag`"
            } else {
                "write the name of a bridge or vnet of the nodes"
            };
            findings.add("bridge", bridge, "not the name of a bridge", remedy);
        }
        if let Some(tag) = self.vlan_tag
            && !(1..=4094).contains(&tag)
        {
            findings.add(
                "vlanTag",
                tag,
                "not a VLAN",
                "use 1 to 4094, or leave it out",
            );
        }
        if let Some(pool) = &self.pool
            && !is_pool(pool)
        {
            let remedy = "write the id of a pool: letters, digits, `.`, `-` and `_`, up to three levels joined by `/`";
            findings.add("pool", pool, "not a pool id", remedy);
        }
        if !is_seed_drive(&self.seed_drive) {
            findings.add(
                "seedDrive",
                &self.seed_drive,
                "not a drive that can hold a CD",
                "use ide0 to ide3, sata0 to sata5 or scsi0 to scsi30",
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
        if self.max_concurrent_clones == 0 {
            findings.add(
                "maxConcurrentClones",
                0,
                "no machine could ever be made",
                "use 1 or more",
            );
        }
    }
}

/// `[a-z][a-z0-9-_.]*[a-z0-9]`, any case (§8.2).
fn is_storage_id(text: &str) -> bool {
    text.len() >= 2
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// A Linux bridge or a vnet. `vmbr0.4` is a VLAN interface of the host, which no VM can join.
fn is_bridge(text: &str) -> bool {
    (1..=15).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
}

fn is_pool(text: &str) -> bool {
    let level = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    text.split('/').count() <= 3 && text.split('/').all(level)
}

fn is_seed_drive(text: &str) -> bool {
    [("ide", 3), ("sata", 5), ("scsi", 30)]
        .iter()
        .any(|(bus, last)| {
            text.strip_prefix(bus).is_some_and(|digits| {
                digits
                    .parse::<u8>()
                    .is_ok_and(|slot| slot <= *last && slot.to_string() == digits)
            })
        })
}

#[cfg(test)]
mod tests;
