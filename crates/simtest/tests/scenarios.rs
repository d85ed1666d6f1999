//! Scenarios with golden output, in virtual time: what a person would see, and when.
//! `UPDATE_GOLDEN=1` rewrites the files in `scenarios/`.

use egress_core::proxy::Desired;
use egress_provider::memory::{Physics, Power, Stranger};
use egress_simtest::{
    ground::{Ground, unwanted, wanted},
    process::{Lease, Process},
};
use std::{fmt::Write, path::Path, time::Duration};
use tokio::time::Instant;

const fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Passes for so long, noting each change of what people see.
async fn live(
    tale: &mut String,
    begun: Instant,
    process: &mut Process,
    desired: &Desired,
    time: Duration,
) {
    let until = Instant::now() + time;
    let mut last = String::new();
    while Instant::now() < until {
        let Ok(outcome) = process.pass(desired).await else {
            break;
        };
        let seen: Vec<String> = outcome
            .status
            .conditions
            .iter()
            .map(|c| format!("{:?}={:?}/{}", c.r#type, c.status, c.reason))
            .collect();
        let line = format!("{} {}", outcome.status.phase.as_str(), seen.join(" "));
        if line != last {
            let _ = writeln!(tale, "{:>4} s  {line}", begun.elapsed().as_secs());
            last = line;
        }
        if outcome.gone {
            let _ = writeln!(tale, "{:>4} s  gone", begun.elapsed().as_secs());
            return;
        }
        tokio::time::sleep(outcome.recheck.unwrap_or(secs(60)).min(secs(60))).await;
    }
}

fn compare(name: &str, tale: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("scenarios/{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, tale).expect("the golden file can be written");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(tale, golden, "see {}", path.display());
}

#[tokio::test(start_paused = true)]
async fn a_proxy_comes_up_and_goes() {
    let ground = Ground::new(Physics::default());
    let (mut tale, begun) = (String::new(), Instant::now());
    let mut process = Process::start(&ground, Lease::default());
    live(&mut tale, begun, &mut process, &wanted("a", 1), secs(120)).await;
    tale.push_str("-- the manifest is removed\n");
    live(&mut tale, begun, &mut process, &unwanted("a"), secs(120)).await;
    compare("comes-up-and-goes", &tale);
}

/// B96: started once more, then replaced.
#[tokio::test(start_paused = true)]
async fn a_machine_that_is_powered_off_again_and_again_is_replaced() {
    let ground = Ground::new(Physics::default());
    let (mut tale, begun) = (String::new(), Instant::now());
    let mut process = Process::start(&ground, Lease::default());
    let desired = wanted("a", 1);
    live(&mut tale, begun, &mut process, &desired, secs(60)).await;
    for _ in 0..3 {
        tale.push_str("-- someone powers it off\n");
        for slot in ground.machines_of(&desired.uid) {
            ground.world.set_power(slot, Power::Stopped);
        }
        live(&mut tale, begun, &mut process, &desired, secs(120)).await;
    }
    compare("powered-off-again-and-again", &tale);
}

/// B36, B37: a slot that someone else holds is left to them.
#[tokio::test(start_paused = true)]
async fn a_slot_that_someone_else_holds_is_left_to_them() {
    let slot = {
        let ground = Ground::new(Physics::instant());
        let mut scout = Process::start(&ground, Lease::default());
        live(
            &mut String::new(),
            Instant::now(),
            &mut scout,
            &wanted("a", 1),
            secs(60),
        )
        .await;
        ground.machines_of(&wanted("a", 1).uid)[0]
    };
    let ground = Ground::new(Physics::default());
    let stranger = Stranger {
        name: Some("payroll".into()),
        ..Stranger::default()
    };
    assert!(ground.world.place(slot, &stranger));
    let (mut tale, begun) = (String::new(), Instant::now());
    let mut process = Process::start(&ground, Lease::default());
    live(&mut tale, begun, &mut process, &wanted("a", 1), secs(120)).await;
    let ours = ground.machines_of(&wanted("a", 1).uid);
    assert_eq!(ours.len(), 1);
    assert_ne!(ours[0], slot);
    assert!(ground.world.inventory().machines.contains(&slot));
    compare("slot-of-someone-else", &tale);
}
