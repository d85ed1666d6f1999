//! What goes wrong, and what is left then.

use super::*;

#[test]
fn a_killed_clone_leaves_its_lock_and_its_volume() {
    let mut setup = Setup::default();
    setup.guests[0].copy_seconds = 30.0;
    let mut client = Client::new(setup);
    let posted = client.send(
        "POST",
        "/nodes/pve1/qemu/9000/clone",
        &[("newid", "101"), ("full", "1")],
    );
    client.pass(5.0);
    assert_eq!(
        client.control(json!({"do": "kill-tasks", "kind": "qmclone"})),
        1
    );
    let upid = posted.body["data"].as_str().unwrap().to_owned();
    assert_eq!(client.end_of(&upid), "unexpected status");
    assert_eq!(
        client.task("DELETE", "/nodes/pve1/qemu/101", &[]),
        "VM is locked (clone)"
    );
    client.control(json!({"do": "unlock", "vmid": 101}));
    assert_eq!(client.task("DELETE", "/nodes/pve1/qemu/101", &[]), "OK");
    let left = client.world.inventory();
    assert!(
        left.iter()
            .any(|line| line.contains("local-lvm:vm-101-disk-0")),
        "{left:?}"
    );
}

#[test]
fn a_user_file_that_is_locked_rolls_a_finished_clone_back() {
    let mut client = client();
    client.control(json!({"do": "hold-users", "seconds": 60}));
    let exit = client.task(
        "POST",
        "/nodes/pve1/qemu/9000/clone",
        &[("newid", "101"), ("full", "1"), ("pool", "egress")],
    );
    assert_eq!(
        exit,
        "clone failed: can't add VM 101 to pool 'egress': cfs-lock 'file-user_cfg' error: got lock request timeout"
    );
    assert_eq!(client.get("/cluster/nextid?vmid=101").status, 200);
}

#[test]
fn a_lost_answer_lands_at_once_or_never_or_late() {
    let mut client = client();
    let form = b"newid=101&full=1".as_slice();
    let kind = "application/x-www-form-urlencoded";
    let path = "/nodes/pve1/qemu/9000/clone";
    client.control(json!({"do": "lose-answer", "landing": "lost"}));
    assert!(matches!(
        client.answer("POST", path, form, kind),
        Answer::Dropped { .. }
    ));
    client.pass(5.0);
    assert_eq!(client.get("/cluster/nextid?vmid=101").status, 200);
    client.control(json!({"do": "lose-answer", "landing": "late", "seconds": 20}));
    client.answer("POST", path, form, kind);
    client.pass(10.0);
    assert_eq!(client.get("/cluster/nextid?vmid=101").status, 200);
    client.pass(15.0);
    assert_eq!(client.get("/cluster/nextid?vmid=101").status, 400);
}

#[test]
fn another_cluster_answers_until_healed() {
    let mut client = client();
    assert_eq!(client.clone_to(101), "OK");
    let mine = client.data("/nodes/pve1/certificates/info");
    client.control(json!({"do": "change-cluster"}));
    let theirs = client.data("/nodes/pve1/certificates/info");
    assert_ne!(mine[0]["fingerprint"], theirs[0]["fingerprint"]);
    assert_eq!(client.get("/cluster/nextid?vmid=101").status, 200);
    client.control(json!({"do": "heal"}));
    assert_eq!(client.get("/cluster/nextid?vmid=101").status, 400);
}

#[test]
fn without_quorum_reads_go_on_and_writes_say_so() {
    let mut client = client();
    client.control(json!({"do": "quorum", "on": false}));
    assert_eq!(client.get("/nodes/pve1/qemu/9000/config").status, 200);
    let form = [("newid", "101"), ("full", "1")];
    let got = client.send("POST", "/nodes/pve1/qemu/9000/clone", &form);
    assert_eq!(got.reason, "cluster not ready - no quorum?");
    let put = client.send("PUT", "/nodes/pve1/qemu/9000/config", &[("cores", "2")]);
    assert!(put.reason.contains("Permission denied"), "{}", put.reason);
}

#[test]
fn a_request_that_a_hung_daemon_took_still_runs() {
    let mut client = client();
    client.control(json!({"do": "daemon", "daemon": "pvedaemon", "state": "hung"}));
    let form = [("newid", "171"), ("full", "1")];
    let got = client.send("POST", "/nodes/pve1/qemu/9000/clone", &form);
    assert_eq!(
        (got.status, got.reason.as_str()),
        (596, "Connection timed out")
    );
    client.control(json!({"do": "daemon", "daemon": "pvedaemon", "state": "up"}));
    client.pass(2.0);
    assert_eq!(client.get("/cluster/nextid?vmid=171").status, 400);
}

#[test]
fn a_machine_is_found_where_it_moved_to_and_not_where_its_node_is_down() {
    let mut setup = Setup {
        cluster: Some("lab".to_owned()),
        ..Setup::default()
    };
    setup.nodes.push(NodeSetup {
        name: "pve2".to_owned(),
        address: "192.0.2.11".to_owned(),
        ..setup.nodes[0].clone()
    });
    let mut client = Client::new(setup);
    assert_eq!(client.clone_to(101), "OK");
    assert_eq!(
        client.control(json!({"do": "migrate", "vmid": 101})),
        "pve2"
    );
    let here = client.get("/nodes/pve1/qemu/101/config");
    assert_eq!(
        here.reason,
        "Configuration file 'nodes/pve1/qemu-server/101.conf' does not exist"
    );
    assert_eq!(client.get("/nodes/pve2/qemu/101/config").status, 200);
    client.control(json!({"do": "node", "node": "pve2", "up": false}));
    let there = client.get("/nodes/pve2/qemu/101/config");
    assert_eq!(
        (there.status, there.reason.as_str()),
        (595, "No route to host")
    );
    assert_eq!(client.get("/cluster/nextid?vmid=101").status, 400);
    let exit = client.task(
        "POST",
        "/nodes/pve1/qemu/9000/clone",
        &[("newid", "101"), ("full", "1")],
    );
    assert!(exit.ends_with("failed: File exists"), "{exit}");
}

#[test]
fn the_high_availability_manager_acts_later_than_its_task_ends() {
    let mut client = client();
    assert_eq!(client.clone_to(101), "OK");
    assert_eq!(
        client.task("POST", "/nodes/pve1/qemu/101/status/start", &[]),
        "OK"
    );
    client.control(json!({"do": "ha", "vmid": 101, "managed": true}));
    let stop = "/nodes/pve1/qemu/101/status/stop";
    assert_eq!(client.task("POST", stop, &[]), "OK");
    let current = "/nodes/pve1/qemu/101/status/current";
    assert_eq!(client.data(current)["status"], "running");
    client.pass(5.0);
    assert_eq!(client.data(current)["status"], "stopped");
    let kept = client.send("DELETE", "/nodes/pve1/qemu/101", &[]);
    assert!(
        kept.reason.contains("used in HA resources"),
        "{}",
        kept.reason
    );
}

#[test]
fn a_stalled_second_delete_destroys_whoever_took_the_number_meanwhile() {
    let mut client = client();
    assert_eq!(client.clone_to(101), "OK");
    let path = "/nodes/pve1/qemu/101";
    let first = client.send("DELETE", path, &[]);
    let second = client.send("DELETE", path, &[]);
    let upid = |got: &Got| got.body["data"].as_str().unwrap().to_owned();
    assert_eq!(client.end_of(&upid(&first)), "OK");
    let late = client.end_of(&upid(&second));
    assert!(late.ends_with("101.conf' does not exist"), "{late}");

    assert_eq!(client.clone_to(101), "OK");
    client.control(json!({"do": "stall-tasks", "kind": "qmdestroy", "count": 1}));
    let stalled = client.send("DELETE", path, &[]);
    assert_eq!(client.task("DELETE", path, &[]), "OK");
    client.control(json!({"do": "place", "vmid": 101, "name": "stranger"}));
    client.control(json!({"do": "power", "vmid": 101, "event": "off"}));
    client.control(json!({"do": "continue"}));
    assert_eq!(client.end_of(&upid(&stalled)), "OK");
    assert_eq!(client.get("/cluster/nextid?vmid=101").status, 200);
}

#[test]
fn a_busy_storage_leaves_the_disk_of_a_destroyed_machine() {
    let mut client = client();
    assert_eq!(client.clone_to(101), "OK");
    client.control(json!({"do": "hold-storage", "storage": "local-lvm", "seconds": 60}));
    let exit = client.task("DELETE", "/nodes/pve1/qemu/101", &[]);
    assert_eq!(exit, "WARNINGS: 1");
    let left = client.data("/nodes/pve1/storage/local-lvm/content?vmid=101");
    assert_eq!(left[0]["volid"], "local-lvm:vm-101-disk-0");
    assert_eq!(client.get("/cluster/nextid?vmid=101").status, 200);
}

#[test]
fn a_full_storage_fails_clones_and_uploads_without_a_trace() {
    let mut client = client();
    let before = client.world.inventory();
    client.control(json!({"do": "fill-storage"}));
    let clone = client.clone_to(101);
    assert!(clone.starts_with("clone failed: copy failed: "), "{clone}");
    let upload = client.upload("px.iso", "seed");
    assert!(upload.starts_with("import failed: "), "{upload}");
    assert_eq!(client.world.inventory(), before);
    client.control(json!({"do": "heal"}));
    assert_eq!(client.clone_to(101), "OK");
}

#[test]
fn a_node_that_comes_back_starts_the_machines_that_start_with_it() {
    let mut client = client();
    for vmid in [101, 102] {
        assert_eq!(client.clone_to(vmid), "OK");
    }
    let path = "/nodes/pve1/qemu/101";
    client.send("PUT", &format!("{path}/config"), &[("onboot", "1")]);
    for path in [path, "/nodes/pve1/qemu/102"] {
        let start = format!("{path}/status/start");
        assert_eq!(client.task("POST", &start, &[]), "OK");
    }
    client.control(json!({"do": "node", "node": "pve1", "up": false}));
    client.pass(60.0);
    client.control(json!({"do": "node", "node": "pve1", "up": true}));
    client.pass(5.0);
    let power = |client: &mut Client, path: &str| {
        client.data(&format!("{path}/status/current"))["status"].clone()
    };
    assert_eq!(power(&mut client, path), "running");
    assert_eq!(power(&mut client, "/nodes/pve1/qemu/102"), "stopped");
}

#[test]
fn the_same_seed_and_the_same_requests_make_the_same_world() {
    let live = || {
        let mut client = client();
        client.control(json!({"do": "lose-at-random", "permille": 300}));
        for vmid in 101..130 {
            let form = format!("newid={vmid}&full=1");
            let kind = "application/x-www-form-urlencoded";
            let path = "/nodes/pve1/qemu/9000/clone";
            client.answer("POST", path, form.as_bytes(), kind);
        }
        client.pass(60.0);
        let all: Vec<Value> = (101..130)
            .map(|vmid| client.control(json!({"do": "describe", "vmid": vmid})))
            .collect();
        (all, client.control(json!({"do": "inventory"})))
    };
    let first = live();
    assert_eq!(first, live());
    assert!(first.0.iter().any(Value::is_null));
    assert!(first.0.iter().any(Value::is_string));
}

#[test]
fn something_in_front_answers_in_place_of_the_server() {
    let mut client = client();
    client.control(json!({
        "do": "answer-with", "status": 502, "reason": "Bad Gateway", "body": "<html>",
        "contentType": "text/html", "path": "/config", "count": 1,
    }));
    assert_eq!(client.get("/version").status, 200);
    assert_eq!(client.get("/nodes/pve1/qemu/9000/config").status, 502);
    assert_eq!(client.get("/nodes/pve1/qemu/9000/config").status, 200);
}
