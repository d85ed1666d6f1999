//! The directories of machines: read without following links, made and removed by one rename.
//!
//! `<state>/machines/<provider>/` holds one directory for each machine, named by its slot,
//! and beside them, for moments, directories in the making (`.new-<name>.…`) and in removal
//! (`.gone-<name>.…`). A crash leaves those behind; whoever deletes the machine of that name
//! clears them away, and a listing tells of them.

mod machine;

pub(crate) use machine::{Label, MachineDirectory, Started, Stopping};

use crate::process::CONFIG;
use egress_core::{MachineKey, Slot};
use machine::{FILES, LOCK, MARK, create_file};
use rustix::{
    fs::{
        AtFlags, CWD, Mode, OFlags, RenameFlags, fstat, openat, renameat, renameat_with, unlinkat,
    },
    io::Errno,
};
use std::{
    fs::{self, DirBuilder},
    io::{self, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// How a directory is opened: itself, never where a link leads.
const PLAIN_DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

const NEW: &str = ".new-";
const GONE: &str = ".gone-";

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
        let root = match openat(CWD, &self.root, PLAIN_DIRECTORY, Mode::empty()) {
            Ok(root) => root,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let fd = match openat(&root, slot.as_str(), PLAIN_DIRECTORY, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            // A file or a link that someone put there.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Ok(Some(MachineDirectory {
                    slot: slot.clone(),
                    fd: None,
                }));
            }
            Err(error) => return Err(error.into()),
        };
        let own = fstat(&fd)?.st_uid == rustix::process::geteuid().as_raw();
        Ok(Some(MachineDirectory {
            slot: slot.clone(),
            fd: own.then_some(fd),
        }))
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
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.root)?;
        let name = transient_name(NEW, key);
        let path = self.root.join(&name);
        DirBuilder::new().mode(0o700).create(&path)?;
        let staged = Staged {
            directories: self,
            name,
        };
        let fd = openat(CWD, &path, PLAIN_DIRECTORY, Mode::empty())?;
        for (file, text) in [(MARK, mark.as_bytes()), (CONFIG, config), (LOCK, b"")] {
            create_file(&fd, file)?.write_all(text)?;
        }
        Ok(staged)
    }

    /// Takes the directory away from its slot, at once and whole, then removes it. The
    /// caller has proven that it is its own; when another one lies there now, that stays.
    pub(crate) fn remove(&self, key: &MachineKey, directory: &MachineDirectory) -> io::Result<()> {
        let name = transient_name(GONE, key);
        let there = self.open(&directory.slot)?;
        if there.map(|there| there.inode()).transpose()?.flatten() != directory.inode()? {
            return Ok(());
        }
        match renameat(
            CWD,
            self.root.join(directory.slot.as_str()),
            CWD,
            self.root.join(&name),
        ) {
            Ok(()) => self.clear(&name),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a directory in the making or in removal. What is not ours in it stays.
    pub(crate) fn clear(&self, name: &str) -> io::Result<()> {
        let path = self.root.join(name);
        let fd = match openat(CWD, &path, PLAIN_DIRECTORY, Mode::empty()) {
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

#[cfg(test)]
mod tests;
