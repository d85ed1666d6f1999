//! One pass over one Proxy: look, decide, act, tell. Standalone and cluster run this same
//! function; whoever calls it sees to it that passes of one Proxy never overlap.

use crate::{
    Credentials, PermitSource, Prober, Providers,
    execute::{Acted, Executed, Hands, execute},
    observe::{Eyes, Sight, observe},
    store::{Store, StoreError},
};
use egress_core::{
    ErrorClass, backoff,
    history::History,
    plan::{Plan, Waiting, plan},
    proxy::{Desired, Trouble},
    status::{ProxyStatus, status},
};
use std::{sync::Arc, time::Duration};

/// All that a pass works with.
#[derive(Clone)]
pub struct Parts {
    /// Where records are kept.
    pub store: Arc<dyn Store>,
    /// The configured providers.
    pub providers: Arc<Providers>,
    /// Where passwords are kept.
    pub credentials: Arc<dyn Credentials>,
    /// What asks proxies who they are.
    pub prober: Arc<dyn Prober>,
    /// Where the right to act comes from.
    pub permits: Arc<dyn PermitSource>,
}

impl Parts {
    fn eyes(&self) -> Eyes<'_> {
        Eyes {
            store: self.store.as_ref(),
            providers: &self.providers,
            credentials: self.credentials.as_ref(),
            prober: self.prober.as_ref(),
        }
    }
}

/// How a pass ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How the Proxy stands now.
    pub status: ProxyStatus,
    /// What was planned, for tests and logs.
    pub plan: Plan,
    /// When to look again; `None`: only when something changes.
    pub recheck: Option<Duration>,
    /// Tasks of ours run on its provider.
    pub moving: bool,
    /// Nothing is left: the Proxy may be forgotten.
    pub gone: bool,
    /// The store took a write.
    pub wrote: bool,
}

/// A pass that was cut short by the store. Nothing was changed after the error.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The record could not be read: nothing was looked at.
    #[error("read the record")]
    Read(#[source] StoreError),
    /// The record could not be written.
    #[error("write the record")]
    Write {
        /// Why.
        #[source]
        error: StoreError,
        /// How the Proxy stands, waiting for the store.
        status: Box<ProxyStatus>,
    },
}

impl PassError {
    /// What the store said.
    pub const fn store(&self) -> &StoreError {
        match self {
            Self::Read(error) | Self::Write { error, .. } => error,
        }
    }
}

/// Looks at one Proxy, decides the next step, carries it out.
///
/// `now` is this process's monotonic clock, `history` what it remembers of this Proxy.
pub async fn pass(
    parts: &Parts,
    desired: &Desired,
    now: Duration,
    history: &mut History,
) -> Result<Outcome, PassError> {
    let hands = Hands {
        store: parts.store.as_ref(),
        providers: &parts.providers,
        credentials: parts.credentials.as_ref(),
        permits: parts.permits.as_ref(),
    };
    let mut sight = observe(parts.eyes(), desired, now, history).await?;
    let decided = plan(desired, &sight.seen);
    debug_assert_eq!(
        egress_core::audit::audit(desired, &sight.seen, &decided),
        vec![],
        "{desired:?} {:?} {decided:?}",
        sight.seen
    );
    let acted = execute(hands, desired, &sight, &decided, history).await;
    if let Some(offer) = sight.seen.offer.seen() {
        parts.providers.unreserve(offer, &desired.proxy);
    }
    tell(desired, &mut sight, decided, acted, history)
}

/// Looks at one Proxy and decides the next step as [`pass`] does, and leaves it at that. A slot
/// that the provider offers stays reserved in this process, so that the next one is offered
/// another.
pub async fn foresee(
    parts: &Parts,
    desired: &Desired,
    now: Duration,
    history: &mut History,
) -> Result<Outcome, PassError> {
    let sight = observe(parts.eyes(), desired, now, history).await?;
    let decided = plan(desired, &sight.seen);
    Ok(Outcome {
        status: status(desired, &sight.seen, &decided),
        recheck: decided.recheck,
        moving: false,
        gone: decided.is_gone(),
        wrote: false,
        plan: decided,
    })
}

fn tell(
    desired: &Desired,
    sight: &mut Sight,
    decided: Plan,
    Acted { ended, wrote }: Acted,
    history: &History,
) -> Result<Outcome, PassError> {
    let done = matches!(ended, Ok(Executed::All));
    let gone = decided.is_gone()
        || (done && decided.actions.last() == Some(&egress_core::plan::Action::ReleaseFinalizer));
    let mut moving = false;
    let (told, recheck) = match ended {
        Err(error) => {
            let trouble = Trouble {
                class: ErrorClass::Transient,
                text: error.chain(),
            };
            let status = Box::new(status(desired, &sight.seen, &decided.in_trouble(trouble)));
            return Err(PassError::Write { error, status });
        }
        Ok(Executed::All) => (decided.clone(), decided.recheck),
        Ok(Executed::Waiting {
            recheck,
            step,
            moving: runs,
        }) => {
            moving = runs;
            (in_progress(&decided, step), Some(recheck))
        }
        Ok(Executed::Failed(trouble)) => {
            // Planned again, the failure is what is waited for, with its wait.
            sight.seen.history = history.clone();
            let wait = history
                .holding(sight.seen.now)
                .map_or(backoff::SOON, |f| f.retry_at.saturating_sub(sight.seen.now));
            (decided.in_trouble(trouble), Some(wait))
        }
    };
    Ok(Outcome {
        status: status(desired, &sight.seen, &told),
        plan: decided,
        recheck,
        moving,
        gone,
        wrote,
    })
}

/// The plan with the step that a call just named.
fn in_progress(decided: &Plan, step: String) -> Plan {
    let waiting = match &decided.waiting {
        Some(Waiting::Creating { .. }) => Some(Waiting::Creating { step }),
        Some(Waiting::Removing { .. }) => Some(Waiting::Removing { step }),
        other => other.clone(),
    };
    Plan {
        waiting,
        ..decided.clone()
    }
}
