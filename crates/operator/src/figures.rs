//! What the operator counts. Names and labels are closed; `docs/metrics.md` is made from them.

use crate::status::Written;
use egress_engine::{metrics::EngineMetrics, sweeper::SweepMetrics};
use egress_provider::layer::observed::CallMetrics;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// How something ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are lower case")]
enum Ended {
    ok,
    error,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndedLabel {
    result: Ended,
}

const fn label(ok: bool) -> EndedLabel {
    EndedLabel {
        result: if ok { Ended::ok } else { Ended::error },
    }
}

/// The operator's own figures.
#[derive(Clone, Debug, Default)]
pub struct OperatorMetrics {
    leading: Gauge,
    objects: Gauge,
    config_broken: Gauge,
    reloads: Family<EndedLabel, Counter>,
    statuses: Family<EndedLabel, Counter>,
}

impl OperatorMetrics {
    /// Puts the figures under their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "egress_proxies_operator_leading",
            "1 while this process holds the lease and may act",
            self.leading.clone(),
        );
        registry.register(
            "egress_proxies_operator_objects",
            "Proxy objects that are known",
            self.objects.clone(),
        );
        registry.register(
            "egress_proxies_operator_config_broken",
            "1 while the configuration file cannot be taken on and the one before is in force",
            self.config_broken.clone(),
        );
        registry.register(
            "egress_proxies_operator_reloads",
            "Changes of the configuration file; a broken one changes nothing",
            self.reloads.clone(),
        );
        registry.register(
            "egress_proxies_operator_status_writes",
            "Statuses written to the API server",
            self.statuses.clone(),
        );
    }

    /// Moves each of them once: a figure that never moved is not printed.
    pub fn move_each(&self) {
        self.set_leading(false);
        self.set_objects(0);
        self.note_reload(true);
        self.note_status(Written::Well);
    }

    pub(crate) fn set_leading(&self, leading: bool) {
        self.leading.set(leading.into());
    }

    pub(crate) fn set_objects(&self, count: usize) {
        self.objects.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn note_reload(&self, well: bool) {
        self.reloads.get_or_create(&label(well)).inc();
        self.config_broken.set((!well).into());
    }

    pub(crate) fn note_status(&self, written: Written) {
        let label = label(written == Written::Well);
        self.statuses.get_or_create(&label).inc();
    }
}

/// Every figure that an operator has.
#[derive(Clone, Default)]
pub struct Figures {
    /// Of the engine.
    pub engine: EngineMetrics,
    /// Of calls to providers.
    pub calls: CallMetrics,
    /// Of sweeps.
    pub sweeps: SweepMetrics,
    /// Its own.
    pub operator: OperatorMetrics,
}

impl Figures {
    /// Puts them under their names.
    pub fn register(&self, registry: &mut Registry) {
        self.engine.register(registry);
        self.calls.register(registry);
        self.sweeps.register(registry);
        self.operator.register(registry);
    }
}
