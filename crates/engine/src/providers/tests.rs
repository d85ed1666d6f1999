use super::*;
use crate::support::{id, key, legal, provider, secs};
use egress_core::{ClusterId, machine::Retirement};
use egress_provider::memory::{Network, Physics, World};

fn name() -> ProviderName {
    legal("mem")
}

fn claim(slot: &str, standing: Standing) -> Claim {
    Claim {
        provider: name(),
        cluster: ClusterId::new("cluster"),
        slot: Slot::new(slot),
        host: None,
        attempt: 1,
        standing,
        handles: Vec::new(),
        mac: None,
        seed: None,
        unsettled: false,
        retiring: None,
    }
}

fn record(proxy: &str, claim: Claim) -> Record {
    Record::new(key(proxy).uid().clone(), legal("lab"), id(proxy)).with_claim(claim)
}

fn configured() -> (Arc<World>, Providers) {
    let world = World::new(Physics::default());
    let providers = Providers::new([provider("mem", &world)]);
    (world, providers)
}

fn lane(providers: &Providers) -> Arc<ProviderLane> {
    providers.get(&name()).expect("it is configured")
}

fn taken(providers: &Providers) -> Vec<String> {
    let slots = lane(providers).taken_by_others(&id("someone-else"));
    let mut slots: Vec<String> = slots.iter().map(ToString::to_string).collect();
    slots.sort();
    slots
}

/// The names of those whose change was noted since they were last asked for.
async fn changed(providers: &Providers) -> Vec<String> {
    let names = tokio::time::timeout(secs(1), providers.changed()).await;
    names
        .unwrap_or_default()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn slots_stay_spoken_for_while_their_provider_is_taken_out_and_put_back() {
    let (world, providers) = configured();
    providers.note(
        None,
        Some(&record("a", claim("101", Standing::Started))),
        false,
    );
    assert!(lane(&providers).reserve(&Slot::new("102"), &id("b")));
    providers.replace([]);
    assert!(providers.get(&name()).is_none());
    providers.replace([provider("mem", &world)]);
    assert_eq!(taken(&providers), ["101", "102"]);
    assert_eq!(lane(&providers).expected().len(), 1);
}

#[test]
fn a_pass_that_began_before_a_reload_and_one_after_it_are_not_offered_the_same_slot() {
    let (world, providers) = configured();
    let before = lane(&providers);
    providers.replace([provider("mem", &world)]);
    let slot = Slot::new("101");
    assert!(before.reserve(&slot, &id("a")));
    assert!(!lane(&providers).reserve(&slot, &id("b")));
    providers.replace([]);
    providers.unreserve(&claim("101", Standing::Unsent), &id("a"));
    providers.replace([provider("mem", &world)]);
    assert!(lane(&providers).reserve(&slot, &id("b")));
}

#[test]
fn a_record_counts_also_when_it_is_read_before_its_provider_is_configured() {
    let providers = Providers::default();
    let old = record("a", claim("101", Standing::Started));
    providers.note(None, Some(&old), false);
    let world = World::new(Physics::default());
    providers.replace([provider("mem", &world)]);
    assert_eq!(taken(&providers), ["101"]);
    providers.replace([]);
    providers.note(Some(&old), None, true);
    providers.replace([provider("mem", &world)]);
    assert_eq!(taken(&providers), [""; 0]);
}

#[test]
fn an_offer_is_given_up_unless_a_record_claims_it() {
    let (_world, providers) = configured();
    let offer = claim("101", Standing::Unsent);
    assert!(lane(&providers).reserve(&offer.slot, &id("a")));
    providers.unreserve(&offer, &id("b"));
    assert_eq!(taken(&providers), ["101"], "it is not another's to give up");
    providers.unreserve(&offer, &id("a"));
    assert_eq!(taken(&providers), [""; 0]);

    assert!(lane(&providers).reserve(&offer.slot, &id("a")));
    let sent = record("a", claim("101", Standing::Sent));
    providers.note(None, Some(&sent), false);
    providers.unreserve(&offer, &id("a"));
    assert_eq!(taken(&providers), ["101"]);
}

#[test]
fn only_a_machine_that_was_seen_and_should_stay_is_expected() {
    let (_world, providers) = configured();
    let expected = |record: &Record, deleting| {
        providers.note(None, Some(record), deleting);
        !lane(&providers).expected().is_empty()
    };
    let of = |claim| record("a", claim);
    assert!(!expected(&of(claim("101", Standing::Accepted)), false));
    assert!(expected(&of(claim("101", Standing::Seen)), false));
    assert!(!expected(&of(claim("101", Standing::Seen)), true));
    for why in Retirement::ALL {
        let retiring = Claim {
            retiring: Some(why),
            ..claim("101", Standing::Sealed)
        };
        assert!(!expected(&of(retiring), false), "{why:?}");
    }
    assert!(expected(&of(claim("101", Standing::Sealed)), false));
    providers.unexpect(&id("a"));
    assert!(lane(&providers).expected().is_empty());
    assert_eq!(taken(&providers), ["101"], "its slot stays spoken for");
}

#[tokio::test(start_paused = true)]
async fn a_change_is_noted_when_the_configuration_or_the_errors_of_a_check_differ() {
    let (world, providers) = configured();
    let check = async || lane(&providers).check().await.is_ok();
    assert!(check().await);
    assert_eq!(changed(&providers).await, ["mem"], "the first one");
    assert!(check().await);
    assert_eq!(changed(&providers).await, [""; 0]);
    world.set_template(false);
    assert!(check().await);
    assert_eq!(changed(&providers).await, ["mem"]);
    world.set_network(Network::Down);
    let unreachable = check().await;
    assert_eq!(changed(&providers).await, ["mem"]);
    assert_eq!(check().await, unreachable);
    assert_eq!(changed(&providers).await, [""; 0]);
    providers.replace([provider("mem", &world), provider("other", &world)]);
    assert_eq!(changed(&providers).await, ["mem", "other"]);
    assert_eq!(changed(&providers).await, [""; 0]);
}
