//! One record at a time.

use super::{
    CaseResult, Harness,
    scene::{
        check, conflict, full_record, load, names, numbered, proxy, refused, same, saved, sorted,
    },
};
use crate::store::Stored;
use egress_core::ProxyId;

pub(super) async fn an_empty_store_has_no_records(harness: &dyn Harness) -> CaseResult {
    let store = harness.empty().await;
    same("load", store.load(&proxy("shop", "a")).await, None)?;
    same("list", names(&*store).await?, Vec::new())
}

pub(super) async fn a_saved_record_is_loaded_as_it_was(harness: &dyn Harness) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let record = full_record(&id);
    let version = saved(&*store, &id, &record, None).await?;
    same(
        "load",
        store.load(&id).await,
        Some(Stored {
            record: record.clone(),
            version,
        }),
    )?;
    let changed = numbered(&id, 2);
    let stored = load(&*store, &id).await?;
    let version = saved(&*store, &id, &changed, Some(&stored.version)).await?;
    same(
        "load",
        store.load(&id).await,
        Some(Stored {
            record: changed,
            version,
        }),
    )
}

pub(super) async fn a_record_survives_a_reopening_with_its_version(
    harness: &dyn Harness,
) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let record = full_record(&id);
    let version = saved(&*store, &id, &record, None).await?;
    let store = harness.reopen(store).await;
    let expected = Stored {
        record: record.clone(),
        version,
    };
    same("load", store.load(&id).await, Some(expected.clone()))?;
    saved(&*store, &id, &numbered(&id, 2), Some(&expected.version)).await?;
    Ok(())
}

pub(super) async fn a_save_with_an_old_version_changes_nothing(
    harness: &dyn Harness,
) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let first = saved(&*store, &id, &numbered(&id, 1), None).await?;
    let second = saved(&*store, &id, &numbered(&id, 2), Some(&first)).await?;
    refused(&*store, &id, &numbered(&id, 3), Some(&first)).await?;
    let expected = Stored {
        record: numbered(&id, 2),
        version: second,
    };
    same("load", store.load(&id).await, Some(expected.clone()))?;
    let store = harness.reopen(store).await;
    same(
        "load after reopening",
        store.load(&id).await,
        Some(expected),
    )
}

pub(super) async fn creating_where_a_record_is_changes_nothing(
    harness: &dyn Harness,
) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let version = saved(&*store, &id, &numbered(&id, 1), None).await?;
    refused(&*store, &id, &numbered(&id, 2), None).await?;
    same(
        "load",
        store.load(&id).await,
        Some(Stored {
            record: numbered(&id, 1),
            version,
        }),
    )
}

pub(super) async fn changing_what_is_not_there_changes_nothing(
    harness: &dyn Harness,
) -> CaseResult {
    let store = harness.empty().await;
    let (id, other) = (proxy("shop", "a"), proxy("shop", "b"));
    let version = saved(&*store, &other, &numbered(&other, 1), None).await?;
    refused(&*store, &id, &numbered(&id, 1), Some(&version)).await?;
    same("load", store.load(&id).await, None)?;
    same("list", names(&*store).await?, vec![other])
}

pub(super) async fn a_removed_record_is_gone_after_a_reopening_too(
    harness: &dyn Harness,
) -> CaseResult {
    let store = harness.empty().await;
    let (id, other) = (proxy("shop", "a"), proxy("shop", "b"));
    let version = saved(&*store, &id, &numbered(&id, 1), None).await?;
    saved(&*store, &other, &numbered(&other, 1), None).await?;
    same("remove", store.remove(&id, &version).await, ())?;
    same("load", store.load(&id).await, None)?;
    let store = harness.reopen(store).await;
    same("load after reopening", store.load(&id).await, None)?;
    same("list after reopening", names(&*store).await?, vec![other])
}

pub(super) async fn a_removal_with_an_old_version_changes_nothing(
    harness: &dyn Harness,
) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let first = saved(&*store, &id, &numbered(&id, 1), None).await?;
    let second = saved(&*store, &id, &numbered(&id, 2), Some(&first)).await?;
    conflict("remove", store.remove(&id, &first).await)?;
    let expected = Stored {
        record: numbered(&id, 2),
        version: second,
    };
    same("load", store.load(&id).await, Some(expected))
}

pub(super) async fn removing_what_is_gone_is_a_conflict(harness: &dyn Harness) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let version = saved(&*store, &id, &numbered(&id, 1), None).await?;
    same("remove", store.remove(&id, &version).await, ())?;
    conflict("second remove", store.remove(&id, &version).await)
}

pub(super) async fn a_version_stays_wrong_after_its_record_was_removed_and_made_anew(
    harness: &dyn Harness,
) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let old = saved(&*store, &id, &numbered(&id, 1), None).await?;
    same("remove", store.remove(&id, &old).await, ())?;
    let store = harness.reopen(store).await;
    let new = saved(&*store, &id, &numbered(&id, 1), None).await?;
    refused(&*store, &id, &numbered(&id, 2), Some(&old)).await?;
    conflict("remove", store.remove(&id, &old).await)?;
    same(
        "load",
        store.load(&id).await,
        Some(Stored {
            record: numbered(&id, 1),
            version: new,
        }),
    )
}

pub(super) async fn the_same_content_saved_again_has_a_new_version(
    harness: &dyn Harness,
) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let first = saved(&*store, &id, &numbered(&id, 1), None).await?;
    let second = saved(&*store, &id, &numbered(&id, 1), Some(&first)).await?;
    check(first != second, || format!("both are {second:?}"))?;
    refused(&*store, &id, &numbered(&id, 2), Some(&first)).await
}

pub(super) async fn names_that_look_alike_have_records_of_their_own(
    harness: &dyn Harness,
) -> CaseResult {
    let store = harness.empty().await;
    let ids = [
        proxy("a", "b"),
        proxy("a", "b.json"),
        proxy("a", "b.j"),
        proxy("a-b", "c"),
        proxy("a", "b-c"),
        proxy("a", "b.c"),
        proxy("b", "a"),
        proxy("records", "identity.json"),
        proxy("lock", "lock"),
    ];
    for (number, id) in (1..).zip(&ids) {
        saved(&*store, id, &numbered(id, number), None).await?;
    }
    let store = harness.reopen(store).await;
    for (number, id) in (1..).zip(&ids) {
        let stored = load(&*store, id).await?;
        check(stored.record == numbered(id, number), || {
            format!("{id} holds {stored:?}")
        })?;
    }
    same("list", names(&*store).await?, sorted(ids.to_vec()))
}

pub(super) async fn the_longest_names_are_kept(harness: &dyn Harness) -> CaseResult {
    let store = harness.empty().await;
    let label = "l".repeat(63);
    let namespace = "n".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}", "l".repeat(61));
    let ids: Vec<ProxyId> = (248..=253)
        .map(|length| proxy(&namespace, longest[253 - length..].trim_matches('.')))
        .collect();
    for id in &ids {
        saved(&*store, id, &numbered(id, 1), None).await?;
    }
    let store = harness.reopen(store).await;
    same("list", names(&*store).await?, sorted(ids.clone()))?;
    for id in &ids {
        let stored = load(&*store, id).await?;
        same("remove", store.remove(id, &stored.version).await, ())?;
    }
    same("list", names(&*store).await?, Vec::new())
}
