//! Looks for orphans, surplus machines and leftovers, and reports them.

use egress_core::machine::ProviderName;
use egress_engine::{
    Handle,
    store::{Store, file::FileStore},
    sweep::{
        Freeze, Guards, Health, Known, Mode, Namespaces, Now, Sightings, SuspectClass, SweepReport,
        Synced, sweep,
    },
};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// The time from one sweep to the next.
const PERIOD: Duration = Duration::from_mins(10);
/// How many might be collected in one sweep, once collecting is offered.
const CAP: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are lower case")]
enum Class {
    orphan,
    surplus,
    leftover,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Suspects {
    provider: String,
    class: Class,
}

/// Figures of the sweep.
#[derive(Clone, Debug, Default)]
pub struct SweepMetrics {
    suspects: Family<Suspects, Gauge>,
}

impl SweepMetrics {
    /// Puts the figures under their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "egress_proxies_sweep_suspects",
            "Machines and seeds of ours that no Proxy accounts for, by the last complete listing",
            self.suspects.clone(),
        );
    }

    /// Shows what a sweep of this provider found.
    pub fn set(&self, provider: &ProviderName, report: &SweepReport) {
        for (class, counted) in [
            (Class::orphan, SuspectClass::Orphan),
            (Class::surplus, SuspectClass::Surplus),
            (Class::leftover, SuspectClass::Leftover),
        ] {
            let label = Suspects {
                provider: provider.to_string(),
                class,
            };
            let count = i64::try_from(report.count(counted)).unwrap_or(i64::MAX);
            self.suspects.get_or_create(&label).set(count);
        }
    }
}

/// Sweeps every provider every ten minutes, and only reports.
pub async fn sweep_forever(handle: Handle, store: FileStore, metrics: SweepMetrics) {
    let epoch = Instant::now();
    let mut sightings: BTreeMap<ProviderName, Sightings> = BTreeMap::new();
    // Not in the midst of the start.
    tokio::time::sleep(PERIOD / 10).await;
    loop {
        for lane in handle.parts().providers.all() {
            let provider = lane.provider();
            let Ok(listing) = provider.list(&lane.expected()).await else {
                continue; // counted and told where the call is observed
            };
            let Some(known) = known(&store).await else {
                continue;
            };
            let now = Now {
                since_start: epoch.elapsed(),
                wall: jiff::Timestamp::now(),
            };
            let guards = guards(&handle, &store);
            let earlier = sightings.entry(provider.name().clone()).or_default();
            let report = sweep(&listing, &known, &guards, earlier, now);
            for suspect in &report.suspects {
                tracing::warn!(provider = %provider.name(), "{suspect}");
            }
            metrics.set(provider.name(), &report);
            earlier.note(&report, now);
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn guards(handle: &Handle, store: &FileStore) -> Guards {
    Guards {
        mode: Mode::Report,
        freeze: Freeze::Running,
        identity: store.identity(),
        scope: Namespaces::All,
        read_live: Namespaces::All,
        synced: Synced::Yes,
        store: if handle.store_trouble().is_none() {
            Health::Healthy
        } else {
            Health::Unhealthy
        },
        provider: Health::Healthy,
        cap: CAP,
        period: PERIOD,
    }
}

async fn known(store: &FileStore) -> Option<Known> {
    let mut known = Known::default();
    for (id, stored) in store.list().await.ok()? {
        match stored {
            Ok(stored) => known.insert_record(&stored.record),
            Err(_) => known.insert_unreadable(id),
        }
    }
    Some(known)
}
