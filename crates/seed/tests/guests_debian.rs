//! The seed in a full Debian with systemd and its own cloud-init, with no way to anywhere but the
//! page that stands for the internet.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use std::{env, net::SocketAddr};
use support::{Ground, Hardware, LONG_FIRST_BOOT, Machine, PORT, connect, page, served, wait_for};

/// Tells on the console what only the machine itself knows.
const USER_DATA: &str = "\
#cloud-config
runcmd:
- |
  {
    echo; echo FACTS
    for unit in proxyd egress-proxies-agent egress-proxies-policy qemu-guest-agent; do
      echo \"$unit is $(systemctl is-active $unit) and $(systemctl is-enabled $unit 2>&1)\"
    done
    for pid in $(pidof proxyd); do
      tr '\\0' ' ' </proc/$pid/cmdline
      grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp|VmRSS):' /proc/$pid/status | tr '\\n\\t' '  '
      echo
    done
    systemctl show -p ExecMainStartTimestampMonotonic --value proxyd cloud-config | xargs echo STARTED
    stat -c '%a %U %n' /etc/egress-proxies/proxyd.json
    nft list ruleset
    ip -4 route
    /usr/local/bin/proxyd --agent 2>/run/second &
    second=$!
    until grep 'waiting for the port' /run/second; do sleep 0.2; done
    systemctl stop egress-proxies-agent
    until grep 'answering' /run/second; do sleep 0.2; done
    kill $second
    wait $second
    until mount -o ro LABEL=packages /mnt; do sleep 0.5; done
    dpkg -i --skip-same-version --refuse-downgrade /mnt/*.deb
    udevadm control --reload
    udevadm trigger --settle --action=add --subsystem-match=virtio-ports
    until readlink /proc/$(pidof qemu-ga)/fd/* | grep vport; do sleep 0.5; done
    echo \"the other holds the port\"
    systemctl start egress-proxies-agent
    echo END
  } >/dev/ttyS0 2>&1
";

#[test]
fn debians_own_cloud_init_installs_the_proxy_offline_and_a_sealed_machine_serves_again() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let image = env::var("EGRESS_GUEST_DEBIAN").expect("beside the others");
    let page = page(&ground);
    let hardware = Hardware {
        image: &image,
        user_data: Some(USER_DATA),
        machine_type: "q35",
        seed_bus: "scsi",
        memory_mib: 512,
    };
    let machine = Machine::start_full(&ground, "px-debian", &hardware);
    machine.attach_packages(&env::var("EGRESS_GUEST_AGENT_PACKAGES").expect("beside the others"));
    let proxy = SocketAddr::new(machine.address(), PORT);
    served(proxy, page);

    let facts = wait_for("facts on the console", || {
        let said = machine.console();
        let facts = said.split_once("\nFACTS\n").map(|(_, rest)| rest);
        match facts.and_then(|facts| facts.split_once("\nEND\n")) {
            Some((facts, _)) => Ok(facts.to_owned()),
            None => Err(said),
        }
    });
    for fact in [
        "proxyd is active and enabled",
        "egress-proxies-agent is active and enabled",
        "egress-proxies-policy is active and static",
        "qemu-guest-agent is inactive and Failed to get unit file state",
        "/usr/local/bin/proxyd --agent",
        "600 proxyd /etc/egress-proxies/proxyd.json",
        "table inet egress_proxies {",
        "192.168.0.0/16",
        "jump begun",
        // An agent beside another one steps aside, and answers when that one has ended.
        "Device or resource busy (os error 16)",
        "egress_proxyd::agent: answering",
        "the other holds the port",
    ] {
        assert!(facts.contains(fact), "{fact:?} is not in:\n{facts}");
    }
    let of = |word: &str| -> Vec<&str> { facts.lines().filter(|l| l.contains(word)).collect() };
    let started: Vec<u64> = of("STARTED")[0]
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    assert!(
        started.len() == 2 && started[0] < started[1],
        "proxyd starts before modules, packages and scripts of the user's: {started:?}"
    );
    assert_eq!(of("CapEff: 0000000000000000").len(), 2, "{facts}");
    assert_eq!(of("NoNewPrivs: 1").len(), 2, "{facts}");
    assert_eq!(of("Seccomp: 2").len(), 2, "{facts}");
    let refused = connect(proxy, "127.0.0.1:9090").expect("an answer");
    assert!(refused.starts_with("HTTP/1.1 502"), "{refused}");

    // The distribution's agent has the port, and ours steps aside until it ends. It runs
    // programs: so it is told by its own means.
    let knows = |command: &str| {
        let told = machine.ask_agent(r#"{"execute":"guest-info"}"#)?;
        Ok::<_, String>(told.contains(command))
    };
    assert_eq!(knows("guest-exec"), Ok(true));
    assert_eq!(machine.address(), proxy.ip());
    let stop = r#"{"execute":"guest-exec","arguments":{"path":"/usr/bin/systemctl","arg":["stop","--no-block","qemu-guest-agent"]}}"#;
    machine.ask_agent(stop).expect("it runs programs");
    wait_for("agent of ours", || match knows("guest-exec") {
        Ok(false) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(machine.address(), proxy.ip());

    // A host that takes the port away and gives it back finds the agent again.
    let channel = machine.device("channel");
    machine.virsh("detach-device", &[&channel, "--live"]);
    let ping = || machine.ask_agent(r#"{"execute":"guest-ping"}"#);
    wait_for("silence without a port", || match ping() {
        Err(_) => Ok(()),
        Ok(answer) => Err(answer),
    });
    machine.virsh("attach-device", &[&channel, "--live"]);
    wait_for("answer on the new port", ping);

    machine.seal("sda");
    machine.virsh("shutdown", &["--mode", "agent"]);
    wait_for("end of the machine", || match machine.state().as_str() {
        "shut off" => Ok(()),
        state => Err(state.to_owned()),
    });
    machine.virsh("start", &[]);
    let proxy = SocketAddr::new(machine.address(), PORT);
    served(proxy, page);
    let refused = connect(proxy, "127.0.0.1:9090").expect("an answer");
    assert!(refused.starts_with("HTTP/1.1 502"), "{refused}");
    // The console begins anew with the machine, and cloud-init did not run again.
    let said = machine.console();
    assert!(!said.contains("FACTS"), "{said}");
}

/// Cut off while cloud-init is at work, the machine goes on with what it has read.
#[test]
fn debian_serves_after_it_lost_power_between_its_sealing_and_the_end_of_its_first_boot() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let image = env::var("EGRESS_GUEST_DEBIAN").expect("beside the others");
    let page = page(&ground);
    let hardware = Hardware {
        image: &image,
        user_data: Some(LONG_FIRST_BOOT),
        machine_type: "q35",
        seed_bus: "scsi",
        memory_mib: 512,
    };
    let machine = Machine::start_full(&ground, "px-cut-off", &hardware);
    served(SocketAddr::new(machine.address(), PORT), page);
    machine.seal("sda");
    machine.virsh("destroy", &[]);
    machine.virsh("start", &[]);
    let proxy = SocketAddr::new(machine.address(), PORT);
    served(proxy, page);
    let refused = connect(proxy, "127.0.0.1:9090").expect("an answer");
    assert!(refused.starts_with("HTTP/1.1 502"), "{refused}");
}
