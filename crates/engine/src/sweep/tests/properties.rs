//! What holds for any listing, any records and any guards.

use super::*;

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
