//! The life of a machine, and those that get in its way.

use super::*;

#[test]
fn a_machine_lives_from_clone_to_removal() {
    let mut client = client();
    let before = client.world.inventory();
    assert_eq!(client.clone_to(101), "OK");
    assert_eq!(client.upload("px-1.iso", "seed"), "OK");
    let config = client.data("/nodes/pve1/qemu/101/config");
    assert_eq!(config["description"], "for people\nmark 1");
    assert_eq!(config["scsi0"], "local-lvm:vm-101-disk-0,size=2G");
    assert!(config.get("lock").is_none() && config.get("template").is_none());
    let digest = config["digest"].as_str().unwrap().to_owned();
    let form = [
        ("ide2", "proxy-seeds:iso/px-1.iso,media=cdrom"),
        ("net0", "virtio=BC:24:11:00:00:01,tag=4,bridge=vmbr0"),
        ("tags", "px_1 Proxy_Operator"),
        ("digest", digest.as_str()),
    ];
    let put = client.send("PUT", "/nodes/pve1/qemu/101/config", &form);
    assert_eq!((put.status, &put.body), (200, &json!({"data": null})));
    let stale = client.send("PUT", "/nodes/pve1/qemu/101/config", &form);
    assert_eq!(
        stale.reason,
        "checksum mismatch (file change by other user?)"
    );
    let config = client.data("/nodes/pve1/qemu/101/config");
    assert_eq!(config["boot"], "order=scsi0;ide2");
    assert_eq!(
        config["ide2"],
        "proxy-seeds:iso/px-1.iso,media=cdrom,size=4"
    );
    assert_eq!(config["tags"], "px_1;proxy_operator");
    let size = [("disk", "scsi0"), ("size", "8G")];
    assert_eq!(
        client.task("PUT", "/nodes/pve1/qemu/101/resize", &size),
        "OK"
    );
    let start = "/nodes/pve1/qemu/101/status/start";
    assert_eq!(client.task("POST", start, &[]), "OK");
    assert_eq!(client.task("POST", start, &[]), "VM 101 already running");
    let agent = "/nodes/pve1/qemu/101/agent/network-get-interfaces";
    assert_eq!(client.get(agent).reason, "QEMU guest agent is not running");
    client.pass(10.0);
    let interfaces = client.data(agent);
    assert_eq!(
        interfaces["result"][1]["hardware-address"],
        "bc:24:11:00:00:01"
    );
    let now = client.now;
    let guests = client.world.guests(now);
    assert_eq!(guests[0].seed.as_ref().unwrap().1.as_ref(), b"seed");
    let running = client.send("DELETE", "/nodes/pve1/qemu/101", &[]);
    assert_eq!(running.reason, "VM 101 is running - destroy failed");
    let stop = "/nodes/pve1/qemu/101/status/stop";
    assert_eq!(
        client.task("POST", stop, &[("overrule-shutdown", "1")]),
        "OK"
    );
    assert_eq!(
        client.task("DELETE", "/nodes/pve1/qemu/101?purge=1", &[]),
        "OK"
    );
    let gone = client.send(
        "DELETE",
        "/nodes/pve1/storage/proxy-seeds/content/proxy-seeds:iso/px-1.iso?delay=5",
        &[],
    );
    assert_eq!(gone.body, json!({"data": null}));
    assert_eq!(client.control(json!({"do": "inventory"})), json!(before));
}

#[test]
fn a_reader_meets_the_clone_as_absent_then_nameless_then_whole() {
    let mut client = client();
    let form = [
        ("newid", "101"),
        ("full", "1"),
        ("storage", "local-lvm"),
        ("name", "px"),
        ("pool", "egress"),
    ];
    let posted = client.send("POST", "/nodes/pve1/qemu/9000/clone", &form);
    let upid = posted.body["data"].as_str().unwrap().to_owned();
    assert_eq!(client.get("/nodes/pve1/qemu/101/config").status, 500);
    assert_eq!(client.get("/cluster/nextid?vmid=101").status, 200);
    client.pass(0.03);
    let config = client.data("/nodes/pve1/qemu/101/config");
    assert_eq!(config["description"], " qmclone temporary file");
    assert_eq!(config.as_object().unwrap().len(), 3);
    assert_eq!(client.get("/cluster/nextid?vmid=101").status, 400);
    let listed = client.data("/cluster/resources?type=vm");
    let row = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["vmid"] == 101);
    let row = row.unwrap();
    assert_eq!(
        (&row["lock"], &row["status"]),
        (&json!("clone"), &json!("unknown"))
    );
    assert!(row.get("name").is_none());
    let put = client.send("PUT", "/nodes/pve1/qemu/101/config", &[("cores", "2")]);
    assert_eq!(put.reason, "VM is locked (clone)");
    assert_eq!(client.end_of(&upid), "OK");
    assert_eq!(client.data("/nodes/pve1/qemu/101/config")["name"], "px");
    client.pass(25.0);
    let listed = client.data("/cluster/resources?type=vm");
    let row = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["vmid"] == 101);
    assert_eq!(row.unwrap()["name"], "px");
    assert_eq!(row.unwrap()["pool"], "egress");
}

#[test]
fn of_two_clones_to_one_number_one_loses_and_harms_nothing() {
    let mut client = client();
    let form = |name| [("newid", "101"), ("full", "1"), ("name", name)];
    let path = "/nodes/pve1/qemu/9000/clone";
    let first = client.send("POST", path, &form("one"));
    let second = client.send("POST", path, &form("two"));
    let upids = [first, second].map(|it| it.body["data"].as_str().unwrap().to_owned());
    assert_eq!(client.end_of(&upids[0]), "OK");
    assert_eq!(
        client.end_of(&upids[1]),
        "unable to create VM 101: config file already exists"
    );
    let third = client.send("POST", path, &form("three"));
    assert_eq!(
        third.reason,
        "unable to create VM 101: config file already exists"
    );
    assert_eq!(client.data("/nodes/pve1/qemu/101/config")["name"], "one");
}

#[test]
fn a_slow_clone_makes_its_rival_time_out_at_the_lock_file() {
    let mut setup = Setup::default();
    setup.guests[0].copy_seconds = 30.0;
    let mut client = Client::new(setup);
    let form = [("newid", "101"), ("full", "1")];
    let path = "/nodes/pve1/qemu/9000/clone";
    let first = client.send("POST", path, &form);
    let rival = client.task("POST", path, &form);
    assert_eq!(
        rival,
        "can't lock file '/var/lock/qemu-server/lock-101.conf' - got timeout"
    );
    let start = client.task("POST", "/nodes/pve1/qemu/101/status/start", &[]);
    assert_eq!(
        start,
        "can't lock file '/var/lock/qemu-server/lock-101.conf' - got timeout"
    );
    let upid = first.body["data"].as_str().unwrap().to_owned();
    assert_eq!(client.end_of(&upid), "OK");
}

#[test]
fn a_write_waits_for_the_lock_file_and_then_meets_what_it_finds() {
    let mut client = client();
    assert_eq!(client.clone_to(101), "OK");
    let path = "/nodes/pve1/qemu/101/config";
    client.control(json!({"do": "hold-machine", "vmid": 101, "seconds": 4}));
    let began = client.now;
    let put = client.send("PUT", path, &[("cores", "2")]);
    assert_eq!(put.status, 200, "{put:?}");
    assert!(client.now >= began + Duration::from_secs(4));
    assert_eq!(client.data(path)["cores"], 2);
    client.control(json!({"do": "hold-machine", "vmid": 101, "seconds": 40}));
    let put = client.send("PUT", path, &[("cores", "3")]);
    assert_eq!(
        put.reason,
        "can't lock file '/var/lock/qemu-server/lock-101.conf' - got timeout"
    );
    client.pass(40.0);
    let destroy = client.send("DELETE", "/nodes/pve1/qemu/101", &[]);
    client.pass(0.03);
    let put = client.send("PUT", path, &[("cores", "3")]);
    assert_eq!(
        put.reason,
        "Configuration file 'nodes/pve1/qemu-server/101.conf' does not exist"
    );
    let upid = destroy.body["data"].as_str().unwrap().to_owned();
    assert_eq!(client.end_of(&upid), "OK");
}

#[test]
fn agents_that_say_nothing_hold_the_workers_of_their_node() {
    let mut client = client();
    assert_eq!(client.clone_to(101), "OK");
    client.task("POST", "/nodes/pve1/qemu/101/status/start", &[]);
    let agent = "/nodes/pve1/qemu/101/agent/network-get-interfaces";
    let now = client.now;
    let waits: Vec<Duration> = (0..4)
        .map(|_| {
            client.now = now;
            client.get(agent);
            client.now.saturating_sub(now)
        })
        .collect();
    assert_eq!(waits[2], Duration::from_secs(3));
    assert_eq!(waits[3], Duration::from_secs(6));
}
