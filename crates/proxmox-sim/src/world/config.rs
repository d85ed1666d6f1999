//! Writing a machine's configuration.

mod pending;

use super::{
    World,
    access::Caller,
    answers::{Outcome, Refusal},
    guest::{Drive, Machine, Net, boot_order, is_drive, is_net, is_unused},
    jobs::{Job, ended_by},
    params::Params,
    schema::normalised_tags,
    tasks::{Next, TaskId, Wake},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Keys that are not configuration.
const CONTROL_KEYS: [&str; 9] = [
    "node",
    "vmid",
    "delete",
    "revert",
    "digest",
    "skiplock",
    "force",
    "background_delay",
    "import-working-storage",
];

/// Changes to a configuration, checked as far as that goes without looking at it.
#[derive(Clone, Debug)]
pub(super) struct Changes {
    caller: Caller,
    node: String,
    vmid: u32,
    set: BTreeMap<String, String>,
    delete: Vec<String>,
    revert: Vec<String>,
    digest: Option<String>,
    force: bool,
}

/// A write that is done in a task.
#[derive(Clone, Debug)]
pub(super) struct WriteConfig {
    changes: Changes,
    step: u8,
}

impl World {
    /// `PUT …/config`: done at once, when the lock file is free.
    pub(super) fn put_config(&mut self, caller: &Caller, params: &Params) -> Outcome {
        let changes = self.read_changes(caller, params)?;
        self.apply_changes(&changes)?;
        Ok(Value::Null.into())
    }

    /// `POST …/config`: the same in a task.
    pub(super) fn post_config(&mut self, caller: &Caller, params: &Params) -> Outcome {
        let changes = self.read_changes(caller, params)?;
        let (node, vmid) = (changes.node.clone(), changes.vmid);
        let job = Job::Config(Box::new(WriteConfig { changes, step: 0 }));
        let upid = self.begin_task(&node, "qmconfig", &vmid.to_string(), caller, job);
        let Some(delay) = params.number::<u32>("background_delay") else {
            return Ok(json!(upid).into());
        };
        let (ended, after) = self.foresee_end(&upid, f64::from(delay));
        let data = match ended.as_deref() {
            Some("OK") => Value::Null,
            Some(error) => {
                return Err(
                    Refusal::died(format!("failed to update VM {vmid}: {error}")).after(after),
                );
            }
            None => json!(upid),
        };
        let mut reply = super::answers::Reply::from(data);
        reply.after = Some(after);
        Ok(reply)
    }

    /// Everything that is checked before the configuration is written.
    fn read_changes(&mut self, caller: &Caller, params: &Params) -> Result<Changes, Refusal> {
        Self::refuse_skiplock(caller, params)?;
        let list = |name: &str| -> Vec<String> {
            super::schema::split_list(params.text(name).unwrap_or_default())
                .map(|key| if key == "cdrom" { "ide2" } else { key }.to_owned())
                .collect()
        };
        let mut changes = Changes {
            caller: caller.clone(),
            node: params.text("node").unwrap_or_default().to_owned(),
            vmid: params.number("vmid").unwrap_or_default(),
            set: BTreeMap::new(),
            delete: list("delete"),
            revert: list("revert"),
            digest: params.text("digest").map(str::to_owned),
            force: params.flag("force"),
        };
        let mut given = 0;
        for (key, value) in &params.0 {
            if CONTROL_KEYS.contains(&key.as_str()) {
                continue;
            }
            given += 1;
            let key = if key == "cdrom" { "ide2" } else { key };
            if let Some(text) = value.as_str() {
                changes.set.insert(key.to_owned(), text.to_owned());
            }
        }
        if given == 0 && changes.delete.is_empty() && changes.revert.is_empty() {
            return Err(Refusal::died("no options specified"));
        }
        for key in &changes.delete {
            if changes.set.contains_key(key) {
                return Err(Refusal::parameter(
                    "delete",
                    format!("you can't use '-{key}' and -delete {key}' at the same time"),
                ));
            }
            if !self.schema().knows_config_key(key) {
                return Err(Refusal::parameter(
                    "delete",
                    format!("unknown option '{key}'"),
                ));
            }
        }
        for (key, value) in changes.set.clone() {
            let value = self.normalised(&key, &value);
            Self::check_media(&key, &value)?;
            changes.set.insert(key, value);
        }
        for key in changes.delete.iter().chain(changes.set.keys()) {
            self.check_key(&changes, key)?;
        }
        for (key, value) in &changes.set {
            if is_drive(key) {
                self.check_drive_storage(&changes, key, value)?;
            }
        }
        let guest = self.machine_or_missing(&changes.node, changes.vmid)?;
        changes.check_against(guest).map_err(Refusal::died)?;
        Ok(changes)
    }

    /// A value as it is stored.
    pub(super) fn normalised(&mut self, key: &str, value: &str) -> String {
        match key {
            "tags" => normalised_tags(value, self.datacenter.case_sensitive_tags),
            "description" => value.trim_end().to_owned(),
            _ if is_net(key) => {
                let mut net = Net::parse(value);
                if net.mac.is_none() {
                    net.mac = Some(self.draw_mac());
                }
                net.print()
            }
            _ => value.to_owned(),
        }
    }

    fn check_media(key: &str, value: &str) -> Result<(), Refusal> {
        if !is_drive(key) {
            return Ok(());
        }
        let drive = Drive::parse(value);
        if drive.file.contains(":iso/") && !drive.is_cdrom() {
            return Err(Refusal::parameter(
                key,
                "explicit 'media=cdrom' is required for iso images",
            ));
        }
        Ok(())
    }

    /// The privilege for a key that does not depend on its value.
    fn check_key(&self, changes: &Changes, key: &str) -> Result<(), Refusal> {
        if changes.caller.id == "root@pam" {
            return Ok(());
        }
        let stem = key.trim_end_matches(|c: char| c.is_ascii_digit());
        let privilege = match key {
            "cores" | "sockets" | "cpu" | "vcpus" | "cpulimit" | "cpuunits" | "smp" | "numa" => {
                "VM.Config.CPU"
            }
            "memory" | "balloon" | "shares" | "hugepages" | "keephugepages" | "allow-ksm" => {
                "VM.Config.Memory"
            }
            "name" | "description" | "agent" | "onboot" | "protection" | "ostype" | "bios"
            | "startup" | "kvm" | "acpi" | "tablet" | "autostart" | "localtime" | "freeze"
            | "hotplug" | "reboot" | "startdate" | "template" | "migrate_downtime"
            | "migrate_speed" | "smbios1" | "vmgenid" | "tdf" | "keyboard"
            | "spice_enhancements" | "tags" => "VM.Config.Options",
            "machine" | "scsihw" | "vga" | "watchdog" | "rng0" | "audio0" | "ivshmem" | "arch"
            | "amd-sev" | "intel-tdx" => "VM.Config.HWType",
            "boot" | "bootdisk" | "vmstatestorage" => "VM.Config.Disk",
            "ciuser" | "cipassword" | "sshkeys" | "nameserver" | "searchdomain" | "cicustom"
            | "citype" | "ciupgrade" => "",
            _ => match stem {
                _ if is_drive(key) || is_unused(key) => return Ok(()),
                "net" => "VM.Config.Network",
                "ipconfig" => "",
                "numa" => "VM.Config.CPU",
                "serial" | "usb" | "parallel" => "VM.Config.HWType",
                _ => {
                    return Err(Refusal::died(format!("only root can set '{key}' config")));
                }
            },
        };
        let path = format!("/vms/{}", changes.vmid);
        if privilege.is_empty() {
            return self.access.need_any(
                &changes.caller,
                &path,
                &["VM.Config.Cloudinit", "VM.Config.Network"],
                self,
            );
        }
        self.access
            .need(&changes.caller, &path, &[privilege], self)?;
        if key == "startup" {
            self.access
                .need(&changes.caller, "/", &["Sys.Modify"], self)?;
        }
        Ok(())
    }

    /// The storage behind a drive: there, and open to the caller.
    fn check_drive_storage(
        &self,
        changes: &Changes,
        key: &str,
        value: &str,
    ) -> Result<(), Refusal> {
        let drive = Drive::parse(value);
        let Some((storage, name)) = drive.volume() else {
            return Ok(());
        };
        if !self.storages.contains_key(storage) {
            return Err(Refusal::died(format!("storage '{storage}' does not exist")));
        }
        let path = format!("/storage/{storage}");
        if name == "cloudinit" || name.parse::<f64>().is_ok() {
            self.access
                .need(&changes.caller, &path, &["Datastore.AllocateSpace"], self)?;
            if !self.storages[storage].holds("images") {
                return Err(Refusal::parameter(
                    key,
                    format!("storage '{storage}' does not support content-type 'images'"),
                ));
            }
            return Ok(());
        }
        self.check_volume_access(&changes.caller, &drive.file)
    }

    /// Writes the changes, key by key: an error at one leaves those before it written.
    pub(super) fn apply_changes(&mut self, changes: &Changes) -> Result<(), Refusal> {
        let (node, vmid) = (changes.node.clone(), changes.vmid);
        let guest = self.machine_or_missing(&node, vmid)?;
        changes.check_against(guest).map_err(Refusal::died)?;
        if !self.has_quorum() {
            return Err(Refusal::died(self.readonly_text(&node, vmid)));
        }
        let runs = guest.running.is_some();
        for key in &changes.revert {
            if let Some(guest) = self.guests.get_mut(&vmid) {
                guest.pending.remove(key);
                guest.pending_delete.remove(key);
            }
        }
        let written = self.write_keys(changes);
        if runs {
            self.apply_live(vmid);
        } else if written.is_ok() {
            self.apply_pending_with(vmid, changes.force);
        }
        written
    }

    fn write_keys(&mut self, changes: &Changes) -> Result<(), Refusal> {
        let (node, vmid) = (changes.node.clone(), changes.vmid);
        for key in &changes.delete {
            let Some(old) = self.guests[&vmid].config.get(key).cloned() else {
                if let Some(guest) = self.guests.get_mut(&vmid) {
                    guest.pending.remove(key);
                }
                continue;
            };
            if is_drive(key) || is_unused(key) {
                if self.guests[&vmid].is_protected() {
                    return Err(Refusal::died(format!(
                        "can't remove drive '{key}' - protection mode enabled"
                    )));
                }
                self.check_drive(changes, &old)?;
            }
            if is_net(key) {
                self.check_bridge(changes, &old)?;
            }
            if key == "tags" {
                self.check_tags(changes, "")?;
            }
            if let Some(guest) = self.guests.get_mut(&vmid) {
                guest.pending.remove(key);
                guest.pending_delete.insert(key.clone());
                drop_from_boot(guest, key);
            }
        }
        for (key, value) in &changes.set {
            let old = self.guests[&vmid].config.get(key).cloned();
            let mut value = value.clone();
            if is_drive(key) {
                if let Some(old) = &old {
                    self.check_drive(changes, old)?;
                }
                self.check_drive(changes, &value)?;
                if Drive::parse(&value).is_cloudinit() {
                    self.check_single_cloudinit(vmid, key)?;
                }
                value = self.new_drive(&node, vmid, &value).map_err(Refusal::died)?;
                self.append_to_boot(vmid, key, &value);
            } else if is_net(key) {
                self.check_bridge(changes, &value)?;
                if let Some(old) = &old {
                    self.check_bridge(changes, old)?;
                }
            } else if key == "tags" {
                self.check_tags(changes, &value)?;
            } else if key == "boot" {
                self.check_boot(vmid, &value)?;
            }
            if let Some(guest) = self.guests.get_mut(&vmid) {
                guest.pending_delete.remove(key);
                guest.pending.insert(key.clone(), value);
            }
        }
        Ok(())
    }

    fn check_drive(&self, changes: &Changes, value: &str) -> Result<(), Refusal> {
        let drive = Drive::parse(value);
        let path = format!("/vms/{}", changes.vmid);
        let wanted: &[&str] = if drive.is_cloudinit() {
            &["VM.Config.Cloudinit", "VM.Config.CDROM"]
        } else if drive.is_cdrom() {
            &["VM.Config.CDROM"]
        } else {
            &["VM.Config.Disk"]
        };
        self.access.need(&changes.caller, &path, wanted, self)
    }

    fn check_bridge(&self, changes: &Changes, value: &str) -> Result<(), Refusal> {
        match Net::parse(value).sdn_path() {
            Some(path) => self.access.need(&changes.caller, &path, &["SDN.Use"], self),
            None => Ok(()),
        }
    }

    fn check_single_cloudinit(&self, vmid: u32, key: &str) -> Result<(), Refusal> {
        let other = self
            .disks_of(vmid)
            .into_iter()
            .find(|(its, drive)| its != key && drive.is_cloudinit());
        match other {
            Some((other, _)) => Err(Refusal::died(format!(
                "{key} - cloud-init drive is already attached at '{other}'"
            ))),
            None => Ok(()),
        }
    }

    fn check_boot(&self, vmid: u32, value: &str) -> Result<(), Refusal> {
        let guest = &self.guests[&vmid];
        let merged = guest.merged();
        match boot_order(value)
            .into_iter()
            .find(|device| !merged.contains_key(*device))
        {
            Some(device) => Err(Refusal::died(format!(
                "invalid bootorder: device '{device}' does not exist'"
            ))),
            None => Ok(()),
        }
    }

    /// Who may add or remove which tags.
    fn check_tags(&self, changes: &Changes, new: &str) -> Result<(), Refusal> {
        let old = self.guests[&changes.vmid]
            .config
            .get("tags")
            .map(|tags| normalised_tags(tags, self.datacenter.case_sensitive_tags))
            .unwrap_or_default();
        let set = |text: &str| -> std::collections::BTreeSet<String> {
            super::schema::split_list(text).map(str::to_owned).collect()
        };
        let (old, new) = (set(&old), set(new));
        let (privileged, free) = self.allowed_tags(&changes.caller);
        if privileged {
            return Ok(());
        }
        let allowed = |tag: &String| match &free {
            None => !self.datacenter.registered_tags.contains(tag),
            Some(list) => list.contains(tag),
        };
        match new.symmetric_difference(&old).find(|tag| !allowed(tag)) {
            Some(tag) => Err(Refusal::forbidden(&format!(
                "/, Sys.Modify for modifying tag '{tag}'"
            ))),
            None => Ok(()),
        }
    }

    /// A new CD drive joins the boot order where there is one.
    fn append_to_boot(&mut self, vmid: u32, key: &str, value: &str) {
        let drive = Drive::parse(value);
        if !drive.is_cdrom() || drive.is_cloudinit() {
            return;
        }
        let Some(guest) = self.guests.get_mut(&vmid) else {
            return;
        };
        let Some(boot) = guest.config.get("boot") else {
            return;
        };
        let order = boot_order(boot);
        if order.is_empty() || order.contains(&key) {
            return;
        }
        let boot = format!("order={};{key}", order.join(";"));
        guest.pending.insert("boot".to_owned(), boot);
    }

    /// What a write says while the cluster's files are read-only.
    pub(super) fn readonly_text(&self, node: &str, vmid: u32) -> String {
        format!(
            "unable to open file '/etc/pve/nodes/{node}/qemu-server/{vmid}.conf.tmp.{}' - Permission denied",
            self.tasks_pid()
        )
    }
}

/// A device that goes leaves the boot order.
fn drop_from_boot(guest: &mut Machine, key: &str) {
    let boot = guest.pending.get("boot").or(guest.config.get("boot"));
    let Some(order) = boot.map(|text| boot_order(text)) else {
        return;
    };
    if !order.contains(&key) {
        return;
    }
    let rest: Vec<&str> = order.into_iter().filter(|it| *it != key).collect();
    let boot = format!("order={}", rest.join(";"));
    guest.pending.insert("boot".to_owned(), boot);
}

impl Changes {
    /// The machine's node and number.
    pub(super) fn place(&self) -> (&str, u32) {
        (&self.node, self.vmid)
    }

    /// Digest and lock.
    fn check_against(&self, guest: &Machine) -> Result<(), String> {
        if self
            .digest
            .as_ref()
            .is_some_and(|digest| *digest != guest.digest())
        {
            return Err("checksum mismatch (file change by other user?)".to_owned());
        }
        match guest.lock() {
            Some(lock) => Err(format!("VM is locked ({lock})")),
            None => Ok(()),
        }
    }
}

impl WriteConfig {
    pub(super) fn step(&mut self, world: &mut World, id: TaskId, wake: Wake) -> Next {
        if let Some(next) = ended_by(&wake) {
            return next;
        }
        let pace = world.pace;
        self.step += 1;
        let (node, vmid) = self.changes.place();
        match self.step {
            1 => Next::After(pace.of(0.005)),
            2 => Next::Have(World::machine_lock(node, vmid), pace.t.lock_wait),
            3 => {
                let mut said: Vec<String> = self
                    .changes
                    .set
                    .iter()
                    .map(|(key, value)| format!("-{key} {value}"))
                    .collect();
                if !self.changes.delete.is_empty() {
                    said.push(format!("-delete {}", self.changes.delete.join(",")));
                    said.sort();
                }
                let line = format!("update VM {vmid}: {}", said.join(" "));
                for part in line.split('\n') {
                    world.log(id, part);
                }
                match world.apply_changes(&self.changes) {
                    Ok(()) => Next::After(pace.of(0.02)),
                    Err(refusal) => Next::Failed(refusal.as_task_error()),
                }
            }
            _ => Next::Done,
        }
    }
}
