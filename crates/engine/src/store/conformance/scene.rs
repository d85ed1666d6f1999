//! What the cases are made of.

use super::{CaseResult, Harness, Trouble};
use crate::store::{Store, StoreError, StoreErrorKind, Stored, Version};
use egress_core::{
    Claim, ClusterId, Installation, MachineUid, Proven, ProxyId, Record, Slot, Standing,
};
use std::{fmt, sync::Arc};

pub(super) async fn only_winner(
    store: &dyn Store,
    id: &ProxyId,
    results: Vec<(Record, Result<Version, StoreError>)>,
) -> Result<Version, Trouble> {
    let mut winners = Vec::new();
    for (record, result) in results {
        match result {
            Ok(version) => winners.push(Stored { record, version }),
            Err(error) => {
                check(error.kind == StoreErrorKind::Conflict, || {
                    format!("a loser got {error:?}")
                })?;
            }
        }
    }
    let [winner] = <[Stored; 1]>::try_from(winners)
        .map_err(|w| Trouble::Failed(format!("{} writers won one version", w.len())))?;
    same("load", store.load(id).await, Some(winner.clone()))?;
    Ok(winner.version)
}

pub(super) async fn corrupted(
    harness: &dyn Harness,
    store: Arc<dyn Store>,
    id: &ProxyId,
) -> Result<Arc<dyn Store>, Trouble> {
    let damaged = harness.corrupt(store, id).await;
    damaged.ok_or(Trouble::NotRun("the harness cannot damage a record"))
}

pub(super) async fn saved(
    store: &dyn Store,
    id: &ProxyId,
    record: &Record,
    expected: Option<&Version>,
) -> Result<Version, Trouble> {
    store
        .save(id, record, expected)
        .await
        .map_err(|error| Trouble::Failed(format!("save of {id}: {:?}: {error}", error.kind)))
}

pub(super) async fn refused(
    store: &dyn Store,
    id: &ProxyId,
    record: &Record,
    expected: Option<&Version>,
) -> CaseResult {
    conflict("save", store.save(id, record, expected).await)
}

pub(super) async fn load(store: &dyn Store, id: &ProxyId) -> Result<Stored, Trouble> {
    match store.load(id).await {
        Ok(Some(stored)) => Ok(stored),
        other => Err(Trouble::Failed(format!("load of {id}: {other:?}"))),
    }
}

pub(super) async fn names(store: &dyn Store) -> Result<Vec<ProxyId>, Trouble> {
    let listed = store
        .list()
        .await
        .map_err(|e| Trouble::Failed(format!("list: {e}")))?;
    let mut ids = Vec::new();
    for (id, result) in listed {
        let stored = result.map_err(|e| Trouble::Failed(format!("list: {id}: {e}")))?;
        check(stored.record.proxy == id, || {
            format!("{id} is listed with {stored:?}")
        })?;
        ids.push(id);
    }
    Ok(sorted(ids))
}

pub(super) fn sorted(mut ids: Vec<ProxyId>) -> Vec<ProxyId> {
    ids.sort();
    ids
}

pub(super) fn check(right: bool, seen: impl FnOnce() -> String) -> CaseResult {
    if right {
        Ok(())
    } else {
        Err(Trouble::Failed(seen()))
    }
}

/// Either a plain value or a result, so that one comparison serves both.
pub(super) trait Answer<T> {
    fn answer(self) -> Result<T, String>;
}

impl<T> Answer<T> for Result<T, StoreError> {
    fn answer(self) -> Result<T, String> {
        self.map_err(|error| format!("{:?}: {error}", error.kind))
    }
}

impl Answer<Self> for Vec<ProxyId> {
    fn answer(self) -> Result<Self, String> {
        Ok(self)
    }
}

pub(super) fn same<T: PartialEq + fmt::Debug>(
    what: &str,
    got: impl Answer<T>,
    expected: T,
) -> CaseResult {
    match got.answer() {
        Ok(got) => check(got == expected, || {
            format!("{what}: {got:?} instead of {expected:?}")
        }),
        Err(error) => Err(Trouble::Failed(format!("{what}: {error}"))),
    }
}

pub(super) fn conflict<T: fmt::Debug>(what: &str, got: Result<T, StoreError>) -> CaseResult {
    failed(what, got, StoreErrorKind::Conflict)
}

pub(super) fn failed<T: fmt::Debug>(
    what: &str,
    got: Result<T, StoreError>,
    kind: StoreErrorKind,
) -> CaseResult {
    match got {
        Err(error) if error.kind == kind => Ok(()),
        other => Err(Trouble::Failed(format!(
            "{what}: {other:?} instead of {kind:?}"
        ))),
    }
}

pub(super) fn proxy(namespace: &str, name: &str) -> ProxyId {
    ProxyId::new(namespace, name).expect("names of the suite are legal")
}

/// A record that differs from others by its number alone.
pub(super) fn numbered(id: &ProxyId, number: u32) -> Record {
    let installation: Installation = "suite".parse().expect("a legal installation");
    let uid = MachineUid::standalone(&installation, id, 1);
    Record {
        last_attempt: number,
        ..Record::new(uid, installation, id.clone())
    }
}

/// A record with every field set.
pub(super) fn full_record(id: &ProxyId) -> Record {
    let claim = Claim {
        provider: "lab".parse().expect("a legal provider name"),
        cluster: ClusterId::new("cluster \"one\"\n"),
        slot: Slot::new("../101"),
        host: Some(egress_core::Host::new("node-é")),
        attempt: 3,
        standing: Standing::Accepted,
        handles: vec![egress_core::Handle {
            step: "clone".into(),
            id: "UPID:1:2".into(),
        }],
        mac: Some("02:00:00:00:00:01".into()),
        seed: Some(egress_core::SeedVolume {
            name: "seed.iso".into(),
            location: "local".into(),
        }),
        unsettled: false,
        retiring: Some(egress_core::machine::Retirement::SpecChanged),
    };
    let spent = Record {
        claim: Some(claim.clone()),
        ..numbered(id, 2)
    }
    .without_claim(egress_core::machine::SpentWhy::Freed);
    Record {
        claim: Some(claim),
        proven: Some(Proven {
            address: ([192, 0, 2, 1], 3128).into(),
            egress: Some([198, 51, 100, 7].into()),
            credential_generation: 4,
        }),
        ..spent
    }
}
