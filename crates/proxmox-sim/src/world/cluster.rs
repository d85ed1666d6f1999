//! The cluster and its nodes: numbers, options, quorum, certificates, networks, clocks.

use super::{
    World,
    access::Caller,
    answers::{Outcome, Refusal, Reply},
    draw,
    guest::Machine,
    params::Params,
};
use serde_json::{Value, json};

impl World {
    /// `GET /version`, of the node asked.
    pub(super) fn get_version(&self) -> Reply {
        match self.setup.version {
            7 => json!({"version": "7.4-16", "release": "7.4", "repoid": "0f39f621"}),
            8 => json!({"version": "8.4.14", "release": "8.4", "repoid": "b502d23c55afcba1"}),
            _ => json!({"version": "9.2.11", "release": "9.2", "repoid": "14a22df35955d97d"}),
        }
        .into()
    }

    /// `GET /cluster/nextid`: whether a number is free is known without any privilege.
    pub(super) fn get_nextid(&self, params: &Params) -> Outcome {
        if let Some(vmid) = params.number::<u32>("vmid") {
            if self.guests.contains_key(&vmid) {
                return Err(Refusal::parameter(
                    "vmid",
                    format!("VM {vmid} already exists"),
                ));
            }
            return Ok(json!(vmid.to_string()).into());
        }
        let (lower, upper) = (self.datacenter.next_id_lower, self.datacenter.next_id_upper);
        match (lower..upper).find(|vmid| !self.guests.contains_key(vmid)) {
            Some(vmid) => Ok(json!(vmid.to_string()).into()),
            None => Err(Refusal::died(format!(
                "unable to get any free VMID in range [{lower}, {upper}]"
            ))),
        }
    }

    /// Whether a caller may use all tags, and which others it may; `None` for any but the
    /// registered ones.
    pub(super) fn allowed_tags(&self, caller: &Caller) -> (bool, Option<Vec<String>>) {
        let privileged = self.access.has(caller, "/", "Sys.Modify", self);
        let existing = || {
            let mut tags: Vec<String> = self
                .guests
                .values()
                .filter_map(|guest| guest.config.get("tags"))
                .flat_map(|tags| super::schema::split_list(tags).map(str::to_owned))
                .filter(|tag| !self.datacenter.registered_tags.contains(tag))
                .collect();
            tags.sort();
            tags.dedup();
            tags
        };
        let free = match self.datacenter.user_allow.as_str() {
            "none" => Some(Vec::new()),
            "list" => Some(self.datacenter.user_allow_list.clone()),
            "existing" => Some(existing()),
            _ => None,
        };
        (privileged, free)
    }

    /// `GET /cluster/options`: without Sys.Audit only what everyone may know.
    pub(super) fn get_options(&self, caller: &Caller) -> Reply {
        let (privileged, free) = self.allowed_tags(caller);
        let mut allowed: Vec<String> = match free {
            Some(list) => list,
            None => self
                .guests
                .values()
                .filter_map(|guest| guest.config.get("tags"))
                .flat_map(|tags| super::schema::split_list(tags).map(str::to_owned))
                .filter(|tag| privileged || !self.datacenter.registered_tags.contains(tag))
                .collect(),
        };
        if privileged {
            allowed.extend(self.datacenter.registered_tags.clone());
        }
        allowed.sort();
        allowed.dedup();
        let mut options = json!({"allowed-tags": allowed});
        let auditor = self.access.has(caller, "/", "Sys.Audit", self);
        if auditor {
            options["mac_prefix"] = json!(self.datacenter.mac_prefix);
            options["keyboard"] = json!("en-us");
        }
        if self.datacenter.user_allow != "free" {
            let mut access = json!({"user-allow": self.datacenter.user_allow});
            if !self.datacenter.user_allow_list.is_empty() {
                access["user-allow-list"] = json!(self.datacenter.user_allow_list);
            }
            options["user-tag-access"] = access;
        }
        if !self.datacenter.registered_tags.is_empty() {
            options["registered-tags"] = json!(self.datacenter.registered_tags);
        }
        if self.datacenter.case_sensitive_tags {
            options["tag-style"] = json!({"case-sensitive": 1});
        }
        options.into()
    }

    /// `GET /cluster/status`.
    pub(super) fn get_cluster_status(&self, server: &str) -> Reply {
        let mut rows = Vec::new();
        if let Some(name) = &self.setup.cluster {
            rows.push(json!({
                "type": "cluster", "id": "cluster", "name": name, "version": 3,
                "nodes": self.nodes.len(), "quorate": u8::from(self.has_quorum()),
            }));
        }
        for (at, (name, node)) in self.nodes.iter().enumerate() {
            let nodeid = if self.setup.cluster.is_some() {
                at + 1
            } else {
                0
            };
            rows.push(json!({
                "type": "node", "id": format!("node/{name}"), "name": name, "nodeid": nodeid,
                "ip": node.setup.address, "online": u8::from(node.up),
                "local": u8::from(name == server), "level": "",
            }));
        }
        Value::Array(rows).into()
    }

    /// A node as the lists show it.
    pub(super) fn node_row(&self, caller: &Caller, name: &str, server: &str) -> Value {
        let Some(node) = self.nodes.get(name) else {
            return Value::Null;
        };
        let online = node.up && (self.has_quorum() || name == server);
        let status = if online {
            "online"
        } else if node.up {
            "unknown"
        } else {
            "offline"
        };
        let mut row = json!({
            "id": format!("node/{name}"), "node": name, "type": "node", "status": status,
            "level": "", "ssl_fingerprint": self.fingerprint(name),
        });
        let auditor = self
            .access
            .has(caller, &format!("/nodes/{name}"), "Sys.Audit", self);
        if online && auditor {
            row["cpu"] = json!(0.02);
            row["maxcpu"] = json!(node.setup.cpus);
            row["mem"] = json!(self.memory_used(name));
            row["maxmem"] = json!(node.setup.memory);
            row["disk"] = json!(node.setup.disk_used);
            row["maxdisk"] = json!(node.setup.disk);
            row["uptime"] = json!(self.uptime(name));
        }
        row
    }

    /// `GET /nodes`.
    pub(super) fn get_nodes(&self, caller: &Caller, server: &str) -> Reply {
        let rows: Vec<Value> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.setup.resolvable)
            .map(|(name, _)| self.node_row(caller, name, server))
            .collect();
        Value::Array(rows).into()
    }

    fn uptime(&self, name: &str) -> u64 {
        self.nodes.get(name).map_or(0, |node| {
            let passed = self.now.saturating_sub(node.since).as_secs();
            if node.since.is_zero() {
                node.setup.uptime + passed
            } else {
                passed
            }
        })
    }

    /// Memory in use on a node, in bytes: its own, that of running guests, and what someone
    /// filled up.
    pub(super) fn memory_used(&self, name: &str) -> u64 {
        let Some(node) = self.nodes.get(name) else {
            return 0;
        };
        let guests: u64 = self
            .guests
            .values()
            .filter(|guest| guest.node == name && guest.running.is_some())
            .map(Machine::memory)
            .sum();
        let filled = self.faults.memory.get(name).copied().unwrap_or(0);
        (node.setup.memory_used + guests + filled).min(node.setup.memory)
    }

    /// `GET /nodes/{node}/status`.
    pub(super) fn get_node_status(&self, params: &Params) -> Reply {
        let name = params.text("node").unwrap_or_default();
        let Some(node) = self.nodes.get(name) else {
            return Value::Null.into();
        };
        let used = self.memory_used(name);
        let total = node.setup.memory;
        let version = if self.version == 8 {
            "pve-manager/8.4.14/b502d23c55afcba1"
        } else {
            "pve-manager/9.2.11/14a22df35955d97d"
        };
        let kernel = "6.18.44-fc-v595";
        json!({
            "pveversion": version,
            "uptime": self.uptime(name),
            "kversion": format!("Linux {kernel} #1 SMP PREEMPT_DYNAMIC @0"),
            "current-kernel": {"release": kernel, "machine": "x86_64", "sysname": "Linux", "version": "#1 SMP PREEMPT_DYNAMIC @0"},
            "boot-info": {"mode": "legacy-bios"},
            "cpuinfo": {
                "cores": node.setup.cpus, "cpus": node.setup.cpus, "sockets": 1, "hvm": "",
                "family": "25", "model": "AMD EPYC", "vendor": "AuthenticAMD", "mhz": "2596.138",
                "user_hz": 100, "flags": "fpu vme de pse tsc msr",
            },
            "cpu": 0, "idle": 0, "wait": 0, "loadavg": ["0.10", "0.10", "0.10"],
            "ksm": {"shared": 0},
            "memory": {"total": total, "used": used, "free": total - used, "available": total - used},
            "swap": {"total": 0, "used": 0, "free": 0},
            "rootfs": {
                "total": node.setup.disk, "used": node.setup.disk_used,
                "free": node.setup.disk - node.setup.disk_used,
                "avail": node.setup.disk - node.setup.disk_used,
            },
        })
        .into()
    }

    /// `GET /nodes/{node}/time`.
    pub(super) fn get_time(&self, params: &Params) -> Reply {
        let time = self.time_of_day(params.text("node").unwrap_or_default());
        json!({"time": time, "localtime": time, "timezone": "UTC"}).into()
    }

    /// `GET /nodes/{node}/network`.
    pub(super) fn get_network(&self, caller: &Caller, params: &Params) -> Reply {
        let name = params.text("node").unwrap_or_default();
        let address = self
            .nodes
            .get(name)
            .map_or("", |node| node.setup.address.as_str());
        let gateway = address
            .rsplit_once('.')
            .map_or(String::new(), |(net, _)| format!("{net}.1"));
        let wanted = params.text("type");
        let mut rows = Vec::new();
        let mut priority = 3;
        let mut addressed = false;
        let mut bridges = Vec::new();
        for bridge in &self.setup.bridges {
            let first = !addressed && !bridge.port.is_empty();
            addressed |= first;
            let mut row = json!({
                "iface": bridge.name, "type": "bridge", "method": "manual", "method6": "manual",
                "families": ["inet"], "autostart": 1, "bridge_ports": bridge.port,
                "bridge_stp": "off", "bridge_fd": "0",
            });
            if bridge.vlan_aware {
                row["bridge_vlan_aware"] = json!(1);
                row["bridge_vids"] = json!("2-4094");
            }
            if first {
                row["method"] = json!("static");
                row["address"] = json!(address);
                row["netmask"] = json!("24");
                row["cidr"] = json!(format!("{address}/24"));
                row["gateway"] = json!(gateway);
            }
            if !bridge.port.is_empty() && wanted.is_none_or(|it| it == "eth") {
                rows.push(json!({
                    "iface": bridge.port, "type": "eth", "method": "manual", "method6": "manual",
                    "families": ["inet"], "exists": 1, "active": 1, "priority": priority,
                }));
                priority += 1;
            }
            let path = format!("/sdn/zones/localnetwork/{}", bridge.name);
            let got = self.access.privileges(&caller.id, &path, self);
            if got.contains_key("SDN.Use") || got.contains_key("SDN.Audit") {
                bridges.push(row);
            }
        }
        let shows = matches!(
            wanted,
            None | Some("bridge" | "any_bridge" | "any_local_bridge" | "include_sdn")
        );
        for (at, mut row) in bridges.into_iter().enumerate() {
            row["priority"] = json!(4 + at);
            if shows {
                rows.push(row);
            }
        }
        Value::Array(rows).into()
    }

    /// A fingerprint that depends on the cluster and what it is of.
    fn fingerprint(&self, of: &str) -> String {
        let mut state = self.identity ^ 0x5eed_0000_0000_0000;
        for byte in of.bytes() {
            state = state.wrapping_mul(31).wrapping_add(u64::from(byte));
        }
        let bytes: Vec<String> = (0..4)
            .flat_map(|_| draw(&mut state).to_be_bytes())
            .map(|byte| format!("{byte:02X}"))
            .collect();
        bytes.join(":")
    }

    /// The fingerprint of the cluster's certificate authority.
    pub(super) fn ca_fingerprint(&self) -> String {
        match &self.setup.ca_fingerprint {
            Some(known) if self.identity == self.setup.seed => known.clone(),
            _ => self.fingerprint("pve-root-ca.pem"),
        }
    }

    /// `GET /nodes/{node}/certificates/info`.
    pub(super) fn get_certificates(&self, params: &Params) -> Reply {
        let name = params.text("node").unwrap_or_default();
        let from = self.setup.epoch - 86_400;
        let issuer = format!(
            "/CN=Proxmox Virtual Environment/OU={:08x}-0000-4000-8000-000000000000/O=PVE Cluster Manager CA",
            self.identity & 0xffff_ffff
        );
        let address = self
            .nodes
            .get(name)
            .map_or("", |node| node.setup.address.as_str());
        json!([
            {
                "filename": "pve-root-ca.pem", "fingerprint": self.ca_fingerprint(),
                "issuer": issuer, "subject": issuer, "notbefore": from,
                "notafter": from + 315_360_000_u64, "public-key-bits": 4096,
                "public-key-type": "rsaEncryption", "san": [], "pem": "",
            },
            {
                "filename": "pve-ssl.pem", "fingerprint": self.fingerprint(name),
                "issuer": issuer,
                "subject": format!("/OU=PVE Cluster Node/O=Proxmox Virtual Environment/CN={name}"),
                "notbefore": from, "notafter": from + 63_072_000_u64, "public-key-bits": 2048,
                "public-key-type": "rsaEncryption", "san": ["127.0.0.1", "localhost", address, name],
                "pem": "",
            },
        ])
        .into()
    }
}
