//! The suite for stores: what [`Store`] promises, as cases that any store can run.
//!
//! ```no_run
//! # use egress_engine::store::{conformance, Store};
//! # async fn example(harness: &dyn conformance::Harness) {
//! let report = conformance::run(harness).await;
//! assert!(report.failures().is_empty(), "{report}");
//! # }
//! ```

use super::{Store, StoreErrorKind, Stored, Version};
use egress_core::{
    Claim, ClusterId, Installation, MachineUid, Proven, ProxyId, Record, Slot, Standing,
};
use std::{fmt, pin::Pin, sync::Arc};

/// What the suite needs of a store beside the store.
#[async_trait::async_trait]
pub trait Harness: Send + Sync {
    /// A store without records, of its own for every call.
    async fn empty(&self) -> Arc<dyn Store>;
    /// The same records as the next process finds them. The old store is not used again.
    async fn reopen(&self, store: Arc<dyn Store>) -> Arc<dyn Store>;
    /// Makes the record of this Proxy unreadable behind the store's back, whether there is
    /// one or not, then reopens. `None` where the store cannot be damaged.
    async fn corrupt(&self, store: Arc<dyn Store>, id: &ProxyId) -> Option<Arc<dyn Store>>;
}

/// How one case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store keeps this promise.
    Passed,
    /// It does not: what was seen.
    Failed(String),
    /// The harness could not bring the case about: which ability is missing.
    NotRun(&'static str),
}

/// The outcome of every case, in the suite's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Name and outcome of each case.
    pub cases: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// The names of the cases that failed.
    pub fn failures(&self) -> Vec<&'static str> {
        let failed = |outcome: &Outcome| matches!(outcome, Outcome::Failed(_));
        self.cases
            .iter()
            .filter(|(_, o)| failed(o))
            .map(|(name, _)| *name)
            .collect()
    }
    /// The names of the cases that were not run.
    pub fn not_run(&self) -> Vec<&'static str> {
        let skipped = |outcome: &Outcome| matches!(outcome, Outcome::NotRun(_));
        self.cases
            .iter()
            .filter(|(_, o)| skipped(o))
            .map(|(name, _)| *name)
            .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.cases {
            match outcome {
                Outcome::Passed => writeln!(f, "passed   {name}")?,
                Outcome::Failed(why) => writeln!(f, "FAILED   {name}: {why}")?,
                Outcome::NotRun(why) => writeln!(f, "not run  {name}: {why}")?,
            }
        }
        Ok(())
    }
}

/// Why a case did not pass.
enum Trouble {
    Failed(String),
    NotRun(&'static str),
}

type CaseResult = Result<(), Trouble>;
type CaseFuture<'a> = Pin<Box<dyn Future<Output = CaseResult> + Send + 'a>>;

macro_rules! suite {
    ($($case:ident),* $(,)?) => {
        /// The name of every case.
        pub const CASES: &[&str] = &[$(stringify!($case)),*];
        const RUNS: &[for<'a> fn(&'a dyn Harness) -> CaseFuture<'a>] =
            &[$(|harness| Box::pin($case(harness))),*];
    };
}

suite! {
    an_empty_store_has_no_records,
    a_saved_record_is_loaded_as_it_was,
    a_record_survives_a_reopening_with_its_version,
    a_save_with_an_old_version_changes_nothing,
    creating_where_a_record_is_changes_nothing,
    changing_what_is_not_there_changes_nothing,
    a_removed_record_is_gone_after_a_reopening_too,
    a_removal_with_an_old_version_changes_nothing,
    removing_what_is_gone_is_a_conflict,
    a_version_stays_wrong_after_its_record_was_removed_and_made_anew,
    the_same_content_saved_again_has_a_new_version,
    names_that_look_alike_have_records_of_their_own,
    the_longest_names_are_kept,
    one_unreadable_record_hides_no_other,
    an_unreadable_record_is_never_overwritten,
    many_records_written_at_once_are_all_listed,
    of_many_writers_exactly_one_wins_each_version,
    of_many_creators_exactly_one_wins,
    of_a_writer_and_a_remover_exactly_one_wins,
    a_dropped_save_has_happened_or_not_for_all_who_look_later,
}

/// Runs every case on stores of its own.
pub async fn run(harness: &dyn Harness) -> Report {
    let mut cases = Vec::new();
    for (name, case) in CASES.iter().zip(RUNS) {
        let outcome = match case(harness).await {
            Ok(()) => Outcome::Passed,
            Err(Trouble::Failed(why)) => Outcome::Failed(why),
            Err(Trouble::NotRun(why)) => Outcome::NotRun(why),
        };
        cases.push((*name, outcome));
    }
    Report { cases }
}

async fn an_empty_store_has_no_records(harness: &dyn Harness) -> CaseResult {
    let store = harness.empty().await;
    same("load", store.load(&proxy("shop", "a")).await, None)?;
    same("list", names(&*store).await?, Vec::new())
}

async fn a_saved_record_is_loaded_as_it_was(harness: &dyn Harness) -> CaseResult {
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

async fn a_record_survives_a_reopening_with_its_version(harness: &dyn Harness) -> CaseResult {
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

async fn a_save_with_an_old_version_changes_nothing(harness: &dyn Harness) -> CaseResult {
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

async fn creating_where_a_record_is_changes_nothing(harness: &dyn Harness) -> CaseResult {
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

async fn changing_what_is_not_there_changes_nothing(harness: &dyn Harness) -> CaseResult {
    let store = harness.empty().await;
    let (id, other) = (proxy("shop", "a"), proxy("shop", "b"));
    let version = saved(&*store, &other, &numbered(&other, 1), None).await?;
    refused(&*store, &id, &numbered(&id, 1), Some(&version)).await?;
    same("load", store.load(&id).await, None)?;
    same("list", names(&*store).await?, vec![other])
}

async fn a_removed_record_is_gone_after_a_reopening_too(harness: &dyn Harness) -> CaseResult {
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

async fn a_removal_with_an_old_version_changes_nothing(harness: &dyn Harness) -> CaseResult {
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

async fn removing_what_is_gone_is_a_conflict(harness: &dyn Harness) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let version = saved(&*store, &id, &numbered(&id, 1), None).await?;
    same("remove", store.remove(&id, &version).await, ())?;
    conflict("second remove", store.remove(&id, &version).await)
}

async fn a_version_stays_wrong_after_its_record_was_removed_and_made_anew(
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

async fn the_same_content_saved_again_has_a_new_version(harness: &dyn Harness) -> CaseResult {
    let store = harness.empty().await;
    let id = proxy("shop", "a");
    let first = saved(&*store, &id, &numbered(&id, 1), None).await?;
    let second = saved(&*store, &id, &numbered(&id, 1), Some(&first)).await?;
    check(first != second, || format!("both are {second:?}"))?;
    refused(&*store, &id, &numbered(&id, 2), Some(&first)).await
}

async fn names_that_look_alike_have_records_of_their_own(harness: &dyn Harness) -> CaseResult {
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

async fn the_longest_names_are_kept(harness: &dyn Harness) -> CaseResult {
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

async fn one_unreadable_record_hides_no_other(harness: &dyn Harness) -> CaseResult {
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

async fn an_unreadable_record_is_never_overwritten(harness: &dyn Harness) -> CaseResult {
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

async fn many_records_written_at_once_are_all_listed(harness: &dyn Harness) -> CaseResult {
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

async fn of_many_writers_exactly_one_wins_each_version(harness: &dyn Harness) -> CaseResult {
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

async fn of_many_creators_exactly_one_wins(harness: &dyn Harness) -> CaseResult {
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

async fn of_a_writer_and_a_remover_exactly_one_wins(harness: &dyn Harness) -> CaseResult {
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

async fn a_dropped_save_has_happened_or_not_for_all_who_look_later(
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

async fn only_winner(
    store: &dyn Store,
    id: &ProxyId,
    results: Vec<(Record, Result<Version, super::StoreError>)>,
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

async fn corrupted(
    harness: &dyn Harness,
    store: Arc<dyn Store>,
    id: &ProxyId,
) -> Result<Arc<dyn Store>, Trouble> {
    let damaged = harness.corrupt(store, id).await;
    damaged.ok_or(Trouble::NotRun("the harness cannot damage a record"))
}

async fn saved(
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

async fn refused(
    store: &dyn Store,
    id: &ProxyId,
    record: &Record,
    expected: Option<&Version>,
) -> CaseResult {
    conflict("save", store.save(id, record, expected).await)
}

async fn load(store: &dyn Store, id: &ProxyId) -> Result<Stored, Trouble> {
    match store.load(id).await {
        Ok(Some(stored)) => Ok(stored),
        other => Err(Trouble::Failed(format!("load of {id}: {other:?}"))),
    }
}

async fn names(store: &dyn Store) -> Result<Vec<ProxyId>, Trouble> {
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

fn sorted(mut ids: Vec<ProxyId>) -> Vec<ProxyId> {
    ids.sort();
    ids
}

fn check(right: bool, seen: impl FnOnce() -> String) -> CaseResult {
    if right {
        Ok(())
    } else {
        Err(Trouble::Failed(seen()))
    }
}

/// Either a plain value or a result, so that one comparison serves both.
trait Answer<T> {
    fn answer(self) -> Result<T, String>;
}

impl<T> Answer<T> for Result<T, super::StoreError> {
    fn answer(self) -> Result<T, String> {
        self.map_err(|error| format!("{:?}: {error}", error.kind))
    }
}

impl Answer<Self> for Vec<ProxyId> {
    fn answer(self) -> Result<Self, String> {
        Ok(self)
    }
}

fn same<T: PartialEq + fmt::Debug>(what: &str, got: impl Answer<T>, expected: T) -> CaseResult {
    match got.answer() {
        Ok(got) => check(got == expected, || {
            format!("{what}: {got:?} instead of {expected:?}")
        }),
        Err(error) => Err(Trouble::Failed(format!("{what}: {error}"))),
    }
}

fn conflict<T: fmt::Debug>(what: &str, got: Result<T, super::StoreError>) -> CaseResult {
    failed(what, got, StoreErrorKind::Conflict)
}

fn failed<T: fmt::Debug>(
    what: &str,
    got: Result<T, super::StoreError>,
    kind: StoreErrorKind,
) -> CaseResult {
    match got {
        Err(error) if error.kind == kind => Ok(()),
        other => Err(Trouble::Failed(format!(
            "{what}: {other:?} instead of {kind:?}"
        ))),
    }
}

fn proxy(namespace: &str, name: &str) -> ProxyId {
    ProxyId::new(namespace, name).expect("names of the suite are legal")
}

/// A record that differs from others by its number alone.
fn numbered(id: &ProxyId, number: u32) -> Record {
    let installation: Installation = "suite".parse().expect("a legal installation");
    let uid = MachineUid::standalone(&installation, id, 1);
    Record {
        last_attempt: number,
        ..Record::new(uid, installation, id.clone())
    }
}

/// A record with every field set.
fn full_record(id: &ProxyId) -> Record {
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
            address: [192, 0, 2, 1].into(),
            egress: Some([198, 51, 100, 7].into()),
            credential_generation: 4,
        }),
        ..spent
    }
}
