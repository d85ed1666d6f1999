//! `conformance`: the suite of the provider contract against a configured provider.

use crate::{
    config::{Config, PayloadArguments},
    failure::Failure,
    stop_signal,
};
use egress_core::{Claim, Identity, MachineKey, WriterId, backoff::PERMIT_LIFETIME};
use egress_kvm2::{
    Kvm2,
    bench::Bench as Kvm2Bench,
    client::{HostUri, Transport},
};
use egress_local::bench::Bench as LocalBench;
use egress_provider::{
    Permit, Progress, Provider,
    conformance::{CaseResult, End, Harness, Options, Subject, Table, Tier, cases, run_until},
};
use egress_proxmox::{
    Payload, Proxmox,
    bench::{Bench as ProxmoxBench, HttpControl},
    client::HttpsWire,
};
use std::{
    collections::BTreeMap,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How long calls of an interrupted suite may take to end.
const SUITE_END: Duration = Duration::from_secs(20);
/// How long the machines that it left may take to go: a clone that was begun ends first, and
/// a guest that hangs takes over a minute to stop.
const PATIENCE: Duration = Duration::from_mins(5);
/// After so long a second look must find nothing either.
const SECOND_LOOK: Duration = Duration::from_millis(500);

/// Arguments of `conformance`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The provider, by its name in the configuration.
    #[arg(long, value_name = "NAME")]
    provider: String,
    /// How much is tried. The extended tier needs a test bench beneath the provider: kind
    /// `local` has one, kind `proxmox` with the `controlUrl` of a simulator, kind `kvm2` with
    /// one host at a socket of this one, on which nothing else makes machines meanwhile; cases
    /// that it cannot set up are printed as not run.
    #[arg(long, value_enum, default_value = "basic")]
    tier: TierName,
    /// Only the cases of this rule, such as `C1`, or with this text in their sentence.
    #[arg(long, value_name = "RULE|TEXT")]
    only: Option<String>,
    #[command(flatten)]
    payload: PayloadArguments,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum TierName {
    /// Needs nothing but the provider.
    Basic,
    /// Also what people and accidents do to machines.
    Extended,
}

/// What the suite runs on; all of it is taken away in the end.
enum Ground {
    Alone(Arc<dyn Provider>),
    Local(Arc<LocalBench>),
    /// The provider is there to remove what the suite left.
    Proxmox(Arc<ProxmoxBench>, Arc<dyn Provider>),
    Kvm2(Arc<Kvm2Bench>, Arc<dyn Provider>),
}

/// The socket of a provider that has one host, and that host here.
fn own_socket(config: &egress_kvm2::Config) -> Option<HostUri> {
    let [host] = config.hosts.as_slice() else {
        return None;
    };
    let uri = host.parsed().ok()?;
    match uri.transport() {
        Transport::Unix(Some(_)) => Some(uri),
        Transport::Unix(None) => "qemu+unix:///system?socket=/var/run/libvirt/libvirt-sock"
            .parse()
            .ok(),
        _ => None,
    }
}

impl Ground {
    /// Prepares what a tier needs for the provider, below this directory.
    async fn prepare(
        config: &Config,
        arguments: &Arguments,
        identity: &Identity,
        dir: &Path,
    ) -> Result<Self, Failure> {
        let Some(block) = config.block(&arguments.provider) else {
            let known: Vec<&str> = config.providers.iter().map(|p| p.name.as_str()).collect();
            return Err(Failure::refused(format!(
                "--provider: {}: no such provider is configured: use one of {}",
                arguments.provider,
                known.join(", ")
            )));
        };
        let name = block.name.clone();
        let unmade = |e: std::io::Error| {
            Failure::refused(format!(
                "{}: cannot be made ({e}): make room, or set TMPDIR",
                dir.display()
            ))
        };
        let extended = matches!(arguments.tier, TierName::Extended);
        if let Some(local) = block.local.clone().filter(|_| extended) {
            let bench = LocalBench::new(dir.to_owned(), name, identity.clone(), local);
            return Ok(Self::Local(Arc::new(bench.map_err(unmade)?)));
        }
        let kvm2 = block.kvm2.clone().filter(|_| extended);
        if let Some((kvm2, socket)) = kvm2.and_then(|c| own_socket(&c).map(|s| (c, s))) {
            std::fs::create_dir(dir).map_err(unmade)?;
            let payload = arguments.payload.find();
            let identity = identity.clone();
            let provider = Kvm2::new(
                name.clone(),
                identity.clone(),
                kvm2.clone(),
                payload.clone(),
            );
            let bench = Kvm2Bench::start(name, identity, kvm2, payload, &socket, dir);
            return Ok(Self::Kvm2(
                Arc::new(bench.map_err(unmade)?),
                Arc::new(provider),
            ));
        }
        let Some(proxmox) = block.proxmox.clone() else {
            let providers = config.providers(identity, dir, &arguments.payload);
            let alone = providers.into_iter().find(|p| *p.name() == name);
            return alone.map(Self::Alone).ok_or_else(|| {
                Failure::failed(format!("{name}: no provider can be made from its block"))
            });
        };
        let program = arguments.payload.find();
        let payload = Payload::new(program.clone());
        let wire = Arc::new(HttpsWire::new(proxmox.ca_file.clone()));
        let control = proxmox.control_url.clone();
        let provider = Proxmox::over(
            name.clone(),
            identity.clone(),
            proxmox.clone(),
            payload,
            wire.clone(),
        );
        provider
            .allows_conformance()
            .await
            .map_err(|e| Failure::refused(e.chain()))?;
        let provider: Arc<dyn Provider> = Arc::new(provider);
        let Some(control) = control else {
            return Ok(Self::Alone(provider));
        };
        std::fs::create_dir(dir).map_err(unmade)?;
        let control = Arc::new(HttpControl::new(control));
        let bench = ProxmoxBench::new(name, identity.clone(), proxmox, program, wire, control, dir);
        Ok(Self::Proxmox(Arc::new(bench.map_err(unmade)?), provider))
    }

    fn subject(&self, identity: Identity) -> Subject {
        match self {
            Self::Alone(provider) => Subject::alone(provider.clone(), identity),
            Self::Local(bench) => Subject::on(bench.clone()),
            Self::Proxmox(bench, _) => Subject::on(bench.clone()),
            Self::Kvm2(bench, _) => Subject::on(bench.clone()),
        }
    }

    /// Removes every machine of this run, and its directory.
    async fn clear(self, dir: &Path) -> Result<(), Failure> {
        match self {
            Self::Alone(provider) => clear(provider.as_ref(), dir).await,
            Self::Local(bench) => {
                let cleared = tokio::task::spawn_blocking(move || bench.clear()).await;
                let cleared = cleared.unwrap_or_else(|e| Err(std::io::Error::other(e)));
                cleared.map_err(|e| left_behind(dir, &e))
            }
            Self::Proxmox(bench, provider) => {
                bench.heal().await.map_err(|e| left_behind(dir, &e))?;
                clear(provider.as_ref(), dir).await
            }
            Self::Kvm2(bench, provider) => {
                drop(bench);
                clear(provider.as_ref(), dir).await
            }
        }
    }
}

/// Runs the suite in an installation of its own, so that no machine of the deployment is
/// ever looked at.
pub async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let config = Config::load(&arguments.config)?;
    let run_id = uuid::Uuid::new_v4().simple().to_string();
    let installation = format!("conformance-{}", &run_id[..12]);
    let dir = std::env::temp_dir().join(format!("egress-proxies-{installation}"));
    let identity = Identity {
        installation: installation
            .parse()
            .map_err(|e| Failure::failed(format!("{e}")))?,
        writer: Some(WriterId::new(run_id.clone())),
    };
    let tier = match arguments.tier {
        TierName::Basic => Tier::Basic,
        TierName::Extended => Tier::Extended,
    };
    let mut options = Options::new(tier, &run_id[..8]);
    options.filter.clone_from(&arguments.only);
    if !cases().iter().any(|case| options.chooses(case)) {
        let only = arguments.only.as_deref().unwrap_or_default();
        return Err(Failure::refused(format!(
            "--only: {only}: no case of the {tier} tier: give a rule such as C1, or words of a case's sentence"
        )));
    }
    // Before anything is made that an interrupt would leave behind.
    let stop = stop_signal();
    let ground = Ground::prepare(&config, arguments, &identity, &dir).await?;
    let table = Arc::new(Mutex::new(Table::of(&options)));
    print(&held(&table).head());
    let ended = suite(ground.subject(identity), options, table.clone(), stop).await;
    print(&held(&table).sums());
    ground.clear(&dir).await?;
    match ended? {
        End::Interrupted => Err(Failure::failed("interrupted; nothing is left behind")),
        End::Complete if held(&table).failed() > 0 => Err(Failure::failed(
            "the provider breaks the contract; see the cases above",
        )),
        End::Complete => Ok(()),
    }
}

/// Runs the cases until they end, or until `stop`. Each is printed as it ends.
async fn suite(
    subject: Subject,
    options: Options,
    table: Arc<Mutex<Table>>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<End, Failure> {
    // On a runtime of its own, so that nothing that an interrupt cut off goes on.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("starting the runtime: {e}")))?;
    let cases = runtime.spawn(async move {
        let tell = |result: &CaseResult| {
            let line = held(&table).line(result);
            print(&line);
        };
        run_until(&subject, &options, tell, stop).await.1
    });
    let end = cases.await;
    let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(SUITE_END));
    let _ = ended.await;
    end.map_err(|e| Failure::failed(format!("the suite ended: {e}")))
}

/// The suite goes on, and clears away, also when nobody reads what it prints.
fn print(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn held(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn left_behind(dir: &Path, what: &dyn std::fmt::Display) -> Failure {
    Failure::failed(format!("left behind below {}: {what}", dir.display()))
}

/// Removes every machine of this run, and its directory.
async fn clear(provider: &dyn Provider, dir: &Path) -> Result<(), Failure> {
    let left = |what: String| left_behind(dir, &what);
    let end = Instant::now() + PATIENCE;
    let mut seen = BTreeMap::new();
    let mut looks = 0;
    loop {
        let listing = provider.list(&[]).await.map_err(|e| left(e.chain()))?;
        let mut going = Vec::new();
        for machine in listing.machines {
            let key = MachineKey::new(machine.mark.uid.clone());
            let claim = Claim::found(machine.mark);
            seen.insert(key.name().to_owned(), (key.clone(), claim.clone()));
            going.push((key, claim));
        }
        // A leftover of a machine that was never seen tells of one that is still being made.
        let mut waited_for = None;
        for leftover in listing.leftovers {
            match seen.get(&leftover.machine) {
                Some((key, claim)) => going.push((key.clone(), claim.clone())),
                None => waited_for = Some(leftover.volume.name),
            }
        }
        if going.is_empty() && waited_for.is_none() {
            looks += 1;
            if looks == 2 {
                break;
            }
            tokio::time::sleep(SECOND_LOOK).await;
            continue;
        }
        looks = 0;
        let mut wait = Duration::ZERO;
        if let Some(volume) = waited_for {
            if Instant::now() > end {
                return Err(left(volume));
            }
            wait = SECOND_LOOK;
        }
        for (key, claim) in going {
            let permit = Permit::new(claim.attempt, Instant::now() + PERMIT_LIFETIME);
            match provider.delete(&key, &claim, &permit).await {
                Ok(Progress::Done) => {}
                Ok(Progress::InProgress { recheck, .. }) => wait = wait.max(recheck),
                Err(e) if Instant::now() > end => return Err(left(e.chain())),
                Err(_) => wait = wait.max(Duration::from_millis(250)),
            }
        }
        if Instant::now() > end {
            return Err(left("machines that do not end".to_owned()));
        }
        tokio::time::sleep(wait).await;
    }
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(left(e.to_string())),
        _ => Ok(()),
    }
}
