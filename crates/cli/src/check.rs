//! `check`: whether the configured providers can make machines.

use crate::{
    config::{Config, PayloadArguments},
    failure::Failure,
    wording::counted,
};
use egress_core::Identity;
use egress_provider::{CheckFinding, Report, Severity};
use egress_proxmox::{Payload, Proxmox, client::record::capture};
use std::path::{Path, PathBuf};

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// How the result is printed.
    #[arg(short, long, value_enum, default_value = "table")]
    output: crate::get::Output,
    /// Where the state would be kept.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Also save what every host of kind `proxmox` answers to reads, as fixtures: a file for
    /// each provider, below this directory. Refused when an answer holds a token.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    #[command(flatten)]
    payload: PayloadArguments,
}

/// Checks every provider; fails when one is not ready.
pub async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let config = Config::load(&arguments.config)?;
    let state_dir = crate::standalone::state_dir(arguments.state_dir.as_deref(), Some(&config))?;
    let identity = Identity {
        installation: config.installation(),
        writer: None,
    };
    let mut reports = Vec::new();
    for provider in config.providers(&identity, &state_dir, &arguments.payload) {
        let report = provider
            .check()
            .await
            .map_err(|e| Failure::failed(format!("{}: {}", provider.name(), e.chain())))?;
        let name = provider.name().to_string();
        let at = config
            .providers
            .iter()
            .position(|b| b.name.as_str() == name);
        let block = format!("providers[{}].{}", at.unwrap_or_default(), provider.kind());
        reports.push(Checked {
            name,
            kind: provider.kind(),
            block,
            report,
        });
    }
    match arguments.output {
        crate::get::Output::Json => println!("{}", json(&reports)),
        crate::get::Output::Table => print(&reports),
    }
    if let Some(dir) = &arguments.record {
        record(&config, &identity, dir).await?;
    }
    let bad = reports
        .iter()
        .filter(|checked| checked.report.reason() != egress_provider::CheckReason::Ready);
    match bad.count() {
        0 => Ok(()),
        n => Err(Failure::failed(format!(
            "{n} of {} {} not ready",
            counted(reports.len(), "provider", "providers"),
            if n == 1 { "is" } else { "are" }
        ))),
    }
}

/// Saves the answers of every host of kind `proxmox`, each in a directory of its name.
async fn record(config: &Config, identity: &Identity, dir: &Path) -> Result<(), Failure> {
    let mut recorded = 0;
    for block in &config.providers {
        let Some(proxmox) = block.proxmox.clone() else {
            continue;
        };
        let name = block.name.clone();
        let dir = dir.join(name.as_str());
        let provider = Proxmox::new(name, identity.clone(), proxmox, Payload::new(None));
        let captured = capture(provider.client(), &dir)
            .await
            .map_err(|e| Failure::failed(format!("{}: {e}", block.name)))?;
        // Beside the report, which may be JSON.
        eprintln!(
            "{}: {} exchanges in {}",
            block.name,
            captured.exchanges,
            captured.path.display()
        );
        recorded += 1;
    }
    if recorded == 0 {
        return Err(Failure::refused(
            "--record: no provider of kind `proxmox` is configured: only their answers are recorded",
        ));
    }
    Ok(())
}

/// What the check of one provider said.
struct Checked {
    name: String,
    kind: &'static str,
    /// The path of its block in the configuration.
    block: String,
    report: Report,
}

impl Checked {
    /// The whole path of what a finding is about.
    fn path(&self, finding: &CheckFinding) -> Option<String> {
        let field = finding.field.as_ref()?;
        Some(format!("{}.{field}", self.block))
    }
}

fn print(reports: &[Checked]) {
    for checked in reports {
        let Checked {
            name, kind, report, ..
        } = checked;
        let version = report.version.as_deref().unwrap_or("-");
        let free = report.free_slots.map(|free| format!(", {free} slots free"));
        let free = free.unwrap_or_default();
        println!("{name} ({kind}, {version}): {}{free}", report.reason());
        for finding in &report.findings {
            let severity = match finding.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            let path = checked.path(finding).map(|path| format!("{path}: "));
            println!(
                "  {severity} {}: {}{}: {}",
                finding.reason,
                path.unwrap_or_default(),
                finding.found,
                finding.remedy
            );
        }
    }
}

fn json(reports: &[Checked]) -> serde_json::Value {
    reports
        .iter()
        .map(|checked| {
            let Checked {
                name, kind, report, ..
            } = checked;
            let findings: Vec<_> = report
                .findings
                .iter()
                .map(|f| {
                    serde_json::json!({
                        "reason": f.reason.as_str(),
                        "severity": match f.severity { Severity::Error => "error", Severity::Warning => "warning" },
                        "path": checked.path(f),
                        "found": f.found,
                        "remedy": f.remedy,
                    })
                })
                .collect();
            serde_json::json!({
                "name": name,
                "kind": kind,
                "version": report.version,
                "reason": report.reason().as_str(),
                "freeSlots": report.free_slots,
                "findings": findings,
            })
        })
        .collect()
}
