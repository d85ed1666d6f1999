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
mod rebuild;
mod sweeper;
mod table;
mod watch;

use crate::{config::Config, failure::Failure, logs, stop_signal};
use credentials::StandaloneCredentials;
use egress_core::{MachineUid, ProviderName, ProxyId, finding::Finding};
use egress_engine::{
    Engine, Handle, HttpProber, Providers,
    metrics::EngineMetrics,
    pass::Parts,
    store::file::{FileStore, OpenMode, host_id},
};
use egress_provider::{
    CheckReason, Provider, Severity,
    layer::observed::{CallMetrics, Observed},
};
use keeper::{Keeper, Troubles};
use manifests::Manifests;
pub use metrics::StandaloneMetrics;
use prometheus_client::registry::Registry;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
    time::Duration,
};
pub use sweeper::SweepMetrics;
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};

/// How often everything is looked at though nothing told of a change.
const RESCAN: Duration = Duration::from_secs(10);
/// How often providers are checked.
const CHECK_PERIOD: Duration = Duration::from_mins(10);

/// Arguments of `standalone`.
#[derive(Debug, Default, clap::Args)]
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
    let config = Config::load(&path)?;
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
    };
    let mut running = start(site).await?;
    if arguments.log_target() == logs::Target::Table {
        let troubles = running.all_troubles.clone();
        running
            .helpers
            .push(tokio::spawn(table::draw(running.handle.clone(), troubles)));
    } else {
        println!(
            "watching {}; admin page http://{}/",
            running.manifests.display(),
            running.admin
        );
    }
    let kept = running.keep(Some(&path), stop_signal()).await?;
    println!(
        "stopped; {kept} proxies keep running. The next start takes them on; remove their \
         manifests while the engine runs to delete them."
    );
    Ok(())
}

/// What one standalone engine works with.
struct Site {
    config: Config,
    manifests: PathBuf,
    state_dir: PathBuf,
    take_over: bool,
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

/// A running engine and everything beside it.
struct Running {
    handle: Handle,
    keeper: Keeper,
    config: Config,
    config_troubles: Troubles,
    all_troubles: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    engine: JoinHandle<Result<(), egress_engine::store::StoreError>>,
    stop_engine: tokio::sync::oneshot::Sender<()>,
    prune: mpsc::Receiver<admin::PruneRequest>,
    helpers: Vec<JoinHandle<()>>,
    store: FileStore,
    _host_lock: host_lock::HostLock,
    credentials: Arc<StandaloneCredentials>,
    state_dir: PathBuf,
    manifests: PathBuf,
    admin: std::net::SocketAddr,
    calls: CallMetrics,
    figures: StandaloneMetrics,
}

async fn start(site: Site) -> Result<Running, Failure> {
    let Site {
        config,
        manifests,
        state_dir,
        take_over,
    } = site;
    let listener = TcpListener::bind(config.admin.listen).await.map_err(|e| {
        Failure::refused(format!(
            "admin.listen: {}: cannot listen there ({e}): choose a free port, or 0",
            config.admin.listen
        ))
    })?;
    let admin = listener
        .local_addr()
        .map_err(|e| Failure::failed(format!("admin page: {e}")))?;
    std::fs::read_dir(&manifests).map_err(|e| {
        Failure::refused(format!(
            "--manifests: {}: cannot be read ({e}): name a readable directory",
            manifests.display()
        ))
    })?;
    let store = open_store(&config, &state_dir, take_over).await?;
    let host_lock = host_lock::HostLock::take(&config.installation())?;
    let names: Vec<ProviderName> = config.providers.iter().map(|p| p.name.clone()).collect();
    let rebuilt = rebuild::rebuild(&store, &names).await?;
    if rebuilt > 0 {
        tracing::warn!("{rebuilt} records were lost and are rebuilt from the machines' marks");
    }

    let calls = CallMetrics::default();
    let engine_metrics = EngineMetrics::default();
    let sweeps = sweeper::SweepMetrics::default();
    let figures = StandaloneMetrics::default();
    let registry = Arc::new(registry(&engine_metrics, &calls, &sweeps, &figures));
    let providers = Arc::new(Providers::new(observed(
        &config, &store, &state_dir, &calls,
    )?));
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
    let mut keeping = Manifests::new(manifests.clone());
    if records.is_empty() {
        // Nothing runs yet that a refusal could take down.
        refuse_faults(&keeping.scan(), &config)?;
    }
    let mut recorded: Vec<(ProxyId, MachineUid)> = Vec::new();
    for (id, record) in records {
        match record {
            Ok(record) => recorded.push((id, record.machine_uid)),
            Err(e) => tracing::error!(proxy = %id, "{e}"),
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
    let token = admin::write_token(&state_dir)?;
    store
        .write_admin(admin)
        .map_err(|e| Failure::refused_by(&e))?;
    let (requests, prune) = mpsc::channel(4);
    let page = egress_engine::admin::router(handle.clone(), registry, all_troubles.clone());
    let page = admin::router(page, token, requests);
    let helpers = vec![
        tokio::spawn(async move {
            if let Err(e) =
                egress_engine::admin::serve(listener, page, std::future::pending()).await
            {
                tracing::error!("the admin page ended: {e}");
            }
        }),
        tokio::spawn(check_forever(providers.clone(), provider_troubles)),
        tokio::spawn(sweeper::sweep_forever(
            handle.clone(),
            store.clone(),
            sweeps,
        )),
    ];
    let keeper = Keeper::new(
        handle.clone(),
        store.clone(),
        credentials.clone(),
        keeping,
        recorded,
        manifest_troubles,
        figures.clone(),
    );
    let (stop_engine, stopped) = tokio::sync::oneshot::channel::<()>();
    let engine = tokio::spawn(engine.run(async {
        let _ = stopped.await;
    }));
    Ok(Running {
        handle,
        keeper,
        config,
        config_troubles,
        all_troubles,
        engine,
        stop_engine,
        prune,
        helpers,
        store,
        _host_lock: host_lock,
        credentials,
        state_dir,
        manifests,
        admin,
        calls,
        figures,
    })
}

/// Every fault of the manifests, where there is any.
fn refuse_faults(scan: &manifests::Scan, config: &Config) -> Result<(), Failure> {
    let mut lines = scan.faults.clone();
    for (id, declared) in &scan.proxies {
        let manifests::Declared::Sound(proxy) = declared else {
            continue; // among the faults of its file
        };
        let provider = &proxy.spec.provider;
        let abilities = config.abilities(provider);
        if abilities.is_none() {
            let known: Vec<&str> = config.providers.iter().map(|p| p.name.as_str()).collect();
            let finding = Finding::new(
                "spec.provider",
                provider,
                "no provider of this name is configured",
                format!("use one of {}, or configure it", known.join(", ")),
            );
            lines.push(format!("{id}: {finding}"));
        }
        let refused = proxy.accept(abilities.as_ref()).err().unwrap_or_default();
        lines.extend(refused.iter().map(|finding| format!("{id}: {finding}")));
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
    .map_err(|e| Failure::refused_by(&e))
}

fn observed(
    config: &Config,
    store: &FileStore,
    state_dir: &Path,
    calls: &CallMetrics,
) -> Result<Vec<Arc<dyn Provider>>, Failure> {
    let providers = config.providers(&store.identity(), state_dir)?;
    Ok(providers
        .into_iter()
        .map(|p| Arc::new(Observed::new(p, calls)) as Arc<dyn Provider>)
        .collect())
}

/// Every figure of the product under its name.
pub fn registry(
    engine: &EngineMetrics,
    calls: &CallMetrics,
    sweeps: &sweeper::SweepMetrics,
    figures: &StandaloneMetrics,
) -> Registry {
    let mut registry = Registry::default();
    engine.register(&mut registry);
    calls.register(&mut registry);
    sweeps.register(&mut registry);
    figures.register(&mut registry);
    registry
}

impl Running {
    /// Follows manifests and configuration until `stop`; then ends the engine. Answers with
    /// how many proxies keep running.
    async fn keep(
        mut self,
        config_path: Option<&Path>,
        stop: impl Future<Output = ()>,
    ) -> Result<usize, Failure> {
        let mut watch = watch::Watch::new();
        watch.add(&self.manifests);
        if let Some(dir) = config_path.and_then(Path::parent) {
            watch.add(if dir.as_os_str().is_empty() {
                Path::new(".")
            } else {
                dir
            });
        }
        let mut config_text = config_path.and_then(|p| std::fs::read(p).ok());
        tokio::pin!(stop);
        let ended = loop {
            let again = self.keeper.turn(&self.config).await;
            // An engine with nothing to write would not notice.
            if let Err(e) = self.store.check_lock() {
                break Some(Ok(Err(e)));
            }
            tokio::select! {
                () = &mut stop => break None,
                result = &mut self.engine => break Some(result),
                () = watch.changed() => {}
                () = tokio::time::sleep(again.unwrap_or(RESCAN)) => watch.add(&self.manifests),
                Some(answer) = self.prune.recv() => {
                    let pruned = self.keeper.prune(&self.config).await;
                    let _ = answer.send(pruned);
                }
            }
            if let Some(path) = config_path {
                let text = std::fs::read(path).ok();
                if text != config_text {
                    config_text = text;
                    self.reload(path);
                }
            }
        };
        self.end(ended).await
    }

    /// Takes a changed configuration on; a broken one changes nothing.
    fn reload(&mut self, path: &Path) {
        let loaded = Config::load(path).and_then(|config| {
            let providers = observed(&config, &self.store, &self.state_dir, &self.calls)?;
            Ok((config, providers))
        });
        let troubles = match loaded {
            Ok((config, providers)) => {
                let mut troubles = Vec::new();
                if config.installation() != self.config.installation()
                    || config.admin.listen != self.config.admin.listen
                {
                    troubles.push(format!(
                        "{}: installation or admin.listen changed: restart to take it on",
                        path.display()
                    ));
                }
                self.handle.parts().providers.replace(providers);
                self.config = config;
                self.handle.wake_all();
                self.figures.note_reload();
                tracing::info!("the changed configuration is in force");
                troubles
            }
            Err(failure) => {
                self.figures.note_broken_reload();
                let lines = failure.into_lines();
                for line in &lines {
                    tracing::error!("{line}: the configuration before stays in force");
                }
                lines
            }
        };
        *self
            .config_troubles
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = troubles;
    }

    async fn end(
        self,
        ended: Option<Result<Result<(), egress_engine::store::StoreError>, tokio::task::JoinError>>,
    ) -> Result<usize, Failure> {
        for helper in &self.helpers {
            helper.abort();
        }
        let result = if let Some(result) = ended {
            result
        } else {
            let _ = self.stop_engine.send(());
            self.engine.await
        };
        // Another engine may live in a directory that was replaced.
        if self.store.check_lock().is_ok() {
            admin::remove_token(&self.state_dir);
            let _ = self.store.remove_admin();
        }
        match result {
            Ok(Ok(())) => Ok(self.keeper.count()),
            Ok(Err(e)) => Err(Failure::failed(format!("stopped: {e}"))),
            Err(e) => Err(Failure::failed(format!("the engine ended: {e}"))),
        }
    }
}

/// Checks every provider now and then, and keeps what stands in the way.
async fn check_forever(providers: Arc<Providers>, troubles: Troubles) {
    loop {
        let mut found = Vec::new();
        for lane in providers.all() {
            let provider = lane.provider();
            match provider.check().await {
                Ok(report) => {
                    for finding in &report.findings {
                        let line = format!(
                            "provider {}: {}: {}: {}",
                            provider.name(),
                            finding.reason,
                            finding.found,
                            finding.remedy
                        );
                        if finding.severity == Severity::Error {
                            found.push(line);
                        } else {
                            tracing::warn!("{line}");
                        }
                    }
                    debug_assert_eq!(
                        report.reason() == CheckReason::Ready,
                        report
                            .findings
                            .iter()
                            .all(|f| f.severity == Severity::Warning)
                    );
                }
                Err(e) => found.push(format!("provider {}: {}", provider.name(), e.chain())),
            }
        }
        for line in &found {
            tracing::error!("{line}");
        }
        let sooner = !found.is_empty();
        *troubles.lock().unwrap_or_else(PoisonError::into_inner) = found;
        tokio::time::sleep(if sooner {
            CHECK_PERIOD / 20
        } else {
            CHECK_PERIOD
        })
        .await;
    }
}
