//! What there is, for those who look at the world from outside: tests, guests, people.

use super::{
    Event, Machine, World,
    guest::{Drive, Net, is_drive},
};
use serde_json::{Value, json};
use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

/// A machine that runs, for whoever plays the inside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its number.
    pub vmid: u32,
    /// Its node.
    pub node: String,
    /// Rises with every start of it.
    pub boot: u64,
    /// Tells it from another machine that had the number before.
    pub identity: String,
    /// The MAC address of its first network card.
    pub mac: Option<String>,
    /// Volume and contents of the ISO in its drive.
    pub seed: Option<(String, Arc<[u8]>)>,
    /// Whether it is paused.
    pub paused: bool,
}

impl World {
    /// The machines that run now.
    pub fn guests(&mut self, now: Duration) -> Vec<Guest> {
        self.advance(now);
        let all = self.guests.keys();
        all.filter_map(|vmid| self.running(*vmid)).collect()
    }

    /// A machine that runs now.
    pub fn guest(&mut self, vmid: u32, now: Duration) -> Option<Guest> {
        self.advance(now);
        self.running(vmid)
    }

    fn running(&self, vmid: u32) -> Option<Guest> {
        let guest = self.guests.get(&vmid)?;
        let running = guest.running.as_ref()?;
        Some(Guest {
            vmid,
            node: guest.node.clone(),
            boot: guest.starts,
            identity: format!("{}-{}", guest.birth, uuid(guest)),
            mac: guest.config.get("net0").and_then(|net| Net::parse(net).mac),
            seed: self.seed_of(guest),
            paused: running.qmp != "running",
        })
    }

    /// A number that is another one once any machine was started, made or removed.
    pub fn boots(&mut self, now: Duration) -> u64 {
        self.advance(now);
        let mut hasher = DefaultHasher::new();
        for (vmid, guest) in &self.guests {
            (vmid, guest.birth, guest.starts, guest.running.is_some()).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn seed_of(&self, guest: &Machine) -> Option<(String, Arc<[u8]>)> {
        guest
            .config
            .iter()
            .filter(|(key, _)| is_drive(key))
            .map(|(_, value)| Drive::parse(value))
            .filter(Drive::is_cdrom)
            .find_map(|drive| {
                let data = self.volume(&drive.file, &guest.node)?.data.clone()?;
                Some((drive.file, data))
            })
    }

    /// What the agent of one boot of a machine answers from now on; `None` for nothing yet.
    pub fn guest_reports(
        &mut self,
        vmid: u32,
        boot: u64,
        addresses: Option<Vec<IpAddr>>,
        now: Duration,
    ) {
        self.advance(now);
        match addresses {
            Some(addresses) => {
                self.reports.insert((vmid, boot), addresses);
            }
            None => {
                self.reports.remove(&(vmid, boot));
            }
        }
    }

    /// Every machine, volume, pool entry and running task, and every request that still has to
    /// have its effect: one sorted line each.
    pub fn inventory(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for (vmid, guest) in &self.guests {
            let kind = match (guest.container, guest.is_template()) {
                (true, _) => "container",
                (_, true) => "template",
                _ => "machine",
            };
            lines.push(format!(
                "{kind} {vmid} {} on {}",
                guest.name_or(*vmid),
                guest.node
            ));
        }
        for (storage, node, name) in self.volumes.keys() {
            let node = if node.is_empty() { "all nodes" } else { node };
            lines.push(format!("volume {storage}:{name} on {node}"));
        }
        for (pool, members) in &self.pools {
            for vmid in members {
                lines.push(format!("pool {pool} holds {vmid}"));
            }
        }
        for (_, task) in self.tasks.running() {
            lines.push(format!("task {}", task.upid));
        }
        for event in self.queue.values() {
            if let Event::Late(request) = event {
                lines.push(format!("late {} {}", request.method, request.target));
            }
        }
        lines.sort();
        lines
    }

    /// All that is known of a guest, as one text.
    pub(super) fn describe(&self, vmid: u32) -> Option<String> {
        let guest = self.guests.get(&vmid)?;
        let mut lines = vec![format!(
            "vmid {vmid} on {} born {} started {} times",
            guest.node, guest.birth, guest.starts
        )];
        let config = guest.config.iter();
        lines.extend(config.map(|(key, value)| format!("{key}: {value}")));
        let pending = guest.pending.iter();
        lines.extend(pending.map(|(key, value)| format!("pending {key}: {value}")));
        let deleted = guest.pending_delete.iter();
        lines.extend(deleted.map(|key| format!("pending delete {key}")));
        lines.push(match &guest.running {
            Some(running) => format!(
                "running as {} since {:?} {} hung {}",
                running.pid, running.since, running.qmp, running.hung
            ),
            None => "stopped".to_owned(),
        });
        for volid in self.volumes_of(vmid, &guest.node) {
            let size = self.volume(&volid, &guest.node).map_or(0, |it| it.size);
            lines.push(format!("volume {volid} of {size}"));
        }
        lines.extend(self.pool_of(vmid).map(|pool| format!("in pool {pool}")));
        lines.push(String::new());
        Some(lines.join("\n"))
    }

    /// Names that a client needs, and the time.
    pub(super) fn facts(&self) -> Value {
        let first = |content: &str| {
            self.setup
                .storages
                .iter()
                .find(|it| it.enabled && it.content.iter().any(|held| held == content))
                .map(|it| it.name.clone())
        };
        let templates: Vec<u32> = self
            .guests
            .iter()
            .filter(|(_, guest)| guest.is_template())
            .map(|(vmid, _)| *vmid)
            .collect();
        json!({
            "version": self.version,
            "nodes": self.nodes.keys().collect::<Vec<_>>(),
            "node": self.first_node(),
            "template": templates.first(),
            "templates": templates,
            "storage": first("images"),
            "isoStorage": first("iso"),
            "bridge": self.setup.bridges.first().map(|it| &it.name),
            "pools": self.pools.keys().collect::<Vec<_>>(),
            "tokens": self.access.tokens.keys().collect::<Vec<_>>(),
            "caFingerprint": self.ca_fingerprint(),
            "speed": self.setup.speed,
            "seconds": self.now.as_secs_f64(),
            "time": self.time_of_day(&self.first_node()),
        })
    }
}

fn uuid(guest: &Machine) -> &str {
    guest
        .config
        .get("vmgenid")
        .or(guest.config.get("smbios1"))
        .map_or("", String::as_str)
}
