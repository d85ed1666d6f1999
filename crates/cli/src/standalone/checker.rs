//! Checks the configured providers now and then.

use super::keeper::Troubles;
use egress_engine::{ProviderLane, Providers};
use egress_provider::Severity;
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

/// The time from one check to the next while all is well.
const PERIOD: Duration = Duration::from_mins(10);
/// The same while something is not.
const SOONER: Duration = Duration::from_secs(30);

/// Checks every provider for as long as it is polled, keeps what stands in the way, and logs
/// each finding when it is new.
pub async fn check_forever(providers: Arc<Providers>, troubles: Troubles) {
    let mut told: Vec<String> = Vec::new();
    loop {
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        for lane in providers.all() {
            sort(&lane, &mut errors, &mut warnings).await;
        }
        for line in errors.iter().filter(|line| !told.contains(line)) {
            tracing::error!("{line}");
        }
        for line in warnings.iter().filter(|line| !told.contains(line)) {
            tracing::warn!("{line}");
        }
        told = [errors.as_slice(), &warnings].concat();
        let wait = if errors.is_empty() { PERIOD } else { SOONER };
        *troubles.lock().unwrap_or_else(PoisonError::into_inner) = errors;
        tokio::time::sleep(wait).await;
    }
}

/// What a provider says of itself, as lines for people.
async fn sort(lane: &ProviderLane, errors: &mut Vec<String>, warnings: &mut Vec<String>) {
    let name = lane.provider().name();
    match lane.check().await {
        Ok(report) => {
            for finding in &report.findings {
                let line = format!(
                    "provider {name}: {}: {}: {}",
                    finding.reason, finding.found, finding.remedy
                );
                match finding.severity {
                    Severity::Error => errors.push(line),
                    Severity::Warning => warnings.push(line),
                }
            }
        }
        Err(e) => errors.push(format!("provider {name}: {}", e.chain())),
    }
}
