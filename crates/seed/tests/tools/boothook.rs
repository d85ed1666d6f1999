//! Our scripts, run by a real shell in a folder.

use crate::{Made, is_there, made, set_mode};
use egress_seed::GuestAgent;
use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Command};

/// A machine in a folder: the install script with our folder before each of its paths, and
/// programs that write down how they were called.
struct Machine {
    made: Made,
    root: PathBuf,
}

impl Machine {
    fn new(guest_agent: GuestAgent) -> Self {
        let made = made(guest_agent, None);
        let root = made.folder.path().join("machine");
        for folder in ["programs", "var/lib/cloud/instance"] {
            fs::create_dir_all(root.join(folder)).expect("made");
        }
        let machine = Self { made, root };
        machine.add_program("systemctl", "");
        machine.add_program("useradd", "");
        machine.add_program("chown", "");
        machine.add_program("umount", "");
        machine.add_program("sync", "");
        machine.add_program("blkid", "echo /dev/sr1");
        machine.add_program("id", "exit 1");
        machine.add_program("uname", "echo x86_64");
        machine
    }

    fn add_program(&self, name: &str, body: &str) {
        let path = self.root.join("programs").join(name);
        let calls = self.root.join("calls").display().to_string();
        let text = format!("#!/bin/sh\necho {name} \"$@\" >>{calls}\n{body}\n");
        fs::write(&path, text).expect("written");
        set_mode(&path, 0o755);
    }

    /// Runs the boothook as cloud-init does; whether it ended well, and what it said.
    fn boot(&self, instance_id: &str) -> (bool, String) {
        let root = self.root.display().to_string();
        let mut script = include_str!("../../src/vendor_data/install.sh").to_owned();
        for path in ["/etc/", "/run/", "/var/lib/", "/dev/console"] {
            script = script.replace(path, &format!("{root}{path}"));
        }
        script = script.replace(
            "/usr/local/bin/proxyd",
            &format!("{root}/usr/local/bin/proxyd"),
        );
        script = script.replace("PATH=/usr/local/sbin", &format!("PATH={root}/programs"));
        let path = self.root.join("install").display().to_string();
        fs::write(&path, script).expect("written");
        let output = Command::new("/bin/sh")
            .arg(path)
            .env("INSTANCE_ID", instance_id)
            .output()
            .expect("a shell");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    }

    /// Runs the agent's script as cloud-init does; whether it ended well.
    fn install_agent(&self) -> bool {
        let path = self.root.join("install-agent").display().to_string();
        fs::write(
            &path,
            include_str!("../../src/vendor_data/install-agent.sh"),
        )
        .expect("written");
        let programs = self.root.join("programs").display().to_string();
        Command::new("/bin/sh")
            .arg(path)
            .env("PATH", format!("{programs}:/usr/bin:/bin"))
            .output()
            .expect("a shell")
            .status
            .success()
    }

    fn calls(&self) -> String {
        let root = self.root.display().to_string();
        let calls = fs::read_to_string(self.root.join("calls")).unwrap_or_default();
        calls.replace(&root, "")
    }

    fn mode(&self, path: &str) -> u32 {
        let file = fs::metadata(self.root.join(path)).expect("there");
        file.permissions().mode() & 0o7777
    }
}

#[test]
fn the_boothook_installs_what_the_seed_holds_and_waits_for_nothing() {
    if !is_there("xorriso", "xorriso") {
        return;
    }
    let machine = Machine::new(GuestAgent::Builtin);
    let seed = machine.made.unpacked().display().to_string();
    machine.add_program("mount", &format!("cp -r {seed}/. \"$6\""));
    let (well, said) = machine.boot("px-a-3");
    assert!(well, "{said}");
    for (path, mode) in [
        ("usr/local/bin/proxyd", 0o755),
        ("etc/systemd/system/proxyd.service", 0o644),
        ("etc/systemd/system/egress-proxies-agent.service", 0o644),
        ("etc/systemd/system/egress-proxies-policy.service", 0o644),
        ("etc/egress-proxies/policy.nft", 0o644),
        (
            "etc/systemd/system/egress-proxies-first-boot.service",
            0o644,
        ),
        ("etc/egress-proxies", 0o755),
        ("etc/egress-proxies/proxyd.json", 0o600),
    ] {
        assert_eq!(machine.mode(path), mode, "{path}");
    }
    let program = fs::read(machine.root.join("usr/local/bin/proxyd")).expect("there");
    assert_eq!(program, machine.made.payload);
    assert!(
        machine
            .root
            .join("var/lib/cloud/instance/manual-clean")
            .exists()
    );
    assert!(!machine.root.join("etc/cloud/cloud-init.disabled").exists());
    let calls = machine.calls();
    assert!(
        calls.contains("\nuseradd --system --user-group --no-create-home"),
        "{calls}"
    );
    assert!(
        calls.ends_with(
            "systemctl enable egress-proxies-agent.service proxyd.service \
             egress-proxies-first-boot.service\nsync\nsystemctl restart --no-block \
             egress-proxies-agent.service proxyd.service egress-proxies-first-boot.service\n\
             umount /run/egress-proxies/seed\n"
        ),
        "{calls}"
    );

    // Once more, with the seed gone: cloud-init goes on where it stood.
    machine.add_program("mount", "exit 32");
    let (well, said) = machine.boot("px-a-3");
    assert!(well, "{said}");
    assert!(
        machine
            .calls()
            .ends_with("proxyd.service egress-proxies-first-boot.service\n")
    );
}

#[test]
fn the_boothook_refuses_a_machine_of_another_kind_by_its_name() {
    if !is_there("xorriso", "xorriso") {
        return;
    }
    let machine = Machine::new(GuestAgent::Builtin);
    let seed = machine.made.unpacked().display().to_string();
    machine.add_program("mount", &format!("cp -r {seed}/. \"$6\""));
    machine.add_program("uname", "echo aarch64");
    let (well, said) = machine.boot("px-a-3");
    assert!(!well);
    assert!(
        said.contains("the seed's proxyd is for x86_64, and this machine is aarch64"),
        "{said}"
    );
    assert!(!machine.root.join("usr/local/bin/proxyd").exists());
    assert!(
        machine
            .calls()
            .ends_with("umount /run/egress-proxies/seed\n")
    );
}

#[test]
fn the_boothook_of_a_baked_image_writes_the_configuration_alone() {
    if !is_there("xorriso", "xorriso") {
        return;
    }
    let machine = Machine::new(GuestAgent::Baked);
    let seed = machine.made.unpacked().display().to_string();
    machine.add_program("mount", &format!("cp -r {seed}/. \"$6\""));
    let (well, said) = machine.boot("px-a-3");
    assert!(well, "{said}");
    assert_eq!(machine.mode("etc/egress-proxies/proxyd.json"), 0o600);
    assert!(!machine.root.join("usr/local/bin/proxyd").exists());
    assert!(
        !machine
            .root
            .join("etc/systemd/system/proxyd.service")
            .exists()
    );
    assert!(!machine.calls().contains("useradd"));
}

#[test]
fn the_boothook_takes_nothing_from_a_disk_of_another_instance() {
    if !is_there("xorriso", "xorriso") {
        return;
    }
    let machine = Machine::new(GuestAgent::Package);
    let seed = machine.made.unpacked().display().to_string();
    machine.add_program("mount", &format!("cp -r {seed}/. \"$6\""));
    let (well, said) = machine.boot("px-a-4");
    assert!(!well);
    assert!(
        said.contains("no disk with the label cidata and the instance id px-a-4"),
        "{said}"
    );
    let console = fs::read_to_string(machine.root.join("dev/console"));
    assert!(console.is_err(), "no console is no reason to stop");
    assert!(!machine.root.join("etc/egress-proxies").exists());
    assert_eq!(
        machine.calls().matches("umount").count(),
        2,
        "each disk is let go"
    );
}

#[test]
fn b108_a_package_lock_that_is_held_is_waited_for() {
    let machine = Machine::new(GuestAgent::Package);
    let once = machine.root.join("once").display().to_string();
    machine.add_program(
        "apt-get",
        &format!("[ -e {once} ] || {{ : >{once}; exit 100; }}"),
    );
    machine.add_program("sleep", "");
    machine.add_program("systemctl", "[ \"$1\" != cat ]");
    assert!(machine.install_agent());
    assert_eq!(
        machine.calls(),
        "systemctl cat qemu-guest-agent.service\napt-get -q update\nsleep 10\n\
         systemctl cat qemu-guest-agent.service\napt-get -q update\n\
         apt-get -q -y -o DPkg::Lock::Timeout=300 --no-install-recommends install \
         qemu-guest-agent\n\
         systemctl daemon-reload\nsystemctl enable qemu-guest-agent.service\n\
         systemctl start --no-block qemu-guest-agent.service\n"
    );
}

#[test]
fn b107_an_agent_whose_unit_cannot_be_enabled_is_started_all_the_same() {
    let machine = Machine::new(GuestAgent::Package);
    machine.add_program("apt-get", "");
    machine.add_program("systemctl", "[ \"$1\" != cat ] && [ \"$1\" != enable ]");
    assert!(machine.install_agent());
    assert!(machine.calls().ends_with(
        "systemctl daemon-reload\nsystemctl enable qemu-guest-agent.service\n\
         systemctl start --no-block qemu-guest-agent.service\n"
    ));
}

#[test]
fn an_agent_that_is_there_is_started_and_not_installed_again() {
    let machine = Machine::new(GuestAgent::Package);
    machine.add_program("apt-get", "exit 100");
    assert!(machine.install_agent());
    assert!(!machine.calls().contains("apt-get"));
}

#[test]
fn an_agent_that_cannot_be_installed_is_given_up_after_five_minutes() {
    let machine = Machine::new(GuestAgent::Package);
    machine.add_program("apt-get", "exit 100");
    machine.add_program("sleep", "");
    machine.add_program("systemctl", "[ \"$1\" != cat ]");
    assert!(!machine.install_agent());
    assert_eq!(machine.calls().matches("apt-get -q update").count(), 30);
    assert!(!machine.calls().contains("systemctl start"));
}
