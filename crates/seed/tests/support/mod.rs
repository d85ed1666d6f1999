//! A real machine with one of our seeds, on the libvirt that `cargo xtask libvirt-up` runs.

use egress_core::{
    machine::CloudConfig,
    proxy_config::{Auth, Limits, ProxydConfig, Verifier},
};
use egress_seed::{GuestAgent, Seed};
use std::{
    env, fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Emulated machines on a busy host take their time.
pub const PATIENCE: Duration = Duration::from_mins(5);
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// base64 of `egress:swordfish`.
const CREDENTIALS: &str = "ZWdyZXNzOnN3b3JkZmlzaA==";
pub const PORT: u16 = 3128;

/// A first boot that does not end while a test runs.
pub const LONG_FIRST_BOOT: &str = "#cloud-config\nruncmd:\n- sleep 3600\n";

/// Where libvirt is.
pub struct Ground {
    pub uri: String,
    pub base_image: String,
    pub dir: PathBuf,
    /// Stands for the internet.
    pub outside: IpAddr,
    payload: Vec<u8>,
}

impl Ground {
    /// What `libvirt-up` tells its command. Elsewhere it says what would enable the test; where
    /// nothing may be left out, that is a failure.
    pub fn find() -> Option<Self> {
        let told = |name: &str| env::var(name).ok();
        let found = (|| {
            Some(Self {
                uri: told("EGRESS_LIBVIRT_URI")?,
                base_image: told("EGRESS_LIBVIRT_BASE_IMAGE")?,
                dir: told("EGRESS_LIBVIRT_DIR")?.into(),
                outside: told("EGRESS_LIBVIRT_OUTSIDE")?.parse().ok()?,
                payload: fs::read(told("EGRESS_PAYLOAD")?).ok()?,
            })
        })();
        if found.is_none() {
            let why = "real guests: cargo xtask ci guests, as root";
            assert!(
                !env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1"),
                "{why}"
            );
            // Not by `eprintln!`, which a passing test keeps to itself.
            writeln!(std::io::stderr(), "NOT RUN: {why}").expect("a stream");
        }
        found
    }

    /// What virsh prints; `Err` with what it complains of.
    pub fn virsh(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new("virsh")
            .args(["--quiet", "--connect", &self.uri])
            .args(arguments)
            .output()
            .expect("virsh starts");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    fn must(&self, arguments: &[&str]) -> String {
        self.virsh(arguments)
            .unwrap_or_else(|told| panic!("virsh {arguments:?}: {told}"))
    }
}

/// Waits for a value, and says what was seen last when it does not come.
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Result<T, String>) -> T {
    look_for(PATIENCE, look).unwrap_or_else(|seen| panic!("no {what}: {seen}"))
}

fn look_for<T>(
    patience: Duration,
    mut look: impl FnMut() -> Result<T, String>,
) -> Result<T, String> {
    let begun = Instant::now();
    loop {
        match look() {
            Err(_) if begun.elapsed() < patience => thread::sleep(BETWEEN_LOOKS),
            outcome => return outcome,
        }
    }
}

/// The address of a machine's network card: no two that run at once may share one.
pub fn mac(name: &str) -> String {
    let sum = name
        .bytes()
        .fold(7_u16, |sum, byte| sum.wrapping_mul(31) ^ u16::from(byte));
    let [high, low] = sum.to_be_bytes();
    format!("52:54:00:65:{high:02x}:{low:02x}")
}

/// How a machine is built, and what it is told beside our own part.
pub struct Hardware<'a> {
    /// Of the pool, or a file with its folder.
    pub image: &'a str,
    pub user_data: Option<&'a str>,
    pub machine_type: &'static str,
    pub seed_bus: &'static str,
    pub memory_mib: u32,
}

/// A machine; what it says on its console is told when its test fails, and all of it goes with
/// this.
pub struct Machine<'a> {
    ground: &'a Ground,
    name: String,
}

impl<'a> Machine<'a> {
    /// Defines and starts a machine with a seed.
    pub fn start(ground: &'a Ground, name: &str, hardware: &Hardware<'_>) -> Self {
        let machine = Self {
            ground,
            name: name.to_owned(),
        };
        let mac = mac(name);
        let config = ProxydConfig {
            key: name.to_owned(),
            attempt: 1,
            listen: SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 0], PORT)),
            management: Some(SocketAddr::from(([127, 0, 0, 1], 9090))),
            egress: None,
            clients: Vec::new(),
            auth: Auth::Basic {
                verifiers: vec![Verifier::new("egress", "swordfish")],
                generation: 1,
            },
            limits: Limits::default(),
        };
        let user_data = hardware
            .user_data
            .map(|text| CloudConfig::new(text.to_owned()));
        let seed = Seed {
            proxyd: &config,
            mac: Some(&mac),
            guest_agent: GuestAgent::Builtin,
            payload: Some(&ground.payload),
            user_data: user_data.as_ref(),
        };
        fs::write(machine.seed(), seed.render().expect("a seed")).expect("written");
        let base = ground.dir.join("pool").join(hardware.image);
        let made = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"])
            .arg(base)
            .arg(machine.disk())
            .status()
            .expect("qemu-img starts");
        assert!(made.success());
        let xml = machine.file("xml");
        fs::write(&xml, machine.domain(hardware, &mac)).expect("written");
        ground.must(&["define", &xml.display().to_string()]);
        ground.must(&["start", name]);
        machine
    }

    pub fn file(&self, ending: &str) -> PathBuf {
        self.ground.dir.join(format!("{}.{ending}", self.name))
    }

    fn disk(&self) -> PathBuf {
        self.file("qcow2")
    }

    fn seed(&self) -> PathBuf {
        self.file("iso")
    }

    fn domain(&self, hardware: &Hardware<'_>, mac: &str) -> String {
        let Hardware {
            machine_type,
            seed_bus,
            memory_mib,
            ..
        } = hardware;
        let target = if *seed_bus == "ide" { "hda" } else { "sda" };
        format!(
            "<domain type='qemu'>
  <name>{}</name>
  <memory unit='MiB'>{memory_mib}</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='{machine_type}'>hvm</type><boot dev='hd'/></os>
  <features><acpi/></features>
  <cpu mode='custom' match='exact'><model fallback='forbid'>qemu64</model></cpu>
  <devices>
    <disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='unsafe'/>
      <source file='{}'/><target dev='vda' bus='virtio'/></disk>
    <disk type='file' device='cdrom'><driver name='qemu' type='raw'/>
      <source file='{}'/><target dev='{target}' bus='{seed_bus}'/><readonly/></disk>
    <controller type='scsi' model='virtio-scsi'/>
    <interface type='network'><source network='default'/><mac address='{mac}'/>
      <model type='virtio'/></interface>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <serial type='file'><source path='{}'/><target port='0'/></serial>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
    <memballoon model='none'/>
  </devices>
</domain>",
            self.name,
            self.disk().display(),
            self.seed().display(),
            self.file("console").display(),
        )
    }

    pub fn state(&self) -> String {
        self.ground.must(&["domstate", &self.name])
    }

    /// The same once more where a boot stood still: one in some dozens of emulated boots does,
    /// wherever it is.
    #[allow(dead_code, reason = "each test program uses a part of this")]
    pub fn start_full(ground: &'a Ground, name: &str, hardware: &Hardware<'_>) -> Self {
        let machine = Self::start(ground, name, hardware);
        let Err(seen) = machine.address_within(PATIENCE) else {
            return machine;
        };
        writeln!(
            std::io::stderr(),
            "BEGUN ANEW: {seen}\n{}",
            machine.console()
        )
        .expect("a stream");
        drop(machine);
        Self::start(ground, name, hardware)
    }

    /// The address that the guest agent tells libvirt.
    pub fn address(&self) -> IpAddr {
        let told = self.address_within(PATIENCE);
        told.unwrap_or_else(|seen| panic!("no address by the agent: {seen}"))
    }

    /// The same; `Err` with what was seen last.
    pub fn address_within(&self, patience: Duration) -> Result<IpAddr, String> {
        look_for(patience, || {
            let asked = ["domifaddr", &self.name, "--source", "agent"];
            let told = self.ground.virsh(&asked)?;
            let found = told.lines().find_map(|line| {
                let mut words = line.split_whitespace();
                let (card, _, kind, address) =
                    (words.next()?, words.next()?, words.next()?, words.next()?);
                let address = address.split('/').next()?.parse().ok()?;
                (card != "lo" && kind == "ipv4").then_some(address)
            });
            found.ok_or(told)
        })
    }

    /// What the agent answers, by libvirt.
    pub fn ask_agent(&self, request: &str) -> Result<String, String> {
        self.ground
            .virsh(&["qemu-agent-command", &self.name, request])
    }

    pub fn virsh(&self, verb: &str, arguments: &[&str]) -> String {
        let mut all = vec![verb, &self.name];
        all.extend(arguments);
        self.ground.must(&all)
    }

    /// A file with the first device of this kind, as libvirt has it.
    #[allow(dead_code, reason = "each test program uses a part of this")]
    pub fn device(&self, kind: &str) -> String {
        let xml = self.virsh("dumpxml", &[]);
        let (begin, end) = (format!("<{kind} "), format!("</{kind}>"));
        let device = xml
            .find(&begin)
            .and_then(|at| xml[at..].split_once(&end))
            .map(|(device, _)| format!("{device}{end}\n"));
        let path = self.file(kind);
        fs::write(&path, device.expect("a device")).expect("written");
        path.display().to_string()
    }

    /// A disk with these packages, labelled `packages`.
    #[allow(dead_code, reason = "each test program uses a part of this")]
    pub fn attach_packages(&self, folder: &str) {
        let disk = self.file("packages");
        let made = Command::new("genisoimage")
            .args(["-quiet", "-R", "-V", "packages", "-o"])
            .arg(&disk)
            .arg(folder)
            .status()
            .expect("genisoimage starts");
        assert!(made.success());
        let disk = disk.display().to_string();
        let bus = ["--targetbus", "scsi", "--mode", "readonly", "--live"];
        let arguments: Vec<&str> = [disk.as_str(), "sdb"].into_iter().chain(bus).collect();
        self.virsh("attach-disk", &arguments);
    }

    /// What it said on its console so far.
    pub fn console(&self) -> String {
        let bytes = fs::read(self.file("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// Takes the seed out of its drive and deletes it, as a provider does.
    pub fn seal(&self, drive: &str) {
        self.virsh("change-media", &[drive, "--eject", "--live", "--config"]);
        fs::remove_file(self.seed()).expect("it was there");
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the console of {}:\n{}", self.name, self.console());
        }
        for verb in ["destroy", "undefine"] {
            let _ = self.ground.virsh(&[verb, &self.name]);
        }
        for ending in ["qcow2", "iso", "xml", "console", "packages"] {
            let _ = fs::remove_file(self.file(ending));
        }
    }
}

/// A page on the address that stands for the internet: answers each request with 200.
pub fn page(ground: &Ground) -> SocketAddr {
    let listener = TcpListener::bind((ground.outside, 0)).expect("a port");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\noutside",
            );
        }
    });
    address
}

/// The answer to one request to a proxy, up to its end.
pub fn ask(proxy: SocketAddr, request: &str) -> Result<String, String> {
    read(proxy, request, |_| false)
}

fn read(
    proxy: SocketAddr,
    request: &str,
    is_enough: impl Fn(&[u8]) -> bool,
) -> Result<String, String> {
    let said = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect_timeout(&proxy, Duration::from_secs(5)).map_err(said)?;
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .map_err(said)?;
    stream.write_all(request.as_bytes()).map_err(said)?;
    let mut answer = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes).map_err(said)? {
            0 => break,
            count => answer.extend(&bytes[..count]),
        }
        if is_enough(&answer) {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// A GET through a proxy, with our credentials.
pub fn get(proxy: SocketAddr, target: SocketAddr) -> Result<String, String> {
    ask(
        proxy,
        &format!(
            "GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\
             Proxy-Authorization: Basic {CREDENTIALS}\r\n\r\n"
        ),
    )
}

/// The head of the answer to a CONNECT.
pub fn connect(proxy: SocketAddr, target: &str) -> Result<String, String> {
    let request = format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\
         Proxy-Authorization: Basic {CREDENTIALS}\r\n\r\n"
    );
    read(proxy, &request, |answer| {
        answer.windows(4).any(|at| at == b"\r\n\r\n")
    })
}

/// Whether the machine's proxy serves: waits for the first 200, which must be the page's.
pub fn served(proxy: SocketAddr, page: SocketAddr) {
    let answer = wait_for("answer through the proxy", || {
        let answer = get(proxy, page)?;
        if answer.starts_with("HTTP/1.1 200") {
            Ok(answer)
        } else {
            Err(answer)
        }
    });
    assert!(answer.ends_with("outside"), "{answer}");
}
