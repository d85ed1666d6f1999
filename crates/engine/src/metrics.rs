//! What the engine counts. Names and labels are closed; `docs/metrics.md` is made from them.

use egress_core::{ProviderName, plan::Phase};
use egress_provider::{CheckReason, Listing, Report};
use jiff::Timestamp;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelSetEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are lower case")]
pub enum PassResult {
    /// It was made.
    ok,
    /// The store could not be read or written.
    store_error,
}

/// The label of a pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PassLabel {
    /// How it ended.
    pub result: PassResult,
}

/// The label of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PhaseLabel(pub Phase);

impl EncodeLabelSet for PhaseLabel {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        ("phase", self.0.as_str()).encode(encoder.encode_label())
    }
}

use prometheus_client::encoding::EncodeLabel;

/// The engine's own figures.
#[derive(Clone, Debug)]
pub struct EngineMetrics {
    /// Passes made, by how they ended.
    pub passes: Family<PassLabel, Counter>,
    /// How long a pass took, in seconds.
    pub pass_seconds: Histogram,
    /// Proxies by phase.
    pub proxies: Family<PhaseLabel, Gauge>,
    /// Proxies whose time has come and that wait for their provider's turn.
    pub queued: Gauge,
    /// What each provider last said of itself.
    pub providers: ProviderMetrics,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProviderLabel {
    provider: String,
}

/// What each provider last said of itself; a clone is the same figures.
#[derive(Clone, Debug, Default)]
pub struct ProviderMetrics {
    ready: Family<ProviderLabel, Gauge>,
    free_slots: Family<ProviderLabel, Gauge>,
    machines: Family<ProviderLabel, Gauge>,
    listed: Family<ProviderLabel, Gauge>,
}

impl ProviderMetrics {
    /// Shows what a check of this provider said.
    pub fn note_check(&self, provider: &ProviderName, said: &egress_provider::Result<Report>) {
        let label = label(provider);
        let report = said.as_ref().ok();
        let ready = report.is_some_and(|report| report.reason() == CheckReason::Ready);
        self.ready.get_or_create(&label).set(ready.into());
        match report.and_then(|report| report.free_slots) {
            Some(free) => {
                let free = i64::try_from(free).unwrap_or(i64::MAX);
                self.free_slots.get_or_create(&label).set(free);
            }
            None => {
                self.free_slots.remove(&label);
            }
        }
    }

    /// Shows a complete listing of this provider, made at this time.
    pub fn note_listing(&self, provider: &ProviderName, listing: &Listing, at: Timestamp) {
        let label = label(provider);
        let count = i64::try_from(listing.machines.len()).unwrap_or(i64::MAX);
        self.machines.get_or_create(&label).set(count);
        self.listed.get_or_create(&label).set(at.as_second());
    }

    /// Takes back what was said of a provider that is not configured any more.
    pub fn forget(&self, provider: &ProviderName) {
        let label = label(provider);
        for family in [&self.ready, &self.free_slots, &self.machines, &self.listed] {
            family.remove(&label);
        }
    }

    fn clear(&self) {
        for family in [&self.ready, &self.free_slots, &self.machines, &self.listed] {
            family.clear();
        }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "egress_proxies_provider_ready",
            "1 while the last check of the provider found nothing that stands in the way",
            self.ready.clone(),
        );
        registry.register(
            "egress_proxies_provider_free_slots",
            "Slots, as VMIDs or ports, that nobody was seen to hold, by the last check, where the provider counts them; not whether there is memory and storage for so many",
            self.free_slots.clone(),
        );
        registry.register(
            "egress_proxies_provider_machines",
            "Machines of ours, by the last complete listing",
            self.machines.clone(),
        );
        registry.register(
            "egress_proxies_provider_listed_timestamp_seconds",
            "When all machines of ours were last listed without an error, in seconds since 1970",
            self.listed.clone(),
        );
    }
}

fn label(provider: &ProviderName) -> ProviderLabel {
    ProviderLabel {
        provider: provider.to_string(),
    }
}

impl Default for EngineMetrics {
    fn default() -> Self {
        let bounds = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0];
        Self {
            passes: Family::default(),
            pass_seconds: Histogram::new(bounds),
            proxies: Family::default(),
            queued: Gauge::default(),
            providers: ProviderMetrics::default(),
        }
    }
}

impl EngineMetrics {
    /// Takes back what an engine that ended said of the present; counters stay.
    pub fn reset(&self) {
        self.proxies.clear();
        self.queued.set(0);
        self.providers.clear();
    }

    /// Puts the figures under their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "egress_proxies_engine_passes",
            "Passes made, by how they ended",
            self.passes.clone(),
        );
        registry.register(
            "egress_proxies_engine_pass_duration_seconds",
            "How long a pass took",
            self.pass_seconds.clone(),
        );
        registry.register(
            "egress_proxies_engine_proxies",
            "Proxies by phase",
            self.proxies.clone(),
        );
        registry.register(
            "egress_proxies_engine_queued",
            "Proxies whose time has come and that wait for their provider's turn",
            self.queued.clone(),
        );
        self.providers.register(registry);
    }
}
