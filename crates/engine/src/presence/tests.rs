use super::*;
use crate::support::{key, provider, secs};
use egress_core::{ErrorClass, Slot};
use egress_provider::{
    Operation,
    layer::observed::{CallMetrics, Observed},
    memory::{Network, Physics, World},
};
use std::sync::Arc;

const NORMAL: Presence = Presence::Normal;
const ALL_MISSING: Presence = Presence::MassDisappearance { absent: 5, of: 5 };

/// Five machines that should be there and are not.
fn missing() -> Vec<RecordedSlot> {
    (1..=5)
        .map(|n| RecordedSlot {
            key: key(&format!("p{n}")),
            slot: Slot::new((100 + n).to_string()),
        })
        .collect()
}

/// An empty hypervisor, and its provider with counted calls.
fn scene() -> (Arc<World>, Observed, CallMetrics) {
    let world = World::new(Physics::default());
    let metrics = CallMetrics::default();
    let observed = Observed::new(provider("mem", &world), &metrics);
    (world, observed, metrics)
}

#[tokio::test(start_paused = true)]
async fn too_many_are_believed_missing_after_three_listings_over_a_minute() {
    let (_world, provider, _) = scene();
    let mut watch = PresenceWatch::default();
    for wait in [0, 29, 30] {
        tokio::time::sleep(secs(wait)).await;
        assert_eq!(watch.judge(&provider, &missing()).await, ALL_MISSING);
    }
    tokio::time::sleep(secs(11)).await;
    assert_eq!(watch.judge(&provider, &missing()).await, NORMAL);
}

#[tokio::test(start_paused = true)]
async fn two_listings_do_not_agree_however_far_apart_they_are() {
    let (_world, provider, _) = scene();
    let mut watch = PresenceWatch::default();
    assert_eq!(watch.judge(&provider, &missing()).await, ALL_MISSING);
    tokio::time::sleep(secs(3_600)).await;
    assert_eq!(watch.judge(&provider, &missing()).await, ALL_MISSING);
}

#[tokio::test(start_paused = true)]
async fn listings_of_another_day_agree_with_none_of_today() {
    let (_world, provider, _) = scene();
    let mut watch = PresenceWatch::default();
    for _ in 0..2 {
        watch.judge(&provider, &missing()).await;
        tokio::time::sleep(secs(10)).await;
    }
    tokio::time::sleep(secs(3_600)).await;
    // The third one in all, and the first of this time.
    assert_eq!(watch.judge(&provider, &missing()).await, ALL_MISSING);
    tokio::time::sleep(secs(30)).await;
    assert_eq!(watch.judge(&provider, &missing()).await, ALL_MISSING);
    tokio::time::sleep(secs(31)).await;
    assert_eq!(watch.judge(&provider, &missing()).await, NORMAL);
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_or_finds_them_begins_the_minute_anew() {
    for fails in [true, false] {
        let (world, provider, _) = scene();
        let mut watch = PresenceWatch::default();
        for _ in 0..2 {
            watch.judge(&provider, &missing()).await;
            tokio::time::sleep(secs(30)).await;
        }
        if fails {
            world.set_network(Network::Down);
            assert_eq!(watch.judge(&provider, &missing()).await, ALL_MISSING);
            world.set_network(Network::Up);
        } else {
            assert_eq!(watch.judge(&provider, &[]).await, NORMAL);
        }
        tokio::time::sleep(secs(30)).await;
        for wait in [30, 31] {
            assert_eq!(watch.judge(&provider, &missing()).await, ALL_MISSING);
            tokio::time::sleep(secs(wait)).await;
        }
        assert_eq!(watch.judge(&provider, &missing()).await, NORMAL);
    }
}

#[tokio::test(start_paused = true)]
async fn a_listing_answers_for_ten_seconds_also_one_that_failed() {
    let (world, provider, metrics) = scene();
    let mut watch = PresenceWatch::default();
    world.set_network(Network::Down);
    let failed = || {
        metrics.count(
            provider.name(),
            Operation::List,
            Some(ErrorClass::Transient),
        )
    };
    for _ in 0..20 {
        assert_eq!(watch.judge(&provider, &missing()).await, ALL_MISSING);
    }
    assert_eq!(failed(), 1);
    tokio::time::sleep(secs(11)).await;
    watch.judge(&provider, &missing()).await;
    assert_eq!(failed(), 2);
}

#[tokio::test(start_paused = true)]
async fn two_or_a_fifth_may_be_missing_at_once() {
    let (_world, provider, _) = scene();
    let mut watch = PresenceWatch::default();
    assert_eq!(watch.judge(&provider, &missing()[..2]).await, NORMAL);
    assert_eq!([1, 10, 14, 15, 100].map(tolerated), [2, 2, 2, 3, 20]);
}
