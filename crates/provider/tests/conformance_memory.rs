//! The reference provider passes the suite's basic tier, whatever the hypervisor's times,
//! bare and under each layer.

use egress_core::Identity;
use egress_provider::{
    Provider,
    conformance::{Options, Outcome, Subject, Tier, render, run},
    layer::{
        faulty::Faulty,
        observed::{CallMetrics, Observed},
    },
    memory::{Memory, Physics, Settings, World},
};
use std::{sync::Arc, time::Duration};

fn hypervisors() -> [(&'static str, Physics); 4] {
    [
        ("brisk", Physics::default()),
        ("instant", Physics::instant()),
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

type Wrap = fn(Arc<dyn Provider>) -> Arc<dyn Provider>;

#[tokio::test(start_paused = true)]
async fn the_reference_provider_passes_the_basic_tier_bare_and_under_each_layer() {
    let wraps: [(&str, Wrap); 3] = [
        ("bare", |inner| inner),
        ("observed", |inner| {
            Arc::new(Observed::new(inner, &CallMetrics::default()))
        }),
        ("faulty without a script", |inner| {
            Arc::new(Faulty::new(inner, Vec::new()))
        }),
    ];
    for (times, physics) in hypervisors() {
        for (layer, wrap) in wraps {
            let identity = Identity {
                installation: "suite".parse().expect("legal"),
                writer: None,
            };
            let world = World::new(physics.clone());
            let memory = Memory::new(
                "lab".parse().expect("legal"),
                identity.clone(),
                world.clone(),
                Settings::default(),
            );
            let subject = Subject::alone(wrap(Arc::new(memory)), identity);
            let results = run(&subject, &Options::new(Tier::Basic, "memory")).await;
            let count = |wanted: fn(&Outcome) -> bool| {
                results.iter().filter(|r| wanted(&r.outcome)).count()
            };
            let failed = count(|o| matches!(o, Outcome::Failed(_)));
            let passed = count(|o| *o == Outcome::Passed);
            println!("{times}, {layer}: {passed} of {} passed", results.len());
            assert_eq!(failed, 0, "{times}, {layer}\n{}", render(&results));
            assert!(passed >= 10, "{times}, {layer}\n{}", render(&results));
            let left = world.inventory();
            assert!(
                left.machines.is_empty() && left.seeds.is_empty(),
                "{times}, {layer}: {left:?}"
            );
        }
    }
}
