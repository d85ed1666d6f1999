mod forgetting;
mod replacement;
mod user_data;

use super::{
    inbox::{Asked, inbox},
    *,
};
use crate::{
    store::Store,
    support::{Running, Site, desired, id, provider, secs, spec, wait_for, wanted},
};
use egress_core::{
    Standing,
    machine::ConfigHash,
    proxy::ProxySpec,
    status::{ConditionType, Reason},
};
use egress_provider::memory::Network;
use std::{io, sync::atomic::Ordering};

const PROVISIONED: ConditionType = ConditionType::Provisioned;

fn full(site: &Site, full: bool) {
    site.shelf.full.store(full, Ordering::Relaxed);
}

/// Watches `/readyz`'s source for so long.
async fn store_stays_in_trouble(engine: &Running, time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        let trouble = engine.handle.store_trouble();
        let text = trouble.expect("a Proxy waits for the store all the time");
        assert!(text.contains("free some space"), "{text}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_told_until_who_waits_for_it_could_write_whatever_others_do() {
    let site = Site::new();
    let engine = site.start().await;
    engine.handle.want(wanted("steady"));
    engine.wait_serving(&["steady"]).await;

    full(&site, true);
    engine.handle.want(wanted("new"));
    let told = || engine.handle.store_trouble().is_some();
    wait_for("the full disk to be told", secs(5), told).await;
    // The steady one has nothing to write and passes every five seconds.
    store_stays_in_trouble(&engine, secs(60)).await;
    // Blind, nobody knows what there would be to write.
    site.world.set_network(Network::Down);
    store_stays_in_trouble(&engine, secs(300)).await;
    site.world.set_network(Network::Up);
    store_stays_in_trouble(&engine, secs(60)).await;

    full(&site, false);
    engine.handle.wake_all();
    let mended = || engine.handle.store_trouble().is_none();
    wait_for("the store to be well", secs(400), mended).await;
    engine.wait_serving(&["new"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_told_with_its_cause_and_in_the_status_of_each_that_waits() {
    let site = Site::new();
    let engine = site.start().await;
    full(&site, true);
    for name in ["a", "b", "c"] {
        engine.handle.want(wanted(name));
    }
    let all = || {
        let waits = |name: &&str| engine.reason(name, PROVISIONED) == Some(Reason::Transient);
        ["a", "b", "c"].iter().all(waits)
    };
    wait_for("all to wait", secs(10), all).await;
    let cause = io::Error::from(io::ErrorKind::StorageFull).to_string();
    let text = engine.handle.store_trouble().expect("three wait");
    assert_eq!(
        text,
        format!(
            "cannot write the record of shop/a: free some space: {cause} (and 2 more Proxies \
             wait for the store)"
        )
    );
    let message = engine.message("b", PROVISIONED);
    assert!(message.ends_with(&cause), "{message}");

    // Who goes before it ever had a record waits for nothing.
    for name in ["a", "b", "c"] {
        engine.handle.want(desired(name, Intent::Delete));
    }
    let mended = || engine.handle.store_trouble().is_none();
    wait_for("nobody to wait", secs(10), mended).await;
    assert_eq!(engine.handle.views().len(), 0);
}

#[test]
fn who_is_in_the_midst_of_something_passes_a_crowd_and_starves_nobody() {
    let mut lane = Lane::default();
    lane.waiting.extend((0..5).map(|n| id(&format!("w{n}"))));
    lane.moving.extend((0..3).map(|n| id(&format!("m{n}"))));
    let order: Vec<ProxyId> = std::iter::from_fn(|| lane.next()).collect();
    let wanted = ["w0", "m0", "w1", "m1", "w2", "m2", "w3", "w4"].map(id);
    assert_eq!(order, wanted);
    lane.moving.extend([id("m3"), id("m4")]);
    let order: Vec<ProxyId> = std::iter::from_fn(|| lane.next()).collect();
    assert_eq!(order, ["m3", "m4"].map(id));
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_stops_leaves_no_promise_behind_for_which_nothing_was_sent() {
    let standing = async |site: &Site| {
        let stored = site.shelf.load(&id("a")).await.expect("it can be read");
        let claim = stored.and_then(|s| s.record.claim);
        claim.map(|claim| claim.standing)
    };
    // What was refused is tried again much later, also by whoever comes after a crash.
    let (site, engine) = failed_for_good().await;
    assert_eq!(standing(&site).await, Some(Standing::Unsent));
    // Whom a lock keeps waiting is tried again in a moment: its promise stands meanwhile.
    site.world.set_template(true);
    site.doorman.busy.store(true, Ordering::Relaxed);
    engine.handle.renew(id("a"));
    let waits = || engine.reason("a", PROVISIONED) == Some(Reason::Busy);
    wait_for("the lock", secs(30), waits).await;
    assert_eq!(standing(&site).await, Some(Standing::Sent));
    engine.stop().await;
    assert_eq!(standing(&site).await, Some(Standing::Unsent));
    site.doorman.busy.store(false, Ordering::Relaxed);

    // The next one need not wait for what was never sent.
    let engine = site.start().await;
    engine.handle.want(desired("a", Intent::Delete));
    let gone = || engine.handle.views().is_empty();
    let took = wait_for("its end", secs(900), gone).await;
    assert!(took < secs(5), "it was gone after {took:?}");
    engine.stop().await;

    // Whose request was sent keeps its word.
    site.world.set_template(true);
    let engine = site.start().await;
    engine.handle.want(wanted("a"));
    let asked = || engine.reason("a", PROVISIONED) == Some(Reason::Creating);
    wait_for("the request", secs(30), asked).await;
    engine.stop().await;
    assert_eq!(standing(&site).await, Some(Standing::Accepted));
}

/// A site whose template is missing, with one Proxy that failed for good.
async fn failed_for_good() -> (Site, Running) {
    let site = Site::new();
    site.world.set_template(false);
    let engine = site.start().await;
    let providers = &engine.handle.parts().providers;
    let lane = providers.get(&spec().provider).expect("it is configured");
    lane.check().await.expect("the world answers");
    engine.handle.want(wanted("a"));
    let failed = || engine.reason("a", PROVISIONED) == Some(Reason::Permanent);
    wait_for("the failure", secs(30), failed).await;
    tokio::time::sleep(secs(60)).await;
    (site, engine)
}

async fn soon_provisioned(engine: &Running) {
    let works = || engine.reason("a", PROVISIONED) != Some(Reason::Permanent);
    let took = wait_for("the next try", secs(900), works).await;
    assert!(took < secs(2), "it was tried again after {took:?}");
    engine.wait_serving(&["a"]).await;
}

#[tokio::test(start_paused = true)]
async fn what_failed_for_good_is_tried_at_once_when_the_check_says_something_else() {
    let (site, engine) = failed_for_good().await;
    let providers = &engine.handle.parts().providers;
    let lane = providers.get(&spec().provider).expect("it is configured");
    let tries = site.world.request_count();
    lane.check().await.expect("the world answers");
    tokio::time::sleep(secs(60)).await;
    let same = "the same check again changes nothing";
    assert_eq!(site.world.request_count(), tries, "{same}");

    site.world.set_template(true);
    lane.check().await.expect("the world answers");
    soon_provisioned(&engine).await;
}

#[tokio::test(start_paused = true)]
async fn what_failed_for_good_is_tried_at_once_when_its_provider_is_configured_anew() {
    let (site, engine) = failed_for_good().await;
    site.world.set_template(true);
    let providers = &engine.handle.parts().providers;
    providers.replace([provider("mem", &site.world)]);
    soon_provisioned(&engine).await;
}

#[tokio::test(start_paused = true)]
async fn what_failed_for_good_is_tried_at_once_when_something_else_is_wanted() {
    let (site, engine) = failed_for_good().await;
    site.world.set_template(true);
    engine.handle.want(desired("a", another()));
    soon_provisioned(&engine).await;
}

/// Another configuration of the same Proxy.
fn another() -> Intent {
    Intent::Run(ProxySpec {
        config_hash: ConfigHash::of(b"two"),
        ..spec()
    })
}

#[tokio::test(start_paused = true)]
async fn a_wish_or_a_check_that_changes_while_a_pass_fails_is_not_held_back_by_it() {
    for wish in [true, false] {
        let site = Site::new();
        site.doorman.shut();
        site.doorman.refuses_one.store(true, Ordering::Relaxed);
        let engine = site.start().await;
        engine.handle.want(wanted("a"));
        let inside = || site.doorman.waiting() == 1;
        wait_for("the pass to create", secs(5), inside).await;

        if wish {
            engine.handle.want(desired("a", another()));
        } else {
            let providers = &engine.handle.parts().providers;
            providers.replace([provider("mem", &site.world)]);
        }
        tokio::time::sleep(secs(1)).await; // the engine took it, the pass still runs
        site.doorman.open();
        let begun = Instant::now();
        engine.wait_serving(&["a"]).await;
        assert!(begun.elapsed() < secs(60), "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn machines_that_a_person_deleted_are_not_missed_by_the_next_engine() {
    let site = Site::new();
    let names = ["a", "b", "c", "d", "e", "f"];
    {
        let engine = site.start().await;
        for name in names {
            engine.handle.want(wanted(name));
        }
        engine.wait_serving(&names).await;
        for name in names {
            engine.handle.want(desired(name, Intent::Delete));
        }
        let gone = || names.iter().all(|name| site.machines(name).is_empty());
        // Killed as soon as nothing is there, before all records are released.
        while !gone() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let kept = site.shelf.list().await.expect("the records can be listed");
    assert!(
        kept.len() > 2,
        "{} records outlived their machines",
        kept.len()
    );

    let engine = site.start().await;
    for name in names {
        engine.handle.want(wanted(name));
    }
    let begun = Instant::now();
    engine.wait_serving(&names).await;
    assert!(begun.elapsed() < secs(40), "{:?}", begun.elapsed());
    assert!(names.iter().all(|name| site.machines(name).len() == 1));
}

#[tokio::test(start_paused = true)]
async fn machines_that_nobody_deleted_are_doubted_before_they_are_made_anew() {
    let site = Site::new();
    let names = ["a", "b", "c", "d", "e", "f"];
    let engine = site.start().await;
    for name in names {
        engine.handle.want(wanted(name));
    }
    engine.wait_serving(&names).await;
    for slot in names.iter().flat_map(|name| site.machines(name)) {
        assert!(site.world.remove(slot));
    }
    let begun = Instant::now();
    let doubted = || engine.reason("a", PROVISIONED) == Some(Reason::MassDisappearance);
    wait_for("the doubt", secs(30), doubted).await;
    engine.wait_serving(&names).await;
    assert!(begun.elapsed() > secs(60), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_proxy_goes_without_any_call_and_what_it_leaves_is_told() {
    let site = Site::new();
    let engine = site.start().await;
    engine.handle.want(wanted("a"));
    engine.wait_serving(&["a"]).await;
    let running = engine.handle.view(&id("a")).expect("it is shown");
    drop(engine);
    let machines = site.machines("a");
    // Whoever calls now has no answer for 30 s.
    site.world.set_network(Network::Silent);
    let (begun, mut history) = (Instant::now(), History::default());
    let abandon = desired("a", Intent::Abandon);
    let outcome = pass(&site.parts(), &abandon, secs(1), &mut history).await;
    let outcome = outcome.expect("the store works");
    assert!(outcome.gone && begun.elapsed() < secs(1), "{outcome:?}");
    assert_eq!(
        site.shelf.load(&id("a")).await.expect("it can be read"),
        None
    );
    assert_eq!(site.machines("a"), machines);

    let left = format!("left behind: memory://mem/{}, attempt 1", machines[0]);
    for before in [Some(&running.status), None] {
        let told = shared::last_words(before, &outcome.status);
        let told = told.iter().find(|event| event.reason == Reason::Abandoned);
        let message = &told.expect("it is told").message;
        assert!(message.contains(&left), "{message}");
    }
    let only = shared::last_words(None, &outcome.status);
    assert_eq!(only.len(), 1, "{only:?}");
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_proxy_is_forgotten_by_the_engine_too() {
    let site = Site::new();
    let engine = site.start().await;
    engine.handle.want(wanted("a"));
    engine.wait_serving(&["a"]).await;
    site.world.set_network(Network::Silent);
    engine.handle.want(desired("a", Intent::Abandon));
    // The pass in flight may have asked before.
    let forgotten = || engine.handle.views().is_empty();
    wait_for("it to be forgotten", secs(60), forgotten).await;
    assert_eq!(site.machines("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_is_taken_out_and_put_back_has_no_second_share_of_passes() {
    let site = Site::new();
    site.doorman.shut();
    let engine = site.start().await;
    for n in 0..40 {
        engine.handle.want(wanted(&format!("p{n}")));
    }
    let busy = || site.doorman.waiting() == LANE_WIDTH;
    wait_for("the first passes", secs(5), busy).await;
    let providers = &engine.handle.parts().providers;
    providers.replace([]);
    tokio::time::sleep(secs(5)).await;
    providers.replace([provider("mem", &site.world)]);
    engine.handle.wake_all();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(site.doorman.waiting(), LANE_WIDTH);
    site.doorman.open();
    let names: Vec<String> = (0..40).map(|n| format!("p{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    engine.wait_serving(&names).await;
    assert!(names.iter().all(|name| site.machines(name).len() == 1));
}

/// B159: timers do not pile up.
#[tokio::test(start_paused = true)]
async fn a_proxy_has_at_most_one_timer_however_often_it_is_looked_at() {
    let site = Site::new();
    let (mut engine, _handle) = Engine::new(site.parts(), EngineMetrics::default());
    engine.want(wanted("a"));
    for wait in [secs(600), secs(300), secs(900)] {
        engine.set_timer(&id("a"), wait);
        assert_eq!(engine.timers.len(), 1);
    }
    if let Some(entry) = engine.entries.get_mut(&id("a")) {
        entry.turn = Turn::Idle;
    }
    engine.enqueue(&id("a"));
    assert_eq!(engine.timers.len(), 0, "who is queued waits for no timer");
}

#[tokio::test]
async fn a_later_wish_takes_the_place_of_an_earlier_one_that_was_not_taken() {
    let (sender, mut receiver) = inbox();
    let ask = |desired: Desired| {
        sender.ask(|asked| {
            asked.wanted.insert(desired.proxy.clone(), desired);
        });
    };
    for _ in 0..1_000 {
        ask(wanted("a"));
        ask(wanted("b"));
        sender.ask(|asked| {
            asked.wake.insert(id("a"));
        });
    }
    ask(desired("a", Intent::Delete));
    let Some(Asked {
        wanted: wishes,
        forgotten: _,
        wake,
        renewed,
        wake_all,
    }) = receiver.take().await
    else {
        panic!("the sender lives");
    };
    assert_eq!(wishes.len(), 2);
    assert_eq!(wishes[&id("a")].intent, Intent::Delete);
    assert_eq!((wake.len(), renewed.len(), wake_all), (1, 0, false));
    drop(sender);
    assert!(
        receiver
            .take()
            .await
            .is_none_or(|left| left.wanted.is_empty())
    );
    assert!(receiver.take().await.is_none());
}
