//! Drives machines as the engine does: call, record, wait, call again.

use super::{
    trial::{Machine, Trial},
    verdict::{Miss, Verdict, may_repeat, require},
};
use crate::{Listing, Operation, Permit, Progress, Provider, RecordedSlot, Result};
use egress_core::{
    ErrorClass, Handle, Standing,
    machine::{Addresses, MachineState, ObservedMachine},
};
use std::time::Duration;
use tokio::time::Instant;

/// No provider needs more steps than this to make a machine and to remove it.
const MOST_STEPS: usize = 80;
/// The life of an ordinary permit here.
const PERMIT: Duration = Duration::from_mins(1);
/// How often a state is asked for while one is waited for.
const POLL: Duration = Duration::from_millis(250);
/// The time between two tries of a call that failed in a way that may pass.
const RETRY: Duration = Duration::from_secs(2);
/// Reads may lag: how long a listing may take to show what is so.
const SHOWN: Duration = Duration::from_mins(1);

impl Trial {
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

    /// Waits a little before what failed is tried again.
    pub(super) async fn breathe(&self) {
        self.wait(self.scaled(RETRY)).await;
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
            let sent = self.shown_steps().await?;
            let answer = self.create_once(provider, machine).await?;
            if let Some(done) = self.begun(answer, &open, sent).await? {
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
            let sent = self.shown_steps().await?;
            let answer = self.delete_once(provider, machine).await?;
            if let Some(done) = self.begun(answer, &open, sent).await? {
                machine.steps += 1;
                require!(machine.steps <= MOST_STEPS, "delete goes in circles");
                return Ok(done);
            }
            require!(Instant::now() < end, "delete begins no further step");
        }
    }

    /// How many requests arrived, in a world whose steps show in nothing else.
    async fn shown_steps(&self) -> Verdict<Option<usize>> {
        match &self.harness {
            Some(harness) if harness.steps_show_as_requests() => self.sent().await.map(Some),
            _ => Ok(None),
        }
    }

    /// Whether a call was done (true), began a task that was not open before (false), or
    /// neither; then it waits a little. `sent` is what [`shown_steps`](Self::shown_steps) said
    /// before it.
    async fn begun(
        &self,
        answer: Result<Progress>,
        open: &[Handle],
        sent: Option<usize>,
    ) -> Verdict<Option<bool>> {
        match answer {
            Ok(Progress::Done) => return Ok(Some(true)),
            Ok(Progress::InProgress { .. }) if self.shown_steps().await? > sent => {
                return Ok(Some(false));
            }
            Ok(Progress::InProgress { handles, .. })
                if handles.iter().any(|handle| !open.contains(handle)) =>
            {
                return Ok(Some(false));
            }
            Ok(Progress::InProgress { recheck, .. }) => self.wait(recheck).await,
            Err(error) if may_repeat(&error) => self.breathe().await,
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
                    self.breathe().await;
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
                    self.breathe().await;
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
                Err(error) if may_repeat(&error) => self.breathe().await,
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
            self.wait(self.scaled(POLL)).await;
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
                    self.breathe().await;
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
            self.wait(self.scaled(POLL)).await;
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
}
