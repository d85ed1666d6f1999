//! What people reported of systems like this one, tried on this one: every test begins with the
//! id of its report in docs/field-reports.md.

#[path = "../bench/mod.rs"]
mod bench;
#[path = "../bench/scene.rs"]
mod scene;

mod cluster;
mod creation;
mod deletion;
mod engine;
mod machine;
mod tasks;

use bench::two_nodes;
use egress_proxmox_sim::world::Setup;
use serde_json::{Value, json};

/// A world in which a full copy of the template's disk takes so many seconds.
fn slow_copies(seconds: f64) -> Setup {
    let mut setup = Setup::default();
    setup.guests[0].copy_seconds = seconds;
    setup
}

/// The usual world, and the rights of the product, on one of the versions.
fn of_version(version: u8) -> Setup {
    let mut setup = Setup {
        version,
        ..Setup::default()
    };
    if version == 8 {
        for privileges in setup.roles.values_mut() {
            privileges.retain(|privilege| !privilege.starts_with("VM.GuestAgent"));
            privileges.push("VM.Monitor".to_owned());
        }
    }
    setup
}

/// Two nodes whose storages both see.
fn shared_storage() -> Setup {
    let mut setup = two_nodes();
    for storage in &mut setup.storages {
        storage.shared = true;
    }
    setup
}

/// The cluster's list as it may be for some seconds after a clone: without the new machine.
fn list_without_machines() -> Value {
    let storage = |name: &str| json!({"type": "storage", "storage": name, "node": "pve1", "id": format!("storage/pve1/{name}"), "status": "available"});
    let list = json!([
        {"type": "node", "node": "pve1", "id": "node/pve1", "status": "online", "maxmem": 68_719_476_736_u64, "mem": 2_517_667_840_u64},
        {"type": "qemu", "vmid": 9000, "node": "pve1", "id": "qemu/9000", "status": "stopped", "name": "tmpl-debian", "template": 1},
        storage("local-lvm"),
        storage("proxy-seeds"),
    ]);
    instead("/cluster/resources", 200, "OK", &json!({ "data": list }))
}

/// The order that something else answers whatever is asked below a path.
fn instead(path: &str, status: u16, reason: &str, body: &Value) -> Value {
    json!({
        "do": "answer-with",
        "path": path,
        "status": status,
        "reason": reason,
        "body": body.to_string(),
        "contentType": "application/json;charset=UTF-8",
    })
}

/// The same for the next so many requests alone.
fn times(count: u32, mut order: Value) -> Value {
    order["count"] = json!(count);
    order
}

/// The order that every task of a type has ended so, whatever it does.
fn task_ended(kind: &str, how: &str) -> Value {
    let status = json!({"data": {"status": "stopped", "exitstatus": how}});
    instead(&format!("%3A{kind}%3A"), 200, "OK", &status)
}
