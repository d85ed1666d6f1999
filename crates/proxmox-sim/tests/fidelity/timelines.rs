//! What a reader sees while something is on its way: the recorded samples of `transitions.json`,
//! and the timelines that were tried on running Proxmox VE code.

use crate::{
    rows::{data, encoded, form, upid_in},
    worlds::Worlds,
};
use egress_proxmox_sim::{
    exchange::{Answer, Request},
    world::{Setup, World},
};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The broadcast of a node's state, with the cache that reads it.
const LAG: f64 = 12.1;

const BETWEEN_READS: f64 = 0.02;

struct Lab {
    world: World,
    credential: String,
    /// The time of the world, in seconds.
    now: f64,
}

/// What came back: status, reason phrase, and the body's `data`.
#[derive(Debug, PartialEq)]
struct Told {
    status: u16,
    reason: String,
    data: Value,
}

impl Lab {
    /// The lab of the recording with these guests beside template 9000, ten minutes after boot.
    fn new(change: impl FnOnce(&mut Setup)) -> Self {
        let worlds = Worlds::load();
        let mut setup = worlds.start("i");
        change(&mut setup);
        Self {
            world: World::new(setup),
            credential: worlds.credential("T1").expect("a credential"),
            now: 600.0,
        }
    }

    fn at(&mut self, now: f64) -> &mut Self {
        assert!(
            now >= self.now,
            "time goes forward: {now} after {}",
            self.now
        );
        self.now = now;
        self
    }

    fn send(&mut self, method: &str, path: &str, params: Option<&Value>) -> Told {
        let mut headers = vec![("authorization".to_owned(), self.credential.clone())];
        let body = params
            .and_then(Value::as_object)
            .map(|params: &Map<_, _>| form(params));
        if body.is_some() {
            headers.push((
                "content-type".into(),
                "application/x-www-form-urlencoded".into(),
            ));
        }
        let request = Request {
            node: "pve1".into(),
            method: method.into(),
            target: format!("/api2/json{path}"),
            headers,
            body: body.unwrap_or_default().into_bytes(),
        };
        match self.world.step(&request, Duration::from_secs_f64(self.now)) {
            Answer::Response {
                status,
                reason,
                body,
                ..
            } => Told {
                status,
                reason,
                data: serde_json::from_slice::<Value>(&body)
                    .map(|mut body| body["data"].take())
                    .unwrap_or_default(),
            },
            other => panic!("{method} {path}: {other:?}"),
        }
    }

    fn get(&mut self, path: &str) -> Told {
        self.send("GET", path, None)
    }

    /// Begins a task and answers its UPID.
    fn begin(&mut self, method: &str, path: &str, params: &Value) -> String {
        let params = (method != "DELETE").then_some(params);
        let told = self.send(method, path, params);
        let upid = upid_in(told.data.as_str().unwrap_or_default()).map(str::to_owned);
        upid.unwrap_or_else(|| panic!("{method} {path}: {told:?}"))
    }

    fn clone_to(&mut self, vmid: u32, more: &Value) -> String {
        let mut params = json!({"newid": vmid, "full": 1, "storage": "vmdata", "name": "trans"});
        params
            .as_object_mut()
            .expect("a map")
            .extend(more.as_object().expect("a map").clone());
        self.begin("POST", "/nodes/pve1/qemu/9000/clone", &params)
    }

    /// The exit status of a task, if it has ended.
    fn exit(&mut self, upid: &str) -> Option<String> {
        let told = self.get(&format!("/nodes/pve1/tasks/{}/status", encoded(upid)));
        told.data["exitstatus"].as_str().map(str::to_owned)
    }

    /// The exit status of a task and when it ended, to 10 ms, up to a limit.
    fn wait(&mut self, upid: &str, limit: f64) -> (String, f64) {
        let until = self.now + limit;
        while self.now < until {
            if let Some(exit) = self.exit(upid) {
                return (exit, self.now);
            }
            self.now += 0.01;
        }
        panic!("{upid} runs on after {limit} s");
    }

    fn config(&mut self, vmid: u32) -> Told {
        self.get(&format!("/nodes/pve1/qemu/{vmid}/config"))
    }

    fn listed(&mut self, vmid: u32) -> Option<Value> {
        let all = self.get("/cluster/resources?type=vm").data;
        all.as_array()?
            .iter()
            .find(|entry| entry["vmid"] == vmid)
            .cloned()
    }

    fn taken(&mut self, vmid: u32) -> bool {
        match self.get(&format!("/cluster/nextid?vmid={vmid}")).status {
            200 => false,
            400 => true,
            other => panic!("{other}"),
        }
    }

    fn control(&mut self, control: Value) {
        let control = serde_json::from_value(control).expect("a control");
        self.world
            .control(control, Duration::from_secs_f64(self.now))
            .expect("it is done");
    }
}

/// The template's copy takes so long.
fn slow(setup: &mut Setup, seconds: f64) {
    let template = setup.guests.iter_mut().find(|guest| guest.vmid == 9000);
    template.expect("the template").copy_seconds = seconds;
}

/// Keys that the broadcast brings, late; all others are live.
const LATE: &[&str] = &["status", "name", "template", "maxmem", "uptime"];

/// A recorded sample: seconds since the call, list, status, config.
type Sample = (f64, Value, Value, Value);

fn check(lab: &mut Lab, action: &str, began: f64, samples: &[Sample], earlier: &[Value]) {
    for (offset, list, current, config) in samples {
        // Each sample is three reads, one after the other, with the configuration last.
        lab.at(began + offset - BETWEEN_READS);
        let place = format!("{action} after {offset} s");
        let ours = lab.listed(181);
        match list {
            Value::Null => assert_eq!(ours, None, "{place}"),
            Value::Object(list) => {
                let ours = ours.unwrap_or_else(|| panic!("{place}: not listed"));
                for (key, recorded) in list {
                    let value = if key == "uptime" {
                        json!(ours["uptime"].as_u64().unwrap_or(0) > 0)
                    } else {
                        ours[key].clone()
                    };
                    if LATE.contains(&key.as_str()) {
                        // Which broadcast a worker has read is chance: any value that was seen
                        // before or during this action may still, or already, be there.
                        let seen = samples
                            .iter()
                            .map(|sample| &sample.1[key])
                            .chain(earlier.iter().map(|list| &list[key]))
                            .any(|seen| *seen == value);
                        assert!(seen, "{place}: {key} is {value}, recorded {recorded}");
                    } else {
                        assert_eq!(&value, recorded, "{place}: {key}");
                    }
                }
            }
            other => panic!("{other}"),
        }
        for (path, recorded) in [("status/current", current), ("config", config)] {
            if path == "config" {
                lab.at(began + offset);
            }
            let ours = lab.get(&format!("/nodes/pve1/qemu/181/{path}"));
            match recorded {
                Value::String(reason) => assert_eq!(&ours.reason, reason, "{place}: {path}"),
                Value::Object(recorded) => {
                    for (key, recorded) in recorded {
                        assert_eq!(&ours.data[key], recorded, "{place}: {path} {key}");
                    }
                }
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn what_is_live_and_what_lags_is_as_sampled_through_the_life_of_a_machine() {
    let transitions: Map<String, Value> =
        serde_json::from_str(&data("transitions.json")).expect("samples");
    let samples = |action: &str| -> Vec<Sample> {
        serde_json::from_value(transitions[action].clone()).expect("samples")
    };
    let lists = |action: &str| -> Vec<Value> {
        samples(action).into_iter().map(|sample| sample.1).collect()
    };
    let mut lab = Lab::new(|_| {});
    let began = lab.now;
    let clone = lab.clone_to(181, &json!({}));
    check(&mut lab, "clone", began, &samples("clone"), &[]);
    assert_eq!(lab.exit(&clone).as_deref(), Some("OK"));

    let began = lab.now + LAG;
    lab.at(began);
    let told = lab.send(
        "PUT",
        "/nodes/pve1/qemu/181/config",
        Some(&json!({"tags": "x;y", "memory": 256})),
    );
    assert_eq!(told.status, 200);
    check(
        &mut lab,
        "config",
        began,
        &samples("config"),
        &lists("clone"),
    );

    let began = lab.now + LAG;
    lab.at(began)
        .begin("POST", "/nodes/pve1/qemu/181/status/start", &json!({}));
    check(
        &mut lab,
        "start",
        began,
        &samples("start"),
        &lists("config"),
    );

    let began = lab.now + LAG;
    lab.at(began)
        .begin("POST", "/nodes/pve1/qemu/181/status/stop", &json!({}));
    check(&mut lab, "stop", began, &samples("stop"), &lists("start"));

    let began = lab.now + LAG;
    lab.at(began)
        .begin("DELETE", "/nodes/pve1/qemu/181?purge=1", &Value::Null);
    check(
        &mut lab,
        "delete",
        began,
        &samples("delete"),
        &lists("stop"),
    );
}

#[test]
fn a_clone_of_one_disk_is_nameless_and_markless_until_the_copy_has_ended() {
    let mut lab = Lab::new(|setup| slow(setup, 15.0));
    let began = lab.now;
    let clone = lab.clone_to(161, &json!({"description": "mark"}));
    for after in [0.2, 5.0, 14.5] {
        lab.at(began + after);
        assert!(lab.taken(161));
        let mut config = lab.config(161).data;
        config
            .as_object_mut()
            .expect("a configuration")
            .remove("digest");
        assert_eq!(
            config,
            json!({"lock": "clone", "description": " qmclone temporary file"}),
            "after {after} s"
        );
        assert_eq!(lab.listed(161).expect("listed")["lock"], "clone");
    }
    // A broadcast has come by: the list gives it the name that a nameless machine has.
    assert_eq!(lab.listed(161).expect("listed")["name"], "VM 161");
    let (exit, ended) = lab.wait(&clone, 5.0);
    assert_eq!(exit, "OK");
    assert_eq!(lab.config(161).data["description"], "mark");
    let entry = lab.listed(161).expect("listed");
    assert_eq!(entry["lock"], Value::Null, "the lock is live");
    assert_eq!(entry["name"], "VM 161", "the name is not");
    lab.at(ended + LAG);
    assert_eq!(lab.listed(161).expect("listed")["name"], "trans");
}

#[test]
fn a_clone_of_two_disks_shows_its_mark_after_the_first_and_stays_locked() {
    let mut lab = Lab::new(|setup| {
        let template = setup
            .guests
            .iter_mut()
            .find(|guest| guest.vmid == 9000)
            .expect("the template");
        template.config.insert(
            "scsi1".into(),
            "vmdata:9000/base-9000-disk-1.qcow2,size=1G".into(),
        );
        template.config.insert("tags".into(), "of-template".into());
        slow(setup, 10.0);
    });
    let began = lab.now;
    let clone = lab.clone_to(161, &json!({"description": "mark"}));
    lab.at(began + 5.0);
    assert_eq!(
        lab.config(161).data["description"],
        " qmclone temporary file"
    );
    lab.at(began + 15.0);
    let config = lab.config(161).data;
    assert_eq!(config["lock"], "clone");
    for (key, value) in [
        ("name", "trans"),
        ("description", "mark"),
        ("tags", "of-template"),
    ] {
        assert_eq!(config[key], value);
    }
    assert!(
        config["net0"].is_string() && config["scsi0"].is_string(),
        "{config}"
    );
    assert_eq!(config["scsi1"], Value::Null, "not copied yet");
    assert_eq!(
        lab.listed(161).expect("listed")["tags"],
        "of-template",
        "tags are live"
    );
    assert_eq!(lab.wait(&clone, 10.0).0, "OK");
    assert!(lab.config(161).data["scsi1"].is_string());
}

#[test]
fn a_clone_into_a_pool_may_look_finished_and_still_be_rolled_back() {
    let mut lab = Lab::new(|_| {});
    lab.control(json!({"do": "hold-users", "seconds": 30.0}));
    let began = lab.now;
    let clone = lab.clone_to(181, &json!({"pool": "pool1", "description": "mark"}));
    lab.at(began + 5.0);
    let config = lab.config(181).data;
    assert_eq!(
        (&config["lock"], &config["description"]),
        (&Value::Null, &json!("mark"))
    );
    assert_eq!(lab.exit(&clone), None);
    let (exit, ended) = lab.wait(&clone, 15.0);
    assert_eq!(
        exit,
        "clone failed: can't add VM 181 to pool 'pool1': cfs-lock 'file-user_cfg' error: got lock request timeout"
    );
    assert!((9.5..12.0).contains(&(ended - began)), "{}", ended - began);
    assert!(!lab.taken(181));
}

#[test]
fn of_two_clones_to_one_number_one_wins_and_the_other_harms_nothing() {
    // A short one: the loser waits for the lock and finds the number taken.
    let mut lab = Lab::new(|_| {});
    let (first, second) = (lab.clone_to(163, &json!({})), lab.clone_to(163, &json!({})));
    assert_eq!(lab.wait(&first, 5.0).0, "OK");
    assert_eq!(
        lab.wait(&second, 5.0).0,
        "unable to create VM 163: config file already exists"
    );
    assert_eq!(lab.config(163).data["name"], "trans");

    // A long one: the loser gives up after a second.
    let mut lab = Lab::new(|setup| slow(setup, 5.0));
    let began = lab.now;
    let (first, second) = (lab.clone_to(163, &json!({})), lab.clone_to(163, &json!({})));
    let (exit, ended) = lab.wait(&second, 5.0);
    assert_eq!(
        exit,
        "can't lock file '/var/lock/qemu-server/lock-163.conf' - got timeout"
    );
    assert!((0.9..1.3).contains(&(ended - began)), "{}", ended - began);
    assert_eq!(lab.wait(&first, 10.0).0, "OK");

    // A later one is refused in the request.
    let told = lab.send(
        "POST",
        "/nodes/pve1/qemu/9000/clone",
        Some(&json!({"newid": 163, "full": 1})),
    );
    assert_eq!(
        (told.status, told.reason.as_str()),
        (500, "unable to create VM 163: config file already exists")
    );
}

#[test]
fn a_start_waits_ten_seconds_for_a_clone_and_then_gives_up() {
    let mut lab = Lab::new(|setup| slow(setup, 30.0));
    let clone = lab.clone_to(161, &json!({}));
    let began = lab.now + 1.0;
    let start = lab
        .at(began)
        .begin("POST", "/nodes/pve1/qemu/161/status/start", &json!({}));
    let (exit, ended) = lab.wait(&start, 15.0);
    assert_eq!(
        exit,
        "can't lock file '/var/lock/qemu-server/lock-161.conf' - got timeout"
    );
    assert!((9.9..10.5).contains(&(ended - began)), "{}", ended - began);
    assert_eq!(lab.wait(&clone, 40.0).0, "OK");
}

#[test]
fn a_killed_clone_leaves_a_lock_that_only_the_node_can_take_away() {
    let mut lab = Lab::new(|setup| slow(setup, 10.0));
    let clone = lab.clone_to(152, &json!({}));
    let killed = lab.now + 2.0;
    lab.at(killed)
        .control(json!({"do": "kill-tasks", "kind": "qmclone"}));
    assert_eq!(lab.exit(&clone).as_deref(), Some("unexpected status"));
    let later = lab.now + 60.0;
    lab.at(later);
    let mut config = lab.config(152).data;
    config
        .as_object_mut()
        .expect("a configuration")
        .remove("digest");
    assert_eq!(
        config,
        json!({"lock": "clone", "description": " qmclone temporary file"})
    );
    let told = lab.send(
        "PUT",
        "/nodes/pve1/qemu/152/config",
        Some(&json!({"memory": 256})),
    );
    assert_eq!(
        (told.status, told.reason.as_str()),
        (500, "VM is locked (clone)")
    );
    for (method, path) in [("POST", "152/status/start"), ("DELETE", "152?purge=1")] {
        let task = lab.begin(method, &format!("/nodes/pve1/qemu/{path}"), &json!({}));
        assert_eq!(lab.wait(&task, 15.0).0, "VM is locked (clone)", "{path}");
    }
    lab.control(json!({"do": "unlock", "vmid": 152}));
    let destroy = lab.begin("DELETE", "/nodes/pve1/qemu/152?purge=1", &Value::Null);
    assert_eq!(lab.wait(&destroy, 5.0).0, "OK");
    let left = lab.get("/nodes/pve1/storage/vmdata/content?vmid=152").data;
    assert_eq!(
        left[0]["volid"], "vmdata:152/vm-152-disk-0.qcow2",
        "the copy is left behind: {left}"
    );
}

#[test]
fn a_busy_storage_fails_a_clone_without_a_trace_and_a_destroy_with_one() {
    let mut lab = Lab::new(|_| {});
    lab.control(json!({"do": "hold-storage", "storage": "vmdata", "seconds": 15.0}));
    let clone = lab.clone_to(161, &json!({}));
    assert_eq!(
        lab.wait(&clone, 15.0).0,
        "clone failed: can't lock file '/var/lock/pve-manager/pve-storage-vmdata' - got timeout"
    );
    assert!(!lab.taken(161));

    let later = lab.now + 20.0;
    let clone = lab.at(later).clone_to(161, &json!({}));
    assert_eq!(lab.wait(&clone, 5.0).0, "OK");
    lab.control(json!({"do": "hold-storage", "storage": "vmdata", "seconds": 15.0}));
    let destroy = lab.begin("DELETE", "/nodes/pve1/qemu/161?purge=1", &Value::Null);
    let waiting = lab.now + 5.0;
    lab.at(waiting);
    let config = lab.config(161).data;
    assert_eq!(
        config["lock"],
        Value::Null,
        "it looks whole while its disks are removed"
    );
    assert_eq!(lab.wait(&destroy, 15.0).0, "WARNINGS: 1");
    assert!(!lab.taken(161));
    let left = lab.get("/nodes/pve1/storage/vmdata/content?vmid=161").data;
    assert_eq!(left[0]["volid"], "vmdata:161/vm-161-disk-0.qcow2", "{left}");
}

#[test]
fn a_hung_machine_stops_after_more_than_a_minute_whatever_was_asked() {
    let mut lab = Lab::new(|_| {});
    let clone = lab.clone_to(161, &json!({}));
    lab.wait(&clone, 5.0);
    let start = lab.begin("POST", "/nodes/pve1/qemu/161/status/start", &json!({}));
    lab.wait(&start, 5.0);
    lab.control(json!({"do": "power", "vmid": 161, "event": "hung"}));
    let began = lab.now;
    let stop = lab.begin(
        "POST",
        "/nodes/pve1/qemu/161/status/stop",
        &json!({"timeout": 3}),
    );
    let (exit, ended) = lab.wait(&stop, 100.0);
    assert_eq!(exit, "OK");
    assert!((70.0..73.0).contains(&(ended - began)), "{}", ended - began);
}

#[test]
fn a_silent_agent_costs_three_seconds_and_answers_only_after_the_boot() {
    let mut lab = Lab::new(|_| {});
    let clone = lab.clone_to(161, &json!({}));
    lab.wait(&clone, 5.0);
    let start = lab.begin("POST", "/nodes/pve1/qemu/161/status/start", &json!({}));
    let (_, started) = lab.wait(&start, 5.0);
    let path = "/nodes/pve1/qemu/161/agent/network-get-interfaces";
    let request = Request {
        node: "pve1".into(),
        method: "GET".into(),
        target: format!("/api2/json{path}"),
        headers: vec![("authorization".into(), lab.credential.clone())],
        body: Vec::new(),
    };
    match lab
        .world
        .step(&request, Duration::from_secs_f64(started + 1.0))
    {
        Answer::Response {
            status,
            reason,
            after,
            ..
        } => {
            assert_eq!(
                (status, reason.as_str()),
                (500, "QEMU guest agent is not running")
            );
            assert!((2.9..3.3).contains(&after.as_secs_f64()), "{after:?}");
        }
        other => panic!("{other:?}"),
    }
    lab.at(started + 12.0);
    assert_eq!(lab.get(path).status, 200);
}
