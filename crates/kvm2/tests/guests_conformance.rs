//! The provider keeps the contract over a real libvirtd, with domains that have an empty disk and
//! guests that the bench plays.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use egress_core::Identity;
use egress_kvm2::bench::Bench;
use egress_provider::conformance::{
    CaseResult, Options, Outcome, Subject, Table, Tier, render, run_until,
};
use std::sync::{Arc, Mutex};
use support::Ground;

fn assert_all_passed(results: &[CaseResult]) {
    let count =
        |wanted: fn(&Outcome) -> bool| results.iter().filter(|r| wanted(&r.outcome)).count();
    println!(
        "{} of {} cases passed, {} not run\n{}",
        count(|o| *o == Outcome::Passed),
        results.len(),
        count(|o| matches!(o, Outcome::NotRun(_))),
        render(results)
    );
    let failed = count(|o| matches!(o, Outcome::Failed(_)));
    assert_eq!(failed, 0, "{failed} cases failed: see above");
}

#[tokio::test(flavor = "multi_thread")]
async fn kvm2_keeps_the_contract_over_libvirt() {
    let Some(ground) = Ground::find() else {
        return;
    };
    let run_id = uuid::Uuid::new_v4().simple().to_string();
    let identity = Identity {
        installation: format!("conformance-{}", &run_id[..8]).parse().unwrap(),
        writer: None,
    };
    let config = ground.config().await;
    let directory = tempfile::tempdir().unwrap();
    let name = "kvm-a".parse().unwrap();
    let bench = Bench::start(name, identity, config, None, &ground.uri, directory.path()).unwrap();
    let mut options = Options::new(Tier::Extended, &run_id[..8]);
    options.size.memory_mib = 32;
    options.size.disk_gib = 1;
    // For one rule or one case alone while working on it.
    options.filter = std::env::var("CONFORMANCE_FILTER").ok();
    let table = Table::of(&options);
    println!("{}", table.head());
    let table = Mutex::new(table);
    let tell = |result: &CaseResult| println!("{}", table.lock().expect("whole").line(result));
    let subject = Subject::on(Arc::new(bench));
    let (results, _) = run_until(&subject, &options, tell, std::future::pending()).await;
    assert_all_passed(&results);
}
