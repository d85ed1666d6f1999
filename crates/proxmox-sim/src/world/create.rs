//! Creating a machine from nothing, and making a template of one.

use super::{
    World,
    access::Caller,
    answers::{Outcome, Refusal},
    guest::{Drive, is_drive, parse_size, print_size},
    jobs::{Job, ended_by},
    params::Params,
    tasks::{Next, TaskId, Wake},
};
use serde_json::json;
use std::collections::BTreeMap;

/// A machine that is created.
#[derive(Clone, Debug)]
pub(super) struct CreateMachine {
    node: String,
    vmid: u32,
    pool: Option<String>,
    start: bool,
    config: BTreeMap<String, String>,
    step: u8,
    caller: Caller,
}

impl World {
    /// `POST /nodes/{node}/qemu`.
    pub(super) fn post_create(&mut self, caller: &Caller, params: &Params) -> Outcome {
        let node = params.text("node").unwrap_or_default().to_owned();
        let vmid: u32 = params.number("vmid").unwrap_or_default();
        if !self.has_quorum() {
            return Err(Refusal::died("cluster not ready - no quorum?"));
        }
        if let Some(taken) = self.guests.get(&vmid) {
            return Err(Refusal::died(format!(
                "unable to create VM {vmid} - VM {vmid} already exists on node '{}'",
                taken.node
            )));
        }
        if let Some(pool) = params.text("pool")
            && !self.pools.contains_key(pool)
        {
            return Err(Refusal::forbidden(&format!("pool '{pool}' does not exist")));
        }
        let not_config = [
            "node",
            "vmid",
            "pool",
            "start",
            "storage",
            "unique",
            "force",
            "bwlimit",
            "archive",
            "live-restore",
            "ha-managed",
            "import-working-storage",
        ];
        let mut config = BTreeMap::new();
        for (key, value) in &params.0 {
            let Some(value) = value.as_str() else {
                continue;
            };
            if not_config.contains(&key.as_str()) {
                continue;
            }
            let value = self.normalised(key, value);
            config.insert(key.clone(), value);
        }
        let job = Job::Create(Box::new(CreateMachine {
            node: node.clone(),
            vmid,
            pool: params.text("pool").map(str::to_owned),
            start: params.flag("start"),
            config,
            step: 0,
            caller: caller.clone(),
        }));
        let upid = self.begin_task(&node, "qmcreate", &vmid.to_string(), caller, job);
        Ok(json!(upid).into())
    }

    /// Whether the caller may create this machine: on its number, or in its pool.
    pub(super) fn may_create(&self, caller: &Caller, params: &Params) -> Result<(), Refusal> {
        let vmid = params.text("vmid").unwrap_or("-");
        let on_number = self
            .access
            .has(caller, &format!("/vms/{vmid}"), "VM.Allocate", self);
        let in_pool = params.text("pool").is_some_and(|pool| {
            self.access
                .has(caller, &format!("/pool/{pool}"), "VM.Allocate", self)
        });
        if on_number || in_pool {
            Ok(())
        } else {
            Err(Refusal::forbidden(""))
        }
    }

    /// `POST /nodes/{node}/qemu/{vmid}/template`.
    pub(super) fn post_template(&mut self, caller: &Caller, params: &Params) -> Outcome {
        let node = params.text("node").unwrap_or_default().to_owned();
        let vmid: u32 = params.number("vmid").unwrap_or_default();
        let guest = self.machine_or_missing(&node, vmid)?;
        if let Some(lock) = guest.lock() {
            return Err(Refusal::died(format!("VM is locked ({lock})")));
        }
        if guest.is_template() {
            return Err(Refusal::died("you can't convert a template to a template"));
        }
        if guest.running.is_some() {
            return Err(Refusal::died("you can't convert a running VM to template"));
        }
        let job = Job::Template(MakeTemplate {
            node: node.clone(),
            vmid,
            step: 0,
        });
        let upid = self.begin_task(&node, "qmtemplate", &vmid.to_string(), caller, job);
        Ok(json!(upid).into())
    }
}

impl CreateMachine {
    pub(super) fn step(&mut self, world: &mut World, _: TaskId, wake: Wake) -> Next {
        if let Some(next) = ended_by(&wake) {
            return next;
        }
        let pace = world.pace;
        self.step += 1;
        match self.step {
            1 => Next::After(pace.of(0.05)),
            2 => Next::Have(
                World::machine_lock(&self.node, self.vmid),
                pace.t.clone_lock_wait,
            ),
            3 => {
                if world.guests.contains_key(&self.vmid) {
                    return Next::Failed(format!(
                        "unable to create VM {} - VM {} already exists on node '{}'",
                        self.vmid, self.vmid, self.node
                    ));
                }
                let mut born = world.born(&self.node);
                born.config = [("lock".to_owned(), "create".to_owned())].into();
                world.guests.insert(self.vmid, born);
                Next::After(pace.of(0.1))
            }
            4 => self.fill(world),
            _ => {
                if self.start {
                    let job = super::power::start_job(&self.node, self.vmid);
                    let id = self.vmid.to_string();
                    world.begin_task(&self.node, "qmstart", &id, &self.caller, job);
                }
                Next::Done
            }
        }
    }

    fn fill(&mut self, world: &mut World) -> Next {
        let mut config = self.config.clone();
        for (key, value) in &self.config {
            if !is_drive(key) {
                continue;
            }
            match world.new_drive(&self.node, self.vmid, value) {
                Ok(value) => {
                    config.insert(key.clone(), value);
                }
                Err(text) => {
                    world.guests.remove(&self.vmid);
                    return Next::Failed(format!("unable to create VM {} - {text}", self.vmid));
                }
            }
        }
        let time = world.time_of_day(&self.node);
        for (key, value) in [
            ("meta", format!("creation-qemu=10.0.13,ctime={time}")),
            ("smbios1", format!("uuid={}", world.draw_uuid())),
            ("vmgenid", world.draw_uuid()),
            ("boot", " ".to_owned()),
        ] {
            config.entry(key.to_owned()).or_insert(value);
        }
        if let Some(guest) = world.guests.get_mut(&self.vmid) {
            guest.config = config;
        }
        if let Some(members) = self
            .pool
            .as_ref()
            .and_then(|pool| world.pools.get_mut(pool))
        {
            members.insert(self.vmid);
        }
        Next::After(world.pace.of(0.02))
    }
}

impl World {
    /// Makes a drive out of what a caller wrote: `store:4` becomes a new volume, a volume gets
    /// its size.
    pub(super) fn new_drive(
        &mut self,
        node: &str,
        vmid: u32,
        text: &str,
    ) -> Result<String, String> {
        let mut drive = Drive::parse(text);
        let Some((storage, name)) = drive.volume() else {
            return Ok(text.to_owned());
        };
        let (storage, name) = (storage.to_owned(), name.to_owned());
        self.online_storage(&storage, node)?;
        let held = &self.storages[&storage];
        let files = held.has_files();
        let format = drive
            .options
            .get("format")
            .cloned()
            .unwrap_or_else(|| "raw".to_owned());
        if name == "cloudinit" {
            let suffix = drive.options.remove("format").unwrap_or("qcow2".to_owned());
            drive.file = if files {
                format!("{storage}:{vmid}/vm-{vmid}-cloudinit.{suffix}")
            } else {
                format!("{storage}:vm-{vmid}-cloudinit")
            };
            self.put_volume(&drive.file.clone(), node, 4 << 20, None);
            drive.options.insert("media".to_owned(), "cdrom".to_owned());
            return Ok(drive.print());
        }
        if let Ok(gib) = name.parse::<f64>() {
            let size = parse_size(&format!("{gib}G")).unwrap_or(1 << 30);
            let volid = self.free_disk_name(&storage, node, vmid, &format!(".{format}"));
            self.put_volume(&volid, node, size, None);
            drive.file = volid;
            drive.options.remove("format");
            drive.options.insert("size".to_owned(), print_size(size));
            return Ok(drive.print());
        }
        let size = self
            .volume(&drive.file, node)
            .map(|volume| volume.size)
            .ok_or_else(|| format!("volume '{}' does not exist", drive.file))?;
        drive.options.remove("format");
        drive.options.insert("size".to_owned(), print_size(size));
        Ok(drive.print())
    }
}

/// A machine that becomes a template.
#[derive(Clone, Debug)]
pub(super) struct MakeTemplate {
    node: String,
    vmid: u32,
    step: u8,
}

impl MakeTemplate {
    pub(super) fn step(&mut self, world: &mut World, _: TaskId, wake: Wake) -> Next {
        if let Some(next) = ended_by(&wake) {
            return next;
        }
        let pace = world.pace;
        self.step += 1;
        match self.step {
            1 => Next::After(pace.of(0.02)),
            2 => Next::Have(World::machine_lock(&self.node, self.vmid), pace.t.lock_wait),
            3 => {
                let disks = world.disks_of(self.vmid);
                for (key, mut drive) in disks {
                    if !drive.is_disk() || !is_drive(&key) {
                        continue;
                    }
                    let base = drive
                        .file
                        .replace("/vm-", "/base-")
                        .replace(":vm-", ":base-");
                    let moved = world.drop_volume(&drive.file, &self.node);
                    if let (Some(volume), Some(at)) = (moved, world.volume_key(&base, &self.node)) {
                        world.volumes.insert(at, volume);
                    }
                    drive.file = base;
                    if let Some(guest) = world.guests.get_mut(&self.vmid) {
                        guest.config.insert(key, drive.print());
                    }
                }
                if let Some(guest) = world.guests.get_mut(&self.vmid) {
                    guest.config.insert("template".to_owned(), "1".to_owned());
                }
                Next::After(pace.of(0.1))
            }
            _ => Next::Done,
        }
    }
}
