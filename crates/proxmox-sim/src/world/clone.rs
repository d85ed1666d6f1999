//! Cloning: checks before the task, and the task's timeline.

mod disk;

use super::{
    World,
    access::Caller,
    answers::{Outcome, Refusal},
    guest::{Drive, Net, is_drive, is_net, is_unused},
    jobs::{Job, ended_by},
    locks::Resource,
    params::Params,
    tasks::{Next, TaskId, Wake},
};
use serde_json::json;
use std::collections::BTreeMap;

/// What the configuration says while the first disk is copied.
const TEMPORARY: &str = " qmclone temporary file";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin,
    LockSource,
    LockTarget,
    Reserve,
    /// Make the volume of the disk of this index.
    Allocate(usize),
    /// Copying it, which is done by the next turn.
    Copy(usize),
    Finish,
    Pool,
    Move,
    End,
}

/// A clone in the making.
#[derive(Clone, Debug)]
pub(super) struct CloneMachine {
    caller: Caller,
    node: String,
    source: u32,
    newid: u32,
    name: Option<String>,
    description: Option<String>,
    full: bool,
    storage: Option<String>,
    format: Option<String>,
    pool: Option<String>,
    target: Option<String>,
    /// KiB/s.
    bwlimit: Option<u64>,
    step: Step,
    /// The configuration to be, without its disks.
    config: BTreeMap<String, String>,
    /// The disks of the source, by key.
    disks: Vec<(String, Drive)>,
    /// The disks that were made, by key.
    made: Vec<(String, Drive)>,
    copy_seconds: f64,
}

impl World {
    /// `POST /nodes/{node}/qemu/{vmid}/clone`, after permissions and parameters.
    pub(super) fn clone_machine(&mut self, caller: &Caller, params: &Params) -> Outcome {
        let node = params.text("node").unwrap_or_default().to_owned();
        let source: u32 = params.number("vmid").unwrap_or_default();
        let newid: u32 = params.number("newid").unwrap_or_default();
        let source_here = self
            .guests
            .get(&source)
            .filter(|guest| guest.node == node && !guest.container);
        let Some(guest) = source_here else {
            return Err(Refusal::died(format!(
                "unable to find configuration file for VM {source} on node '{node}'"
            )));
        };
        let full = match params.text("full") {
            Some(given) => given == "1",
            None => !guest.is_template(),
        };
        if let Some(pool) = params.text("pool")
            && !self.pools.contains_key(pool)
        {
            return Err(Refusal::forbidden(&format!("pool '{pool}' does not exist")));
        }
        let target = params.text("target").filter(|target| *target != node);
        if let Some(target) = params.text("target")
            && !self.nodes.contains_key(target)
        {
            return Err(Refusal::died(format!("no such cluster node '{target}'")));
        }
        if let Some(name) = params.text("storage") {
            let storage = self.storage_for(name, &node).map_err(Refusal::died)?;
            if !storage.holds("images") {
                return Err(Refusal::parameter(
                    "storage",
                    format!("storage '{name}' does not support vm images"),
                ));
            }
            if let Some(target) = target {
                let storage = self.storage_for(name, target).map_err(Refusal::died)?;
                if !storage.setup.shared {
                    return Err(Refusal::died(format!(
                        "can't clone to non-shared storage '{name}'"
                    )));
                }
            }
        }
        if !self.has_quorum() {
            return Err(Refusal::died("cluster not ready - no quorum?"));
        }
        if let Some(lock) = guest.lock() {
            return Err(Refusal::died(format!("VM is locked ({lock})")));
        }
        if let Some(name) = params.text("snapname") {
            return Err(Refusal::died(format!("snapshot '{name}' does not exist")));
        }
        if !full {
            for name in ["storage", "format"] {
                if params.text(name).is_some() {
                    return Err(Refusal::died(format!(
                        "parameter '{name}' not allowed for linked clones"
                    )));
                }
            }
            if !guest.is_template() {
                return Err(Refusal::died(
                    "Linked clone feature is not supported for drive",
                ));
            }
        }
        let job = CloneMachine {
            caller: caller.clone(),
            node: node.clone(),
            source,
            newid,
            name: params.text("name").map(str::to_owned),
            description: params.text("description").map(str::to_owned),
            full,
            storage: params.text("storage").map(str::to_owned),
            format: params.text("format").map(str::to_owned),
            pool: params.text("pool").map(str::to_owned),
            target: target.map(str::to_owned),
            bwlimit: params.number("bwlimit").filter(|limit| *limit > 0),
            step: Step::Begin,
            config: BTreeMap::new(),
            disks: Vec::new(),
            made: Vec::new(),
            copy_seconds: 0.0,
        };
        job.check(self)?;
        let upid = self.begin_task(
            &node,
            "qmclone",
            &source.to_string(),
            caller,
            Job::Clone(Box::new(job)),
        );
        Ok(json!(upid).into())
    }
}

impl CloneMachine {
    /// The checks that are made before the task and again inside.
    fn check(&self, world: &World) -> Result<(), Refusal> {
        let Some(guest) = world.guests.get(&self.source) else {
            return Err(Refusal::died(format!(
                "unable to find configuration file for VM {} on node '{}'",
                self.source, self.node
            )));
        };
        if let Some(lock) = guest.lock() {
            return Err(Refusal::died(format!("VM is locked ({lock})")));
        }
        for (key, value) in &guest.config {
            if is_net(key)
                && let Some(path) = Net::parse(value).sdn_path()
            {
                world
                    .access
                    .need(&self.caller, &path, &["SDN.Use"], world)?;
            }
            if !is_drive(key) {
                continue;
            }
            let drive = Drive::parse(value);
            let Some((storage, _)) = drive.volume() else {
                continue;
            };
            let local = world
                .storages
                .get(storage)
                .is_some_and(|storage| !storage.setup.shared);
            if let Some(target) = &self.target
                && local
                && (drive.is_cdrom() || !self.full || self.storage.is_none())
            {
                return Err(Refusal::died(format!(
                    "can't clone VM to node '{target}' (VM uses local storage)"
                )));
            }
            if drive.is_cdrom() && !drive.is_cloudinit() {
                continue;
            }
            let to = self.storage.as_deref().unwrap_or(storage);
            world.access.need(
                &self.caller,
                &format!("/storage/{to}"),
                &["Datastore.AllocateSpace"],
                world,
            )?;
        }
        let taken = world
            .guests
            .get(&self.newid)
            .is_some_and(|guest| guest.node == self.node && !guest.container);
        if taken {
            return Err(Refusal::died(self.exists_text()));
        }
        Ok(())
    }

    fn exists_text(&self) -> String {
        format!(
            "unable to create VM {}: config file already exists",
            self.newid
        )
    }

    pub(super) fn step(&mut self, world: &mut World, id: TaskId, wake: Wake) -> Next {
        let copying = matches!(
            self.step,
            Step::Allocate(_) | Step::Copy(_) | Step::Finish | Step::Pool | Step::Move | Step::End
        );
        if copying {
            match wake {
                Wake::Go => {}
                Wake::TimedOut(text) => {
                    let text = match self.step {
                        Step::Move => format!(
                            "can't add VM {} to pool '{}': {text}",
                            self.newid,
                            self.pool.as_deref().unwrap_or_default()
                        ),
                        _ => text,
                    };
                    return self.undo(world, &text);
                }
                Wake::Interrupted => {
                    let text = self.interrupted_text(world);
                    return self.undo(world, &text);
                }
            }
        } else if let Some(next) = ended_by(&wake) {
            return next;
        }
        match self.step {
            Step::Begin => {
                self.step = Step::LockSource;
                Next::After(world.pace.of(world.pace.t.clone_begins))
            }
            Step::LockSource => {
                self.step = Step::LockTarget;
                let running = world
                    .guests
                    .get(&self.source)
                    .is_some_and(|guest| guest.running.is_some());
                Next::Have(
                    Resource::Machine {
                        node: self.node.clone(),
                        vmid: self.source,
                        shared: !running,
                    },
                    world.pace.t.clone_lock_wait,
                )
            }
            Step::LockTarget => {
                self.step = Step::Reserve;
                Next::Have(
                    World::machine_lock(&self.node, self.newid),
                    world.pace.t.clone_lock_wait,
                )
            }
            Step::Reserve => self.reserve(world, id),
            Step::Allocate(at) => self.allocate(world, id, at),
            Step::Copy(at) => self.copied(world, id, at),
            Step::Finish => {
                if !world.has_quorum() {
                    return self.undo(world, &world.readonly_text(&self.node, self.newid));
                }
                if let Some(guest) = world.guests.get_mut(&self.newid) {
                    guest.config = self.whole();
                    guest.copy_seconds = self.copy_seconds;
                }
                self.step = Step::Pool;
                Next::After(world.pace.of(world.pace.t.clone_ends))
            }
            Step::Pool => {
                self.step = Step::Move;
                if self.pool.is_some() {
                    return Next::Have(Resource::Users, world.pace.t.lock_wait);
                }
                Next::After(std::time::Duration::ZERO)
            }
            Step::Move => {
                if let Some(members) = self.pool.as_ref().and_then(|it| world.pools.get_mut(it)) {
                    members.insert(self.newid);
                }
                if let (Some(target), Some(guest)) =
                    (&self.target, world.guests.get_mut(&self.newid))
                {
                    guest.node.clone_from(target);
                }
                self.step = Step::End;
                Next::After(world.pace.of(world.pace.t.clone_ends))
            }
            Step::End => Next::Done,
        }
    }

    fn reserve(&mut self, world: &mut World, id: TaskId) -> Next {
        if let Err(refusal) = self.check(world) {
            return Next::Failed(refusal.as_task_error());
        }
        if !world.has_quorum() {
            return Next::Failed("cluster not ready - no quorum?".to_owned());
        }
        if world.guests.contains_key(&self.newid) {
            return Next::Failed(format!(
                "close (rename) atomic file '/etc/pve/nodes/{}/qemu-server/{}.conf' failed: File exists",
                self.node, self.newid
            ));
        }
        let Some(source) = world.guests.get(&self.source).cloned() else {
            return Next::Failed(format!(
                "unable to find configuration file for VM {} on node '{}'",
                self.source, self.node
            ));
        };
        let mut born = world.born(&self.node);
        born.config = [
            ("lock".to_owned(), "clone".to_owned()),
            ("description".to_owned(), TEMPORARY.to_owned()),
        ]
        .into();
        world.guests.insert(self.newid, born);
        world.log(
            id,
            format!(
                "creating a clone of VM {} with ID {}",
                self.source, self.newid
            ),
        );
        self.copy_seconds = source.copy_seconds;
        for (key, value) in &source.config {
            if is_unused(key) || matches!(key.as_str(), "template" | "lock" | "parent" | "snaptime")
            {
                continue;
            }
            let drive = Drive::parse(value);
            if is_drive(key) && (!drive.is_cdrom() || drive.is_cloudinit()) {
                self.disks.push((key.clone(), drive));
                continue;
            }
            let value = if is_net(key) {
                let mut net = Net::parse(value);
                net.mac = Some(world.draw_mac());
                net.print()
            } else if key == "smbios1" {
                let uuid = world.draw_uuid();
                new_uuid(value, &uuid)
            } else if key == "vmgenid" {
                world.draw_uuid()
            } else {
                value.clone()
            };
            self.config.insert(key.clone(), value);
        }
        if !source.config.contains_key("smbios1") {
            let uuid = world.draw_uuid();
            self.config
                .insert("smbios1".to_owned(), format!("uuid={uuid}"));
        }
        let name = self.name.clone().unwrap_or_else(|| {
            format!(
                "Copy-of-VM-{}",
                source.name_or(self.source).replace(' ', "-")
            )
        });
        self.config.insert("name".to_owned(), name);
        if let Some(text) = self.description.as_ref().filter(|text| !text.is_empty()) {
            self.config
                .insert("description".to_owned(), text.trim_end().to_owned());
        }
        self.next_disk(world, 0)
    }

    /// The configuration with the disks that were made so far.
    fn whole(&self) -> BTreeMap<String, String> {
        let mut config = self.config.clone();
        for (key, drive) in &self.made {
            config.insert(key.clone(), drive.print());
        }
        config
    }

    /// Takes back all that was done, and ends.
    fn undo(&mut self, world: &mut World, text: &str) -> Next {
        for (_, drive) in &self.made {
            world.drop_volume(&drive.file, &self.node);
        }
        world.guests.remove(&self.newid);
        Next::Failed(format!("clone failed: {text}"))
    }
}

fn new_uuid(smbios: &str, uuid: &str) -> String {
    let mut parts: Vec<String> = smbios
        .split(',')
        .filter(|part| !part.starts_with("uuid="))
        .map(str::to_owned)
        .collect();
    parts.insert(0, format!("uuid={uuid}"));
    parts.join(",")
}
