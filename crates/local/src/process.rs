//! Processes of this host that bear a mark, read from `/proc`, and signals that cannot hit
//! another one.

use crate::host;
use egress_core::{
    ClusterId, Mark, Slot,
    machine::{MARK_PREFIX, Sighting},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, OwnedFd},
    fs::{CWD, Dir, Mode, OFlags, openat},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    time::{Duration, Instant},
};

/// The program's first argument that makes it the proxy.
pub(crate) const PROXYD: &str = "proxyd";
/// The configuration's name in the machine's directory.
pub(crate) const CONFIG: &str = "config.json";
/// Longer argument lists are not ours: a mark is under 1 KiB, a path under 4 KiB.
const MAX_ARGUMENTS: usize = 16 * 1024;

/// One process of this boot. A recycled pid differs in its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessId {
    pub(crate) pid: i32,
    /// Clock ticks from boot to its start: field 22 of `/proc/PID/stat`.
    pub(crate) start_time: u64,
}

impl ProcessId {
    /// The process that has this pid now; `None` when there is none, or it has ended and
    /// waits to be reaped.
    pub(crate) fn of(pid: i32) -> io::Result<Option<(Self, Run)>> {
        let mut buffer = [0; 4096];
        let stat = read_file(CWD, &format!("/proc/{pid}/stat"), &mut buffer)?;
        let living = stat.and_then(read_stat);
        Ok(living.map(|(start_time, run)| (Self { pid, start_time }, run)))
    }

    /// How long it has been running.
    pub(crate) fn uptime(self) -> Duration {
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        let started = Duration::from_millis(self.start_time.saturating_mul(1000) / ticks);
        host::since_boot().saturating_sub(started)
    }
}

/// A living process of this user whose arguments are those of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MarkedProcess {
    pub(crate) id: ProcessId,
    /// Where it is: the name of the directory its configuration lies in.
    pub(crate) slot: Slot,
    /// The argument that holds its mark.
    pub(crate) text: String,
    pub(crate) run: Run,
}

/// Whether a living process gets to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    Running,
    /// Someone sent SIGSTOP, or a debugger holds it.
    Paused,
}

impl MarkedProcess {
    /// Looks at one pid.
    pub(crate) fn of(pid: i32) -> io::Result<Option<Self>> {
        let mut buffer = vec![0; MAX_ARGUMENTS];
        match read_file(CWD, &format!("/proc/{pid}/cmdline"), &mut buffer)? {
            Some(cmdline) => read_marked(pid, cmdline),
            None => Ok(None),
        }
    }

    /// The process as `whose` wants it.
    pub(crate) fn sighting<'a>(&'a self, cluster: &'a ClusterId) -> Sighting<'a> {
        Sighting {
            slot: &self.slot,
            cluster,
            name: None,
            text: Some(&self.text),
            template: false,
        }
    }

    /// Takes hold of the pid first, so that it cannot pass to another process, and only then
    /// looks whether it is still this one. `None`: it is not, or no longer.
    pub(crate) fn hold(&self) -> io::Result<Option<HeldProcess>> {
        let Some(pid) = Pid::from_raw(self.id.pid) else {
            return Ok(None);
        };
        let fd = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let same = Self::of(self.id.pid)?
            .is_some_and(|now| (now.id, &now.slot, &now.text) == (self.id, &self.slot, &self.text));
        Ok(same.then_some(HeldProcess { fd }))
    }
}

/// A process that was found to be the one looked for while its pid was held.
#[derive(Debug)]
pub(crate) struct HeldProcess {
    fd: OwnedFd,
}

impl HeldProcess {
    /// Sends a signal. One that has ended meanwhile is fine.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for its end; `false` when it still runs after `time`.
    pub(crate) async fn ended_within(self, time: Duration) -> io::Result<bool> {
        // tokio can wait for a descriptor like this only by unsafe code, so a thread does.
        let wait = move || {
            let end = Instant::now() + time;
            loop {
                let left = end.saturating_duration_since(Instant::now());
                let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
                match poll(
                    &mut fds,
                    Some(&Timespec::try_from(left).map_err(io::Error::other)?),
                ) {
                    Ok(ready) => return Ok(ready > 0),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        };
        tokio::task::spawn_blocking(wait)
            .await
            .map_err(io::Error::other)?
    }
}

/// Every marked process of this user; complete, or an error. Takes about 4 µs a process.
pub(crate) fn scan() -> io::Result<Vec<MarkedProcess>> {
    let proc = openat(
        CWD,
        "/proc",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut found = Vec::new();
    let mut buffer = vec![0; MAX_ARGUMENTS];
    let mut itself = false;
    for entry in Dir::read_from(&proc)? {
        let entry = entry?;
        let Some(pid) = entry
            .file_name()
            .to_str()
            .ok()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if let Some(cmdline) = read_file(&proc, &format!("{pid}/cmdline"), &mut buffer)? {
            itself |= u32::try_from(pid) == Ok(std::process::id());
            found.extend(read_marked(pid, cmdline)?);
        }
    }
    if itself {
        Ok(found)
    } else {
        // An empty or foreign /proc would make every machine look gone.
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "/proc does not show this process itself",
        ))
    }
}

/// The valid marks of the processes of this user on this host, whatever their installation:
/// what an empty state directory is rebuilt from. Reads all of `/proc`, so it blocks for
/// some ms; an error means that the list would not be complete.
pub fn marks_on_this_host() -> io::Result<Vec<Mark>> {
    let cluster = host::cluster_id();
    Ok(scan()?
        .iter()
        .filter_map(|process| process.sighting(&cluster).valid_mark())
        .collect())
}

/// Reads the argument list of a marked process, and whose process it is.
fn read_marked(pid: i32, cmdline: &[u8]) -> io::Result<Option<MarkedProcess>> {
    let Some((slot, text)) = read_arguments(cmdline) else {
        return Ok(None);
    };
    let mut buffer = [0; 4096];
    let status = read_file(CWD, &format!("/proc/{pid}/status"), &mut buffer)?;
    if !status.is_some_and(is_own) {
        return Ok(None);
    }
    // Start time last: had the pid passed on since, the list just read would be gone too,
    // and whoever acts on this holds the pid and looks again.
    Ok(ProcessId::of(pid)?.map(|(id, run)| MarkedProcess {
        id,
        slot,
        text,
        run,
    }))
}

/// Slot and mark from `<program> proxyd --config <slot>/config.json --detach --mark <mark>`,
/// NUL-terminated. Only the whole list counts: a debugger or a `grep` that names ours is not.
fn read_arguments(cmdline: &[u8]) -> Option<(Slot, String)> {
    let mut arguments = cmdline.strip_suffix(b"\0")?.split(|byte| *byte == 0);
    let _program = arguments.next()?;
    let mut is = |expected: &str| arguments.next() == Some(expected.as_bytes());
    if !(is(PROXYD) && is("--config")) {
        return None;
    }
    let config = Path::new(OsStr::from_bytes(arguments.next()?));
    let mut is = |expected: &str| arguments.next() == Some(expected.as_bytes());
    if !(is("--detach") && is("--mark")) {
        return None;
    }
    let text = std::str::from_utf8(arguments.next()?).ok()?;
    let whole = arguments.next().is_none() && text.contains(MARK_PREFIX);
    let slot = config.parent()?.file_name()?.to_str()?;
    (whole && config.file_name()? == CONFIG).then(|| (Slot::new(slot), text.to_owned()))
}

/// The arguments that [`read_arguments`] reads.
pub(crate) fn arguments<'a>(config: &'a Path, mark: &'a str) -> [&'a OsStr; 6] {
    let word = OsStr::new;
    [
        word(PROXYD),
        word("--config"),
        config.as_os_str(),
        word("--detach"),
        word("--mark"),
        word(mark),
    ]
}

/// Whether `/proc/PID/status` names this user as real and effective one.
fn is_own(status: &[u8]) -> bool {
    let own = rustix::process::geteuid().as_raw().to_string();
    let text = String::from_utf8_lossy(status);
    text.lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .is_some_and(|ids| {
            ids.split_whitespace()
                .take(2)
                .filter(|id| *id == own)
                .count()
                == 2
        })
}

/// Fields 22 and 3 of `/proc/PID/stat`; `None` for a process that has ended (states Z, X).
fn read_stat(stat: &[u8]) -> Option<(u64, Run)> {
    // The second field is the program's name in parentheses and may hold both itself.
    let after_name = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[after_name + 1..])
        .ok()?
        .split_whitespace();
    let state = fields.next()?;
    let start_time = fields.nth(18)?.parse().ok()?;
    match state {
        "Z" | "X" | "x" => None,
        "T" | "t" => Some((start_time, Run::Paused)),
        _ => Some((start_time, Run::Running)),
    }
}

/// Reads a file of `/proc` from its beginning, up to the buffer's length. `None`: the process
/// is gone, or hidden from this user and so not its own.
fn read_file<'a>(dir: impl AsFd, path: &str, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
    let gone = |error: Errno| match error {
        Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM => Ok(None),
        error => Err(io::Error::from(error)),
    };
    let file = match openat(dir, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => file,
        Err(error) => return gone(error),
    };
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::read(&file, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return gone(error),
        }
    }
    Ok(Some(&buffer[..filled]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "egress-proxies/v1 {}";

    fn cmdline(arguments: &[&str]) -> Vec<u8> {
        arguments
            .iter()
            .flat_map(|a| [a.as_bytes(), b"\0"].concat())
            .collect()
    }

    #[test]
    fn only_the_whole_argument_list_of_a_machine_is_one() {
        let config = "/s/machines/local/127.0.0.1_1_127.0.0.1/config.json";
        let ours = [
            "/bin/p", "proxyd", "--config", config, "--detach", "--mark", MARK,
        ];
        let (slot, text) = read_arguments(&cmdline(&ours)).unwrap();
        assert_eq!(
            (slot.as_str(), text.as_str()),
            ("127.0.0.1_1_127.0.0.1", MARK)
        );

        let traced = [&["strace"], ours.as_slice()].concat();
        let longer = [ours.as_slice(), &["-v"]].concat();
        let grep = ["grep", MARK];
        let shell = ["sh", "-c", &ours.join(" ")];
        let other_file = [
            "/bin/p",
            "proxyd",
            "--config",
            "/s/x/y.json",
            "--detach",
            "--mark",
            MARK,
        ];
        let other_mark = [
            "/bin/p", "proxyd", "--config", config, "--detach", "--mark", "x",
        ];
        for foreign in [
            &traced[..],
            &longer,
            &grep,
            &shell,
            &other_file,
            &other_mark,
            &ours[..6],
            &[],
        ] {
            assert_eq!(read_arguments(&cmdline(foreign)), None, "{foreign:?}");
        }
    }

    #[test]
    fn the_arguments_written_are_the_arguments_read() {
        let config = Path::new("/s/slot/config.json");
        let written: Vec<&str> = arguments(config, MARK)
            .iter()
            .map(|a| a.to_str().unwrap())
            .collect();
        let read = read_arguments(&cmdline(&[&["/bin/p"], written.as_slice()].concat()));
        assert_eq!(read, Some((Slot::new("slot"), MARK.to_owned())));
    }

    #[test]
    fn a_start_time_is_read_past_any_program_name_and_an_ended_process_has_none() {
        let stat = |state: &str| {
            format!("7 (a) b (c)) {state} 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4711 1 2 3\n")
        };
        assert_eq!(read_stat(stat("S").as_bytes()), Some((4711, Run::Running)));
        assert_eq!(read_stat(stat("T").as_bytes()), Some((4711, Run::Paused)));
        assert_eq!(read_stat(stat("Z").as_bytes()), None);
        assert_eq!(read_stat(b"7 (a"), None);
    }

    #[test]
    fn this_process_is_found_by_pid_and_is_no_machine() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let (me, run) = ProcessId::of(pid).unwrap().unwrap();
        assert_eq!(run, Run::Running);
        assert_eq!(me.pid, pid);
        assert!(me.uptime() < Duration::from_hours(1));
        assert_eq!(MarkedProcess::of(pid).unwrap(), None);
        let gone = ProcessId::of(i32::MAX).unwrap();
        assert_eq!(gone, None);
    }

    #[test]
    fn a_scan_is_complete_and_quick() {
        scan().unwrap();
        let begin = std::time::Instant::now();
        scan().unwrap();
        // Far above what it takes (below 1 ms for 100 processes): a guard against a scan
        // that reads whole directories of each process.
        assert!(
            begin.elapsed() < Duration::from_millis(500),
            "{:?}",
            begin.elapsed()
        );
    }
}
