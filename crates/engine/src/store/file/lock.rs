//! The lock that keeps a second engine out, and notices when the directory is taken away.

use super::{OpenError, disk};
use crate::store::{StoreError, StoreErrorKind};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// The lock file of a state directory, locked. Dropping it lets the next engine in.
///
/// The kernel's lock counts, not the file: a killed engine's lock is gone with it, while
/// its file stays. The text inside is for people and for the refusal of a second engine.
pub(super) struct Lock {
    path: PathBuf,
    file: File,
    device: u64,
    inode: u64,
}

impl Lock {
    pub(super) fn take(directory: &Path) -> Result<Self, OpenError> {
        let path = directory.join("lock");
        loop {
            let mut file = open(&path).map_err(|e| disk::unavailable("open", &path, e))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    let pid = owner(&mut file);
                    return Err(OpenError::AlreadyRunning {
                        directory: directory.into(),
                        pid,
                    });
                }
                Err(error) => return Err(disk::unavailable("lock", &path, error.into()).into()),
            }
            let held = file
                .metadata()
                .map_err(|e| disk::unavailable("look at", &path, e))?;
            let lock = Self {
                path: path.clone(),
                file,
                device: held.dev(),
                inode: held.ino(),
            };
            match lock.check() {
                Ok(()) => {
                    // For people only: a full disk must not keep the engine from starting.
                    let _ = lock.sign();
                    return Ok(lock);
                }
                // Someone replaced the file between our open and our lock: lock the new one.
                Err(error) if error.kind == StoreErrorKind::Lost && directory.is_dir() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// `Lost` when the path no longer leads to the file that is locked.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let lost = |what: &str| StoreError {
            kind: StoreErrorKind::Lost,
            text: format!(
                "{} {what}: the state directory is no longer ours; restart the engine",
                self.path.display()
            ),
            source: None,
        };
        match fs::metadata(&self.path) {
            Ok(seen) if seen.dev() == self.device && seen.ino() == self.inode => Ok(()),
            Ok(_) => Err(lost("was replaced")),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Err(lost("was removed"))
            }
            Err(error) => Err(disk::unavailable("look at", &self.path, error)),
        }
    }

    fn sign(&self) -> io::Result<()> {
        let host = rustix::system::uname();
        let text = format!(
            "pid {} on {}\n",
            std::process::id(),
            host.nodename().to_string_lossy()
        );
        self.file.set_len(0)?;
        (&self.file).write_all(text.as_bytes())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The text would name a process that no longer runs. A full disk cannot refuse this.
        let _ = self.file.set_len(0);
        // Closing is not enough while a child of ours is between fork and exec: it holds a
        // copy of the descriptor.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// For writing where possible, since NFS locks nothing else; on a disk mounted for reading
/// only, records can still be read.
fn open(path: &Path) -> io::Result<File> {
    let writable = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path);
    match writable {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => for_reading(path, error),
        result => result,
    }
}

/// What is there can be locked for reading. Where nothing is, that the disk takes no writes is
/// what a person has to know.
pub(super) fn for_reading(path: &Path, refused: io::Error) -> io::Result<File> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(refused),
        result => result,
    }
}

/// The process that the text in a lock file names.
fn owner(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(256).read_to_string(&mut text).ok()?;
    text.strip_prefix("pid ")?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}
