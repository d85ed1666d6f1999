//! Damaged records, many records, many writers.

use super::{
    CaseResult, Harness, Trouble,
    scene::{
        check, corrupted, failed, load, names, numbered, only_winner, proxy, same, saved, sorted,
    },
};
use crate::store::{StoreErrorKind, Stored};
use egress_core::ProxyId;
use std::sync::Arc;

pub(super) async fn one_unreadable_record_hides_no_other(harness: &dyn Harness) -> CaseResult {
    let store = harness.empty().await;
    let ids = [proxy("shop", "a"), proxy("shop", "b"), proxy("shop", "c")];
    for id in &ids {
        saved(&*store, id, &numbered(id, 1), None).await?;
    }
    let store = corrupted(harness, store, &ids[1]).await?;
    let listed = store
        .list()
        .await
        .map_err(|e| Trouble::Failed(format!("list: {e}")))?;
    for id in &ids {
        let seen = listed
            .iter()
            .find(|(listed, _)| listed == id)
            .map(|(_, result)| result);
        let right = match seen {
            Some(Ok(stored)) => *id != ids[1] && stored.record == numbered(id, 1),
            Some(Err(error)) => *id == ids[1] && error.kind == StoreErrorKind::Corrupt,
            None => false,
        };
        check(right, || format!("{id} is listed as {seen:?}"))?;
    }
    load(&*store, &ids[0]).await?;
    failed("load", store.load(&ids[1]).await, StoreErrorKind::Corrupt)
}

pub(super) async fn an_unreadable_record_is_never_overwritten(harness: &dyn Harness) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let version = saved(&*store, &id, &numbered(&id, 1), None).await?;
    let store = corrupted(harness, store, &id).await?;
    for expected in [None, Some(&version)] {
        let save = store.save(&id, &numbered(&id, 2), expected).await;
        failed("save", save, StoreErrorKind::Corrupt)?;
    }
    failed(
        "remove",
        store.remove(&id, &version).await,
        StoreErrorKind::Corrupt,
    )?;
    failed("load", store.load(&id).await, StoreErrorKind::Corrupt)?;
    let store = harness.reopen(store).await;
    failed(
        "load after reopening",
        store.load(&id).await,
        StoreErrorKind::Corrupt,
    )
}

pub(super) async fn many_records_written_at_once_are_all_listed(
    harness: &dyn Harness,
) -> CaseResult {
    let store = harness.empty().await;
    let ids: Vec<ProxyId> = (0..200u32)
        .map(|n| proxy(&format!("n{}", n % 7), &format!("p{n}")))
        .collect();
    let mut writes = tokio::task::JoinSet::new();
    for id in ids.clone() {
        let store = Arc::clone(&store);
        writes.spawn(async move { store.save(&id, &numbered(&id, 1), None).await });
    }
    for saved in writes.join_all().await {
        saved.map_err(|e| Trouble::Failed(format!("save: {e}")))?;
    }
    same("list", names(&*store).await?, sorted(ids.clone()))?;
    let store = harness.reopen(store).await;
    same("list after reopening", names(&*store).await?, sorted(ids))
}

pub(super) async fn of_many_writers_exactly_one_wins_each_version(
    harness: &dyn Harness,
) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let mut version = saved(&*store, &id, &numbered(&id, 0), None).await?;
    for round in 1..=10u32 {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..8 {
            let (store, id, version) = (Arc::clone(&store), id.clone(), version.clone());
            let record = numbered(&id, round * 100 + writer);
            writers.spawn(async move {
                (
                    record.clone(),
                    store.save(&id, &record, Some(&version)).await,
                )
            });
        }
        version = only_winner(&*store, &id, writers.join_all().await).await?;
    }
    Ok(())
}

pub(super) async fn of_many_creators_exactly_one_wins(harness: &dyn Harness) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let (store, id, record) = (Arc::clone(&store), id.clone(), numbered(&id, writer));
        writers.spawn(async move { (record.clone(), store.save(&id, &record, None).await) });
    }
    only_winner(&*store, &id, writers.join_all().await).await?;
    Ok(())
}

pub(super) async fn of_a_writer_and_a_remover_exactly_one_wins(
    harness: &dyn Harness,
) -> CaseResult {
    let store = harness.empty().await;
    for round in 0..20 {
        let id = proxy("shop", &format!("p{round}"));
        let version = saved(&*store, &id, &numbered(&id, 1), None).await?;
        let changed = numbered(&id, 2);
        let (save, remove) = tokio::join!(
            store.save(&id, &changed, Some(&version)),
            store.remove(&id, &version),
        );
        let found = store.load(&id).await;
        let right = match (&save, &remove, &found) {
            (Ok(new), Err(lost), Ok(Some(stored))) => {
                lost.kind == StoreErrorKind::Conflict && stored.version == *new
            }
            (Err(lost), Ok(()), Ok(None)) => lost.kind == StoreErrorKind::Conflict,
            _ => false,
        };
        check(right, || {
            format!("save {save:?}, remove {remove:?}, then {found:?}")
        })?;
    }
    Ok(())
}

pub(super) async fn a_dropped_save_has_happened_or_not_for_all_who_look_later(
    harness: &dyn Harness,
) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let mut stored = Stored {
        record: numbered(&id, 0),
        version: saved(&*store, &id, &numbered(&id, 0), None).await?,
    };
    for round in 1..=50 {
        let next = numbered(&id, round);
        {
            let mut save = store.save(&id, &next, Some(&stored.version));
            // Polled once, so that it has begun, then dropped.
            let _ = std::future::poll_fn(|cx| std::task::Poll::Ready(save.as_mut().poll(cx))).await;
        }
        let seen = load(&*store, &id).await?;
        check(seen == stored || seen.record == next, || {
            format!("round {round}: {seen:?}")
        })?;
        let again = load(&*store, &id).await?;
        check(again == seen, || {
            format!("round {round}: first {seen:?}, then {again:?}")
        })?;
        let version = saved(&*store, &id, &next, Some(&seen.version)).await?;
        stored = Stored {
            record: next,
            version,
        };
    }
    let store = harness.reopen(store).await;
    same("load after reopening", store.load(&id).await, Some(stored))
}
