//! From an applied Proxy to a started machine on Proxmox VE, over the schedule that the
//! hypervisor's own times allow; and what a thousand such machines cost the engine.
//!
//! The schedule is measured in virtual time over the simulator in this process: the simulator's
//! task times and answers are those recorded on a host, and nothing else takes time. So the
//! ratio tells what waits and polls cost, and no noise of this machine is in it.

mod measure;

use egress_core::{
    proxy::Intent,
    status::{ConditionType, Reason},
};
use egress_engine::{
    Always, Engine, Handle, Providers, metrics::EngineMetrics, pass::Parts,
    store::memory::MemoryStore,
};
use egress_proxmox::client::poll_waits;
use egress_proxmox_sim::world::{Setup, Timings};
use egress_simtest::{
    ground::{Ground, Hypervisor as _, wanted},
    pve::Pve,
};
use measure::{
    Kept, figure, head, memory, number, processor_time, program, quantile, row,
    standing::{first_line, manifests, provisioned, sealed, simulator},
};
use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Clones that run at once on a storage where the configuration names no limit.
const CLONES: usize = 4;
/// How many machines the last section brings up.
const MANY: u32 = 1000;
const HOPELESS: Duration = Duration::from_mins(20);

fn main() {
    schedule();
    println!();
    standing();
}

/// Time from the wish to the started machine, over the ideal one.
fn schedule() {
    println!(
        "Seconds from the wish to the started machine, {CLONES} clones at once, and the ideal: \
         answers and tasks of the simulator, each task's end rounded up to its next poll.\n"
    );
    head(&[
        "machines at once",
        "p50",
        "ideal p50",
        "ratio p50",
        "p99",
        "ideal p99",
        "ratio p99",
    ]);
    for count in [1, 20, number("--crowd", 100)] {
        eprintln!("{count} at once");
        let ours = in_virtual_time(count);
        let ideal: Vec<f64> = (0..count as usize).map(ideal).collect();
        let mut cells = vec![count.to_string()];
        for part in [0.5, 0.99] {
            let (ours, ideal) = (quantile(&ours, part), quantile(&ideal, part));
            cells.extend([
                figure(ours),
                figure(ideal),
                format!("**{}x**", figure(ours / ideal)),
            ]);
        }
        row(cells);
    }
}

/// When the machine with this number in the queue is started at best.
fn ideal(number: usize) -> f64 {
    let t = Timings::default();
    let polled = |task: f64| {
        let mut polls = poll_waits().scan(0.0, |at, wait| {
            *at += wait.as_secs_f64() + t.read;
            Some(*at)
        });
        polls.find(|at| *at >= task).expect("polls never end")
    };
    let clone = t.mutation + polled(t.clone_begins + t.clone_disk + 2.0 * t.clone_ends);
    let waves = (number / CLONES + 1) as f64;
    // Look for the machine and its template before. After: its configuration is read and
    // written, its disk grown, and it is started.
    let grow = t.mutation + polled(t.resize);
    2.0 * t.read + waves * clone + t.read + t.mutation + grow + t.mutation + polled(t.start)
}

fn in_virtual_time(count: u32) -> Vec<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime.expect("a runtime").block_on(bring_up(count))
}

async fn bring_up(count: u32) -> Vec<f64> {
    let pve = Pve::new(&Setup::default(), |_| {});
    let ground = Ground::on(pve.clone());
    let parts = Parts {
        store: Arc::new(MemoryStore::new()),
        providers: Arc::new(Providers::new([pve.provider().0])),
        credentials: ground.passwords.clone(),
        prober: pve.prober(),
        permits: Arc::new(Always),
    };
    let (engine, handle) = Engine::new(parts, EngineMetrics::default());
    let begun = tokio::time::Instant::now();
    let engine = tokio::spawn(engine.run(std::future::pending()));
    for number in 0..count {
        let mut desired = wanted(&format!("proxy-{number}"), 1);
        if let Intent::Run(spec) = &mut desired.intent {
            spec.probe_interval = Duration::from_secs(10);
        }
        handle.want(desired);
    }
    let mut changes = handle.changes();
    let mut started = BTreeMap::new();
    while started.len() < count as usize {
        changes.changed().await.expect("the engine lives");
        for name in running(&handle) {
            started
                .entry(name)
                .or_insert_with(|| begun.elapsed().as_secs_f64());
        }
        assert!(begun.elapsed() < HOPELESS, "{} started", started.len());
    }
    engine.abort();
    started.into_values().collect()
}

/// The Proxies whose machine is known to be started.
fn running(handle: &Handle) -> Vec<String> {
    let started = |reason| matches!(reason, Reason::NoAddress | Reason::Provisioned);
    let views = handle.views().into_iter();
    views
        .filter(|view| {
            let condition = view.status.condition(ConditionType::Provisioned);
            condition.is_some_and(|c| started(c.reason))
        })
        .map(|view| view.proxy.to_string())
        .collect()
}

/// What so many machines cost a real standalone engine beside a real simulator.
fn standing() {
    let program = program("BENCH_EGRESS_PROXIES");
    let count = number("--standing", MANY);
    let dir = tempfile::tempdir().expect("a directory can be made");
    let path = |name: &str| dir.path().join(name);
    for name in ["config", "manifests"] {
        fs::create_dir(path(name)).expect("a directory can be made");
    }
    let _sim = simulator(
        &program,
        "proxyd",
        &path("sim"),
        &path("config/config.yaml"),
    );
    fs::write(path("manifests/all.yaml"), manifests(count)).expect("a file can be written");

    let mut engine = Command::new(&program);
    engine
        .args(["--log-format", "json", "standalone", "--config"])
        .arg(path("config/config.yaml"))
        .arg("--manifests")
        .arg(path("manifests"))
        .arg("--state-dir")
        .arg(path("state"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let begun = Instant::now();
    let mut engine = Kept(engine.spawn().expect("the engine starts"));
    let admin = first_line(engine.0.stdout.take().expect("piped"));
    let admin = admin
        .split("http://")
        .nth(1)
        .expect("its admin page")
        .trim_end_matches('/')
        .to_owned();
    let pid = engine.0.id();
    while provisioned(&admin) < count as usize {
        assert!(begun.elapsed() < HOPELESS, "not all are provisioned");
        thread::sleep(Duration::from_millis(500));
    }
    let up = begun.elapsed().as_secs_f64();
    eprintln!("all provisioned after {up:.0} s");
    while sealed(&admin) < count as usize {
        assert!(begun.elapsed() < HOPELESS, "not all are sealed");
        thread::sleep(Duration::from_millis(500));
    }
    thread::sleep(Duration::from_secs(30));
    let seconds = number("--idle-seconds", 60);
    let (used, since) = (processor_time(pid), Instant::now());
    thread::sleep(Duration::from_secs(seconds.into()));
    let used = processor_time(pid).saturating_sub(used);
    let idle = 100.0 * used.as_secs_f64() / since.elapsed().as_secs_f64();
    println!(
        "Standalone and a simulator of 100 times the speed, each a process, and a `proxyd` for \
         each machine; once all are proven and sealed, each is asked every 10 s who it is.\n"
    );
    head(&[
        "machines",
        "all provisioned, s",
        "engine RSS, MiB",
        "standing still, % of a core",
    ]);
    row([
        count.to_string(),
        figure(up),
        figure(memory(pid, "VmRSS")),
        figure(idle),
    ]);
}
