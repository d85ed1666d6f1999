//! The suite for stores on both stores, and on stores that break one promise each.

use async_trait::async_trait;
use egress_core::{Installation, ProxyId, Record};
use egress_engine::store::{
    Store, StoreError, StoreErrorKind, Stored, Version,
    conformance::{self, Harness},
    file::{FileStore, OpenMode},
    memory::MemoryStore,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_store_keeps_every_promise() {
    keeps_every_promise(&Memory(Mutex::default())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_file_store_keeps_every_promise() {
    keeps_every_promise(&Files(Mutex::default())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_broken_store_fails_on_the_promise_that_it_breaks() {
    for (flaw, case) in [
        (Flaw::None, None),
        (
            Flaw::IgnoresVersions,
            Some("a_save_with_an_old_version_changes_nothing"),
        ),
        (
            Flaw::CreatesOverRecords,
            Some("creating_where_a_record_is_changes_nothing"),
        ),
        (
            Flaw::MakesWhatIsGone,
            Some("changing_what_is_not_there_changes_nothing"),
        ),
        (
            Flaw::CountsVersionsPerRecord,
            Some("a_version_stays_wrong_after_its_record_was_removed_and_made_anew"),
        ),
        (
            Flaw::TakesContentForVersion,
            Some("the_same_content_saved_again_has_a_new_version"),
        ),
        (
            Flaw::ForgetsProofs,
            Some("a_saved_record_is_loaded_as_it_was"),
        ),
        (
            Flaw::ForgetsAll,
            Some("a_record_survives_a_reopening_with_its_version"),
        ),
        (
            Flaw::RemovesAnyVersion,
            Some("a_removal_with_an_old_version_changes_nothing"),
        ),
        (
            Flaw::RemovesTwice,
            Some("removing_what_is_gone_is_a_conflict"),
        ),
        (
            Flaw::FoldsNames,
            Some("names_that_look_alike_have_records_of_their_own"),
        ),
        (Flaw::CutsNames, Some("the_longest_names_are_kept")),
        (
            Flaw::ListsAllOrNothing,
            Some("one_unreadable_record_hides_no_other"),
        ),
        (
            Flaw::OverwritesTheUnreadable,
            Some("an_unreadable_record_is_never_overwritten"),
        ),
        (
            Flaw::ChecksBeforeItWaits,
            Some("of_many_writers_exactly_one_wins_each_version"),
        ),
        (
            Flaw::WritesAfterTheDrop,
            Some("a_dropped_save_has_happened_or_not_for_all_who_look_later"),
        ),
    ] {
        let report = conformance::run(&Broken {
            flaw,
            last: Mutex::default(),
        })
        .await;
        match case {
            Some(case) => assert!(report.failures().contains(&case), "{flaw:?}:\n{report}"),
            None => assert!(report.failures().is_empty(), "{report}"),
        }
        assert!(report.not_run().is_empty(), "{report}");
    }
}

async fn keeps_every_promise(harness: &dyn Harness) {
    let report = conformance::run(harness).await;
    assert!(
        report.failures().is_empty() && report.not_run().is_empty(),
        "{report}"
    );
    assert_eq!(report.cases.len(), conformance::CASES.len());
}

/// The store that the running case opened last.
struct Memory(Mutex<MemoryStore>);

#[async_trait]
impl Harness for Memory {
    async fn empty(&self) -> Arc<dyn Store> {
        let store = MemoryStore::new();
        *self.0.lock().unwrap() = store.clone();
        Arc::new(store)
    }
    async fn reopen(&self, _: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(self.0.lock().unwrap().clone())
    }
    async fn corrupt(&self, _: Arc<dyn Store>, id: &ProxyId) -> Option<Arc<dyn Store>> {
        let store = self.0.lock().unwrap().clone();
        store.corrupt(id);
        Some(Arc::new(store))
    }
}

/// The directory of the store that the running case opened last.
struct Files(Mutex<Option<TempDir>>);

impl Files {
    fn open(&self) -> Arc<dyn Store> {
        let directory = self.0.lock().unwrap();
        Arc::new(open(directory.as_ref().unwrap().path()))
    }
}

fn open(directory: &Path) -> FileStore {
    let installation: Installation = "suite".parse().unwrap();
    FileStore::open(directory, &installation, "host", OpenMode::default()).unwrap()
}

#[async_trait]
impl Harness for Files {
    async fn empty(&self) -> Arc<dyn Store> {
        *self.0.lock().unwrap() = Some(TempDir::new().unwrap());
        self.open()
    }
    async fn reopen(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        drop(store);
        self.open()
    }
    async fn corrupt(&self, store: Arc<dyn Store>, id: &ProxyId) -> Option<Arc<dyn Store>> {
        drop(store);
        let file = {
            let directory = self.0.lock().unwrap();
            let records = directory.as_ref().unwrap().path().join("records");
            records
                .join(id.namespace())
                .join(format!("{}.json", id.name()))
        };
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "{\"schema\":1,\"version\":\"x\",\"rec").unwrap();
        Some(self.open())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    IgnoresVersions,
    CreatesOverRecords,
    MakesWhatIsGone,
    CountsVersionsPerRecord,
    TakesContentForVersion,
    ForgetsProofs,
    ForgetsAll,
    RemovesAnyVersion,
    RemovesTwice,
    FoldsNames,
    CutsNames,
    ListsAllOrNothing,
    OverwritesTheUnreadable,
    ChecksBeforeItWaits,
    WritesAfterTheDrop,
}

struct Broken {
    flaw: Flaw,
    last: Mutex<Option<BrokenStore>>,
}

#[async_trait]
impl Harness for Broken {
    async fn empty(&self) -> Arc<dyn Store> {
        let store = BrokenStore {
            flaw: self.flaw,
            state: Arc::default(),
        };
        *self.last.lock().unwrap() = Some(store.clone());
        Arc::new(store)
    }
    async fn reopen(&self, _: Arc<dyn Store>) -> Arc<dyn Store> {
        let store = self.last.lock().unwrap().clone().unwrap();
        if self.flaw == Flaw::ForgetsAll {
            store.state.lock().unwrap().records.clear();
        }
        Arc::new(store)
    }
    async fn corrupt(&self, _: Arc<dyn Store>, id: &ProxyId) -> Option<Arc<dyn Store>> {
        let store = self.last.lock().unwrap().clone().unwrap();
        store.state.lock().unwrap().unreadable.insert(id.clone());
        Some(Arc::new(store))
    }
}

#[derive(Clone)]
struct BrokenStore {
    flaw: Flaw,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    records: BTreeMap<ProxyId, Stored>,
    unreadable: BTreeSet<ProxyId>,
    count: u64,
}

fn error(kind: StoreErrorKind) -> StoreError {
    StoreError {
        kind,
        text: format!("{kind:?}"),
        source: None,
    }
}

impl BrokenStore {
    fn key(&self, id: &ProxyId) -> ProxyId {
        let name = match self.flaw {
            Flaw::FoldsNames if id.name().len() < 64 => id.name().replace('.', "-"),
            Flaw::CutsNames if id.name().len() > 250 => id.name()[..250].to_owned(),
            _ => return id.clone(),
        };
        ProxyId::new(id.namespace(), &name).unwrap()
    }

    fn readable(&self, id: &ProxyId, state: &State) -> Result<(), StoreError> {
        if state.unreadable.contains(id) && self.flaw != Flaw::OverwritesTheUnreadable {
            return Err(error(StoreErrorKind::Corrupt));
        }
        Ok(())
    }

    fn check(
        &self,
        state: &State,
        id: &ProxyId,
        expected: Option<&Version>,
    ) -> Result<(), StoreError> {
        self.readable(id, state)?;
        let present = state.records.get(id).map(|stored| &stored.version);
        let forgiven = match self.flaw {
            Flaw::IgnoresVersions => present.is_some() && expected.is_some(),
            Flaw::CreatesOverRecords => expected.is_none(),
            Flaw::MakesWhatIsGone => present.is_none(),
            _ => false,
        };
        if present == expected || forgiven {
            return Ok(());
        }
        Err(error(StoreErrorKind::Conflict))
    }

    fn write(
        &self,
        id: &ProxyId,
        record: &Record,
        expected: Option<&Version>,
    ) -> Result<Version, StoreError> {
        let mut state = self.state.lock().unwrap();
        self.check(&state, id, expected)?;
        Ok(self.put(&mut state, id, record.clone()))
    }

    fn put(&self, state: &mut State, id: &ProxyId, mut record: Record) -> Version {
        state.count += 1;
        if self.flaw == Flaw::ForgetsProofs {
            record.proven = None;
        }
        let version = match (self.flaw, state.records.get(id)) {
            (Flaw::CountsVersionsPerRecord, None) => "1".to_owned(),
            (Flaw::CountsVersionsPerRecord, Some(old)) => {
                (old.version.0.parse::<u64>().unwrap() + 1).to_string()
            }
            (Flaw::TakesContentForVersion, _) => record.last_attempt.to_string(),
            _ => state.count.to_string(),
        };
        let version = Version(version);
        state.unreadable.remove(id);
        state.records.insert(
            id.clone(),
            Stored {
                record,
                version: version.clone(),
            },
        );
        version
    }
}

#[async_trait]
impl Store for BrokenStore {
    async fn load(&self, id: &ProxyId) -> Result<Option<Stored>, StoreError> {
        let state = self.state.lock().unwrap();
        self.readable(id, &state)?;
        Ok(state.records.get(&self.key(id)).cloned())
    }

    async fn save(
        &self,
        id: &ProxyId,
        record: &Record,
        expected: Option<&Version>,
    ) -> Result<Version, StoreError> {
        let key = self.key(id);
        match self.flaw {
            Flaw::ChecksBeforeItWaits => {
                self.check(&self.state.lock().unwrap(), &key, expected)?;
                tokio::time::sleep(Duration::from_millis(1)).await;
                Ok(self.put(&mut self.state.lock().unwrap(), &key, record.clone()))
            }
            Flaw::WritesAfterTheDrop => {
                let (store, record, expected) = (self.clone(), record.clone(), expected.cloned());
                let write = tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    store.write(&key, &record, expected.as_ref())
                });
                write.await.unwrap()
            }
            _ => self.write(&key, record, expected),
        }
    }

    async fn remove(&self, id: &ProxyId, expected: &Version) -> Result<(), StoreError> {
        let key = self.key(id);
        let mut state = self.state.lock().unwrap();
        let forgiven = match self.flaw {
            Flaw::RemovesAnyVersion => state.records.contains_key(&key),
            Flaw::RemovesTwice => !state.records.contains_key(&key),
            _ => false,
        };
        if !forgiven {
            self.check(&state, &key, Some(expected))?;
        }
        state.records.remove(&key);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<(ProxyId, Result<Stored, StoreError>)>, StoreError> {
        let state = self.state.lock().unwrap();
        if self.flaw == Flaw::ListsAllOrNothing && !state.unreadable.is_empty() {
            return Err(error(StoreErrorKind::Corrupt));
        }
        let ids: BTreeSet<_> = state.records.keys().chain(&state.unreadable).collect();
        let read = |id: &ProxyId| {
            self.readable(id, &state)?;
            Ok(state.records[id].clone())
        };
        Ok(ids.into_iter().map(|id| (id.clone(), read(id))).collect())
    }
}
