//! The cases, in a file for each letter of the rules.

mod creation;
mod deletion;
mod listing;
mod reading;
mod restraint;
mod strangers;
mod timing;
mod trouble;

use super::Case;
use crate::{Capabilities, UserData};

/// Every case, ordered by rule.
pub(super) fn all() -> Vec<Case> {
    let mut all: Vec<Case> = [
        creation::cases(),
        restraint::cases(),
        reading::cases(),
        deletion::cases(),
        listing::cases(),
        trouble::cases(),
        timing::cases(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let order = |case: &Case| "CGDLETO".find(&case.rule[..1]);
    all.sort_by_key(|case| (order(case), case.rule));
    all
}

fn always(_: &Capabilities) -> bool {
    true
}

fn seeded(capabilities: &Capabilities) -> bool {
    capabilities.user_data == UserData::NocloudIso
}

fn lands_late(capabilities: &Capabilities) -> bool {
    !capabilities.late_create.settle().is_zero()
}
