//! The directories of machines: read without following links, made and removed by one rename.
//!
//! `<state>/machines/<provider>/` holds one directory for each machine, named by its slot,
//! and beside them, for moments, directories in the making (`.new-<name>.…`) and in removal
//! (`.gone-<name>.…`). A crash leaves those behind; whoever deletes the machine of that name
//! clears them away, and a listing tells of them.

use crate::process::{CONFIG, ProcessId};
use egress_core::{ClusterId, MachineKey, Slot, machine::Sighting};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{
        AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat,
        openat, renameat, renameat_with, unlinkat,
    },
    io::Errno,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read as _, Write as _},
    net::SocketAddr,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The mark, as one line. Removed last, so that what is half removed can still be told.
const MARK: &str = "mark";
/// Held, as its standard input, by the process for as long as it lives.
const LOCK: &str = "lock";
/// What the process wrote on standard error.
pub(crate) const LOG: &str = "proxyd.log";
const STARTED: &str = "process.json";
const STOPPING: &str = "stopping.json";
/// A file of ours while it is being written.
const UNFINISHED: &str = ".unfinished";
/// All that may lie in a machine's directory, in the order of removal.
const FILES: [&str; 7] = [UNFINISHED, STOPPING, STARTED, LOG, CONFIG, LOCK, MARK];

/// The longest file that is read whole; ours are a few KiB.
const MAX_FILE: u64 = 256 * 1024;
/// A longer log is emptied when the process is started again, in bytes.
const MAX_LOG: u64 = 1024 * 1024;

const NEW: &str = ".new-";
const GONE: &str = ".gone-";

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

/// The directories of one provider's machines.
#[derive(Clone, Debug)]
pub(crate) struct Directories {
    root: PathBuf,
}

impl Directories {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where a machine's configuration lies; its process is told so.
    pub(crate) fn config_path(&self, slot: &Slot) -> PathBuf {
        self.root.join(slot.as_str()).join(CONFIG)
    }

    /// What lies at a slot, whatever it is; `None`: nothing.
    pub(crate) fn open(&self, slot: &Slot) -> io::Result<Option<MachineDirectory>> {
        let path = self.root.join(slot.as_str());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(CWD, &path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            // A file or a link that someone put there.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Ok(Some(MachineDirectory { slot: slot.clone(), fd: None }));
            }
            Err(error) => return Err(error.into()),
        };
        let own = fstat(&fd)?.st_uid == rustix::process::geteuid().as_raw();
        Ok(Some(MachineDirectory { slot: slot.clone(), fd: own.then_some(fd) }))
    }

    /// Everything that lies at any slot.
    pub(crate) fn all(&self) -> io::Result<Vec<MachineDirectory>> {
        let mut found = Vec::new();
        for name in self.names()? {
            if !name.starts_with('.') {
                // Gone meanwhile is fine.
                found.extend(self.open(&Slot::new(name))?);
            }
        }
        Ok(found)
    }

    /// Directories in the making or in removal, each with the name of its machine.
    pub(crate) fn traces(&self) -> io::Result<Vec<Trace>> {
        Ok(self.names()?.into_iter().filter_map(Trace::read).collect())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        match fs::read_dir(&self.root) {
            // Names that are not UTF-8 are none of ours.
            Ok(entries) => entries
                .filter_map(|entry| entry.map(|e| e.file_name().into_string().ok()).transpose())
                .collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Makes a machine's directory, complete, beside its slot. Dropped before
    /// [`Staged::commit`] it is gone again.
    pub(crate) fn stage(
        &self,
        key: &MachineKey,
        mark: &str,
        config: &[u8],
    ) -> io::Result<Staged<'_>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.root)?;
        let name = transient_name(NEW, key);
        let path = self.root.join(&name);
        DirBuilder::new().mode(0o700).create(&path)?;
        let staged = Staged { directories: self, name };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(CWD, &path, flags, Mode::empty())?;
        for (file, text) in [(MARK, mark.as_bytes()), (CONFIG, config), (LOCK, b"")] {
            create_file(&fd, file)?.write_all(text)?;
        }
        Ok(staged)
    }

    /// Takes the directory away from its slot, at once and whole, then removes it. The
    /// caller has proven that it is its own.
    pub(crate) fn remove(&self, key: &MachineKey, directory: &MachineDirectory) -> io::Result<()> {
        let name = transient_name(GONE, key);
        match renameat(CWD, self.root.join(directory.slot.as_str()), CWD, self.root.join(&name)) {
            Ok(()) => self.clear(&name),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a directory in the making or in removal. What is not ours in it stays.
    pub(crate) fn clear(&self, name: &str) -> io::Result<()> {
        let path = self.root.join(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(CWD, &path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for file in FILES {
            match unlinkat(&fd, file, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match unlinkat(CWD, &path, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the directories above when nothing is left in them.
    pub(crate) fn trim(&self) {
        for path in self.root.ancestors().take(2) {
            if fs::remove_dir(path).is_err() {
                return;
            }
        }
    }
}

fn transient_name(prefix: &str, key: &MachineKey) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{}.{}.{count}", key.name(), std::process::id())
}

/// A directory in the making or in removal that a crash may have left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The directory's name.
    pub(crate) name: String,
    /// The name of the machine it was for.
    pub(crate) machine: String,
}

impl Trace {
    fn read(name: String) -> Option<Self> {
        let rest = name.strip_prefix(NEW).or_else(|| name.strip_prefix(GONE))?;
        let machine = rest.split('.').next()?.to_owned();
        Some(Self { name, machine })
    }
}

/// A complete directory that is not at its slot yet.
#[derive(Debug)]
pub(crate) struct Staged<'a> {
    directories: &'a Directories,
    name: String,
}

impl Staged<'_> {
    /// Puts it at its slot, at once and whole. `false`: something lies there already.
    pub(crate) fn commit(self, slot: &Slot) -> io::Result<bool> {
        let root = self.directories.root();
        let (from, to) = (root.join(&self.name), root.join(slot.as_str()));
        let result = match renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE) {
            // Not every file system knows the flag; a plain rename replaces empty
            // directories only, and those hold no machine.
            Err(Errno::INVAL | Errno::NOSYS) => renameat(CWD, &from, CWD, &to),
            other => other,
        };
        match result {
            Ok(()) => Ok(true),
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        // After a commit there is nothing by this name. What cannot be removed now is told
        // by the next listing.
        let _left_for_the_listing = self.directories.clear(&self.name);
    }
}

/// What lies at a slot.
#[derive(Debug)]
pub(crate) struct MachineDirectory {
    pub(crate) slot: Slot,
    /// `None` for what is no directory of this user.
    fd: Option<OwnedFd>,
}

/// The texts of a directory that decide whose it is.
#[derive(Debug)]
pub(crate) struct Label {
    pub(crate) slot: Slot,
    pub(crate) text: Option<String>,
    name: Option<String>,
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
        Ok(Label { slot: self.slot.clone(), text: self.read_text(MARK)?, name })
    }

    /// The hint where its process may be.
    pub(crate) fn started(&self) -> io::Result<Option<Started>> {
        self.read_json(STARTED)
    }

    /// Whether its process was asked to end.
    pub(crate) fn stopping(&self) -> io::Result<Option<Stopping>> {
        self.read_json(STOPPING)
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

    /// Sees to it that the mark outlives a power cut. Blocks for as long as the disk takes.
    pub(crate) fn sync_mark(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::fsync(openat(self.fd()?, MARK, flags, Mode::empty())?)?)
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
        let flags = OFlags::WRONLY
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
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
        let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
        last.unwrap_or_default().chars().take(300).collect()
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
        self.fd.as_ref().ok_or_else(|| io::ErrorKind::NotADirectory.into())
    }

    fn read_json<T: DeserializeOwned>(&self, file: &str) -> io::Result<Option<T>> {
        // One that does not parse tells nothing, as one that is not there.
        Ok(self.read_bytes(file)?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    fn read_text(&self, file: &str) -> io::Result<Option<String>> {
        Ok(self.read_bytes(file)?.and_then(|bytes| String::from_utf8(bytes).ok()))
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

fn create_file(dir: impl AsFd, file: &str) -> io::Result<File> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(dir, file, flags, Mode::RUSR | Mode::WUSR)?))
}

fn replace_file(dir: impl AsFd, file: &str, bytes: &[u8]) -> io::Result<()> {
    create_file(&dir, UNFINISHED)?.write_all(bytes)?;
    Ok(renameat(&dir, UNFINISHED, &dir, file)?)
}

#[cfg(test)]
mod tests;
