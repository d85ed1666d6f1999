//! Single files that are there whole or not at all.
//!
//! A write goes to a temporary file beside its target: write, fsync, rename, fsync of the
//! directory. Until the rename a crash leaves the old file, after it the new one; once the
//! directory is synced the new one is there for good.

use super::lock::Lock;
use crate::store::{StoreError, StoreErrorKind};
use rustix::io::Errno;
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// What temporary files are called. No record, incarnation or credential begins with a dot.
pub(super) const TEMPORARY: &str = ".tmp-";

/// One system call, or one group of them, of a change on disk: where tests cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    Write,
    SyncFile,
    Rename,
    Unlink,
    SyncDirectory,
}

/// Who may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readers {
    /// Whoever may enter the state directory.
    Directory,
    /// Only the user that runs the engine.
    Owner,
}

/// The state directory's file system, while its lock is held.
pub(super) struct Disk {
    lock: Lock,
    temporaries: AtomicU64,
    /// Held from making a directory until it holds a file, and while an empty one is removed.
    directories: Mutex<()>,
    #[cfg(test)]
    pub(super) cuts: super::tests::Cuts,
}

impl Disk {
    pub(super) fn new(lock: Lock) -> Self {
        Self {
            lock,
            temporaries: AtomicU64::new(0),
            directories: Mutex::new(()),
            #[cfg(test)]
            cuts: super::tests::Cuts::default(),
        }
    }

    /// Whether the state directory is still the one that was locked; `Lost` when not.
    pub(super) fn check_lock(&self) -> Result<(), StoreError> {
        self.lock.check()
    }

    /// Puts a whole file in place of whatever is there.
    pub(super) fn write(
        &self,
        path: &Path,
        readers: Readers,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.lock.check()?;
        let directory = parent(path);
        let (temporary, file) = self
            .create_beside(directory, readers)
            .map_err(|error| unavailable("create a file in", directory, error))?;
        let written = self
            .fill(file, bytes)
            .map_err(|error| unavailable("write", path, error));
        // Opened before the rename: running out of descriptors must not make it uncertain.
        let ready = written.and_then(|()| {
            self.lock.check()?;
            File::open(directory).map_err(|error| unavailable("open", directory, error))
        });
        let opened = match ready {
            Ok(opened) => opened,
            Err(error) => {
                // Best effort: what stays behind is removed at the next start.
                let _ = fs::remove_file(&temporary);
                return Err(error);
            }
        };
        if let Err(error) = self
            .step(Step::Rename)
            .and_then(|()| fs::rename(&temporary, path))
        {
            let _ = fs::remove_file(&temporary);
            return Err(changing("rename a file to", path, error));
        }
        self.sync(&opened)
            .map_err(|error| uncertain("sync the directory of", path, error))
    }

    /// Takes a file away, and its directory if that is one below `root` and now empty. A
    /// file that is gone already is fine.
    pub(super) fn remove(&self, path: &Path, root: &Path) -> Result<(), StoreError> {
        self.lock.check()?;
        let directory = parent(path);
        let opened = match File::open(directory) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(unavailable("open", directory, error)),
        };
        match self.step(Step::Unlink).and_then(|()| fs::remove_file(path)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(changing("remove", path, error)),
        }
        self.sync(&opened)
            .map_err(|error| uncertain("sync the directory of", path, error))?;
        if directory.parent() == Some(root) {
            let _held = self
                .directories
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            // Refused by the kernel while anything is in it; not synced, since an empty
            // directory that comes back after a crash means nothing.
            let _ = fs::remove_dir(directory);
        }
        Ok(())
    }

    fn create_beside(&self, directory: &Path, readers: Readers) -> io::Result<(PathBuf, File)> {
        let number = self.temporaries.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("{TEMPORARY}{number}"));
        let mode = match readers {
            Readers::Directory => 0o644,
            Readers::Owner => 0o600,
        };
        let _held = self
            .directories
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        make_directory(directory)?;
        self.step(Step::Create)?;
        // A leftover under this name is from before the lock was taken: nobody writes to it.
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path);
        match file {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&path)?;
                let file = OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(mode)
                    .open(&path)?;
                Ok((path, file))
            }
            file => Ok((path, file?)),
        }
    }

    fn fill(&self, mut file: File, bytes: &[u8]) -> io::Result<()> {
        self.step(Step::Write)?;
        file.write_all(bytes)?;
        self.step(Step::SyncFile)?;
        file.sync_all()
    }

    fn sync(&self, directory: &File) -> io::Result<()> {
        self.step(Step::SyncDirectory)?;
        directory.sync_all()
    }

    #[cfg(not(test))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps)] // the tests' build uses both
    fn step(&self, _: Step) -> io::Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn step(&self, step: Step) -> io::Result<()> {
        self.cuts.reach(step)
    }
}

/// The bytes of a file; `None` where there is none.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unavailable("read", path, error)),
    }
}

/// The entries of a directory, sorted by name; none where there is no directory.
pub(super) fn entries(directory: &Path) -> Result<Vec<fs::DirEntry>, StoreError> {
    let read = || -> io::Result<Vec<fs::DirEntry>> { fs::read_dir(directory)?.collect() };
    match read() {
        Ok(mut entries) => {
            entries.sort_by_key(fs::DirEntry::file_name);
            Ok(entries)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(unavailable("read", directory, error)),
    }
}

/// Makes a directory for this user alone, and what is missing above it.
fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    // `records` and a namespace in it may both be new: sync as far up as the state directory.
    for above in directory.ancestors().skip(1).take(2) {
        File::open(above)?.sync_all()?;
    }
    Ok(())
}

fn parent(path: &Path) -> &Path {
    path.parent()
        .expect("every file of ours lies in a directory")
}

/// An error of the disk that changed nothing, with what a person can do about it.
pub(super) fn unavailable(doing: &str, path: &Path, error: io::Error) -> StoreError {
    StoreError {
        kind: StoreErrorKind::Unavailable,
        text: format!("cannot {doing} {}: {}", path.display(), remedy(&error)),
        source: Some(error),
    }
}

fn uncertain(doing: &str, path: &Path, error: io::Error) -> StoreError {
    StoreError {
        kind: StoreErrorKind::OutcomeUnknown,
        ..unavailable(doing, path, error)
    }
}

/// A rename or unlink that failed did nothing, unless the disk itself gave no clear answer.
fn changing(doing: &str, path: &Path, error: io::Error) -> StoreError {
    match Errno::from_io_error(&error) {
        Some(Errno::IO | Errno::TIMEDOUT | Errno::STALE | Errno::INTR) => {
            uncertain(doing, path, error)
        }
        _ => unavailable(doing, path, error),
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC) => "free some space or inodes there; it goes on by itself",
        Some(Errno::DQUOT) => {
            "raise this user's quota there or free some space; it goes on by itself"
        }
        Some(Errno::ROFS) => {
            "look why the disk is mounted for reading only and mount it for writing; it goes on by itself"
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            "give the state directory to the user that runs the engine (chown -R); it goes on by itself"
        }
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit of open files (ulimit -n)",
        Some(Errno::IO) => "look into the kernel's log for errors of this disk",
        _ => "look at this path and the disk it is on; it is tried again",
    }
}
