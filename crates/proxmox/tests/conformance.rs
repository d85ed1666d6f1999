//! The provider keeps the whole contract over the simulator, in virtual time.

mod bench;

use egress_provider::conformance::{CaseResult, Options, Outcome, Subject, Tier, render, run};
use egress_proxmox::Config;
use egress_proxmox_sim::world::{Setup, Timings};

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

async fn keeps_the_contract(setup: Setup, change: impl FnOnce(&mut Config)) {
    let directory = tempfile::tempdir().unwrap();
    let (_, bench) = bench::bench_with(setup, directory.path(), change);
    let mut options = Options::new(Tier::Extended, "pve");
    // For one rule or one case alone while working on it.
    options.filter = std::env::var("CONFORMANCE_FILTER").ok();
    let results = run(&Subject::on(bench), &options).await;
    assert_all_passed(&results);
}

#[tokio::test(start_paused = true)]
async fn proxmox_keeps_the_contract_over_the_simulator() {
    keeps_the_contract(bench::two_nodes(), |_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn proxmox_keeps_the_contract_on_version_8() {
    let mut setup = bench::two_nodes();
    setup.version = 8;
    for privileges in setup.roles.values_mut() {
        privileges.retain(|privilege| !privilege.starts_with("VM.GuestAgent"));
        privileges.push("VM.Monitor".to_owned());
    }
    keeps_the_contract(setup, |_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn proxmox_keeps_the_contract_where_everything_takes_long() {
    let timings = Timings {
        clone_disk: 90.0,
        upload: 45.0,
        resize: 5.0,
        start: 12.0,
        boot: 60.0,
        stop: 15.0,
        destroy: 10.0,
        delete_volume: 8.0,
        ..Timings::default()
    };
    let setup = Setup {
        timings,
        ..bench::two_nodes()
    };
    keeps_the_contract(setup, |config| config.vlan_tag = Some(4)).await;
}
