//! The reference provider keeps the whole contract, whatever the hypervisor's times, bare and
//! under each layer.

mod bench;

use egress_provider::{
    Provider,
    conformance::{
        CaseResult, End, Options, Outcome, Subject, Tier, cases, render, run, run_until,
    },
    layer::{
        faulty::Faulty,
        observed::{CallMetrics, Observed},
    },
    memory::Physics,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// The kinds of hypervisor that differ in what a provider must cope with.
fn hypervisors() -> [(&'static str, Physics); 5] {
    [
        ("brisk", Physics::default()),
        ("instant", Physics::instant()),
        (
            "slow",
            Physics {
                clone: Duration::from_mins(5),
                upload: Duration::from_mins(2),
                start: Duration::from_secs(30),
                stop: Duration::from_mins(1),
                destroy: Duration::from_secs(40),
                boot_time: Duration::from_mins(2),
                ..Physics::default()
            },
        ),
        (
            "lagging",
            Physics {
                read_lag: Duration::from_secs(8),
                ..Physics::default()
            },
        ),
        (
            "late",
            Physics {
                birth_lag: Duration::from_secs(50),
                settle: Duration::from_mins(2),
                ..Physics::default()
            },
        ),
    ]
}

/// Every case passes; none is left out but those that the capabilities do not call for, and
/// those about tasks where tasks take no time.
fn assert_all_passed(what: &str, results: &[CaseResult]) {
    let passed = results
        .iter()
        .filter(|r| r.outcome == Outcome::Passed)
        .count();
    println!("{what}: {passed} of {} cases passed", results.len());
    for result in results {
        let by_nature = match &result.outcome {
            Outcome::Passed => true,
            Outcome::Failed(_) => false,
            Outcome::NotRun(why) => {
                why.contains("capabilities") || why.contains("a task that could fail")
            }
        };
        assert!(by_nature, "{what}\n{}", render(results));
    }
}

type Layer = fn(Arc<dyn Provider>) -> Arc<dyn Provider>;

async fn passes_everywhere(layer: &str, wrap: Layer) {
    for (name, physics) in hypervisors() {
        let subject = Subject::on(bench::bench(physics)).wrapped(wrap);
        let results = run(&subject, &Options::new(Tier::Extended, "memory")).await;
        assert_all_passed(&format!("{layer} on a {name} hypervisor"), &results);
    }
}

#[tokio::test(start_paused = true)]
async fn memory_keeps_the_contract() {
    passes_everywhere("memory", |inner| inner).await;
}

#[tokio::test(start_paused = true)]
async fn memory_under_observed_keeps_the_contract() {
    passes_everywhere("observed", |inner| {
        Arc::new(Observed::new(inner, &CallMetrics::default()))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn memory_under_faulty_without_a_script_keeps_the_contract() {
    passes_everywhere("faulty", |inner| Arc::new(Faulty::new(inner, Vec::new()))).await;
}

#[tokio::test(start_paused = true)]
async fn the_basic_tier_needs_a_provider_only() {
    let bench = bench::bench(Physics::default());
    let provider = bench
        .restart()
        .await
        .expect("a bench can restart its provider");
    let subject = Subject::alone(provider, bench.identity());
    let results = run(&subject, &Options::new(Tier::Basic, "alone")).await;
    assert!(results.iter().all(|r| r.tier == Tier::Basic));
    assert!(results.len() >= 20, "only {} cases", results.len());
    assert_all_passed("memory alone", &results);
    let left = bench.inventory().await.expect("a bench has an inventory");
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn without_a_harness_the_extended_cases_are_not_run() {
    let bench = bench::bench(Physics::default());
    let provider = bench
        .restart()
        .await
        .expect("a bench can restart its provider");
    let subject = Subject::alone(provider, bench.identity());
    let results = run(&subject, &Options::new(Tier::Extended, "alone")).await;
    let extended: Vec<_> = results
        .iter()
        .filter(|r| r.tier == Tier::Extended)
        .collect();
    assert!(!extended.is_empty());
    for result in extended {
        assert!(
            matches!(result.outcome, Outcome::NotRun(_)),
            "{}: {:?}",
            result.title,
            result.outcome
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_filter_chooses_by_rule_or_by_title() {
    let subject = Subject::on(bench::bench(Physics::default()));
    let mut options = Options::new(Tier::Basic, "filter");
    options.filter = Some("C2".to_owned());
    let results = run(&subject, &options).await;
    assert!(!results.is_empty() && results.iter().all(|r| r.rule == "C2"));
    options.filter = Some("claim answers first".to_owned());
    assert_eq!(run(&subject, &options).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_at_any_moment_tells_what_ended_and_leaves_nothing() {
    for (name, physics) in hypervisors() {
        for tenths in 0..60 {
            let bench = bench::bench(physics.clone());
            let before = bench.inventory().await.unwrap();
            let mut options = Options::new(Tier::Basic, "stopped");
            options.filter = Some("D1".to_owned());
            let mut told = Vec::new();
            let after = Duration::from_millis(100 * tenths * tenths);
            let subject = Subject::on(bench.clone());
            let tell = |result: &CaseResult| told.push(result.clone());
            let (results, end) =
                run_until(&subject, &options, tell, tokio::time::sleep(after)).await;
            assert_eq!(told, results);
            let what = format!("{name}, stopped after {after:?}: {results:#?}");
            let is_failed = |r: &CaseResult| matches!(r.outcome, Outcome::Failed(_));
            assert!(!results.iter().any(is_failed), "{what}");
            if end == End::Interrupted {
                let why = Outcome::NotRun("interrupted".to_owned());
                assert_eq!(results.last().map(|r| &r.outcome), Some(&why), "{what}");
            }
            assert_eq!(bench.inventory().await.unwrap(), before, "{what}");
        }
    }
}

#[test]
fn every_rule_of_the_contract_has_a_case_and_every_case_a_rule() {
    let contract = include_str!("../../../docs/provider-contract.md");
    let rules: BTreeSet<_> = contract
        .lines()
        .filter_map(|line| {
            line.strip_prefix("- **")?
                .split_once("**")
                .map(|(id, _)| id)
        })
        .filter(|id| id.len() == 2 && id.as_bytes()[1].is_ascii_digit())
        .collect();
    let with_case: BTreeSet<_> = cases().iter().map(|c| c.rule).collect();
    assert_eq!(rules, with_case);
    assert_eq!(rules.len(), 31, "{rules:?}");
}

#[test]
fn no_two_cases_have_the_same_title() {
    let cases = cases();
    let titles: BTreeSet<_> = cases.iter().map(|c| c.title).collect();
    assert_eq!(titles.len(), cases.len());
}
