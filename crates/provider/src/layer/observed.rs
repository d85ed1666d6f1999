//! Counts and times every call, and puts it in a span (O1).

use crate::{
    Capabilities, Listing, Operation, Permit, Progress, Provider, RecordedSlot, Report, Result,
};
use async_trait::async_trait;
use egress_core::{
    Claim, ErrorClass, MachineKey, ProviderName, Slot,
    machine::{ObservedMachine, WantedMachine},
};
use prometheus_client::{
    encoding::{EncodeLabel, EncodeLabelSet, LabelSetEncoder},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use std::{fmt, future::Future, sync::Arc};
use tokio::time::Instant;
use tracing::Instrument;

/// Which call, and how it ended: `None` is `ok`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CallLabels {
    provider: ProviderName,
    operation: Operation,
    class: Option<ErrorClass>,
}

impl EncodeLabelSet for CallLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        ("provider", self.provider.as_str()).encode(encoder.encode_label())?;
        ("operation", self.operation.as_str()).encode(encoder.encode_label())?;
        ("class", word(self.class)).encode(encoder.encode_label())
    }
}

/// Which call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TimeLabels {
    provider: ProviderName,
    operation: Operation,
}

impl EncodeLabelSet for TimeLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        ("provider", self.provider.as_str()).encode(encoder.encode_label())?;
        ("operation", self.operation.as_str()).encode(encoder.encode_label())
    }
}

const fn word(class: Option<ErrorClass>) -> &'static str {
    match class {
        Some(class) => class.as_str(),
        None => "ok",
    }
}

/// The figures of all calls to all providers; a clone is the same figures.
#[derive(Clone, Debug)]
pub struct CallMetrics {
    calls: Family<CallLabels, Counter>,
    seconds: Family<TimeLabels, Histogram>,
}

impl Default for CallMetrics {
    fn default() -> Self {
        let histogram = || Histogram::new([0.001, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0]);
        Self {
            calls: Family::default(),
            seconds: Family::new_with_constructor(histogram),
        }
    }
}

impl CallMetrics {
    /// Puts the figures under their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "egress_proxies_provider_calls",
            "Calls to providers, by operation and class",
            self.calls.clone(),
        );
        registry.register(
            "egress_proxies_provider_call_duration_seconds",
            "How long calls to providers took, by operation",
            self.seconds.clone(),
        );
    }

    /// How many calls of this operation ended so; `None` is `ok`.
    pub fn count(
        &self,
        provider: &ProviderName,
        operation: Operation,
        class: Option<ErrorClass>,
    ) -> u64 {
        let labels = CallLabels {
            provider: provider.clone(),
            operation,
            class,
        };
        self.calls.get_or_create(&labels).get()
    }
}

/// The figures of one operation of one provider, made once: a call looks nothing up.
struct Figures {
    seconds: Histogram,
    ok: Counter,
    /// In the order of [`ErrorClass::ALL`].
    failed: [Counter; ErrorClass::ALL.len()],
}

impl Figures {
    fn new(metrics: &CallMetrics, provider: &ProviderName, operation: Operation) -> Self {
        let calls = |class| {
            let provider = provider.clone();
            metrics.calls.get_or_create_owned(&CallLabels {
                provider,
                operation,
                class,
            })
        };
        let provider = provider.clone();
        Self {
            seconds: metrics.seconds.get_or_create_owned(&TimeLabels {
                provider,
                operation,
            }),
            ok: calls(None),
            failed: ErrorClass::ALL.map(|class| calls(Some(class))),
        }
    }

    fn count(&self, class: Option<ErrorClass>) {
        let counter = match class {
            None => Some(&self.ok),
            Some(class) => ErrorClass::ALL
                .iter()
                .position(|c| *c == class)
                .map(|at| &self.failed[at]),
        };
        counter.map(Counter::inc);
    }
}

/// A provider whose calls are counted, timed and traced.
pub struct Observed {
    inner: Arc<dyn Provider>,
    /// In the order of [`Operation::ALL`].
    figures: [Figures; Operation::ALL.len()],
}

impl Observed {
    /// Wraps a provider. Its figures begin at zero, so that a first failure is a rise.
    pub fn new(inner: Arc<dyn Provider>, metrics: &CallMetrics) -> Self {
        let figures =
            Operation::ALL.map(|operation| Figures::new(metrics, inner.name(), operation));
        Self { inner, figures }
    }

    /// A call that is dropped before it ends is not counted: it has no outcome.
    async fn watch<T>(
        &self,
        operation: Operation,
        key: Option<&MachineKey>,
        slot: Option<&Slot>,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let span = tracing::info_span!(
            "provider_call",
            provider = %self.inner.name(),
            %operation,
            key = key.map(MachineKey::name),
            slot = slot.map(Slot::as_str),
            class = tracing::field::Empty,
            otel.status_code = tracing::field::Empty,
            "error.type" = tracing::field::Empty,
        );
        let begun = Instant::now();
        let result = call.instrument(span.clone()).await;
        let class = result.as_ref().err().map(crate::Error::class);
        span.record("class", word(class));
        // What OpenTelemetry's conventions call it, where traces are sent.
        if let Some(class) = class {
            span.record("otel.status_code", "ERROR");
            span.record("error.type", class.as_str());
        }
        if let Some(at) = Operation::ALL.iter().position(|o| *o == operation) {
            self.figures[at].count(class);
            self.figures[at]
                .seconds
                .observe(begun.elapsed().as_secs_f64());
        }
        result
    }
}

#[async_trait]
impl Provider for Observed {
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
        self.watch(Operation::Check, None, None, self.inner.check())
            .await
    }
    async fn claim(
        &self,
        key: &MachineKey,
        wanted: &WantedMachine,
        attempt: u32,
        taken: &[Slot],
    ) -> Result<Claim> {
        let call = self.inner.claim(key, wanted, attempt, taken);
        self.watch(Operation::Claim, Some(key), None, call).await
    }
    async fn survey(&self, key: &MachineKey, claim: &Claim, wanted: &WantedMachine) -> Result<()> {
        let call = self.inner.survey(key, claim, wanted);
        self.watch(Operation::Survey, Some(key), Some(&claim.slot), call)
            .await
    }
    async fn create(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
        permit: &Permit,
    ) -> Result<Progress> {
        let call = self.inner.create(key, claim, wanted, permit);
        self.watch(Operation::Create, Some(key), Some(&claim.slot), call)
            .await
    }
    async fn get(&self, key: &MachineKey, claim: &Claim) -> Result<ObservedMachine> {
        let call = self.inner.get(key, claim);
        self.watch(Operation::Get, Some(key), Some(&claim.slot), call)
            .await
    }
    async fn seal(&self, key: &MachineKey, claim: &Claim, permit: &Permit) -> Result<Progress> {
        let call = self.inner.seal(key, claim, permit);
        self.watch(Operation::Seal, Some(key), Some(&claim.slot), call)
            .await
    }
    async fn delete(&self, key: &MachineKey, claim: &Claim, permit: &Permit) -> Result<Progress> {
        let call = self.inner.delete(key, claim, permit);
        self.watch(Operation::Delete, Some(key), Some(&claim.slot), call)
            .await
    }
    async fn list(&self, recorded: &[RecordedSlot]) -> Result<Listing> {
        self.watch(Operation::List, None, None, self.inner.list(recorded))
            .await
    }
}
