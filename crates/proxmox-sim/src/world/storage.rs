//! Storages and the volumes on them.

use super::{
    World,
    access::Caller,
    answers::{Outcome, Refusal, Reply},
    guest::{Drive, is_drive, is_unused},
    jobs::{DeleteVolume, Job},
    params::Params,
    setup::StorageSetup,
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// What an image takes of its storage when nothing else is known, in bytes.
const EMPTY_IMAGE: u64 = 532_480;

/// A storage.
#[derive(Clone, Debug)]
pub(super) struct Storage {
    pub(super) setup: StorageSetup,
    pub(super) online: bool,
    /// Someone holds its lock until then.
    pub(super) busy_until: Duration,
    /// What strangers took of it since the beginning, in bytes.
    pub(super) filler: u64,
}

/// Storage, node (empty where shared) and name.
pub(super) type VolumeKey = (String, String, String);

/// A volume.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) size: u64,
    /// What it takes of its storage.
    pub(super) used: u64,
    pub(super) ctime: u64,
    /// Its contents, where they were uploaded.
    pub(super) data: Option<Arc<[u8]>>,
}

impl Storage {
    pub(super) fn new(setup: StorageSetup) -> Self {
        Self {
            setup,
            online: true,
            busy_until: Duration::ZERO,
            filler: 0,
        }
    }

    pub(super) fn has_node(&self, node: &str) -> bool {
        self.setup.nodes.is_empty() || self.setup.nodes.iter().any(|it| it == node)
    }

    pub(super) fn holds(&self, content: &str) -> bool {
        self.setup.content.iter().any(|it| it == content)
    }

    /// Whether its volumes are files.
    pub(super) fn has_files(&self) -> bool {
        matches!(
            self.setup.kind.as_str(),
            "dir" | "nfs" | "cifs" | "cephfs" | "btrfs"
        )
    }

    pub(super) fn path(&self) -> String {
        if self.setup.path.is_empty() {
            format!("/srv/{}", self.setup.name)
        } else {
            self.setup.path.clone()
        }
    }
}

/// The guest that owns an image by its name.
pub(super) fn owner(name: &str) -> Option<u32> {
    let last = name.rsplit('/').next()?;
    let rest = ["vm-", "base-", "subvol-"]
        .iter()
        .find_map(|start| last.strip_prefix(start))?;
    rest.split('-').next()?.parse().ok()
}

impl World {
    pub(super) fn volume_key(&self, volid: &str, node: &str) -> Option<VolumeKey> {
        let (storage, name) = volid.split_once(':')?;
        let shared = self.storages.get(storage).is_some_and(|it| it.setup.shared);
        let node = if shared { "" } else { node };
        Some((storage.to_owned(), node.to_owned(), name.to_owned()))
    }

    pub(super) fn volume(&self, volid: &str, node: &str) -> Option<&Volume> {
        self.volumes.get(&self.volume_key(volid, node)?)
    }

    pub(super) fn put_volume(&mut self, volid: &str, node: &str, size: u64, ctime: Option<u64>) {
        let Some(key) = self.volume_key(volid, node) else {
            return;
        };
        let iso = volid.contains(":iso/");
        let ctime = ctime.unwrap_or_else(|| self.time_of_day(node));
        self.volumes.insert(
            key,
            Volume {
                size,
                used: if iso { size } else { EMPTY_IMAGE.min(size) },
                ctime,
                data: None,
            },
        );
    }

    pub(super) fn drop_volume(&mut self, volid: &str, node: &str) -> Option<Volume> {
        let key = self.volume_key(volid, node)?;
        self.volumes.remove(&key)
    }

    /// A storage that is there and switched on for a node.
    pub(super) fn storage_for(&self, name: &str, node: &str) -> Result<&Storage, String> {
        let storage = self
            .storages
            .get(name)
            .ok_or_else(|| format!("storage '{name}' does not exist"))?;
        if !storage.setup.enabled {
            return Err(format!("storage '{name}' is disabled"));
        }
        if !storage.has_node(node) {
            return Err(format!(
                "storage '{name}' is not available on node '{node}'"
            ));
        }
        Ok(storage)
    }

    /// As [`Self::storage_for`], and on line.
    pub(super) fn online_storage(&self, name: &str, node: &str) -> Result<&Storage, String> {
        let storage = self.storage_for(name, node)?;
        if storage.online {
            Ok(storage)
        } else {
            Err(format!("storage '{name}' is not online"))
        }
    }

    /// What of a storage is used and free on a node, in bytes.
    pub(super) fn space(&self, storage: &Storage, node: &str) -> (u64, u64) {
        let node = if storage.setup.shared { "" } else { node };
        let name = &storage.setup.name;
        let volumes: u64 = self
            .volumes
            .range((name.clone(), node.to_owned(), String::new())..)
            .take_while(|((its, on, _), _)| its == name && on == node)
            .map(|(_, volume)| volume.used)
            .sum();
        let used = (storage.setup.used + storage.filler + volumes).min(storage.setup.total);
        (used, storage.setup.total - used)
    }

    /// A free name for a disk of a machine.
    pub(super) fn free_disk_name(
        &self,
        storage: &str,
        node: &str,
        vmid: u32,
        suffix: &str,
    ) -> String {
        let in_directory = self.storages.get(storage).is_some_and(Storage::has_files);
        let prefix = if in_directory {
            format!("{vmid}/")
        } else {
            String::new()
        };
        let suffix = if in_directory { suffix } else { "" };
        let taken = |index: u32| {
            let stems = ["vm", "base"];
            self.volumes.keys().any(|(its, on, name)| {
                let here =
                    its == storage && (on == node || on.is_empty()) && owner(name) == Some(vmid);
                here && stems.iter().any(|stem| {
                    let last = name.rsplit('/').next().unwrap_or_default();
                    let plain = last.split('.').next().unwrap_or_default();
                    plain == format!("{stem}-{vmid}-disk-{index}")
                })
            })
        };
        let index = (0..10_000).find(|&index| !taken(index)).unwrap_or(0);
        format!("{storage}:{prefix}vm-{vmid}-disk-{index}{suffix}")
    }

    /// The volumes of a guest on all storages that its node sees.
    pub(super) fn volumes_of(&self, vmid: u32, node: &str) -> Vec<String> {
        self.volumes
            .keys()
            .filter(|(_, on, name)| owner(name) == Some(vmid) && (on == node || on.is_empty()))
            .map(|(storage, _, name)| format!("{storage}:{name}"))
            .collect()
    }

    /// Whether linked clones stand on a base volume, as far as names tell.
    pub(super) fn has_linked_clones(&self, volid: &str) -> bool {
        let Some((storage, name)) = volid.split_once(':') else {
            return false;
        };
        let below = format!("{name}/");
        self.volumes
            .keys()
            .any(|(its, _, other)| its == storage && other.starts_with(&below))
    }

    /// The volumes that a guest's configuration names, with their keys.
    pub(super) fn disks_of(&self, vmid: u32) -> Vec<(String, Drive)> {
        let Some(guest) = self.guests.get(&vmid) else {
            return Vec::new();
        };
        guest
            .config
            .iter()
            .filter(|(key, _)| is_drive(key) || is_unused(key))
            .map(|(key, value)| (key.clone(), Drive::parse(value)))
            .collect()
    }

    fn storage_row(&self, storage: &Storage, node: &str) -> Value {
        let here = storage.setup.enabled && storage.has_node(node);
        let active = here && storage.online;
        let (used, avail) = self.space(storage, node);
        let total = storage.setup.total;
        let number = |bytes: u64| if active { bytes } else { 0 };
        json!({
            "storage": storage.setup.name,
            "type": storage.setup.kind,
            "content": storage.setup.content.join(","),
            "shared": u8::from(storage.setup.shared),
            "enabled": u8::from(here),
            "active": u8::from(active),
            "total": number(total),
            "used": number(used),
            "avail": number(avail),
        })
    }

    pub(super) fn get_storages(&self, caller: &Caller, params: &Params) -> Reply {
        let node = params.text("node").unwrap_or_default();
        let rows: Vec<Value> = self
            .storages
            .values()
            .filter(|storage| {
                let path = format!("/storage/{}", storage.setup.name);
                let got = self.access.privileges(&caller.id, &path, self);
                got.contains_key("Datastore.Audit") || got.contains_key("Datastore.AllocateSpace")
            })
            .filter(|storage| {
                params
                    .text("storage")
                    .is_none_or(|name| storage.setup.name == name)
            })
            .filter(|storage| {
                !params.flag("enabled") || (storage.setup.enabled && storage.has_node(node))
            })
            .filter(|storage| {
                params.text("content").is_none_or(|wanted| {
                    super::schema::split_list(wanted).any(|it| storage.holds(it))
                })
            })
            .map(|storage| {
                let mut row = self.storage_row(storage, node);
                if let (Some(used), Some(total @ 1..)) =
                    (row["used"].as_u64(), row["total"].as_u64())
                {
                    row["used_fraction"] = json!(used as f64 / total as f64);
                }
                row
            })
            .collect();
        Value::Array(rows).into()
    }

    pub(super) fn get_storage_status(&self, params: &Params) -> Outcome {
        let storage = params
            .text("storage")
            .and_then(|name| self.storages.get(name))
            .ok_or_else(|| Refusal::parameter("storage", "No such storage."))?;
        let mut row = self.storage_row(storage, params.text("node").unwrap_or_default());
        if let Some(fields) = row.as_object_mut() {
            fields.remove("storage");
        }
        Ok(row.into())
    }

    pub(super) fn get_content(&self, caller: &Caller, params: &Params) -> Outcome {
        let name = params.text("storage").unwrap_or_default();
        let node = params.text("node").unwrap_or_default();
        let storage = self.online_storage(name, node).map_err(Refusal::died)?;
        let on = if storage.setup.shared { "" } else { node };
        let vmid: Option<u32> = params.number("vmid");
        let all = self.access.has(
            caller,
            &format!("/storage/{name}"),
            "Datastore.Allocate",
            self,
        );
        let rows: Vec<Value> = self
            .volumes
            .iter()
            .filter(|((its, its_node, _), _)| its == name && its_node == on)
            .filter_map(|((_, _, volume_name), volume)| {
                Self::content_row(storage, volume_name, volume)
            })
            .filter(|row| {
                params
                    .text("content")
                    .is_none_or(|wanted| row["content"] == wanted)
                    && vmid.is_none_or(|wanted| row["vmid"] == wanted)
            })
            .filter(|row| {
                let Some(owner) = row["vmid"].as_u64() else {
                    return true;
                };
                all || self
                    .access
                    .has(caller, &format!("/vms/{owner}"), "VM.Config.Disk", self)
            })
            .collect();
        Ok(Value::Array(rows).into())
    }

    fn content_row(storage: &Storage, name: &str, volume: &Volume) -> Option<Value> {
        let volid = format!("{}:{name}", storage.setup.name);
        if name.starts_with("iso/") {
            return storage.holds("iso").then(|| {
                json!({"volid": volid, "content": "iso", "format": "iso", "size": volume.size, "ctime": volume.ctime})
            });
        }
        let owner = owner(name)?;
        storage.holds("images").then(|| {
            let mut row = json!({
                "volid": volid, "content": "images", "format": format_of(name), "size": volume.size,
                "vmid": owner, "ctime": volume.ctime,
            });
            if storage.has_files() {
                row["used"] = json!(volume.used);
                row["parent"] = match name.split('/').collect::<Vec<_>>().as_slice() {
                    [id, base, _, _] => json!(format!("../{id}/{base}")),
                    _ => Value::Null,
                };
            }
            row
        })
    }

    /// The volume that a path names: whole, or without its storage.
    fn named_volume(params: &Params) -> (String, String) {
        let storage = params.text("storage").unwrap_or_default();
        let volume = params.text("volume").unwrap_or_default();
        match volume.split_once(':') {
            Some((its, _)) => (its.to_owned(), volume.to_owned()),
            None => (storage.to_owned(), format!("{storage}:{volume}")),
        }
    }

    /// Whether a caller may read a volume.
    pub(super) fn check_volume_access(&self, caller: &Caller, volid: &str) -> Result<(), Refusal> {
        let storage = volid.split(':').next().unwrap_or_default();
        let path = format!("/storage/{storage}");
        let got = self.access.privileges(&caller.id, &path, self);
        let may = [
            "Datastore.Allocate",
            "Datastore.AllocateSpace",
            "Datastore.Audit",
        ]
        .iter()
        .any(|name| got.contains_key(*name));
        if may {
            return Ok(());
        }
        self.access.need_any(
            caller,
            &path,
            &["Datastore.AllocateSpace", "Datastore.Audit"],
            self,
        )
    }

    pub(super) fn get_volume(&self, caller: &Caller, params: &Params) -> Outcome {
        let node = params.text("node").unwrap_or_default();
        let (storage, volid) = Self::named_volume(params);
        self.check_volume_access(caller, &volid)?;
        let held = self.online_storage(&storage, node).map_err(Refusal::died)?;
        let volume = self
            .volume(&volid, node)
            .ok_or_else(|| Refusal::died(format!("volume_size_info on '{volid}' failed")))?;
        let name = volid.split_once(':').map_or("", |it| it.1);
        let (path, format) = if name.starts_with("iso/") {
            (format!("{}/template/{name}", held.path()), "raw")
        } else {
            (format!("{}/images/{name}", held.path()), format_of(name))
        };
        let blocks = volume.used.div_ceil(4096) * 4096;
        Ok(json!({"path": path, "size": volume.size, "used": blocks, "format": format}).into())
    }

    pub(super) fn delete_volume(&mut self, caller: &Caller, params: &Params) -> Outcome {
        let node = params.text("node").unwrap_or_default().to_owned();
        let (storage, volid) = Self::named_volume(params);
        self.storage_for(&storage, &node).map_err(Refusal::died)?;
        let path = format!("/storage/{storage}");
        self.access
            .need(caller, &path, &["Datastore.Allocate"], self)?;
        let id = match owner(volid.split_once(':').map_or("", |it| it.1)) {
            Some(owner) => format!("{owner}@{storage}"),
            None => storage,
        };
        let job = Job::DeleteVolume(DeleteVolume::new(node.clone(), volid));
        let upid = self.begin_task(&node, "imgdel", &id, caller, job);
        let Some(delay) = params.number::<u32>("delay") else {
            return Ok(json!(upid).into());
        };
        let (ended, after) = self.foresee_end(&upid, f64::from(delay));
        let data = match ended.as_deref() {
            Some("OK") => Value::Null,
            Some(error) => return Err(Refusal::died(error).after(after)),
            None => json!(upid),
        };
        Ok(Reply {
            after: Some(after),
            ..Reply::from(data)
        })
    }
}

/// The format of an image by its name.
pub(super) fn format_of(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("qcow2") => "qcow2",
        Some("vmdk") => "vmdk",
        _ => "raw",
    }
}
