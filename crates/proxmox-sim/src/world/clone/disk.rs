//! The disks of a clone: made, copied, put into the configuration one after the other.

use super::{CloneMachine, Step};
use crate::world::{
    World,
    guest::print_size,
    storage::{Storage, Volume, format_of},
    tasks::{Next, TaskId},
};

impl CloneMachine {
    pub(super) fn next_disk(&mut self, world: &World, at: usize) -> Next {
        let Some((_, drive)) = self.disks.get(at) else {
            self.step = Step::Finish;
            return Next::After(world.pace.of(world.pace.t.clone_ends));
        };
        self.step = Step::Allocate(at);
        let storage = self
            .storage
            .clone()
            .unwrap_or_else(|| drive.volume().map_or("", |(storage, _)| storage).to_owned());
        Next::Have(world.storage_lock(&storage), world.pace.t.lock_wait)
    }

    pub(super) fn allocate(&mut self, world: &mut World, id: TaskId, at: usize) -> Next {
        let (key, drive) = self.disks[at].clone();
        let kind = if self.full || drive.is_cloudinit() {
            "full"
        } else {
            "linked"
        };
        world.log(
            id,
            format!("create {kind} clone of drive {key} ({})", drive.file),
        );
        let Some(source) = world.volume(&drive.file, &self.node).cloned() else {
            let text = format!("volume '{}' does not exist", drive.file);
            return self.undo(world, &text);
        };
        let (from, from_name) = drive.volume().unwrap_or_default();
        let to = self.storage.clone().unwrap_or_else(|| from.to_owned());
        if let Err(text) = world.online_storage(&to, &self.node) {
            return self.undo(world, &text);
        }
        let format = self.format.as_deref().unwrap_or(format_of(from_name));
        let suffix = format!(".{format}");
        let linked = kind == "linked";
        let mut volid = if drive.is_cloudinit() {
            cloudinit_name(world, &to, self.newid, &suffix)
        } else {
            world.free_disk_name(&to, &self.node, self.newid, &suffix)
        };
        if linked && world.storages.get(&to).is_some_and(Storage::has_files) {
            let name = volid.split_once(':').map_or("", |it| it.1).to_owned();
            volid = format!("{from}:{from_name}/{name}");
        }
        self.note_allocation(world, id, &volid, &source, linked.then_some(from_name));
        let full_storage = world
            .storages
            .get(&to)
            .is_some_and(|storage| world.space(storage, &self.node).1 < source.used);
        let size = drive.size().unwrap_or(source.size);
        world.put_volume(&volid, &self.node, source.size, None);
        if let Some(key) = world.volume_key(&volid, &self.node)
            && let Some(volume) = world.volumes.get_mut(&key)
        {
            volume.used = source.used;
        }
        let mut made = drive.clone();
        made.file.clone_from(&volid);
        if drive.is_cloudinit() || drive.options.contains_key("size") {
            made.options.insert("size".to_owned(), print_size(size));
        }
        self.made.push((key, made));
        if full_storage {
            let text = format!(
                "copy failed: command '{}' failed: exit code 1",
                self.command(world, at)
            );
            return self.undo(world, &text);
        }
        self.step = Step::Copy(at);
        if linked || drive.is_cloudinit() {
            return Next::After(world.pace.of(0.01));
        }
        let timings = &world.pace.t;
        let mut seconds = timings.clone_disk + self.copy_seconds;
        if let Some(limit) = self.bwlimit {
            seconds = seconds.max(source.size as f64 / (limit as f64 * 1024.0));
        }
        world.log(
            id,
            format!("transferred 0.0 B of {} (0.00%)", human(source.size)),
        );
        Next::After(world.pace.of(seconds))
    }

    fn note_allocation(
        &self,
        world: &mut World,
        id: TaskId,
        volid: &str,
        source: &Volume,
        base: Option<&str>,
    ) {
        let (storage, name) = volid.split_once(':').unwrap_or_default();
        let Some(held) = world.storages.get(storage) else {
            return;
        };
        let size = source.size;
        if !held.has_files() {
            let line = format!("  Logical volume \"{name}\" created.");
            world.log(id, line);
            return;
        }
        let path = held.path();
        let last = name.rsplit('/').next().unwrap_or_default();
        let new = self.newid;
        if let Some(base) = base {
            world.log(
                id,
                format!("clone {base}: images, {last}, {new} to {last} (base=../{base})"),
            );
            world.log(
                id,
                format!(
                    "Formatting '{path}/images/{new}/{last}', fmt=qcow2 cluster_size=131072 extended_l2=on preallocation=metadata compression_type=zlib size={size} backing_file=../{base} backing_fmt=qcow2 lazy_refcounts=off refcount_bits=16"
                ),
            );
            return;
        }
        let line = match format_of(name) {
            "qcow2" => format!(
                "Formatting '{path}/images/{new}/{last}', fmt=qcow2 cluster_size=65536 extended_l2=off preallocation=metadata compression_type=zlib size={size} lazy_refcounts=off refcount_bits=16"
            ),
            format => format!(
                "Formatting '{path}/images/{new}/{last}', fmt={format} size={size} preallocation=off"
            ),
        };
        world.log(id, line);
        world.log(id, format!("allocated target volume '{volid}'"));
    }

    pub(super) fn copied(&mut self, world: &mut World, id: TaskId, at: usize) -> Next {
        let (_, source) = self.disks[at].clone();
        if self.full && !source.is_cloudinit() {
            let size = world
                .volume(&source.file, &self.node)
                .map_or(0, |volume| volume.size);
            let size = human(size);
            world.log(id, format!("transferred {size} of {size} (100.00%)"));
        }
        if let Some(guest) = world.guests.get_mut(&self.newid) {
            let mut config = self.whole();
            config.insert("lock".to_owned(), "clone".to_owned());
            guest.config = config;
        }
        self.next_disk(world, at + 1)
    }

    fn command(&self, world: &World, at: usize) -> String {
        let path = |volid: &str| {
            let (storage, name) = volid.split_once(':').unwrap_or_default();
            match world.storages.get(storage) {
                Some(held) if held.has_files() => format!("{}/images/{name}", held.path()),
                _ => format!("/dev/{storage}/{name}"),
            }
        };
        let format = |volid: &str| format_of(volid);
        let source = &self.disks[at].1.file;
        let target = self.made.get(at).map_or("", |(_, drive)| &drive.file);
        let limit = self
            .bwlimit
            .map_or(String::new(), |limit| format!(" -r {limit}K"));
        format!(
            "/usr/bin/qemu-img convert -p -n{limit} -f {} -O {} {} zeroinit:{}",
            format(source),
            format(target),
            path(source),
            path(target)
        )
    }

    pub(super) fn interrupted_text(&self, world: &World) -> String {
        match self.step {
            Step::Copy(at) => format!(
                "copy failed: command '{}' failed: interrupted by signal",
                self.command(world, at)
            ),
            _ => "interrupted by signal".to_owned(),
        }
    }
}

fn cloudinit_name(world: &World, storage: &str, vmid: u32, suffix: &str) -> String {
    if world.storages.get(storage).is_some_and(Storage::has_files) {
        format!("{storage}:{vmid}/vm-{vmid}-cloudinit{suffix}")
    } else {
        format!("{storage}:vm-{vmid}-cloudinit")
    }
}

/// Bytes for people.
fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return format!("{value:.1} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}
