//! Walks on which people meddle.

use super::{Terrain, Walk, in_virtual_time, life, run_all, secs};
use crate::{
    fuse::{Fuse, Trick},
    ground::{Ground, Hypervisor, unwanted, wanted},
    process::{Goal, Lease, Process},
    pve::Pve,
};
use egress_core::{Claim, Handle, Host, ProxyId, Slot, Standing};
use serde_json::json;
use std::{cell::Cell, time::Duration};
use tokio::time::{sleep, timeout};

/// Someone takes the slot right before each effect, where it is free then or freed for it;
/// the answer of that effect may be lost besides.
pub fn a_stranger_at_the_slot<H: Hypervisor>(terrains: &[Terrain<H>], most: usize) -> usize {
    let mut runs = Vec::new();
    for terrain in terrains {
        let slot = terrain.first_slot();
        let late = secs(20).min(terrain.settle);
        let tricks = [
            None,
            Some(Trick::LoseAnswer(None)),
            Some(Trick::LoseAnswer(Some(late))),
        ];
        for at in 1..=terrain.effects() {
            for remove_first in [false, true] {
                runs.extend(tricks.map(|trick| (terrain, slot, at, remove_first, trick)));
            }
        }
    }
    let (placed, asked) = (Cell::new(0), Cell::new(0));
    let count = run_all(
        "a stranger at the slot",
        runs,
        most,
        async |&(terrain, slot, at, remove_first, trick)| {
            let walk = terrain.walk((at, remove_first, trick, "stranger"));
            let (ground, strangers) = (walk.ground.clone(), walk.strangers.clone());
            let fuse = Fuse::meddling(at, trick, move || {
                if remove_first {
                    ground.world.remove(slot);
                }
                if ground.world.place(slot) {
                    strangers.note(&ground, slot);
                }
            });
            assert_eq!(walk.until_death(&fuse).await, None);
            let all = walk.strangers.all().len();
            placed.set(placed.get() + all);
            let at_peace = walk.strangers.check(&walk.ground, &walk.tale);
            asked.set(asked.get() + all - at_peace);
        },
    );
    println!(
        "crash walk: a stranger took the slot in {} runs, in {} of them between a proof and its request",
        placed.get(),
        asked.get()
    );
    count
}

/// A machine of ours is removed by hand right before each effect, seed and disks included.
pub fn a_machine_removed_by_hand<H: Hypervisor>(terrains: &[Terrain<H>], most: usize) -> usize {
    meddled(terrains, "removed by hand", most, |walk: &Walk<H>, at| {
        let (ground, uid) = (walk.ground.clone(), wanted("a", 1).uid);
        Fuse::meddling(at, None, move || {
            for slot in ground.machines_of(&uid) {
                ground.world.remove(slot);
            }
        })
    })
}

/// People copy our machine right before each effect, or give it another name.
pub fn copied_and_renamed<H: Hypervisor>(terrains: &[Terrain<H>], most: usize) -> usize {
    let copied = meddled(terrains, "copied", most, |walk: &Walk<H>, at| {
        let (ground, strangers) = (walk.ground.clone(), walk.strangers.clone());
        Fuse::meddling(at, None, move || {
            for slot in ground.machines_of(&wanted("a", 1).uid) {
                if let Some(copy) = ground.world.copy(slot) {
                    strangers.note(&ground, copy);
                }
            }
        })
    });
    let renamed = meddled(terrains, "renamed", most, |walk: &Walk<H>, at| {
        let ground = walk.ground.clone();
        Fuse::meddling(at, None, move || {
            for slot in ground.machines_of(&wanted("a", 1).uid) {
                ground.world.rename(slot, "our-best-proxy");
            }
        })
    });
    copied + renamed
}

fn meddled<H: Hypervisor>(
    terrains: &[Terrain<H>],
    what: &str,
    most: usize,
    fuse: impl Fn(&Walk<H>, u32) -> std::sync::Arc<Fuse>,
) -> usize {
    let mut runs = Vec::new();
    for terrain in terrains {
        runs.extend((1..=terrain.effects()).map(|at| (terrain, at)));
    }
    run_all(what, runs, most, async |&(terrain, at)| {
        let walk = terrain.walk((at, what));
        let fuse = fuse(&walk, at);
        assert_eq!(walk.until_death(&fuse).await, None, "{}", walk.tale);
    })
}

/// All tasks that run so long after each effect are killed: they end in `unexpected status`
/// and leave what they were at. A person removes what then bears a lock for good.
pub fn killed_tasks(terrains: &[Terrain<Pve>], most: usize) -> usize {
    let mut runs = Vec::new();
    for terrain in terrains {
        for at in 1..=terrain.effects() {
            runs.extend([0, 60, 150].map(|wait| (terrain, at, wait)));
        }
    }
    let killed = Cell::new(0);
    let count = run_all("killed tasks", runs, most, async |&(terrain, at, wait)| {
        let walk = terrain.walk((at, wait, "killed"));
        let ground = walk.ground.clone();
        let fuse = Fuse::meddling(at, None, move || {
            let wait = Duration::from_millis(wait);
            ground.world.tell_after(wait, json!({"do": "kill-tasks"}));
        });
        assert_eq!(walk.until_death(&fuse).await, None, "{}", walk.tale);
        killed.set(killed.get() + walk.ground.world.killed());
    });
    println!("crash walk: {} tasks were killed", killed.get());
    assert!(killed.get() > 0);
    count
}

/// What a person writes into a record by hand.
#[derive(Clone, Copy, Debug)]
enum Edit {
    /// The slot of somebody else's machine.
    StrangersSlot,
    /// A slot where nothing is.
    FreeSlot,
    HigherAttempt,
    LowerAttempt,
    NoHandles,
    /// Tasks that are not ours, or never were.
    OtherHandles,
    OtherHost,
    OtherSeed,
    Standing(Standing),
}

const EDITS: [Edit; 11] = [
    Edit::StrangersSlot,
    Edit::FreeSlot,
    Edit::HigherAttempt,
    Edit::LowerAttempt,
    Edit::NoHandles,
    Edit::OtherHandles,
    Edit::OtherHost,
    Edit::OtherSeed,
    Edit::Standing(Standing::Unsent),
    Edit::Standing(Standing::Started),
    Edit::Standing(Standing::Sealed),
];

/// Where the edits lead to; the first one is a stranger's.
const ELSEWHERE: [u32; 2] = [123_456, 123_457];

impl Edit {
    /// Whether the proxy serves in the end all the same. With another slot the mark is found
    /// where it should not be, and a person is asked for; a machine that is said to have been
    /// started is not configured any more.
    const fn is_survived(self) -> bool {
        !matches!(
            self,
            Self::StrangersSlot | Self::FreeSlot | Self::Standing(_)
        )
    }

    fn apply(self, claim: &mut Claim) {
        match self {
            Self::StrangersSlot => claim.slot = Slot::new(ELSEWHERE[0].to_string()),
            Self::FreeSlot => claim.slot = Slot::new(ELSEWHERE[1].to_string()),
            Self::HigherAttempt => claim.attempt += 3,
            Self::LowerAttempt => claim.attempt -= 1,
            Self::NoHandles => claim.handles.clear(),
            Self::OtherHandles => {
                for handle in &mut claim.handles {
                    handle.id =
                        "UPID:pve1:0000DEAD:00000001:6B0C7780:qmdestroy:101:root@pam:".into();
                }
                claim.handles.push(Handle {
                    step: "start".into(),
                    id: "no task at all".into(),
                });
            }
            Self::OtherHost => claim.host = Some(Host::new("pve9")),
            Self::OtherSeed => {
                if let Some(seed) = &mut claim.seed {
                    seed.name = "proxy-seeds:iso/debian-13.iso".into();
                }
            }
            Self::Standing(standing) => claim.standing = standing,
        }
    }
}

/// After a crash at each effect a person edits the record. That may mislead where to look and
/// keep a proxy from serving or going until the person corrects it, never whose a machine is:
/// nobody else's is touched, and all of ours is gone with the Proxy.
pub fn edited_record<H: Hypervisor>(terrains: &[Terrain<H>], most: usize) -> usize {
    let mut runs = Vec::new();
    for terrain in terrains {
        for at in 1..=terrain.effects() {
            runs.extend(EDITS.map(|edit| (terrain, at, edit)));
        }
    }
    run_all(
        "an edited record",
        runs,
        most,
        async |&(terrain, at, edit)| {
            let mut walk = terrain.walk((at, edit, "edited"));
            if matches!(edit, Edit::StrangersSlot | Edit::FreeSlot) {
                // A clone that runs bears no mark yet: with its slot forgotten, it becomes a second
                // machine, which is told as surplus and goes with the Proxy.
                walk.most = 2;
            }
            assert!(walk.ground.world.place(ELSEWHERE[0]));
            walk.strangers.note(&walk.ground, ELSEWHERE[0]);
            let step = walk.until_death(&Fuse::at(at, Trick::DieAfter)).await;
            let step = step.unwrap_or_else(|| panic!("{}: no death", walk.tale));
            walk.arm(&Fuse::counting());
            edit_record(&walk.ground, edit).await;
            if edit.is_survived() {
                walk.finish(step).await;
                return;
            }
            // A second machine shows only when the first one is gone.
            for (desired, goal) in life()
                .into_iter()
                .skip(step)
                .chain([(unwanted("a"), Goal::Gone)])
            {
                let mut process = Process::start(&walk.ground, Lease::default());
                let living = process.reach(&desired, goal, || walk.never_two());
                if let Ok(Err(complaint)) = timeout(secs(1_800), living).await {
                    panic!("{}: {complaint}", walk.tale);
                }
                correct_record(&walk.ground).await;
            }
            walk.finish(2).await;
        },
    )
}

async fn edit_record<H>(ground: &Ground<H>, edit: Edit) {
    change_claim(ground, |claim| edit.apply(claim)).await;
}

/// The status names the machine that bears the mark: the person writes its slot back.
async fn correct_record<H: Hypervisor>(ground: &Ground<H>) {
    let slots = ground.machines_of(&wanted("a", 1).uid);
    let slots: Vec<Slot> = slots.iter().map(|at| Slot::new(at.to_string())).collect();
    change_claim(ground, |claim| {
        if let Some(slot) = slots.first().filter(|_| !slots.contains(&claim.slot)) {
            claim.slot = slot.clone();
        }
    })
    .await;
}

async fn change_claim<H>(ground: &Ground<H>, change: impl FnOnce(&mut Claim)) {
    let proxy = ProxyId::new("default", "a").expect("a name written here is legal");
    let store = ground.records.judge();
    let stored = store.load(&proxy).await.expect("it can be read");
    let Some(stored) = stored else { return };
    let mut record = stored.record;
    let Some(claim) = &mut record.claim else {
        return;
    };
    change(claim);
    let saved = store.save(&proxy, &record, Some(&stored.version));
    saved.await.expect("nobody else writes");
}

/// A record that was lost hides no machine: it is found by its mark and removed (B14).
pub fn lost_record<H: Hypervisor>(terrains: &[Terrain<H>]) -> usize {
    for terrain in terrains {
        in_virtual_time(async {
            let mut walk = terrain.walk("record lost");
            let [(up, goal), ..] = life();
            let mut process = Process::start(&walk.ground, Lease::default());
            let reached = process.reach(&up, goal, || walk.never_two()).await;
            assert_eq!(reached, Ok(()), "{}", walk.tale);
            sleep(secs(60)).await; // lagging reads show it by now
            walk.ground.records.lose();
            let down = unwanted("a");
            let mut process = Process::start(&walk.ground, Lease::default());
            let reached = process.reach(&down, Goal::Gone, || walk.never_two()).await;
            assert_eq!(reached, Ok(()), "{}", walk.tale);
            walk.check(Goal::Gone, &down).await;
        });
    }
    terrains.len()
}
