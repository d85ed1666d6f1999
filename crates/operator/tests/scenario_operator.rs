//! Stories of the operator in virtual time, over an API server and a hypervisor in memory.

mod cluster;

use cluster::{Cluster, REPLICA, secs};
use egress_operator::double::{Gate, Target, Verb, Verdict};
use egress_provider::memory::Physics;
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

#[tokio::test(start_paused = true)]
async fn a_proxy_is_made_serves_and_is_gone_with_all_it_had() {
    let cluster = Cluster::new();
    let operator = cluster.start(REPLICA).await;
    cluster.apply("a");
    cluster.wait_serving("a").await;
    let object = cluster.proxy("a");
    assert_eq!(object["status"]["phase"], "Running");
    assert_eq!(
        object["metadata"]["finalizers"],
        json!(["egress-proxies.io/machine"])
    );
    let secret = cluster.secret("a-credentials").expect("it was generated");
    assert_eq!(
        secret["metadata"]["ownerReferences"][0]["uid"],
        object["metadata"]["uid"]
    );
    assert_eq!(cluster.machines(), 1);

    cluster.delete("a");
    cluster.wait_gone("a").await;
    assert_eq!(cluster.machines(), 0);
    assert_eq!(cluster.secret("a-credentials"), None);
    operator.stop().await;
}

/// B172: a status wakes nobody who wrote it.
#[tokio::test(start_paused = true)]
async fn when_nothing_changes_nothing_is_written_but_the_lease() {
    let cluster = Cluster::new();
    let _operator = cluster.start(REPLICA).await;
    for n in 0..20 {
        cluster.apply(&format!("p{n}"));
    }
    for n in 0..20 {
        cluster.wait_serving(&format!("p{n}")).await;
    }
    tokio::time::sleep(secs(120)).await;
    cluster.server.take_asked();
    tokio::time::sleep(secs(300)).await;
    let asked = cluster.server.take_asked();
    let writes: Vec<&Target> = asked
        .iter()
        .filter(|t| t.verb.is_write() && t.resource != "leases")
        .collect();
    assert_eq!(writes, Vec::<&Target>::new());
    let reads = asked
        .iter()
        .filter(|t| t.resource == "proxies" && t.verb != Verb::Watch);
    assert_eq!(reads.count(), 0, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_spec_that_cannot_be_accepted_says_so_and_leaves_a_running_machine_alone() {
    let cluster = Cluster::new();
    let _operator = cluster.start(REPLICA).await;
    cluster.apply("a");
    cluster.wait_serving("a").await;
    let bad = json!({"spec": {"proxy": {"clients": ["10.0.0.0/33"]}}});
    cluster.patch("a", &bad);
    cluster
        .wait("the refusal", || {
            cluster.condition("a", "Accepted").0 == "False"
        })
        .await;
    let message = cluster.condition("a", "Accepted").1;
    assert!(
        message.starts_with("spec.proxy.clients[0]: 10.0.0.0/33: "),
        "{message}"
    );
    tokio::time::sleep(secs(60)).await;
    assert_eq!(cluster.machines(), 1);
    assert_eq!(cluster.condition("a", "Provisioned").0, "True");

    cluster.patch("a", &json!({"spec": {"proxy": {"clients": null}}}));
    cluster
        .wait("it to be accepted", || {
            cluster.condition("a", "Accepted").0 == "True"
        })
        .await;
    // One that names no provider there is recovers without deletion, too.
    cluster.apply_at("b", "nowhere");
    cluster
        .wait("the refusal", || {
            cluster.condition_reason("b", "Accepted") == "ProviderUnconfigured"
        })
        .await;
    cluster.patch("b", &json!({"spec": {"provider": "lab"}}));
    cluster.wait_serving("b").await;
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_proxy_goes_and_leaves_its_machine_and_an_event() {
    let cluster = Cluster::new();
    let _operator = cluster.start(REPLICA).await;
    cluster.apply("a");
    cluster.wait_serving("a").await;
    let abandon = json!({"metadata": {"annotations": {"egress-proxies.io/abandon": "true"}}});
    cluster.patch("a", &abandon);
    tokio::time::sleep(secs(30)).await;
    assert_eq!(
        cluster.condition("a", "Serving").0,
        "True",
        "it is not being deleted"
    );
    cluster.delete("a");
    cluster.wait_gone("a").await;
    tokio::time::sleep(secs(5)).await;
    assert_eq!(cluster.machines(), 1);
    let told = cluster.events("Abandoned");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("memory://lab/"), "{told:?}");
}

/// B169: it is not put back on an object that is being deleted.
#[tokio::test(start_paused = true)]
async fn a_finalizer_that_someone_takes_away_leaves_the_machine_and_no_loop() {
    let cluster = Cluster::new();
    let _operator = cluster.start(REPLICA).await;
    cluster.apply("a");
    cluster.wait_serving("a").await;
    cluster.patch("a", &json!({"metadata": {"finalizers": null}}));
    cluster.delete("a");
    cluster.wait_gone("a").await;
    tokio::time::sleep(secs(120)).await;
    assert_eq!(cluster.machines(), 1);
    cluster.server.take_asked();
    tokio::time::sleep(secs(120)).await;
    let asked = cluster.server.take_asked();
    let about = asked.iter().filter(|t| t.name.as_deref() == Some("a"));
    assert_eq!(about.count(), 0, "it is forgotten");
    // The next one of that name is another Proxy.
    cluster.apply("a");
    cluster.wait_serving("a").await;
    assert_eq!(cluster.machines(), 2);
}

/// A person gives a Proxy the record of another one, with its own name in it.
#[tokio::test(start_paused = true)]
async fn a_record_forged_from_another_proxys_leads_to_nothing_of_that_one() {
    let cluster = Cluster::new();
    let _operator = cluster.start(REPLICA).await;
    for name in ["theirs", "own"] {
        cluster.apply(name);
        cluster.wait_serving(name).await;
    }
    let record = |name: &str| {
        let object = cluster.proxy(name);
        let text = object["metadata"]["annotations"]["egress-proxies.io/record"].as_str();
        text.expect("a record").to_owned()
    };
    let forged = record("theirs").replace("shop/theirs", "shop/own");
    let annotations = json!({"egress-proxies.io/record": forged});
    cluster.patch("own", &json!({"metadata": {"annotations": annotations}}));
    let told = || cluster.condition_reason("own", "Provisioned") == "NotOwned";
    cluster.wait("it to be told", told).await;
    cluster.delete("own");
    tokio::time::sleep(secs(300)).await;
    assert_eq!(cluster.machines(), 2);
    assert_eq!(cluster.condition_reason("theirs", "Serving"), "Serving");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_was_taken_away_is_found_by_the_mark_and_nothing_is_made_twice() {
    let cluster = Cluster::on(Physics {
        settle: secs(60),
        ..Physics::default()
    });
    let _operator = cluster.start(REPLICA).await;
    for name in ["stays", "goes"] {
        cluster.apply(name);
        cluster.wait_serving(name).await;
        let lose = json!({"metadata": {"annotations": {"egress-proxies.io/record": null}}});
        let before = cluster.proxy(name)["status"].clone();
        cluster.patch(name, &lose);
        cluster
            .wait("it to be told", || {
                cluster.condition_reason(name, "Accepted") == "RecordUnreadable"
            })
            .await;
        let (_, told) = cluster.condition(name, "Accepted");
        assert!(told.contains("put it back, or wait until"), "{told}");
        // Clients go on using it.
        let now = cluster.proxy(name)["status"].clone();
        for field in ["endpoint", "addresses", "machine", "providerID"] {
            assert_eq!(now[field], before[field], "{field}");
        }
    }
    cluster.delete("goes");
    cluster.wait_gone("goes").await;
    let recorded = || {
        let object = cluster.proxy("stays");
        object["metadata"]["annotations"]["egress-proxies.io/record"].is_string()
    };
    cluster.wait("the record to be there again", recorded).await;
    cluster.wait_serving("stays").await;
    assert_eq!(cluster.machines(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_second_replica_takes_over_at_once_when_the_first_stops_and_makes_nothing_twice() {
    let cluster = Cluster::new();
    let first = cluster.start("one").await;
    cluster.apply("a");
    cluster.wait_serving("a").await;
    let second = cluster.start("two").await;
    tokio::time::sleep(secs(30)).await;
    first.stop().await;
    let begun = tokio::time::Instant::now();
    cluster.apply("b");
    cluster.wait_serving("b").await;
    assert!(begun.elapsed() < secs(20), "{:?}", begun.elapsed());
    assert_eq!(cluster.machines(), 2);
    for name in ["a", "b"] {
        cluster.delete(name);
        cluster.wait_gone(name).await;
    }
    assert_eq!(cluster.machines(), 0);
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_killed_replica_is_followed_and_makes_nothing_twice() {
    let cluster = Cluster::new();
    let first = cluster.start("one").await;
    let _second = cluster.start("two").await;
    for n in 0..5 {
        cluster.apply(&format!("p{n}"));
    }
    tokio::time::sleep(secs(3)).await;
    first.kill();
    for n in 0..5 {
        cluster.wait_serving(&format!("p{n}")).await;
    }
    assert_eq!(cluster.machines(), 5);
}

/// Fails every n-th write, each in turn in another way.
struct Flaky(AtomicU32);

#[async_trait::async_trait]
impl Gate for Flaky {
    async fn judge(&self, target: &Target) -> Verdict {
        if !target.verb.is_write() || target.resource == "leases" {
            return Verdict::Pass;
        }
        let n = self.0.fetch_add(1, Ordering::Relaxed);
        match n % 10 {
            0 => Verdict::Refuse(409),
            2 => Verdict::Refuse(429),
            4 => Verdict::FailAfter(500),
            6 => Verdict::CutAfter,
            7 => Verdict::CutBefore,
            8 => Verdict::HangAfter,
            _ => Verdict::Pass,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn writes_that_fail_in_every_way_end_with_one_machine_each_and_then_none() {
    let cluster = Cluster::new();
    cluster
        .server
        .set_gate(Some(Arc::new(Flaky(AtomicU32::new(0)))));
    let _operator = cluster.start(REPLICA).await;
    let names: Vec<String> = (0..10).map(|n| format!("p{n}")).collect();
    for name in &names {
        cluster.apply(name);
    }
    for name in &names {
        cluster.wait_serving(name).await;
    }
    assert_eq!(cluster.machines(), 10);
    for name in &names {
        cluster.delete(name);
    }
    for name in &names {
        cluster.wait_gone(name).await;
    }
    assert_eq!(cluster.machines(), 0);
}

/// B155: it is listed anew.
#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_or_is_too_old_is_begun_anew_and_misses_nothing() {
    let cluster = Cluster::new();
    let _operator = cluster.start(REPLICA).await;
    cluster.apply("a");
    cluster.wait_serving("a").await;
    cluster.server.end_watches();
    cluster.apply("b");
    cluster.wait_serving("b").await;
    cluster.server.compact();
    cluster.delete("a");
    cluster.apply("c");
    cluster.wait_gone("a").await;
    cluster.wait_serving("c").await;
    assert_eq!(cluster.machines(), 2);
}

/// Knows no Proxies, as a server without their definition, and counts how often it is asked.
#[derive(Default)]
struct Undefined(AtomicU32);

#[async_trait::async_trait]
impl Gate for Undefined {
    async fn judge(&self, target: &Target) -> Verdict {
        if target.resource == "proxies" && !target.verb.is_write() {
            self.0.fetch_add(1, Ordering::Relaxed);
            return Verdict::Refuse(404);
        }
        Verdict::Pass
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_again_and_again_is_asked_for_less_and_less_often() {
    let cluster = Cluster::new();
    let _operator = cluster.start(REPLICA).await;
    let gate = Arc::new(Undefined::default());
    cluster.server.set_gate(Some(gate.clone()));
    cluster.server.compact();
    cluster.server.end_watches();
    tokio::time::sleep(secs(300)).await;
    let asked = gate.0.load(Ordering::Relaxed);
    assert!((5..60).contains(&asked), "{asked}");
    cluster.server.set_gate(None);
    cluster.apply("a");
    cluster.wait_serving("a").await;
}

/// Refuses the next status with this code, before it has an effect.
struct NextStatus(u16, AtomicBool);

#[async_trait::async_trait]
impl Gate for NextStatus {
    async fn judge(&self, target: &Target) -> Verdict {
        let is_status = target.resource == "proxies" && target.subresource.is_some();
        if is_status && !self.1.swap(true, Ordering::Relaxed) {
            return Verdict::Refuse(self.0);
        }
        Verdict::Pass
    }
}

/// B167: each write holds all of our fields, and a refused one is tried again.
#[tokio::test(start_paused = true)]
async fn an_erased_status_is_written_again_and_changes_nothing_else() {
    let cluster = Cluster::new();
    let _operator = cluster.start(REPLICA).await;
    cluster.apply("a");
    cluster.wait_serving("a").await;
    let erase = Target {
        subresource: Some("status".into()),
        ..Target::proxies(Verb::Patch, "shop", Some("a"))
    };
    // Nothing else changes about it, so nothing but the refusal asks for another try.
    for refused_with in [None, Some(409), Some(429), Some(500)] {
        let gate = refused_with
            .map(|code| -> Arc<dyn Gate> { Arc::new(NextStatus(code, AtomicBool::new(false))) });
        cluster.server.set_gate(gate);
        cluster
            .server
            .ask(&erase, &json!({"status": Value::Null}))
            .unwrap();
        cluster.wait_serving("a").await;
    }
    assert_eq!(cluster.machines(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_record_of_another_installation_is_left_alone_and_said_so() {
    let cluster = Cluster::new();
    let operator = cluster.start(REPLICA).await;
    cluster.apply("a");
    cluster.wait_serving("a").await;
    operator.stop().await;
    let other = cluster.rename_installation("b");
    let _operator = other.start(REPLICA).await;
    other
        .wait("it to be said", || {
            other.condition_reason("a", "Accepted") == "InstallationChanged"
        })
        .await;
    tokio::time::sleep(secs(60)).await;
    assert_eq!(other.machines(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_objects_of_another_installations_providers_are_left_alone() {
    let cluster = Cluster::new();
    let first = cluster.start(REPLICA).await;
    let shown = || cluster.provider("lab").is_some();
    cluster.wait("the first one's object", shown).await;
    first.stop().await;
    let theirs = cluster.provider("lab");
    let second = cluster.rename_installation("b");
    second.configure("other");
    let _operator = second.start("second").await;
    let shown = || second.provider("other").is_some();
    second.wait("the second one's object", shown).await;
    second.configure("lab other");
    tokio::time::sleep(secs(120)).await;
    assert_eq!(second.provider("lab"), theirs);
}

#[tokio::test(start_paused = true)]
async fn a_restored_object_with_another_uid_keeps_its_machine() {
    let cluster = Cluster::new();
    let operator = cluster.start(REPLICA).await;
    cluster.apply("a");
    cluster.wait_serving("a").await;
    operator.stop().await;
    let backup = cluster.proxy("a");
    let restored = cluster.in_another_cluster();
    restored.restore(&backup);
    let _operator = restored.start(REPLICA).await;
    restored
        .wait("its machine", || {
            restored.proxy("a")["status"]["phase"] == "Running"
        })
        .await;
    assert_eq!(restored.machines(), 1);
    assert_ne!(
        restored.proxy("a")["metadata"]["uid"],
        backup["metadata"]["uid"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_provider_has_an_object_while_it_is_configured_or_holds_a_machine() {
    let cluster = Cluster::new();
    let _operator = cluster.start(REPLICA).await;
    let ready = |name: &str| {
        let object = cluster.provider(name).unwrap_or_default();
        let condition = &object["status"]["conditions"][0];
        (condition["status"].clone(), condition["reason"].clone())
    };
    cluster
        .wait("its object", || {
            ready("lab") == (json!("True"), json!("Ready"))
        })
        .await;
    let count = |of: &str| {
        let object = cluster.provider("lab").unwrap_or_default();
        object["status"]["counts"][of].as_i64()
    };
    let free = count("freeSlots").expect("its places have a number");
    cluster.apply("a");
    cluster.wait_serving("a").await;
    let proxies = || count("proxies") == Some(1);
    cluster.wait("its count", proxies).await;
    // By the next check.
    let one_less = || count("freeSlots") == Some(free - 1);
    cluster.wait("a place less", one_less).await;

    cluster.configure("other");
    let gone = || ready("lab") == (json!("False"), json!("ConfigInvalid"));
    cluster.wait("the lack of it to be said", gone).await;
    assert_eq!(
        cluster.condition_reason("a", "Accepted"),
        "ProviderUnconfigured"
    );
    assert_eq!(cluster.machines(), 1);

    cluster.configure("lab other");
    cluster.wait_serving("a").await;
    cluster.delete("a");
    cluster.wait_gone("a").await;
    cluster.configure("other");
    cluster
        .wait("its object to go", || cluster.provider("lab").is_none())
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_broken_configuration_changes_nothing_and_is_told_in_an_event() {
    let cluster = Cluster::new();
    let _operator = cluster.start(REPLICA).await;
    cluster.apply("a");
    cluster.wait_serving("a").await;
    cluster.configure("lab !");
    let told = || !cluster.events_in("system", "ConfigInvalid").is_empty();
    cluster.wait("the event", told).await;
    assert_eq!(
        cluster.events_in("system", "ConfigInvalid"),
        ["config.yaml: !: is no name"]
    );
    cluster.apply("b");
    cluster.wait_serving("b").await;
    assert_eq!(cluster.condition("a", "Serving").0, "True");
    cluster.configure("lab");
    let told = || !cluster.events_in("system", "ConfigReloaded").is_empty();
    cluster.wait("the end of it", told).await;
}
