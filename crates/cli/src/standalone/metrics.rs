//! What standalone mode counts beside the engine and the providers.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::Registry,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are lower case")]
enum ScanResult {
    complete,
    incomplete,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ScanLabel {
    result: ScanResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are lower case")]
enum ReloadResult {
    ok,
    broken,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabel {
    result: ReloadResult,
}

/// Figures of the manifest directory and the configuration file; a clone is the same figures.
#[derive(Clone, Debug, Default)]
pub struct StandaloneMetrics {
    scans: Family<ScanLabel, Counter>,
    waiting_for_prune: Gauge,
    reloads: Family<ReloadLabel, Counter>,
}

impl StandaloneMetrics {
    /// Puts the figures under their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "egress_proxies_build",
            "The version of this program",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        registry.register(
            "egress_proxies_standalone_scans",
            "Scans of the manifest directory; an incomplete one deletes nothing",
            self.scans.clone(),
        );
        registry.register(
            "egress_proxies_standalone_waiting_for_prune",
            "Proxies without a manifest that wait for prune, by the last complete scan",
            self.waiting_for_prune.clone(),
        );
        registry.register(
            "egress_proxies_standalone_reloads",
            "Changes of the configuration file; a broken one changes nothing",
            self.reloads.clone(),
        );
    }

    /// A complete scan, and how many Proxies wait for `prune` after it.
    pub fn note_complete_scan(&self, waiting_for_prune: usize) {
        let result = ScanResult::complete;
        self.scans.get_or_create(&ScanLabel { result }).inc();
        let waiting = i64::try_from(waiting_for_prune).unwrap_or(i64::MAX);
        self.waiting_for_prune.set(waiting);
    }

    /// A scan that says nothing about what is absent.
    pub fn note_incomplete_scan(&self) {
        let result = ScanResult::incomplete;
        self.scans.get_or_create(&ScanLabel { result }).inc();
    }

    /// A changed configuration is in force.
    pub fn note_reload(&self) {
        let result = ReloadResult::ok;
        self.reloads.get_or_create(&ReloadLabel { result }).inc();
    }

    /// A changed configuration is broken; the one before stays in force.
    pub fn note_broken_reload(&self) {
        let result = ReloadResult::broken;
        self.reloads.get_or_create(&ReloadLabel { result }).inc();
    }
}
