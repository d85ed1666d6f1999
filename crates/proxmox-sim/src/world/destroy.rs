//! Destroying a machine.

use super::{
    World,
    access::Caller,
    answers::{Outcome, Refusal},
    jobs::{Job, ended_by},
    params::Params,
    storage::owner,
    tasks::{Next, TaskId, Wake},
};
use serde_json::json;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin,
    Lock,
    Look,
    Check,
    /// The disks go when their storage's lock is there.
    Disks(usize),
    Replace,
    Remove,
}

/// A machine on its way out.
#[derive(Clone, Debug)]
pub(super) struct DestroyMachine {
    node: String,
    vmid: u32,
    purge: bool,
    unreferenced: bool,
    step: Step,
    volumes: Vec<String>,
}

impl World {
    /// What keeps a machine from being destroyed, before and inside the task.
    fn check_destroy(&self, node: &str, vmid: u32, purge: bool) -> Result<(), String> {
        let guest = self.machine(node, vmid)?;
        if guest.is_protected() {
            return Err(format!("can't remove VM {vmid} - protection mode enabled"));
        }
        if guest.ha && !purge {
            return Err(format!(
                "unable to remove VM {vmid} - used in HA resources and purge parameter not set."
            ));
        }
        if guest.running.is_some() {
            return Err(format!("VM {vmid} is running - destroy failed"));
        }
        Ok(())
    }

    /// `DELETE /nodes/{node}/qemu/{vmid}`.
    pub(super) fn destroy_machine(&mut self, caller: &Caller, params: &Params) -> Outcome {
        let node = params.text("node").unwrap_or_default().to_owned();
        let vmid: u32 = params.number("vmid").unwrap_or_default();
        Self::refuse_skiplock(caller, params)?;
        let purge = params.flag("purge");
        self.check_destroy(&node, vmid, purge)
            .map_err(Refusal::died)?;
        let job = DestroyMachine {
            node: node.clone(),
            vmid,
            purge,
            unreferenced: params.flag("destroy-unreferenced-disks"),
            step: Step::Begin,
            volumes: Vec::new(),
        };
        let upid = self.begin_task(
            &node,
            "qmdestroy",
            &vmid.to_string(),
            caller,
            Job::Destroy(job),
        );
        Ok(json!(upid).into())
    }
}

impl DestroyMachine {
    pub(super) fn step(&mut self, world: &mut World, id: TaskId, wake: Wake) -> Next {
        if let (Step::Disks(at), Wake::TimedOut(text)) = (self.step, &wake) {
            let volid = &self.volumes[at];
            let line = format!("Could not remove disk '{volid}', check manually: {text}");
            world.warn(id, &line);
            return self.next_disk(world, at + 1);
        }
        if let Some(next) = ended_by(&wake) {
            return next;
        }
        let pace = world.pace;
        match self.step {
            Step::Begin => {
                self.step = Step::Lock;
                Next::After(pace.of(pace.t.destroy / 4.0))
            }
            Step::Lock => {
                self.step = Step::Look;
                Next::Have(World::machine_lock(&self.node, self.vmid), pace.t.lock_wait)
            }
            Step::Look => {
                self.step = Step::Check;
                Next::After(pace.of(pace.t.destroy * 0.75))
            }
            Step::Check => {
                if let Err(text) = world.check_destroy(&self.node, self.vmid, self.purge) {
                    return Next::Failed(text);
                }
                let lock = world.guests[&self.vmid].lock();
                if let Some(lock) = lock.filter(|lock| *lock != "suspended") {
                    return Next::Failed(format!("VM is locked ({lock})"));
                }
                if let Err(text) = self.collect(world) {
                    return Next::Failed(text);
                }
                self.next_disk(world, 0)
            }
            Step::Disks(at) => {
                let volid = self.volumes[at].clone();
                let storage = volid.split(':').next().unwrap_or_default();
                match world.online_storage(storage, &self.node) {
                    Ok(_) => {
                        world.drop_volume(&volid, &self.node);
                    }
                    Err(text) => {
                        let line =
                            format!("Could not remove disk '{volid}', check manually: {text}");
                        world.warn(id, &line);
                    }
                }
                self.next_disk(world, at + 1)
            }
            Step::Replace => {
                if !world.has_quorum() {
                    return Next::Failed(world.readonly_text(&self.node, self.vmid));
                }
                if let Some(guest) = world.guests.get_mut(&self.vmid) {
                    guest.config = [("lock".to_owned(), "destroyed".to_owned())].into();
                    guest.pending.clear();
                    guest.pending_delete.clear();
                }
                if self.purge {
                    world.log(
                        id,
                        format!("purging VM {} from related configurations..", self.vmid),
                    );
                }
                self.step = Step::Remove;
                Next::After(pace.of(pace.t.destroy))
            }
            Step::Remove => {
                for members in world.pools.values_mut() {
                    members.remove(&self.vmid);
                }
                world.guests.remove(&self.vmid);
                Next::Done
            }
        }
    }

    fn next_disk(&mut self, world: &World, at: usize) -> Next {
        let Some(volid) = self.volumes.get(at) else {
            self.step = Step::Replace;
            return Next::After(world.pace.of(world.pace.t.destroy / 12.0));
        };
        self.step = Step::Disks(at);
        let storage = volid.split(':').next().unwrap_or_default();
        Next::Have(world.storage_lock(storage), world.pace.t.lock_wait)
    }

    /// Finds what there is to remove: the machine's own disks, and on request whatever
    /// bears its number anywhere.
    fn collect(&mut self, world: &World) -> Result<(), String> {
        for (_, drive) in world.disks_of(self.vmid) {
            let Some((_, name)) = drive.volume() else {
                continue;
            };
            if owner(name) != Some(self.vmid) || self.volumes.contains(&drive.file) {
                continue;
            }
            if world.has_linked_clones(&drive.file) {
                return Err(format!(
                    "base volume '{}' is still in use by linked cloned",
                    drive.file
                ));
            }
            self.volumes.push(drive.file);
        }
        if self.unreferenced {
            for volid in world.volumes_of(self.vmid, &self.node) {
                if !self.volumes.contains(&volid) {
                    self.volumes.push(volid);
                }
            }
        }
        Ok(())
    }
}
