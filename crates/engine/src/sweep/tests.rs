use super::*;
use egress_core::{
    Claim, ClusterId, Handle, Installation, MachineKey, SeedVolume, WriterId,
    machine::{ConfigHash, Retirement},
};
use jiff::Timestamp;
use proptest::prelude::*;

const PERIOD: Duration = Duration::from_mins(10);
const HOUR: Duration = Duration::from_hours(1);

fn now() -> Now {
    Now {
        since_start: 10 * HOUR,
        wall: Timestamp::from_second(2_000_000_000).unwrap(),
    }
}

fn ago(age: Duration) -> Timestamp {
    now().wall - age
}

fn us() -> Identity {
    let installation: Installation = "lab".parse().unwrap();
    Identity {
        installation,
        writer: Some(WriterId::new("w1")),
    }
}

fn proxy(n: usize) -> ProxyId {
    ProxyId::new("shop", &format!("p{n}")).unwrap()
}

fn uid(n: usize) -> MachineUid {
    format!("uid-{n}").parse().unwrap()
}

fn record(n: usize) -> Record {
    Record::new(uid(n), us().installation, proxy(n))
}

fn record_at(n: usize, slot: &str, standing: Standing) -> Record {
    let claim = Claim {
        provider: "pve".parse().unwrap(),
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
    };
    Record {
        claim: Some(claim),
        last_attempt: 1,
        ..record(n)
    }
}

fn machine(n: usize, slot: &str) -> ListedMachine {
    let mark = Mark {
        installation: us().installation,
        writer: us().writer,
        provider: "pve".parse().unwrap(),
        cluster: ClusterId::new("cluster"),
        slot: Slot::new(slot),
        uid: uid(n),
        proxy: proxy(n),
        attempt: 1,
        config: ConfigHash::of(b"config"),
        written: ago(HOUR),
    };
    ListedMachine {
        mark,
        host: None,
        seed: None,
        created_at: None,
    }
}

fn seed(name: &str, machine: &str) -> Leftover {
    Leftover {
        volume: SeedVolume {
            name: name.into(),
            location: "local".into(),
        },
        machine: machine.into(),
        created_at: Some(ago(HOUR)),
    }
}

fn known(records: &[Record]) -> Known {
    let mut known = Known::default();
    for record in records {
        known.insert_record(record);
    }
    known
}

/// Circumstances in which nothing holds anything back.
fn open_guards() -> Guards {
    Guards {
        mode: Mode::Collect,
        freeze: Freeze::Running,
        identity: us(),
        scope: Namespaces::All,
        read_live: Namespaces::All,
        synced: Synced::Yes,
        store: Health::Healthy,
        provider: Health::Healthy,
        cap: 10,
        period: PERIOD,
    }
}

fn only(namespaces: &[&str]) -> Namespaces {
    Namespaces::Only(namespaces.iter().map(|name| (*name).to_owned()).collect())
}

/// One sweep of one provider.
#[derive(Clone, Debug)]
struct Scene {
    listing: Listing,
    known: Known,
    guards: Guards,
    /// How long the same listing was seen before.
    watched: Option<Duration>,
}

impl Scene {
    /// One living Proxy at its slot, one orphan, one surplus machine and one leftover seed
    /// among enough machines, all of them collectable.
    fn full() -> Self {
        let living = (0..20).map(|n| machine(n, &format!("{}", 100 + n)));
        let records: Vec<Record> = (0..20)
            .map(|n| record_at(n, &format!("{}", 100 + n), Standing::Sealed))
            .collect();
        let machines = living
            .chain([machine(77, "177"), machine(3, "203")])
            .collect();
        Self {
            listing: Listing {
                machines,
                leftovers: vec![seed("seed-gone.iso", "proxy-gone")],
                copies: Vec::new(),
            },
            known: known(&records),
            guards: open_guards(),
            watched: Some(PERIOD),
        }
    }
    /// Only one orphan beside the living.
    fn orphan() -> Self {
        let mut scene = Self::full();
        scene.listing.leftovers.clear();
        scene
            .listing
            .machines
            .retain(|machine| machine.mark.slot.as_str() != "203");
        scene
    }
    /// Only the leftover beside the living.
    fn leftover() -> Self {
        let mut scene = Self::full();
        scene.listing.machines.truncate(20);
        scene
    }
    fn sweep(&self) -> SweepReport {
        let mut earlier = Sightings::default();
        if let Some(watched) = self.watched {
            let then = Now {
                since_start: now().since_start.saturating_sub(watched),
                ..now()
            };
            let report = sweep(
                &self.listing,
                &self.known,
                &self.guards,
                &Sightings::default(),
                then,
            );
            earlier.note(&report, then);
        }
        sweep(&self.listing, &self.known, &self.guards, &earlier, now())
    }
    fn orphan_mut(&mut self) -> &mut ListedMachine {
        self.listing
            .machines
            .iter_mut()
            .find(|m| m.mark.uid == uid(77))
            .unwrap()
    }
    fn classes(&self) -> Vec<SuspectClass> {
        self.sweep()
            .suspects
            .iter()
            .map(|suspect| suspect.class)
            .collect()
    }
}

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

fn namespaces() -> impl Strategy<Value = Namespaces> {
    prop_oneof![
        3 => Just(Namespaces::All),
        1 => Just(only(&["shop"])),
        1 => Just(only(&["other"])),
    ]
}

fn mostly<T: Clone + fmt::Debug + 'static>(usual: T, rare: T) -> impl Strategy<Value = T> {
    prop_oneof![9 => Just(usual), 1 => Just(rare)]
}

prop_compose! {
    fn any_guards()(
        mode in prop_oneof![8 => Just(Mode::Collect), 1 => Just(Mode::DryRun), 1 => Just(Mode::Report)],
        freeze in mostly(Freeze::Running, Freeze::Frozen),
        scope in namespaces(),
        read_live in namespaces(),
        synced in mostly(Synced::Yes, Synced::No),
        store in mostly(Health::Healthy, Health::Unhealthy),
        provider in mostly(Health::Healthy, Health::Unhealthy),
        cap in 0..4usize,
    ) -> Guards {
        Guards { mode, freeze, scope, read_live, synced, store, provider, cap, ..open_guards() }
    }
}

prop_compose! {
    fn any_machine()(
        n in 0..12usize,
        slot in 100..112usize,
        age in prop_oneof![4 => Just(3600), 1 => 0..1800u64],
        ours in mostly(true, false),
    ) -> ListedMachine {
        let mut machine = machine(n, &slot.to_string());
        machine.mark.written = ago(Duration::from_secs(age));
        if !ours {
            machine.mark.installation = "other".parse().unwrap();
        }
        machine
    }
}

prop_compose! {
    fn any_scene()(
        guards in any_guards(),
        strangers in prop::collection::vec(any_machine(), 0..6),
        seeds in prop::collection::vec(0..3usize, 0..3),
        living in 0..30usize,
        watched in prop_oneof![4 => Just(Some(PERIOD)), 1 => Just(None), 1 => (0..1200u64).prop_map(|s| Some(Duration::from_secs(s)))],
    ) -> Scene {
        // Living Proxies have numbers and slots of their own from 100 and 1000 on, but for
        // the first few, whose numbers strangers bear too.
        let number = |n: usize| if n < 4 { n } else { n + 100 };
        let slot = |n: usize| (n + 1000).to_string();
        let records: Vec<Record> =
            (0..living).map(|n| record_at(number(n), &slot(n), Standing::Started)).collect();
        let mut machines: Vec<_> = (0..living).map(|n| machine(number(n), &slot(n))).collect();
        machines.extend(strangers);
        let leftovers = seeds.iter().map(|n| seed(&format!("s{n}.iso"), "proxy-gone")).collect();
        Scene {
            listing: Listing { machines, leftovers, copies: Vec::new() },
            known: known(&records),
            guards,
            watched,
        }
    }
}

/// A second opinion, in other words than the judge's.
fn may_be_collected(suspect: &Suspect, scene: &Scene, suspects: usize) -> bool {
    let guards = &scene.guards;
    let all_read = guards.read_live == Namespaces::All || guards.read_live == guards.scope;
    let (in_scope, made) = match &suspect.thing {
        Thing::Machine(machine) => {
            let mark = &machine.mark;
            let ours = mark.installation == us().installation && mark.writer == us().writer;
            let (scope, live) = (&guards.scope, &guards.read_live);
            let shop = [scope, live]
                .iter()
                .all(|n| **n == Namespaces::All || **n == only(&["shop"]));
            (ours && shop, mark.written)
        }
        Thing::Seed(leftover) => (
            guards.scope == Namespaces::All && all_read,
            leftover.created_at.unwrap(),
        ),
    };
    in_scope
        && guards.mode == Mode::Collect
        && guards.freeze == Freeze::Running
        && guards.synced == Synced::Yes
        && guards.store == Health::Healthy
        && guards.provider == Health::Healthy
        && now().wall.as_second() - made.as_second() >= 900
        && scene.watched.is_some_and(|watched| watched >= PERIOD)
        && !scene.known.places.is_empty()
        && (suspects <= 2 || (suspects as f64) < 0.2 * scene.listing.machines.len() as f64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_suspect_with_any_open_guard_is_never_collectable_and_others_are_up_to_the_cap(
        scene in any_scene()
    ) {
        let report = scene.sweep();
        let total = report.suspects.len();
        let free = report.suspects.iter().filter(|s| may_be_collected(s, &scene, total)).count();
        prop_assert_eq!(report.collectable().count(), free.min(scene.guards.cap));
        for suspect in report.collectable() {
            prop_assert!(may_be_collected(suspect, &scene, total), "{}", suspect);
        }
        for suspect in &report.suspects {
            prop_assert_eq!(suspect.is_collectable(), suspect.held_by.is_empty());
        }
    }

    #[test]
    fn a_machine_of_a_living_proxy_at_its_recorded_slot_is_never_a_suspect(scene in any_scene()) {
        let suspected: BTreeSet<(MachineUid, Slot)> = scene
            .sweep()
            .suspects
            .into_iter()
            .filter_map(|suspect| match suspect.thing {
                Thing::Machine(machine) => Some((machine.mark.uid, machine.mark.slot)),
                Thing::Seed(_) => None,
            })
            .collect();
        for machine in &scene.listing.machines {
            let here = (machine.mark.uid.clone(), machine.mark.slot.clone());
            let recorded = Place::At { provider: "pve".parse().unwrap(), slot: here.1.clone() };
            let home = scene.known.places.get(&here.0) == Some(&recorded);
            prop_assert_eq!(suspected.contains(&here), !home);
        }
    }
}
