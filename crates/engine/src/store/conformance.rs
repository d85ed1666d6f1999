//! The suite for stores: what [`Store`] promises, as cases that any store can run.
//!
//! ```no_run
//! # use egress_engine::store::{conformance, Store};
//! # async fn example(harness: &dyn conformance::Harness) {
//! let report = conformance::run(harness).await;
//! assert!(report.failures().is_empty(), "{report}");
//! # }
//! ```

mod crowd;
mod records;
mod scene;

use super::Store;
use crowd::{
    a_dropped_save_has_happened_or_not_for_all_who_look_later,
    an_unreadable_record_is_never_overwritten, many_records_written_at_once_are_all_listed,
    of_a_writer_and_a_remover_exactly_one_wins, of_many_creators_exactly_one_wins,
    of_many_writers_exactly_one_wins_each_version, one_unreadable_record_hides_no_other,
};
use egress_core::ProxyId;
use records::{
    a_record_survives_a_reopening_with_its_version, a_removal_with_an_old_version_changes_nothing,
    a_removed_record_is_gone_after_a_reopening_too, a_save_with_an_old_version_changes_nothing,
    a_saved_record_is_loaded_as_it_was,
    a_version_stays_wrong_after_its_record_was_removed_and_made_anew,
    an_empty_store_has_no_records, changing_what_is_not_there_changes_nothing,
    creating_where_a_record_is_changes_nothing, names_that_look_alike_have_records_of_their_own,
    removing_what_is_gone_is_a_conflict, the_longest_names_are_kept,
    the_same_content_saved_again_has_a_new_version,
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
