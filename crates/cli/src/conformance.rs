//! `conformance`: the suite of the provider contract against a configured provider.

use crate::{config::Config, failure::Failure};
use egress_core::{Identity, WriterId};
use egress_provider::conformance::{Options, Outcome, Subject, Tier, render, run as run_suite};
use std::path::PathBuf;

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
    let results = run_suite(
        &Subject::alone(provider, identity),
        &Options::new(tier, &run_id[..8]),
    )
    .await;
    print!("{}", render(&results));
    let _ = std::fs::remove_dir_all(&dir);
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
