//! Who is a suspect.

use super::*;

#[test]
fn a_machine_on_its_way_or_of_a_proxy_without_a_claim_is_no_suspect() {
    let elsewhere = || machine(1, "201");
    let seen = record_at(1, "101", Standing::Seen);
    let with = |change: fn(&mut Claim)| {
        let mut record = seen.clone();
        record.claim.as_mut().map(change).unwrap();
        record
    };
    let task = |claim: &mut Claim| {
        claim.handles.push(Handle {
            step: "clone".into(),
            id: "UPID:1".into(),
        });
    };
    for (records, expected) in [
        (vec![record(1)], None),
        (vec![record_at(1, "101", Standing::Unsent)], None),
        (vec![record_at(1, "101", Standing::Sent)], None),
        (vec![record_at(1, "101", Standing::Accepted)], None),
        (vec![with(task)], None),
        (vec![with(|claim| claim.unsettled = true)], None),
        (
            vec![with(|claim| claim.retiring = Some(Retirement::SpecChanged))],
            None,
        ),
        (vec![record_at(1, "201", Standing::Seen)], None),
        (vec![seen.clone()], Some(SuspectClass::Surplus)),
        (
            vec![record_at(1, "101", Standing::Sealed)],
            Some(SuspectClass::Surplus),
        ),
        (
            vec![with(|claim| claim.provider = "kvm".parse().unwrap())],
            Some(SuspectClass::Surplus),
        ),
        (
            vec![record_at(2, "201", Standing::Seen)],
            Some(SuspectClass::Orphan),
        ),
        (vec![], Some(SuspectClass::Orphan)),
    ] {
        let mut scene = Scene::orphan();
        scene.listing.machines = vec![elsewhere()];
        scene.known = known(&records);
        assert_eq!(scene.classes(), Vec::from_iter(expected), "{records:?}");
    }
}

#[test]
fn the_machine_of_a_wanted_or_unreadable_proxy_is_no_orphan() {
    let mut scene = Scene::orphan();
    scene.known.insert_wanted(&uid(77));
    assert_eq!(scene.classes(), []);
    let mut scene = Scene::orphan();
    scene.known.insert_unreadable(proxy(77));
    assert_eq!(scene.classes(), []);
    // A wanted one does not hide what its record says.
    let mut scene = Scene::full();
    scene.known.insert_wanted(&uid(3));
    assert_eq!(scene.classes(), SuspectClass::ALL);
}

#[test]
fn a_seed_that_a_machine_or_a_proxy_uses_is_no_leftover() {
    let orphan_name = MachineKey::new(uid(77)).name().to_owned();
    let living_name = MachineKey::new(uid(3)).name().to_owned();
    for (leftover, expected) in [
        (seed("a.iso", "proxy-gone"), 1),
        (seed("a.iso", &living_name), 0),
        (seed("a.iso", &orphan_name), 0),
        (seed("recorded.iso", "proxy-gone"), 0),
        (seed("attached.iso", "proxy-gone"), 0),
    ] {
        let mut scene = Scene::full();
        let volume = |name: &str| SeedVolume {
            name: name.into(),
            location: "local".into(),
        };
        let mut recorded = record_at(4, "104", Standing::Started);
        recorded.claim.as_mut().unwrap().seed = Some(volume("recorded.iso"));
        scene.known.insert_record(&recorded);
        scene.listing.machines[5].seed = Some(volume("attached.iso"));
        scene.listing.leftovers = vec![leftover.clone()];
        assert_eq!(
            scene.sweep().count(SuspectClass::Leftover),
            expected,
            "{leftover:?}"
        );
    }
}

#[test]
fn a_seed_of_unknown_age_is_as_old_as_our_first_sight_of_it() {
    for (watched, held) in [(Some(MIN_AGE), false), (Some(PERIOD), true)] {
        let mut scene = Scene::leftover();
        scene.listing.leftovers[0].created_at = None;
        scene.watched = watched;
        let suspect = &scene.sweep().suspects[0];
        let expected = if held {
            vec![Guard::TooYoung]
        } else {
            Vec::new()
        };
        assert_eq!(suspect.held_by, expected);
    }
}

#[test]
fn a_seed_is_only_judged_by_who_looks_after_every_namespace() {
    let held = |scope: Namespaces, read_live: Namespaces| {
        let mut scene = Scene::leftover();
        scene.guards.scope = scope;
        scene.guards.read_live = read_live;
        scene.sweep().suspects[0].held_by.clone()
    };
    assert_eq!(held(Namespaces::All, Namespaces::All), []);
    assert_eq!(
        held(only(&["shop"]), only(&["shop"])),
        [Guard::NamespaceOutOfScope]
    );
    assert_eq!(
        held(Namespaces::All, only(&["shop"])),
        [Guard::NamespaceNotReadLive]
    );
}
