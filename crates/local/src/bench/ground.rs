//! What a bench stands on: a directory of its own, the machines in it, and the end of every
//! process that runs from there.

use crate::{Config, Local, OWN_PROGRAM};
use egress_core::{Identity, ProviderName, Slot};
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use std::{
    fs::{self, DirBuilder, File},
    io,
    net::TcpListener,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt as _, unix::fs::symlink},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::Command;

/// How long anything may take that is waited for.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The time from one look to the next.
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// What a process runs that takes no notice of SIGTERM. It holds what it inherited and waits.
const DEAF: &str = "trap '' TERM\nexec 3<>wait\n: >deaf\nwhile :; do read -r nothing <&3; done\n";

/// A directory with a link to this program, and the machines of a provider below it.
#[derive(Debug)]
pub struct Ground {
    root: PathBuf,
    name: ProviderName,
    identity: Identity,
    /// What its providers are made with.
    pub config: Config,
}

impl Ground {
    /// Makes the directory `root`, which must not be there yet.
    pub fn new(
        root: PathBuf,
        name: ProviderName,
        identity: Identity,
        config: Config,
    ) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(&root)?;
        let ground = Self {
            root,
            name,
            identity,
            config,
        };
        ground.put_program()?;
        Ok(ground)
    }

    /// Puts the program in its place, where it is missing.
    pub fn put_program(&self) -> io::Result<()> {
        match symlink(OWN_PROGRAM, self.program()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    /// What the machines here run.
    pub fn program(&self) -> PathBuf {
        self.root.join("program")
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The state directory of [`provider`](Self::provider).
    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// Who that provider is.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// A provider as a new process of the engine makes it.
    pub fn provider(&self) -> Local {
        self.provider_as(self.name.clone(), self.identity.clone(), self.state())
    }

    /// A provider of another name, identity or state directory.
    pub fn provider_as(&self, name: ProviderName, identity: Identity, state: PathBuf) -> Local {
        Local::new(name, identity, self.config.clone(), state, self.program())
    }

    /// Where the directories of all machines lie.
    pub fn machines(&self) -> PathBuf {
        self.state().join("machines")
    }

    /// Where those of the provider lie.
    pub fn slots(&self) -> PathBuf {
        self.machines().join(self.name.as_str())
    }

    /// A machine's directory.
    pub fn directory(&self, slot: &Slot) -> PathBuf {
        self.slots().join(slot.as_str())
    }

    /// Every process that runs from a configuration here, with its arguments.
    pub fn processes(&self) -> Vec<(i32, Vec<String>)> {
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        pids.filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            self.arguments(pid).map(|arguments| (pid, arguments))
        })
        .collect()
    }

    /// The arguments of a process, if it runs from here.
    fn arguments(&self, pid: i32) -> Option<Vec<String>> {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        let arguments: Vec<String> = line.split('\0').map(str::to_owned).collect();
        let config = arguments.get(3)?;
        Path::new(config)
            .starts_with(&self.root)
            .then_some(arguments)
    }

    /// The processes at a slot, in whatever state directory here.
    pub fn processes_at(&self, slot: &Slot) -> Vec<i32> {
        let at_slot = |arguments: &[String]| {
            let directory = Path::new(&arguments[3]).parent();
            directory.is_some_and(|directory| directory.ends_with(slot.as_str()))
        };
        let processes = self.processes().into_iter();
        processes
            .filter(|(_, arguments)| at_slot(arguments))
            .map(|(pid, _)| pid)
            .collect()
    }

    /// Signals a process if it runs from here; one that has ended is fine.
    pub fn signal(&self, pid: i32, signal: Signal) {
        let fd = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // The pid is held first: it cannot pass to another process after the look.
        if let Some(fd) = fd.filter(|_| self.arguments(pid).is_some()) {
            let _ended_meanwhile = pidfd_send_signal(fd, signal);
        }
    }

    /// Starts the program by hand, as a person would, with these arguments. Answers with its
    /// pid; the runtime reaps it.
    pub fn start(&self, arguments: &[String], lock: Option<File>) -> io::Result<i32> {
        let child = Command::new(self.program())
            .args(arguments)
            .stdin(lock.map_or_else(Stdio::null, Stdio::from))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        pid.ok_or_else(|| io::Error::other("it ended at once"))
    }

    /// Starts something with these arguments that holds lock and socket of a machine, and
    /// takes no notice of SIGTERM. Answers with a file that is there once it does not.
    pub(super) fn start_deaf(
        &self,
        arguments: &[String],
        lock: File,
        socket: TcpListener,
    ) -> io::Result<PathBuf> {
        let place = self.root.join("deaf");
        let _none_before = fs::remove_dir_all(&place);
        fs::create_dir(&place)?;
        // The shell takes its first argument, `proxyd`, for the file to run.
        fs::write(place.join("proxyd"), DEAF)?;
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, place.join("wait"), FileType::Fifo, mode, 0)?;
        Command::new("/bin/sh")
            .args(arguments)
            .current_dir(&place)
            .stdin(lock)
            .stdout(Stdio::from(OwnedFd::from(socket)))
            .stderr(Stdio::null())
            .spawn()?;
        Ok(place.join("deaf"))
    }

    /// Ends every process that runs from here, and removes the directory.
    pub fn clear(&self) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut left = self.processes();
            left.retain(|(pid, _)| is_alive(*pid));
            for (pid, _) in &left {
                self.signal(*pid, Signal::KILL);
            }
            if left.is_empty() {
                break;
            }
            if Instant::now() > end {
                return Err(io::Error::other(format!("processes do not end: {left:?}")));
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        match fs::remove_dir_all(&self.root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Whether a process exists and is not just waiting to be reaped. While its first thread
/// waits for that, others may still be ending and hold sockets and locks.
pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, state)) = stat.rsplit_once(") ") else {
        return false;
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    !state.starts_with('Z') || threads > 1
}
