//! Resizing disks and removing volumes.

use super::{
    World,
    access::Caller,
    answers::{Outcome, Refusal},
    guest::{Drive, parse_size, print_size},
    jobs::{Job, ended_by},
    params::Params,
    tasks::{Next, TaskId, Wake},
};
use serde_json::json;

/// A disk that grows.
#[derive(Clone, Debug)]
pub(super) struct ResizeDisk {
    caller: Caller,
    node: String,
    vmid: u32,
    disk: String,
    size: String,
    digest: Option<String>,
    step: u8,
    grown: Option<u64>,
}

impl World {
    /// `PUT /nodes/{node}/qemu/{vmid}/resize`: everything is checked inside the task.
    pub(super) fn resize_disk(&mut self, caller: &Caller, params: &Params) -> Outcome {
        let node = params.text("node").unwrap_or_default().to_owned();
        Self::refuse_skiplock(caller, params)?;
        let job = ResizeDisk {
            caller: caller.clone(),
            node: node.clone(),
            vmid: params.number("vmid").unwrap_or_default(),
            disk: params.text("disk").unwrap_or_default().to_owned(),
            size: params.text("size").unwrap_or_default().to_owned(),
            digest: params.text("digest").map(str::to_owned),
            step: 0,
            grown: None,
        };
        let id = job.vmid.to_string();
        let upid = self.begin_task(&node, "resize", &id, caller, Job::Resize(job));
        Ok(json!(upid).into())
    }
}

impl ResizeDisk {
    pub(super) fn step(&mut self, world: &mut World, id: TaskId, wake: Wake) -> Next {
        if let Some(next) = ended_by(&wake) {
            return next;
        }
        let pace = world.pace;
        self.step += 1;
        match self.step {
            1 => Next::After(pace.of(pace.t.resize / 4.0)),
            2 => Next::Have(World::machine_lock(&self.node, self.vmid), pace.t.lock_wait),
            3 => match self.check(world) {
                Err(text) => Next::Failed(text),
                Ok(None) => Next::Done,
                Ok(Some(size)) => {
                    self.grown = Some(size);
                    Next::After(pace.of(pace.t.resize / 2.0))
                }
            },
            4 => {
                self.grow(world, id);
                Next::After(pace.of(pace.t.resize / 4.0))
            }
            _ => self.record(world),
        }
    }

    /// The new size in bytes; `None` when the disk has it already.
    fn check(&self, world: &World) -> Result<Option<u64>, String> {
        let guest = world.machine(&self.node, self.vmid)?;
        if self
            .digest
            .as_ref()
            .is_some_and(|digest| *digest != guest.digest())
        {
            return Err("checksum mismatch (file change by other user?)".to_owned());
        }
        if let Some(lock) = guest.lock() {
            return Err(format!("VM is locked ({lock})"));
        }
        let drive = guest
            .config
            .get(&self.disk)
            .map(|value| Drive::parse(value))
            .ok_or_else(|| format!("disk '{}' does not exist", self.disk))?;
        if drive.is_cdrom() {
            return Err("you can't resize a cdrom".to_owned());
        }
        let storage = drive.volume().map_or("", |(storage, _)| storage);
        world
            .access
            .need(
                &self.caller,
                &format!("/storage/{storage}"),
                &["Datastore.AllocateSpace"],
                world,
            )
            .map_err(|refusal| refusal.as_task_error())?;
        world.online_storage(storage, &self.node)?;
        let volume = world
            .volume(&drive.file, &self.node)
            .ok_or_else(|| format!("volume '{}' does not exist", drive.file))?;
        let wanted = match self.size.strip_prefix('+') {
            Some(more) => parse_size(more).and_then(|more| volume.size.checked_add(more)),
            None => parse_size(&self.size),
        }
        .unwrap_or(volume.size);
        match wanted.cmp(&volume.size) {
            std::cmp::Ordering::Less => Err("shrinking disks is not supported".to_owned()),
            std::cmp::Ordering::Equal => Ok(None),
            std::cmp::Ordering::Greater => Ok(Some(wanted)),
        }
    }

    fn volid(&self, world: &World) -> Option<String> {
        let guest = world.guests.get(&self.vmid)?;
        Some(Drive::parse(guest.config.get(&self.disk)?).file)
    }

    fn grow(&self, world: &mut World, id: TaskId) {
        let key = self
            .volid(world)
            .and_then(|volid| world.volume_key(&volid, &self.node));
        if let (Some(size), Some(volume)) =
            (self.grown, key.and_then(|key| world.volumes.get_mut(&key)))
        {
            volume.size = size;
        }
        let runs = world
            .guests
            .get(&self.vmid)
            .is_some_and(|guest| guest.running.is_some());
        if !runs {
            world.log(id, "Image resized.");
        }
    }

    fn record(&self, world: &mut World) -> Next {
        if !world.has_quorum() {
            return Next::Failed(world.readonly_text(&self.node, self.vmid));
        }
        if let (Some(size), Some(guest)) = (self.grown, world.guests.get_mut(&self.vmid))
            && let Some(value) = guest.config.get_mut(&self.disk)
        {
            let mut drive = Drive::parse(value);
            drive.options.insert("size".to_owned(), print_size(size));
            *value = drive.print();
        }
        Next::Done
    }
}

/// A volume on its way out.
#[derive(Clone, Debug)]
pub(super) struct DeleteVolume {
    node: String,
    volid: String,
    step: u8,
}

impl DeleteVolume {
    pub(super) const fn new(node: String, volid: String) -> Self {
        Self {
            node,
            volid,
            step: 0,
        }
    }

    pub(super) fn step(&mut self, world: &mut World, id: TaskId, wake: Wake) -> Next {
        if let Some(next) = ended_by(&wake) {
            return next;
        }
        let pace = world.pace;
        self.step += 1;
        let (storage, name) = self.volid.split_once(':').unwrap_or_default();
        match self.step {
            1 => Next::After(pace.of(pace.t.delete_volume / 2.0)),
            2 => Next::Have(world.storage_lock(storage), pace.t.lock_wait),
            3 => {
                if let Err(text) = world.online_storage(storage, &self.node) {
                    return Next::Failed(text);
                }
                if world.has_linked_clones(&self.volid) {
                    return Next::Failed(format!(
                        "base volume '{name}' is still in use by linked clones"
                    ));
                }
                let files = world
                    .storages
                    .get(storage)
                    .filter(|held| held.has_files())
                    .map(super::storage::Storage::path);
                let removed = world.drop_volume(&self.volid, &self.node).is_some();
                match (removed, files) {
                    (false, Some(path)) => {
                        let path = if name.starts_with("iso/") {
                            format!("{path}/template/{name}")
                        } else {
                            format!("{path}/images/{name}")
                        };
                        world.log(id, format!("disk image '{path}' does not exist"));
                    }
                    (false, None) => {
                        return Next::Failed(format!(
                            "lvremove '{storage}/{name}' error:   Failed to find logical volume \"{storage}/{name}\""
                        ));
                    }
                    (true, _) => {}
                }
                world.log(id, format!("Removed volume '{}'", self.volid));
                Next::After(pace.of(pace.t.delete_volume / 2.0))
            }
            _ => Next::Done,
        }
    }
}

/// What a call says that wants to pass over locks: only root may, and no token is root.
impl World {
    pub(super) fn refuse_skiplock(caller: &Caller, params: &Params) -> Result<(), Refusal> {
        if params.flag("skiplock") && caller.id != "root@pam" {
            return Err(Refusal::parameter(
                "skiplock",
                "Only root may use this option.",
            ));
        }
        Ok(())
    }
}
