//! Looks for orphans, surplus machines and leftovers now and then, and reports them.

use crate::{
    Handle,
    store::Store,
    sweep::{
        Freeze, Guards, Health, Known, Mode, Namespaces, Now, Sightings, SuspectClass, SweepReport,
        Synced, sweep,
    },
};
use egress_core::{Identity, MachineUid, ProviderName};
use egress_provider::Listing;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
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

    /// Takes back what was said of the present: another process sweeps now.
    pub fn clear(&self) {
        self.suspects.clear();
    }

    /// Takes back what was said of a provider that is configured no more.
    fn forget(&self, provider: &ProviderName) {
        for class in [Class::orphan, Class::surplus, Class::leftover] {
            let provider = provider.to_string();
            self.suspects.remove(&Suspects { provider, class });
        }
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

/// The UIDs of the machines of Proxies that are wanted and may have no record yet.
pub type Wanted = Arc<dyn Fn() -> Vec<MachineUid> + Send + Sync>;

/// Is told each complete listing and what a sweep of it found.
pub type Told = Arc<dyn Fn(&ProviderName, &Listing, &SweepReport) + Send + Sync>;

/// Compares what is on the providers with the records, now and then.
pub struct Sweeper {
    /// Whose providers.
    pub handle: Handle,
    /// The records.
    pub store: Arc<dyn Store>,
    /// Who we are.
    pub identity: Identity,
    /// The namespaces whose Proxies are ours to look after.
    pub scope: Namespaces,
    /// Who else is wanted.
    pub wanted: Wanted,
    /// The figures.
    pub metrics: SweepMetrics,
    /// Who is told.
    pub told: Option<Told>,
}

impl Sweeper {
    /// Sweeps every provider every ten minutes, and only reports.
    pub async fn sweep_forever(self) {
        let epoch = Instant::now();
        let mut sightings: BTreeMap<ProviderName, Sightings> = BTreeMap::new();
        // Not in the midst of the start.
        tokio::time::sleep(PERIOD / 10).await;
        loop {
            let lanes = self.handle.parts().providers.all();
            sightings.retain(|name, _| {
                let stays = lanes.iter().any(|lane| lane.provider().name() == name);
                if !stays {
                    self.metrics.forget(name);
                }
                stays
            });
            for lane in lanes {
                let provider = lane.provider();
                let Ok(listing) = provider.list(&lane.expected()).await else {
                    continue; // counted and told where the call is observed
                };
                let Some(known) = self.known().await else {
                    continue;
                };
                let now = Now {
                    since_start: epoch.elapsed(),
                    wall: jiff::Timestamp::now(),
                };
                let earlier = sightings.entry(provider.name().clone()).or_default();
                let report = sweep(&listing, &known, &self.guards(), earlier, now);
                for suspect in &report.suspects {
                    tracing::warn!(provider = %provider.name(), "{suspect}");
                }
                self.metrics.set(provider.name(), &report);
                let figures = self.handle.provider_figures();
                figures.note_listing(provider.name(), &listing, now.wall);
                if let Some(tell) = &self.told {
                    tell(provider.name(), &listing, &report);
                }
                earlier.note(&report, now);
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    fn guards(&self) -> Guards {
        Guards {
            mode: Mode::Report,
            freeze: Freeze::Running,
            identity: self.identity.clone(),
            scope: self.scope.clone(),
            read_live: self.scope.clone(),
            synced: Synced::Yes,
            store: if self.handle.store_trouble().is_none() {
                Health::Healthy
            } else {
                Health::Unhealthy
            },
            provider: Health::Healthy,
            cap: CAP,
            period: PERIOD,
        }
    }

    async fn known(&self) -> Option<Known> {
        let mut known = Known::default();
        for (id, stored) in self.store.list().await.ok()? {
            match stored {
                Ok(stored) => known.insert_record(&stored.record),
                Err(_) => known.insert_unreadable(id),
            }
        }
        for uid in (self.wanted)() {
            known.insert_wanted(&uid);
        }
        Some(known)
    }
}
