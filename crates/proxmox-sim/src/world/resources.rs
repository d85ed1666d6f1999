//! The list of everything, and the broadcasts that it is partly made of.

use super::{
    Event, World,
    access::Caller,
    answers::Reply,
    control::{Daemon, DaemonState},
    params::Params,
    vitals::qmp_status,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// What a broadcast says of one guest.
#[derive(Clone, Debug)]
struct Vitals {
    name: Arc<str>,
    status: &'static str,
    template: bool,
    uptime: u64,
    cpus: u64,
    memory: u64,
    disk: u64,
}

/// What a node says of itself and its guests.
#[derive(Clone, Debug)]
struct Broadcast {
    at: Duration,
    guests: Arc<BTreeMap<u32, Vitals>>,
}

/// What a worker of an API server has read last.
#[derive(Clone, Debug, Default)]
struct Cache {
    read: Option<Duration>,
    broadcasts: BTreeMap<String, Broadcast>,
}

/// The newest broadcast of every node, and each worker's own copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Broadcasts {
    newest: BTreeMap<String, Broadcast>,
    workers: BTreeMap<String, [Cache; 3]>,
    turn: usize,
}

impl World {
    /// A node says how its guests are, and will again after its period.
    pub(super) fn broadcast(&mut self, name: &str) {
        let period = self.pace.of(self.pace.t.broadcast);
        self.schedule(self.now + period, Event::Broadcast(name.to_owned()));
        let silent = self
            .nodes
            .get(name)
            .is_none_or(|node| !node.up || !node.setup.resolvable)
            || self.daemon(name, Daemon::Pvestatd) != DaemonState::Up;
        if silent {
            return;
        }
        let now = self.now;
        let guests = self
            .guests
            .iter()
            .filter(|(_, guest)| guest.node == name)
            .map(|(vmid, guest)| {
                let since = guest.running.as_ref().map(|it| it.since);
                let vitals = Vitals {
                    name: guest.name_or(*vmid).into(),
                    status: qmp_status(guest),
                    template: guest.is_template(),
                    uptime: since.map_or(0, |since| now.saturating_sub(since).as_secs()),
                    cpus: guest.cpus(),
                    memory: guest.memory(),
                    disk: guest.boot_disk_size(),
                };
                (*vmid, vitals)
            })
            .collect();
        self.broadcasts.newest.insert(
            name.to_owned(),
            Broadcast {
                at: now,
                guests: Arc::new(guests),
            },
        );
    }

    /// What a node said before it went down is worth nothing when it is back.
    pub(super) fn forget_broadcast(&mut self, name: &str) {
        self.broadcasts.newest.remove(name);
    }

    /// The broadcasts as one worker of an API server knows them: it reads them anew when its
    /// copy is older than its cache time, and the workers take turns.
    fn heard(&mut self, server: &str) -> Arc<BTreeMap<u32, Vitals>> {
        let now = self.now;
        let keeps = self.pace.of(self.pace.t.broadcast_cache);
        let expires = self.pace.of(self.pace.t.broadcast_expires);
        let turn = self.broadcasts.turn % 3;
        self.broadcasts.turn += 1;
        let newest = &self.broadcasts.newest;
        let cache = &mut self
            .broadcasts
            .workers
            .entry(server.to_owned())
            .or_default()[turn];
        if cache.read.is_none_or(|read| now >= read + keeps) {
            cache.read = Some(now);
            cache.broadcasts.clone_from(newest);
        }
        let fresh: Vec<&Broadcast> = cache
            .broadcasts
            .values()
            .filter(|it| now <= it.at + expires)
            .collect();
        if let [only] = fresh.as_slice() {
            return Arc::clone(&only.guests);
        }
        let mut all = BTreeMap::new();
        for broadcast in fresh {
            for (vmid, vitals) in broadcast.guests.iter() {
                all.insert(*vmid, vitals.clone());
            }
        }
        Arc::new(all)
    }

    /// `GET /cluster/resources`.
    pub(super) fn get_resources(
        &mut self,
        caller: &Caller,
        params: &Params,
        server: &str,
    ) -> Reply {
        let heard = self.heard(server);
        let wanted = params.text("type");
        let mut rows = Vec::new();
        if wanted.is_none() {
            self.list_pools(caller, &mut rows);
        }
        if matches!(wanted, None | Some("vm")) {
            self.list_guests(caller, &heard, &mut rows);
        }
        if matches!(wanted, None | Some("node")) {
            for (name, node) in &self.nodes {
                if !node.setup.resolvable {
                    continue;
                }
                let mut row = self.node_row(caller, name, server);
                if let Some(fields) = row.as_object_mut() {
                    fields.remove("ssl_fingerprint");
                    if fields["status"] == "online" {
                        fields.insert("cgroup-mode".to_owned(), json!(1));
                    }
                }
                rows.push(row);
            }
        }
        if matches!(wanted, None | Some("storage")) {
            self.list_storages(caller, &mut rows);
        }
        if matches!(wanted, None | Some("sdn")) {
            self.list_zones(caller, &mut rows);
        }
        Value::Array(rows).into()
    }

    fn list_pools(&self, caller: &Caller, rows: &mut Vec<Value>) {
        for pool in self.pools.keys() {
            if self
                .access
                .has(caller, &format!("/pool/{pool}"), "Pool.Audit", self)
            {
                rows.push(json!({"id": format!("/pool/{pool}"), "type": "pool", "pool": pool}));
            }
        }
    }

    fn list_guests(&self, caller: &Caller, heard: &BTreeMap<u32, Vitals>, rows: &mut Vec<Value>) {
        for (vmid, guest) in &self.guests {
            let path = format!("/vms/{vmid}");
            if !self.access.has(caller, &path, "VM.Audit", self) {
                continue;
            }
            let kind = if guest.container { "lxc" } else { "qemu" };
            let mut row = json!({
                "id": format!("{kind}/{vmid}"), "type": kind, "vmid": vmid, "node": guest.node,
                "status": "unknown",
            });
            if let Some(vitals) = heard.get(vmid) {
                row["name"] = json!(&*vitals.name);
                row["status"] = json!(vitals.status);
                row["template"] = json!(u8::from(vitals.template));
                row["uptime"] = json!(vitals.uptime);
                row["maxcpu"] = json!(vitals.cpus);
                row["maxmem"] = json!(vitals.memory);
                row["maxdisk"] = json!(vitals.disk);
                for zero in [
                    "cpu",
                    "mem",
                    "disk",
                    "netin",
                    "netout",
                    "diskread",
                    "diskwrite",
                ] {
                    row[zero] = json!(0);
                }
                if self.version >= 9 {
                    row["memhost"] = json!(0);
                }
            }
            for key in ["lock", "tags"] {
                if let Some(value) = guest.config.get(key) {
                    row[key] = json!(value);
                }
            }
            if guest.ha {
                row["hastate"] = json!("started");
            }
            if let Some(pool) = self.pool_of(*vmid)
                && self
                    .access
                    .has(caller, &format!("/pool/{pool}"), "Pool.Audit", self)
            {
                row["pool"] = json!(pool);
            }
            rows.push(row);
        }
    }

    fn list_zones(&self, caller: &Caller, rows: &mut Vec<Value>) {
        let path = "/sdn/zones/localnetwork";
        if !self.access.has(caller, path, "SDN.Audit", self) {
            return;
        }
        for (node, held) in self.nodes.iter().filter(|(_, it)| it.setup.resolvable) {
            let status = if held.up { "ok" } else { "unknown" };
            rows.push(if self.version >= 9 {
                json!({
                    "id": format!("network/{node}/zone/localnetwork"), "type": "network",
                    "network": "localnetwork", "network-type": "zone", "node": node,
                    "status": status,
                })
            } else {
                json!({
                    "id": format!("sdn/{node}/localnetwork"), "type": "sdn",
                    "sdn": "localnetwork", "node": node, "status": status,
                })
            });
        }
    }

    fn list_storages(&self, caller: &Caller, rows: &mut Vec<Value>) {
        for (node, held) in self.nodes.iter().filter(|(_, it)| it.setup.resolvable) {
            for storage in self.storages.values() {
                let name = &storage.setup.name;
                let path = format!("/storage/{name}");
                // The list of one node's storages is content with Datastore.AllocateSpace; this one
                // is not (pve-manager, PVE/API2/Cluster.pm).
                let sees = self.access.has(caller, &path, "Datastore.Audit", self);
                if !sees || !storage.setup.enabled || !storage.has_node(node) {
                    continue;
                }
                let mut row = json!({
                    "id": format!("storage/{node}/{name}"), "type": "storage", "storage": name,
                    "node": node, "shared": u8::from(storage.setup.shared),
                    "content": storage.setup.content.join(","),
                    "plugintype": storage.setup.kind,
                    "status": "unknown",
                });
                if held.up && storage.online {
                    row["status"] = json!("available");
                    row["disk"] = json!(self.space(storage, node).0);
                    row["maxdisk"] = json!(storage.setup.total);
                }
                rows.push(row);
            }
        }
    }
}
