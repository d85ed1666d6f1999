//! From what the core says of a Proxy to the status that people read.

use super::{rules::MAX_ADDRESSES, schema::MAX_MESSAGE_CHARS};
use crate::v1alpha1::{Condition, MachineStatus, Phase, ProxyStatus};
use egress_core::{plan, status as core};
use jiff::Timestamp;

/// Who writes what the operator writes.
pub const FIELD_MANAGER: &str = "egress-proxies";

impl ProxyStatus {
    /// The status that says what the core says: the machine at a provider of this kind,
    /// conditions with the time since when they hold, as `before` has it where nothing changed.
    /// The same input gives the same status, whatever `now` is, while no condition changes.
    /// Where the machine is stays as `before` has it while the record cannot be read.
    pub fn told(
        told: &core::ProxyStatus,
        kind: Option<&str>,
        before: Option<&Self>,
        now: Timestamp,
    ) -> Self {
        let accepted = told.condition(core::ConditionType::Accepted);
        let unreadable = accepted.is_some_and(|c| c.reason == core::Reason::RecordUnreadable);
        let kept = before.filter(|_| unreadable).cloned();
        let before = before.map(|b| b.conditions.as_slice()).unwrap_or_default();
        let provider_id = || {
            let (kind, provider) = (kind?, told.provider.as_ref()?);
            let machine = told.machine.as_ref()?;
            Some(format!("{kind}://{provider}/{}", machine.id))
        };
        let told = Self {
            phase: Phase::shown(told.phase),
            provider_id: provider_id(),
            machine: told.machine.as_ref().map(MachineStatus::from),
            addresses: told
                .addresses
                .iter()
                .take(MAX_ADDRESSES)
                .map(ToString::to_string)
                .collect(),
            endpoint: told.endpoint.map(|endpoint| endpoint.to_string()),
            egress_ip: told.egress_ip.map(|ip| ip.to_string()),
            conditions: told
                .conditions
                .iter()
                .map(|c| {
                    let fresh = Condition {
                        r#type: format!("{:?}", c.r#type),
                        status: format!("{:?}", c.status),
                        reason: c.reason.to_string(),
                        message: c.message.clone(),
                        last_transition_time: String::new(),
                        observed_generation: Some(told.observed_generation),
                    };
                    condition(fresh, before, now)
                })
                .collect(),
            observed_generation: Some(told.observed_generation),
        };
        // Nobody knows better while the record cannot be read, and clients go on using it.
        match kept {
            Some(kept) => Self {
                provider_id: kept.provider_id,
                machine: kept.machine,
                addresses: kept.addresses,
                endpoint: kept.endpoint,
                egress_ip: kept.egress_ip,
                ..told
            },
            None => told,
        }
    }
}

impl Phase {
    /// The phase as people see it; `None` for the one that is never shown.
    fn shown(phase: plan::Phase) -> Option<Self> {
        Some(match phase {
            plan::Phase::Pending => Self::Pending,
            plan::Phase::Provisioning => Self::Provisioning,
            plan::Phase::Running => Self::Running,
            plan::Phase::Draining => Self::Draining,
            plan::Phase::Deleting => Self::Deleting,
            plan::Phase::Failed => Self::Failed,
            plan::Phase::Gone => return None,
        })
    }
}

impl From<&core::MachineStatus> for MachineStatus {
    fn from(machine: &core::MachineStatus) -> Self {
        Self {
            name: machine.name.clone(),
            id: machine.id.to_string(),
            host: machine.host.as_ref().map(ToString::to_string),
        }
    }
}

/// A condition as it is stored: its message cut to what the definition allows, and the time
/// since when it has its status, taken from `before` where that did not change.
pub fn condition(mut fresh: Condition, before: &[Condition], now: Timestamp) -> Condition {
    let since = before
        .iter()
        .find(|b| b.r#type == fresh.r#type && b.status == fresh.status)
        .map(|b| b.last_transition_time.clone());
    fresh.last_transition_time =
        since.unwrap_or_else(|| now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    cut(&mut fresh.message, MAX_MESSAGE_CHARS);
    fresh
}

/// Cuts a text to at most so many characters, with a mark that something is missing.
pub(super) fn cut(text: &mut String, most: usize) {
    if let Some((at, _)) = text.char_indices().nth(most) {
        text.truncate(at);
        text.pop();
        text.push('…');
    }
}
