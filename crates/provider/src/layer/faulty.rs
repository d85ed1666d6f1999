//! Fails calls by a script: for tests of whoever calls a provider.

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

/// A provider that fails as its script says.
pub struct Faulty {
    inner: Arc<dyn Provider>,
    script: Vec<Fault>,
    delay: Duration,
    calls: Mutex<BTreeMap<Operation, u32>>,
}

impl Faulty {
    /// Wraps a provider; an empty script changes nothing.
    pub fn new(inner: Arc<dyn Provider>, script: Vec<Fault>) -> Self {
        Self {
            inner,
            script,
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
        let fault = self
            .script
            .iter()
            .find(|f| f.operation == operation && f.call == number);
        let error = |class| Error::new(class, operation, "script", "this call fails by script");
        match fault {
            None => call.await,
            Some(Fault {
                side: Side::Before,
                class,
                ..
            }) => Err(error(*class)),
            Some(Fault {
                side: Side::After,
                class,
                ..
            }) => {
                // Whatever it answered is lost.
                let _ = call.await;
                Err(error(*class))
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
