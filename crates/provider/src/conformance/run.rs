//! Runs cases against one provider, each on its own instance, and looks for what they left.

use super::{Case, Harness, Miss, Offered, Tier, Trial, cases};
use crate::Provider;
use egress_core::{Identity, machine::MachineSize};
use std::{pin::Pin, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Puts a layer around each instance of the provider under test.
pub(super) type Wrap = Arc<dyn Fn(Arc<dyn Provider>) -> Arc<dyn Provider> + Send + Sync>;

/// What is tested: one provider, with or without a test bench.
#[derive(Clone)]
pub struct Subject {
    provider: Option<Arc<dyn Provider>>,
    pub(super) identity: Identity,
    pub(super) harness: Option<Arc<dyn Harness>>,
    pub(super) wrap: Wrap,
}

impl Subject {
    /// A provider alone: enough for the basic tier. `identity` is the provider's own.
    pub fn alone(provider: Arc<dyn Provider>, identity: Identity) -> Self {
        Self {
            provider: Some(provider),
            identity,
            harness: None,
            wrap: Arc::new(|p| p),
        }
    }

    /// The provider that this harness makes; each case gets a new instance.
    pub fn on(harness: Arc<dyn Harness>) -> Self {
        let identity = harness.identity();
        Self {
            provider: None,
            identity,
            harness: Some(harness),
            wrap: Arc::new(|p| p),
        }
    }

    /// The same subject with a layer around each instance.
    #[must_use]
    pub fn wrapped(
        mut self,
        layer: impl Fn(Arc<dyn Provider>) -> Arc<dyn Provider> + Send + Sync + 'static,
    ) -> Self {
        self.wrap = Arc::new(layer);
        self
    }

    async fn instance(&self) -> Offered<Arc<dyn Provider>> {
        let bare = match (&self.provider, &self.harness) {
            (Some(provider), _) => provider.clone(),
            (None, Some(harness)) => harness.restart().await?,
            (None, None) => unreachable!("both constructors set one of them"),
        };
        Ok((self.wrap)(bare))
    }
}

/// How a run is done.
#[derive(Clone, Debug)]
pub struct Options {
    /// The highest tier to run.
    pub tier: Tier,
    /// Runs only the cases of this rule (`C1`), or with this text in their title.
    pub filter: Option<String>,
    /// Makes every name of this run unlike those of other runs on the same hypervisor:
    /// 1 to 20 of `a-z 0-9`.
    pub run_id: String,
    /// The size of the machines that are made.
    pub size: MachineSize,
}

impl Options {
    /// Every case of a tier, with small machines.
    pub fn new(tier: Tier, run_id: impl Into<String>) -> Self {
        Self {
            tier,
            filter: None,
            run_id: run_id.into(),
            size: MachineSize {
                cpus: 1,
                memory_mib: 512,
                disk_gib: 4,
            },
        }
    }

    /// Whether a case belongs to this run.
    pub fn chooses(&self, case: &Case) -> bool {
        case.tier <= self.tier
            && self
                .filter
                .as_deref()
                .is_none_or(|f| case.rule == f || case.title.contains(f))
    }
}

/// How one case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The rule held.
    Passed,
    /// It did not: what was seen, for people.
    Failed(String),
    /// Nothing was tested: why, for people.
    NotRun(String),
}

/// One line of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseResult {
    /// The rule's id in `docs/provider-contract.md`.
    pub rule: &'static str,
    /// The case, as a sentence.
    pub title: &'static str,
    /// Its tier.
    pub tier: Tier,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took, on tokio's clock.
    pub duration: Duration,
}

/// Runs the chosen cases one after the other.
pub async fn run(subject: &Subject, options: &Options) -> Vec<CaseResult> {
    run_until(subject, options, |_| (), std::future::pending())
        .await
        .0
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every chosen case was run.
    Complete,
    /// `stop` came: the case under way was cut off, and what it had made was removed.
    Interrupted,
}

/// The same until `stop` resolves; `tell` hears how each case ended before the next one begins.
pub async fn run_until(
    subject: &Subject,
    options: &Options,
    mut tell: impl FnMut(&CaseResult) + Send,
    stop: impl Future<Output = ()> + Send,
) -> (Vec<CaseResult>, End) {
    let mut stop = Stop {
        stop: Box::pin(stop),
        has_come: false,
    };
    let mut results = Vec::new();
    for (number, case) in cases()
        .iter()
        .enumerate()
        .filter(|(_, c)| options.chooses(c))
    {
        let result = run_case(subject, options, number, case, &mut stop).await;
        tell(&result);
        results.push(result);
        if stop.has_come {
            return (results, End::Interrupted);
        }
    }
    (results, End::Complete)
}

/// A future that may be asked for again once it came.
struct Stop<F> {
    stop: Pin<Box<F>>,
    has_come: bool,
}

impl<F: Future<Output = ()>> Stop<F> {
    async fn come(&mut self) {
        if !self.has_come {
            self.stop.as_mut().await;
            self.has_come = true;
        }
    }
}

/// Runs one case: deadline, clearing away and leak tracker included. `number` keeps the names
/// of one case from those of another.
async fn run_case<F: Future<Output = ()> + Send>(
    subject: &Subject,
    options: &Options,
    number: usize,
    case: &Case,
    stop: &mut Stop<F>,
) -> CaseResult {
    let begun = Instant::now();
    let outcome = match judge(subject, options, number, case, stop).await {
        Ok(()) => Outcome::Passed,
        Err(Miss::Failed(why)) => Outcome::Failed(why),
        Err(Miss::NotRun(why)) => Outcome::NotRun(why),
    };
    let Case {
        rule, title, tier, ..
    } = *case;
    CaseResult {
        rule,
        title,
        tier,
        outcome,
        duration: begun.elapsed(),
    }
}

async fn judge<F: Future<Output = ()> + Send>(
    subject: &Subject,
    options: &Options,
    number: usize,
    case: &Case,
    stop: &mut Stop<F>,
) -> Result<(), Miss> {
    let provider = subject.instance().await?;
    let caps = provider.capabilities();
    if !(case.needs)(&caps) {
        return Err(Miss::NotRun("its capabilities do not call for it".into()));
    }
    if case.tier == Tier::Extended && subject.harness.is_none() {
        return Err(Miss::NotRun("needs a harness".into()));
    }
    let pace = match &subject.harness {
        Some(harness) => harness.pace().await?,
        None => 1.0,
    };
    let trial = Arc::new(Trial::new(subject, provider, options, number, pace));
    let before = stock(&trial).await?;
    // A case makes several machines one after the other, and may wait out several bounds.
    let deadline = 40 * (caps.boot_timeout + caps.late_create.settle() + 2 * trial.call_deadline);
    let mut body = tokio::spawn(tokio::time::timeout(deadline, (case.run)(trial.clone())));
    let ended = tokio::select! {
        biased;
        () = stop.come() => None,
        ended = &mut body => Some(ended),
    };
    let Some(ended) = ended else {
        body.abort();
        let _cut_off = body.await;
        let trouble = trial.clear_cut_off().await;
        return Err(if trouble.is_empty() {
            Miss::NotRun("interrupted".into())
        } else {
            Miss::Failed(format!("clearing away: {}", trouble.join("; ")))
        });
    };
    let verdict = match ended {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(_)) => Err(Miss::Failed(format!(
            "the case did not end within {deadline:?}"
        ))),
        Err(panic) => Err(Miss::Failed(format!("panicked: {panic}"))),
    };
    let failed = matches!(verdict, Err(Miss::Failed(_)));
    let trouble = trial.clear(failed).await;
    let leaked = leak(&trial, &before).await?;
    match verdict {
        Err(Miss::Failed(why)) => Err(Miss::Failed(why)),
        _ if !trouble.is_empty() => Err(Miss::Failed(format!(
            "clearing away: {}",
            trouble.join("; ")
        ))),
        _ if !leaked.is_empty() => Err(Miss::Failed(format!("left behind: {}", leaked.join(", ")))),
        other => other,
    }
}

/// What there is: by the harness, else what the provider lists of this case's own machines
/// (others may share the host then).
async fn stock(trial: &Trial) -> Result<Vec<String>, Miss> {
    if let Some(harness) = &trial.harness {
        return Ok(harness.inventory().await?);
    }
    let listing = trial.listing(&[]).await?;
    let names = trial.names();
    let machines = listing
        .machines
        .iter()
        .filter(|m| m.mark.uid.as_str().starts_with(&trial.prefix))
        .map(|m| format!("machine {} at {}", m.mark.uid, m.mark.slot));
    let leftovers = listing
        .leftovers
        .iter()
        .filter(|l| names.contains(&l.machine))
        .map(|l| format!("leftover {}", l.volume.name));
    Ok(machines.chain(leftovers).collect())
}

/// What is there now and was not before, or the other way round, once things came to rest.
async fn leak(trial: &Trial, before: &[String]) -> Result<Vec<String>, Miss> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let now = stock(trial).await?;
        let more = now.iter().filter(|l| !before.contains(l)).cloned();
        let less = before
            .iter()
            .filter(|l| !now.contains(l))
            .map(|l| format!("missing: {l}"));
        let leaked: Vec<String> = more.chain(less).collect();
        if leaked.is_empty() || Instant::now() >= end {
            return Ok(leaked);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
