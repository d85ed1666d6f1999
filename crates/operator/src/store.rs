//! Records in annotations of the Proxies themselves.
//!
//! The record and the finalizer come in one patch and go in one patch, each on condition that
//! the object is at the version it was read at: a replica with an old cache fails before
//! anything happened. The record has a version of its own, the object's version that it was
//! written from, so that a new status or label, which change the object and not the record, are
//! no conflict.
//!
//! Loads are answered from the cache, which holds our own newest writes: a steady pass asks the
//! API server nothing. Where a write was refused as a conflict, or nobody knows whether it had
//! its effect, the next load asks.

#[cfg(test)]
mod tests;

use crate::{
    api::{Failure, Proxies},
    cache::Cache,
    objects::{FINALIZER, Held, Memory, RECORD_ANNOTATION},
};
use async_trait::async_trait;
use egress_core::{ProxyId, Record};
use egress_engine::{
    PermitSource,
    store::{Store, StoreError, StoreErrorKind, Stored, Version, layout},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{
    collections::{HashMap, HashSet},
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};
use tracing::Instrument as _;

/// How often a write is tried again because something beside the record changed.
const TRIES: usize = 4;

/// How long it is remembered whose record was removed: news of it may still be on their way.
const MEMORIAL: Duration = Duration::from_mins(10);

/// How late a machine may come that somebody asked for whom nobody remembers.
pub type Settle = Arc<dyn Fn() -> Duration + Send + Sync>;

/// See the module. A clone is the same store.
#[derive(Clone)]
pub struct AnnotationStore {
    shared: Arc<Shared>,
}

struct Shared {
    proxies: Proxies,
    cache: Arc<Cache>,
    permits: Arc<dyn PermitSource>,
    settle: Settle,
    /// Where the cache may be behind: ask before answering.
    doubted: Mutex<HashSet<ProxyId>>,
    /// The last write of each Proxy that has one going: closed when it ended.
    writing: Mutex<HashMap<ProxyId, watch::Receiver<()>>>,
    /// Records that are known to be lost.
    lost_since: Mutex<HashMap<ProxyId, Loss>>,
    /// The object whose record this process removed last, of each name, and when.
    released: Mutex<HashMap<ProxyId, (String, Instant)>>,
}

/// A lost record.
struct Loss {
    uid: String,
    since: Instant,
    noticed: Timestamp,
}

/// What a write does.
enum Change {
    Save(Box<Record>),
    Remove,
    /// The finalizer comes back, and the record stays as it is.
    Hold,
}

impl AnnotationStore {
    /// Keeps records in these Proxies while `permits` lets this process act. `settle` says how
    /// late a machine may still come whose record was lost.
    pub fn new(
        proxies: Proxies,
        cache: Arc<Cache>,
        permits: Arc<dyn PermitSource>,
        settle: Settle,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                proxies,
                cache,
                permits,
                settle,
                doubted: Mutex::default(),
                writing: Mutex::default(),
                lost_since: Mutex::default(),
                released: Mutex::default(),
            }),
        }
    }

    /// Whether this process may write now.
    pub fn may_act(&self) -> bool {
        self.shared.may_act()
    }

    /// The UID of the object of this name whose record this process removed lately, because
    /// all was done.
    pub fn released(&self, id: &ProxyId) -> Option<String> {
        let released = held(&self.shared.released);
        released.get(id).map(|(uid, _)| uid.clone())
    }

    /// Releases the finalizer of a Proxy that is being deleted, has no record of its own, and
    /// was found to have no machine.
    pub async fn release_unrecorded(&self, id: &ProxyId) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        let of = id.clone();
        self.in_turn(id, async move {
            let Some(held) = shared.fresh(&of).await? else {
                return Ok(());
            };
            let bare = matches!(held.memory, Memory::Lost | Memory::Copied(_));
            if !held.deleting || !held.is_held() || !bare {
                return Ok(());
            }
            shared.patch(&held, &Change::Remove).await.map(drop)
        })
        .await
    }

    /// Puts the finalizer back that somebody took from this object, which stays: without it a
    /// deletion would leave the machine behind.
    pub async fn hold(&self, id: &ProxyId, uid: &str) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        let (of, uid) = (id.clone(), uid.to_owned());
        self.in_turn(id, async move {
            if !shared.may_act() {
                return Ok(());
            }
            let Some(held) = shared.fresh(&of).await? else {
                return Ok(());
            };
            if held.uid != uid || held.deleting || held.is_held() {
                return Ok(());
            }
            shared.patch(&held, &Change::Hold).await.map(drop)
        })
        .await
    }

    /// Does `work` after all earlier work on this Proxy, also when nobody waits for it any more.
    async fn in_turn<T: Send + 'static>(
        &self,
        id: &ProxyId,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (going, ended) = watch::channel(());
        let before = held(&self.shared.writing).insert(id.clone(), ended.clone());
        let (shared, of) = (self.shared.clone(), id.clone());
        let turn = async move {
            if let Some(before) = before {
                end_of(before).await;
            }
            let result = work.await;
            let mut writing = held(&shared.writing);
            if writing
                .get(&of)
                .is_some_and(|last| last.same_channel(&ended))
            {
                writing.remove(&of);
            }
            drop(writing);
            drop(going);
            result
        };
        let task = tokio::spawn(turn.in_current_span());
        task.await.unwrap_or_else(|e| {
            Err(StoreError {
                kind: StoreErrorKind::OutcomeUnknown,
                text: format!("the write of the record of {id} was cut off: {e}"),
                source: None,
            })
        })
    }

    async fn write(
        &self,
        id: &ProxyId,
        change: Change,
        expected: Option<&Version>,
    ) -> Result<Version, StoreError> {
        let (shared, of, expected) = (self.shared.clone(), id.clone(), expected.cloned());
        self.in_turn(id, async move {
            shared.write(&of, &change, expected.as_ref()).await
        })
        .await
    }
}

/// Waits until a write ended.
async fn end_of(mut write: watch::Receiver<()>) {
    while write.changed().await.is_ok() {}
}

impl Shared {
    async fn write(
        &self,
        id: &ProxyId,
        change: &Change,
        expected: Option<&Version>,
    ) -> Result<Version, StoreError> {
        if !self.may_act() {
            return Err(unavailable(id, "this process does not hold the lease"));
        }
        for _ in 0..TRIES {
            let Some(before) = self.current(id).await? else {
                return Err(self.conflict(id));
            };
            let present = match &before.memory {
                Memory::Unreadable(why) => return Err(unreadable(id, why)),
                Memory::Record(stored) => Some(&stored.version),
                Memory::Nothing | Memory::Copied(_) | Memory::Lost => None,
            };
            if present != expected {
                return Err(self.conflict(id));
            }
            if before.deleting && !before.is_held() && present.is_none() {
                return Err(unavailable(
                    id,
                    "the Proxy is being deleted and its finalizer was taken away, so nothing can \
                     be remembered in it",
                ));
            }
            match self.patch(&before, change).await {
                // Something beside the record may have changed: a status, a label. A first
                // record is for the object as it was seen, and no other.
                Err(e) if e.kind == StoreErrorKind::Conflict && expected.is_some() => {}
                result => return result,
            }
        }
        Err(self.conflict(id))
    }

    fn may_act(&self) -> bool {
        self.permits
            .permit(1)
            .is_some_and(|permit| permit.is_good())
    }

    /// One patch on this state of the object.
    async fn patch(&self, before: &Held, change: &Change) -> Result<Version, StoreError> {
        let version = Version(format!("{}/{}", before.uid, before.version));
        let removes = matches!(change, Change::Remove);
        if removes {
            // Before the watch can tell that it is gone.
            let now = Instant::now();
            let mut released = held(&self.released);
            released.retain(|_, (_, since)| now.duration_since(*since) < MEMORIAL);
            released.insert(before.id.clone(), (before.uid.clone(), now));
        }
        let result = self.send(before, change, version).await;
        let undone = result
            .as_ref()
            .is_err_and(|e| e.kind != StoreErrorKind::OutcomeUnknown);
        if !removes || undone {
            held(&self.released).remove(&before.id);
        }
        result
    }

    async fn send(
        &self,
        before: &Held,
        change: &Change,
        version: Version,
    ) -> Result<Version, StoreError> {
        let id = &before.id;
        match self
            .proxies
            .patch(id, &body(before, change, &version))
            .await
        {
            Ok(after) => {
                self.cache.put(after);
                if !matches!(change, Change::Hold) {
                    held(&self.lost_since).remove(id);
                }
                Ok(version)
            }
            Err(Failure::Conflict) => Err(self.conflict(id)),
            Err(Failure::Missing) => {
                self.cache.remove(id, &before.uid);
                Err(StoreError::conflict(id))
            }
            Err(Failure::Refused(why)) => Err(unavailable(id, &why)),
            Err(Failure::Unknown(why)) => {
                self.doubt(id);
                Err(StoreError {
                    kind: StoreErrorKind::OutcomeUnknown,
                    text: format!("the record of {id} may be written or not: {why}"),
                    source: None,
                })
            }
        }
    }

    /// A conflict; the next look is at the API server.
    fn conflict(&self, id: &ProxyId) -> StoreError {
        self.doubt(id);
        StoreError::conflict(id)
    }

    fn doubt(&self, id: &ProxyId) {
        held(&self.doubted).insert(id.clone());
    }

    /// The object by the cache, where the cache is not in doubt.
    async fn current(&self, id: &ProxyId) -> Result<Option<Arc<Held>>, StoreError> {
        let doubted = held(&self.doubted).contains(id);
        if doubted {
            return self.fresh(id).await;
        }
        Ok(self.cache.get(id))
    }

    /// The object as the API server has it now.
    async fn fresh(&self, id: &ProxyId) -> Result<Option<Arc<Held>>, StoreError> {
        let known = self.cache.get(id);
        let found = self
            .proxies
            .get(id)
            .await
            .map_err(|failure| unavailable(id, &failure.to_string()))?;
        match (found, known) {
            (Some(found), _) => self.cache.put(found),
            (None, Some(known)) => self.cache.remove(id, &known.uid),
            (None, None) => {}
        }
        held(&self.doubted).remove(id);
        Ok(self.cache.get(id))
    }

    fn remembered(&self, id: &ProxyId, found: &Held) -> Result<Option<Stored>, StoreError> {
        match &found.memory {
            Memory::Record(stored) => Ok(Some(Stored::clone(stored))),
            Memory::Unreadable(why) => Err(unreadable(id, why)),
            Memory::Lost => self.lost(found).map(|()| None),
            // The status that told of it may be another one by now.
            Memory::Nothing if self.is_known_lost(found) => self.lost(found).map(|()| None),
            // A copied object is a Proxy of its own, and its record that of the original.
            Memory::Nothing | Memory::Copied(_) => Ok(None),
        }
    }

    fn is_known_lost(&self, found: &Held) -> bool {
        let lost = held(&self.lost_since);
        lost.get(&found.id)
            .is_some_and(|loss| loss.uid == found.uid)
    }

    /// What was asked for in the name of a lost record may still come: nothing is begun before,
    /// and people are told until when.
    fn lost(&self, found: &Held) -> Result<(), StoreError> {
        let id = &found.id;
        let now = Instant::now();
        let new = || Loss {
            uid: found.uid.clone(),
            since: now,
            noticed: Timestamp::now(),
        };
        let mut lost = held(&self.lost_since);
        let loss = lost.entry(id.clone()).or_insert_with(new);
        if loss.uid != found.uid {
            *loss = new();
        }
        let (since, noticed) = (loss.since, loss.noticed);
        drop(lost);
        let settle = (self.settle)();
        let left = settle.saturating_sub(now.duration_since(since));
        if left.is_zero() {
            return Ok(());
        }
        let settled = noticed.saturating_add(settle).unwrap_or(noticed);
        Err(StoreError {
            kind: StoreErrorKind::Settling(left),
            text: format!(
                "the annotation {RECORD_ANNOTATION} of {id} was taken away: put it back, or wait \
                 until {settled:.0}, when nothing can come any more that was asked for in its \
                 name: then the machine is searched by its mark"
            ),
            source: None,
        })
    }
}

#[async_trait]
impl Store for AnnotationStore {
    async fn load(&self, id: &ProxyId) -> Result<Option<Stored>, StoreError> {
        let writing = held(&self.shared.writing).get(id).cloned();
        if let Some(write) = writing {
            end_of(write).await;
        }
        match self.shared.current(id).await? {
            Some(found) => self.shared.remembered(id, &found),
            None => Ok(None),
        }
    }

    async fn save(
        &self,
        id: &ProxyId,
        record: &Record,
        expected: Option<&Version>,
    ) -> Result<Version, StoreError> {
        layout::fits(id, record).map_err(|why| unreadable(id, &why.to_string()))?;
        let change = Change::Save(Box::new(record.clone()));
        self.write(id, change, expected).await
    }

    async fn remove(&self, id: &ProxyId, expected: &Version) -> Result<(), StoreError> {
        self.write(id, Change::Remove, Some(expected))
            .await
            .map(drop)
    }

    async fn list(&self) -> Result<Vec<(ProxyId, Result<Stored, StoreError>)>, StoreError> {
        let mut all = Vec::new();
        for found in self.shared.cache.all() {
            let id = &found.id;
            match &found.memory {
                Memory::Record(stored) => all.push((id.clone(), Ok(Stored::clone(stored)))),
                Memory::Unreadable(why) => all.push((id.clone(), Err(unreadable(id, why)))),
                Memory::Nothing | Memory::Copied(_) | Memory::Lost => {}
            }
        }
        Ok(all)
    }
}

fn body(before: &Held, change: &Change, version: &Version) -> Value {
    let mut finalizers = before.finalizers.clone();
    let mut metadata = json!({"uid": before.uid, "resourceVersion": before.version});
    let record = match change {
        Change::Hold => {
            finalizers.push(FINALIZER.to_owned());
            metadata["finalizers"] = finalizers.into();
            return json!({ "metadata": metadata });
        }
        Change::Save(record) => {
            // One that was taken away while the object is being deleted cannot come back.
            if !before.is_held() && !before.deleting {
                finalizers.push(FINALIZER.to_owned());
            }
            Value::String(layout::encode(record, version))
        }
        Change::Remove => {
            finalizers.retain(|name| name != FINALIZER);
            Value::Null
        }
    };
    metadata["annotations"] = json!({RECORD_ANNOTATION: record});
    metadata["finalizers"] = finalizers.into();
    json!({ "metadata": metadata })
}

fn unavailable(id: &ProxyId, why: &str) -> StoreError {
    StoreError {
        kind: StoreErrorKind::Unavailable,
        text: format!("the record of {id}: {why}"),
        source: None,
    }
}

fn unreadable(id: &ProxyId, why: &str) -> StoreError {
    StoreError {
        kind: StoreErrorKind::Corrupt,
        text: format!(
            "the annotation {RECORD_ANNOTATION} of {id} cannot be read as its record: {why}; it \
             was left as it is: restore it, or remove it, and the machine is searched by its mark"
        ),
        source: None,
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
