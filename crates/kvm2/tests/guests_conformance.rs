//! The provider keeps the contract over a real libvirtd, with domains that have an empty disk and
//! guests that the bench plays.

use egress_core::Identity;
use egress_kvm2::{Config, bench::Bench, client::HostUri};
use egress_provider::conformance::{CaseResult, Options, Outcome, Subject, Tier, render, run};
use std::sync::Arc;

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

/// What `cargo xtask libvirt-up` puts into the environment; told loudly where it lacks.
fn libvirt() -> Option<(HostUri, String)> {
    let found = (
        std::env::var("EGRESS_LIBVIRT_URI"),
        std::env::var("EGRESS_LIBVIRT_BASE_IMAGE"),
    );
    let (Ok(uri), Ok(image)) = found else {
        println!(
            "NOT RUN: no libvirt: run this within `cargo xtask libvirt-up -- COMMAND`, or with the variables that it prints"
        );
        return None;
    };
    let uri = uri.parse().expect("EGRESS_LIBVIRT_URI is a URI of libvirt");
    Some((uri, image))
}

#[tokio::test(flavor = "multi_thread")]
async fn kvm2_keeps_the_contract_over_libvirt() {
    let Some((uri, image)) = libvirt() else {
        return;
    };
    let run_id = uuid::Uuid::new_v4().simple().to_string();
    let identity = Identity {
        installation: format!("conformance-{}", &run_id[..8]).parse().unwrap(),
        writer: None,
    };
    let config: Config = serde_json::from_value(serde_json::json!({
        "hosts": [{"uri": uri}],
        "baseImage": image,
        "domainType": "qemu",
        "guestAgent": "baked",
        "reserve": {"storagePercent": 0, "memoryMiB": 0},
    }))
    .unwrap();
    assert_eq!(config.validate("kvm2"), []);
    let directory = tempfile::tempdir().unwrap();
    let name = "kvm-a".parse().unwrap();
    let bench = Bench::start(name, identity, config, None, &uri, directory.path()).unwrap();
    let mut options = Options::new(Tier::Extended, &run_id[..8]);
    options.size.memory_mib = 32;
    options.size.disk_gib = 1;
    // For one rule or one case alone while working on it.
    options.filter = std::env::var("CONFORMANCE_FILTER").ok();
    let results = run(&Subject::on(Arc::new(bench)), &options).await;
    assert_all_passed(&results);
}
