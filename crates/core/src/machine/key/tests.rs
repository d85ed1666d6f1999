use super::*;
use proptest::prelude::*;

#[test]
fn a_standalone_uid_never_changes_and_differs_in_each_of_its_parts() {
    let lab: Installation = "lab".parse().unwrap();
    let shop = ProxyId::new("shop", "a").unwrap();
    let uid = MachineUid::standalone(&lab, &shop, 1);
    assert_eq!(uid.as_str(), "1f2dccb1-36c2-5d85-8b0c-a1278f5bcca8");
    let others = [
        MachineUid::standalone(&"lab2".parse().unwrap(), &shop, 1),
        MachineUid::standalone(&lab, &ProxyId::new("shop", "b").unwrap(), 1),
        MachineUid::standalone(&lab, &ProxyId::new("shop2", "a").unwrap(), 1),
        MachineUid::standalone(&lab, &shop, 2),
    ];
    assert!(others.iter().all(|other| *other != uid));
}

#[test]
fn the_incarnation_of_a_standalone_uid_is_found_again_within_the_bound() {
    let lab: Installation = "lab".parse().unwrap();
    let shop = ProxyId::new("shop", "a").unwrap();
    let seventh = MachineUid::standalone(&lab, &shop, 7);
    assert_eq!(seventh.incarnation(&lab, &shop, 7), Some(7));
    assert_eq!(seventh.incarnation(&lab, &shop, 6), None);
    assert_eq!(
        "given-by-an-api-server"
            .parse::<MachineUid>()
            .unwrap()
            .incarnation(&lab, &shop, 9),
        None
    );
}

#[test]
fn the_name_of_a_key_never_changes() {
    // Computed with another implementation of SHA-256 and base32: these names are on
    // people's hypervisors.
    for (uid, name, spread) in [
        (
            "0c5c1b6e-6c5e-4b52-9d8a-0d5f2c1a7e11",
            "proxy-z6m4nhcfnr5evsma",
            42,
        ),
        ("uid-a", "proxy-yg2bz7yuigcshw27", 179),
    ] {
        let key = MachineKey::new(uid.parse().unwrap());
        assert_eq!(key.name(), name);
        assert_eq!(key.spread(1000), spread);
        assert_eq!(key.uid().as_str(), uid);
    }
}

#[test]
fn a_key_is_stored_as_its_uid_and_made_again_from_it() {
    let key = MachineKey::new("uid-a".parse().unwrap());
    let stored = serde_json::to_string(&key).unwrap();
    assert_eq!(stored, "\"uid-a\"");
    assert_eq!(serde_json::from_str::<MachineKey>(&stored).unwrap(), key);
}

#[test]
fn a_uid_that_a_name_or_a_path_could_break_on_is_refused() {
    for text in ["", "a b", "a/b", "ä", "a\n", &"a".repeat(65)] {
        assert!(text.parse::<MachineUid>().is_err(), "{text:?}");
        assert!(
            serde_json::from_value::<MachineUid>(text.into()).is_err(),
            "{text:?}"
        );
    }
}

#[test]
fn a_spread_over_nothing_is_nothing_and_over_much_is_even() {
    let keys: Vec<MachineKey> = (0..4000)
        .map(|n| MachineKey::new(format!("uid-{n}").parse().unwrap()))
        .collect();
    let mut counts = [0_u32; 4];
    for key in &keys {
        assert_eq!(key.spread(0), 0);
        assert_eq!(key.spread(1), 0);
        counts[usize::try_from(key.spread(4)).unwrap()] += 1;
    }
    assert!(
        counts.iter().all(|count| (850..1150).contains(count)),
        "{counts:?}"
    );
}

proptest! {
    #[test]
    fn every_uid_gives_a_name_of_22_characters_that_dns_takes(uid in "[A-Za-z0-9-]{1,64}") {
        let key = MachineKey::new(uid.parse().unwrap());
        prop_assert_eq!(key.name().len(), 22);
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        prop_assert!(key.name().bytes().all(legal));
        prop_assert!(key.name().starts_with("proxy-") && !key.name().ends_with('-'));
        // Names are also the names of Kubernetes objects: our own parser takes them.
        prop_assert!(crate::ProxyId::new("a", key.name()).is_ok());
    }
}
