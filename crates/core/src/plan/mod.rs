//! `plan`: what is wanted and what is seen, in; what to do next, out.
//!
//! Pure: the same input gives the same output, and planning again after nothing happened
//! gives the same plan. `docs/states.md` has the whole table; each row has a test.
//!
//! ```text
//!            Pending ──claim──▶ Provisioning ──runs, has an address──▶ Running
//!               ▲                    │  ▲                                │
//!               │                    │  └───── stopped: start again ─────┤
//!               └──── claim dropped ─┴── retiring: delete until absent ──┘
//!      deleted at any time: Deleting ──absent and settled──▶ gone
//! ```

mod bring_up;
mod reason;
mod teardown;

#[cfg(test)]
mod tests;

pub use reason::{Phase, Waiting};

use crate::{
    backoff::{SLOWLY, SOON},
    machine::{Claim, ErrorClass, ObservedMachine, Proven, SpentWhy, Standing},
    proxy::{Desired, Intent, Look, Observed, ProviderSight, Recorded, Trouble},
};
use std::{fmt, time::Duration};

/// One thing to be done. A pass carries them out in order; the first that fails, or that is
/// not done yet, ends the pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begin a record: from here on the Proxy cannot vanish without us.
    HoldFinalizer,
    /// Write a claim down before anything is asked for.
    RecordClaim(Claim),
    /// Call the provider's `create` with the recorded claim.
    Create,
    /// Call the provider's `seal`.
    Seal,
    /// Call the provider's `delete`.
    Delete,
    /// Write down what the look showed.
    RecordOutcome(Claim),
    /// Write down that the proxy was proven.
    RecordProven(Proven),
    /// Give the claim up; its slot is spent.
    DropClaim(SpentWhy),
    /// Remove the record: the Proxy may go.
    ReleaseFinalizer,
}

impl Action {
    /// Whether it calls the provider.
    pub const fn is_effect(&self) -> bool {
        matches!(self, Self::Create | Self::Seal | Self::Delete)
    }
}

/// The action as `docs/states.md` and the command `plan` write it.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RecordClaim(claim) => match claim.retiring {
                Some(why) => write!(f, "RecordClaim({:?}, {why:?})", claim.standing),
                None if claim.unsettled => {
                    write!(f, "RecordClaim({:?}, unsettled)", claim.standing)
                }
                None => write!(f, "RecordClaim({:?})", claim.standing),
            },
            Self::RecordOutcome(claim) => write!(f, "RecordOutcome({:?})", claim.standing),
            Self::RecordProven(_) => f.write_str("RecordProven"),
            Self::DropClaim(_)
            | Self::HoldFinalizer
            | Self::Create
            | Self::Seal
            | Self::Delete
            | Self::ReleaseFinalizer => write!(f, "{self:?}"),
        }
    }
}

/// What to do next, and why nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where the Proxy stands.
    pub phase: Phase,
    /// What to do, in order.
    pub actions: Vec<Action>,
    /// What is waited for, if anything.
    pub waiting: Option<Waiting>,
    /// When to look again though nobody asks; `None`: only when something changes.
    pub recheck: Option<Duration>,
}

impl Plan {
    fn new(phase: Phase) -> Self {
        Self {
            phase,
            actions: Vec::new(),
            waiting: None,
            recheck: None,
        }
    }
    fn then(mut self, action: Action) -> Self {
        self.actions.push(action);
        self
    }
    fn waiting(mut self, waiting: Waiting, recheck: Duration) -> Self {
        self.waiting = Some(waiting);
        self.recheck = Some(recheck);
        self
    }
    const fn recheck(mut self, after: Duration) -> Self {
        self.recheck = Some(after);
        self
    }
    /// The plan of which a call failed like this.
    #[must_use]
    pub fn in_trouble(&self, trouble: Trouble) -> Self {
        let looking = false;
        let mut plan = Self {
            waiting: Some(Waiting::Trouble { looking, trouble }),
            ..self.clone()
        };
        plan.phase = plan.phase_in_trouble();
        plan
    }
    /// The phase, where nothing more happens until a person acts and no machine serves.
    fn phase_in_trouble(&self) -> Phase {
        match (&self.waiting, self.phase) {
            (Some(Waiting::Trouble { trouble, .. }), Phase::Pending | Phase::Provisioning)
                if is_failed(trouble.class) =>
            {
                Phase::Failed
            }
            (_, phase) => phase,
        }
    }
    /// Whether nothing is left to do for a Proxy that should be gone.
    pub fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }
}

/// Decides the next step for one Proxy.
pub fn plan(desired: &Desired, seen: &Observed) -> Plan {
    let record = match &seen.recorded {
        Recorded::Unreadable(text) => {
            return Plan::new(Phase::Failed)
                .waiting(Waiting::RecordUnreadable(text.clone()), SLOWLY);
        }
        Recorded::Lost { text, left } => {
            return Plan::new(Phase::Failed)
                .waiting(Waiting::RecordUnreadable(text.clone()), (*left).max(SOON));
        }
        // Whoever is to be forgotten needs no record that fits.
        Recorded::Held(_) if desired.intent == Intent::Abandon => {
            return Plan::new(Phase::Deleting).then(Action::ReleaseFinalizer);
        }
        Recorded::Held(record) if record.proxy != desired.proxy => {
            let text = format!(
                "the record is a copy of that of {}: what it names is not this Proxy's; remove it",
                record.proxy
            );
            return Plan::new(Phase::Failed).waiting(Waiting::RecordUnreadable(text), SLOWLY);
        }
        Recorded::Held(record) if record.installation != desired.installation => {
            let theirs = record.installation.to_string();
            return Plan::new(Phase::Failed).waiting(Waiting::InstallationChanged(theirs), SLOWLY);
        }
        Recorded::Held(record) => Some(record),
        Recorded::Nothing => None,
    };
    match (&desired.intent, record) {
        (Intent::Abandon, _) => Plan::new(Phase::Gone),
        (Intent::Delete, None) => teardown::unrecorded(seen),
        (Intent::Delete, Some(record)) => teardown::plan(record, seen),
        (Intent::Run(spec), record) => bring_up::plan(spec, record, seen),
        (Intent::Paused(_), _) => bring_up::watch(seen, Waiting::Suspended),
        (Intent::Hold(findings), _) => bring_up::watch(seen, Waiting::Rejected(findings.clone())),
    }
}

/// The claim as it must stand before a creating request may be sent for it; `None` when it
/// stands so already. Before any but the first request it says that it is unsettled: a machine
/// that is seen then may come from another one.
fn about_to_send(claim: &Claim, seen: &Observed) -> Option<Claim> {
    let first = claim.standing == Standing::Unsent || seen.history.is_unsent(claim.attempt);
    let sent = Claim {
        standing: Standing::Sent,
        handles: Vec::new(),
        unsettled: claim.unsettled || !first,
        ..claim.clone()
    };
    (sent != *claim).then_some(sent)
}

/// The claim with this machine at its place: seen there, where the machine bears its mark.
fn with_sight(claim: &Claim, machine: &ObservedMachine, seen: &Observed) -> Claim {
    if machine.attempt != Some(claim.attempt) || claim.standing >= Standing::Seen {
        return claim.clone();
    }
    Claim {
        standing: Standing::Seen,
        unsettled: !teardown::may_land_for(claim, seen).is_zero(),
        ..claim.clone()
    }
}

/// The answer of a look, or the plan that follows from there being none.
fn answered<'a, T>(phase: Phase, look: &'a Look<T>, seen: &Observed) -> Result<&'a T, Plan> {
    let trouble = match look {
        Look::Seen(answer) => return Ok(answer),
        Look::Failed(trouble) => trouble.clone(),
        Look::NotAsked if seen.provider == ProviderSight::Unconfigured => {
            return Err(Plan::new(phase).waiting(Waiting::ProviderUnconfigured, SLOWLY));
        }
        Look::NotAsked => {
            return Err(held_back(phase, seen).unwrap_or_else(|| {
                let why = "it was not looked at in this pass".to_owned();
                Plan::new(phase).waiting(Waiting::Undecided(why), SOON)
            }));
        }
    };
    let wait = seen
        .history
        .holding(seen.now)
        .map_or(SOON, |f| f.retry_at.saturating_sub(seen.now));
    Err(Plan::new(phase).waiting(
        Waiting::Trouble {
            looking: true,
            trouble,
        },
        wait,
    ))
}

/// The plan while an earlier failure forbids another call.
fn held_back(phase: Phase, seen: &Observed) -> Option<Plan> {
    let failure = seen.history.holding(seen.now)?;
    let wait = failure.retry_at.saturating_sub(seen.now);
    let (looking, trouble) = (failure.looking, failure.trouble.clone());
    Some(Plan::new(phase).waiting(Waiting::Trouble { looking, trouble }, wait))
}

/// Whether repeating the failed call cannot help until someone changed something.
const fn is_failed(class: ErrorClass) -> bool {
    matches!(class, ErrorClass::Permanent)
}
