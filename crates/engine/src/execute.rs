//! Act: carries a plan out, in order, and makes no choice. The first action that fails, or
//! is not done yet, ends the pass.

use crate::{
    Credentials, Found, FoundText, PermitSource, Providers,
    observe::{self, Sight},
    store::{Store, StoreError, Version},
};
use egress_core::{
    Claim, ErrorClass, MachineKey, Record, Standing,
    history::{History, Sent},
    machine::{CloudConfig, MachineState, Retirement},
    plan::{Action, Plan, Waiting},
    proxy::{Desired, Intent, ProviderSight, Trouble},
    proxy_config::Auth,
};
use egress_provider::{Permit, Progress, Provider};
use std::time::Duration;

/// A call that has not ended by then is given up as an unknown outcome, whatever the
/// provider promised about its own deadlines.
const CALL_BACKSTOP: Duration = Duration::from_mins(11);

/// The parts of the engine that acting needs.
#[derive(Clone, Copy)]
pub(crate) struct Hands<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) providers: &'a Providers,
    pub(crate) credentials: &'a dyn Credentials,
    pub(crate) permits: &'a dyn PermitSource,
}

/// What was done.
#[derive(Debug)]
pub(crate) struct Acted {
    /// An error of the store ends it, and nothing after it was done.
    pub(crate) ended: Result<Executed, StoreError>,
    /// Whether the store took a write.
    pub(crate) wrote: bool,
}

/// How far the plan was carried out.
#[derive(Debug)]
pub(crate) enum Executed {
    /// To its end.
    All,
    /// A call is in progress.
    Waiting {
        /// Look again after so long.
        recheck: Duration,
        /// What is waited for.
        step: String,
        /// Tasks of ours run.
        moving: bool,
    },
    /// A call failed; history knows.
    Failed(Trouble),
}

/// The record as it is being changed, saved before the next provider call and at the end.
struct Draft<'a> {
    hands: Hands<'a>,
    desired: &'a Desired,
    saved: Option<Record>,
    version: Option<Version>,
    record: Option<Record>,
    wrote: bool,
}

impl Draft<'_> {
    async fn save(&mut self) -> Result<(), StoreError> {
        let Some(record) = &self.record else {
            return Ok(());
        };
        if self.saved.as_ref() == Some(record) {
            return Ok(());
        }
        let version = self
            .hands
            .store
            .save(&self.desired.proxy, record, self.version.as_ref())
            .await?;
        self.wrote = true;
        let deleting = matches!(self.desired.intent, Intent::Delete);
        self.hands
            .providers
            .note(self.saved.as_ref(), Some(record), deleting);
        self.version = Some(version);
        self.saved = Some(record.clone());
        Ok(())
    }

    fn claim(&mut self) -> Option<&mut Claim> {
        self.record.as_mut().and_then(|r| r.claim.as_mut())
    }

    async fn release(&mut self) -> Result<(), StoreError> {
        if let Some(version) = self.version.take() {
            self.hands
                .store
                .remove(&self.desired.proxy, &version)
                .await?;
            self.wrote = true;
        }
        self.hands.providers.note(self.saved.as_ref(), None, true);
        self.saved = None;
        self.record = None;
        Ok(())
    }
}

/// Carries `plan` out.
pub(crate) async fn execute(
    hands: Hands<'_>,
    desired: &Desired,
    sight: &Sight,
    plan: &Plan,
    history: &mut History,
) -> Acted {
    let mut draft = Draft {
        hands,
        desired,
        saved: sight.stored.as_ref().map(|s| s.record.clone()),
        version: sight.stored.as_ref().map(|s| s.version.clone()),
        record: sight.stored.as_ref().map(|s| s.record.clone()),
        wrote: false,
    };
    let ended = act_all(&mut draft, sight, plan, history).await;
    if ended.is_err() {
        history.note_unsaved();
    }
    Acted {
        ended,
        wrote: draft.wrote,
    }
}

async fn act_all(
    draft: &mut Draft<'_>,
    sight: &Sight,
    plan: &Plan,
    history: &mut History,
) -> Result<Executed, StoreError> {
    let mut ended = Executed::All;
    for action in &plan.actions {
        ended = act(draft, action, sight, plan, history).await?;
        if !matches!(ended, Executed::All) {
            break;
        }
    }
    draft.save().await?;
    Ok(ended)
}

async fn act(
    draft: &mut Draft<'_>,
    action: &Action,
    sight: &Sight,
    plan: &Plan,
    history: &mut History,
) -> Result<Executed, StoreError> {
    let desired = draft.desired;
    match action {
        Action::HoldFinalizer => {
            // A first write has no version that could fail: it needs the right to act.
            if let Err(trouble) = may_act(draft.hands.permits, 1) {
                let key = MachineKey::new(desired.uid.clone()).of(&desired.proxy);
                history.note_failure(trouble.clone(), &key, sight.seen.now);
                return Ok(Executed::Failed(trouble));
            }
            draft.record = Some(Record::new(
                desired.uid.clone(),
                desired.installation.clone(),
                desired.proxy.clone(),
            ));
        }
        Action::RecordClaim(claim) | Action::RecordOutcome(claim) => {
            if let Some(record) = &mut draft.record {
                history.note_recorded(record.claim.as_ref(), claim);
                record.last_attempt = record.last_attempt.max(claim.attempt);
                record.claim = Some(claim.clone());
            }
        }
        Action::RecordProven(proven) => {
            if let Some(record) = &mut draft.record {
                record.proven = Some(proven.clone());
            }
        }
        Action::DropClaim(why) => {
            if let Some(record) = draft.record.take() {
                let fault = record.claim.as_ref().and_then(|c| c.retiring).map_or(
                    plan.waiting == Some(Waiting::RemovedOutside),
                    Retirement::is_fault,
                );
                if fault {
                    history.note_replacement(sight.seen.now);
                }
                draft.record = Some(record.without_claim(*why));
            }
        }
        Action::ReleaseFinalizer => {
            if let Err(trouble) = draft.hands.credentials.forget(&desired.proxy).await {
                let key = MachineKey::new(desired.uid.clone()).of(&desired.proxy);
                history.note_failure(trouble.clone(), &key, sight.seen.now);
                return Ok(Executed::Failed(trouble));
            }
            draft.release().await?;
        }
        Action::Create | Action::Seal | Action::Delete => {
            draft.save().await?;
            return Ok(call(draft, action, sight, plan, history).await);
        }
    }
    Ok(Executed::All)
}

/// Whether a create may send the request that makes a machine: only where the look showed nothing
/// was the claim written for it.
fn may_make(sight: &Sight) -> bool {
    let seen = sight.seen.machine.seen();
    seen.is_none_or(|machine| machine.state == MachineState::Absent)
}

/// A permit that is good now.
fn may_act(permits: &dyn PermitSource, attempt: u32) -> Result<Permit, Trouble> {
    permits
        .permit(attempt)
        .filter(Permit::is_good)
        .ok_or_else(|| Trouble {
            class: ErrorClass::Transient,
            text: "this process does not hold the lock or lease that lets it act: it goes on by \
                   itself once it does"
                .into(),
        })
}

/// One call to the provider, and what it means for the claim.
async fn call(
    draft: &mut Draft<'_>,
    action: &Action,
    sight: &Sight,
    plan: &Plan,
    history: &mut History,
) -> Executed {
    let (Some(lane), Some(record)) = (&sight.lane, &draft.saved) else {
        return Executed::All; // the audit refuses such plans
    };
    let key = MachineKey::new(record.machine_uid.clone()).of(&record.proxy);
    let Some(claim) = record.claim.clone() else {
        return Executed::All;
    };
    let now = sight.seen.now;
    let permit = match may_act(draft.hands.permits, claim.attempt) {
        Ok(permit) if may_make(sight) => permit,
        Ok(permit) => permit.for_what_is_there(),
        Err(trouble) => {
            history.note_failure(trouble.clone(), &key, now);
            return Executed::Failed(trouble);
        }
    };
    let asked = tokio::time::timeout(
        CALL_BACKSTOP,
        ask(
            draft,
            sight,
            lane.provider().as_ref(),
            action,
            &key,
            &claim,
            &permit,
        ),
    );
    let result = asked.await.unwrap_or_else(|_| {
        Err(Trouble {
            class: ErrorClass::OutcomeUnknown,
            text: format!(
                "no answer within {} s: it is looked at before anything is repeated",
                CALL_BACKSTOP.as_secs()
            ),
        })
    });
    if *action == Action::Create {
        // Other steps of a create, lost or not, leave nothing behind.
        let sent = Sent {
            machine: permit.may_make(),
            others: permit.may_leave(),
        };
        if sent != Sent::default() {
            let failed = result.as_ref().err().map(|t| t.class);
            history.note_created(claim.attempt, sent, failed, now);
        }
        if result.is_ok() && matches!(plan.waiting, Some(Waiting::Restarting { .. })) {
            history.note_restart(now);
        }
    }
    if let Some(claim) = draft.claim() {
        outcome(claim, action, &result);
        if claim.standing == Standing::Accepted && !may_land_for(claim, sight, history).is_zero() {
            let before = claim.clone();
            claim.unsettled = true;
            history.note_recorded(Some(&before), claim);
        }
    }
    if let (Some(claim), Err(trouble)) = (draft.claim(), &result)
        && history.sent_nothing(claim)
        && !soon_over(trouble.class)
    {
        // Whoever goes on after a crash must not wait for what was never sent.
        claim.standing = Standing::Unsent;
    }
    match result {
        Ok(Progress::Done) => {
            history.note_success();
            Executed::All
        }
        Ok(Progress::InProgress {
            step,
            recheck,
            handles,
        }) => {
            history.note_success();
            Executed::Waiting {
                recheck,
                step,
                moving: !handles.is_empty(),
            }
        }
        Err(trouble) => {
            history.note_failure(trouble.clone(), &key, now);
            Executed::Failed(trouble)
        }
    }
}

async fn ask(
    draft: &Draft<'_>,
    sight: &Sight,
    provider: &dyn Provider,
    action: &Action,
    key: &MachineKey,
    claim: &Claim,
    permit: &Permit,
) -> Result<Progress, Trouble> {
    let told = |result: egress_provider::Result<Progress>| result.map_err(|e| observe::trouble(&e));
    match action {
        Action::Seal => told(provider.seal(key, claim, permit).await),
        Action::Delete => told(provider.delete(key, claim, permit).await),
        _ => {
            let source = draft.desired.spec().map(|s| &s.auth);
            let auth = match source {
                Some(source) => {
                    draft
                        .hands
                        .credentials
                        .ensure(&draft.desired.proxy, source)
                        .await?
                }
                None => Found::NotNeeded,
            };
            let auth = match auth {
                Found::Known(credential) => credential.auth(),
                Found::NotNeeded => Auth::None {},
                Found::Nothing | Found::Missing(_) => return Err(vanished("the credentials")),
            };
            let user_data = user_data(draft, sight).await?;
            match observe::wanted(draft.desired, auth, user_data) {
                Some(wanted) => told(provider.create(key, claim, &wanted, permit).await),
                None => Ok(Progress::Done), // the audit refuses such plans
            }
        }
    }
}

/// The user's cloud-config, where the machine is made and not only started.
async fn user_data(draft: &Draft<'_>, sight: &Sight) -> Result<Option<CloudConfig>, Trouble> {
    let source = draft.desired.spec().and_then(|s| s.user_data.as_ref());
    let Some(source) = source.filter(|_| sight.seen.is_unmade()) else {
        return Ok(None);
    };
    let credentials = draft.hands.credentials;
    match credentials
        .cloud_config(&draft.desired.proxy, source)
        .await?
    {
        FoundText::Here(text) => Ok(Some(text)),
        FoundText::Missing(_) => Err(vanished("the user data")),
    }
}

/// It was there when this pass looked.
fn vanished(what: &str) -> Trouble {
    Trouble {
        class: ErrorClass::Transient,
        text: format!("{what} vanished before the machine was made: it is tried again"),
    }
}

/// Whether a call that failed like this is repeated in a moment: what it promised stands.
const fn soon_over(class: ErrorClass) -> bool {
    matches!(class, ErrorClass::Busy | ErrorClass::Conflict)
}

/// How much longer an earlier creating request of this attempt may still land.
fn may_land_for(claim: &Claim, sight: &Sight, history: &History) -> Duration {
    match sight.seen.provider {
        ProviderSight::Configured { settle, .. } => {
            history.may_land_for(claim, settle, sight.seen.now)
        }
        ProviderSight::Unconfigured => Duration::ZERO,
    }
}

/// What an answer means for the claim. A create that is done is not written down: the next
/// look shows the machine running, and that look is recorded together with the first proof.
fn outcome(claim: &mut Claim, action: &Action, result: &Result<Progress, Trouble>) {
    match (action, result) {
        (Action::Create, Ok(Progress::InProgress { handles, .. })) if !handles.is_empty() => {
            claim.standing = claim.standing.max(Standing::Accepted);
            claim.handles.clone_from(handles);
        }
        (Action::Create, Err(trouble)) if trouble.class == ErrorClass::Conflict => {
            claim.retiring = Some(Retirement::SlotTaken);
        }
        (Action::Seal, Ok(Progress::Done)) => {
            claim.standing = Standing::Sealed;
            claim.handles.clear();
        }
        (Action::Seal | Action::Delete, Ok(Progress::InProgress { handles, .. })) => {
            claim.handles.clone_from(handles);
        }
        (Action::Delete, Ok(Progress::Done)) => claim.handles.clear(),
        _ => {}
    }
}
