//! Fails calls by a script or by a seed: for tests of whoever calls a provider.

use crate::{
    Capabilities, Error, Listing, Operation, Permit, Progress, Provider, RecordedSlot, Report,
    Result,
};
use async_trait::async_trait;
use egress_core::{
    Claim, ErrorClass, MachineKey, ProviderName, Slot,
    machine::{ObservedMachine, WantedMachine},
};
use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Which side of the inner call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The inner provider is never asked.
    Before,
    /// The inner provider was asked, and its answer is lost.
    After,
}

/// One fault of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Of which operation.
    pub operation: Operation,
    /// Which call of it, from 1.
    pub call: u32,
    /// Before or after the inner call.
    pub side: Side,
    /// What the caller is told.
    pub class: ErrorClass,
}

/// Which calls fail.
enum Schedule {
    Script(Vec<Fault>),
    Seeded { seed: u64, per_mille: u32 },
}

impl Schedule {
    fn fault(&self, operation: Operation, call: u32) -> Option<(Side, ErrorClass)> {
        match self {
            Self::Script(faults) => faults
                .iter()
                .find(|f| f.operation == operation && f.call == call)
                .map(|f| (f.side, f.class)),
            Self::Seeded { seed, per_mille } => {
                // Each call's fate hangs on its own number alone, not on what ran beside it.
                let dice = scramble(seed ^ (u64::from(call) << 8) ^ operation as u64);
                if dice % 1000 >= u64::from(*per_mille) {
                    return None;
                }
                let changing = matches!(
                    operation,
                    Operation::Create | Operation::Seal | Operation::Delete
                );
                Some(match (dice >> 32) % 2 {
                    0 => (Side::Before, ErrorClass::Transient),
                    _ if changing => (Side::After, ErrorClass::OutcomeUnknown),
                    _ => (Side::After, ErrorClass::Transient),
                })
            }
        }
    }
}

/// Spreads the bits of a number (the finalizer of SplitMix64).
const fn scramble(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A provider that fails as its schedule says.
pub struct Faulty {
    inner: Arc<dyn Provider>,
    schedule: Schedule,
    delay: Duration,
    calls: Mutex<BTreeMap<Operation, u32>>,
}

impl Faulty {
    /// Fails the calls that the script names; an empty script changes nothing.
    pub fn new(inner: Arc<dyn Provider>, script: Vec<Fault>) -> Self {
        Self::by(inner, Schedule::Script(script))
    }

    /// Fails `per_mille` of a thousand calls, the same ones for the same seed: half of them
    /// `Transient` before the inner call; the others after it, with `OutcomeUnknown` where
    /// the call may have changed something.
    pub fn seeded(inner: Arc<dyn Provider>, seed: u64, per_mille: u32) -> Self {
        Self::by(inner, Schedule::Seeded { seed, per_mille })
    }

    fn by(inner: Arc<dyn Provider>, schedule: Schedule) -> Self {
        Self {
            inner,
            schedule,
            delay: Duration::ZERO,
            calls: Mutex::default(),
        }
    }

    /// Makes each call wait so long first.
    #[must_use]
    pub fn delayed(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    async fn play<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let number = {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let number = calls.entry(operation).or_default();
            *number += 1;
            *number
        };
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        let failed = |class| Err(Error::new(class, operation, "script", "fails by schedule"));
        match self.schedule.fault(operation, number) {
            None => call.await,
            Some((Side::Before, class)) => failed(class),
            Some((Side::After, class)) => {
                // Whatever it answered is lost.
                drop(call.await);
                failed(class)
            }
        }
    }
}

#[async_trait]
impl Provider for Faulty {
    fn name(&self) -> &ProviderName {
        self.inner.name()
    }
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn check(&self) -> Result<Report> {
        self.play(Operation::Check, self.inner.check()).await
    }
    async fn claim(
        &self,
        key: &MachineKey,
        wanted: &WantedMachine,
        attempt: u32,
        taken: &[Slot],
    ) -> Result<Claim> {
        self.play(
            Operation::Claim,
            self.inner.claim(key, wanted, attempt, taken),
        )
        .await
    }
    async fn survey(&self, key: &MachineKey, claim: &Claim, wanted: &WantedMachine) -> Result<()> {
        self.play(Operation::Survey, self.inner.survey(key, claim, wanted))
            .await
    }
    async fn create(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
        permit: &Permit,
    ) -> Result<Progress> {
        self.play(
            Operation::Create,
            self.inner.create(key, claim, wanted, permit),
        )
        .await
    }
    async fn get(&self, key: &MachineKey, claim: &Claim) -> Result<ObservedMachine> {
        self.play(Operation::Get, self.inner.get(key, claim)).await
    }
    async fn seal(&self, key: &MachineKey, claim: &Claim, permit: &Permit) -> Result<Progress> {
        self.play(Operation::Seal, self.inner.seal(key, claim, permit))
            .await
    }
    async fn delete(&self, key: &MachineKey, claim: &Claim, permit: &Permit) -> Result<Progress> {
        self.play(Operation::Delete, self.inner.delete(key, claim, permit))
            .await
    }
    async fn list(&self, recorded: &[RecordedSlot]) -> Result<Listing> {
        self.play(Operation::List, self.inner.list(recorded)).await
    }
}
