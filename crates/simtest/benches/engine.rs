//! What the engine costs: memory, idle processor time, writes of a steady hour, and the time
//! until everything runs. Each line is measured in a process of its own.

mod measure;

use async_trait::async_trait;
use egress_core::{
    ProxyId, Record,
    proxy::{Desired, Intent},
    status::{ConditionStatus, ConditionType},
};
use egress_engine::{
    Always, Engine, Handle, Providers, ProxyView,
    metrics::{EngineMetrics, PassLabel, PassResult},
    pass::Parts,
    store::{
        Store, StoreError, Stored, Version,
        file::{FileStore, OpenMode},
    },
};
use egress_provider::{
    Provider,
    memory::{Memory, Physics, Settings},
};
use egress_simtest::ground::{Ground, GuestProber, PROVIDER, wanted};
use measure::{figure, head, memory, number, processor_time, row, text};
use std::{
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// The interval of a manifest that names none.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Stores and sizes; the first size of a store is what the others are compared with.
const LINES: [(&str, &[u32]); 2] = [("memory", &[1, 1000, 10_000]), ("file", &[1, 10_000])];
const HOUR: Duration = Duration::from_hours(1);

fn main() {
    if let Some(store) = text("--store") {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let line = runtime
            .expect("a runtime")
            .block_on(measured(&store, number("--proxies", 1)));
        println!("{line}");
        return;
    }
    println!(
        "Probe interval {} s, the default. The memory is what the process holds more than before, \
         the simulated hypervisor included. One machine takes 12 to 13 s to make and boot.\n",
        PROBE_INTERVAL.as_secs()
    );
    head(&[
        "store, proxies",
        "RSS added, MiB",
        "converged, s",
        "over one proxy",
        "idle, % of a core",
        "steady hour, % of a core",
        "µs a pass",
        "writes in that hour",
    ]);
    for (store, sizes) in LINES {
        let mut one = f64::NAN;
        for &proxies in sizes {
            eprintln!("{store} store, {proxies} proxies");
            let line = in_own_process(store, proxies);
            let figures: Vec<f64> = line
                .split_whitespace()
                .map(|field| field.parse().expect("a figure"))
                .collect();
            let [rss, converged, idle, hour, pass, writes] = figures[..] else {
                panic!("not the figures of a line: {line}");
            };
            if proxies == 1 {
                one = converged;
            }
            row([
                format!("{store}, {proxies}"),
                figure(rss),
                figure(converged),
                format!("{}x", figure(converged / one)),
                figure(idle),
                figure(hour),
                figure(pass),
                writes.to_string(),
            ]);
        }
    }
}

/// Memory is told honestly only by a process that held nothing before.
fn in_own_process(store: &str, proxies: u32) -> String {
    let child = Command::new(std::env::current_exe().expect("our path"))
        .args(["--store", store, "--proxies", &proxies.to_string()])
        .args(["--idle-seconds", &number("--idle-seconds", 30).to_string()])
        .stderr(Stdio::inherit())
        .output()
        .expect("this program starts");
    assert!(child.status.success(), "{store}, {proxies}: failed");
    String::from_utf8_lossy(&child.stdout).into_owned()
}

/// Brings so many proxies up, watches them stand still, and lets an hour pass: the figures
/// of one line.
async fn measured(kind: &str, proxies: u32) -> String {
    let pid = std::process::id();
    let ground = Ground::new(Physics::default());
    let dir = tempfile::tempdir().expect("a directory");
    let store = Arc::new(Counted {
        store: match kind {
            "file" => Arc::new(file_store(dir.path())),
            _ => ground.records.open(Arc::new(Always), Duration::ZERO).store,
        },
        writes: AtomicU64::new(0),
    });
    let metrics = EngineMetrics::default();
    let passes = || {
        let result = PassResult::ok;
        metrics.passes.get_or_create(&PassLabel { result }).get()
    };
    let (engine, handle) = Engine::new(parts(&ground, store.clone()), metrics.clone());

    let (before, begun) = (memory(pid, "VmRSS"), Instant::now());
    let engine = tokio::spawn(engine.run(std::future::pending()));
    for number in 0..proxies {
        handle.want(desired(number));
    }
    until("every proxy serves", || serving(&handle) == proxies).await;
    let converged = begun.elapsed().as_secs_f64();
    eprintln!("  all serve after {converged:.1} s");
    // Seeds are sealed away in the passes after the first proof.
    until("every seed is sealed away", || {
        ground.world.inventory().seeds.is_empty()
    })
    .await;
    sleep(PROBE_INTERVAL).await;
    let rss = memory(pid, "VmRSS") - before;

    let (used, since) = (processor_time(pid), Instant::now());
    sleep(Duration::from_secs(number("--idle-seconds", 30).into())).await;
    let idle = share(processor_time(pid).saturating_sub(used), since.elapsed());

    tokio::time::pause();
    let (used, written, made) = (processor_time(pid), store.writes.load(Relaxed), passes());
    sleep(HOUR).await;
    let used = processor_time(pid).saturating_sub(used);
    let writes = store.writes.load(Relaxed) - written;
    let pass = used.as_secs_f64() * 1e6 / (passes() - made).max(1) as f64;
    assert!(!engine.is_finished(), "the engine ended");
    let hour = share(used, HOUR);
    format!("{rss} {converged} {idle} {hour} {pass} {writes}")
}

fn share(used: Duration, of: Duration) -> f64 {
    100.0 * used.as_secs_f64() / of.as_secs_f64()
}

fn desired(number: u32) -> Desired {
    let mut desired = wanted(&format!("proxy-{number}"), 1);
    if let Intent::Run(spec) = &mut desired.intent {
        spec.probe_interval = PROBE_INTERVAL;
    }
    desired
}

fn serving(handle: &Handle) -> u32 {
    let serves = |view: &&Arc<ProxyView>| {
        let condition = view.status.condition(ConditionType::Serving);
        condition.is_some_and(|c| c.status == ConditionStatus::True)
    };
    handle.views().iter().filter(serves).count() as u32
}

/// Waits in real time, without hope after ten minutes.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_mins(10), "never: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

fn file_store(dir: &Path) -> FileStore {
    let installation = Ground::identity().installation;
    let mode = OpenMode::default();
    FileStore::open(&dir.join("state"), &installation, "bench", mode).expect("a state directory")
}

fn parts(ground: &Ground, store: Arc<Counted>) -> Parts {
    let provider: Arc<dyn Provider> = Arc::new(Memory::new(
        PROVIDER.parse().expect("a legal name"),
        Ground::identity(),
        ground.world.clone(),
        Settings::default(),
    ));
    Parts {
        store,
        providers: Arc::new(Providers::new([provider])),
        credentials: ground.passwords.clone(),
        prober: Arc::new(GuestProber(ground.world.clone())),
        permits: Arc::new(Always),
    }
}

/// A store that counts what is written.
struct Counted {
    store: Arc<dyn Store>,
    writes: AtomicU64,
}

#[async_trait]
impl Store for Counted {
    async fn load(&self, id: &ProxyId) -> Result<Option<Stored>, StoreError> {
        self.store.load(id).await
    }
    async fn save(
        &self,
        id: &ProxyId,
        record: &Record,
        expected: Option<&Version>,
    ) -> Result<Version, StoreError> {
        self.writes.fetch_add(1, Relaxed);
        self.store.save(id, record, expected).await
    }
    async fn remove(&self, id: &ProxyId, expected: &Version) -> Result<(), StoreError> {
        self.writes.fetch_add(1, Relaxed);
        self.store.remove(id, expected).await
    }
    async fn list(&self) -> Result<Vec<(ProxyId, Result<Stored, StoreError>)>, StoreError> {
        self.store.list().await
    }
}
