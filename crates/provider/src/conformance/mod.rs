//! The suite that tells a provider whether it keeps the contract.
//!
//! [`run`] takes a [`Subject`] (any provider, with or without a test bench) and answers with
//! one [`CaseResult`] a case; [`render`] makes a table of them, [`Table`] one that grows. Cases of the basic tier use
//! the provider alone; those of the extended tier also need a [`Harness`]. Every case makes
//! machines of its own, under names that nothing else has, and removes them; what it leaves
//! behind makes it fail. `docs/provider-contract.md` has the rules.

mod capture;
mod cases;
mod drive;
mod harness;
mod render;
mod run;
mod trial;
mod verdict;

pub use harness::{
    Agent, Credentials, Harness, Landing, Lock, Network, Offered, PowerEvent, Refusal, Stranger,
};
pub use render::{Table, render};
pub use run::{CaseResult, End, Options, Outcome, Subject, run, run_until};
pub use trial::Trial;
pub use verdict::{Miss, Verdict};

use crate::Capabilities;
use std::{fmt, pin::Pin, sync::Arc};

/// What a case needs to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// A provider.
    Basic,
    /// A provider and a harness.
    Extended,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Basic => "basic",
            Self::Extended => "extended",
        })
    }
}

/// The run of a case.
pub type CaseRun = fn(Arc<Trial>) -> Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// One thing that a provider must do, by the rule that says so.
pub struct Case {
    /// The rule's id.
    pub rule: &'static str,
    /// What holds where the rule is kept, as a sentence.
    pub title: &'static str,
    /// What it needs to be run.
    pub tier: Tier,
    /// Whether it applies to a provider with these capabilities.
    pub needs: fn(&Capabilities) -> bool,
    /// Runs it.
    pub run: CaseRun,
}

/// Every case, ordered by rule.
pub fn cases() -> Vec<Case> {
    cases::all()
}
