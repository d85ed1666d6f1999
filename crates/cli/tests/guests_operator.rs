//! The operator on a real API server beside a real libvirt: both in the network namespace that
//! the virtual machines are reached from.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use support::{
    cluster::Cluster,
    field::{Below, Field},
    libvirt::Ground,
};

#[test]
fn an_applied_proxy_is_a_virtual_machine_that_serves_through_a_kill_and_leaves_nothing() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let page = ground.page();
    let cluster = Cluster::start_in(&ground.netns);
    let field = Field::on_libvirt(&cluster, "kvm2", ground);
    let Below::Libvirt(ground, began) = &field.below else {
        panic!("it is on libvirt");
    };
    let mut operator = field.start();
    let machine = "machine: {cpus: 1, memoryMiB: 128, diskGiB: 1}";
    field.cluster.apply(&field.manifest("a", machine));
    for wanted in ["Accepted", "Provisioned", "Serving"] {
        let wanted = format!("--for=condition={wanted}");
        field.kubectl(&["wait", "proxy", "a", &wanted, "--timeout=300s"]);
    }
    let endpoint = field.proxy("a")["status"]["endpoint"].clone();
    let endpoint = endpoint.as_str().expect("an endpoint");
    let own = endpoint.rsplit_once(':').expect("a port").0;
    let (status, text) = field.through("a", &page);
    assert_eq!((status, text), (200, format!("from {own}\n")));
    let domains = ground.domains();
    assert_eq!(domains.len(), 1);
    let told = field.described("a");
    assert!(told.contains("kvm2://here/"), "{told}");

    operator.stop(Signal::KILL);
    let (status, _) = field.through("a", &page);
    assert_eq!(status, 200, "the machine needs no operator");
    let mut operator = field.start();
    field.delete(&["a"]);
    field.wait_gone();
    assert_eq!(ground.left(began), Vec::<String>::new());
    assert!(
        operator.stop(Signal::TERM).success(),
        "{}",
        operator.printed()
    );
}
