//! Records in memory, for tests and benches: they outlive a crash of the engine (clone the
//! store), and a [`Gate`] can cut every single write, landed or not.

use super::{Store, StoreError, StoreErrorKind, Stored, Version};
use egress_core::{ProxyId, Record};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

#[cfg(test)]
mod tests;

/// What a write would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// It puts this record in place.
    Save(Box<Record>),
    /// It takes the record away.
    Remove,
}

/// A write that is about to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The count of this write in the store's life, from 1, failed ones included.
    pub number: u64,
    /// Whose record it is.
    pub id: ProxyId,
    /// What it would do.
    pub kind: WriteKind,
}

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on as if there were no gate.
    Pass,
    /// It fails with this kind and changes nothing.
    FailBefore(StoreErrorKind),
    /// It has its effect, if its version is right, and then fails with this kind.
    FailAfter(StoreErrorKind),
    /// It changes nothing and never returns: drop it, as a crash would.
    HangBefore,
    /// It has its effect, if its version is right, and never returns.
    HangAfter,
}

/// Decides over every write before it happens. It may wait first.
#[async_trait::async_trait]
pub trait Gate: Send + Sync {
    /// The verdict on one write.
    async fn judge(&self, write: &Write) -> Verdict;
}

/// Records in memory. A clone is the same store, as another process would open it.
#[derive(Clone, Default)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    records: Mutex<BTreeMap<ProxyId, Entry>>,
    gate: Mutex<Option<Arc<dyn Gate>>>,
    versions: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
}

enum Entry {
    Readable(Box<Stored>),
    Corrupt,
}

impl MemoryStore {
    /// An empty store without a gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a gate before every write from now on, or takes it away.
    pub fn set_gate(&self, gate: Option<Arc<dyn Gate>>) {
        *held(&self.shared.gate) = gate;
    }

    /// Makes a record unreadable, as a damaged file would be, also where there is none.
    pub fn corrupt(&self, id: &ProxyId) {
        held(&self.shared.records).insert(id.clone(), Entry::Corrupt);
    }

    /// How many loads and lists there were; a list counts once.
    pub fn reads(&self) -> u64 {
        self.shared.reads.load(Ordering::Relaxed)
    }

    /// How many saves and removes were asked for, failed ones included.
    pub fn writes(&self) -> u64 {
        self.shared.writes.load(Ordering::Relaxed)
    }

    async fn write<T>(
        &self,
        id: &ProxyId,
        kind: WriteKind,
        effect: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let number = self.shared.writes.fetch_add(1, Ordering::Relaxed) + 1;
        let gate = held(&self.shared.gate).clone();
        let verdict = match gate {
            Some(gate) => {
                gate.judge(&Write {
                    number,
                    id: id.clone(),
                    kind,
                })
                .await
            }
            None => Verdict::Pass,
        };
        match verdict {
            Verdict::Pass => effect(),
            Verdict::FailBefore(kind) => Err(ordered(kind, id)),
            Verdict::FailAfter(kind) => effect().and_then(|_| Err(ordered(kind, id))),
            Verdict::HangBefore => std::future::pending().await,
            Verdict::HangAfter => {
                effect()?;
                std::future::pending().await
            }
        }
    }

    fn next_version(&self) -> Version {
        Version((self.shared.versions.fetch_add(1, Ordering::Relaxed) + 1).to_string())
    }
}

#[async_trait::async_trait]
impl Store for MemoryStore {
    async fn load(&self, id: &ProxyId) -> Result<Option<Stored>, StoreError> {
        self.shared.reads.fetch_add(1, Ordering::Relaxed);
        held(&self.shared.records)
            .get(id)
            .map(|entry| read(id, entry))
            .transpose()
    }

    async fn save(
        &self,
        id: &ProxyId,
        record: &Record,
        expected: Option<&Version>,
    ) -> Result<Version, StoreError> {
        self.write(id, WriteKind::Save(Box::new(record.clone())), || {
            let mut records = held(&self.shared.records);
            check_version(id, records.get(id), expected)?;
            let version = self.next_version();
            let stored = Stored {
                record: record.clone(),
                version: version.clone(),
            };
            records.insert(id.clone(), Entry::Readable(Box::new(stored)));
            Ok(version)
        })
        .await
    }

    async fn remove(&self, id: &ProxyId, expected: &Version) -> Result<(), StoreError> {
        self.write(id, WriteKind::Remove, || {
            let mut records = held(&self.shared.records);
            check_version(id, records.get(id), Some(expected))?;
            records.remove(id);
            Ok(())
        })
        .await
    }

    async fn list(&self) -> Result<Vec<(ProxyId, Result<Stored, StoreError>)>, StoreError> {
        self.shared.reads.fetch_add(1, Ordering::Relaxed);
        let records = held(&self.shared.records);
        Ok(records
            .iter()
            .map(|(id, entry)| (id.clone(), read(id, entry)))
            .collect())
    }
}

/// A panic elsewhere leaves no half-made change behind these locks.
fn held<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(id: &ProxyId, entry: &Entry) -> Result<Stored, StoreError> {
    match entry {
        Entry::Readable(stored) => Ok(Stored::clone(stored)),
        Entry::Corrupt => Err(StoreError {
            kind: StoreErrorKind::Corrupt,
            text: format!("the record of {id} cannot be read"),
            source: None,
        }),
    }
}

fn check_version(
    id: &ProxyId,
    entry: Option<&Entry>,
    expected: Option<&Version>,
) -> Result<(), StoreError> {
    let present = entry
        .map(|entry| read(id, entry))
        .transpose()?
        .map(|stored| stored.version);
    if present.as_ref() == expected {
        Ok(())
    } else {
        Err(StoreError::conflict(id))
    }
}

fn ordered(kind: StoreErrorKind, id: &ProxyId) -> StoreError {
    StoreError {
        kind,
        text: format!("the gate failed a write of {id} with {kind:?}"),
        source: None,
    }
}
