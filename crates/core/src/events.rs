//! Events: the difference of two statuses, told after the new one is saved.

use crate::status::{Condition, ConditionStatus, ConditionType, ProxyStatus, Reason};
use serde::Serialize;

/// Whether an event is good news.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum EventKind {
    /// Things go on as they should.
    Normal,
    /// Someone should know.
    Warning,
}

/// Something happened to a Proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Good news or not.
    pub kind: EventKind,
    /// The reason of the condition that changed.
    pub reason: Reason,
    /// The condition's sentence.
    pub message: String,
}

/// What changed from one status to the next: one event for each condition whose status or
/// reason differs. `Ready` says nothing that `Serving` does not say until full probes exist,
/// and a condition that only follows another one is not told twice.
pub fn events(old: Option<&ProxyStatus>, new: &ProxyStatus) -> Vec<Event> {
    let old = old.map_or(&[][..], |old| &old.conditions);
    differences(old, &new.conditions)
}

/// The same from conditions alone, as they were kept.
pub fn differences(old: &[Condition], new: &[Condition]) -> Vec<Event> {
    new.iter()
        .filter(|c| c.r#type != ConditionType::Ready)
        .filter(|c| {
            !matches!(
                c.reason,
                Reason::NotProvisioned | Reason::NotAsked | Reason::Pending
            )
        })
        .filter(|c| {
            old.iter()
                .find(|before| before.r#type == c.r#type)
                .is_none_or(|before| (before.status, before.reason) != (c.status, c.reason))
        })
        .map(|c| Event {
            kind: if c.status == ConditionStatus::True || is_on_its_way(c.reason) {
                EventKind::Normal
            } else {
                EventKind::Warning
            },
            reason: c.reason,
            message: c.message.clone(),
        })
        .collect()
}

/// A reason that only says that work goes on.
const fn is_on_its_way(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Creating
            | Reason::TaskRunning
            | Reason::NoAddress
            | Reason::HalfMade
            | Reason::SpecChanged
            | Reason::ProviderChanged
            | Reason::Deleting
            | Reason::CreateMayLand
            | Reason::Suspended
            | Reason::Abandoned
            | Reason::Starting
            | Reason::Busy
    )
}

#[cfg(test)]
mod tests;
