//! Changes that wait: what becomes of them at once, and what at the next start.

use crate::world::{
    World,
    guest::{Drive, is_drive, is_net, is_unused},
    storage::owner,
};

impl World {
    /// Makes waiting changes real, those of a stopped machine.
    pub(in crate::world) fn apply_pending(&mut self, vmid: u32) {
        self.apply_pending_with(vmid, false);
    }

    pub(super) fn apply_pending_with(&mut self, vmid: u32, force: bool) {
        let Some(guest) = self.guests.get_mut(&vmid) else {
            return;
        };
        let deleted = std::mem::take(&mut guest.pending_delete);
        let set = std::mem::take(&mut guest.pending);
        for key in deleted {
            self.remove_key(vmid, &key, force);
        }
        for (key, value) in set {
            self.set_key(vmid, &key, value);
        }
    }

    /// Makes those waiting changes of a running machine real that can be.
    pub(super) fn apply_live(&mut self, vmid: u32) {
        const AT_ONCE: [&str; 16] = [
            "lock",
            "name",
            "onboot",
            "shares",
            "startup",
            "description",
            "protection",
            "vmstatestorage",
            "hookscript",
            "tags",
            "ciuser",
            "cipassword",
            "sshkeys",
            "nameserver",
            "searchdomain",
            "cicustom",
        ];
        let Some(guest) = self.guests.get(&vmid) else {
            return;
        };
        let live = |key: &str| {
            let stem = key.trim_end_matches(|c: char| c.is_ascii_digit());
            AT_ONCE.contains(&key)
                || is_net(key)
                || stem == "ipconfig"
                || matches!(stem, "scsi" | "virtio" | "unused") && stem.len() < key.len()
        };
        let media = |key: &str| {
            let cdrom = |text: &String| {
                let drive = Drive::parse(text);
                drive.is_cdrom() && !drive.is_cloudinit()
            };
            is_drive(key)
                && guest.config.get(key).is_some_and(cdrom)
                && guest.pending.get(key).is_some_and(cdrom)
        };
        let deleted: Vec<String> = guest
            .pending_delete
            .iter()
            .filter(|key| live(key))
            .cloned()
            .collect();
        let set: Vec<(String, String)> = guest
            .pending
            .iter()
            .filter(|(key, _)| live(key) || media(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        for key in deleted {
            if let Some(guest) = self.guests.get_mut(&vmid) {
                guest.pending_delete.remove(&key);
            }
            self.remove_key(vmid, &key, false);
        }
        for (key, value) in set {
            if let Some(guest) = self.guests.get_mut(&vmid) {
                guest.pending.remove(&key);
            }
            self.set_key(vmid, &key, value);
        }
        if let Some(guest) = self.guests.get_mut(&vmid) {
            let config = &guest.config;
            guest
                .pending
                .retain(|key, value| config.get(key) != Some(value));
        }
    }

    fn remove_key(&mut self, vmid: u32, key: &str, force: bool) {
        let Some(guest) = self.guests.get_mut(&vmid) else {
            return;
        };
        let Some(old) = guest.config.remove(key) else {
            return;
        };
        if is_drive(key) {
            self.detach(vmid, &old, force);
        } else if is_unused(key) {
            self.detach(vmid, &old, true);
        }
    }

    fn set_key(&mut self, vmid: u32, key: &str, value: String) {
        let Some(guest) = self.guests.get_mut(&vmid) else {
            return;
        };
        if value.is_empty() && matches!(key, "description" | "tags") {
            guest.config.remove(key);
            return;
        }
        let old = guest.config.insert(key.to_owned(), value.clone());
        if let Some(old) = old.filter(|_| is_drive(key))
            && Drive::parse(&old).file != Drive::parse(&value).file
        {
            self.detach(vmid, &old, false);
        }
    }

    /// What becomes of a drive that is no longer in its slot: own disks stay as unused ones,
    /// cloud-init drives go.
    fn detach(&mut self, vmid: u32, old: &str, force: bool) {
        let drive = Drive::parse(old);
        let Some((_, name)) = drive.volume() else {
            return;
        };
        if owner(name) != Some(vmid) {
            return;
        }
        let Some(node) = self.guests.get(&vmid).map(|guest| guest.node.clone()) else {
            return;
        };
        if drive.is_cloudinit() || force {
            self.drop_volume(&drive.file, &node);
        } else if let Some(guest) = self.guests.get_mut(&vmid) {
            let free = (0..256)
                .map(|index| format!("unused{index}"))
                .find(|key| !guest.config.contains_key(key));
            if let Some(key) = free {
                guest.config.insert(key, drive.file);
            }
        }
    }
}
