//! Checks the configured providers now and then.

use crate::{Handle, ProviderLane};
use egress_core::{ProviderName, status::Reason};
use egress_provider::{Report, Severity};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// What stands in the way now, for people.
pub type Troubles = Arc<Mutex<Vec<String>>>;

/// Is told what each check of a provider said.
pub type Told = Arc<dyn Fn(&ProviderLane, &egress_provider::Result<Report>) + Send + Sync>;

/// The time from one check to the next while all is well.
const PERIOD: Duration = Duration::from_mins(10);
/// The same while something is not: a repair is noticed by what a check finds, and what it
/// concerns is tried again then.
const SOONER: Duration = Duration::from_secs(30);

/// What only someone's doing at the provider, or in the configuration, can mend.
const NEEDS_SOMEONE: [Reason; 4] = [
    Reason::Permanent,
    Reason::Capacity,
    Reason::Unauthorized,
    Reason::NeedsOperator,
];

/// Checks every provider for as long as it is polled, keeps what stands in the way, and logs
/// each finding when it is new.
pub async fn check_forever(handle: Handle, troubles: Troubles, told_each: Option<Told>) {
    let mut told: Vec<String> = Vec::new();
    let mut shown = BTreeSet::new();
    loop {
        let providers = handle.parts().providers.clone();
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        let lanes = providers.all();
        let figures = handle.provider_figures();
        let names: BTreeSet<ProviderName> = lanes
            .iter()
            .map(|lane| lane.provider().name().clone())
            .collect();
        for gone in shown.difference(&names) {
            figures.forget(gone);
        }
        shown = names;
        for lane in lanes {
            let result = lane.check().await;
            figures.note_check(lane.provider().name(), &result);
            if let Some(tell) = &told_each {
                tell(&lane, &result);
            }
            sort(&lane, &result, &mut errors, &mut warnings);
        }
        for line in errors.iter().filter(|line| !told.contains(line)) {
            tracing::error!("{line}");
        }
        for line in warnings.iter().filter(|line| !told.contains(line)) {
            tracing::warn!("{line}");
        }
        told = [errors.as_slice(), &warnings].concat();
        let well = errors.is_empty();
        *troubles.lock().unwrap_or_else(PoisonError::into_inner) = errors;
        let checked = Instant::now();
        loop {
            tokio::select! {
                // What was told of the providers before says nothing of these.
                () = providers.replaced() => break,
                () = tokio::time::sleep(SOONER) => {}
            }
            if !well || checked.elapsed() >= PERIOD || is_someone_needed(&handle) {
                break;
            }
        }
    }
}

fn is_someone_needed(handle: &Handle) -> bool {
    handle.views().iter().any(|view| {
        let mut reasons = view.status.conditions.iter().map(|c| c.reason);
        reasons.any(|reason| NEEDS_SOMEONE.contains(&reason))
    })
}

/// What a provider says of itself, as lines for people.
fn sort(
    lane: &ProviderLane,
    result: &egress_provider::Result<Report>,
    errors: &mut Vec<String>,
    warnings: &mut Vec<String>,
) {
    let name = lane.provider().name();
    match result {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::{Site, provider, wait_for};
    use egress_provider::memory::{Physics, World};

    #[tokio::test(start_paused = true)]
    async fn what_was_told_of_a_provider_goes_with_its_configuration() {
        let site = Site::new();
        site.world.set_template(false);
        let engine = site.start().await;
        let troubles = Troubles::default();
        let checks = tokio::spawn(check_forever(engine.handle.clone(), troubles.clone(), None));
        let told = || !troubles.lock().expect("whole").is_empty();
        let second = Duration::from_secs(1);
        wait_for("a trouble", second, told).await;
        let other = World::new(Physics::default());
        let providers = &engine.handle.parts().providers;
        providers.replace([provider("mem", &other)]);
        wait_for("no trouble", second, || !told()).await;
        checks.abort();
    }
}
