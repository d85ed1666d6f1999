//! The full Debian as the product's machine on libvirt, with its own systemd and cloud-init and
//! no way to anywhere but a page: as it is, and with all of ours baked in.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use std::fs;
use support::{
    Site,
    libvirt::{Ground, wait_long},
    manifest,
};

/// Tells on the console what only the machine itself knows.
const USER_DATA: &str = "\
apiVersion: v1
kind: Secret
metadata: {name: facts}
stringData:
  user-data: |
    #cloud-config
    runcmd:
    - |
      {
        echo; echo FACTS
        for unit in proxyd egress-proxies-agent egress-proxies-policy; do
          echo \"$unit is $(systemctl is-active $unit) and $(systemctl is-enabled $unit)\"
        done
        nft list ruleset
        echo END
      } >/dev/ttyS0 2>&1
";

#[test]
fn a_full_debian_serves_offline_from_its_seed_and_through_a_power_cut_after_it_is_gone() {
    let Some(ground) = Ground::find() else {
        return;
    };
    ground.upload("debian-12.qcow2", &ground.debian);
    ground.upload("baked.qcow2", &ground.baked);
    let began = ground.inventory();
    let site = Site::new("full", 28_900);
    let text = format!(
        "installation: {}\nproviders:\n- {}\n- {}\n",
        site.installation,
        ground.block("plain", "debian-12.qcow2", ""),
        ground.block("ours", "baked.qcow2", ", guestAgent: baked"),
    );
    fs::write(site.config(), text).expect("written");
    let payload = ground.payload_dir(&site.path("payload"));
    site.write("facts", USER_DATA);
    let size = "machine: {cpus: 1, memoryMiB: 512, diskGiB: 3}, probe: {interval: 5s}";
    let facts = "userData: {secretRef: {name: facts, key: user-data}}";
    site.write(
        "a",
        &manifest("a", &format!("provider: plain, {size}, {facts}")),
    );
    site.write("b", &manifest("b", &format!("provider: ours, {size}")));
    let _engine = site.start_with(&["--payload-dir", &payload]);

    let page = ground.page();
    let serves = |name: &str| {
        let answer = wait_long("answer through the proxy", || {
            let told = || format!("{}\n{}", site.condition(name, "Serving"), site.table());
            if !site.condition(name, "Serving").starts_with("True") {
                return Err(told());
            }
            // An answer from before a power cut is believed for a while.
            let answer = site.try_through(name, &page);
            answer.map_err(|error| format!("{error}; {}", told()))
        });
        let proxy = site.proxy(name).expect("shown");
        let endpoint = proxy["status"]["endpoint"].as_str().expect("an endpoint");
        let own = endpoint.rsplit_once(':').expect("a port").0;
        assert_eq!(answer, (200, format!("from {own}\n")));
        // proxyd's own page, which nobody reaches through it.
        assert_eq!(site.through(name, "http://127.0.0.1:9090/").0, 502);
    };
    serves("a");
    let machine = site.proxy("a").expect("shown")["status"]["machine"]["name"].clone();
    let machine = machine.as_str().expect("a name").to_owned();
    let is_seed = |name: &String| name.contains(".iso") && name.contains(&machine);
    wait_long("seal of the machine", || {
        let volumes = ground.volumes();
        if volumes.iter().any(is_seed) {
            return Err(format!("{volumes:?}"));
        }
        Ok(())
    });
    // In the middle of the first boot, most likely: it goes on without the seed.
    let off = |how: &[&str]| {
        let id = ground.virsh(&["domid", &machine]);
        ground.virsh(how);
        wait_long("machine that is started again", || {
            let now = ground.virsh(&["domid", &machine]);
            if now != id && now.trim() != "-" {
                return Ok(());
            }
            Err(now)
        });
    };
    // Each boot begins the console's log anew.
    let first = ground.console(&machine);
    println!(
        "cut off before the end of its first boot: {}",
        !first.contains("\nEND\n")
    );
    off(&["destroy", &machine]);
    serves("a");
    let facts = wait_long("facts on the console", || {
        let said = format!("{first}\n{}", ground.console(&machine));
        let facts = said.rsplit_once("\nFACTS\n").map(|(_, rest)| rest);
        match facts.and_then(|facts| facts.split_once("\nEND\n")) {
            Some((facts, _)) => Ok(facts.to_owned()),
            None => Err(said),
        }
    });
    for fact in [
        "proxyd is active and enabled",
        "egress-proxies-agent is active and enabled",
        "egress-proxies-policy is active and static",
        "table inet egress_proxies {",
        "192.168.0.0/16",
        "jump begun",
    ] {
        assert!(facts.contains(fact), "{fact:?} is not in:\n{facts}");
    }
    off(&["shutdown", &machine, "--mode", "agent"]);
    serves("a");
    let said = ground.console(&machine);
    assert!(!said.contains("FACTS"), "cloud-init ran again:\n{said}");
    serves("b");

    for name in ["a", "b"] {
        site.undeclare(name);
    }
    wait_long("word that all may go", || {
        match site.ask(&["prune"]).status.code() {
            Some(0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    wait_long("end of all of it", || {
        let left = ground.left(&began);
        if left.is_empty() {
            return Ok(());
        }
        Err(format!("{left:?}\n{}", site.table()))
    });
    for name in ["debian-12.qcow2", "baked.qcow2"] {
        ground.virsh(&["vol-delete", name, "--pool", "default"]);
    }
}
