//! One machine: its seed, its boot, what it does when.

use super::{Ground, Kind, measure::processor_time, outside::PAGE};
use egress_core::{
    machine::CloudConfig,
    proxy_config::{Auth, Limits, ProxydConfig, Verifier},
};
use egress_seed::{GuestAgent, Seed};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// base64 of `egress:swordfish`.
const CREDENTIALS: &str = "ZWdyZXNzOnN3b3JkZmlzaA==";
const PORT: u16 = 3128;
const MAC: &str = "52:54:00:65:be:01";
const NAME: &str = "px-bench";
const HOPELESS: Duration = Duration::from_mins(5);
/// The time from one look to the next: little beside what is measured.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Tells on the console how much memory proxy and agent hold, and what else is asked for.
const TELL: &str = "\
- |
  {
    echo; echo FACTS
    for pid in $(pidof proxyd); do
      tr '\\0' ' ' </proc/$pid/cmdline; grep VmRSS: /proc/$pid/status
    done
";

/// Seconds from the start of the domain.
#[derive(Debug)]
pub struct Times {
    pub multi_user: f64,
    /// The hypervisor knows the machine's address, by the agent.
    pub addressed: f64,
    /// The first answer of a page through the proxy.
    pub served: f64,
    /// Processor time of QEMU up to that answer; without a proxy, up to the multi-user target.
    pub processor: f64,
}

/// What the machine says of itself.
pub struct Facts {
    pub proxy_mib: f64,
    pub agent_mib: f64,
}

/// A domain with its files; all go with this.
pub struct Machine<'a> {
    ground: &'a Ground,
    kind: Kind,
    begun: Instant,
}

/// The seed for this kind; `explain` is a command whose output goes to the console.
pub fn seed(ground: &Ground, kind: Kind, explain: Option<&str>) -> Vec<u8> {
    let config = ProxydConfig {
        key: NAME.to_owned(),
        attempt: 1,
        listen: SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 0], PORT)),
        management: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 9090))),
        egress: None,
        clients: Vec::new(),
        auth: Auth::Basic {
            verifiers: vec![Verifier::new("egress", "swordfish")],
            generation: 1,
        },
        limits: Limits::default(),
    };
    let agent = match kind {
        Kind::Bare => return bare(ground),
        Kind::Builtin => GuestAgent::Builtin,
        Kind::Package => GuestAgent::Package,
        Kind::Baked => GuestAgent::Baked,
    };
    let mut user_data = vec!["#cloud-config\n".to_owned()];
    if kind == Kind::Package {
        user_data.push(format!(
            "write_files: [{{path: /etc/apt/sources.list, content: 'deb [trusted=yes] http://{}/ \
             ./'}}]\n",
            ground.outside
        ));
    }
    // After everything that is timed.
    if kind == Kind::Builtin || explain.is_some() {
        let explain = explain.unwrap_or("true");
        user_data.push(format!(
            "runcmd:\n{TELL}    {explain}\n    echo; echo END\n  }} >/dev/ttyS0 2>&1\n"
        ));
    }
    let user_data = (user_data.len() > 1).then(|| CloudConfig::new(user_data.concat()));
    let seed = Seed {
        proxyd: &config,
        mac: Some(MAC),
        guest_agent: agent,
        payload: agent.needs_payload().then_some(&*ground.proxyd),
        user_data: user_data.as_ref(),
    };
    seed.render().expect("a seed")
}

/// A seed without anything of ours.
fn bare(ground: &Ground) -> Vec<u8> {
    let folder = tempfile::tempdir_in(&ground.dir).expect("a directory");
    let made = folder.path().join("seed.iso");
    let files = [
        (
            "meta-data",
            format!("instance-id: {NAME}\nlocal-hostname: {NAME}\n"),
        ),
        ("user-data", "#cloud-config\n{}\n".to_owned()),
        (
            "network-config",
            format!(
                "version: 2\nethernets: {{eth0: {{match: {{macaddress: '{MAC}'}}, dhcp4: true, \
                 dhcp6: true, dhcp-identifier: mac}}}}\n"
            ),
        ),
    ];
    let mut command = Command::new("genisoimage");
    command
        .args(["-quiet", "-V", "cidata", "-r", "-o"])
        .arg(&made);
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        command.arg(path);
    }
    assert!(command.status().expect("genisoimage starts").success());
    fs::read(made).expect("an image")
}

impl<'a> Machine<'a> {
    /// Defines and starts it.
    pub fn start(ground: &'a Ground, kind: Kind, explain: Option<&str>) -> Self {
        let mut machine = Self {
            ground,
            kind,
            begun: Instant::now(),
        };
        fs::write(machine.file("iso"), seed(ground, kind, explain)).expect("written");
        let base = match kind {
            Kind::Baked => &ground.baked,
            Kind::Bare | Kind::Builtin | Kind::Package => &ground.debian,
        };
        let made = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"])
            .arg(base)
            .arg(machine.file("qcow2"))
            .status();
        assert!(made.expect("qemu-img starts").success());
        let xml = machine.file("xml");
        fs::write(&xml, machine.domain()).expect("written");
        machine.must(&["define", &xml.display().to_string()]);
        machine.begun = Instant::now();
        machine.must(&["start", NAME]);
        machine
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.ground.dir.join(format!("{NAME}.{ending}"))
    }

    fn domain(&self) -> String {
        format!(
            "<domain type='qemu'>
  <name>{NAME}</name>
  <memory unit='MiB'>512</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type><boot dev='hd'/></os>
  <features><acpi/></features>
  <cpu mode='custom' match='exact'><model fallback='forbid'>qemu64</model></cpu>
  <devices>
    <disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='unsafe'/>
      <source file='{}'/><target dev='vda' bus='virtio'/></disk>
    <disk type='file' device='cdrom'><driver name='qemu' type='raw'/>
      <source file='{}'/><target dev='sda' bus='scsi'/><readonly/></disk>
    <controller type='scsi' model='virtio-scsi'/>
    <interface type='network'><source network='default'/><mac address='{MAC}'/>
      <model type='virtio'/></interface>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <serial type='file'><source path='{}'/><target port='0'/></serial>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
    <memballoon model='none'/>
  </devices>
</domain>",
            self.file("qcow2").display(),
            self.file("iso").display(),
            self.file("console").display(),
        )
    }

    fn virsh(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new("virsh")
            .args(["--quiet", "--connect", &self.ground.uri])
            .args(arguments)
            .output()
            .expect("virsh starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    fn must(&self, arguments: &[&str]) {
        self.virsh(arguments)
            .unwrap_or_else(|told| panic!("virsh {arguments:?}: {told}"));
    }

    /// Waits for everything that is timed.
    pub fn times(&self) -> Times {
        let has_proxy = self.kind != Kind::Bare;
        let mut times = Times {
            multi_user: f64::NAN,
            addressed: f64::NAN,
            served: f64::NAN,
            processor: f64::NAN,
        };
        let mut proxy = None;
        while times.multi_user.is_nan() || (has_proxy && times.served.is_nan()) {
            if times.multi_user.is_nan() && self.console().contains("multi-user.target") {
                times.multi_user = self.begun.elapsed().as_secs_f64();
                if !has_proxy {
                    times.processor = self.processor();
                }
            }
            if has_proxy && proxy.is_none() {
                proxy = self.address();
                if proxy.is_some() {
                    times.addressed = self.begun.elapsed().as_secs_f64();
                }
            }
            if let Some(proxy) = proxy
                && times.served.is_nan()
                && self.get(proxy).is_ok_and(|answer| answer.ends_with(PAGE))
            {
                times.served = self.begun.elapsed().as_secs_f64();
                times.processor = self.processor();
            }
            assert!(
                self.begun.elapsed() < HOPELESS,
                "{times:?}, and its console:\n{}",
                self.console()
            );
            thread::sleep(BETWEEN_LOOKS);
        }
        times
    }

    /// What QEMU has used so far.
    fn processor(&self) -> f64 {
        let file = self.ground.dir.join(format!("run/qemu/{NAME}.pid"));
        let pid = fs::read_to_string(file).expect("QEMU runs");
        processor_time(pid.trim().parse().expect("a pid")).as_secs_f64()
    }

    fn address(&self) -> Option<SocketAddr> {
        let told = self.virsh(&["domifaddr", NAME, "--source", "agent"]).ok()?;
        told.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [card, _, "ipv4", address] = words[..] else {
                return None;
            };
            let address: Ipv4Addr = address.split('/').next()?.parse().ok()?;
            (card != "lo").then(|| SocketAddr::from((address, PORT)))
        })
    }

    fn get(&self, proxy: SocketAddr) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&proxy, Duration::from_millis(400))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let page = self.ground.outside;
        write!(
            stream,
            "GET http://{page}/ HTTP/1.1\r\nHost: {page}\r\nConnection: close\r\n\
             Proxy-Authorization: Basic {CREDENTIALS}\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn console(&self) -> String {
        let bytes = fs::read(self.file("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// Waits for what the machine says of itself, and prints what else was asked for.
    pub fn facts(&self) -> Option<Facts> {
        let told = loop {
            let console = self.console();
            let facts = console.split_once("\nFACTS\n").map(|(_, rest)| rest);
            if let Some((facts, _)) = facts.and_then(|rest| rest.split_once("\nEND\n")) {
                break facts.to_owned();
            }
            if self.kind == Kind::Bare {
                return None;
            }
            assert!(self.begun.elapsed() < HOPELESS, "no facts:\n{console}");
            thread::sleep(BETWEEN_LOOKS);
        };
        eprintln!("{told}");
        let memory = |is_agent: bool| {
            let mut lines = told.lines().filter(|line| line.contains("VmRSS:"));
            let line = lines.find(|line| line.contains("--agent") == is_agent);
            let kib = line.and_then(|line| line.split_whitespace().rev().nth(1)?.parse().ok());
            kib.map_or(f64::NAN, |kib: f64| kib / 1024.0)
        };
        Some(Facts {
            proxy_mib: memory(false),
            agent_mib: memory(true),
        })
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        for verb in ["destroy", "undefine"] {
            let _ = self.virsh(&[verb, NAME]);
        }
        for ending in ["qcow2", "iso", "xml", "console"] {
            let _ = fs::remove_file(self.file(ending));
        }
    }
}
