//! `standalone`: the engine on one host, with a manifest directory and a state directory.
//!
//! ```text
//! manifests/*.yaml ─▶ keeper ─▶ engine ─▶ providers        config.yaml ─▶ providers
//!                       │          └────▶ state directory   admin page ─▶ get, prune
//!                       └─ absence: two scans, guards, prune
//! ```

mod absence;
mod admin;
mod credentials;
mod host_lock;
mod keeper;
mod manifests;
mod metrics;
mod permits;
mod quickstart;
mod reader;
mod rebuild;
mod reload;
mod running;
mod table;
mod watch;

use crate::{
    config::{Config, Faulty, PayloadArguments},
    failure::Failure,
    logs, stop_signal,
    wording::counted,
};
use credentials::StandaloneCredentials;
use egress_core::{MachineUid, ProviderName, ProxyId, document::add_unreported};
use egress_engine::{
    Engine, Handle, HttpProber, Providers, checker,
    metrics::EngineMetrics,
    pass::Parts,
    store::file::{FileStore, OpenError, OpenMode, host_id},
    sweep::Namespaces,
    sweeper::{SweepMetrics, Sweeper},
};
use egress_provider::{
    Provider,
    layer::observed::{CallMetrics, Observed},
};
use keeper::{Keeper, Troubles};
use manifests::{Declared, Manifests, Scan};
pub use metrics::StandaloneMetrics;
use prometheus_client::registry::Registry;
use reader::{PATIENCE, Reader};
use reload::{ConfigFile, Fixed};
use running::{Running, farewell};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
    time::Duration,
};
use tokio::{net::TcpListener, sync::mpsc};

/// How often everything is looked at though nothing told of a change.
const RESCAN: Duration = Duration::from_secs(10);
/// How long a start waits for the manifests of Proxies that it has records of.
const FIRST_SCAN: Duration = Duration::from_secs(2);
/// How long it waits for the first look at each of them.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Arguments of `standalone`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Arguments {
    /// The configuration file; it is read again when it changes.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The directory with the manifests; it is read again when it changes.
    #[arg(long, value_name = "DIR", requires = "config")]
    manifests: Option<PathBuf>,
    /// Where records and generated passwords are kept. Default: /var/lib/egress-proxies for
    /// root, else egress-proxies in the user's state directory.
    #[arg(long, value_name = "DIR", requires = "config")]
    state_dir: Option<PathBuf>,
    /// Make a state directory of another host, installation or writer this one's. Only when
    /// no engine uses the original any more.
    #[arg(long, requires = "config")]
    take_over: bool,
    #[command(flatten)]
    payload: PayloadArguments,
}

impl Arguments {
    /// Whether nothing is configured: three proxies to try the product with.
    pub fn is_quick_start(&self) -> bool {
        self.config.is_none()
    }

    /// Where log lines go: below the live table, where there is one.
    pub fn log_target(&self) -> logs::Target {
        if self.config.is_some() && table::wanted() {
            logs::Target::Table
        } else {
            logs::Target::Stderr
        }
    }
}

/// Runs until a signal.
pub async fn run(arguments: Arguments) -> Result<(), Failure> {
    let Some(path) = arguments.config.clone() else {
        return quickstart::run().await;
    };
    let (text, config) = load(&path, &arguments).await?;
    let manifests = arguments
        .manifests
        .clone()
        .or_else(|| config.manifests.clone());
    let manifests = manifests.ok_or_else(|| {
        Failure::refused(format!(
            "{}: manifests: (missing): no manifest directory is named: set it, or give --manifests DIR",
            path.display()
        ))
    })?;
    let state_dir = state_dir(arguments.state_dir.as_deref(), Some(&config))?;
    let site = Site {
        config,
        manifests,
        state_dir,
        take_over: arguments.take_over,
        payload: arguments.payload.clone(),
    };
    let mut running = start(site).await?;
    // Before anyone is told that it runs, and may want to stop it.
    let stop = stop_signal();
    if arguments.log_target() == logs::Target::Table {
        let troubles = running.all_troubles.clone();
        running
            .helpers
            .push(tokio::spawn(table::draw(running.handle.clone(), troubles)));
    } else {
        println!(
            "watching {}; admin page http://{}/",
            running.fixed.manifests.display(),
            running.admin
        );
    }
    let file = ConfigFile::new(&path, Some(text), running.keeper.watch().beside(&path));
    let kept = running.keep(file, &arguments, stop).await?;
    println!("{}", farewell(kept));
    Ok(())
}

/// Reads the configuration. With one that has faults, those of the manifests are told too.
async fn load(path: &Path, arguments: &Arguments) -> Result<(String, Config), Failure> {
    let (file, flag) = (path.to_owned(), arguments.manifests.clone());
    let read = move || {
        let text = std::fs::read_to_string(&file);
        let again = text.as_ref().ok().cloned().unwrap_or_default();
        Config::of(&file, text)
            .map(|config| (again, config))
            .map_err(|Faulty { failure, partly }| {
                let named = partly.and_then(|config| config.manifests);
                let faults = flag
                    .or(named)
                    .map(|dir| Manifests::new(dir).scan().faults)
                    .unwrap_or_default();
                failure.and(faults)
            })
    };
    Reader::new(path.display())
        .read(PATIENCE, read)
        .await
        .map_err(|late| {
            Failure::refused(format!(
                "--config: {late}: see whether its file system answers"
            ))
        })?
}

/// What one standalone engine works with.
struct Site {
    config: Config,
    manifests: PathBuf,
    state_dir: PathBuf,
    take_over: bool,
    payload: PayloadArguments,
}

/// The state directory: the flag, else the configuration, else the user's.
pub fn state_dir(flag: Option<&Path>, config: Option<&Config>) -> Result<PathBuf, Failure> {
    if let Some(dir) = flag.or_else(|| config.and_then(|c| c.state_dir.as_deref())) {
        return Ok(dir.to_owned());
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/egress-proxies".into());
    }
    let variable = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    variable("XDG_STATE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
        .map(|dir| dir.join("egress-proxies"))
        .ok_or_else(|| {
            Failure::refused(
                "--state-dir: (missing): neither XDG_STATE_HOME nor HOME is set: name a directory",
            )
        })
}

async fn start(site: Site) -> Result<Running, Failure> {
    let Site {
        config,
        manifests,
        state_dir,
        take_over,
        payload,
    } = site;
    look_at_directory(&manifests).await?;
    // Both locks before the port: a second engine is told of the first one, not of its port.
    let store = open_store(&config, &state_dir, take_over).await?;
    let host_lock = host_lock::HostLock::take(&config.installation())?;
    let listener = TcpListener::bind(config.admin.listen).await.map_err(|e| {
        Failure::refused(format!(
            "admin.listen: {}: cannot listen there ({e}): choose a free port, or 0",
            config.admin.listen
        ))
    })?;
    let admin = listener
        .local_addr()
        .map_err(|e| Failure::failed(format!("admin page: {e}")))?;
    let names: Vec<ProviderName> = config.providers.iter().map(|p| p.name.clone()).collect();
    let remote = rebuild::remote_marks(&config, &store, &state_dir, take_over).await?;
    let rebuilt = rebuild::rebuild(&store, &names, remote).await?;
    if rebuilt > 0 {
        let records = counted(rebuilt, "lost record was", "lost records were");
        tracing::warn!("{records} rebuilt from the marks of machines");
    }

    let calls = CallMetrics::default();
    let engine_metrics = EngineMetrics::default();
    let sweeps = SweepMetrics::default();
    let figures = StandaloneMetrics::default();
    let registry = Arc::new(registry(&engine_metrics, &calls, &sweeps, &figures));
    let providers = Arc::new(Providers::new(observed(
        &config, &store, &state_dir, &payload, &calls,
    )));
    let credentials = Arc::new(StandaloneCredentials::new(store.credentials()));
    let parts = Parts {
        store: Arc::new(store.clone()),
        providers: providers.clone(),
        credentials: credentials.clone(),
        prober: Arc::new(HttpProber),
        permits: Arc::new(permits::StoreLock(store.clone())),
    };
    let (engine, handle) = Engine::new(parts, engine_metrics);
    let records = engine.load().await.map_err(|e| Failure::refused_by(&e))?;
    let has_records = !records.is_empty();
    let mut recorded: Vec<(ProxyId, MachineUid)> = Vec::new();
    for (id, record) in records {
        match record {
            Ok(record) => recorded.push((id, record.machine_uid)),
            Err(e) => tracing::error!(proxy = %id, "{}", e.chain()),
        }
    }

    let manifest_troubles = Troubles::default();
    let config_troubles = Troubles::default();
    let provider_troubles = Troubles::default();
    let sources = [
        manifest_troubles.clone(),
        config_troubles.clone(),
        provider_troubles.clone(),
    ];
    let all_troubles: Arc<dyn Fn() -> Vec<String> + Send + Sync> = Arc::new(move || {
        let read = |t: &Troubles| t.lock().unwrap_or_else(PoisonError::into_inner).clone();
        sources.iter().flat_map(read).collect()
    });
    let mut keeper = Keeper::new(
        handle.clone(),
        store.clone(),
        credentials.clone(),
        manifests.clone(),
        recorded.iter().cloned(),
        manifest_troubles,
        figures.clone(),
    );
    if !has_records {
        // Nothing runs yet that a refusal could take down.
        refuse_faults(&keeper.scan(PATIENCE).await, &config)?;
    }
    let (stop_engine, stopped) = tokio::sync::oneshot::channel::<()>();
    let engine = tokio::spawn(engine.run(async {
        let _ = stopped.await;
    }));
    // Whoever asks the page is to find all that is recorded on it.
    let first = keeper.scan(FIRST_SCAN).await;
    keeper.apply(&first, &config).await;
    look_once(&handle, &recorded).await;

    let token = admin::write_token(&state_dir)?;
    store
        .write_admin(admin)
        .map_err(|e| Failure::refused_by(&e))?;
    let (requests, prune) = mpsc::channel(4);
    let page = egress_engine::admin::router(
        handle.clone(),
        registry,
        all_troubles.clone(),
        keeper.declarations(),
    );
    let page = admin::router(page, token, requests);
    let sweeper = Sweeper {
        handle: handle.clone(),
        store: Arc::new(store.clone()),
        identity: store.identity(),
        scope: Namespaces::All,
        wanted: Arc::new(Vec::new),
        metrics: sweeps,
        told: None,
    };
    let helpers = vec![
        tokio::spawn(async move {
            if let Err(e) =
                egress_engine::admin::serve(listener, page, std::future::pending()).await
            {
                tracing::error!("the admin page ended: {e}");
            }
        }),
        tokio::spawn(checker::check_forever(
            handle.clone(),
            provider_troubles,
            None,
        )),
        tokio::spawn(sweeper.sweep_forever()),
    ];
    let fixed = Fixed {
        installation: config.installation(),
        listen: config.admin.listen,
        manifests,
        state_dir,
    };
    Ok(Running {
        handle,
        keeper,
        config,
        fixed,
        config_troubles,
        all_troubles,
        engine,
        stop_engine,
        prune,
        helpers,
        store,
        _host_lock: host_lock,
        credentials,
        admin,
        calls,
        figures,
    })
}

/// Refuses a manifest directory that cannot be read at the start.
async fn look_at_directory(dir: &Path) -> Result<(), Failure> {
    let path = dir.to_owned();
    let read = move || std::fs::read_dir(path).map(drop);
    let refused = |why: String| {
        Failure::refused(format!(
            "--manifests: {}: {why}: name a readable directory",
            dir.display()
        ))
    };
    Reader::new("it")
        .read(PATIENCE, read)
        .await
        .map_err(refused)?
        .map_err(|e: io::Error| refused(format!("cannot be read ({e})")))
}

/// Waits a moment for the first look at each of these.
async fn look_once(handle: &Handle, recorded: &[(ProxyId, MachineUid)]) {
    let mut changes = handle.changes();
    let all = async {
        while recorded.iter().any(|(id, _)| handle.view(id).is_none()) {
            if changes.changed().await.is_err() {
                break;
            }
        }
    };
    // A hypervisor that hangs must not keep the page away.
    let _late = tokio::time::timeout(FIRST_LOOK, all).await;
}

/// Every fault of the manifests, where there is any.
fn refuse_faults(scan: &Scan, config: &Config) -> Result<(), Failure> {
    let mut lines = scan.faults.clone();
    for (id, declared) in &scan.proxies {
        let mut findings = match declared {
            Declared::Sound(_) | Declared::Faulty(_, None) => Vec::new(),
            Declared::Faulty(told, Some(_)) => told.clone(),
        };
        let told = findings.len(); // among the faults of its file
        if let Declared::Sound(proxy) | Declared::Faulty(_, Some(proxy)) = declared {
            add_unreported(&mut findings, config.refuses(proxy));
        }
        lines.extend(findings[told..].iter().map(|f| format!("{id}: {f}")));
    }
    if lines.is_empty() {
        lines.clone_from(&scan.gaps); // a file that cannot be read at all
    }
    if lines.is_empty() {
        Ok(())
    } else {
        Err(Failure::refused_lines(lines))
    }
}

async fn open_store(config: &Config, dir: &Path, take_over: bool) -> Result<FileStore, Failure> {
    let host = host_id().map_err(|e| {
        Failure::refused(format!(
            "/etc/machine-id cannot be read ({e}): make it readable"
        ))
    })?;
    let (dir, installation) = (dir.to_owned(), config.installation());
    tokio::task::spawn_blocking(move || {
        FileStore::open(&dir, &installation, &host, OpenMode { take_over })
    })
    .await
    .map_err(|e| Failure::failed(format!("opening the state directory: {e}")))?
    .map_err(|e| {
        let in_use = matches!(e, OpenError::AlreadyRunning { .. });
        Failure::refused_by(&e).because_in_use(in_use)
    })
}

fn observed(
    config: &Config,
    store: &FileStore,
    state_dir: &Path,
    payload: &PayloadArguments,
    calls: &CallMetrics,
) -> Vec<Arc<dyn Provider>> {
    config
        .providers(&store.identity(), state_dir, payload)
        .into_iter()
        .map(|p| Arc::new(Observed::new(p, calls)) as Arc<dyn Provider>)
        .collect()
}

/// Every figure of the product under its name.
pub fn registry(
    engine: &EngineMetrics,
    calls: &CallMetrics,
    sweeps: &SweepMetrics,
    figures: &StandaloneMetrics,
) -> Registry {
    let mut registry = Registry::default();
    engine.register(&mut registry);
    calls.register(&mut registry);
    sweeps.register(&mut registry);
    figures.register(&mut registry);
    registry
}
