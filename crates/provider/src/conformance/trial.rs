//! One run of one case: its machines, how they are driven, and what is cleared away after it.

use super::{Harness, Offered, PowerEvent, Refusal, Stranger};
use crate::{
    Capabilities, Error, Listing, Operation, Permit, Progress, Provider, RecordedSlot, Result,
};
use egress_core::{
    Claim, ErrorClass, Handle, Identity, MachineKey, MachineUid, Mark, ProxyId, Slot, Standing,
    machine::{Addresses, ConfigHash, MachineSize, MachineState, ObservedMachine, WantedMachine},
    proxy_config::{Auth, GENERATED_USER, ProxySettings, Verifier},
};
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Why a case did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The provider broke the rule, or the bench stumbled.
    Failed(String),
    /// The case could not be run here.
    NotRun(String),
}

/// What a case, or a step of it, comes to.
pub type Verdict<T = ()> = std::result::Result<T, Miss>;

impl From<Refusal> for Miss {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotOffered(_) => Self::NotRun(refusal.to_string()),
            Refusal::Stumbled(_) => Self::Failed(refusal.to_string()),
        }
    }
}

impl From<Error> for Miss {
    fn from(error: Error) -> Self {
        Self::Failed(format!(
            "{} where no error was due: {}",
            error.class(),
            error.chain()
        ))
    }
}

/// Fails the case with a sentence unless the condition holds.
macro_rules! require {
    ($holds:expr, $($sentence:tt)+) => {
        if !$holds {
            return Err($crate::conformance::trial::Miss::Failed(format!($($sentence)+)));
        }
    };
}
pub(super) use require;

/// A machine of a case, with the part of a record that the engine would keep.
#[derive(Clone)]
pub(super) struct Machine {
    pub(super) key: MachineKey,
    pub(super) wanted: WantedMachine,
    pub(super) claim: Claim,
    pub(super) by: Arc<dyn Provider>,
    /// Steps that were begun one by one; more than [`MOST_STEPS`] is going in circles.
    steps: usize,
}

/// No provider needs more steps than this to make a machine and to remove it.
const MOST_STEPS: usize = 80;

impl Machine {
    pub(super) fn recorded(&self) -> RecordedSlot {
        RecordedSlot {
            key: self.key.clone(),
            slot: self.claim.slot.clone(),
        }
    }
}

/// What must be cleared away after a case.
#[derive(Default)]
struct Traces {
    machines: Vec<Machine>,
    strangers: Vec<Slot>,
    seeds: Vec<String>,
}

/// The bench as one case sees it.
pub struct Trial {
    pub(super) provider: Arc<dyn Provider>,
    pub(super) identity: Identity,
    pub(super) caps: Capabilities,
    pub(super) harness: Option<Arc<dyn Harness>>,
    pub(super) wrap: super::run::Wrap,
    /// Begins every name of this case; nothing else on the hypervisor begins so.
    pub(super) prefix: String,
    pub(super) namespace: String,
    pub(super) size: MachineSize,
    pub(super) call_deadline: Duration,
    traces: Mutex<Traces>,
    names: Mutex<Vec<String>>,
}

/// The life of an ordinary permit here.
const PERMIT: Duration = Duration::from_mins(1);
/// How often a state is asked for while one is waited for.
const POLL: Duration = Duration::from_millis(250);
/// Reads may lag: how long a listing may take to show what is so.
const SHOWN: Duration = Duration::from_mins(1);

impl Trial {
    pub(super) fn new(
        subject: &super::Subject,
        provider: Arc<dyn Provider>,
        options: &super::Options,
        number: usize,
    ) -> Self {
        Self {
            caps: provider.capabilities(),
            call_deadline: subject
                .harness
                .as_ref()
                .map_or(Duration::from_mins(11), |h| h.call_deadline()),
            provider,
            identity: subject.identity.clone(),
            harness: subject.harness.clone(),
            wrap: subject.wrap.clone(),
            prefix: format!("{}-{number}", options.run_id),
            namespace: format!("conformance-{}", options.run_id),
            size: options.size,
            traces: Mutex::default(),
            names: Mutex::default(),
        }
    }

    fn traces(&self) -> std::sync::MutexGuard<'_, Traces> {
        self.traces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names of all machines this case ever wished for.
    pub(super) fn names(&self) -> Vec<String> {
        self.names
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The harness; a case that asks for it without one is not run.
    pub(super) fn world(&self) -> Verdict<&dyn Harness> {
        self.harness
            .as_deref()
            .ok_or_else(|| Miss::NotRun("needs a harness".into()))
    }

    /// A new instance of the provider under test.
    pub(super) async fn restart(&self) -> Verdict<Arc<dyn Provider>> {
        Ok((self.wrap)(self.world()?.restart().await?))
    }

    /// The provider of another installation, wrapped as the one under test.
    pub(super) async fn other_installation(&self) -> Verdict<Arc<dyn Provider>> {
        Ok((self.wrap)(self.world()?.other_installation().await?))
    }

    /// Key and wish of a machine that nothing else has.
    pub(super) fn wish(&self, label: &str) -> Verdict<(MachineKey, WantedMachine)> {
        let name = format!("{}-{label}", self.prefix);
        let uid: MachineUid = name.parse().map_err(|e| Miss::Failed(format!("{e}")))?;
        let proxy =
            ProxyId::new(&self.namespace, &name).map_err(|e| Miss::Failed(format!("{e}")))?;
        let clients = "127.0.0.0/8"
            .parse()
            .map_err(|e| Miss::Failed(format!("{e}")))?;
        let verifier = Verifier::new(GENERATED_USER, &format!("password of {name}"));
        let wanted = WantedMachine {
            proxy,
            size: self.size,
            settings: ProxySettings {
                port: None,
                clients: vec![clients],
                auth: Auth::Basic {
                    verifiers: vec![verifier],
                    generation: 1,
                },
            },
            config_hash: ConfigHash::of(name.as_bytes()),
        };
        let key = MachineKey::new(uid);
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.push(key.name().to_owned());
        Ok((key, wanted))
    }

    /// A machine with a claim of the provider under test.
    pub(super) async fn claimed(&self, label: &str) -> Verdict<Machine> {
        self.claimed_by(&self.provider, label).await
    }

    /// A machine with a claim of this provider.
    pub(super) async fn claimed_by(
        &self,
        provider: &Arc<dyn Provider>,
        label: &str,
    ) -> Verdict<Machine> {
        let (key, wanted) = self.wish(label)?;
        let taken = self.taken();
        let call = provider.claim(&key, &wanted, 1, &taken);
        let claim = self.call(Operation::Claim, call).await??;
        require!(
            claim.standing == Standing::Unsent && claim.attempt == 1,
            "the claim of a new machine stands at {:?}, attempt {}",
            claim.standing,
            claim.attempt
        );
        let machine = Machine {
            key,
            wanted,
            claim,
            by: provider.clone(),
            steps: 0,
        };
        self.remember(&machine);
        Ok(machine)
    }

    /// Every slot that this case has used.
    pub(super) fn taken(&self) -> Vec<Slot> {
        let traces = self.traces();
        traces
            .machines
            .iter()
            .map(|m| m.claim.slot.clone())
            .chain(traces.strangers.clone())
            .collect()
    }

    fn remember(&self, machine: &Machine) {
        let mut traces = self.traces();
        match traces.machines.iter_mut().find(|m| m.key == machine.key) {
            Some(known) => *known = machine.clone(),
            None => traces.machines.push(machine.clone()),
        }
    }

    /// Ends a call that does not end by itself (T1).
    pub(super) async fn call<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T>>,
    ) -> Verdict<Result<T>> {
        tokio::time::timeout(self.call_deadline, call)
            .await
            .map_err(|_| {
                Miss::Failed(format!(
                    "{operation} did not end within {:?} (T1)",
                    self.call_deadline
                ))
            })
    }

    /// A permit that lasts longer than any call.
    pub(super) fn permit(&self, machine: &Machine) -> Permit {
        Permit::new(
            machine.claim.attempt,
            Instant::now() + PERMIT.max(self.call_deadline),
        )
    }

    /// Writes down that the next call may send something.
    pub(super) fn sending(&self, machine: &mut Machine) {
        machine.claim.standing = machine.claim.standing.max(Standing::Sent);
        self.remember(machine);
    }

    /// Writes down how far a call came.
    fn record(&self, machine: &mut Machine, progress: &Progress, done: Standing) {
        match progress {
            Progress::Done => {
                machine.claim.handles.clear();
                machine.claim.standing = machine.claim.standing.max(done);
            }
            Progress::InProgress { handles, .. } => {
                if !handles.is_empty() {
                    machine.claim.standing = machine.claim.standing.max(Standing::Accepted);
                }
                machine.claim.handles.clone_from(handles);
            }
        }
        self.remember(machine);
    }

    /// One call of `create`, recorded as the engine records it.
    pub(super) async fn create_once(
        &self,
        provider: &dyn Provider,
        machine: &mut Machine,
    ) -> Verdict<Result<Progress>> {
        self.sending(machine);
        let permit = self.permit(machine);
        let call = provider.create(&machine.key, &machine.claim, &machine.wanted, &permit);
        let result = self.call(Operation::Create, call).await?;
        match &result {
            Ok(progress) => self.record(machine, progress, Standing::Started),
            Err(error) if error.class() == ErrorClass::OutcomeUnknown => {
                machine.claim.unsettled = true;
                self.remember(machine);
            }
            Err(_) => {}
        }
        Ok(result)
    }

    /// One call of `seal`, recorded.
    pub(super) async fn seal_once(
        &self,
        provider: &dyn Provider,
        machine: &mut Machine,
    ) -> Verdict<Result<Progress>> {
        let permit = self.permit(machine);
        let call = provider.seal(&machine.key, &machine.claim, &permit);
        let result = self.call(Operation::Seal, call).await?;
        if let Ok(progress) = &result {
            self.record(machine, progress, Standing::Sealed);
        }
        Ok(result)
    }

    /// One call of `delete`, recorded.
    pub(super) async fn delete_once(
        &self,
        provider: &dyn Provider,
        machine: &mut Machine,
    ) -> Verdict<Result<Progress>> {
        let permit = self.permit(machine);
        let call = provider.delete(&machine.key, &machine.claim, &permit);
        let result = self.call(Operation::Delete, call).await?;
        if let Ok(progress) = &result {
            self.record(machine, progress, machine.claim.standing);
            if matches!(progress, Progress::Done) {
                self.traces().machines.retain(|m| m.key != machine.key);
            }
        }
        Ok(result)
    }

    /// One look, recorded.
    pub(super) async fn look(
        &self,
        provider: &dyn Provider,
        machine: &mut Machine,
    ) -> Verdict<Result<ObservedMachine>> {
        let call = provider.get(&machine.key, &machine.claim);
        let seen = self.call(Operation::Get, call).await?;
        if let Ok(seen) = &seen {
            let ours = matches!(
                seen.state,
                MachineState::Provisioning | MachineState::Running(_) | MachineState::Stopped(_)
            );
            if ours {
                machine.claim.standing = machine.claim.standing.max(Standing::Seen);
                if machine.claim.mac.is_none() {
                    machine.claim.mac.clone_from(&seen.mac);
                }
                self.remember(machine);
            }
        }
        Ok(seen)
    }

    /// How long a machine may take up or down.
    pub(super) fn patience(&self) -> Duration {
        self.caps.boot_timeout + self.caps.late_create.settle() + 2 * self.call_deadline
    }

    /// Waits as the provider asked, within reason.
    pub(super) async fn wait(&self, recheck: Duration) {
        tokio::time::sleep(recheck.clamp(Duration::from_millis(10), Duration::from_secs(30))).await;
    }

    /// Calls `create` until it has begun one more step; true when it is done instead.
    pub(super) async fn create_step(
        &self,
        provider: &dyn Provider,
        machine: &mut Machine,
    ) -> Verdict<bool> {
        let end = Instant::now() + self.patience();
        loop {
            let open = machine.claim.handles.clone();
            let answer = self.create_once(provider, machine).await?;
            if let Some(done) = self.begun(answer, &open).await? {
                machine.steps += 1;
                require!(machine.steps <= MOST_STEPS, "create goes in circles");
                return Ok(done);
            }
            require!(Instant::now() < end, "create begins no further step");
        }
    }

    /// Calls `delete` until it has begun one more step; true when it is done instead.
    pub(super) async fn delete_step(
        &self,
        provider: &dyn Provider,
        machine: &mut Machine,
    ) -> Verdict<bool> {
        let end = Instant::now() + self.patience();
        loop {
            let open = machine.claim.handles.clone();
            let answer = self.delete_once(provider, machine).await?;
            if let Some(done) = self.begun(answer, &open).await? {
                machine.steps += 1;
                require!(machine.steps <= MOST_STEPS, "delete goes in circles");
                return Ok(done);
            }
            require!(Instant::now() < end, "delete begins no further step");
        }
    }

    /// Whether a call was done (true), began a task that was not open before (false), or
    /// neither; then it waits a little.
    async fn begun(&self, answer: Result<Progress>, open: &[Handle]) -> Verdict<Option<bool>> {
        match answer {
            Ok(Progress::Done) => return Ok(Some(true)),
            Ok(Progress::InProgress { handles, .. })
                if handles.iter().any(|handle| !open.contains(handle)) =>
            {
                return Ok(Some(false));
            }
            Ok(Progress::InProgress { recheck, .. }) => self.wait(recheck).await,
            Err(error) if may_repeat(&error) => self.wait(Duration::from_secs(1)).await,
            Err(error) => return Err(error.into()),
        }
        Ok(None)
    }

    /// Waits until nothing works on the machine; answers its state.
    pub(super) async fn rest(&self, machine: &mut Machine) -> Verdict<MachineState> {
        let provider = self.provider.clone();
        let limit = self.patience();
        let seen = self.until(&*provider, machine, limit, "come to rest", |state| {
            !matches!(
                state,
                MachineState::InProgress { .. } | MachineState::Unknown { .. }
            )
        });
        Ok(seen.await?.state)
    }

    /// Drives the machine up until `create` says done.
    pub(super) async fn up(&self, provider: &dyn Provider, machine: &mut Machine) -> Verdict {
        let end = Instant::now() + self.patience();
        loop {
            let last = match self.create_once(provider, machine).await? {
                Ok(Progress::Done) => return Ok(()),
                Ok(Progress::InProgress { recheck, step, .. }) => {
                    self.wait(recheck).await;
                    step
                }
                Err(error) if may_repeat(&error) => {
                    let _looked_first = self.look(provider, machine).await?;
                    self.wait(Duration::from_secs(2)).await;
                    error.chain()
                }
                Err(error) => return Err(error.into()),
            };
            require!(
                Instant::now() < end,
                "create does not come to an end; last: {last}"
            );
        }
    }

    /// Drives the machine down until `delete` says done.
    pub(super) async fn down(&self, provider: &dyn Provider, machine: &mut Machine) -> Verdict {
        let end = Instant::now() + self.patience();
        loop {
            let last = match self.delete_once(provider, machine).await? {
                Ok(Progress::Done) => return Ok(()),
                Ok(Progress::InProgress { recheck, step, .. }) => {
                    self.wait(recheck).await;
                    step
                }
                Err(error) if may_repeat(&error) => {
                    self.wait(Duration::from_secs(2)).await;
                    error.chain()
                }
                Err(error) => return Err(error.into()),
            };
            require!(
                Instant::now() < end,
                "delete does not come to an end; last: {last}"
            );
        }
    }

    /// Drives the seal until done.
    pub(super) async fn sealed(&self, provider: &dyn Provider, machine: &mut Machine) -> Verdict {
        let end = Instant::now() + self.patience();
        loop {
            match self.seal_once(provider, machine).await? {
                Ok(Progress::Done) => return Ok(()),
                Ok(Progress::InProgress { recheck, .. }) => self.wait(recheck).await,
                Err(error) if may_repeat(&error) => self.wait(Duration::from_secs(2)).await,
                Err(error) => return Err(error.into()),
            }
            require!(Instant::now() < end, "seal does not come to an end");
        }
    }

    /// Polls `get` until the state is as wanted. `what` completes "was not seen to …".
    pub(super) async fn until(
        &self,
        provider: &dyn Provider,
        machine: &mut Machine,
        limit: Duration,
        what: &str,
        wanted: impl Fn(&MachineState) -> bool + Send,
    ) -> Verdict<ObservedMachine> {
        let end = Instant::now() + limit;
        loop {
            let last = match self.look(provider, machine).await? {
                Ok(seen) if wanted(&seen.state) => return Ok(seen),
                Ok(seen) => format!("{:?}", seen.state),
                Err(error) if may_repeat(&error) => error.chain(),
                Err(error) => return Err(error.into()),
            };
            require!(
                Instant::now() < end,
                "{} was not seen to {what} within {limit:?}; last: {last}",
                machine.key
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the machine runs and reports addresses.
    pub(super) async fn running(
        &self,
        provider: &dyn Provider,
        machine: &mut Machine,
    ) -> Verdict<ObservedMachine> {
        let limit = self.caps.boot_timeout + SHOWN;
        self.until(
            provider,
            machine,
            limit,
            "run and report an address",
            |state| matches!(state, MachineState::Running(Addresses::Reported { .. })),
        )
        .await
    }

    /// A machine that runs and has reported its addresses.
    pub(super) async fn made(&self, label: &str) -> Verdict<Machine> {
        let mut machine = self.claimed(label).await?;
        let provider = self.provider.clone();
        self.up(&*provider, &mut machine).await?;
        self.running(&*provider, &mut machine).await?;
        Ok(machine)
    }

    /// The state of a machine now; errors fail the case.
    pub(super) async fn state(&self, machine: &mut Machine) -> Verdict<MachineState> {
        let provider = self.provider.clone();
        Ok(self.look(&*provider, machine).await??.state)
    }

    /// A listing, asked again while the provider has trouble.
    pub(super) async fn listing(&self, recorded: &[RecordedSlot]) -> Verdict<Listing> {
        let end = Instant::now() + SHOWN;
        loop {
            match self
                .call(Operation::List, self.provider.list(recorded))
                .await?
            {
                Ok(listing) => return Ok(listing),
                Err(error) if may_repeat(&error) && Instant::now() < end => {
                    self.wait(Duration::from_secs(2)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The listing shows exactly one machine of this key, at its slot.
    pub(super) async fn alone(&self, machine: &Machine) -> Verdict {
        let end = Instant::now() + SHOWN;
        loop {
            let listing = self.listing(&[machine.recorded()]).await?;
            let slots: Vec<_> = listing
                .machines
                .iter()
                .filter(|m| m.mark.uid == *machine.key.uid())
                .map(|m| m.mark.slot.clone())
                .collect();
            require!(
                slots.len() < 2,
                "{} machines of one key: {slots:?}",
                slots.len()
            );
            if let [slot] = slots.as_slice() {
                require!(
                    *slot == machine.claim.slot,
                    "the machine is listed at {slot}, its claim says {}",
                    machine.claim.slot
                );
                return Ok(());
            }
            require!(
                Instant::now() < end,
                "the machine {} is not listed",
                machine.key
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Nothing of this key is left, neither by `get` nor by `list`.
    pub(super) async fn gone(&self, machine: &mut Machine) -> Verdict {
        let state = self.state(machine).await?;
        require!(
            matches!(state, MachineState::Absent | MachineState::Foreign),
            "after delete said done the machine is {state:?}"
        );
        let listing = self.listing(&[machine.recorded()]).await?;
        require!(
            listing
                .machines
                .iter()
                .all(|m| m.mark.uid != *machine.key.uid()),
            "after delete said done the machine is still listed"
        );
        require!(
            listing
                .leftovers
                .iter()
                .all(|l| l.machine != machine.key.name()),
            "after delete said done a seed of the machine is left over"
        );
        Ok(())
    }

    /// The mark that the machine bears, or would bear.
    pub(super) fn mark_of(&self, machine: &Machine) -> Mark {
        Mark {
            installation: self.identity.installation.clone(),
            writer: self.identity.writer.clone(),
            provider: self.provider.name().clone(),
            cluster: machine.claim.cluster.clone(),
            slot: machine.claim.slot.clone(),
            uid: machine.key.uid().clone(),
            proxy: machine.wanted.proxy.clone(),
            attempt: machine.claim.attempt,
            config: machine.wanted.config_hash.clone(),
            written: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    /// Places a stranger and sees to it that it is removed in the end.
    pub(super) async fn place(&self, slot: &Slot, stranger: &Stranger) -> Verdict {
        self.world()?.place(slot, stranger).await?;
        self.disown(slot);
        self.catch_up().await
    }

    /// What lies at this slot is removed by the harness after the case, not by the provider.
    pub(super) fn disown(&self, slot: &Slot) {
        self.traces().strangers.push(slot.clone());
    }

    /// Leaves a seed behind and sees to it that it is removed in the end.
    pub(super) async fn leave_seed(&self, key: &MachineKey) -> Verdict<String> {
        let name = self.world()?.leave_seed(key).await?;
        self.traces().seeds.push(name.clone());
        self.catch_up().await?;
        Ok(name)
    }

    /// Changes a machine's power behind the provider's back.
    pub(super) async fn power(&self, machine: &Machine, event: PowerEvent) -> Verdict {
        self.world()?.power(&machine.claim.slot, event).await?;
        self.catch_up().await
    }

    /// Waits until reads show what the harness did.
    pub(super) async fn catch_up(&self) -> Verdict {
        Ok(self.world()?.catch_up().await?)
    }

    /// How many mutating requests arrived so far.
    pub(super) async fn sent(&self) -> Verdict<usize> {
        Ok(self.world()?.mutations().await?.len())
    }

    /// Nothing was sent since `before`.
    pub(super) async fn nothing_sent_since(&self, before: usize, during: &str) -> Verdict {
        let all = self.world()?.mutations().await?;
        let sent = all.get(before..).unwrap_or_default();
        require!(
            sent.is_empty(),
            "during {during} something was sent: {sent:?}"
        );
        Ok(())
    }

    /// Clears away what the case made. The unwrapped provider does it where the harness can
    /// make one, so that a fault of the one under test is not counted in every case.
    pub(super) async fn clear(&self, by_force: bool) -> Vec<String> {
        let Traces {
            machines,
            strangers,
            seeds,
        } = std::mem::take(&mut *self.traces());
        let mut trouble = Vec::new();
        let harness = self.harness.as_deref();
        if let Some(harness) = harness {
            note(&mut trouble, "heal", harness.heal().await);
            for slot in &strangers {
                note(&mut trouble, "remove", harness.remove(slot).await);
            }
            for seed in &seeds {
                note(
                    &mut trouble,
                    "remove a seed",
                    harness.remove_seed(seed).await,
                );
            }
        }
        for mut machine in machines {
            let mut provider = machine.by.clone();
            if let Some(harness) = harness {
                // Most machines are neither locked nor protected; saying so is no trouble.
                let _not_locked = harness.unlock(&machine.claim.slot).await;
                let _not_protected = harness.unprotect(&machine.claim.slot).await;
                let ours = Arc::ptr_eq(&machine.by, &self.provider);
                if let (true, Ok(fresh)) = (ours, harness.restart().await) {
                    provider = fresh;
                }
            }
            if let Err(miss) = self.down(&*provider, &mut machine).await {
                trouble.push(format!("{} could not be deleted: {miss:?}", machine.key));
            }
            if let (true, Some(harness)) = (by_force, harness) {
                let _nothing_there = harness.remove(&machine.claim.slot).await;
            }
        }
        // What `down` touched once more is known to be gone or told above.
        self.traces().machines.clear();
        trouble
    }
}

fn note(trouble: &mut Vec<String>, what: &str, outcome: Offered) {
    if let Err(refusal) = outcome {
        trouble.push(format!("{what}: {refusal}"));
    }
}

/// Whether the same call may be made again by itself.
pub(super) fn may_repeat(error: &Error) -> bool {
    matches!(
        error.class(),
        ErrorClass::Busy | ErrorClass::Transient | ErrorClass::OutcomeUnknown
    )
}

/// The error of a call that must fail.
pub(super) fn refused<T: fmt::Debug>(what: &str, result: Result<T>) -> Verdict<Error> {
    match result {
        Err(error) => Ok(error),
        Ok(answer) => Err(Miss::Failed(format!(
            "{what} answered {answer:?} instead of an error"
        ))),
    }
}

/// The error of a call that must fail with one of these classes.
pub(super) fn refused_as<T: fmt::Debug>(
    what: &str,
    result: Result<T>,
    classes: &[ErrorClass],
) -> Verdict<Error> {
    let error = refused(what, result)?;
    require!(
        classes.contains(&error.class()),
        "{what} was refused as {}, not as one of {classes:?}: {}",
        error.class(),
        error.chain()
    );
    Ok(error)
}

/// Polls a call at most so many times; `None` when it has not ended by then.
pub(super) async fn poll_at_most<F: Future + Unpin>(
    call: &mut F,
    polls: usize,
) -> Option<F::Output> {
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        match std::pin::Pin::new(&mut *call).poll(cx) {
            std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
            std::task::Poll::Pending if left == 0 => std::task::Poll::Ready(None),
            std::task::Poll::Pending => std::task::Poll::Pending,
        }
    })
    .await
}
