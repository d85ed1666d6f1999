//! One process for each running machine.

use super::seed;
use crate::{http::Shared, world::Guest};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::{IpAddr, Ipv4Addr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    sync::oneshot,
    time::{MissedTickBehavior, interval},
};

/// How often the machines are compared with the processes.
const PERIOD: Duration = Duration::from_millis(50);
/// How long a process that has ended by itself stays away.
const RESTART: Duration = Duration::from_secs(1);

/// How the files of programs begin that seeds brought.
const PAYLOAD: &str = "payload-";

/// Keeps one process for each running machine.
pub(crate) struct Supervisor {
    program: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
    shared: Arc<Shared>,
    /// What first boots left on disks, by the machine's identity.
    disks: BTreeMap<String, Disk>,
    machines: BTreeMap<u32, Machine>,
}

/// What a first boot left on a machine's disk.
#[derive(Clone)]
struct Disk {
    config: Value,
    /// The program that the seed carried; one of the image's otherwise.
    program: Option<PathBuf>,
    agent: bool,
}

/// A machine's boot.
struct Machine {
    boot: u64,
    /// What is on its disk, the configuration for its own address.
    disk: Option<Disk>,
    process: Option<Process>,
    /// When the process may be started, again too, as its unit says in a real machine.
    next_start: Instant,
    paused: bool,
}

struct Process {
    child: Child,
    /// Answers once the proxy listens.
    listens: oneshot::Receiver<()>,
    listening: bool,
}

/// The loopback address of a machine: the same at every boot, its own among 4 million.
fn address(vmid: u32) -> IpAddr {
    let [_, high, middle, low] = vmid.to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, 64 | (high & 0x3f), middle, low))
}

/// Ends the processes that a killed simulator left behind in its folder.
fn sweep(folder: &Path, program: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "pid") {
            continue;
        }
        let config = path.with_extension("json");
        let pid = fs::read_to_string(&path)?.trim().parse().ok();
        let ours = pid
            .filter(|&pid| runs(pid, program, folder, &config))
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw);
        if let Some(pid) = ours {
            let _ = kill_process(pid, Signal::KILL);
        }
        fs::remove_file(&path)?;
    }
    Ok(())
}

/// Whether a process is our program, or one that a seed brought into our folder, with this
/// configuration, and not a later one of its number.
fn runs(pid: u32, program: &Path, folder: &Path, config: &Path) -> bool {
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else {
        return false;
    };
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let started = words.first().copied().unwrap_or_default();
    let brought = folder.join(PAYLOAD);
    (started == program.as_os_str().as_encoded_bytes()
        || started.starts_with(brought.as_os_str().as_encoded_bytes()))
        && words.contains(&config.as_os_str().as_encoded_bytes())
}

impl Supervisor {
    /// A supervisor for a program, with its files in a folder.
    pub(crate) fn new(
        program: PathBuf,
        arguments: Vec<String>,
        folder: PathBuf,
        shared: Arc<Shared>,
    ) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let program = program.canonicalize().map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", program.display()))
        })?;
        sweep(&folder, &program)?;
        Ok(Self {
            program,
            arguments,
            folder,
            shared,
            disks: BTreeMap::new(),
            machines: BTreeMap::new(),
        })
    }

    /// Follows the machines until it is dropped; its processes end with it.
    pub(crate) async fn run(mut self) {
        let mut period = interval(PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            period.tick().await;
            self.follow().await;
        }
    }

    async fn follow(&mut self) {
        let guests = self.shared.guests();
        let live: BTreeSet<(u32, u64)> = guests
            .iter()
            .map(|guest| (guest.vmid, guest.boot))
            .collect();
        let ended: Vec<u32> = self
            .machines
            .iter()
            .filter(|(vmid, machine)| !live.contains(&(**vmid, machine.boot)))
            .map(|(vmid, _)| *vmid)
            .collect();
        for vmid in ended {
            if let Some(machine) = self.machines.remove(&vmid) {
                self.end(vmid, machine).await;
            }
        }
        for guest in guests {
            if !self.machines.contains_key(&guest.vmid) {
                let disk = self.disk(&guest).map(|mut disk| {
                    disk.config = seed::at(&disk.config, address(guest.vmid));
                    disk
                });
                self.machines
                    .insert(guest.vmid, Machine::new(guest.boot, disk));
            }
            self.attend(&guest);
        }
    }

    /// Brings a machine's process to what the machine is.
    fn attend(&mut self, guest: &Guest) {
        let Some(mut machine) = self.machines.remove(&guest.vmid) else {
            return;
        };
        if machine
            .process
            .as_mut()
            .is_some_and(|process| process.has_ended(guest.vmid))
        {
            machine.process = None;
        }
        if let (None, Some(disk)) = (&machine.process, &machine.disk)
            && machine.next_start <= Instant::now()
        {
            machine.next_start = Instant::now() + RESTART;
            match self.spawn(guest.vmid, disk) {
                Ok(process) => {
                    machine.process = Some(process);
                    machine.paused = false;
                }
                Err(error) => {
                    tracing::warn!(vmid = guest.vmid, %error, "the proxy could not be started");
                }
            }
        }
        if let Some(process) = &mut machine.process {
            let has_agent = machine.disk.as_ref().is_some_and(|disk| disk.agent);
            if process.listens_now() && has_agent {
                let addresses = vec![address(guest.vmid)];
                self.shared.report(guest.vmid, guest.boot, Some(addresses));
            }
            if machine.paused != guest.paused {
                machine.paused = guest.paused;
                process.signal(if guest.paused {
                    Signal::STOP
                } else {
                    Signal::CONT
                });
            }
        }
        self.machines.insert(guest.vmid, machine);
    }

    /// What a first boot takes from its drive, or an earlier one left on the disk.
    fn disk(&mut self, guest: &Guest) -> Option<Disk> {
        if let Some(disk) = self.disks.get(&guest.identity) {
            return Some(disk.clone());
        }
        let Some((volid, image)) = &guest.seed else {
            tracing::warn!(
                vmid = guest.vmid,
                "the machine has neither a seed nor anything on its disk"
            );
            return None;
        };
        let vmid = guest.vmid;
        let found = match seed::read(image) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(vmid, volid, %error, "the machine has no use for what is in its drive");
                return None;
            }
        };
        let program = match found.program.map(|program| self.keep(program)).transpose() {
            Ok(program) => program,
            Err(error) => {
                tracing::warn!(vmid, volid, %error, "the program in the drive could not be kept");
                return None;
            }
        };
        let disk = Disk {
            config: found.config,
            program,
            agent: found.agent,
        };
        self.disks.insert(guest.identity.clone(), disk.clone());
        Some(disk)
    }

    /// Puts a program that a seed brought into our folder; machines with the same one share it.
    fn keep(&self, program: &[u8]) -> io::Result<PathBuf> {
        let hash = data_encoding::HEXLOWER.encode(&Sha256::digest(program)[..8]);
        let path = self.folder.join(format!("{PAYLOAD}{hash}"));
        if !path.exists() {
            let scratch = path.with_extension("new");
            fs::write(&scratch, program)?;
            fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755))?;
            fs::rename(scratch, &path)?;
        }
        Ok(path)
    }

    fn files(&self, vmid: u32) -> (PathBuf, PathBuf) {
        (
            self.folder.join(format!("{vmid}.json")),
            self.folder.join(format!("{vmid}.pid")),
        )
    }

    fn spawn(&self, vmid: u32, disk: &Disk) -> io::Result<Process> {
        let (config_file, pid_file) = self.files(vmid);
        let mut config = disk.config.clone();
        // What a machine sends leaves from its own address; many share this host.
        config["egress"] = json!(address(vmid));
        crate::http::write_secret(&config_file, &config.to_string())?;
        let log = fs::File::create(self.folder.join(format!("{vmid}.log")))?;
        let mut command = if let Some(program) = &disk.program {
            Command::new(program)
        } else {
            let mut command = Command::new(&self.program);
            command.args(&self.arguments);
            command
        };
        let mut child = command
            .arg("--config")
            .arg(&config_file)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        if let Some(pid) = child.id() {
            fs::write(pid_file, pid.to_string())?;
        }
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| io::Error::other("no standard output"))?;
        let (listening, listens) = oneshot::channel();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            // The first line says that it listens; the rest is read so that it can go on.
            if let Ok(Some(_)) = lines.next_line().await {
                let _ = listening.send(());
                while let Ok(Some(_)) = lines.next_line().await {}
            }
        });
        Ok(Process {
            child,
            listens,
            listening: false,
        })
    }

    /// A machine that has stopped takes its process with it, without a farewell.
    async fn end(&mut self, vmid: u32, machine: Machine) {
        if let Some(mut process) = machine.process
            && let Err(error) = process.child.kill().await
        {
            tracing::warn!(vmid, %error, "the proxy could not be ended");
        }
        let (config, pid) = self.files(vmid);
        for file in [config, pid] {
            let _ = fs::remove_file(file);
        }
    }
}

impl Machine {
    fn new(boot: u64, disk: Option<Disk>) -> Self {
        Self {
            boot,
            disk,
            process: None,
            next_start: Instant::now(),
            paused: false,
        }
    }
}

impl Process {
    /// Whether it has ended by itself.
    fn has_ended(&mut self, vmid: u32) -> bool {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                tracing::warn!(vmid, %status, "the proxy has ended by itself");
                true
            }
            _ => false,
        }
    }

    /// Whether it listens since now.
    fn listens_now(&mut self) -> bool {
        if self.listening || self.listens.try_recv().is_err() {
            return false;
        }
        self.listening = true;
        true
    }

    /// Sends a signal to the process as long as it is ours.
    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_a_loopback_address_of_its_own() {
        let all: BTreeSet<IpAddr> = (100_000..200_000).map(address).collect();
        assert_eq!(all.len(), 100_000);
        assert!(all.iter().all(IpAddr::is_loopback));
    }

    #[test]
    fn a_process_is_ours_only_with_our_program_and_configuration() {
        let pid = std::process::id();
        let line = fs::read(format!("/proc/{pid}/cmdline")).expect("own command line");
        let program = line.split(|byte| *byte == 0).next().expect("a word");
        let program = Path::new(std::str::from_utf8(program).expect("text"));
        let elsewhere = Path::new("/nowhere");
        assert!(runs(pid, program, elsewhere, program));
        assert!(!runs(
            pid,
            program,
            elsewhere,
            Path::new("/nowhere/100.json")
        ));
        assert!(!runs(pid, Path::new("/nowhere/proxyd"), elsewhere, program));
    }

    #[test]
    fn what_a_killed_simulator_left_running_is_ended_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = Path::new("/usr/bin/tail");
        let mut children = Vec::new();
        for (file, watched) in [("100", "100.json"), ("101", "another.json")] {
            let watched = folder.path().join(watched);
            fs::write(&watched, "").expect("a file");
            let child = std::process::Command::new(program)
                .arg("-f")
                .arg(&watched)
                .spawn()
                .expect("a process");
            // For a moment after its start a process has no command line.
            let begun = Instant::now();
            while !runs(child.id(), program, folder.path(), &watched) {
                assert!(
                    begun.elapsed() < Duration::from_secs(30),
                    "it has no command line"
                );
                std::thread::yield_now();
            }
            let pid = child.id().to_string();
            fs::write(folder.path().join(file).with_extension("pid"), pid).expect("a file");
            children.push(child);
        }
        sweep(folder.path(), program).expect("swept");
        let first = children[0].wait().expect("its end");
        assert!(!first.success());
        let second = children[1].try_wait().expect("its state");
        assert_eq!(second, None, "its configuration is not the machine's");
        children[1].kill().expect("killed");
        children[1].wait().expect("its end");
        assert!(!folder.path().join("100.pid").exists());
    }
}
