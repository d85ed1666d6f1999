//! `conformance`: the suite of the provider contract against a configured provider.

use crate::{config::Config, failure::Failure, stop_signal};
use egress_core::{
    Claim, Identity, MachineKey, Mark, Standing, WriterId, backoff::PERMIT_LIFETIME,
};
use egress_provider::{
    Permit, Progress, Provider,
    conformance::{Options, Outcome, Subject, Tier, render, run as run_suite},
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::Instant;

/// How long calls of an interrupted suite may take to end.
const SUITE_END: Duration = Duration::from_secs(20);
/// How long the machines that it left may take to go.
const PATIENCE: Duration = Duration::from_mins(1);

/// Arguments of `conformance`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The provider, by its name in the configuration.
    #[arg(long, value_name = "NAME")]
    provider: String,
    /// How much is tried. The extended tier needs a test bench beneath the provider; cases
    /// that it cannot set up are printed as not run.
    #[arg(long, value_enum, default_value = "basic")]
    tier: TierName,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum TierName {
    /// Needs nothing but the provider.
    Basic,
    /// Also what people and accidents do to machines.
    Extended,
}

/// Runs the suite in an installation of its own, so that no machine of the deployment is
/// ever looked at.
pub async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let config = Config::load(&arguments.config)?;
    let run_id = uuid::Uuid::new_v4().simple().to_string();
    let installation = format!("conformance-{}", &run_id[..12]);
    let identity = Identity {
        installation: installation
            .parse()
            .map_err(|e| Failure::failed(format!("{e}")))?,
        writer: Some(WriterId::new(run_id.clone())),
    };
    let dir = std::env::temp_dir().join(format!("egress-proxies-{installation}"));
    let provider = config
        .providers(&identity, &dir)?
        .into_iter()
        .find(|p| p.name().as_str() == arguments.provider)
        .ok_or_else(|| {
            let known: Vec<&str> = config.providers.iter().map(|p| p.name.as_str()).collect();
            Failure::refused(format!(
                "--provider: {}: no such provider is configured: use one of {}",
                arguments.provider,
                known.join(", ")
            ))
        })?;
    let tier = match arguments.tier {
        TierName::Basic => Tier::Basic,
        TierName::Extended => Tier::Extended,
    };
    let subject = Subject::alone(provider.clone(), identity);
    let options = Options::new(tier, &run_id[..8]);
    // On a runtime of its own, so that an interrupt ends whatever the suite has under way.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("starting the runtime: {e}")))?;
    let suite = runtime.spawn(async move { run_suite(&subject, &options).await });
    let results = tokio::select! {
        results = suite => Some(results),
        () = stop_signal() => None,
    };
    let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(SUITE_END));
    let _ = ended.await;
    let cleared = clear(provider.as_ref(), &dir).await;
    let results = match results {
        Some(Ok(results)) => results,
        Some(Err(e)) => return Err(Failure::failed(format!("the suite ended: {e}"))),
        None => {
            cleared?;
            return Err(Failure::failed("interrupted; nothing is left behind"));
        }
    };
    print!("{}", render(&results));
    cleared?;
    if results
        .iter()
        .any(|r| matches!(r.outcome, Outcome::Failed(_)))
    {
        return Err(Failure::failed(
            "the provider breaks the contract; see the cases above",
        ));
    }
    Ok(())
}

/// Removes every machine of this run, and its directory.
async fn clear(provider: &dyn Provider, dir: &Path) -> Result<(), Failure> {
    let left =
        |what: String| Failure::failed(format!("left behind below {}: {what}", dir.display()));
    let end = Instant::now() + PATIENCE;
    loop {
        let listing = provider.list(&[]).await.map_err(|e| left(e.chain()))?;
        if listing.machines.is_empty() {
            break;
        }
        let mut wait = Duration::ZERO;
        for machine in listing.machines {
            let (key, claim) = at(machine.mark);
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

/// Where a machine is, by its mark.
fn at(mark: Mark) -> (MachineKey, Claim) {
    let claim = Claim {
        provider: mark.provider,
        cluster: mark.cluster,
        slot: mark.slot,
        host: None,
        attempt: mark.attempt,
        standing: Standing::Seen,
        handles: Vec::new(),
        mac: None,
        seed: None,
        unsettled: false,
        retiring: None,
    };
    (MachineKey::new(mark.uid), claim)
}
