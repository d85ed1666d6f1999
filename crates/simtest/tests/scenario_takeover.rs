//! Many machines on Proxmox VE, made by one process and taken over by the next, in virtual time.

use egress_core::plan::Phase;
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

const MACHINES: usize = 40;
const HOPELESS: Duration = Duration::from_mins(20);

/// Engines with this store, one after the other.
struct Site {
    pve: Arc<Pve>,
    ground: Ground<Pve>,
    store: Arc<MemoryStore>,
}

impl Site {
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
        for number in 0..MACHINES {
            handle.want(wanted(&format!("proxy-{number}"), 1));
        }
        (handle, running)
    }
}

/// How long it takes until it knows that all run.
async fn all_run(handle: &Handle) -> Duration {
    let begun = Instant::now();
    let mut changes = handle.changes();
    loop {
        let views = handle.views();
        let running = views.iter().filter(|v| v.status.phase == Phase::Running);
        if running.count() == MACHINES {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < HOPELESS, "not all run");
        changes.changed().await.expect("the engine lives");
    }
}

#[tokio::test(start_paused = true)]
async fn guests_stand_in_line_to_be_asked_and_none_comes_again_a_round_later() {
    let pve = Pve::new(&Setup::default(), |_| {});
    let site = Site {
        ground: Ground::on(pve.clone()),
        store: Arc::new(MemoryStore::new()),
        pve,
    };
    let (handle, before) = site.start();
    let taken = all_run(&handle).await;
    assert!(taken < Duration::from_secs(25), "{taken:?}");
    before.abort();
    let (handle, now) = site.start();
    let taken = all_run(&handle).await;
    now.abort();
    assert!(taken < Duration::from_secs(1), "{taken:?}");
}
