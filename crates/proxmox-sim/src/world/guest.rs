//! A machine, template or container: its configuration file and what runs of it.

use super::{control::AgentBehaviour, schema::Schema, schema::property_list};
use data_encoding::HEXLOWER;
use serde_json::{Map, Value, json};
use sha1::{Digest, Sha1};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

/// What runs of a machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Running {
    pub(super) pid: u32,
    pub(super) since: Duration,
    /// What QEMU says of itself: `running`, `paused`, `io-error`.
    pub(super) qmp: &'static str,
    /// Whether its monitor answers no more.
    pub(super) hung: bool,
    /// Whether it was started with an agent device.
    pub(super) agent_device: bool,
}

/// A guest.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    pub(super) node: String,
    pub(super) container: bool,
    pub(super) config: BTreeMap<String, String>,
    pub(super) pending: BTreeMap<String, String>,
    pub(super) pending_delete: BTreeSet<String>,
    pub(super) running: Option<Running>,
    pub(super) ha: bool,
    /// How its agent answers, where that is not the usual way.
    pub(super) agent: Option<AgentBehaviour>,
    /// What its agent reports; made up from the VMID when empty.
    pub(super) addresses: Vec<IpAddr>,
    /// Distinguishes it from others that had the VMID before.
    pub(super) birth: u64,
    /// How often it was started.
    pub(super) starts: u64,
    /// Whether it ignores requests to shut down.
    pub(super) deaf: bool,
    /// Whether it is nothing but a lock that someone put there.
    pub(super) phantom: bool,
    /// How long a copy of one of its disks takes beyond the base time, in seconds.
    pub(super) copy_seconds: f64,
}

/// The keys whose values are disks or drives.
pub(super) fn is_drive(key: &str) -> bool {
    let stem = key.trim_end_matches(|c: char| c.is_ascii_digit());
    stem.len() < key.len()
        && matches!(
            stem,
            "ide" | "sata" | "scsi" | "virtio" | "efidisk" | "tpmstate"
        )
}

/// Whether a key is an unused disk.
pub(super) fn is_unused(key: &str) -> bool {
    key.strip_prefix("unused")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether a key is a network card.
pub(super) fn is_net(key: &str) -> bool {
    key.strip_prefix("net")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A drive, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Drive {
    /// The volume, `none`, `cdrom` or a path.
    pub(super) file: String,
    /// The rest.
    pub(super) options: BTreeMap<String, String>,
}

fn print_options(first: String, options: &BTreeMap<String, String>) -> String {
    let pairs = options.iter().map(|(key, value)| format!("{key}={value}"));
    let all: Vec<String> = std::iter::once(first).chain(pairs).collect();
    all.join(",")
}

impl Drive {
    pub(super) fn parse(text: &str) -> Self {
        let mut drive = Self::default();
        for (key, value) in property_list(text) {
            match key {
                "" | "file" | "volume" => value.clone_into(&mut drive.file),
                key => {
                    drive.options.insert(key.to_owned(), value.to_owned());
                }
            }
        }
        drive
    }

    pub(super) fn is_cdrom(&self) -> bool {
        self.options.get("media").is_some_and(|it| it == "cdrom")
    }

    /// Whether it is a cloud-init drive, which is told by its name alone.
    pub(super) fn is_cloudinit(&self) -> bool {
        let name = self.file.rsplit([':', '/']).next().unwrap_or_default();
        let stem = name.split('.').next().unwrap_or_default();
        stem == "cloudinit"
            || stem
                .strip_prefix("vm-")
                .and_then(|rest| rest.strip_suffix("-cloudinit"))
                .is_some_and(|id| id.bytes().all(|byte| byte.is_ascii_digit()))
    }

    /// Storage and name, where it is a volume.
    pub(super) fn volume(&self) -> Option<(&str, &str)> {
        if self.file.starts_with('/') {
            return None;
        }
        self.file.split_once(':')
    }

    /// A disk that holds data of the machine.
    pub(super) fn is_disk(&self) -> bool {
        !self.is_cdrom() && !self.is_cloudinit() && self.volume().is_some()
    }

    pub(super) fn size(&self) -> Option<u64> {
        self.options.get("size").and_then(|text| parse_size(text))
    }

    pub(super) fn print(&self) -> String {
        print_options(self.file.clone(), &self.options)
    }
}

/// Bytes of `2G`, `512M`, `38K`, `512`.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let (digits, factor) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1_u64 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        b'T' => (&text[..text.len() - 1], 1 << 40),
        _ => (text, 1),
    };
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(factor);
    }
    digits
        .parse::<f64>()
        .ok()
        .filter(|number| number.is_finite() && *number >= 0.0)
        .map(|number| (number * factor as f64) as u64)
}

/// Bytes in the largest unit that is exact.
pub(super) fn print_size(bytes: u64) -> String {
    let mut bytes = bytes;
    for unit in ["", "K", "M", "G"] {
        if bytes == 0 || !bytes.is_multiple_of(1024) {
            return format!("{bytes}{unit}");
        }
        bytes /= 1024;
    }
    format!("{bytes}T")
}

/// A network card, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Net {
    pub(super) model: String,
    pub(super) mac: Option<String>,
    pub(super) options: BTreeMap<String, String>,
}

impl Net {
    pub(super) fn parse(text: &str) -> Self {
        let mut net = Self::default();
        for (key, value) in property_list(text) {
            match key {
                "" | "model" => value.clone_into(&mut net.model),
                "macaddr" => net.mac = Some(value.to_owned()),
                "bridge" | "tag" | "trunks" | "firewall" | "link_down" | "mtu" | "queues"
                | "rate" | "host-tunnel" => {
                    net.options.insert(key.to_owned(), value.to_owned());
                }
                model => {
                    model.clone_into(&mut net.model);
                    net.mac = Some(value.to_owned());
                }
            }
        }
        net
    }

    pub(super) fn print(&self) -> String {
        let model = &self.model;
        let first = match &self.mac {
            Some(mac) => format!("{model}={mac}"),
            None => model.clone(),
        };
        print_options(first, &self.options)
    }

    /// The path of the permission to use its bridge.
    pub(super) fn sdn_path(&self) -> Option<String> {
        let bridge = self.options.get("bridge")?;
        let path = format!("/sdn/zones/localnetwork/{bridge}");
        Some(match self.options.get("tag") {
            Some(tag) => format!("{path}/{tag}"),
            None => path,
        })
    }
}

impl Machine {
    pub(super) fn lock(&self) -> Option<&str> {
        self.config.get("lock").map(String::as_str)
    }

    pub(super) fn is_template(&self) -> bool {
        self.config.get("template").is_some_and(|it| it == "1")
    }

    pub(super) fn is_protected(&self) -> bool {
        self.config.get("protection").is_some_and(|it| it == "1")
    }

    /// Its name, or what stands in for it.
    pub(super) fn name_or(&self, vmid: u32) -> String {
        let named = self.config.get("name").or(self.config.get("hostname"));
        named.cloned().unwrap_or_else(|| format!("VM {vmid}"))
    }

    /// Whether the agent is switched on in a configuration.
    pub(super) fn agent_enabled(config: &BTreeMap<String, String>) -> bool {
        config.get("agent").is_some_and(|text| {
            property_list(text)
                .iter()
                .any(|(key, value)| matches!(*key, "" | "enabled") && *value == "1")
        })
    }

    /// The values with waiting changes merged in.
    pub(super) fn merged(&self) -> BTreeMap<String, String> {
        let mut config = self.config.clone();
        config.retain(|key, _| !self.pending_delete.contains(key));
        config.extend(self.pending.clone());
        config
    }

    fn number(&self, key: &str, otherwise: u64) -> u64 {
        self.config
            .get(key)
            .and_then(|text| text.trim_start_matches("current=").parse().ok())
            .unwrap_or(otherwise)
    }

    /// Its memory in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.number("memory", 512) << 20
    }

    /// Its processors.
    pub(super) fn cpus(&self) -> u64 {
        let all = self.number("sockets", 1) * self.number("cores", 1);
        self.number("vcpus", all)
    }

    /// The devices of its boot order.
    pub(super) fn boot_order(&self) -> Vec<&str> {
        self.config
            .get("boot")
            .map(|text| boot_order(text))
            .unwrap_or_default()
    }

    /// The size of its boot disk in bytes, 0 without one.
    pub(super) fn boot_disk_size(&self) -> u64 {
        let bootdisk = self.config.get("bootdisk").map(String::as_str);
        self.boot_order()
            .into_iter()
            .chain(bootdisk)
            .filter(|key| is_drive(key))
            .filter_map(|key| self.config.get(key))
            .map(|text| Drive::parse(text))
            .find(|drive| !drive.is_cdrom())
            .and_then(|drive| drive.size())
            .unwrap_or(0)
    }

    /// Its file, as it lies on disk.
    fn file(&self) -> String {
        let line = |(key, value): (&String, &String)| format!("{key}: {value}");
        let description = self.config.get("description");
        let mut lines: Vec<String> = description
            .into_iter()
            .flat_map(|text| text.split('\n'))
            .map(|text| format!("#{}", text.replace('%', "%25").replace(':', "%3A")))
            .collect();
        let keys = self.config.iter().filter(|(key, _)| *key != "description");
        lines.extend(keys.map(line));
        if !self.pending.is_empty() || !self.pending_delete.is_empty() {
            lines.extend([String::new(), "[PENDING]".to_owned()]);
            lines.extend(self.pending.iter().map(line));
        }
        if !self.pending_delete.is_empty() {
            let keys: Vec<&str> = self.pending_delete.iter().map(String::as_str).collect();
            lines.push(format!("delete: {}", keys.join(",")));
        }
        lines.push(String::new());
        lines.join("\n")
    }

    /// The digest of its file.
    pub(super) fn digest(&self) -> String {
        HEXLOWER.encode(&Sha1::digest(self.file().as_bytes()))
    }

    /// A configuration as the API answers it.
    pub(super) fn shown(&self, current: bool, schema: &Schema) -> Value {
        let values = if current {
            self.config.clone()
        } else {
            self.merged()
        };
        let mut shown: Map<String, Value> = values
            .into_iter()
            .map(|(key, value)| {
                let value = if key == "cipassword" {
                    json!("**********")
                } else {
                    shown_value(&key, &value, schema)
                };
                (key, value)
            })
            .collect();
        shown.insert("digest".to_owned(), self.digest().into());
        Value::Object(shown)
    }

    /// What waits for the next start, beside what stands.
    pub(super) fn shown_pending(&self, schema: &Schema) -> Value {
        let mut rows = vec![json!({"key": "digest", "value": self.digest()})];
        for (key, value) in &self.config {
            let mut row = json!({"key": key, "value": shown_value(key, value, schema)});
            if let Some(pending) = self.pending.get(key) {
                row["pending"] = shown_value(key, pending, schema);
            }
            if self.pending_delete.contains(key) {
                row["delete"] = json!(1);
            }
            rows.push(row);
        }
        for (key, value) in &self.pending {
            if !self.config.contains_key(key) {
                rows.push(json!({"key": key, "pending": shown_value(key, value, schema)}));
            }
        }
        Value::Array(rows)
    }
}

/// Whether a property string has this key set to 1.
pub(super) fn property_flag(text: &str, name: &str) -> bool {
    property_list(text)
        .iter()
        .any(|(key, value)| *key == name && *value == "1")
}

/// The devices of a `boot` value.
pub(super) fn boot_order(text: &str) -> Vec<&str> {
    property_list(text)
        .into_iter()
        .find(|(key, _)| *key == "order")
        .map(|(_, value)| value.split(';').filter(|it| !it.is_empty()).collect())
        .unwrap_or_default()
}

fn shown_value(key: &str, value: &str, schema: &Schema) -> Value {
    match value.parse::<i64>() {
        Ok(number) if schema.is_numeric(key) => number.into(),
        _ => value.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_printed_in_the_largest_exact_unit() {
        for (bytes, text) in [
            (38_912, "38K"),
            (512, "512"),
            (2_684_354_560, "2560M"),
            (2_147_483_648, "2G"),
            (0, "0"),
        ] {
            assert_eq!(print_size(bytes), text);
            assert_eq!(parse_size(text), Some(bytes));
        }
    }

    #[test]
    fn a_cloud_init_drive_is_told_by_its_name() {
        for (text, yes) in [
            ("vmdata:192/vm-192-cloudinit.qcow2,media=cdrom", true),
            ("local-lvm:vm-1-cloudinit,media=cdrom", true),
            ("vmdata:cloudinit", true),
            ("isos:iso/cloudinit-x.iso,media=cdrom", false),
            ("none,media=cdrom", false),
        ] {
            assert_eq!(Drive::parse(text).is_cloudinit(), yes, "{text}");
        }
    }

    #[test]
    fn a_card_is_printed_with_its_options_in_order() {
        let net = Net::parse("tag=4,bridge=vmbr0,virtio=BC:24:11:00:00:01");
        assert_eq!(net.print(), "virtio=BC:24:11:00:00:01,bridge=vmbr0,tag=4");
    }
}
