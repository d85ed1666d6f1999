//! What the proxy counts; every label is from a closed set.

use crate::answer::Refusal;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::{Registry, Unit},
};

/// What became of an accepted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Admission {
    Served,
    OutsideClients,
    OverLimit,
    OverClientLimit,
}

impl Admission {
    const ALL: [Self; 4] = [
        Self::Served,
        Self::OutsideClients,
        Self::OverLimit,
        Self::OverClientLimit,
    ];
}

/// What a request asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum RequestKind {
    Forward,
    Connect,
    Identity,
    Other,
}

impl RequestKind {
    const ALL: [Self; 4] = [Self::Forward, Self::Connect, Self::Identity, Self::Other];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AdmissionLabel {
    admission: Admission,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: RequestKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: Refusal,
}

/// Every metric of one server. Counters are looked up once, at the start: a request only
/// adds to atomics.
pub(crate) struct Metrics {
    registry: Registry,
    admissions: [Counter; Admission::ALL.len()],
    requests: [Counter; RequestKind::ALL.len()],
    refusals: [Counter; Refusal::ALL.len()],
    pub(crate) open_connections: Gauge,
    pub(crate) open_tunnels: Gauge,
    pub(crate) kept_connections: Gauge,
    pub(crate) reused_connections: Counter,
    pub(crate) sent_bytes: Counter,
    pub(crate) received_bytes: Counter,
    pub(crate) dial_seconds: Histogram,
    pub(crate) draining: Gauge,
}

impl Metrics {
    pub(crate) fn new(generation: u32) -> Self {
        let admissions = Family::<AdmissionLabel, Counter>::default();
        let requests = Family::<KindLabel, Counter>::default();
        let refusals = Family::<ReasonLabel, Counter>::default();
        let credential_generation = Gauge::<i64>::default();
        credential_generation.set(i64::from(generation));
        let mut metrics = Self {
            registry: Registry::with_prefix("egress_proxies_proxyd"),
            admissions: Admission::ALL
                .map(|admission| admissions.get_or_create_owned(&AdmissionLabel { admission })),
            requests: RequestKind::ALL
                .map(|kind| requests.get_or_create_owned(&KindLabel { kind })),
            refusals: Refusal::ALL
                .map(|reason| refusals.get_or_create_owned(&ReasonLabel { reason })),
            open_connections: Gauge::default(),
            open_tunnels: Gauge::default(),
            kept_connections: Gauge::default(),
            reused_connections: Counter::default(),
            sent_bytes: Counter::default(),
            received_bytes: Counter::default(),
            dial_seconds: Histogram::new(exponential_buckets(0.001, 4.0, 8)),
            draining: Gauge::default(),
        };
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        let registry = &mut metrics.registry;
        registry.register("build", "The version of proxyd", build);
        registry.register(
            "accepted_connections",
            "Connections accepted from the kernel, by what became of them",
            admissions,
        );
        registry.register(
            "requests",
            "Requests that passed authentication, by kind",
            requests,
        );
        registry.register(
            "refusals",
            "Answers of the proxy's own that refuse",
            refusals,
        );
        registry.register(
            "open_connections",
            "Client connections open now, tunnels included",
            metrics.open_connections.clone(),
        );
        registry.register(
            "open_tunnels",
            "CONNECT tunnels open now",
            metrics.open_tunnels.clone(),
        );
        registry.register(
            "kept_connections",
            "Unused connections to targets, kept for the next request",
            metrics.kept_connections.clone(),
        );
        registry.register(
            "reused_connections",
            "Requests sent over a kept connection",
            metrics.reused_connections.clone(),
        );
        registry.register_with_unit(
            "sent",
            "Bytes from clients to targets: tunnels and request bodies",
            Unit::Bytes,
            metrics.sent_bytes.clone(),
        );
        registry.register_with_unit(
            "received",
            "Bytes from targets to clients: tunnels and response bodies",
            Unit::Bytes,
            metrics.received_bytes.clone(),
        );
        registry.register_with_unit(
            "dial",
            "Time to connect to a target or to give up, name look-up included",
            Unit::Seconds,
            metrics.dial_seconds.clone(),
        );
        registry.register(
            "credential_generation",
            "The generation of the credentials in force; 0 without auth",
            credential_generation,
        );
        registry.register(
            "draining",
            "1 while shutting down",
            metrics.draining.clone(),
        );
        metrics
    }

    /// Counts one up until the value is dropped, also where a task is cut off.
    pub(crate) fn counted(gauge: &Gauge) -> Counted {
        gauge.inc();
        Counted(gauge.clone())
    }

    pub(crate) fn admitted(&self, admission: Admission) {
        self.admissions[admission as usize].inc();
    }

    pub(crate) fn requested(&self, kind: RequestKind) {
        self.requests[kind as usize].inc();
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        self.refusals[refusal as usize].inc();
    }

    /// The page a collector reads, as OpenMetrics text.
    pub(crate) fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string has no way to go wrong.
        let _ = encode(&mut page, &self.registry);
        page
    }
}

/// One that is counted in a gauge.
pub(crate) struct Counted(Gauge);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests;
