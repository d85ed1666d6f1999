//! A second libvirtd beside the one of `libvirt-up`, with its own paths and the same network.

use super::{Ground, PATIENCE};
use egress_kvm2::client::{Client, Dialer, HostUri, Session, TlsFiles};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::Instant;

/// Lays the folders over libvirt's own paths, where nobody else sees it, and becomes the daemon.
const RUN: &str = r#"
echo "$2" >/proc/sys/kernel/hostname
for pair in etc:/etc/libvirt run:/run/libvirt lib:/var/lib/libvirt cache:/var/cache/libvirt \
  log:/var/log/libvirt; do
  mount --bind "$1/${pair%%:*}" "${pair#*:}" || exit
done
exec libvirtd -f /etc/libvirt/libvirtd.conf -p "$1/libvirtd.pid" $3
"#;

const QEMU_CONF: &str = "\
user = \"root\"
group = \"root\"
dynamic_ownership = 0
remember_owner = 0
security_driver = \"none\"
namespaces = []
cgroup_controllers = []
stdio_handler = \"file\"
";

const LIBVIRTD_CONF: &str = "\
listen_tcp = 0
auth_unix_ro = \"none\"
auth_unix_rw = \"none\"
unix_sock_group = \"root\"
unix_sock_rw_perms = \"0770\"
";

/// What a libvirtd is to be.
pub struct Wish<'a> {
    /// Its host's name, and that of its folder.
    pub name: &'a str,
    /// Its network is 192.168.this.0/24: no two at once may have the same.
    pub subnet: u8,
    /// Lines of libvirtd.conf beside ours; with any, it listens by TLS.
    pub tls: Option<&'a str>,
    /// The directory of its pool `default`: another host's, or else its own.
    pub pool: Option<&'a Path>,
}

/// A libvirtd of a test's own; it ends with this.
pub struct Host {
    name: String,
    listens: bool,
    subnet: u8,
    dir: TempDir,
    daemon: Option<Child>,
    pub uri: HostUri,
    pub pool: PathBuf,
}

impl Host {
    /// Starts it, with a network and a pool `default` that has this image.
    pub async fn start(ground: &Ground, wish: &Wish<'_>, image: &str) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("egress-host-")
            .tempdir()
            .expect("a folder");
        for folder in ["etc", "run", "lib", "cache/qemu", "log/qemu", "pool"] {
            fs::create_dir_all(dir.path().join(folder)).expect("a folder");
        }
        let capabilities = ground.dir.join("cache/qemu/capabilities");
        run(Command::new("cp")
            .arg("-r")
            .arg(capabilities)
            .arg(dir.path().join("cache/qemu")));
        fs::write(dir.path().join("etc/qemu.conf"), QEMU_CONF).expect("written");
        let mut conf = LIBVIRTD_CONF.to_owned();
        let uuid = uuid::Uuid::new_v4();
        writeln!(conf, "host_uuid = \"{uuid}\"").expect("written");
        match wish.tls {
            Some(lines) => conf.push_str(lines),
            None => conf.push_str("listen_tls = 0\n"),
        }
        fs::write(dir.path().join("etc/libvirtd.conf"), conf).expect("written");
        let socket = dir.path().join("run/libvirt-sock");
        let uri = format!("qemu+unix:///system?socket={}", socket.display());
        let own = dir.path().join("pool");
        let mut host = Self {
            name: wish.name.to_owned(),
            listens: wish.tls.is_some(),
            subnet: wish.subnet,
            uri: uri.parse().expect("a URI"),
            pool: wish.pool.map_or(own, Path::to_owned),
            dir,
            daemon: None,
        };
        host.go().await;
        host.furnish(ground, wish, image);
        host
    }

    /// Starts the daemon, and waits for its answer.
    pub async fn go(&mut self) {
        let log = fs::File::create(self.dir.path().join("libvirtd.log")).expect("a file");
        let daemon = Command::new("unshare")
            .args(["--mount", "--uts", "sh", "-c", RUN, "sh"])
            .arg(self.dir.path())
            .arg(&self.name)
            .arg(if self.listens { "--listen" } else { "" })
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("unshare starts");
        self.daemon = Some(daemon);
        let client = Client::new(Dialer::new(self.uri.clone(), TlsFiles::default()));
        let end = Instant::now() + PATIENCE;
        while let Err(failure) = client.open(Duration::from_secs(2)).await {
            let log = fs::read_to_string(self.dir.path().join("libvirtd.log"));
            let ended = self.daemon.as_mut().and_then(|d| d.try_wait().ok()?);
            assert!(ended.is_none(), "libvirtd ended: {log:?}");
            assert!(Instant::now() < end, "{failure}: {log:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn furnish(&self, ground: &Ground, wish: &Wish<'_>, image: &str) {
        let subnet = wish.subnet;
        let network = format!(
            "<network xmlns:dnsmasq='http://libvirt.org/schemas/network/dnsmasq/1.0'>
  <name>default</name><forward mode='nat'/><bridge name='virbr{subnet}' stp='off' delay='0'/>
  <ip address='192.168.{subnet}.1' netmask='255.255.255.0'>
    <dhcp><range start='192.168.{subnet}.10' end='192.168.{subnet}.250'/></dhcp></ip>
  <dnsmasq:options><dnsmasq:option value='no-ping'/></dnsmasq:options>
</network>"
        );
        let file = self.dir.path().join("network.xml");
        fs::write(&file, network).expect("written");
        self.virsh(&["net-define", &file.display().to_string()]);
        self.virsh(&["net-start", "default"]);
        self.virsh(&["net-autostart", "default"]);
        if wish.pool.is_none() {
            fs::copy(ground.dir.join("pool").join(image), self.pool.join(image)).expect("a copy");
        }
        let target = self.pool.display().to_string();
        self.virsh(&["pool-define-as", "default", "dir", "--target", &target]);
        self.virsh(&["pool-start", "default"]);
        self.virsh(&["pool-autostart", "default"]);
    }

    /// What virsh says, which must succeed.
    pub fn virsh(&self, arguments: &[&str]) -> String {
        virsh(&self.uri, arguments)
    }

    /// A connection beside the provider's.
    pub async fn session(&self) -> Session {
        let client = Client::new(Dialer::new(self.uri.clone(), TlsFiles::default()));
        client.open(PATIENCE).await.expect("libvirt answers")
    }

    /// Ends the daemon; its machines run on.
    pub fn stop(&mut self) {
        let Some(mut daemon) = self.daemon.take() else {
            return;
        };
        let pid = Pid::from_raw(i32::try_from(daemon.id()).expect("a pid"));
        // Its network and pools stay, too.
        let _gone = kill_process(pid.expect("a pid"), Signal::TERM);
        let _ended = daemon.wait();
    }
}

impl Host {
    /// The power goes, and comes back: nothing runs, and what lay in memory is forgotten.
    pub async fn reboot(&mut self) {
        self.stop();
        let dir = self.dir.path().display().to_string();
        for process in fs::read_dir("/proc").expect("processes").flatten() {
            let Ok(pid) = process.file_name().to_string_lossy().parse() else {
                continue;
            };
            // Its machines and its DHCP server lie below libvirt's own paths, which only a
            // process of this host has there.
            let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            let is_of_it = fs::read_to_string(process.path().join("mountinfo"))
                .is_ok_and(|mounts| mounts.contains(&dir));
            if is_of_it && (words.contains("qemu-system") || words.contains("dnsmasq")) {
                let _gone = kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL);
            }
        }
        let bridge = format!("virbr{}", self.subnet);
        run(Command::new("ip").args(["link", "del", &bridge]));
        fs::remove_dir_all(self.dir.path().join("run")).expect("removed");
        fs::create_dir(self.dir.path().join("run")).expect("a folder");
        self.go().await;
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.path().join("libvirtd.log"));
            eprintln!("{}: {}", self.name, log.unwrap_or_default());
        }
        if self.daemon.is_some() && !std::thread::panicking() {
            let running = self.virsh(&["list", "--name"]);
            assert_eq!(running.trim(), "", "a test leaves no machine");
            self.virsh(&["net-destroy", "default"]);
        }
        self.stop();
    }
}

/// What virsh says at this libvirt, which must succeed.
pub fn virsh(uri: &HostUri, arguments: &[&str]) -> String {
    run(Command::new("virsh")
        .args(["--quiet", "--connect", uri.as_str()])
        .args(arguments))
}

/// Runs a program to its end, which must be good, and answers what it said.
pub fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}
