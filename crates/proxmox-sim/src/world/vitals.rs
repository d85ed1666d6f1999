//! What is measured of a guest: its status as asked, and as broadcast.

use super::{
    World,
    access::Caller,
    answers::{Outcome, Refusal, Reply},
    guest::Machine,
    params::Params,
};
use serde_json::{Map, Value, json};

impl World {
    /// A machine whose configuration is on a node.
    pub(super) fn machine(&self, node: &str, vmid: u32) -> Result<&Machine, String> {
        self.guests
            .get(&vmid)
            .filter(|guest| guest.node == node && !guest.container)
            .ok_or_else(|| {
                format!("Configuration file 'nodes/{node}/qemu-server/{vmid}.conf' does not exist")
            })
    }

    /// As [`Self::machine`], for a call.
    pub(super) fn machine_or_missing(&self, node: &str, vmid: u32) -> Result<&Machine, Refusal> {
        self.machine(node, vmid).map_err(Refusal::died)
    }

    fn named(&self, params: &Params) -> Result<(u32, &Machine), Refusal> {
        let node = params.text("node").unwrap_or_default();
        let vmid = params.number("vmid").unwrap_or_default();
        Ok((vmid, self.machine_or_missing(node, vmid)?))
    }

    pub(super) fn get_config(&self, params: &Params) -> Outcome {
        let (_, guest) = self.named(params)?;
        Ok(guest.shown(params.flag("current"), self.schema()).into())
    }

    pub(super) fn get_pending(&self, params: &Params) -> Outcome {
        let (_, guest) = self.named(params)?;
        Ok(guest.shown_pending(self.schema()).into())
    }

    pub(super) fn get_snapshots(&self, params: &Params) -> Outcome {
        let (_, guest) = self.named(params)?;
        Ok(json!([{
            "name": "current", "description": "You are here!", "digest": guest.digest(),
            "running": u8::from(guest.running.is_some()),
        }])
        .into())
    }

    pub(super) fn get_cloudinit(&self, params: &Params) -> Outcome {
        self.named(params)?;
        Ok(json!([]).into())
    }

    /// `GET …/status/current`.
    pub(super) fn get_current(&self, params: &Params) -> Outcome {
        let (vmid, guest) = self.named(params)?;
        let mut status = self.vitals(vmid, guest);
        let managed = if guest.ha {
            let state = if guest.running.is_some() {
                "started"
            } else {
                "stopped"
            };
            json!({"managed": 1, "state": state})
        } else {
            json!({"managed": 0})
        };
        status.insert("ha".to_owned(), managed);
        status.insert("qmpstatus".to_owned(), qmp_status(guest).into());
        let config = &guest.config;
        if config.contains_key("vga") {
            status.insert("clipboard".to_owned(), Value::Null);
        }
        if Machine::agent_enabled(config) {
            status.insert("agent".to_owned(), json!(1));
        }
        let mut reply = Reply::from(Value::Object(status));
        if guest.running.as_ref().is_some_and(|running| running.hung) {
            reply.after = Some(self.pace.of(self.pace.t.agent_silence));
        }
        Ok(reply)
    }

    /// The fields that both the list and the single answer have.
    fn vitals(&self, vmid: u32, guest: &Machine) -> Map<String, Value> {
        let mut status = Map::new();
        let running = guest.running.as_ref();
        let seconds = running.map_or(0, |it| self.now.saturating_sub(it.since).as_secs());
        for (key, value) in [
            ("vmid", json!(vmid)),
            ("name", json!(guest.name_or(vmid))),
            (
                "status",
                json!(if running.is_some() {
                    "running"
                } else {
                    "stopped"
                }),
            ),
            ("cpus", json!(guest.cpus())),
            ("maxmem", json!(guest.memory())),
            ("maxdisk", json!(guest.boot_disk_size())),
            ("disk", json!(0)),
            ("mem", json!(0)),
            ("memhost", json!(0)),
            ("uptime", json!(seconds)),
            ("cpu", json!(0)),
            ("netin", json!(0)),
            ("netout", json!(0)),
        ] {
            status.insert(key.to_owned(), value);
        }
        if let Some(running) = running {
            status.insert("pid".to_owned(), running.pid.into());
            if self.version >= 9 {
                for what in ["cpu", "io", "memory"] {
                    for share in ["some", "full"] {
                        status.insert(format!("pressure{what}{share}"), json!(0));
                    }
                }
            }
        }
        if guest.is_template() {
            status.insert("template".to_owned(), json!(1));
        }
        for key in ["lock", "tags"] {
            if let Some(value) = guest.config.get(key) {
                status.insert(key.to_owned(), json!(value));
            }
        }
        let serial = guest
            .config
            .iter()
            .any(|(key, value)| key.starts_with("serial") && value == "socket");
        if serial {
            status.insert("serial".to_owned(), json!(1));
        }
        status
    }

    /// `GET /nodes/{node}/qemu`.
    pub(super) fn get_machines(&self, caller: &Caller, params: &Params) -> Reply {
        let node = params.text("node").unwrap_or_default();
        let rows: Vec<Value> = self
            .guests
            .iter()
            .filter(|(_, guest)| guest.node == node && !guest.container)
            .filter(|(vmid, _)| {
                self.access
                    .has(caller, &format!("/vms/{vmid}"), "VM.Audit", self)
            })
            .map(|(vmid, guest)| Value::Object(self.vitals(*vmid, guest)))
            .collect();
        Value::Array(rows).into()
    }
}

/// What QEMU says of itself, or what stands in for it.
pub(super) fn qmp_status(guest: &Machine) -> &'static str {
    match &guest.running {
        None => "stopped",
        Some(running) if running.hung => "running",
        Some(running) => running.qmp,
    }
}
