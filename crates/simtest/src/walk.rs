//! The crash walks: one machine, then none, whatever dies when. The whole life of a Proxy
//! (bring-up, replacement, teardown) is cut at every single effect, on many grounds.
//!
//! Each walk answers how many runs it made, and panics with the run's tale when one ends in
//! anything but one machine and then none, touches somebody else's machine, or leaves
//! something behind. Where a walk is too long for a machine with two cores, it takes every
//! n-th run of the list, always the same ones, and says so; `CRASH_WALK_ALL=1` makes all.

mod people;

pub use people::{
    a_machine_removed_by_hand, a_stranger_at_the_slot, copied_and_renamed, edited_record,
    killed_tasks, lost_record,
};

use crate::{
    fuse::{Fuse, Trick},
    ground::{Ground, Hypervisor, unwanted, wanted},
    process::{Goal, Lease, PERMIT, Process},
    records::Records,
};
use egress_core::proxy::Desired;
use egress_engine::store::memory::MemoryStore;
use egress_operator::double::Server;
use std::{
    fmt::{Debug, Display},
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// So many seconds.
pub const fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// A kind of hypervisor to walk on.
pub struct Terrain<H> {
    name: &'static str,
    /// How late an effect may come whose answer was lost.
    settle: Duration,
    make: Box<dyn Fn() -> Arc<H>>,
    records: Box<dyn Fn() -> Records>,
}

impl<H: Hypervisor> Terrain<H> {
    /// One of this name, where effects come at most so late; `make` builds it anew for each run.
    pub fn new(name: &'static str, settle: Duration, make: impl Fn() -> Arc<H> + 'static) -> Self {
        Self {
            name,
            settle,
            make: Box::new(make),
            records: Box::new(|| Records::Memory(MemoryStore::new())),
        }
    }

    /// The same, with records in annotations of objects of an API server.
    #[must_use]
    pub fn on_cluster(self) -> Self {
        Self {
            records: Box::new(|| Records::Cluster(Server::new())),
            ..self
        }
    }

    /// What it is called.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether effects may come late.
    pub const fn is_late(&self) -> bool {
        !self.settle.is_zero()
    }

    fn walk(&self, tale: impl Debug) -> Walk<H> {
        Walk {
            ground: Ground::with_records((self.make)(), (self.records)()),
            tale: format!("{}, {tale:?}", self.name),
            strangers: Strangers::default(),
            most: 1,
        }
    }

    /// How many effects the whole life has, undisturbed.
    fn effects(&self) -> u32 {
        self.count(Fuse::counting())
    }

    fn count(&self, fuse: Arc<Fuse>) -> u32 {
        in_virtual_time(async {
            let walk = self.walk("undisturbed");
            assert_eq!(walk.until_death(&fuse).await, None);
            fuse.count()
        })
    }

    /// The slot that a Proxy takes first: always the same one.
    fn first_slot(&self) -> u32 {
        in_virtual_time(async {
            let walk = self.walk("scout");
            let [(desired, goal), ..] = life();
            let mut process = Process::start(&walk.ground, Lease::default());
            assert_eq!(process.reach(&desired, goal, || Ok(())).await, Ok(()));
            walk.ground.machines_of(&desired.uid)[0]
        })
    }
}

/// The life of a Proxy, step by step: what is wanted and what it should come to.
fn life() -> [(Desired, Goal); 3] {
    [
        (wanted("a", 1), Goal::Serving),
        (wanted("a", 2), Goal::Serving),
        (unwanted("a"), Goal::Gone),
    ]
}

/// A clock of its own for every run: virtual time, one thread, no luck.
fn in_virtual_time<F: Future>(run: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can be built")
        .block_on(run)
}

/// Makes all runs, each in a time of its own, and complains of those that failed.
fn run_all<T>(what: impl Display, runs: Vec<T>, most: usize, run: impl AsyncFn(&T)) -> usize {
    let runs = sample(&what, runs, most);
    let mut failed = 0;
    for each in &runs {
        // What a failed run said is on the terminal by then.
        let ended = catch_unwind(AssertUnwindSafe(|| in_virtual_time(run(each))));
        failed += usize::from(ended.is_err());
    }
    let all = runs.len();
    assert_eq!(failed, 0, "{what}: so many of {all} runs failed");
    all
}

/// At most so many runs of all, evenly spaced and always the same ones.
fn sample<T>(what: impl Display, runs: Vec<T>, most: usize) -> Vec<T> {
    let all = runs.len();
    let most = if std::env::var_os("CRASH_WALK_ALL").is_some() {
        all
    } else {
        most
    };
    if all > most {
        println!("crash walk: {what}: {most} of {all} runs, evenly spaced");
    }
    let mut taken = 0;
    let take = |(at, run)| {
        let due = all <= most || at * most / all >= taken;
        taken += usize::from(due);
        due.then_some(run)
    };
    runs.into_iter().enumerate().filter_map(take).collect()
}

/// How old a proof of ownership may be when a request goes out on it. A machine that takes the
/// slot within this time can be hit: no request of Proxmox VE but the write of a configuration
/// names more than the slot.
const PROOF: Duration = secs(2);

/// A machine of someone else, and how it looked when it came.
struct Stranger {
    slot: u32,
    looks: String,
    since: Instant,
}

/// People's machines.
#[derive(Clone, Default)]
struct Strangers(Arc<Mutex<Vec<Stranger>>>);

impl Strangers {
    fn all(&self) -> MutexGuard<'_, Vec<Stranger>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn note<H: Hypervisor>(&self, ground: &Ground<H>, slot: u32) {
        let looks = ground.world.describe(slot).expect("it was just placed");
        self.all().push(Stranger {
            slot,
            looks,
            since: Instant::now(),
        });
    }
    /// How many there are that nobody asked anything of.
    fn check<H: Hypervisor>(&self, ground: &Ground<H>, tale: &str) -> usize {
        let mut at_peace = 0;
        for stranger in self.all().iter() {
            let asked = ground.world.requests_at(stranger.slot, stranger.since);
            let late = asked.iter().find(|(after, _)| *after > PROOF);
            assert_eq!(late, None, "{tale}: asked of a stranger");
            if asked.is_empty() {
                let now = ground.world.describe(stranger.slot);
                assert_eq!(now.as_ref(), Some(&stranger.looks), "{tale}: a stranger");
                at_peace += 1;
            }
        }
        at_peace
    }
}

struct Walk<H> {
    ground: Ground<H>,
    tale: String,
    strangers: Strangers,
    /// How many machines of the Proxy there may be at once.
    most: usize,
}

impl<H: Hypervisor> Walk<H> {
    fn arm(&self, fuse: &Arc<Fuse>) {
        self.ground.world.arm(fuse);
        self.ground.records.arm(fuse);
    }

    fn never_two(&self) -> Result<(), String> {
        self.ground.world.attend();
        let found = self.ground.machines_of(&wanted("a", 1).uid);
        if found.len() > self.most {
            return Err(format!("{} machines of one key, at {found:?}", found.len()));
        }
        Ok(())
    }

    /// Lives on with a fresh process from `step` to the end.
    async fn finish(&self, step: usize) {
        for (desired, goal) in life().into_iter().skip(step) {
            let mut process = Process::start(&self.ground, Lease::default());
            let reached = process.reach(&desired, goal, || self.never_two()).await;
            assert_eq!(reached, Ok(()), "{} towards {goal:?}", self.tale);
            self.check(goal, &desired).await;
        }
    }

    async fn check(&self, goal: Goal, desired: &Desired) {
        let machines = self.ground.machines_of(&desired.uid);
        match goal {
            Goal::Serving => {
                let right = (1..=self.most).contains(&machines.len());
                assert!(right, "{}: machines at {machines:?}", self.tale);
            }
            Goal::Gone => {
                // Whatever may still land, lands by now.
                sleep(secs(1_000)).await;
                let machines = self.ground.machines_of(&desired.uid);
                assert_eq!(machines, Vec::<u32>::new(), "{}", self.tale);
                let left = self.ground.world.leftovers();
                assert_eq!(left, Vec::<String>::new(), "{}", self.tale);
                let records = self.ground.records.list().await;
                let records = records.expect("memory can be read");
                assert!(records.is_empty(), "{}", self.tale);
            }
        }
        self.strangers.check(&self.ground, &self.tale);
    }

    /// Lives with one process a step until the fuse kills it; answers with the step it died
    /// in. Without a death the whole life was lived.
    async fn until_death(&self, fuse: &Arc<Fuse>) -> Option<usize> {
        self.arm(fuse);
        for (step, (desired, goal)) in life().into_iter().enumerate() {
            let mut process = Process::start(&self.ground, Lease::default());
            let died = tokio::select! {
                reached = process.reach(&desired, goal, || self.never_two()) => {
                    assert_eq!(reached, Ok(()), "{} towards {goal:?}", self.tale);
                    false
                }
                () = fuse.death() => true,
            };
            if died {
                return Some(step);
            }
            self.check(goal, &desired).await;
        }
        None
    }

    /// Lives until the fuse kills it, rests, and lives on.
    async fn with_one_death(&self, fuse: &Arc<Fuse>, rest: Duration) {
        let step = self.until_death(fuse).await;
        let step = step.unwrap_or_else(|| panic!("{}: no death", self.tale));
        self.arm(&Fuse::counting());
        sleep(rest).await;
        self.finish(step).await;
    }
}

/// A crash before and after each effect, and a rest before the next process.
pub fn one_crash<H: Hypervisor>(terrains: &[Terrain<H>], most: usize) -> usize {
    let mut runs = Vec::new();
    for terrain in terrains {
        for at in 1..=terrain.effects() {
            for trick in [Trick::DieBefore, Trick::DieAfter] {
                runs.extend([0, 7, 300].map(|rest| (terrain, at, trick, rest)));
            }
        }
    }
    run_all(
        "one crash",
        runs,
        most,
        async |&(terrain, at, trick, rest)| {
            let walk = terrain.walk((at, trick, rest));
            walk.with_one_death(&Fuse::at(at, trick), secs(rest)).await;
        },
    )
}

/// A crash while each request is on its way, another one at one of the effects after it, and then
/// no rest: what is made and removed meanwhile must be removed for good.
pub fn a_crash_with_a_request_on_its_way<H: Hypervisor>(
    terrains: &[Terrain<H>],
    most: usize,
) -> usize {
    let mut runs = Vec::new();
    for terrain in terrains.iter().filter(|terrain| terrain.is_late()) {
        for at in 1..=terrain.effects() {
            for lag in [
                secs(3),
                terrain.settle / 2,
                terrain.settle.saturating_sub(secs(5)),
            ] {
                runs.extend([0, 2, 4].map(|second| (terrain, at, lag, second)));
            }
        }
    }
    run_all(
        "a crash with a request on its way",
        runs,
        most,
        async |&(terrain, at, lag, second)| {
            let walk = terrain.walk((at, lag, second));
            let step = walk.until_death(&Fuse::at(at, Trick::DieLate(lag))).await;
            let step = step.unwrap_or_else(|| panic!("{}: no death", walk.tale));
            let fuse = Fuse::at(second, Trick::DieAfter);
            walk.arm(&fuse);
            let (desired, goal) = life().into_iter().nth(step).expect("it died in a step");
            let mut process = Process::start(&walk.ground, Lease::default());
            tokio::select! {
                reached = process.reach(&desired, goal, || walk.never_two()) => {
                    assert_eq!(reached, Ok(()), "{}", walk.tale);
                }
                () = fuse.death() => {}
            }
            walk.arm(&Fuse::counting());
            walk.finish(step).await;
        },
    )
}

/// A crash after each effect of a bring-up; its machine serves, and is then deleted without a rest.
/// Answers after how many of them the deletion waited for something that may land: only where a
/// second request had to be sent because nobody knows of the first.
pub fn waits_after_a_crash<H: Hypervisor>(terrain: &Terrain<H>) -> usize {
    let mut waits = 0;
    let mut serving = false;
    for at in 1.. {
        let waited = in_virtual_time(async {
            let walk = terrain.walk((at, "deleted after a crash"));
            let step = walk.until_death(&Fuse::at(at, Trick::DieAfter)).await;
            serving = step != Some(0);
            walk.arm(&Fuse::counting());
            let [(wanted, up), _, (unwanted, gone)] = life();
            let mut process = Process::start(&walk.ground, Lease::default());
            assert_eq!(process.reach(&wanted, up, || Ok(())).await, Ok(()));
            let since = Instant::now();
            assert_eq!(process.reach(&unwanted, gone, || Ok(())).await, Ok(()));
            let took = since.elapsed();
            walk.check(gone, &unwanted).await; // waits for what may still come
            took > terrain.settle / 2
        });
        if serving {
            break;
        }
        waits += usize::from(waited);
    }
    waits
}

/// A crash before each request, reads included, and before each record write.
pub fn a_crash_at_any_request<H: Hypervisor>(terrains: &[Terrain<H>], most: usize) -> usize {
    let mut runs = Vec::new();
    for terrain in terrains {
        let requests = terrain.count(Fuse::counting_reads());
        runs.extend((1..=requests).map(|at| (terrain, at)));
    }
    run_all(
        "a crash at any request",
        runs,
        most,
        async |&(terrain, at)| {
            let walk = terrain.walk((at, "any request"));
            let rest = secs(u64::from(at % 4) * 5);
            walk.with_one_death(&Fuse::at_any_request(at), rest).await;
        },
    )
}

/// A crash after each effect, and another one at one of the next twelve.
pub fn two_crashes<H: Hypervisor>(terrains: &[Terrain<H>], most: usize) -> usize {
    let mut runs = Vec::new();
    for terrain in terrains {
        for first in 1..=terrain.effects() {
            runs.extend((1..=12).map(|second| (terrain, first, second)));
        }
    }
    run_all(
        "two crashes",
        runs,
        most,
        async |&(terrain, first, second)| {
            let trick = if (first + second) % 2 == 0 {
                Trick::DieBefore
            } else {
                Trick::DieAfter
            };
            let walk = terrain.walk((first, second, trick));
            let step = walk.until_death(&Fuse::at(first, Trick::DieAfter)).await;
            let mut step = step.unwrap_or_else(|| panic!("{}: no death", walk.tale));
            let fuse = Fuse::at(second, trick);
            walk.arm(&fuse);
            while let Some((desired, goal)) = life().into_iter().nth(step) {
                let mut process = Process::start(&walk.ground, Lease::default());
                tokio::select! {
                    reached = process.reach(&desired, goal, || walk.never_two()) => {
                        assert_eq!(reached, Ok(()), "{}", walk.tale);
                        step += 1;
                    }
                    () = fuse.death() => break,
                }
            }
            walk.arm(&Fuse::counting());
            walk.finish(step.min(2)).await;
        },
    )
}

/// Each of these tricks at each effect, survived without a restart.
pub fn tricks<H: Hypervisor>(terrains: &[Terrain<H>], tricks: &[Trick], most: usize) -> usize {
    let mut runs = Vec::new();
    for terrain in terrains {
        // A hypervisor that settles at once promises that nothing lands late.
        let too_late = |trick: &Trick| match trick {
            Trick::LoseAnswer(Some(lag)) | Trick::TimeOut(Some(lag)) => *lag > terrain.settle,
            _ => false,
        };
        for at in 1..=terrain.effects() {
            let possible = tricks.iter().filter(|trick| !too_late(trick));
            runs.extend(possible.map(|trick| (terrain, at, *trick)));
        }
    }
    run_all(
        "lost answers and refusals",
        runs,
        most,
        async |&(terrain, at, trick)| {
            let walk = terrain.walk((at, trick));
            assert_eq!(walk.until_death(&Fuse::at(at, trick)).await, None);
        },
    )
}

/// A leader that is frozen at each effect, and wakes with an expired permit while another one
/// leads: it changes nothing.
pub fn a_frozen_leader<H: Hypervisor>(terrains: &[Terrain<H>], most: usize) -> usize {
    let mut runs = Vec::new();
    for terrain in terrains {
        runs.extend((1..=terrain.effects()).map(|at| (terrain, at)));
    }
    run_all("a frozen leader", runs, most, async |&(terrain, at)| {
        let walk = terrain.walk((at, "frozen"));
        // Shorter than any deadline of a call, longer than any permit.
        let fuse = Fuse::at(at, Trick::Freeze(secs(300)));
        walk.arm(&fuse);
        for (step, (desired, goal)) in life().into_iter().enumerate() {
            let lease = Lease::default();
            let mut old = Process::start(&walk.ground, lease.clone());
            let client = old.client();
            let old = old.reach(&desired, goal, || Ok(()));
            tokio::pin!(old);
            tokio::select! {
                reached = &mut old => {
                    assert_eq!(reached, Ok(()), "{}", walk.tale);
                    continue;
                }
                () = fuse.freeze() => lease.end(),
            }
            let frozen_at = Instant::now();
            // The next leader waits for the lease to end, then lives the rest of the
            // life; in the midst of it the old one wakes and goes on as if nothing were.
            sleep(PERMIT).await;
            tokio::select! {
                () = walk.finish(step) => {}
                Err(complaint) = &mut old => panic!("{}: {complaint}", walk.tale),
            }
            let late = walk.ground.world.acted_after(client, frozen_at);
            assert_eq!(late, None, "{}: the old leader acted", walk.tale);
            break;
        }
        assert!(fuse.burnt(), "{}", walk.tale);
    })
}

/// Two engines of one installation at once, the second one so many milliseconds later.
pub fn two_engines<H: Hypervisor>(terrains: &[Terrain<H>], leads: &[u64]) -> usize {
    let mut runs = 0;
    for terrain in terrains {
        for &lead in leads {
            in_virtual_time(async {
                let walk = terrain.walk((lead, "two engines"));
                for (desired, goal) in life() {
                    let mut one = Process::start(&walk.ground, Lease::default());
                    let mut two = Process::start(&walk.ground, Lease::default());
                    let (first, second) =
                        tokio::join!(one.reach(&desired, goal, || walk.never_two()), async {
                            sleep(Duration::from_millis(lead)).await;
                            two.reach(&desired, goal, || walk.never_two()).await
                        });
                    assert_eq!((first, second), (Ok(()), Ok(())), "{}", walk.tale);
                    walk.check(goal, &desired).await;
                }
            });
            runs += 1;
        }
    }
    runs
}
