//! What people and hosts do, beside the API.

use super::{
    AgentBehaviour, Control, Event, Power, Running, World,
    guest::{Drive, Net, is_drive, is_net, print_size},
    setup::{Setup, TokenSetup},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

impl World {
    /// Does what happens beside the API. Answers data where there is any, else null.
    pub fn control(&mut self, control: Control, now: Duration) -> Result<Value, String> {
        self.advance(now);
        match control {
            Control::Facts => return Ok(self.facts()),
            Control::Inventory => return Ok(json!(self.inventory())),
            Control::Mutations => return Ok(json!(self.mutations)),
            Control::Describe { vmid } => return Ok(json!(self.describe(vmid))),
            Control::Place {
                vmid,
                name,
                text,
                template,
                node,
                container,
            } => {
                if self.guests.contains_key(&vmid) {
                    return Err(format!("{vmid} is taken"));
                }
                let node = node.unwrap_or_else(|| self.first_node());
                self.place(vmid, &name, text, template, &node, container);
            }
            Control::Copy { vmid, to } => return self.copy(vmid, to).map(|it| json!(it)),
            Control::Remove { vmid } => self.remove(vmid),
            Control::Rename { vmid, name } => self.set(vmid, "name", Some(name))?,
            Control::EditDescription { vmid, text } => {
                let text = text.map(|text| text.trim_end().to_owned());
                self.set(vmid, "description", text.filter(|text| !text.is_empty()))?;
            }
            Control::SetKey { vmid, key, value } => self.set(vmid, &key, value)?,
            Control::Power { vmid, event } => self.change_power(vmid, event)?,
            Control::Protect { vmid } => self.set(vmid, "protection", Some("1".to_owned()))?,
            Control::Unprotect { vmid } => self.set(vmid, "protection", None)?,
            Control::Lock { vmid, lock } => self.lock(vmid, lock)?,
            Control::Unlock { vmid } => self.unlock(vmid),
            Control::Migrate { vmid, to } => return self.migrate(vmid, to).map(|it| json!(it)),
            Control::Agent { vmid, agent } => self.set_agent(vmid, agent)?,
            Control::DefaultAgent { agent } => self.default_agent = agent,
            Control::Addresses { vmid, addresses } => {
                self.guest_mut(vmid)?.addresses = addresses;
            }
            Control::LeaveSeed { name, storage } => {
                return self.leave_seed(&name, storage).map(|it| json!(it));
            }
            Control::RemoveSeed { name } => {
                let file = name.rsplit('/').next().unwrap_or_default().to_owned();
                let file = format!("iso/{file}");
                self.volumes.retain(|(_, _, its), _| *its != file);
            }
            Control::FailTasks => {
                let ids: Vec<_> = self.tasks.running().map(|(id, _)| id).collect();
                for id in &ids {
                    self.interrupt_task(*id);
                }
                return Ok(json!(ids.len()));
            }
            Control::KillTasks { kind, upid } => {
                let ids: Vec<_> = self
                    .tasks
                    .running()
                    .filter(|(_, task)| kind.as_deref().is_none_or(|kind| task.kind == kind))
                    .filter(|(_, task)| upid.as_ref().is_none_or(|upid| task.upid == *upid))
                    .map(|(id, _)| id)
                    .collect();
                for id in &ids {
                    self.kill_task(*id);
                }
                return Ok(json!(ids.len()));
            }
            Control::StallTasks { kind, count } => {
                let most = count.unwrap_or(u32::MAX);
                let stalled = self.stall_tasks(&kind, most);
                self.tasks.stalls.insert(kind, most.saturating_sub(stalled));
            }
            Control::Continue => self.continue_tasks(),
            Control::HoldStorage { storage, seconds } => {
                let until = self.now + self.pace.of(seconds);
                self.storage_mut(&storage)?.busy_until = until;
                self.poke_waiting(until);
            }
            Control::HoldMachine { vmid, seconds } => {
                let until = self.now + self.pace.of(seconds);
                let node = self.guest_mut(vmid)?.node.clone();
                self.flocks.entry((node, vmid)).or_default().held_until = until;
                self.poke_waiting(until);
            }
            Control::HoldUsers { seconds } => {
                self.users_busy_until = self.now + self.pace.of(seconds);
                self.poke_waiting(self.users_busy_until);
            }
            Control::StorageOnline { storage, online } => {
                self.storage_mut(&storage)?.online = online;
            }
            Control::FillStorage { storage, free } => self.fill_storage(storage, free)?,
            Control::HideTemplate { vmid } => {
                let hidden = self
                    .guests
                    .remove(&vmid)
                    .ok_or_else(|| format!("there is no {vmid}"))?;
                self.hidden.insert(vmid, hidden);
            }
            Control::ChangeCluster => self.elsewhere = Some(Box::new(self.another())),
            Control::Node { node, up } => self.switch_node(&node, up)?,
            Control::ClockSkew { node, seconds } => {
                self.nodes
                    .get_mut(&node)
                    .ok_or_else(|| format!("there is no node {node}"))?
                    .skew = seconds;
            }
            Control::Ha { vmid, managed } => self.guest_mut(vmid)?.ha = managed,
            Control::Tags {
                user_allow,
                user_allow_list,
                registered_tags,
            } => {
                self.datacenter.user_allow = user_allow.unwrap_or_else(|| "free".to_owned());
                self.datacenter.user_allow_list = user_allow_list;
                self.datacenter.registered_tags = registered_tags;
            }
            Control::Heal => self.heal(),
            Control::AddToken { .. }
            | Control::RevokeToken { .. }
            | Control::RotateToken { .. }
            | Control::Grant { .. }
            | Control::SetRole { .. }
            | Control::RemovePrivilege { .. } => return self.change_access(control),
            fault => self.cause(fault)?,
        }
        Ok(Value::Null)
    }

    fn change_access(&mut self, control: Control) -> Result<Value, String> {
        match control {
            Control::AddToken { token, acl } => {
                self.access.tokens.insert(token.id.clone(), token);
                self.access.acl.extend(acl);
            }
            Control::RevokeToken { id } => {
                let token = self.access.tokens.remove(&id);
                let token = token.ok_or_else(|| format!("there is no token {id}"))?;
                self.access.revoked.insert(id, token);
            }
            Control::RotateToken { id, secret } => {
                let fresh = self.draw_uuid();
                let token: &mut TokenSetup = self
                    .access
                    .tokens
                    .get_mut(&id)
                    .ok_or_else(|| format!("there is no token {id}"))?;
                token.secret = secret.unwrap_or(fresh);
                return Ok(json!(token.secret));
            }
            Control::Grant { acl } => self.access.acl.extend(acl),
            Control::SetRole { role, privileges } => {
                self.access
                    .roles
                    .insert(role, privileges.into_iter().collect());
            }
            Control::RemovePrivilege { privilege } => {
                self.access.missing.insert(privilege);
            }
            other => return Err(format!("{other:?} is not about access")),
        }
        Ok(Value::Null)
    }

    fn guest_mut(&mut self, vmid: u32) -> Result<&mut super::Machine, String> {
        self.guests
            .get_mut(&vmid)
            .ok_or_else(|| format!("there is no {vmid}"))
    }

    fn storage_mut(&mut self, name: &str) -> Result<&mut super::Storage, String> {
        self.storages
            .get_mut(name)
            .ok_or_else(|| format!("there is no storage {name}"))
    }

    fn set(&mut self, vmid: u32, key: &str, value: Option<String>) -> Result<(), String> {
        let guest = self.guest_mut(vmid)?;
        match value {
            Some(value) => guest.config.insert(key.to_owned(), value),
            None => guest.config.remove(key),
        };
        Ok(())
    }

    fn image_storage(&self) -> String {
        self.setup
            .storages
            .iter()
            .find(|it| it.enabled && it.content.iter().any(|held| held == "images"))
            .map_or_else(|| "local".to_owned(), |it| it.name.clone())
    }

    fn place(
        &mut self,
        vmid: u32,
        name: &str,
        text: Option<String>,
        template: bool,
        node: &str,
        container: bool,
    ) {
        let mut born = self.born(node);
        born.container = container;
        let mut set = |key: &str, value: String| {
            born.config.insert(key.to_owned(), value);
        };
        if container {
            set("hostname", name.to_owned());
        } else {
            set("name", name.to_owned());
            set("cores", "1".to_owned());
            set("memory", "512".to_owned());
            set("boot", "order=scsi0".to_owned());
            set("meta", "creation-qemu=10.0.13,ctime=1796000000".to_owned());
        }
        if let Some(text) = text {
            set("description", text.trim_end().to_owned());
        }
        if template {
            set("template", "1".to_owned());
        }
        if !container {
            let mac = self.draw_mac();
            let uuid = self.draw_uuid();
            let bridge = self.setup.bridges.first();
            let bridge = bridge.map_or_else(|| "vmbr0".to_owned(), |it| it.name.clone());
            let volid = self.free_disk_name(&self.image_storage(), node, vmid, ".qcow2");
            let volid = if template {
                volid.replace("vm-", "base-")
            } else {
                volid
            };
            self.put_volume(&volid, node, 1 << 30, None);
            born.config.insert(
                "scsi0".to_owned(),
                format!("{volid},size={}", print_size(1 << 30)),
            );
            born.config
                .insert("net0".to_owned(), format!("virtio={mac},bridge={bridge}"));
            born.config
                .insert("smbios1".to_owned(), format!("uuid={uuid}"));
        }
        self.guests.insert(vmid, born);
        if !template {
            self.power_on(vmid);
        }
    }

    fn copy(&mut self, vmid: u32, to: Option<u32>) -> Result<u32, String> {
        let source = self.guest_mut(vmid)?.clone();
        let to = to
            .or_else(|| (vmid + 1..=999_999_999).find(|it| !self.guests.contains_key(it)))
            .filter(|it| !self.guests.contains_key(it))
            .ok_or("there is no free number")?;
        let mut copy = self.born(&source.node);
        copy.copy_seconds = source.copy_seconds;
        let mut config = BTreeMap::new();
        for (key, value) in &source.config {
            if matches!(key.as_str(), "lock" | "template") {
                continue;
            }
            let drive = Drive::parse(value);
            let value = if is_drive(key) && (drive.is_disk() || drive.is_cloudinit()) {
                self.copy_disk(&drive, &source.node, to)
            } else if is_net(key) {
                let mut net = Net::parse(value);
                net.mac = Some(self.draw_mac());
                net.print()
            } else if key == "smbios1" {
                format!("uuid={}", self.draw_uuid())
            } else if key == "vmgenid" {
                self.draw_uuid()
            } else {
                value.clone()
            };
            config.insert(key.clone(), value);
        }
        config.insert(
            "name".to_owned(),
            format!("Copy-of-VM-{}", source.name_or(vmid).replace(' ', "-")),
        );
        copy.config = config;
        self.guests.insert(to, copy);
        Ok(to)
    }

    fn copy_disk(&mut self, drive: &Drive, node: &str, to: u32) -> String {
        let storage = drive.volume().map_or("", |(storage, _)| storage);
        let name = drive.file.split_once(':').map_or("", |it| it.1);
        let suffix = format!(".{}", super::storage::format_of(name));
        let volid = self.free_disk_name(storage, node, to, &suffix);
        let size = drive.size().unwrap_or(1 << 30);
        self.put_volume(&volid, node, size, None);
        let mut copy = drive.clone();
        copy.file = volid;
        copy.print()
    }

    fn remove(&mut self, vmid: u32) {
        let Some(guest) = self.guests.remove(&vmid) else {
            return;
        };
        for value in guest.config.values() {
            let drive = Drive::parse(value);
            if drive.file.contains(":iso/") {
                self.drop_volume(&drive.file, &guest.node);
            }
        }
        for volid in self.volumes_of(vmid, &guest.node) {
            self.drop_volume(&volid, &guest.node);
        }
        for members in self.pools.values_mut() {
            members.remove(&vmid);
        }
    }

    fn change_power(&mut self, vmid: u32, event: Power) -> Result<(), String> {
        if matches!(
            event,
            Power::Paused | Power::IoError | Power::InternalError | Power::Hung | Power::Started
        ) {
            self.guest_mut(vmid)?;
            self.power_on(vmid);
        }
        let guest = self.guest_mut(vmid)?;
        if let Some(running) = &mut guest.running {
            let qmp = |running: &mut Running, qmp| {
                running.qmp = qmp;
                running.hung = false;
            };
            match event {
                Power::Started => qmp(running, "running"),
                Power::Paused => qmp(running, "paused"),
                Power::IoError => qmp(running, "io-error"),
                Power::InternalError => qmp(running, "internal-error"),
                Power::Hung => running.hung = true,
                Power::Off | Power::Crashed | Power::Hibernated => {}
            }
        }
        if matches!(event, Power::Off | Power::Crashed | Power::Hibernated) {
            self.power_off(vmid);
        }
        if event == Power::Hibernated {
            self.set(vmid, "lock", Some("suspended".to_owned()))?;
        }
        Ok(())
    }

    fn lock(&mut self, vmid: u32, lock: String) -> Result<(), String> {
        if !self.guests.contains_key(&vmid) {
            if !matches!(lock.as_str(), "clone" | "create" | "destroyed") {
                return Err(format!("there is no {vmid}"));
            }
            let node = self.first_node();
            let mut born = self.born(&node);
            born.phantom = true;
            self.guests.insert(vmid, born);
        }
        self.set(vmid, "lock", Some(lock))
    }

    fn unlock(&mut self, vmid: u32) {
        if self.guests.get(&vmid).is_some_and(|guest| guest.phantom) {
            self.guests.remove(&vmid);
        } else if let Some(guest) = self.guests.get_mut(&vmid) {
            guest.config.remove("lock");
        }
    }

    fn migrate(&mut self, vmid: u32, to: Option<String>) -> Result<String, String> {
        let from = self.guest_mut(vmid)?.node.clone();
        let to = to
            .or_else(|| {
                self.nodes
                    .iter()
                    .find(|(name, node)| **name != from && node.up && node.setup.resolvable)
                    .map(|(name, _)| name.clone())
            })
            .filter(|to| self.nodes.contains_key(to))
            .ok_or("there is no other node")?;
        for (_, drive) in self.disks_of(vmid) {
            let Some(volume) = self.drop_volume(&drive.file, &from) else {
                continue;
            };
            if let Some(key) = self.volume_key(&drive.file, &to) {
                self.volumes.insert(key, volume);
            }
        }
        self.guest_mut(vmid)?.node.clone_from(&to);
        Ok(to)
    }

    fn set_agent(&mut self, vmid: u32, agent: AgentBehaviour) -> Result<(), String> {
        self.guest_mut(vmid)?.agent = Some(agent);
        if agent == AgentBehaviour::Missing {
            self.set(vmid, "agent", None)?;
        }
        Ok(())
    }

    fn leave_seed(&mut self, name: &str, storage: Option<String>) -> Result<String, String> {
        let storage = storage
            .or_else(|| {
                self.setup
                    .storages
                    .iter()
                    .find(|it| it.enabled && it.content.iter().any(|held| held == "iso"))
                    .map(|it| it.name.clone())
            })
            .ok_or("no storage takes ISOs")?;
        let node = self.first_node();
        let volid = format!("{storage}:iso/{name}");
        self.put_volume(&volid, &node, 38_912, None);
        Ok(volid)
    }

    fn fill_storage(&mut self, storage: Option<String>, free: u64) -> Result<(), String> {
        let names: Vec<String> = match storage {
            Some(name) => vec![name],
            None => self.storages.keys().cloned().collect(),
        };
        let node = self.first_node();
        for name in names {
            self.storage_mut(&name)?.filler = 0;
            let left = self.space(&self.storages[&name], &node).1;
            self.storage_mut(&name)?.filler = left.saturating_sub(free);
        }
        Ok(())
    }

    /// Another cluster with the same users and templates.
    fn another(&self) -> Self {
        let mut setup: Setup = self.setup.clone();
        setup.guests.retain(|guest| {
            guest
                .config
                .get("template")
                .is_some_and(|template| template == "1")
        });
        let mut other = Self::new(setup);
        other.access = self.access.clone();
        other.identity = self.identity ^ 0xffff_0000_ffff_0000;
        other.advance(self.now);
        other
    }

    /// A node that came up starts the machines that are to start with it, after a while.
    pub(super) fn boot_machines(&mut self, name: &str) {
        self.forget_broadcast(name);
        let at = self.now + self.pace.of(self.pace.t.ha);
        let starting: Vec<(u32, u64)> = self
            .guests
            .iter()
            .filter(|(_, guest)| guest.node == name && !guest.is_template())
            .filter(|(_, guest)| guest.lock().is_none())
            .filter(|(_, guest)| guest.config.get("onboot").is_some_and(|it| it == "1"))
            .map(|(vmid, guest)| (*vmid, guest.birth))
            .collect();
        for (vmid, birth) in starting {
            let event = Event::Ha {
                vmid,
                birth,
                start: true,
            };
            self.schedule(at, event);
        }
    }

    fn switch_node(&mut self, name: &str, up: bool) -> Result<(), String> {
        let now = self.now;
        let node = self
            .nodes
            .get_mut(name)
            .ok_or_else(|| format!("there is no node {name}"))?;
        if node.up == up {
            return Ok(());
        }
        node.up = up;
        node.since = now;
        if up {
            self.boot_machines(name);
            return Ok(());
        }
        let ids: Vec<_> = self
            .tasks
            .running()
            .filter(|(_, task)| task.node == name)
            .map(|(id, _)| id)
            .collect();
        for id in ids {
            self.kill_task(id);
        }
        let here: Vec<u32> = self
            .guests
            .iter()
            .filter(|(_, guest)| guest.node == name)
            .map(|(vmid, _)| *vmid)
            .collect();
        for vmid in here {
            self.power_off(vmid);
        }
        Ok(())
    }
}
