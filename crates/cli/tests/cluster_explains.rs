//! Trouble at the hypervisor, as `kubectl describe proxy` alone explains it.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use serde_json::{Value, json};
use std::{fs, sync::Mutex, thread};
use support::{
    cluster::{Cluster, wait_for},
    field::Field,
};

/// How many operators run at a time.
const AT_A_TIME: usize = 4;

/// One trouble and the words that tell it, with its remedy.
struct Trouble {
    name: &'static str,
    cause: Cause,
    told: Vec<String>,
}

enum Cause {
    /// Something happens on the simulator.
    Order(Value),
    /// A file of the field holds something else.
    File(&'static str, &'static str),
    /// The configured authority is another one.
    Authority,
    /// The configuration says something else.
    Setting(&'static str, &'static str),
}

fn trouble(name: &'static str, cause: Cause, told: &[&str]) -> Trouble {
    let told = told.iter().map(|text| (*text).to_owned()).collect();
    Trouble { name, cause, told }
}

fn troubles() -> Vec<Trouble> {
    let order = Cause::Order;
    let mut all = vec![
        trouble(
            "token",
            Cause::File(
                "token",
                "root@pam!other=11111111-1111-1111-1111-111111111111\n",
            ),
            &["Unauthorized", "401", "into `tokenFile`"],
        ),
        trouble(
            "certificate",
            Cause::Authority,
            &["certificate", "give in `caFile` the authority"],
        ),
        trouble(
            "template",
            order(json!({"do": "hide-template", "vmid": 9000})),
            &["no template", "9000"],
        ),
        trouble(
            "no-template",
            Cause::Setting("template: 9000", "template: 9998"),
            &["no template", "9998"],
        ),
        trouble(
            "storage",
            order(json!({"do": "fill-storage"})),
            &["Capacity", "storage local-lvm"],
        ),
        trouble(
            "memory",
            order(json!({"do": "fill-memory"})),
            &["Capacity", "of memory free"],
        ),
        trouble(
            "lock-file",
            order(json!({"do": "hold-machine", "vmid": 9000, "seconds": 36_000})),
            &["lock-9000.conf", "got timeout", "fuser -v"],
        ),
        trouble(
            "unreachable",
            order(json!({"do": "network", "state": "down"})),
            &["Transient", "Connect"],
        ),
    ];
    for privilege in [
        "VM.Allocate",
        "VM.Audit",
        "VM.Clone",
        "VM.PowerMgmt",
        "VM.Config.Options",
        "VM.Config.CPU",
        "VM.Config.Memory",
        "VM.Config.CDROM",
        "VM.Config.Disk",
        "VM.GuestAgent.Audit",
        "Datastore.AllocateSpace",
        "Datastore.AllocateTemplate",
        "Datastore.Allocate",
        "SDN.Use",
    ] {
        all.push(trouble(
            "privilege",
            order(json!({"do": "remove-privilege", "privilege": privilege})),
            &["Unauthorized", privilege, "grant it there"],
        ));
    }
    all
}

/// Sets the trouble up, and waits until it is told.
fn is_told(cluster: &Cluster, trouble: &Trouble) {
    let field = Field::on_a_simulator(cluster, trouble.name, "20");
    match &trouble.cause {
        Cause::Order(order) => {
            field.sim().control(order);
        }
        Cause::File(name, text) => fs::write(field.path(name), text).expect("written"),
        Cause::Authority => {
            let other = cluster
                .kubeconfig()
                .with_file_name("certificates/apiserver.crt");
            let text = fs::read_to_string(field.config()).expect("a configuration");
            let own = field.sim().fact("caFile");
            field.write_config(&text.replace(&own, &other.to_string_lossy()));
        }
        Cause::Setting(from, to) => {
            let text = fs::read_to_string(field.config()).expect("a configuration");
            assert!(text.contains(from), "{text}");
            field.write_config(&text.replace(from, to));
        }
    }
    field.declare(&["a"]);
    let _operator = field.start();
    wait_for(&format!("{:?} to be told", trouble.told), || {
        let told = field.described("a");
        if trouble.told.iter().all(|text| told.contains(text)) {
            Ok(())
        } else {
            Err(told)
        }
    });
    assert_eq!(field.machines(), [""; 0]);
    field.delete(&["a"]);
}

#[test]
fn describe_alone_tells_each_trouble_and_what_to_do() {
    let cluster = Cluster::shared();
    let left = Mutex::new(troubles());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME)
            .map(|_| {
                scope.spawn(|| {
                    let next = || left.lock().expect("no panic within").pop();
                    while let Some(trouble) = next() {
                        is_told(cluster, &trouble);
                    }
                })
            })
            .collect();
        let failed = workers.into_iter().filter_map(|worker| worker.join().err());
        assert_eq!(failed.count(), 0, "a trouble is not told");
    });
}

#[test]
fn describe_alone_tells_a_guest_whose_agent_says_nothing_and_one_that_can_never_report() {
    let field = Field::on_a_simulator(Cluster::shared(), "agent", "20");
    let agents = |agent: &str| {
        let order = json!({"do": "default-agent", "agent": agent});
        field.sim().control(&order);
    };
    agents("silent");
    field.declare(&["a"]);
    let _operator = field.start();
    field.wait_told("a", "has no guest agent; its console shows which");
    agents("refusing");
    field.wait_told(
        "a",
        "look at the network and the guest agent of the template",
    );
}

#[test]
fn describe_alone_tells_a_node_that_is_down() {
    let field = Field::on_a_simulator(Cluster::shared(), "node", "20");
    field.declare(&["a"]);
    let _operator = field.start();
    field.wait_serving(&["a"]);
    let order = json!({"do": "node", "node": "pve1", "up": false});
    field.sim().control(&order);
    field.wait_told("a", "no answer in time");
    // Clients go on using it.
    assert!(field.described("a").contains("Endpoint:"));
}
