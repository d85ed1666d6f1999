//! What a person is told. Output only: nothing here is ever read back for a decision.

pub(crate) mod reason;

pub use reason::Reason;

use crate::{
    machine::{Addresses, Host, MachineKey, MachineState, ProviderName, Slot},
    plan::{Phase, Plan, Waiting},
    proxy::{CredentialSight, Desired, Intent, Observed, ProviderSight, Serving, ServingFault},
};
use serde::{Deserialize, Serialize};
use std::{
    fmt::Write,
    net::{IpAddr, SocketAddr},
};

/// The four conditions of a Proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConditionType {
    /// The manifest is sound and its provider is configured.
    Accepted,
    /// The machine is started and has reported an address.
    Provisioned,
    /// A request to the proxy, authenticated where it has auth, was answered with our key.
    Serving,
    /// The proxy is proven by traffic through it.
    Ready,
}

/// A condition holds, does not, or is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It is not known.
    Unknown,
}

/// One condition, with its closed reason and a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which one.
    pub r#type: ConditionType,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why.
    pub reason: Reason,
    /// Why, for people, with what to do about it.
    pub message: String,
}

/// The machine as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// Its name on the hypervisor.
    pub name: String,
    /// Its slot, in the provider's words.
    pub id: Slot,
    /// The host it lives on, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// Which attempt it is.
    pub attempt: u32,
    /// When it was made, where its provider tells.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub created_at: Option<jiff::Timestamp>,
}

/// The status of a Proxy. Transition times are added by whoever keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyStatus {
    /// Where it stands, in one word.
    pub phase: Phase,
    /// The generation of the manifest that this status speaks of.
    pub observed_generation: i64,
    /// Whether the user paused it: nothing is changed until that is lifted.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub paused: bool,
    /// The provider that holds the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderName>,
    /// The machine, once one is promised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineStatus>,
    /// The machine's addresses.
    pub addresses: Vec<IpAddr>,
    /// Where clients connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<SocketAddr>,
    /// The egress address that a proof observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_ip: Option<IpAddr>,
    /// `Accepted`, `Provisioned`, `Serving`, `Ready`, in this order.
    pub conditions: Vec<Condition>,
}

impl ProxyStatus {
    /// One of the four conditions.
    pub fn condition(&self, r#type: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.r#type == r#type)
    }
}

/// Says how a Proxy stands after a pass that was planned like this.
pub fn status(desired: &Desired, seen: &Observed, plan: &Plan) -> ProxyStatus {
    let record = seen.recorded.record();
    let claim = seen.recorded.claim();
    let endpoint = endpoint(desired, seen).or_else(|| unconfirmed(seen));
    let accepted = accepted(desired, seen, plan);
    let provisioned = provisioned(desired, seen, plan);
    let serving = serving(desired, seen, &provisioned);
    let ready = ready(&serving);
    ProxyStatus {
        phase: plan.phase,
        observed_generation: desired.generation,
        paused: matches!(desired.intent, Intent::Paused(_)),
        provider: claim
            .map(|c| c.provider.clone())
            .or_else(|| desired.spec().map(|s| s.provider.clone())),
        machine: record.zip(claim).map(|(record, claim)| MachineStatus {
            name: MachineKey::new(record.machine_uid.clone())
                .name()
                .to_owned(),
            id: claim.slot.clone(),
            host: seen
                .machine
                .seen()
                .and_then(|m| m.host.clone())
                .or_else(|| claim.host.clone()),
            attempt: claim.attempt,
            created_at: match seen.machine.seen() {
                Some(machine) if machine.created_at.is_some() => machine.created_at,
                _ => seen.history.created_at(claim.attempt),
            },
        }),
        addresses: match seen.machine.seen().map(|m| &m.state) {
            Some(MachineState::Running(Addresses::Reported { addresses, .. })) => addresses.clone(),
            None | Some(MachineState::Running(_) | MachineState::Unknown { .. }) => record
                .and_then(|r| r.proven.as_ref())
                .map(|p| p.address.ip())
                .into_iter()
                .collect(),
            Some(_) => Vec::new(),
        },
        endpoint,
        egress_ip: record
            .and_then(|r| r.proven.as_ref())
            .and_then(|p| p.egress),
        conditions: vec![accepted, provisioned, serving, ready],
    }
}

/// Where the proxy answered last, while its machine cannot be seen.
fn unconfirmed(seen: &Observed) -> Option<SocketAddr> {
    let unseen = matches!(
        seen.machine.seen().map(|m| &m.state),
        None | Some(MachineState::Unknown { .. })
    );
    let proven = seen.recorded.record().and_then(|r| r.proven.as_ref());
    proven.filter(|_| unseen).map(|proven| proven.address)
}

/// Where the proxy is asked, and where clients connect: the best reported address, else the
/// proven one while the machine is silent. A machine that was made from another configuration
/// than is wanted now listens where it was proven.
pub fn endpoint(desired: &Desired, seen: &Observed) -> Option<SocketAddr> {
    let spec = desired.spec();
    let proven = seen.recorded.record().and_then(|r| r.proven.as_ref());
    let before = proven.filter(|_| spec.is_none_or(|spec| seen.is_outdated(spec)));
    let wanted_port = before
        .map(|proven| proven.address.port())
        .or_else(|| spec.and_then(|s| s.port))
        .unwrap_or(crate::proxy_config::DEFAULT_PORT);
    match seen.machine.seen().map(|m| &m.state) {
        Some(MachineState::Running(Addresses::Reported { addresses, port })) => addresses
            .first()
            .map(|ip| SocketAddr::new(*ip, port.unwrap_or(wanted_port))),
        Some(MachineState::Running(Addresses::Unreported)) => seen
            .recorded
            .record()
            .and_then(|r| r.proven.as_ref())
            .map(|p| p.address),
        _ => None,
    }
}

fn condition(
    r#type: ConditionType,
    status: ConditionStatus,
    reason: Reason,
    message: impl Into<String>,
) -> Condition {
    Condition {
        r#type,
        status,
        reason,
        message: message.into(),
    }
}

fn accepted(desired: &Desired, seen: &Observed, plan: &Plan) -> Condition {
    use ConditionStatus::{False, True};
    let no = |reason, message: String| condition(ConditionType::Accepted, False, reason, message);
    match &plan.waiting {
        Some(Waiting::Rejected(findings)) => {
            let all: Vec<String> = findings.iter().map(ToString::to_string).collect();
            no(Reason::Invalid, all.join("; "))
        }
        Some(Waiting::ProviderUnconfigured) => {
            let message = match (seen.recorded.claim(), desired.spec()) {
                (Some(claim), _) => format!(
                    "provider {:?}, which holds the machine, is not configured: add it to the \
                     configuration again",
                    claim.provider.as_str()
                ),
                (None, Some(spec)) => format!(
                    "spec.provider: {:?}: is not configured: add it to the configuration, or \
                     declare the Proxy anew with one that is",
                    spec.provider.as_str()
                ),
                (None, None) => "its provider is not configured".to_owned(),
            };
            no(Reason::ProviderUnconfigured, message)
        }
        Some(Waiting::InstallationChanged(theirs)) => no(
            Reason::InstallationChanged,
            format!(
                "the record belongs to installation {theirs:?}, this is {:?}: nothing is touched; restore the installation id",
                desired.installation.as_str()
            ),
        ),
        Some(Waiting::RecordUnreadable(text)) => no(Reason::RecordUnreadable, text.clone()),
        _ => condition(
            ConditionType::Accepted,
            True,
            Reason::Accepted,
            "the manifest is sound",
        ),
    }
}

fn provisioned(desired: &Desired, seen: &Observed, plan: &Plan) -> Condition {
    use ConditionStatus::{False, True, Unknown};
    let say =
        |status, reason, message| condition(ConditionType::Provisioned, status, reason, message);
    let machine = seen.machine.seen();
    if plan.phase == Phase::Running && has_address(seen) {
        let mut message = "the machine runs and has an address".to_owned();
        if let Some(lock) = machine.and_then(|m| m.busy.as_deref()) {
            let _ = write!(message, "; the hypervisor holds it ({lock})");
        }
        let outdated = desired.spec().is_some_and(|spec| seen.is_outdated(spec));
        if matches!(desired.intent, Intent::Paused(_)) {
            let (_, paused) = reason::of(&Waiting::Suspended);
            let _ = write!(message, "; {paused}");
            if outdated {
                message.push_str(", then the machine is replaced by one of the present spec");
            }
            return say(True, Reason::Provisioned, message);
        }
        let Some(why) = seen.kept_for().filter(|_| outdated) else {
            return say(True, Reason::Provisioned, message);
        };
        let _ = write!(message, "; it is not replaced before this is mended: {why}");
        return say(True, Reason::ReplacementRefused, message);
    }
    if let Some(waiting) = &plan.waiting {
        let (reason, message) = reason::of(waiting);
        let unseen = matches!(
            waiting,
            Waiting::Trouble { looking: true, .. }
                | Waiting::Undecided(_)
                | Waiting::RecordUnreadable(_)
                | Waiting::InstallationChanged(_)
                | Waiting::ProviderUnconfigured
        );
        return say(if unseen { Unknown } else { False }, reason, message);
    }
    if desired.intent == Intent::Abandon {
        return say(Unknown, Reason::Abandoned, abandoned(seen));
    }
    if plan.phase == Phase::Deleting {
        let message = "the machine is gone; the record is being released";
        return say(False, Reason::Deleting, message.into());
    }
    say(False, Reason::Pending, "the next look decides".into())
}

/// Whether the machine runs and reports an address, or reported one when it was proven.
fn has_address(seen: &Observed) -> bool {
    match seen.machine.seen().map(|m| &m.state) {
        Some(MachineState::Running(addresses)) => {
            let proven = seen.recorded.record().is_some_and(|r| r.proven.is_some());
            addresses.best().is_some() || (*addresses == Addresses::Unreported && proven)
        }
        _ => false,
    }
}

/// What is left behind by a Proxy that is forgotten.
fn abandoned(seen: &Observed) -> String {
    seen.recorded.claim().map_or_else(
        || "the Proxy is forgotten; no machine was promised".to_owned(),
        |claim| {
            let (slot, provider) = (&claim.slot, &claim.provider);
            // After this nothing else leads to the machine: its name is the whole of it.
            let place = match seen.provider {
                ProviderSight::Configured { kind, .. } => format!("{kind}://{provider}/{slot}"),
                ProviderSight::Unconfigured => {
                    format!("{slot} of the provider {provider}, which is not configured")
                }
            };
            format!(
                "the Proxy is forgotten and its machine left behind: {place}, attempt {}",
                claim.attempt
            )
        },
    )
}

fn serving(desired: &Desired, seen: &Observed, provisioned: &Condition) -> Condition {
    use ConditionStatus::{False, True, Unknown};
    let say = |status, reason, message: String| {
        condition(ConditionType::Serving, status, reason, message)
    };
    if provisioned.status != True {
        // Not seen is not gone: what was proven stands until the machine is known to be off.
        let status = if provisioned.status == Unknown {
            Unknown
        } else {
            False
        };
        let message = match unconfirmed(seen) {
            Some(last) => format!(
                "the machine is not known to run; {last} answered before, and was not asked in the last pass"
            ),
            None => "the machine is not known to run".into(),
        };
        return say(status, Reason::NotProvisioned, message);
    }
    if seen.credential == CredentialSight::Lost {
        return say(
            Unknown,
            Reason::CredentialLost,
            "the generated password is lost, so the proxy cannot be asked; it keeps running for \
             clients that know the password; restore it from a backup, or delete the Proxy to get a \
             new one"
                .into(),
        );
    }
    if let CredentialSight::Missing(what) = &seen.credential {
        return say(Unknown, Reason::SecretMissing, what.clone());
    }
    match &seen.serving {
        Serving::Answered { endpoint, .. } => say(
            True,
            Reason::Serving,
            format!("{endpoint} answered with the machine's key"),
        ),
        Serving::Failed {
            endpoint,
            fault,
            text,
        } => {
            let proven = seen
                .recorded
                .record()
                .and_then(|r| r.proven.as_ref())
                .is_some_and(|p| p.address == *endpoint);
            let threshold = desired.spec().map_or(1, |s| s.failure_threshold);
            let faults = seen.history.serving_faults();
            // No answer may be a lost packet; an answer that is wrong is wrong at once.
            let soft = matches!(fault, ServingFault::PortClosed | ServingFault::Slow);
            if !proven && soft && faults < threshold.max(5) {
                say(
                    False,
                    Reason::Starting,
                    format!("{endpoint} has not answered yet: {text}"),
                )
            } else if proven && soft && faults < threshold {
                say(
                    True,
                    Reason::Serving,
                    format!(
                        "{endpoint} answered before; failed {faults} of {threshold} times since: {text}"
                    ),
                )
            } else {
                let reason = match fault {
                    ServingFault::PortClosed => Reason::PortClosed,
                    ServingFault::AuthRejected => Reason::AuthRejected,
                    ServingFault::WrongProxy => Reason::WrongProxy,
                    ServingFault::Slow => Reason::Slow,
                };
                let remedy = match fault {
                    ServingFault::AuthRejected => rejected(desired, seen),
                    _ => "",
                };
                say(False, reason, format!("{endpoint}: {text}{remedy}"))
            }
        }
        Serving::NotAsked => say(
            Unknown,
            Reason::NotAsked,
            "the proxy was not asked in the last pass".into(),
        ),
    }
}

/// What follows when a proxy refuses the credentials that are wanted now.
fn rejected(desired: &Desired, seen: &Observed) -> &'static str {
    match (&desired.intent, seen.provider) {
        (Intent::Run(_), ProviderSight::Configured { seals: false, .. }) => {
            "; its credentials changed since it was started: it is started again with the present ones"
        }
        (Intent::Run(_), _) => {
            "; it keeps the credentials it was made with: restore them, or delete the Proxy and \
             declare it again to have a machine with the present ones"
        }
        _ => {
            "; its credentials changed since it was started, and nothing is changed while it is paused"
        }
    }
}

fn ready(serving: &Condition) -> Condition {
    let say =
        |status, reason, message: &str| condition(ConditionType::Ready, status, reason, message);
    match serving.status {
        ConditionStatus::False => say(
            ConditionStatus::False,
            Reason::NotServing,
            "the proxy does not serve",
        ),
        ConditionStatus::True | ConditionStatus::Unknown => say(
            ConditionStatus::Unknown,
            Reason::NotProven,
            "this version does not probe traffic through the proxy; Serving is what is known",
        ),
    }
}

/// The wait until the next look, for people.
pub(crate) fn in_words(wait: std::time::Duration) -> String {
    let secs = wait.as_secs();
    match secs {
        0 => "less than a second".into(),
        1..=119 => format!("{secs} s"),
        _ => format!("{} min", secs.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests;
