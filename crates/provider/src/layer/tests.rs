use super::{
    faulty::{Fault, Faulty, Side},
    observed::{CallMetrics, Observed},
};
use crate::{
    Operation, Permit, Provider,
    memory::{
        Network, Physics, World,
        tests::{self, claim, key, memory},
    },
};
use egress_core::ErrorClass;
use prometheus_client::{encoding::text, registry::Registry};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

fn inner(world: &Arc<World>) -> Arc<dyn Provider> {
    Arc::new(memory(world))
}

fn permit() -> Permit {
    Permit::new(1, Instant::now() + Duration::from_mins(1))
}

#[tokio::test(start_paused = true)]
async fn each_call_is_counted_by_operation_and_class_and_timed() {
    let world = World::new(Physics::default());
    let metrics = CallMetrics::default();
    let observed = Observed::new(inner(&world), &metrics);
    let claim = claim(&observed, &key(1)).await;
    observed
        .get(&key(1), &claim)
        .await
        .expect("the world answers");
    world.set_network(Network::Down);
    observed
        .get(&key(1), &claim)
        .await
        .expect_err("the world is away");
    observed
        .get(&key(1), &claim)
        .await
        .expect_err("the world is away");

    let count = |operation, class| metrics.count(observed.name(), operation, class);
    assert_eq!(count(Operation::Claim, None), 1);
    assert_eq!(count(Operation::Get, None), 1);
    assert_eq!(count(Operation::Get, Some(ErrorClass::Transient)), 2);
    assert_eq!(count(Operation::Get, Some(ErrorClass::Busy)), 0);

    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let mut page = String::new();
    text::encode(&mut page, &registry).expect("text is written to a string");
    for line in [
        r#"egress_proxies_provider_calls_total{provider="lab",operation="get",class="Transient"} 2"#,
        r#"egress_proxies_provider_calls_total{provider="lab",operation="delete",class="ok"} 0"#,
        r#"egress_proxies_provider_call_duration_seconds_count{provider="lab",operation="get"} 3"#,
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_call_that_hangs_is_its_deadline() {
    let world = World::new(Physics::default());
    let metrics = CallMetrics::default();
    let observed = Observed::new(inner(&world), &metrics);
    world.set_network(Network::Silent);
    observed.list(&[]).await.expect_err("no answer comes");
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let mut page = String::new();
    text::encode(&mut page, &registry).expect("text is written to a string");
    let sum = r#"duration_seconds_sum{provider="lab",operation="list"} 30.0"#;
    assert!(page.contains(sum), "{sum} is not in\n{page}");
}

#[tokio::test(start_paused = true)]
async fn a_script_fails_the_named_call_on_the_named_side() {
    let world = World::new(Physics::default());
    let fault = |call, side, class| Fault {
        operation: Operation::Create,
        call,
        side,
        class,
    };
    let script = vec![
        fault(1, Side::Before, ErrorClass::Capacity),
        fault(2, Side::After, ErrorClass::OutcomeUnknown),
    ];
    let faulty = Faulty::new(inner(&world), script);
    let claim = claim(&faulty, &key(1)).await;
    let wanted = tests::wanted();

    let first = faulty.create(&key(1), &claim, &wanted, &permit()).await;
    assert_eq!(first.map_err(|e| e.class()), Err(ErrorClass::Capacity));
    assert_eq!(world.request_count(), 0, "the inner provider was asked");

    let second = faulty.create(&key(1), &claim, &wanted, &permit()).await;
    assert_eq!(
        second.map_err(|e| e.class()),
        Err(ErrorClass::OutcomeUnknown)
    );
    assert_eq!(
        world.inventory().machines.len(),
        1,
        "the inner provider was not asked"
    );

    faulty
        .create(&key(1), &claim, &wanted, &permit())
        .await
        .expect("the script has ended");
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_fails_the_same_calls_and_about_as_many_as_asked() {
    let world = World::new(Physics::default());
    let mut runs = Vec::new();
    for seed in [7, 7, 8] {
        let faulty = Faulty::seeded(inner(&world), seed, 200);
        let mut failed = Vec::new();
        for call in 0..1000 {
            if faulty.list(&[]).await.is_err() {
                failed.push(call);
            }
        }
        assert!(
            (150..250).contains(&failed.len()),
            "{} of 1000 failed",
            failed.len()
        );
        runs.push(failed);
    }
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0], runs[2]);
}

#[tokio::test(start_paused = true)]
async fn a_delay_comes_before_each_call() {
    let world = World::new(Physics::default());
    let faulty = Faulty::new(inner(&world), Vec::new()).delayed(Duration::from_secs(3));
    let begun = Instant::now();
    faulty.list(&[]).await.expect("the world answers");
    faulty.check().await.expect("the world answers");
    assert_eq!(begun.elapsed(), Duration::from_secs(6));
}
