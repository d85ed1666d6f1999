//! What holds a suspect back.

use super::*;

#[test]
fn with_every_guard_satisfied_all_three_kinds_are_collectable_and_no_living_machine_is_a_suspect() {
    let report = Scene::full().sweep();
    let found: Vec<_> = report
        .suspects
        .iter()
        .map(|suspect| (suspect.class, suspect.held_by.clone()))
        .collect();
    assert_eq!(found, SuspectClass::ALL.map(|class| (class, Vec::new())));
    assert_eq!(report.collectable().count(), 3);
}

type Close = fn(&mut Scene);

/// For each guard the one change that closes it, for an orphan and for a leftover.
const ROWS: &[(Guard, Close)] = &[
    (Guard::NotSwitchedOn, |s| s.guards.mode = Mode::Report),
    (Guard::DryRun, |s| s.guards.mode = Mode::DryRun),
    (Guard::Frozen, |s| s.guards.freeze = Freeze::Frozen),
    (Guard::NamespaceOutOfScope, |s| {
        s.guards.scope = only(&["other"]);
    }),
    (Guard::NamespaceNotReadLive, |s| {
        s.guards.read_live = only(&["other"]);
    }),
    (Guard::StoreNotSynced, |s| s.guards.synced = Synced::No),
    (Guard::StoreUnhealthy, |s| {
        s.guards.store = Health::Unhealthy;
    }),
    (Guard::StoreUnhealthy, |s| {
        s.known.insert_unreadable(proxy(5));
    }),
    (Guard::ProviderUnhealthy, |s| {
        s.guards.provider = Health::Unhealthy;
    }),
    (Guard::NoProxyExists, |s| {
        s.known = Known::default();
        s.listing
            .machines
            .retain(|machine| machine.mark.uid == uid(77));
    }),
    (Guard::TooYoung, |s| {
        let young = ago(MIN_AGE.checked_sub(Duration::from_secs(1)).unwrap());
        for machine in s.listing.machines.iter_mut().skip(20) {
            machine.mark.written = young;
        }
        for leftover in &mut s.listing.leftovers {
            leftover.created_at = Some(young);
        }
    }),
    (Guard::TooYoung, |s| {
        // Made in the future, by a clock that is not ours.
        for machine in s.listing.machines.iter_mut().skip(20) {
            machine.created_at = Some(now().wall + HOUR);
        }
        for leftover in &mut s.listing.leftovers {
            leftover.created_at = Some(now().wall + HOUR);
        }
    }),
    (Guard::SeenOnce, |s| s.watched = None),
    (Guard::SeenOnce, |s| s.watched = Some(Duration::ZERO)),
    (Guard::SeenOnce, |s| {
        s.watched = Some(PERIOD.checked_sub(Duration::from_secs(1)).unwrap());
    }),
    (Guard::OverCapPerSweep, |s| s.guards.cap = 0),
];

/// Guards that only a mark, or only a crowd, can close.
const MACHINE_ROWS: &[(Guard, Close)] = &[
    (Guard::OtherInstallation, |s| {
        s.orphan_mut().mark.installation = "other".parse().unwrap();
    }),
    (Guard::OtherWriter, |s| {
        s.orphan_mut().mark.writer = Some(WriterId::new("w2"));
    }),
    (Guard::OtherWriter, |s| s.orphan_mut().mark.writer = None),
    (Guard::OverShare, |s| {
        s.listing
            .machines
            .extend((0..4).map(|n| machine(80 + n, &format!("{}", 180 + n))));
    }),
];

#[test]
fn each_guard_alone_holds_back_and_is_the_only_one_named() {
    let machine_rows = ROWS
        .iter()
        .chain(MACHINE_ROWS)
        .map(|row| (Scene::orphan(), row));
    let seed_rows = ROWS.iter().map(|row| (Scene::leftover(), row));
    let mut closed = BTreeSet::new();
    for (mut scene, (guard, close)) in machine_rows.chain(seed_rows) {
        assert!(scene.sweep().suspects.iter().all(Suspect::is_collectable));
        close(&mut scene);
        let suspects = scene.sweep().suspects;
        assert!(!suspects.is_empty(), "{guard}");
        for suspect in suspects {
            assert_eq!(suspect.held_by, [*guard], "{suspect}");
            assert!(suspect.to_string().contains(guard.sentence()), "{suspect}");
        }
        closed.insert(*guard);
    }
    assert_eq!(
        closed,
        Guard::ALL.iter().copied().collect(),
        "a guard without a row"
    );
}

#[test]
fn two_suspects_are_few_and_from_three_on_a_fifth_of_the_machines_is_too_many() {
    for (suspects, machines, held) in [
        (1, 1, false),
        (2, 2, false),
        (3, 3, true),
        (3, 15, true),
        (3, 16, false),
        (4, 20, true),
        (4, 21, false),
    ] {
        let mut scene = Scene::orphan();
        let living = machines - suspects;
        let records: Vec<Record> = (0..living)
            .map(|n| record_at(n, &n.to_string(), Standing::Started))
            .collect();
        scene.known = known(&records);
        // One Proxy must exist; it needs no machine.
        scene.known.insert_wanted(&uid(999));
        scene.listing.machines = (0..machines).map(|n| machine(n, &n.to_string())).collect();
        let report = scene.sweep();
        assert_eq!(report.suspects.len(), suspects);
        for suspect in report.suspects {
            let expected = if held {
                vec![Guard::OverShare]
            } else {
                Vec::new()
            };
            assert_eq!(suspect.held_by, expected, "{suspects} of {machines}");
        }
    }
}

#[test]
fn a_sweep_collects_up_to_its_cap_and_who_is_held_back_does_not_count() {
    let mut scene = Scene::full();
    scene.guards.cap = 1;
    scene.orphan_mut().mark.written = now().wall;
    let held: Vec<_> = scene
        .sweep()
        .suspects
        .into_iter()
        .map(|suspect| suspect.held_by)
        .collect();
    assert_eq!(
        held,
        [vec![Guard::TooYoung], vec![], vec![Guard::OverCapPerSweep]]
    );
}

#[test]
fn a_suspect_that_was_away_or_innocent_in_between_begins_its_wait_anew() {
    let scene = Scene::orphan();
    let at = |minutes: u64| Now {
        since_start: Duration::from_mins(minutes),
        ..now()
    };
    let mut sightings = Sightings::default();
    let mut look = |scene: &Scene, minutes| {
        let report = sweep(
            &scene.listing,
            &scene.known,
            &scene.guards,
            &sightings,
            at(minutes),
        );
        sightings.note(&report, at(minutes));
        report
            .suspects
            .first()
            .map(|suspect| suspect.held_by.clone())
    };
    assert_eq!(look(&scene, 0), Some(vec![Guard::SeenOnce]));
    let mut empty = scene.clone();
    empty.listing.machines.truncate(20);
    assert_eq!(look(&empty, 5), None);
    assert_eq!(look(&scene, 10), Some(vec![Guard::SeenOnce]));
    assert_eq!(look(&scene, 15), Some(vec![Guard::SeenOnce]));
    let mut living = scene.clone();
    living.known.insert_record(&record(77));
    assert_eq!(look(&living, 20), None);
    assert_eq!(look(&scene, 21), Some(vec![Guard::SeenOnce]));
    // Another machine in the same slot is another suspect.
    let mut next = scene.clone();
    next.orphan_mut().mark.attempt = 2;
    assert_eq!(look(&next, 31), Some(vec![Guard::SeenOnce]));
    assert_eq!(look(&next, 41), Some(vec![]));
}
