//! The test bench of a world: the suite's abilities in this hypervisor's terms.

use super::{
    Agent, Gate, Memory, Network, Physics, Power, Request, RequestKind, Settings, Stranger,
    Verdict, World,
    machine::{CLONE_LOCK, Lock},
    slot_at,
};
use crate::{
    Provider,
    conformance::{self, Credentials, Harness, Landing, Offered, PowerEvent, Refusal},
};
use async_trait::async_trait;
use egress_core::{ClusterId, Host, Identity, Installation, MachineKey, ProviderName, Slot};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// One world and all that can happen in it, for the conformance suite. Time is tokio's: run
/// it under `tokio::time::pause`.
pub struct Bench {
    world: Arc<World>,
    settings: Settings,
    home: ClusterId,
    losses: Arc<Losses>,
    /// How often the credential was exchanged.
    exchanges: AtomicU32,
    /// Slots where a nameless, locked machine was put.
    nameless: Mutex<BTreeSet<u32>>,
}

/// What all credentials of this bench begin with, and nothing else.
const TOKEN: &str = "bench-token-";
/// The installation of the providers under test, and the other one.
const OURS: &str = "ours";
const THEIRS: &str = "theirs";
/// The provider's name in both.
const NAME: &str = "memory";

/// Loses answers as told, and lets every request wait for a turn of the scheduler, so that a
/// call can be dropped or frozen there.
#[derive(Default)]
struct Losses(Mutex<Option<Landing>>);

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Gate for Losses {
    async fn decide(&self, _request: &Request) -> Verdict {
        tokio::task::yield_now().await;
        let lands = match open(&self.0).take() {
            None => return Verdict::Pass,
            Some(Landing::Landed) => Some(Duration::ZERO),
            Some(Landing::Late(after)) => Some(after),
            Some(Landing::Lost) => None,
        };
        Verdict::LoseAnswer { lands }
    }
}

impl Bench {
    /// A bench over a new world.
    pub fn new(physics: Physics, settings: Settings) -> Self {
        let world = World::new(physics);
        let losses = Arc::new(Losses::default());
        world.set_gate(Some(losses.clone()));
        let home = world.state().cluster.clone();
        let bench = Self {
            home,
            world,
            settings,
            losses,
            exchanges: AtomicU32::new(0),
            nameless: Mutex::default(),
        };
        bench.accept_present_token();
        bench
    }

    /// The world itself.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    fn token(&self) -> String {
        format!("{TOKEN}{}", self.exchanges.load(Ordering::Relaxed))
    }

    fn accept_present_token(&self) {
        self.world.write_credential(&self.token());
        self.world.accept_credential(&self.token());
    }

    fn provider(&self, identity: Identity) -> Offered<Arc<dyn Provider>> {
        let name: ProviderName = NAME.parse().map_err(stumbled)?;
        let world = self.world.clone();
        Ok(Arc::new(Memory::new(
            name,
            identity,
            world,
            self.settings.clone(),
        )))
    }
}

fn identity_of(installation: &str) -> Identity {
    let installation: Installation = installation
        .parse()
        .expect("the bench's installations are DNS labels");
    Identity {
        installation,
        writer: None,
    }
}

fn stumbled(error: impl std::fmt::Display) -> Refusal {
    Refusal::Stumbled(error.to_string())
}

fn number(slot: &Slot) -> Offered<u32> {
    slot.as_str()
        .parse()
        .map_err(|_| Refusal::Stumbled(format!("{slot} is not a slot of this world")))
}

/// The world's answer to "was there something to do it to".
fn done(slot: &Slot, was_there: bool) -> Offered {
    if was_there {
        Ok(())
    } else {
        Err(Refusal::Stumbled(format!(
            "nothing to do that to at {slot}"
        )))
    }
}

#[async_trait]
impl Harness for Bench {
    fn identity(&self) -> Identity {
        identity_of(OURS)
    }

    async fn restart(&self) -> Offered<Arc<dyn Provider>> {
        self.provider(self.identity())
    }

    async fn heal(&self) -> Offered {
        self.world.set_network(Network::Up);
        self.world.set_cluster(&self.home);
        self.world.set_full(false);
        self.world.set_quorum(true);
        self.world.deny(&[]);
        self.world.set_host_up(1, true);
        self.accept_present_token();
        *open(&self.losses.0) = None;
        Ok(())
    }

    async fn inventory(&self) -> Offered<Vec<String>> {
        let all = self.world.inventory();
        let machines = all.machines.iter().map(|slot| format!("machine {slot}"));
        let seeds = all.seeds.iter().map(|name| format!("seed {name}"));
        let tasks = all.tasks.iter();
        let tasks = tasks.map(|(slot, kind)| format!("task {kind} at {slot}"));
        Ok(machines.chain(seeds).chain(tasks).collect())
    }

    fn call_deadline(&self) -> Duration {
        self.settings.deadline + Duration::from_secs(1)
    }

    fn secrets(&self) -> Vec<String> {
        vec![TOKEN.to_owned()]
    }

    async fn pass(&self, time: Duration) -> Offered {
        tokio::time::sleep(time).await;
        Ok(())
    }

    async fn catch_up(&self) -> Offered {
        tokio::time::sleep(self.world.physics().read_lag).await;
        Ok(())
    }

    async fn other_installation(&self) -> Offered<Arc<dyn Provider>> {
        self.provider(identity_of(THEIRS))
    }

    async fn mutations(&self) -> Offered<Vec<String>> {
        Ok(self
            .world
            .requests()
            .iter()
            .map(Request::to_string)
            .collect())
    }

    async fn describe(&self, slot: &Slot) -> Offered<Option<String>> {
        let number = number(slot)?;
        let state = self.world.state();
        Ok(state
            .machines
            .get(&number)
            .map(|machine| format!("{machine:?}")))
    }

    async fn place(&self, slot: &Slot, stranger: &conformance::Stranger) -> Offered {
        let stranger = Stranger {
            name: Some(stranger.name.clone()),
            text: stranger.text.clone(),
            template: stranger.template,
            lock: None,
        };
        done(slot, self.world.place(number(slot)?, &stranger))
    }

    async fn copy(&self, slot: &Slot) -> Offered<Slot> {
        let from = number(slot)?;
        let taken = self.world.inventory().machines;
        let free = self.settings.range.clone().find(|to| !taken.contains(to));
        let to = free.ok_or_else(|| stumbled("no slot is free for the copy"))?;
        done(slot, self.world.copy(from, to))?;
        Ok(slot_at(to))
    }

    async fn remove(&self, slot: &Slot) -> Offered {
        let number = number(slot)?;
        open(&self.nameless).remove(&number);
        self.world.remove(number);
        Ok(())
    }

    async fn rename(&self, slot: &Slot, name: &str) -> Offered {
        done(slot, self.world.rename(number(slot)?, name))
    }

    async fn edit_mark(&self, slot: &Slot, text: Option<&str>) -> Offered {
        done(slot, self.world.edit_text(number(slot)?, text))
    }

    async fn power(&self, slot: &Slot, event: PowerEvent) -> Offered {
        let power = match event {
            PowerEvent::Started => Power::Running,
            PowerEvent::Off => Power::Stopped,
            PowerEvent::Paused => Power::Paused,
            PowerEvent::Hibernated => Power::Hibernated,
            PowerEvent::Crashed => Power::Crashed,
            PowerEvent::IoError => Power::IoError,
            PowerEvent::Hung => {
                return Err(Refusal::NotOffered(
                    "hang a guest: none is asked to stop here",
                ));
            }
        };
        done(slot, self.world.set_power(number(slot)?, power))
    }

    async fn protect(&self, slot: &Slot) -> Offered {
        done(slot, self.world.set_protected(number(slot)?, true))
    }

    async fn unprotect(&self, slot: &Slot) -> Offered {
        done(slot, self.world.set_protected(number(slot)?, false))
    }

    async fn lock(&self, slot: &Slot, lock: conformance::Lock) -> Offered {
        let number = number(slot)?;
        let reason = match lock {
            conformance::Lock::Backup => "backup",
            conformance::Lock::Clone => CLONE_LOCK,
        };
        let present = {
            let state = self.world.state();
            state
                .machines
                .get(&number)
                .map(|machine| machine.lock.clone())
        };
        match present {
            Some(Some(Lock::Task(kind))) => {
                Err(Refusal::Stumbled(format!("a task ({kind}) holds {slot}")))
            }
            Some(_) => done(slot, self.world.lock(number, reason)),
            None if lock == conformance::Lock::Clone => {
                open(&self.nameless).insert(number);
                let nameless = Stranger {
                    lock: Some(reason.to_owned()),
                    ..Stranger::default()
                };
                done(slot, self.world.place(number, &nameless))
            }
            None => done(slot, false),
        }
    }

    async fn unlock(&self, slot: &Slot) -> Offered {
        let number = number(slot)?;
        if open(&self.nameless).contains(&number) {
            return self.remove(slot).await;
        }
        done(slot, self.world.unlock(number))
    }

    async fn migrate(&self, slot: &Slot) -> Offered<Host> {
        done(slot, self.world.move_to(number(slot)?, 1))?;
        Ok(Host::new(self.world.host(1)))
    }

    async fn agent(&self, slot: &Slot, agent: conformance::Agent) -> Offered {
        let agent = match agent {
            conformance::Agent::Answering => Agent::Answering,
            conformance::Agent::Missing => Agent::Missing,
            conformance::Agent::Silent => Agent::Silent,
            conformance::Agent::Addressless => Agent::Addressless,
        };
        done(slot, self.world.set_agent(number(slot)?, agent))
    }

    async fn leave_seed(&self, key: &MachineKey) -> Offered<String> {
        // As a seed of ours is called, and for an attempt that no machine has.
        let name = format!("{OURS}.{NAME}.{}.0.iso", key.name());
        self.world.leave_seed(&name);
        Ok(name)
    }

    async fn remove_seed(&self, name: &str) -> Offered {
        self.world.remove_seed(name);
        Ok(())
    }

    async fn fail_tasks(&self) -> Offered<usize> {
        Ok(self.world.fail_all_tasks())
    }

    async fn lose_answer(&self, landing: Landing) -> Offered {
        *open(&self.losses.0) = Some(landing);
        Ok(())
    }

    async fn network(&self, network: conformance::Network) -> Offered {
        self.world.set_network(match network {
            conformance::Network::Up => Network::Up,
            conformance::Network::Down => Network::Down,
            conformance::Network::Hanging => Network::Silent,
        });
        Ok(())
    }

    async fn credentials(&self, credentials: Credentials) -> Offered {
        match credentials {
            Credentials::Right => self.world.write_credential(&self.token()),
            Credentials::Wrong => self.world.write_credential(&format!("{TOKEN}wrong")),
            Credentials::Rotated => {
                self.exchanges.fetch_add(1, Ordering::Relaxed);
                self.accept_present_token();
            }
        }
        Ok(())
    }

    async fn change_cluster(&self) -> Offered {
        self.world.set_cluster(&ClusterId::new("another"));
        Ok(())
    }

    async fn fill_up(&self) -> Offered {
        self.world.set_full(true);
        Ok(())
    }

    async fn break_precondition(&self) -> Offered {
        // Create's last step.
        self.world.deny(&[RequestKind::Start]);
        Ok(())
    }

    async fn lose_quorum(&self) -> Offered {
        self.world.set_quorum(false);
        Ok(())
    }

    async fn blind_spot(&self) -> Offered {
        // Not the host that new machines come to.
        self.world.set_host_up(1, false);
        Ok(())
    }
}
