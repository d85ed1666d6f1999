//! Records in files: the state directory of standalone mode.
//!
//! ```text
//! <state-dir>/lock                                 locked by the running engine
//! <state-dir>/identity.json                        installation, host, writer id
//! <state-dir>/records/<namespace>/<name>.json      one record each
//! <state-dir>/incarnations/<namespace>/<name>      the last incarnation that was given up
//! <state-dir>/credentials/<namespace>/<name>.json  generated credentials, mode 600
//! <state-dir>/abandon/<namespace>/<name>           its machine is left behind on deletion
//! <state-dir>/admin                                where the running engine's admin page listens
//! ```
//!
//! One process holds the lock, so what it read at the start and wrote since is true: loads
//! are answered from memory and a steady engine reads and writes nothing. A record that a
//! person edits meanwhile is noticed at its next save, which answers `Conflict` and changes
//! nothing. A record that cannot be read is looked at again with every load, so mending it
//! or moving it away needs no restart.

mod abandon;
mod credential;
mod disk;
mod identity;
mod lock;
mod names;
mod open_error;
mod record;
#[cfg(test)]
mod tests;

pub use credential::Credentials;
pub use identity::host_id;
pub use open_error::OpenError;

use super::{Store, StoreError, StoreErrorKind, Stored, Version};
use disk::{Disk, Readers};
use egress_core::{Identity, Installation, ProxyId, Record, WriterId};
use identity::StoredIdentity;
use lock::Lock;
use record::Records;
use serde::Deserialize;
use std::{
    collections::{BTreeSet, hash_map::RandomState},
    fmt,
    fs::{self, DirBuilder, File},
    hash::BuildHasher,
    io,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Semaphore;

/// How a state directory may be opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// Also when it is another host's or installation's: it becomes ours. Never past a
    /// running engine.
    pub take_over: bool,
}

/// Records in files. A clone is the same open directory; the last one dropped unlocks it.
#[derive(Clone)]
pub struct FileStore {
    directory: Arc<Directory>,
}

/// How many writes wait for the disk at once. More of them share one commit of the file
/// system's journal; fewer threads stand idle.
const WRITERS: usize = 32;

/// Two records whose ids meet on one of these are written one after the other.
const TURNS: usize = 256;

struct Directory {
    root: PathBuf,
    records: PathBuf,
    incarnations: PathBuf,
    credentials: PathBuf,
    abandon: PathBuf,
    disk: Disk,
    identity: Mutex<StoredIdentity>,
    fresh: bool,
    taken_over: bool,
    ignored: Vec<PathBuf>,
    cache: Mutex<Records>,
    abandons: Mutex<BTreeSet<ProxyId>>,
    turns: Vec<Arc<tokio::sync::Mutex<()>>>,
    hasher: RandomState,
    writers: Arc<Semaphore>,
}

impl FileStore {
    /// Opens a state directory, makes it (mode 700) where there is none, locks it and reads
    /// every record. Blocks on the disk. `host` is what [`host_id`] says.
    pub fn open(
        root: &Path,
        installation: &Installation,
        host: &str,
        mode: OpenMode,
    ) -> Result<Self, OpenError> {
        make_root(root).map_err(|error| disk::unavailable("make", root, error))?;
        refuse_strangers(root)?;
        let lock = Lock::take(root)?;
        let identity_path = root.join(IDENTITY);
        let recorded = StoredIdentity::read(&identity_path)?;
        let [records, incarnations, credentials, abandon] = TREES.map(|tree| root.join(tree));
        let mut ignored = Vec::new();
        remove_temporaries(root)?;
        let read = record::read_all(&records, &mut ignored)?;
        let noted = abandon::read_all(&abandon)?;
        let kept = [&incarnations, &credentials].map(|tree| count_files(tree));
        let fresh = read.is_empty() && kept.into_iter().sum::<Result<usize, _>>()? == 0;

        let identity = match &recorded {
            None if fresh || mode.take_over => StoredIdentity::new(installation, host),
            None => {
                return Err(OpenError::IdentityMissing {
                    directory: root.into(),
                });
            }
            Some(old) if mode.take_over => StoredIdentity {
                installation: installation.clone(),
                host: host.to_owned(),
                ..old.clone()
            },
            Some(old) if old.host != host => {
                return Err(OpenError::OtherHost {
                    directory: root.into(),
                    recorded: old.host.clone(),
                    present: host.to_owned(),
                });
            }
            Some(old) if old.installation != *installation => {
                return Err(OpenError::OtherInstallation {
                    directory: root.into(),
                    recorded: old.installation.clone(),
                    present: installation.clone(),
                });
            }
            Some(old) => old.clone(),
        };
        let disk = Disk::new(lock);
        if recorded.as_ref() != Some(&identity) {
            disk.write(&identity_path, Readers::Directory, &identity.bytes())?;
        }
        let store = Self {
            directory: Arc::new(Directory {
                root: root.to_owned(),
                records,
                incarnations,
                credentials,
                abandon,
                disk,
                identity: Mutex::new(identity),
                fresh,
                taken_over: mode.take_over,
                ignored,
                cache: Mutex::new(read),
                abandons: Mutex::new(noted.keys().cloned().collect()),
                turns: (0..TURNS).map(|_| Arc::default()).collect(),
                hasher: RandomState::new(),
                writers: Arc::new(Semaphore::new(WRITERS)),
            }),
        };
        abandon::forget_stale(&store.directory, &noted);
        Ok(store)
    }

    /// Whether it held nothing when it was opened, neither records nor credentials nor
    /// incarnations: then machines of ours, if there are any, say who we were.
    pub fn fresh(&self) -> bool {
        self.directory.fresh
    }

    /// Whether the directory is still the one that was locked; `Lost` when it was removed or
    /// replaced. The right to change anything on a provider ends with it.
    pub fn check_lock(&self) -> Result<(), StoreError> {
        self.directory.disk.check_lock()
    }

    /// Who we are: what marks say. The writer is a new random one in a fresh directory.
    pub fn identity(&self) -> Identity {
        let identity = held(&self.directory.identity);
        Identity {
            installation: identity.installation.clone(),
            writer: Some(identity.writer.clone()),
        }
    }

    /// Becomes the writer that the marks of our machines name. Refused with `OtherWriter`
    /// unless the directory was fresh or taken over when it was opened. Blocks on the disk.
    pub fn adopt_writer(&self, writer: &WriterId) -> Result<(), OpenError> {
        let directory = &self.directory;
        let mut identity = held(&directory.identity);
        if identity.writer == *writer {
            return Ok(());
        }
        if !(directory.fresh || directory.taken_over) {
            return Err(OpenError::OtherWriter {
                directory: directory.root.clone(),
                recorded: identity.writer.clone(),
                found: writer.clone(),
            });
        }
        let adopted = StoredIdentity {
            writer: writer.clone(),
            ..identity.clone()
        };
        let path = directory.root.join(IDENTITY);
        directory
            .disk
            .write(&path, Readers::Directory, &adopted.bytes())?;
        *identity = adopted;
        Ok(())
    }

    /// Files below `records` that are no record by their name, left alone; for one warning.
    pub fn ignored(&self) -> &[PathBuf] {
        &self.directory.ignored
    }

    /// The generated credentials in the same directory.
    pub fn credentials(&self) -> Credentials {
        Credentials {
            store: self.clone(),
        }
    }

    /// The last incarnation of a name that was given up; 0 when none was. The next Proxy of
    /// that name, while it has no record, is one more.
    pub async fn incarnation(&self, id: &ProxyId) -> Result<u64, StoreError> {
        let owner = id.clone();
        self.on_disk(id, move |directory| record::incarnation(directory, &owner))
            .await
    }

    /// Raises the last given-up incarnation of a name, when records are rebuilt from marks.
    /// Never lowers it: a machine UID must not come back.
    pub async fn set_incarnation(&self, id: &ProxyId, last: u64) -> Result<(), StoreError> {
        let owner = id.clone();
        self.on_disk(id, move |directory| {
            if record::incarnation(directory, &owner)? < last {
                record::write_incarnation(directory, &owner, last)?;
            }
            Ok(())
        })
        .await
    }

    /// Writes where the admin page listens, for the commands that ask it. Blocks on the disk.
    pub fn write_admin(&self, address: SocketAddr) -> Result<(), StoreError> {
        let path = self.directory.root.join(ADMIN);
        self.directory
            .disk
            .write(&path, Readers::Directory, format!("{address}\n").as_bytes())
    }

    /// Removes what [`write_admin`](Self::write_admin) wrote. Blocks on the disk.
    pub fn remove_admin(&self) -> Result<(), StoreError> {
        self.directory
            .disk
            .remove(&self.directory.root.join(ADMIN), &self.directory.root)
    }

    /// Where the admin page of the engine on a state directory listens, for another process;
    /// `None` when none was written. It may be out of date after a crash.
    pub fn read_admin(root: &Path) -> Result<Option<SocketAddr>, StoreError> {
        let path = root.join(ADMIN);
        let Some(bytes) = disk::read(&path)? else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&bytes);
        text.trim().parse().map(Some).map_err(|_| StoreError {
            kind: StoreErrorKind::Corrupt,
            text: format!("{} holds no address: restart the engine", path.display()),
            source: None,
        })
    }

    /// Runs one piece of work on the disk, after all earlier ones for the same Proxy. Once
    /// it has begun it goes on to its end, also when the caller is dropped.
    async fn on_disk<T: Send + 'static>(
        &self,
        id: &ProxyId,
        work: impl FnOnce(&Directory) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn = self.directory.hasher.hash_one(id) as usize % TURNS;
        let turn = Arc::clone(&self.directory.turns[turn]).lock_owned().await;
        let writer = Arc::clone(&self.directory.writers).acquire_owned().await;
        let busy = Busy::new(&self.directory, id);
        let task = tokio::task::spawn_blocking(move || {
            let outcome = work(&busy.directory);
            // In this order: the next one to take its turn says itself that it is busy.
            drop((busy, turn, writer));
            outcome
        });
        match task.await {
            Ok(outcome) => outcome,
            Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
            Err(_) => Err(StoreError {
                kind: StoreErrorKind::Unavailable,
                text: format!("the engine stops: nothing was done for {id}"),
                source: None,
            }),
        }
    }
}

/// While it lives, loads of this Proxy wait for their turn instead of answering from memory:
/// a dropped save may still land.
struct Busy {
    directory: Arc<Directory>,
    id: ProxyId,
}

impl Busy {
    fn new(directory: &Arc<Directory>, id: &ProxyId) -> Self {
        held(&directory.cache).busy.insert(id.clone());
        Self {
            directory: Arc::clone(directory),
            id: id.clone(),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        held(&self.directory.cache).busy.remove(&self.id);
    }
}

#[async_trait::async_trait]
impl Store for FileStore {
    async fn load(&self, id: &ProxyId) -> Result<Option<Stored>, StoreError> {
        let known = held(&self.directory.cache).get(id);
        if let Ok(stored) = known {
            return Ok(stored);
        }
        let owner = id.clone();
        self.on_disk(id, move |directory| record::look_again(directory, &owner))
            .await
    }

    async fn save(
        &self,
        id: &ProxyId,
        record: &Record,
        expected: Option<&Version>,
    ) -> Result<Version, StoreError> {
        let (owner, record, expected) = (id.clone(), record.clone(), expected.cloned());
        self.on_disk(id, move |directory| {
            record::save(directory, &owner, record, expected.as_ref())
        })
        .await
    }

    async fn remove(&self, id: &ProxyId, expected: &Version) -> Result<(), StoreError> {
        let (owner, expected) = (id.clone(), expected.clone());
        self.on_disk(id, move |directory| {
            record::remove(directory, &owner, &expected)
        })
        .await
    }

    async fn list(&self) -> Result<Vec<(ProxyId, Result<Stored, StoreError>)>, StoreError> {
        let ids = held(&self.directory.cache).ids();
        let mut listed = Vec::with_capacity(ids.len());
        for id in ids {
            // `None`: removed while we were at it.
            if let Some(result) = self.load(&id).await.transpose() {
                listed.push((id, result));
            }
        }
        Ok(listed)
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore")
            .field("root", &self.directory.root)
            .finish_non_exhaustive()
    }
}

const IDENTITY: &str = "identity.json";
const ADMIN: &str = "admin";
const TREES: [&str; 4] = ["records", "incarnations", "credentials", "abandon"];

/// A panic elsewhere leaves no half-made change behind these locks.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn make_root(root: &Path) -> io::Result<()> {
    if root.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(root)?;
    if let Some(above) = root.parent().filter(|above| !above.as_os_str().is_empty()) {
        // Best effort: we need not be allowed to read it.
        let _ = File::open(above).and_then(|above| above.sync_all());
    }
    Ok(())
}

/// A directory without our identity that holds something else was given by mistake.
fn refuse_strangers(root: &Path) -> Result<(), OpenError> {
    if root.join(IDENTITY).exists() || root.join(TREES[0]).exists() {
        return Ok(());
    }
    for entry in disk::entries(root)? {
        let name = entry.file_name().to_string_lossy().into_owned();
        let known = [ADMIN, "lock", "lost+found"].contains(&name.as_str());
        let tree = TREES.contains(&name.as_str());
        let ours = known || tree || name.starts_with(disk::TEMPORARY);
        if !ours {
            return Err(OpenError::NotAStateDirectory {
                directory: root.into(),
                entry: name,
            });
        }
    }
    Ok(())
}

/// Takes away what killed writes left behind: nobody writes while we hold the lock.
fn remove_temporaries(root: &Path) -> Result<(), StoreError> {
    let mut directories = vec![root.to_owned()];
    for tree in TREES {
        let namespaces = disk::entries(&root.join(tree))?;
        directories.extend(
            namespaces
                .iter()
                .map(fs::DirEntry::path)
                .filter(|path| path.is_dir()),
        );
    }
    for directory in directories {
        for entry in disk::entries(&directory)? {
            if entry
                .file_name()
                .to_string_lossy()
                .starts_with(disk::TEMPORARY)
            {
                // On a disk mounted for reading only they stay, and harm nothing.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
    Ok(())
}

fn count_files(tree: &Path) -> Result<usize, StoreError> {
    let mut count = 0;
    for namespace in disk::entries(tree)? {
        if namespace.path().is_dir() {
            count += disk::entries(&namespace.path())?.len();
        }
    }
    Ok(count)
}

/// The `schema` of a JSON object, whatever else it holds.
fn schema_of(bytes: &[u8]) -> Result<u32, String> {
    #[derive(Deserialize)]
    struct Head {
        schema: u32,
    }
    serde_json::from_slice::<Head>(bytes)
        .map(|head| head.schema)
        .map_err(|e| e.to_string())
}
