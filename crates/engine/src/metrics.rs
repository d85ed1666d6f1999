//! What the engine counts. Names and labels are closed; `docs/metrics.md` is made from them.

use egress_core::plan::Phase;
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
}

impl Default for EngineMetrics {
    fn default() -> Self {
        let bounds = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0];
        Self {
            passes: Family::default(),
            pass_seconds: Histogram::new(bounds),
            proxies: Family::default(),
            queued: Gauge::default(),
        }
    }
}

impl EngineMetrics {
    /// Takes back what an engine that ended said of the present; counters stay.
    pub fn reset(&self) {
        self.proxies.clear();
        self.queued.set(0);
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
    }
}
