//! Which Proxies leave their machine behind when they are deleted. A manifest that is gone
//! cannot say so any more, and the engine that read it may be gone too.
//!
//! A note holds the incarnation that it is about: one that a crash left behind when the record
//! was removed is known by its number, and says nothing of the next Proxy of that name.

use super::{
    Directory, FileStore,
    disk::{self, Readers},
    held, names, record,
};
use crate::store::StoreError;
use egress_core::ProxyId;
use std::{collections::BTreeMap, path::Path};

impl FileStore {
    /// Whether the Proxy's machine is to be left behind when it is deleted, as last kept.
    pub fn abandons(&self, id: &ProxyId) -> bool {
        held(&self.directory.abandons).contains(id)
    }

    /// Keeps whether the Proxy's machine is to be left behind. To be told of every sound
    /// manifest: the same again writes nothing. It goes with the record.
    pub async fn set_abandons(&self, id: &ProxyId, abandons: bool) -> Result<(), StoreError> {
        if self.abandons(id) == abandons {
            return Ok(());
        }
        let owner = id.clone();
        self.on_disk(id, move |directory| {
            if abandons {
                let path = names::plain_path(&directory.abandon, &owner);
                let number = record::incarnation(directory, &owner)? + 1;
                let text = format!("{number}\n");
                directory
                    .disk
                    .write(&path, Readers::Directory, text.as_bytes())?;
                held(&directory.abandons).insert(owner);
                Ok(())
            } else {
                forget(directory, &owner)
            }
        })
        .await
    }
}

/// Every note below the directory, with its incarnation. One that cannot be read counts: what
/// is left behind can still be deleted, and not the other way round.
pub(super) fn read_all(root: &Path) -> Result<BTreeMap<ProxyId, u64>, StoreError> {
    let mut noted = BTreeMap::new();
    for namespace in disk::entries(root)? {
        if !namespace.path().is_dir() {
            continue;
        }
        for file in disk::entries(&namespace.path())? {
            let names = (namespace.file_name(), file.file_name());
            let names = names.0.to_str().zip(names.1.to_str());
            let id = names.and_then(|(namespace, name)| ProxyId::new(namespace, name).ok());
            if let (Some(id), Some(text)) = (id, disk::read(&file.path())?) {
                let number = String::from_utf8_lossy(&text).trim().parse();
                noted.insert(id, number.unwrap_or(u64::MAX));
            }
        }
    }
    Ok(noted)
}

/// Takes the notes away whose Proxy was given up. Best effort: what stays is found next time.
pub(super) fn forget_stale(directory: &Directory, noted: &BTreeMap<ProxyId, u64>) {
    for (id, number) in noted {
        let recorded = held(&directory.cache).has(id);
        let given_up = record::incarnation(directory, id).is_ok_and(|last| last >= *number);
        if !recorded && given_up {
            let _ = forget(directory, id);
        }
    }
}

/// Takes the note away, if there is one.
pub(super) fn forget(directory: &Directory, id: &ProxyId) -> Result<(), StoreError> {
    if held(&directory.abandons).contains(id) {
        let path = names::plain_path(&directory.abandon, id);
        directory.disk.remove(&path, &directory.abandon)?;
        held(&directory.abandons).remove(id);
    }
    Ok(())
}
