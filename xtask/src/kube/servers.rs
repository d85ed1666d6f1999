//! etcd, kube-apiserver and kube-controller-manager as processes on loopback.
//!
//! The API server makes its own certificate and signs tokens with that key; people and tests
//! come as `admin`, with a token that is made for this one server.

use super::assets::Assets;
use crate::Stop;
use std::{
    fs::{self, File, OpenOptions},
    io::Read,
    net::TcpListener,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Within this a server is ready, also on a busy machine.
const PATIENCE: Duration = Duration::from_mins(3);
/// The time from one look to the next.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// One of the three programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Etcd,
    ApiServer,
    Controllers,
}

impl Part {
    pub(crate) const ALL: [Self; 3] = [Self::Etcd, Self::ApiServer, Self::Controllers];

    /// The program's name, as people type it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::Controllers => "kube-controller-manager",
        }
    }
}

/// The running servers and their folder, which goes with them.
pub(crate) struct Servers {
    assets: Assets,
    dir: PathBuf,
    netns: Option<String>,
    ports: [u16; 3],
    token: String,
    running: Vec<(Part, Child)>,
}

impl Servers {
    /// Starts all three in an empty folder, and waits until the API server is ready.
    pub(crate) fn start(assets: Assets, dir: PathBuf, netns: Option<String>) -> Result<Self, Stop> {
        let mut servers = Self {
            assets,
            dir,
            netns,
            ports: free_ports()?,
            token: random()?,
            running: Vec::new(),
        };
        servers.write_files()?;
        servers.launch(Part::Etcd)?;
        servers.launch(Part::ApiServer)?;
        servers.wait_ready()?;
        // These give up when the API server is not there.
        servers.launch(Part::Controllers)?;
        Ok(servers)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports[2])
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn assets(&self) -> &Assets {
        &self.assets
    }

    /// The pid of a program that runs.
    pub(crate) fn pid(&self, part: Part) -> Option<u32> {
        let found = self.running.iter().find(|(running, _)| *running == part);
        found.map(|(_, child)| child.id())
    }

    /// Ends a program as a crash would, and waits for its end.
    pub(crate) fn kill(&mut self, part: Part) -> Result<(), Stop> {
        if let Some(at) = self
            .running
            .iter()
            .position(|(running, _)| *running == part)
        {
            let (_, mut child) = self.running.remove(at);
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Starts a program that was ended, on the data and ports it had.
    pub(crate) fn restart(&mut self, part: Part) -> Result<(), Stop> {
        self.kill(part)?;
        self.launch(part)?;
        self.wait_ready()
    }

    /// An error when a program ended that nobody ended here.
    pub(crate) fn look(&mut self) -> Result<(), Stop> {
        for (part, child) in &mut self.running {
            if let Some(status) = child.try_wait()? {
                let name = part.name();
                return Err(Stop::Because(format!(
                    "{name} ended with {status}; it said last:\n{}",
                    last_lines(&self.dir.join(format!("{name}.log")))
                )));
            }
        }
        Ok(())
    }

    fn wait_ready(&mut self) -> Result<(), Stop> {
        let begun = Instant::now();
        loop {
            self.look()?;
            let mut ready = self.within(&self.assets.kubectl);
            ready
                .args(["get", "--raw", "/readyz", "--request-timeout=5s"])
                .arg("--kubeconfig")
                .arg(self.kubeconfig())
                .stdin(Stdio::null());
            let seen = ready.output()?;
            if seen.status.success() {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(Stop::Because(format!(
                    "the API server is not ready: {}\nit said last:\n{}",
                    String::from_utf8_lossy(&seen.stderr),
                    last_lines(&self.dir.join("kube-apiserver.log"))
                )));
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// A command in the namespace of the network where the servers are.
    fn within(&self, program: &Path) -> Command {
        match &self.netns {
            None => Command::new(program),
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(program);
                command
            }
        }
    }

    fn launch(&mut self, part: Part) -> Result<(), Stop> {
        let mut command = match part {
            Part::Etcd => self.etcd(),
            Part::ApiServer => self.apiserver(),
            Part::Controllers => self.controllers(),
        };
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join(format!("{}.log", part.name())))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|source| Stop::Because(format!("{} did not start: {source}", part.name())))?;
        self.running.push((part, child));
        Ok(())
    }

    fn etcd(&self) -> Command {
        let [clients, peers, _] = self.ports.map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = self.within(&self.assets.etcd);
        command
            .arg("--data-dir")
            .arg(self.dir.join("etcd"))
            .args(["--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .args(["--unsafe-no-fsync", "--log-level", "warn"]);
        command
    }

    fn apiserver(&self) -> Command {
        let certificates = self.dir.join("certificates");
        let key = certificates.join("apiserver.key");
        let mut command = self.within(&self.assets.apiserver);
        command
            .arg(format!("--etcd-servers=http://127.0.0.1:{}", self.ports[0]))
            .arg(format!("--secure-port={}", self.ports[2]))
            .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
            .args(["--endpoint-reconciler-type=none"])
            .args(["--service-cluster-ip-range=10.96.0.0/16"])
            .args(["--authorization-mode=RBAC", "--anonymous-auth=false"])
            .arg("--cert-dir")
            .arg(&certificates)
            .arg("--token-auth-file")
            .arg(self.dir.join("tokens.csv"))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg("--service-account-key-file")
            .arg(&key)
            .arg("--service-account-signing-key-file")
            .arg(&key);
        command
    }

    fn controllers(&self) -> Command {
        let mut command = self.within(&self.assets.controller_manager);
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(["--controllers=namespace-controller,garbage-collector-controller"])
            .args([
                "--use-service-account-credentials=false",
                "--leader-elect=false",
            ])
            .args([
                "--secure-port=0",
                "--kube-api-qps=200",
                "--kube-api-burst=400",
            ]);
        command
    }

    fn write_files(&self) -> Result<(), Stop> {
        fs::create_dir(self.dir.join("certificates"))?;
        let token = &self.token;
        write_secret(
            &self.dir.join("tokens.csv"),
            &format!("{token},admin,admin,system:masters\n"),
        )?;
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: egress\n\
             clusters: [{{name: egress, cluster: {{server: '{}', certificate-authority: '{}'}}}}]\n\
             users: [{{name: admin, user: {{token: {token}}}}}]\n\
             contexts: [{{name: egress, context: {{cluster: egress, user: admin}}}}]\n",
            self.url(),
            self.dir.join("certificates/apiserver.crt").display(),
        );
        write_secret(&self.kubeconfig(), &text)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            let _ = child.kill();
        }
        for (_, child) in &mut self.running {
            let _ = child.wait();
        }
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("xtask: {}: {error}: remove it by hand", self.dir.display());
        }
    }
}

/// Three ports of loopback that nobody has, below those that the system gives out, so that a
/// server finds its port free again after a restart.
fn free_ports() -> Result<[u16; 3], Stop> {
    let seed: u64 = u64::from_str_radix(&random()?[..8], 16).unwrap_or_default();
    let first = 12_000 + (seed % 6_000) as u16;
    let mut held = Vec::new();
    for port in (first..20_000).chain(10_000..first) {
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            held.push((port, listener));
        }
        if let [(etcd, _), (peers, _), (api, _)] = &held[..] {
            return Ok([*etcd, *peers, *api]);
        }
    }
    Err(Stop::Because("no three free ports below 20000".into()))
}

/// 128 random bits, in hex.
fn random() -> Result<String, Stop> {
    let mut bits = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bits)))
}

fn write_secret(path: &Path, text: &str) -> Result<(), Stop> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    Ok(std::io::Write::write_all(&mut file, text.as_bytes())?)
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
