//! The seed in real machines on libvirt: the tiny guest runs its scripts and units.

mod support;

use std::net::SocketAddr;
use support::{
    Ground, Hardware, LONG_FIRST_BOOT, Machine, PORT, ask, connect, get, mac, page, served,
    wait_for,
};

/// A machine type and a bus of old, which every kernel knows.
fn old(ground: &Ground) -> Hardware<'_> {
    Hardware {
        image: &ground.base_image,
        user_data: None,
        machine_type: "pc",
        seed_bus: "ide",
        memory_mib: 128,
    }
}

fn new(ground: &Ground) -> Hardware<'_> {
    Hardware {
        machine_type: "q35",
        seed_bus: "scsi",
        ..old(ground)
    }
}

/// B121: also the agent is there again after every start.
#[test]
fn a_sealed_machine_serves_again_after_it_was_shut_down_through_its_agent() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let page = page(&ground);
    let machine = Machine::start(&ground, "px-sealed", &new(&ground));
    let proxy = SocketAddr::new(machine.address(), PORT);
    served(proxy, page);
    machine.seal("sda");
    machine.virsh("shutdown", &["--mode", "agent"]);
    wait_for("end of the machine", || match machine.state().as_str() {
        "shut off" => Ok(()),
        state => Err(state.to_owned()),
    });
    machine.virsh("start", &[]);
    served(SocketAddr::new(machine.address(), PORT), page);
    machine.virsh("reboot", &["--mode", "agent"]);
    // The agent's answer is the old boot's until the new one has begun.
    wait_for("silence of the old boot", || match get(proxy, page) {
        Err(_) => Ok(()),
        Ok(answer) => Err(answer),
    });
    served(SocketAddr::new(machine.address(), PORT), page);
}

/// The machine is as it was when the power went: nothing was written that its kernel had not
/// written yet.
#[test]
fn a_sealed_machine_serves_after_it_lost_power_in_its_first_boot() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let page = page(&ground);
    let hardware = Hardware {
        user_data: Some(LONG_FIRST_BOOT),
        ..new(&ground)
    };
    let machine = Machine::start(&ground, "px-power", &hardware);
    served(SocketAddr::new(machine.address(), PORT), page);
    machine.seal("sda");
    machine.virsh("destroy", &[]);
    machine.virsh("start", &[]);
    served(SocketAddr::new(machine.address(), PORT), page);
    let said = machine.console();
    assert!(said.contains("no seed with the label cidata"), "{said}");
}

#[test]
fn libvirts_own_client_understands_the_builtin_agent() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let machine = Machine::start(&ground, "px-agent", &old(&ground));
    machine.address();
    let ping = machine.ask_agent(r#"{"execute":"guest-ping"}"#);
    assert_eq!(ping.as_deref(), Ok(r#"{"return":{}}"#));
    let told = machine.virsh("guestinfo", &["--hostname", "--interface"]);
    let facts: Vec<(&str, &str)> = told
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim(), value.trim()))
        .collect();
    for fact in [
        ("hostname", "px-agent"),
        ("if.0.name", "lo"),
        ("if.1.name", "eth0"),
        ("if.1.hwaddr", &mac("px-agent")),
        ("if.1.addr.0.type", "ipv4"),
        ("if.1.addr.0.prefix", "24"),
    ] {
        assert!(facts.contains(&fact), "{fact:?} is not in {told}");
    }
    let time = machine.virsh("domtime", &[]);
    let seconds = time.rsplit(' ').next().and_then(|time| time.parse().ok());
    assert!(
        seconds.is_some_and(|seconds: u64| seconds > 1_577_836_800),
        "{time}"
    );
    let refused = machine.ask_agent(r#"{"execute":"guest-exec","arguments":{"path":"/bin/sh"}}"#);
    let told = refused.expect_err("no host runs programs in it");
    assert!(
        told.contains("The command guest-exec has not been found"),
        "{told}"
    );
    // libvirt itself looks for commands that only the larger agent has.
    let frozen = ground.virsh(&["domfsfreeze", "px-agent"]);
    assert!(frozen.is_err(), "{frozen:?}");
    machine.address();
}

#[test]
fn a_proxy_reaches_the_outside_and_nothing_private() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let page = page(&ground);
    let machine = Machine::start(&ground, "px-policy", &old(&ground));
    let proxy = SocketAddr::new(machine.address(), PORT);
    served(proxy, page);
    let tunnel = connect(proxy, &page.to_string()).expect("an answer");
    assert!(tunnel.starts_with("HTTP/1.1 200"), "{tunnel}");
    let request = format!("GET http://{page}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let stranger = ask(proxy, &request).expect("an answer");
    assert!(stranger.starts_with("HTTP/1.1 407"), "{stranger}");

    // Something listens at each of the first three: a proxy without rules would answer 200.
    let gateway = std::net::TcpListener::bind("192.168.150.1:0").expect("a port");
    for target in [
        gateway.local_addr().expect("its address").to_string(),
        "127.0.0.1:9090".to_owned(),
        format!("{}:{PORT}", proxy.ip()),
        format!("[::ffff:127.0.0.1]:{PORT}"),
        "169.254.169.254:80".to_owned(),
        "10.0.0.1:22".to_owned(),
        "[::1]:9090".to_owned(),
        "[fd00:ec2::254]:80".to_owned(),
    ] {
        let refused = connect(proxy, &target).expect("an answer");
        assert!(refused.starts_with("HTTP/1.1 502"), "{target}: {refused}");
    }
    served(proxy, page);
}
