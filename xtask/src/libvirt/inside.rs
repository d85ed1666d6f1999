//! libvirt's daemons, network, pool and base image, within the namespaces.

use crate::{
    Stop,
    guest::{cache, must, tool},
};
use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

/// Within this libvirt answers, also when it has to ask QEMU for everything it can do.
const PATIENCE: Duration = Duration::from_mins(2);
/// The time from one look to the next.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// libvirt's own paths, and the folder of ours that each becomes.
const PATHS: [(&str, &str); 5] = [
    ("etc", "/etc/libvirt"),
    ("run", "/run/libvirt"),
    ("lib", "/var/lib/libvirt"),
    ("cache", "/var/cache/libvirt"),
    ("log", "/var/log/libvirt"),
];

const QEMU_CONF: &str = "\
user = \"root\"
group = \"root\"
dynamic_ownership = 0
remember_owner = 0
security_driver = \"none\"
namespaces = []
cgroup_controllers = []
";
const LIBVIRTD_CONF: &str = "\
listen_tls = 0
listen_tcp = 0
auth_unix_ro = \"none\"
auth_unix_rw = \"none\"
unix_sock_group = \"root\"
unix_sock_rw_perms = \"0770\"
";

/// No address is pinged before it is offered (that takes 3 s, one after the other), and leases
/// are as short as dnsmasq allows.
const NETWORK: &str = "\
<network xmlns:dnsmasq='http://libvirt.org/schemas/network/dnsmasq/1.0'>
  <name>default</name>
  <forward mode='nat'/>
  <bridge name='virbr0' stp='off' delay='0'/>
  <ip address='192.168.150.1' netmask='255.255.255.0'>
    <dhcp><range start='192.168.150.10' end='192.168.150.250'><lease expiry='2' unit='minutes'/></range></dhcp>
  </ip>
  <dnsmasq:options><dnsmasq:option value='no-ping'/></dnsmasq:options>
</network>
";

/// An address that stands for the internet: guests reach it by their default route, and no
/// proxy refuses it as a private one (RFC 5737).
const OUTSIDE: &str = "198.51.100.1";

/// What people and tests are told.
struct Told {
    uri: String,
    base_image: String,
    netns: String,
    dir: PathBuf,
}

impl Told {
    fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("EGRESS_LIBVIRT_URI", self.uri.clone()),
            ("EGRESS_LIBVIRT_BASE_IMAGE", self.base_image.clone()),
            ("EGRESS_LIBVIRT_NETNS", self.netns.clone()),
            ("EGRESS_LIBVIRT_OUTSIDE", OUTSIDE.to_owned()),
            ("EGRESS_LIBVIRT_DIR", self.dir.display().to_string()),
        ]
    }

    fn print(&self) {
        println!(
            "libvirt answers; its network `default` is 192.168.150.0/24, its pool `default`.\n"
        );
        for (name, value) in self.variables() {
            println!("export {name}='{value}'");
        }
        println!(
            "\nGuests are reached from their own network only:\n\n  \
             nsenter --net={} curl ...\n\nCtrl-C stops everything and removes {}.",
            self.netns,
            self.dir.display()
        );
    }
}

/// Starts everything in `dir`, and runs the command, or waits until the input closes.
pub(super) fn run(dir: &Path, image: &Path, name: &str, command: &[String]) -> Result<(), Stop> {
    let closed = input();
    prepare(dir)?;
    let mut daemons = [start(dir, "virtlogd")?, start(dir, "libvirtd")?];
    wait_for_answer(dir, &mut daemons[1])?;
    keep_capabilities(dir)?;
    let base_image = furnish(dir, image)?;
    let told = Told {
        uri: format!(
            "qemu+unix:///system?socket={}",
            dir.join("run/libvirt-sock").display()
        ),
        base_image,
        netns: format!("/run/netns/{name}"),
        dir: dir.to_owned(),
    };
    let Some((program, arguments)) = command.split_first() else {
        told.print();
        let _ = closed.recv();
        return Ok(());
    };
    let mut child = Command::new(program)
        .args(arguments)
        .envs(told.variables())
        .stdin(Stdio::null())
        .spawn()
        .map_err(|source| Stop::Because(format!("{program}: {source}")))?;
    loop {
        if let Some(status) = child.try_wait()? {
            return super::well(status);
        }
        // One that a test has ended is not left lying about.
        for daemon in &mut daemons {
            daemon.try_wait()?;
        }
        if closed.recv_timeout(BETWEEN_LOOKS) != Err(RecvTimeoutError::Timeout) {
            // Whatever it started ends with the namespace.
            child.kill()?;
            child.wait()?;
            return Err(Stop::Failed);
        }
    }
}

/// A channel that closes with the standard input.
fn input() -> Receiver<()> {
    let (send, closed) = channel();
    thread::spawn(move || {
        let read = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        drop((read, send));
    });
    closed
}

/// Lays our folders over libvirt's, and writes its configuration.
fn prepare(dir: &Path) -> Result<(), Stop> {
    for (name, path) in PATHS {
        let own = dir.join(name);
        fs::create_dir_all(&own)?;
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755))?;
        fs::create_dir_all(path)?;
        must(tool("mount").arg("--bind").arg(&own).arg(path))?;
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    fs::create_dir(dir.join("pool"))?;
    // The package brings it: no domain starts without.
    fs::create_dir_all(dir.join("log/qemu"))?;
    fs::write(dir.join("etc/qemu.conf"), QEMU_CONF)?;
    // Without firmware that tells one, the daemon would make up another identity at each start.
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let libvirtd = format!("{LIBVIRTD_CONF}host_uuid = \"{}\"\n", uuid.trim());
    fs::write(dir.join("etc/libvirtd.conf"), libvirtd)?;
    fs::write(dir.join("etc/virtlogd.conf"), "")?;
    for daemon in ["virtlogd", "libvirtd"] {
        let script = dir.join(format!("start-{daemon}"));
        fs::write(
            &script,
            format!(
                "#!/bin/sh\nexec {daemon} -f /etc/libvirt/{daemon}.conf -p {0}/{daemon}.pid \
                 >>{0}/{daemon}.log 2>&1\n",
                dir.display()
            ),
        )?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    }
    // What QEMU can do takes libvirt seconds to find out; it checks itself whether it still holds.
    let known = cache()?.join("libvirt-capabilities");
    if known.is_dir() {
        let to = dir.join("cache/qemu");
        fs::create_dir_all(&to)?;
        must(tool("cp").arg("-r").arg(known).arg(to.join("capabilities")))?;
    }
    Ok(())
}

fn start(dir: &Path, daemon: &str) -> Result<Child, Stop> {
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new(dir.join(format!("start-{daemon}")))
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .stdin(Stdio::null())
        .spawn()
        .map_err(|source| Stop::Because(format!("{daemon} did not start: {source}")))
}

fn wait_for_answer(dir: &Path, daemon: &mut Child) -> Result<(), Stop> {
    let begun = Instant::now();
    let log = || fs::read_to_string(dir.join("libvirtd.log")).unwrap_or_default();
    loop {
        if let Some(status) = daemon.try_wait()? {
            return Err(Stop::Because(format!(
                "libvirtd ended with {status}; it said:\n{}",
                log()
            )));
        }
        if virsh().arg("version").output()?.status.success() {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err(Stop::Because(format!(
                "libvirtd does not answer; it said:\n{}",
                log()
            )));
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}

/// Keeps for later starts what libvirt found out about QEMU.
fn keep_capabilities(dir: &Path) -> Result<(), Stop> {
    let found = dir.join("cache/qemu/capabilities");
    let kept = cache()?.join("libvirt-capabilities");
    if kept.exists() || !found.is_dir() {
        return Ok(());
    }
    let scratch = kept.with_extension(std::process::id().to_string());
    must(tool("cp").arg("-r").arg(found).arg(&scratch))?;
    // Another start may have been quicker: its word is as good.
    if fs::rename(&scratch, &kept).is_err() {
        fs::remove_dir_all(&scratch)?;
    }
    Ok(())
}

/// The network, the pool, and in it the base image, whose volume's name is returned.
fn furnish(dir: &Path, image: &Path) -> Result<String, Stop> {
    let network = dir.join("network.xml");
    fs::write(&network, NETWORK)?;
    let name = image
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .ok_or_else(|| Stop::Because(format!("{}: is no file", image.display())))?;
    let pool = dir.join("pool");
    std::io::copy(
        &mut File::open(image)
            .map_err(|source| Stop::Because(format!("{}: {source}", image.display())))?,
        &mut File::create(pool.join(&name))?,
    )?;
    must(tool("ip").args(["address", "add", OUTSIDE, "dev", "lo"]))?;
    must(virsh().arg("net-define").arg(&network))?;
    must(virsh().args(["net-autostart", "default"]))?;
    must(virsh().args(["net-start", "default"]))?;
    must(
        virsh()
            .args(["pool-define-as", "default", "dir", "--target"])
            .arg(&pool),
    )?;
    must(virsh().args(["pool-autostart", "default"]))?;
    must(virsh().args(["pool-start", "default"]))?;
    must(virsh().args(["vol-info", "--pool", "default", &name]))?;
    Ok(name)
}

fn virsh() -> Command {
    let mut command = tool("virsh");
    command.args(["--quiet", "--connect", "qemu:///system"]);
    command
}
