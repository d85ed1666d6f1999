//! The small languages within a machine's configuration: drives, NICs, boot order and tags
//! (§7.2). Values are compared parsed, since Proxmox VE normalises what it is given.

use std::{collections::BTreeMap, fmt};

/// What a machine's configuration holds, key by key.
pub(super) type Keys = BTreeMap<String, String>;

/// A value of comma-separated `key=value` parts, of which the first may lack its key.
fn parts(text: &str) -> impl Iterator<Item = (Option<&str>, &str)> {
    text.split(',')
        .filter(|part| !part.is_empty())
        .map(|part| match part.split_once('=') {
            Some((key, value)) => (Some(key.trim()), value.trim()),
            None => (None, part.trim()),
        })
}

/// A drive, as `ide2: proxy-seeds:iso/x.iso,media=cdrom,size=44K`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Drive {
    /// The volume; `none` and `cdrom` are no volumes.
    pub(super) volume: Option<String>,
    /// Whether it is a CD drive.
    pub(super) cdrom: bool,
    /// The size of the medium, in bytes, where it is told.
    pub(super) bytes: Option<u64>,
}

impl Drive {
    pub(super) fn parse(text: &str) -> Self {
        let mut drive = Self {
            volume: None,
            cdrom: false,
            bytes: None,
        };
        for (index, (key, value)) in parts(text).enumerate() {
            match key {
                None if index == 0 => drive.volume = volume(value),
                Some("file") => drive.volume = volume(value),
                Some("media") => drive.cdrom = value == "cdrom",
                Some("size") => drive.bytes = bytes(value),
                _ => {}
            }
        }
        drive
    }
    /// A cloud-init drive of Proxmox: its volume is called so, in whatever slot it is (§7.2).
    pub(super) fn is_cloud_init(&self) -> bool {
        let Some(volume) = &self.volume else {
            return false;
        };
        let name = volume.rsplit([':', '/']).next().unwrap_or_default();
        let name = name.split_once('.').map_or(name, |(stem, _)| stem);
        name == "cloudinit"
            || name
                .strip_prefix("vm-")
                .and_then(|rest| rest.strip_suffix("-cloudinit"))
                .is_some_and(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit()))
    }
    /// The storage that its volume lies on.
    pub(super) fn storage(&self) -> Option<&str> {
        self.volume
            .as_deref()?
            .split_once(':')
            .map(|(storage, _)| storage)
    }
}

fn volume(text: &str) -> Option<String> {
    (!matches!(text, "" | "none" | "cdrom")).then(|| text.to_owned())
}

/// A size as it is printed: `44K`, `3G`, `3584M`; powers of 1024.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, shift) = match text.bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    if !digits.contains('.') {
        return digits.parse::<u64>().ok()?.checked_mul(1 << shift);
    }
    // `3.5G` is read, and printed by older versions.
    let number: f64 = digits.parse().ok()?;
    (number >= 0.0).then_some((number * (1_u64 << shift) as f64) as u64)
}

/// Whether a key of the configuration is a drive.
pub(super) fn is_drive_key(key: &str) -> bool {
    ["ide", "sata", "scsi", "virtio"].iter().any(|bus| {
        key.strip_prefix(bus)
            .is_some_and(|slot| !slot.is_empty() && slot.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// Every drive with its key.
pub(super) fn drives(keys: &Keys) -> impl Iterator<Item = (&str, Drive)> {
    keys.iter()
        .filter(|(key, _)| is_drive_key(key))
        .map(|(key, value)| (key.as_str(), Drive::parse(value)))
}

/// Everything that a clone takes along: the drives, and where firmware and TPM keep their state.
pub(super) fn cloned(keys: &Keys) -> impl Iterator<Item = Drive> {
    let state = ["efidisk0", "tpmstate0"].into_iter();
    let state = state.filter_map(|key| keys.get(key).map(|value| Drive::parse(value)));
    drives(keys).map(|(_, drive)| drive).chain(state)
}

/// The system disk: the first of the boot order that is a disk. Proxmox VE appends a CD drive
/// that is attached later, so the seed's own drive, CD and cloud-init drives are passed over
/// (F19). Without an order, the only disk there is.
pub(super) fn boot_disk(keys: &Keys, seed_drive: &str) -> Option<(String, Drive)> {
    let disk = |key: &str| -> Option<(String, Drive)> {
        let drive = Drive::parse(keys.get(key)?);
        let is_disk = is_drive_key(key)
            && key != seed_drive
            && !drive.cdrom
            && drive.volume.is_some()
            && !drive.is_cloud_init();
        is_disk.then(|| (key.to_owned(), drive))
    };
    let ordered = boot_order(keys.get("boot").map_or("", String::as_str))
        .into_iter()
        .find_map(|key| disk(&key));
    if ordered.is_some() {
        return ordered;
    }
    if let Some(named) = keys.get("bootdisk").and_then(|key| disk(key)) {
        return Some(named);
    }
    let mut disks = keys.keys().filter_map(|key| disk(key));
    let only = disks.next()?;
    disks.next().is_none().then_some(only)
}

/// The devices of `boot: order=scsi0;ide2;net0`.
fn boot_order(text: &str) -> Vec<String> {
    parts(text)
        .find(|(key, _)| *key == Some("order"))
        .map(|(_, value)| value.split(';').map(str::trim).filter(|d| !d.is_empty()))
        .into_iter()
        .flatten()
        .map(str::to_owned)
        .collect()
}

/// A NIC, as `virtio=BC:24:11:EE:48:83,bridge=vmbr0,firewall=1,tag=4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Nic {
    model: String,
    mac: Option<String>,
    options: BTreeMap<String, String>,
}

impl Nic {
    /// `None` when no model can be found.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut nic = Self {
            model: String::new(),
            mac: None,
            options: BTreeMap::new(),
        };
        for (key, value) in parts(text) {
            match key {
                None | Some("model") => value.clone_into(&mut nic.model),
                Some("macaddr") => nic.mac = Some(value.to_ascii_uppercase()),
                Some(model) if is_mac(value) => {
                    model.clone_into(&mut nic.model);
                    nic.mac = Some(value.to_ascii_uppercase());
                }
                Some(key) => {
                    nic.options.insert(key.to_owned(), value.to_owned());
                }
            }
        }
        (!nic.model.is_empty()).then_some(nic)
    }
    /// The MAC address, in capitals.
    pub(super) fn mac(&self) -> Option<&str> {
        self.mac.as_deref()
    }
    pub(super) fn bridge(&self) -> Option<&str> {
        self.options.get("bridge").map(String::as_str)
    }
    pub(super) fn tag(&self) -> Option<u16> {
        self.options.get("tag")?.parse().ok()
    }
    /// Whether the machine's firewall, where it is on, looks at what passes.
    pub(super) fn is_filtered(&self) -> bool {
        self.options
            .get("firewall")
            .is_some_and(|value| value == "1")
    }
    /// The same NIC on another bridge or VLAN. The MAC stays: without one Proxmox VE makes a
    /// new one up (§7.2).
    pub(super) fn moved(&self, bridge: Option<&str>, tag: Option<u16>) -> Self {
        let mut nic = self.clone();
        if let Some(bridge) = bridge {
            nic.options.insert("bridge".to_owned(), bridge.to_owned());
        }
        if let Some(tag) = tag {
            nic.options.insert("tag".to_owned(), tag.to_string());
        }
        nic
    }
}

impl fmt::Display for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.model)?;
        if let Some(mac) = &self.mac {
            write!(f, "={mac}")?;
        }
        self.options
            .iter()
            .try_for_each(|(key, value)| write!(f, ",{key}={value}"))
    }
}

fn is_mac(text: &str) -> bool {
    text.len() == 17
        && text.bytes().enumerate().all(|(at, b)| {
            if at % 3 == 2 {
                b == b':'
            } else {
                b.is_ascii_hexdigit()
            }
        })
}

/// The same set of tags with more of them, sorted and single as Proxmox VE keeps them.
pub(super) fn with_tags(present: &[String], more: &[&str]) -> Vec<String> {
    let mut all = present.to_vec();
    all.extend(more.iter().map(|tag| (*tag).to_owned()));
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests;
