//! Many machines on Proxmox VE at once, and taken over by the next process, in virtual time.

use egress_core::{
    plan::Phase,
    status::{ConditionType, ProxyStatus, Reason},
};
use egress_engine::{
    Always, Engine, Handle, Providers, metrics::EngineMetrics, pass::Parts,
    store::memory::MemoryStore,
};
use egress_proxmox_sim::world::Setup;
use egress_simtest::{
    ground::{Ground, Hypervisor as _, wanted},
    pve::Pve,
};
use std::{sync::Arc, time::Duration};
use tokio::{task::JoinHandle, time::Instant};

const HOPELESS: Duration = Duration::from_mins(20);

/// Engines with this store, one after the other, that keep so many machines.
struct Site {
    pve: Arc<Pve>,
    ground: Ground<Pve>,
    store: Arc<MemoryStore>,
    machines: usize,
}

impl Site {
    fn of(machines: usize) -> Self {
        let pve = Pve::new(&Setup::default(), |_| {});
        Self {
            ground: Ground::on(pve.clone()),
            store: Arc::new(MemoryStore::new()),
            pve,
            machines,
        }
    }

    fn start(&self) -> (Handle, JoinHandle<()>) {
        let parts = Parts {
            store: self.store.clone(),
            providers: Arc::new(Providers::new([self.pve.provider().0])),
            credentials: self.ground.passwords.clone(),
            prober: self.pve.prober(),
            permits: Arc::new(Always),
        };
        let (engine, handle) = Engine::new(parts, EngineMetrics::default());
        let running = tokio::spawn(async move {
            engine.load().await.expect("the store can be read");
            let _ = engine.run(std::future::pending()).await;
        });
        for number in 0..self.machines {
            handle.want(wanted(&format!("proxy-{number}"), 1));
        }
        (handle, running)
    }

    /// How long it takes until this holds of all.
    async fn all(&self, handle: &Handle, holds: impl Fn(&ProxyStatus) -> bool) -> Duration {
        let begun = Instant::now();
        let mut changes = handle.changes();
        loop {
            let views = handle.views();
            if views.iter().filter(|v| holds(&v.status)).count() == self.machines {
                return begun.elapsed();
            }
            assert!(begun.elapsed() < HOPELESS, "not all of them");
            changes.changed().await.expect("the engine lives");
        }
    }
}

fn runs(status: &ProxyStatus) -> bool {
    status.phase == Phase::Running
}

/// Whether the machine is known to be started; its guest may boot.
fn is_started(status: &ProxyStatus) -> bool {
    let provisioned = status.condition(ConditionType::Provisioned);
    provisioned.is_some_and(|c| matches!(c.reason, Reason::NoAddress | Reason::Provisioned))
}

#[tokio::test(start_paused = true)]
async fn guests_stand_in_line_to_be_asked_and_none_comes_again_a_round_later() {
    let site = Site::of(40);
    let (handle, before) = site.start();
    let taken = site.all(&handle, runs).await;
    assert!(taken < Duration::from_secs(25), "{taken:?}");
    before.abort();
    let (handle, now) = site.start();
    let taken = site.all(&handle, runs).await;
    now.abort();
    assert!(taken < Duration::from_secs(1), "{taken:?}");
}

/// Four clone at once. Five waves of 0.28 s, each with its first poll, and 0.6 s to configure,
/// grow and start the last machine are 2 s; looking beforehand takes its share.
#[tokio::test(start_paused = true)]
async fn whoever_waits_to_clone_begins_when_another_ends_and_nobody_is_forgotten() {
    let site = Site::of(20);
    let (handle, engine) = site.start();
    let taken = site.all(&handle, is_started).await;
    engine.abort();
    assert!(taken < Duration::from_millis(2300), "{taken:?}");
}
