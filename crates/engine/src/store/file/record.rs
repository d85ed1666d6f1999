//! Reading and writing one record, and what is known of all of them.

use super::{
    Directory, abandon,
    disk::{self, Readers},
    held, names,
};
use crate::store::{
    StoreError, StoreErrorKind, Stored, Version,
    layout::{self, Misfit},
};
use egress_core::{ProxyId, Record};
use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
};

/// What is known of the records without looking at the disk.
#[derive(Default)]
pub(super) struct Records {
    known: BTreeMap<ProxyId, Entry>,
    /// Proxies that a piece of work on the disk is about.
    pub(super) busy: HashSet<ProxyId>,
}

enum Entry {
    /// As it is on disk.
    Known(Box<Stored>),
    /// It could not be read: look each time.
    Unreadable,
    /// Its last write may or may not survive a crash: write again what is there, then look.
    Unsettled,
}

/// Memory does not tell: the disk must be asked.
pub(super) struct LookAgain;

impl Records {
    pub(super) fn has(&self, id: &ProxyId) -> bool {
        self.known.contains_key(id)
    }
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
    pub(super) fn ids(&self) -> Vec<ProxyId> {
        self.known.keys().cloned().collect()
    }
    pub(super) fn get(&self, id: &ProxyId) -> Result<Option<Stored>, LookAgain> {
        match self.known.get(id) {
            _ if self.busy.contains(id) => Err(LookAgain),
            None => Ok(None),
            Some(Entry::Known(stored)) => Ok(Some(Stored::clone(stored))),
            Some(Entry::Unreadable | Entry::Unsettled) => Err(LookAgain),
        }
    }
}

/// Every record below the directory. Files that are none by their name go to `ignored`.
pub(super) fn read_all(root: &Path, ignored: &mut Vec<PathBuf>) -> Result<Records, StoreError> {
    let mut records = Records::default();
    for namespace in disk::entries(root)? {
        let path = namespace.path();
        if !path.is_dir() {
            ignored.push(path);
            continue;
        }
        for file in disk::entries(&path)? {
            let name = file.file_name();
            let owner = namespace
                .file_name()
                .to_str()
                .zip(name.to_str())
                .and_then(|(namespace, name)| names::owner(namespace, name));
            let Some(id) = owner else {
                if !name.to_string_lossy().starts_with(disk::TEMPORARY) {
                    ignored.push(file.path());
                }
                continue;
            };
            let entry = match read(root, &id) {
                Ok(Some(stored)) => Entry::Known(Box::new(stored)),
                Ok(None) => continue,
                Err(_) => Entry::Unreadable,
            };
            records.known.insert(id, entry);
        }
    }
    Ok(records)
}

/// What is on disk for a record whose state is not known from memory.
pub(super) fn look_again(
    directory: &Directory,
    id: &ProxyId,
) -> Result<Option<Stored>, StoreError> {
    let unsettled = {
        let cache = held(&directory.cache);
        match cache.known.get(id) {
            None => return Ok(None),
            Some(Entry::Known(stored)) => return Ok(Some(Stored::clone(stored))),
            Some(Entry::Unreadable) => false,
            Some(Entry::Unsettled) => true,
        }
    };
    let path = names::json_path(&directory.records, id);
    let found = read(&directory.records, id)?;
    if unsettled {
        // Syncing again what failed to sync may claim a success that is none (the kernel
        // forgets the pages): only a new write is known to be on disk.
        match &found {
            Some(stored) => {
                let bytes = encode(&stored.record, &stored.version);
                directory.disk.write(&path, Readers::Directory, &bytes)?;
            }
            None => directory.disk.remove(&path, &directory.records)?,
        }
    }
    remember(directory, id, found.clone());
    Ok(found)
}

pub(super) fn save(
    directory: &Directory,
    id: &ProxyId,
    record: Record,
    expected: Option<&Version>,
) -> Result<Version, StoreError> {
    let path = names::json_path(&directory.records, id);
    directory.disk.check_lock()?;
    layout::fits(id, &record).map_err(|why| corrupt(id, &path, &why))?;
    check_version(directory, id, expected)?;
    let version = Version(uuid::Uuid::new_v4().simple().to_string());
    let written = directory
        .disk
        .write(&path, Readers::Directory, &encode(&record, &version));
    unsettle(directory, id, written)?;
    remember(
        directory,
        id,
        Some(Stored {
            record,
            version: version.clone(),
        }),
    );
    Ok(version)
}

pub(super) fn remove(
    directory: &Directory,
    id: &ProxyId,
    expected: &Version,
) -> Result<(), StoreError> {
    directory.disk.check_lock()?;
    check_version(directory, id, Some(expected))?;
    // First the number, then the record: a crash between the two skips a number, the other
    // order would give the next Proxy of that name the UID of this one.
    incarnation(directory, id)
        .and_then(|last| write_incarnation(directory, id, last + 1))
        .map_err(|error| match error.kind {
            StoreErrorKind::OutcomeUnknown => StoreError {
                kind: StoreErrorKind::Unavailable,
                ..error
            },
            _ => error,
        })?;
    let path = names::json_path(&directory.records, id);
    let removed = directory.disk.remove(&path, &directory.records);
    unsettle(directory, id, removed)?;
    remember(directory, id, None);
    // After the record, which it speaks for until then. One that stays is known by its number.
    let _ = abandon::forget(directory, id);
    Ok(())
}

/// The last given-up incarnation of a name, 0 when there is none.
pub(super) fn incarnation(directory: &Directory, id: &ProxyId) -> Result<u64, StoreError> {
    let path = names::plain_path(&directory.incarnations, id);
    let Some(bytes) = disk::read(&path)? else {
        return Ok(0);
    };
    String::from_utf8_lossy(&bytes).trim().parse().map_err(|_| StoreError {
        kind: StoreErrorKind::Corrupt,
        text: format!(
            "{} holds no number; it was left as it is: write the count of Proxies that ever had \
             the name {id} into it, or more",
            path.display()
        ),
        source: None,
    })
}

pub(super) fn write_incarnation(
    directory: &Directory,
    id: &ProxyId,
    last: u64,
) -> Result<(), StoreError> {
    let path = names::plain_path(&directory.incarnations, id);
    directory
        .disk
        .write(&path, Readers::Directory, format!("{last}\n").as_bytes())
}

/// Compares with the disk, not with memory: a person may have edited the file.
fn check_version(
    directory: &Directory,
    id: &ProxyId,
    expected: Option<&Version>,
) -> Result<(), StoreError> {
    let found = match read(&directory.records, id) {
        Err(error) if error.kind == StoreErrorKind::Corrupt => {
            held(&directory.cache)
                .known
                .insert(id.clone(), Entry::Unreadable);
            return Err(error);
        }
        found => found?,
    };
    let edited = match held(&directory.cache).known.get(id) {
        Some(Entry::Known(known)) => found.as_ref() != Some(&**known),
        Some(Entry::Unreadable | Entry::Unsettled) => false,
        None => found.is_some(),
    };
    if edited {
        remember(directory, id, found);
        let path = names::json_path(&directory.records, id);
        return Err(StoreError {
            text: format!(
                "{} was changed by someone else: it is read again",
                path.display()
            ),
            ..StoreError::conflict(id)
        });
    }
    if found.map(|stored| stored.version).as_ref() == expected {
        return Ok(());
    }
    Err(StoreError::conflict(id))
}

fn remember(directory: &Directory, id: &ProxyId, found: Option<Stored>) {
    let mut cache = held(&directory.cache);
    match found {
        Some(stored) => cache
            .known
            .insert(id.clone(), Entry::Known(Box::new(stored))),
        None => cache.known.remove(id),
    };
}

fn unsettle(
    directory: &Directory,
    id: &ProxyId,
    outcome: Result<(), StoreError>,
) -> Result<(), StoreError> {
    if let Err(error) = &outcome
        && error.kind == StoreErrorKind::OutcomeUnknown
    {
        held(&directory.cache)
            .known
            .insert(id.clone(), Entry::Unsettled);
    }
    outcome
}

fn encode(record: &Record, version: &Version) -> Vec<u8> {
    let mut text = layout::encode(record, version);
    text.push('\n');
    text.into_bytes()
}

fn read(root: &Path, id: &ProxyId) -> Result<Option<Stored>, StoreError> {
    let path = names::json_path(root, id);
    let Some(bytes) = disk::read(&path)? else {
        return Ok(None);
    };
    layout::decode(id, &bytes)
        .map(Some)
        .map_err(|why| corrupt(id, &path, &why))
}

fn corrupt(id: &ProxyId, path: &Path, why: &Misfit) -> StoreError {
    let path = path.display();
    StoreError {
        kind: StoreErrorKind::Corrupt,
        text: format!(
            "{path} cannot be read as the record of {id}: {why}; it was left as it is: restore \
             it, or look for the machine and then move it away (mv {path} {path}.corrupt)"
        ),
        source: None,
    }
}
