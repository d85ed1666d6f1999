//! Every privilege of the product's role taken away alone: what fails, and with which words.
//! `privileges.json` holds what running Proxmox VE code said to each step: the status, and the
//! reason phrase or the exit status of the task, or what an answer listed.

use crate::{
    rows::{data, encoded, form, upid_in},
    worlds::Worlds,
};
use egress_proxmox_sim::{
    exchange::{Answer, Request},
    world::World,
};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, time::Duration};

/// What each step said, by its name.
type Outcomes = BTreeMap<String, (u16, String)>;

const SECRET: &str = "00000000-0000-4000-8000-000000000009";
const BOUNDARY: &str = "B0UND";

struct Lab {
    world: World,
    root: String,
    now: Duration,
}

impl Lab {
    fn new(privileges: &[&str]) -> Self {
        let worlds = Worlds::load();
        let mut setup = serde_json::to_value(worlds.start("i")).expect("a setup");
        setup["roles"]["Min"] = json!(privileges);
        for (list, entry) in [
            ("users", json!({"id": "min@pve"})),
            (
                "tokens",
                json!({"id": "min@pve!mm", "secret": SECRET, "separated": false}),
            ),
            ("acl", json!({"path": "/", "who": "min@pve", "role": "Min"})),
        ] {
            setup[list].as_array_mut().expect("a list").push(entry);
        }
        Self {
            world: World::new(serde_json::from_value(setup).expect("a setup")),
            root: worlds.credential("FULL").expect("a credential"),
            now: Duration::from_mins(10),
        }
    }

    fn send(
        &mut self,
        credential: &str,
        method: &str,
        path: &str,
        kind: &str,
        body: Vec<u8>,
    ) -> (u16, String, Value) {
        let mut headers = vec![("authorization".to_owned(), credential.to_owned())];
        if !body.is_empty() {
            headers.push(("content-type".into(), kind.into()));
        }
        let request = Request {
            node: "pve1".into(),
            method: method.into(),
            target: format!("/api2/json{path}"),
            headers,
            body,
        };
        self.now += Duration::from_millis(100);
        match self.world.step(&request, self.now) {
            Answer::Response {
                status,
                reason,
                body,
                ..
            } => {
                let body = serde_json::from_slice::<Value>(&body).unwrap_or_default();
                (status, reason, body["data"].clone())
            }
            other => panic!("{method} {path}: {other:?}"),
        }
    }

    /// What a step says: its reason phrase, or its task's exit status as root reads it.
    fn outcome(&mut self, said: (u16, String, Value)) -> (u16, String, Value) {
        let (status, reason, data) = said;
        let Some(upid) = data.as_str().and_then(upid_in).map(str::to_owned) else {
            return (status, reason, data);
        };
        let root = self.root.clone();
        let path = format!("/nodes/pve1/tasks/{}/status", encoded(&upid));
        for _ in 0..600 {
            let (_, _, task) = self.send(&root, "GET", &path, "", Vec::new());
            if let Some(exit) = task["exitstatus"].as_str() {
                return (status, exit.to_owned(), data);
            }
        }
        panic!("{upid} does not end");
    }
}

fn upload() -> Vec<u8> {
    format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n--{BOUNDARY}\r\n\
         Content-Disposition: form-data; name=\"filename\"; filename=\"priv.iso\"\r\n\
         Content-Type: application/octet-stream\r\n\r\nabc\r\n--{BOUNDARY}--\r\n"
    )
    .into_bytes()
}

/// The names of an answer's parts, for reads that leave out what may not be seen.
fn seen(step: &str, data: &Value) -> Option<String> {
    let all = data.as_array()?;
    match step {
        "nodes" => {
            let keys: Vec<&str> = all[0].as_object()?.keys().map(String::as_str).collect();
            Some(keys.join(","))
        }
        "network" => {
            let mut names: Vec<&str> = all
                .iter()
                .filter_map(|entry| entry["iface"].as_str())
                .collect();
            names.sort_unstable();
            Some(names.join(","))
        }
        _ => None,
    }
}

fn life(privileges: &[&str]) -> Outcomes {
    let mut lab = Lab::new(privileges);
    let min = format!("PVEAPIToken=min@pve!mm={SECRET}");
    let root = lab.root.clone();
    let machine = "/nodes/pve1/qemu/180";
    let config = format!("{machine}/config");
    let set = |key: &str, value: &str| Some(json!({ key: value }));
    let steps: Vec<(&str, &str, String, Option<Value>)> = vec![
        (
            "clone",
            "POST",
            "/nodes/pve1/qemu/9000/clone".into(),
            Some(json!({"newid": 180, "full": 1, "storage": "vmdata", "name": "priv"})),
        ),
        ("config cores", "PUT", config.clone(), set("cores", "1")),
        ("config memory", "PUT", config.clone(), set("memory", "256")),
        (
            "config net0",
            "PUT",
            config.clone(),
            set("net0", "virtio=BC:24:11:00:00:05,bridge=vmbr0,tag=5"),
        ),
        ("config tags", "PUT", config.clone(), set("tags", "x")),
        ("config agent", "PUT", config.clone(), set("agent", "1")),
        (
            "config description",
            "PUT",
            config.clone(),
            set("description", "x"),
        ),
        (
            "config ide2 iso",
            "PUT",
            config.clone(),
            set("ide2", "isos:iso/priv.iso,media=cdrom"),
        ),
        ("config onboot", "PUT", config.clone(), set("onboot", "1")),
        ("config ciuser", "PUT", config.clone(), set("ciuser", "x")),
        ("config cpu type", "PUT", config.clone(), set("cpu", "host")),
        (
            "resize",
            "PUT",
            format!("{machine}/resize"),
            Some(json!({"disk": "scsi0", "size": "3G"})),
        ),
        (
            "start",
            "POST",
            format!("{machine}/status/start"),
            Some(json!({})),
        ),
        (
            "agent",
            "GET",
            format!("{machine}/agent/network-get-interfaces"),
            None,
        ),
        ("config GET", "GET", config, None),
        (
            "status GET",
            "GET",
            format!("{machine}/status/current"),
            None,
        ),
        (
            "resources",
            "GET",
            "/cluster/resources?type=vm".into(),
            None,
        ),
        ("nodes", "GET", "/nodes".into(), None),
        ("network", "GET", "/nodes/pve1/network".into(), None),
        (
            "stop",
            "POST",
            format!("{machine}/status/stop"),
            Some(json!({})),
        ),
        (
            "delete iso",
            "DELETE",
            "/nodes/pve1/storage/isos/content/isos:iso/priv.iso".into(),
            None,
        ),
        ("delete VM", "DELETE", format!("{machine}?purge=1"), None),
    ];
    let mut outcomes = Outcomes::new();
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let said = lab.send(
        &min,
        "POST",
        "/nodes/pve1/storage/isos/upload",
        &kind,
        upload(),
    );
    let (status, told, _) = lab.outcome(said);
    outcomes.insert("upload iso".into(), (status, told));
    if status != 200 {
        let said = lab.send(
            &root,
            "POST",
            "/nodes/pve1/storage/isos/upload",
            &kind,
            upload(),
        );
        assert_eq!(lab.outcome(said).1, "OK");
    }
    for (name, method, path, params) in steps {
        let body = params
            .as_ref()
            .and_then(Value::as_object)
            .map(|params: &Map<_, _>| form(params));
        let body = body.unwrap_or_default().into_bytes();
        let kind = "application/x-www-form-urlencoded";
        let said = lab.send(&min, method, &path, kind, body.clone());
        let (status, told, data) = lab.outcome(said);
        // What the token may not do, root does, so that the next step finds it done.
        if status == 403 && matches!(name, "clone" | "stop") {
            let said = lab.send(&root, method, &path, kind, body);
            assert_eq!(lab.outcome(said).1, "OK", "{name}");
        }
        let told = match (name, seen(name, &data)) {
            (_, Some(seen)) => seen,
            ("resources", None) => match data.as_array().map(Vec::len) {
                Some(0) => "0 rows".into(),
                _ => "some rows".into(),
            },
            _ => told,
        };
        outcomes.insert(name.into(), (status, told));
    }
    outcomes
}

#[test]
fn each_privilege_taken_away_alone_fails_what_it_failed_on_running_code_with_its_words() {
    let recorded: BTreeMap<String, Outcomes> =
        serde_json::from_str(&data("privileges.json")).expect("outcomes");
    let all: Vec<&str> = recorded
        .keys()
        .map(String::as_str)
        .filter(|key| *key != "(all)")
        .collect();
    for (privilege, recorded) in &recorded {
        let kept: Vec<&str> = all
            .iter()
            .copied()
            .filter(|kept| kept != privilege)
            .collect();
        for (step, (status, told)) in life(&kept) {
            let (recorded_status, recorded_told) = &recorded[&step];
            let recorded_told = match (step.as_str(), recorded_told.as_str()) {
                ("resources", rows) if rows != "0 rows" => "some rows",
                (_, told) => told,
            };
            assert_eq!(
                (status, told.as_str()),
                (*recorded_status, recorded_told),
                "{step} without {privilege}"
            );
        }
    }
}
