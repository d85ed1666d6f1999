//! What lies in one machine's directory.

use crate::process::{CONFIG, ProcessId};
use egress_core::{
    ClusterId, Slot,
    machine::Sighting,
    proxy_config::{Auth, ProxydConfig},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{
        AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, fstat, openat, renameat,
        unlinkat,
    },
    io::Errno,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    net::SocketAddr,
    time::Duration,
};

/// The mark, as one line. Removed last, so that what is half removed can still be told.
pub(super) const MARK: &str = "mark";
/// Held, as its standard input, by the process for as long as it lives.
pub(super) const LOCK: &str = "lock";
/// What the process wrote on standard error.
pub(super) const LOG: &str = "proxyd.log";
const STARTED: &str = "process.json";
const STOPPING: &str = "stopping.json";
/// A file of ours while it is being written.
const UNFINISHED: &str = ".unfinished";
/// All that may lie in a machine's directory, in the order of removal.
pub(super) const FILES: [&str; 7] = [UNFINISHED, STOPPING, STARTED, LOG, CONFIG, LOCK, MARK];

/// The longest file that is read whole; ours are a few KiB.
const MAX_FILE: u64 = 256 * 1024;
/// A longer log is emptied when the process is started again, in bytes.
pub(super) const MAX_LOG: u64 = 1024 * 1024;

/// What was written down of a start. A hint where to look first, never a proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Started {
    pub(crate) boot_id: String,
    pub(crate) process: ProcessId,
    pub(crate) listen: SocketAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) management: Option<SocketAddr>,
    /// The mark line, so that one that was taken away can be told to whoever restores it.
    pub(crate) mark: String,
}

/// That a process was asked to end, and when, on the clock of that boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stopping {
    pub(crate) boot_id: String,
    pub(crate) process: ProcessId,
    pub(crate) asked_after_boot: Duration,
}

/// What lies at a slot.
#[derive(Debug)]
pub(crate) struct MachineDirectory {
    pub(crate) slot: Slot,
    /// `None` for what is no directory of this user.
    pub(super) fd: Option<OwnedFd>,
}

/// The texts of a directory that decide whose it is.
#[derive(Debug)]
pub(crate) struct Label {
    pub(crate) slot: Slot,
    pub(crate) text: Option<String>,
    pub(super) name: Option<String>,
}

impl Label {
    /// The directory as `whose` wants it.
    pub(crate) fn sighting<'a>(&'a self, cluster: &'a ClusterId) -> Sighting<'a> {
        Sighting {
            slot: &self.slot,
            cluster,
            name: self.name.as_deref(),
            text: self.text.as_deref(),
            template: false,
        }
    }
}

impl MachineDirectory {
    /// Reads what decides whose it is. The machine's name is the key in its configuration.
    pub(crate) fn label(&self) -> io::Result<Label> {
        #[derive(Deserialize)]
        struct Named {
            key: String,
        }
        let name = self.read_json::<Named>(CONFIG)?.map(|named| named.key);
        Ok(Label {
            slot: self.slot.clone(),
            text: self.read_text(MARK)?,
            name,
        })
    }

    /// The hint where its process may be.
    pub(crate) fn started(&self) -> io::Result<Option<Started>> {
        self.read_json(STARTED)
    }

    /// Whether its process was asked to end.
    pub(crate) fn stopping(&self) -> io::Result<Option<Stopping>> {
        self.read_json(STOPPING)
    }

    /// The credentials that its process was started with.
    pub(crate) fn auth(&self) -> io::Result<Option<Auth>> {
        let config = self.read_json::<ProxydConfig>(CONFIG)?;
        Ok(config.map(|config| config.auth))
    }

    pub(crate) fn record_started(&self, started: &Started) -> io::Result<()> {
        self.write_json(STARTED, started)
    }

    pub(crate) fn record_stopping(&self, stopping: &Stopping) -> io::Result<()> {
        self.write_json(STOPPING, stopping)
    }

    /// Writes mark and configuration where they differ, for a process that is to be started,
    /// and forgets that an earlier one was asked to end.
    pub(crate) fn renew(&self, mark: &str, config: &[u8]) -> io::Result<()> {
        let fd = self.fd()?;
        for (file, bytes) in [(CONFIG, config), (MARK, mark.as_bytes())] {
            if self.read_bytes(file)?.as_deref() != Some(bytes) {
                replace_file(fd, file, bytes)?;
            }
        }
        match unlinkat(fd, STOPPING, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether somebody holds the lock. Creates nothing.
    pub(crate) fn is_locked(&self) -> io::Result<bool> {
        let Some(fd) = &self.fd else { return Ok(false) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(fd, LOCK, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the lock that its process holds for life. `None`: it is held.
    pub(crate) fn lock(&self) -> io::Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(self.fd()?, LOCK, flags, Mode::RUSR | Mode::WUSR)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file.into())),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The process's standard error: appended to, and emptied first when it grew too long.
    pub(crate) fn log(&self) -> io::Result<File> {
        let flags =
            OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(self.fd()?, LOG, flags, Mode::RUSR | Mode::WUSR)?);
        if file.metadata()?.len() > MAX_LOG {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// The last line of the log, for people, at most 300 bytes of it.
    pub(crate) fn last_words(&self) -> String {
        let bytes = self.read_bytes(LOG).ok().flatten().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let last = text
            .lines()
            .rev()
            .map(str::trim)
            .find(|line| !line.is_empty());
        last.unwrap_or_default().chars().take(300).collect()
    }

    /// Device and inode; `None` for what is no directory of this user.
    pub(super) fn inode(&self) -> io::Result<Option<(u64, u64)>> {
        let Some(fd) = &self.fd else { return Ok(None) };
        let stat = fstat(fd)?;
        Ok(Some((stat.st_dev, stat.st_ino)))
    }

    /// What lies in it and is not ours.
    pub(crate) fn strange_files(&self) -> io::Result<Vec<String>> {
        let mut strange = Vec::new();
        for entry in Dir::read_from(self.fd()?)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." && !FILES.contains(&name.as_str()) {
                strange.push(name);
            }
        }
        strange.sort();
        Ok(strange)
    }

    fn fd(&self) -> io::Result<&OwnedFd> {
        self.fd
            .as_ref()
            .ok_or_else(|| io::ErrorKind::NotADirectory.into())
    }

    fn read_json<T: DeserializeOwned>(&self, file: &str) -> io::Result<Option<T>> {
        // One that does not parse tells nothing, as one that is not there.
        Ok(self
            .read_bytes(file)?
            .and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    fn read_text(&self, file: &str) -> io::Result<Option<String>> {
        Ok(self
            .read_bytes(file)?
            .and_then(|bytes| String::from_utf8(bytes).ok()))
    }

    fn read_bytes(&self, file: &str) -> io::Result<Option<Vec<u8>>> {
        let Some(fd) = &self.fd else { return Ok(None) };
        // Not to block on a pipe that someone put there.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(fd, file, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        File::from(file).take(MAX_FILE).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn write_json(&self, file: &str, value: &impl Serialize) -> io::Result<()> {
        replace_file(self.fd()?, file, &serde_json::to_vec(value)?)
    }
}

pub(super) fn create_file(dir: impl AsFd, file: &str) -> io::Result<File> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(
        dir,
        file,
        flags,
        Mode::RUSR | Mode::WUSR,
    )?))
}

fn replace_file(dir: impl AsFd, file: &str, bytes: &[u8]) -> io::Result<()> {
    create_file(&dir, UNFINISHED)?.write_all(bytes)?;
    Ok(renameat(&dir, UNFINISHED, &dir, file)?)
}
