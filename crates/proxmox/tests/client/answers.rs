//! Every recorded success is read, and odd spellings of the same are too.

use crate::scripted::{bench, ok};
use egress_proxmox::client::{
    Client, Failure, Kind, Lock, NodeName, ResourceFilter, ResourceKind, TaskEnd, TaskFilter,
    TaskState, Upid, Vmid, VmidState, cluster_fingerprint,
};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Recorded {
    source: String,
    call: String,
    body: Value,
}

fn node() -> NodeName {
    "pve1".parse().unwrap()
}

fn upid() -> Upid {
    "UPID:pve1:00000ACD:00006AE8:679A423B:qmclone:112:svc@pve!tok:"
        .parse()
        .unwrap()
}

async fn read(client: &Client, call: &str, body: &Value) -> Result<(), Failure> {
    let (node, vmid) = (node(), Vmid::new(101).unwrap());
    match call {
        "version" => client.version().await.map(|v| assert_eq!(v.major, 9)),
        "cluster_status" => client.cluster_status().await.map(|s| assert!(s.quorate)),
        "cluster_options" => client.cluster_options().await.map(drop),
        "cluster_resources" => {
            let read = client.cluster_resources(ResourceFilter::All).await?;
            let sent = body["data"].as_array().unwrap();
            assert_eq!(read.len(), sent.len(), "an entry was left out");
            for (read, sent) in read.iter().zip(sent) {
                assert_eq!(
                    read.vmid.map(Vmid::get).map(u64::from),
                    sent["vmid"].as_u64()
                );
                assert_eq!(
                    read.node.as_ref().map(NodeName::as_str),
                    sent["node"].as_str()
                );
                assert_eq!(read.lock.as_ref().map(Lock::as_str), sent["lock"].as_str());
            }
            Ok(())
        }
        "nextid" => {
            let free: u32 = body["data"].as_str().unwrap().parse().unwrap();
            let state = client.vmid_state(Vmid::new(free).unwrap()).await;
            state.map(|s| assert_eq!(s, VmidState::Free))
        }
        "permissions" => client.permissions("/vms/100").await.map(drop),
        "pool" => client
            .pool("pool1")
            .await
            .map(|p| assert_eq!(p.poolid, "pool1")),
        "nodes" => client.nodes().await.map(|n| assert!(n[0].online)),
        "network" => client.network(&node).await.map(|n| assert!(!n.is_empty())),
        "storage_status" => client
            .storage_status(&node, "s")
            .await
            .map(|s| assert!(s.active)),
        "storage_content" => {
            let read = client.storage_content(&node, "s", None, None).await?;
            assert_eq!(read.len(), body["data"].as_array().unwrap().len());
            Ok(())
        }
        "tasks" => {
            let read = client.tasks(&node, TaskFilter::archive()).await?;
            assert_eq!(read.len(), body["data"].as_array().unwrap().len());
            assert!(read.iter().all(|t| t.ended.is_some()));
            Ok(())
        }
        "task_status" => {
            let state = client.task_status(&upid()).await?;
            let ended = body["data"]["status"] == "stopped";
            assert_eq!(matches!(state, TaskState::Ended(_)), ended);
            Ok(())
        }
        "task_log" => client
            .task_log(&upid(), 0)
            .await
            .map(|l| assert!(!l.lines.is_empty())),
        "vm_config" => {
            let read = client.vm_config(&node, vmid).await?;
            assert_eq!(read.digest, body["data"]["digest"].as_str().unwrap());
            let sent = body["data"].as_object().unwrap();
            assert_eq!(
                read.keys.len(),
                sent.values().filter(|v| !v.is_null()).count()
            );
            Ok(())
        }
        "vm_status" => {
            let read = client.vm_status(&node, vmid).await?;
            assert_eq!(read.running, body["data"]["status"] == "running");
            Ok(())
        }
        "agent_interfaces" => client.agent_interfaces(&node, vmid).await.map(drop),
        other => panic!("no way to read {other}"),
    }
}

#[tokio::test]
async fn every_recorded_success_is_read() {
    let rows: Vec<Recorded> = serde_json::from_str(include_str!("../data/answers.json")).unwrap();
    let mut of_each: BTreeMap<String, usize> = BTreeMap::new();
    for row in rows {
        let bench = bench(1, [ok(&row.body["data"].to_string())]);
        let result = read(&bench.client, &row.call, &row.body).await;
        match result {
            Ok(()) => {}
            // The one 200 that is a refusal.
            Err(failure) if matches!(failure.kind, Kind::AgentRefused { .. }) => {}
            Err(failure) => panic!("{} {}: {failure}", row.source, row.call),
        }
        *of_each.entry(row.call).or_default() += 1;
    }
    println!("{of_each:?}");
    assert!(of_each.len() >= 16, "{of_each:?}");
}

#[tokio::test]
async fn b147_b148_b150_numbers_and_booleans_may_be_strings_and_keys_may_be_missing() {
    let config = r#"{"digest":"d","template":"1","protection":true,"onboot":"0","cores":"2","memory":512,"tags":" b;;a,c ","agent":1,"clipboard":null,"nested":{"a":1}}"#;
    let status = r#"{"status":"running","uptime":"12","ha":{"managed":"1","state":"started"},"template":"","agent":"1"}"#;
    let ignored = r#"{"status":"stopped","ha":{"managed":1,"state":"ignored"}}"#;
    let list = r#"[{"type":"qemu","vmid":"101","node":"pve1","id":"qemu/101","maxmem":"1024","template":"0","tags":" "},{"type":"new-thing"},7]"#;
    let bench = bench(1, [ok(config), ok(status), ok(ignored), ok(list)]);
    let vmid = Vmid::new(101).unwrap();

    let config = bench.client.vm_config(&node(), vmid).await.unwrap();
    assert!(config.template && config.protection && !config.onboot);
    assert_eq!(config.tags, ["b", "a", "c"]);
    assert_eq!(config.keys["memory"], "512");
    assert_eq!(config.keys["cores"], "2");
    assert!(config.agent_enabled());

    let status = bench.client.vm_status(&node(), vmid).await.unwrap();
    assert!(status.running && status.ha_managed && !status.template);
    assert_eq!(
        (status.uptime_s, status.qmpstatus.as_str()),
        (12, "running")
    );
    let ignored = bench.client.vm_status(&node(), vmid).await.unwrap();
    assert!(!ignored.ha_managed);

    let list = bench
        .client
        .cluster_resources(ResourceFilter::Guests)
        .await
        .unwrap();
    assert_eq!(list.len(), 2, "what is no entry at all is left out");
    assert_eq!(list[0].vmid, Some(vmid));
    assert_eq!(list[0].maxmem, Some(1024));
    assert!(list[0].tags.is_empty() && !list[0].template);
    assert_eq!(list[1].kind, ResourceKind::Other);
}

#[tokio::test]
async fn b149_figures_are_wider_than_32_bits_and_may_be_written_as_floats() {
    let list = r#"[{"type":"node","node":"pve1","id":"node/pve1","maxmem":66624765952,"mem":6.6624765952e10,"cpu":1e-5},{"type":"qemu","vmid":101,"node":"pve1","id":"qemu/101","maxmem":18446744073709551615,"netin":9007199254740993,"maxdisk":"66624765952"}]"#;
    let config = r#"{"digest":"d","memory":"current=2048","cpulimit":"0.4","cores":"2"}"#;
    let bench = bench(1, [ok(list), ok(config)]);
    let list = bench
        .client
        .cluster_resources(ResourceFilter::All)
        .await
        .unwrap();
    assert_eq!(list[0].maxmem, Some(66_624_765_952));
    assert_eq!(list[0].mem, Some(66_624_765_952));
    assert_eq!(list[1].maxmem, Some(u64::MAX));
    let config = bench
        .client
        .vm_config(&node(), Vmid::new(101).unwrap())
        .await
        .unwrap();
    // B148: what is not needed is kept as it was written.
    assert_eq!(config.keys["memory"], "current=2048");
    assert_eq!(config.keys["cpulimit"], "0.4");
}

#[tokio::test]
async fn what_an_answer_means_nothing_without_must_be_there() {
    let vmid = Vmid::new(101).unwrap();
    let bench = bench(
        1,
        [
            ok(r#"{"name":"no digest"}"#),
            ok(r#"{"digest":"d","protection":"maybe"}"#),
            ok(r#"{"status":"dancing"}"#),
            ok(r#"{"status":"dancing"}"#),
            ok(r#"{"exitstatus":"OK"}"#),
            ok(r#"{"content":"iso"}"#),
            ok("{}"),
        ],
    );
    let client = &bench.client;
    let kinds = [
        client.vm_config(&node(), vmid).await.unwrap_err().kind,
        client.vm_config(&node(), vmid).await.unwrap_err().kind,
        client.vm_status(&node(), vmid).await.unwrap_err().kind,
        client.task_status(&upid()).await.unwrap_err().kind,
        client.task_status(&upid()).await.unwrap_err().kind,
        client.storage_status(&node(), "s").await.unwrap_err().kind,
        client
            .agent_interfaces(&node(), vmid)
            .await
            .unwrap_err()
            .kind,
    ];
    assert!(
        kinds.iter().all(|k| *k == Kind::UnexpectedAnswer),
        "{kinds:?}"
    );
}

#[tokio::test]
async fn f5_x5_the_agent_setting_is_read_in_all_its_forms() {
    for (agent, enabled) in [
        ("\"1\"", true),
        ("1", true),
        ("\"0\"", false),
        ("0", false),
        ("\"1,fstrim_cloned_disks=1\"", true),
        ("\"0,fstrim_cloned_disks=1\"", false),
        ("\"enabled=1,fstrim_cloned_disks=1\"", true),
        ("\"type=virtio,enabled=1\"", true),
        ("\"enabled=0,type=virtio\"", false),
        ("\"fstrim_cloned_disks=1\"", false),
        ("null", false),
    ] {
        let bench = bench(1, [ok(&format!("{{\"digest\":\"d\",\"agent\":{agent}}}"))]);
        let config = bench
            .client
            .vm_config(&node(), Vmid::new(101).unwrap())
            .await
            .unwrap();
        assert_eq!(config.agent_enabled(), enabled, "{agent}");
        assert_eq!(config.agent.is_none(), agent == "null");
    }
}

#[tokio::test]
async fn a_cluster_without_quorum_and_a_lone_node_are_told_apart() {
    let lost = r#"[{"type":"cluster","name":"c","quorate":0,"nodes":2,"id":"cluster","version":2},{"type":"node","name":"pve1","online":1,"local":1,"id":"node/pve1","ip":"192.0.2.1"},{"type":"node","name":"pve2","online":"0","local":0,"id":"node/pve2"}]"#;
    let bench = bench(1, [ok(lost)]);
    let status = bench.client.cluster_status().await.unwrap();
    assert!(!status.quorate);
    assert_eq!(status.name.as_deref(), Some("c"));
    assert_eq!(status.nodes.len(), 2);
    assert!(status.nodes[0].online && !status.nodes[1].online);
}

#[tokio::test]
async fn the_identity_of_a_cluster_is_its_own_authority() {
    let certificates = r#"[{"filename":"pveproxy-ssl.pem","fingerprint":"AA:BB","san":["pve1"],"notafter":1},{"filename":"pve-root-ca.pem","fingerprint":"CC:DD","subject":"/CN=Proxmox"},{"filename":"pve-ssl.pem","fingerprint":"EE:FF"}]"#;
    let bench = bench(1, [ok(certificates), ok("[]")]);
    let told = bench.client.certificates(&node()).await.unwrap();
    assert_eq!(cluster_fingerprint(&told), Some("CC:DD"));
    let none = bench.client.certificates(&node()).await.unwrap();
    assert_eq!(cluster_fingerprint(&none), None);
}

#[tokio::test]
async fn the_datacenter_options_tell_which_tags_are_allowed() {
    let bench = bench(
        1,
        [
            ok(
                r#"{"allowed-tags":["a","b"],"user-tag-access":{"user-allow":"list"},"keyboard":"de"}"#,
            ),
            ok(r#"{"user-tag-access":"user-allow=none,user-allow-list=x"}"#),
            ok("{}"),
        ],
    );
    let first = bench.client.cluster_options().await.unwrap();
    assert_eq!(first.allowed_tags.unwrap(), ["a", "b"]);
    assert_eq!(first.user_allow.as_deref(), Some("list"));
    assert_eq!(first.keys["keyboard"], "de");
    let second = bench.client.cluster_options().await.unwrap();
    assert_eq!(second.user_allow.as_deref(), Some("none"));
    let third = bench.client.cluster_options().await.unwrap();
    assert_eq!(third.allowed_tags, None);
}

#[tokio::test]
async fn privileges_of_an_absent_machine_are_none() {
    let bench = bench(
        1,
        [
            ok("{}"),
            ok("[]"),
            ok(r#"{"/vms/101":{"VM.Audit":1,"VM.Clone":0}}"#),
        ],
    );
    assert!(
        bench
            .client
            .permissions("/vms/101")
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        bench
            .client
            .permissions("/vms/101")
            .await
            .unwrap()
            .is_empty()
    );
    let some = bench.client.permissions("/vms/101").await.unwrap();
    // 0 says that it does not propagate further down, not that it is missing.
    assert!(some.has("VM.Audit") && some.has("VM.Clone") && !some.has("VM.Allocate"));
}

#[tokio::test]
async fn a_clones_log_names_the_machine_it_makes() {
    let log = r#"[{"n":1,"t":"creating a clone of VM 9000 with ID 100321"},{"n":2,"t":"WARN: no efidisk"},{"n":3,"t":"TASK WARNINGS: 1"}]"#;
    let bench = bench(
        1,
        [
            ok(log),
            ok(r#"[{"n":1,"t":"create full clone of drive scsi0"}]"#),
        ],
    );
    let log = bench.client.task_log(&upid(), 0).await.unwrap();
    assert_eq!(log.clone_target(), Vmid::new(100_321));
    assert_eq!(log.warnings().collect::<Vec<_>>(), ["WARN: no efidisk"]);
    let older = bench.client.task_log(&upid(), 0).await.unwrap();
    assert_eq!(older.clone_target(), None);
}

#[tokio::test]
async fn b60_a_task_without_exit_status_ended_unexpectedly_and_a_running_one_has_not_ended() {
    let bench = bench(
        1,
        [
            ok(r#"{"status":"stopped"}"#),
            ok(
                r#"[{"upid":"UPID:pve1:00000ACD:00006AE8:679A423B:qmclone:112:svc@pve!tok:","status":"RUNNING"},{"upid":"UPID:pve1:00000ACE:00006AE8:679A423B:qmstart:112:svc@pve!tok:"},{"upid":"odd"}]"#,
            ),
        ],
    );
    let state = bench.client.task_status(&upid()).await.unwrap();
    assert!(matches!(state, TaskState::Ended(TaskEnd::Unexpected(_))));
    let list = bench
        .client
        .tasks(&node(), TaskFilter::active())
        .await
        .unwrap();
    assert_eq!(list.len(), 2);
    assert!(list.iter().all(|t| t.state == TaskState::Running));
}

#[tokio::test]
async fn f21_b116_addresses_are_read_with_their_mac_and_may_be_missing() {
    let result = r#"{"result":[{"name":"lo","ip-addresses":[{"ip-address":"127.0.0.1","ip-address-type":"ipv4","prefix":8}]},{"name":"eth0","hardware-address":"BC:24:11:AA:00:01","ip-addresses":[{"ip-address":"198.51.100.7"},{"ip-address":"fe80::1%eth0"},{}]},{"name":"eth1","hardware-address":"bc:24:11:aa:00:02"}]}"#;
    let bench = bench(1, [ok(result)]);
    let read = bench
        .client
        .agent_interfaces(&node(), Vmid::new(101).unwrap())
        .await
        .unwrap();
    assert_eq!(read.len(), 3);
    assert_eq!(read[1].mac.as_deref(), Some("bc:24:11:aa:00:01"));
    assert_eq!(
        read[1].addresses,
        ["198.51.100.7".parse::<std::net::IpAddr>().unwrap()]
    );
    assert!(read[2].addresses.is_empty() && read[0].mac.is_none());
}

#[tokio::test]
async fn b70_f9_tags_are_split_at_every_separator_there_ever_was() {
    let forms: Vec<Option<String>> =
        serde_json::from_str(include_str!("../data/tags.json")).unwrap();
    for tags in forms {
        let json = serde_json::to_string(&tags).unwrap();
        let bench = bench(1, [ok(&format!("{{\"digest\":\"d\",\"tags\":{json}}}"))]);
        let config = bench
            .client
            .vm_config(&node(), Vmid::new(101).unwrap())
            .await
            .unwrap();
        assert!(
            config
                .tags
                .iter()
                .all(|t| !t.is_empty() && !t.contains([',', ';', ' '])),
            "{json}: {:?}",
            config.tags
        );
        let letters = tags.unwrap_or_default().contains(char::is_alphanumeric);
        assert_eq!(config.tags.is_empty(), !letters, "{json}");
    }
}
