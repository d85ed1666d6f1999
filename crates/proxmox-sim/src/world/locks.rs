//! Lock files: what a task holds while it works, apart from the `lock` in a configuration.

use super::{World, tasks::TaskId};
use std::{collections::BTreeSet, time::Duration};

/// Something that one can hold, or must wait for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Resource {
    /// The lock file of a machine on a node.
    Machine {
        node: String,
        vmid: u32,
        /// Others may share it.
        shared: bool,
    },
    /// The lock of a storage, held only for moments by tasks.
    Storage { name: String, shared: bool },
    /// The lock of the users' file, held only for moments by tasks.
    Users,
}

/// Who holds a machine's lock file.
#[derive(Clone, Debug, Default)]
pub(super) struct Flock {
    exclusive: Option<TaskId>,
    shared: BTreeSet<TaskId>,
    /// Someone beside the API holds it until then.
    pub(super) held_until: Duration,
}

impl World {
    /// Takes a lock for a task if it can be had.
    pub(super) fn take(&mut self, resource: &Resource, id: TaskId) -> bool {
        let now = self.now;
        if self.free_at(resource) > now {
            return false;
        }
        let Resource::Machine { node, vmid, shared } = resource else {
            return true;
        };
        let flock = self.flocks.entry((node.clone(), *vmid)).or_default();
        let alone = flock.exclusive.is_none_or(|holder| holder == id);
        let unshared = flock.shared.iter().all(|holder| *holder == id);
        if *shared && alone {
            flock.shared.insert(id);
        } else if !*shared && alone && unshared {
            flock.exclusive = Some(id);
        } else {
            return false;
        }
        if let Some(task) = self.tasks.get_mut(id) {
            task.held.push(resource.clone());
        }
        true
    }

    /// Whether the lock file of a machine is free for exclusive use.
    pub(super) fn machine_is_free(&self, node: &str, vmid: u32) -> bool {
        self.flocks.get(&(node.to_owned(), vmid)).is_none_or(|it| {
            it.exclusive.is_none() && it.shared.is_empty() && it.held_until <= self.now
        })
    }

    /// Until when someone beside the API holds it.
    pub(super) fn free_at(&self, resource: &Resource) -> Duration {
        match resource {
            Resource::Machine { node, vmid, .. } => self
                .flocks
                .get(&(node.clone(), *vmid))
                .map_or(Duration::ZERO, |flock| flock.held_until),
            Resource::Storage { name, .. } => self
                .storages
                .get(name)
                .map_or(Duration::ZERO, |storage| storage.busy_until),
            Resource::Users => self.users_busy_until,
        }
    }

    /// Gives a lock back; those that wait for it look again.
    pub(super) fn release(&mut self, resource: &Resource, id: TaskId) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.held.retain(|held| held != resource);
        }
        let Resource::Machine { node, vmid, shared } = resource else {
            return;
        };
        let key = (node.clone(), *vmid);
        if let Some(flock) = self.flocks.get_mut(&key) {
            if *shared {
                flock.shared.remove(&id);
            } else if flock.exclusive == Some(id) {
                flock.exclusive = None;
            }
            if flock.exclusive.is_none() && flock.shared.is_empty() && flock.held_until <= self.now
            {
                self.flocks.remove(&key);
            }
        }
        let waiting: Vec<TaskId> = self
            .tasks
            .running()
            .filter(|(_, task)| {
                task.wait.as_ref().is_some_and(|wait| {
                    matches!(&wait.resource, Resource::Machine { node: its, vmid: number, .. }
                        if its == node && number == vmid)
                })
            })
            .map(|(id, _)| id)
            .collect();
        let now = self.now;
        for id in waiting {
            self.schedule(now, super::Event::Poke(id));
        }
    }

    /// What a task says that waited in vain.
    pub(super) fn lock_text(resource: &Resource) -> String {
        match resource {
            Resource::Machine { vmid, .. } => {
                format!("can't lock file '/var/lock/qemu-server/lock-{vmid}.conf' - got timeout")
            }
            Resource::Storage { name, shared: true } => {
                format!("cfs-lock 'storage-{name}' error: got lock request timeout")
            }
            Resource::Storage { name, .. } => {
                format!("can't lock file '/var/lock/pve-manager/pve-storage-{name}' - got timeout")
            }
            Resource::Users => {
                "cfs-lock 'file-user_cfg' error: got lock request timeout".to_owned()
            }
        }
    }

    /// The lock file of a machine.
    pub(super) fn machine_lock(node: &str, vmid: u32) -> Resource {
        Resource::Machine {
            node: node.to_owned(),
            vmid,
            shared: false,
        }
    }

    /// The lock of a storage.
    pub(super) fn storage_lock(&self, name: &str) -> Resource {
        Resource::Storage {
            name: name.to_owned(),
            shared: self
                .storages
                .get(name)
                .is_some_and(|storage| storage.setup.shared),
        }
    }
}
