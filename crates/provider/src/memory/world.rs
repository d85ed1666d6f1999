//! The hypervisor itself: it outlives every process that talks to it.

use super::{
    gate::{Gate, Request, Verdict},
    order::{Order, Trouble},
    physics::Physics,
    state::{Network, State},
};
use egress_core::{ErrorClass, Handle, MachineKey, ProviderName, machine::CloudConfig};
use jiff::{SignedDuration, Timestamp};
use std::{
    collections::BTreeSet,
    fmt,
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// One hypervisor in virtual time, shared by all its clients and by the people who meddle
/// with its machines. Nothing runs in the background: what is due happens at the next touch.
pub struct World {
    state: Mutex<State>,
    physics: Arc<Physics>,
    began: Instant,
    clients: AtomicU32,
}

/// What could be left behind in a world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The slots that are taken.
    pub machines: BTreeSet<u32>,
    /// The seeds that are stored, by full name.
    pub seeds: BTreeSet<String>,
    /// The tasks that run: slot and step.
    pub tasks: Vec<(u32, &'static str)>,
}

/// Who a guest says it is: what its first configuration told it, whatever its mark says now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The slot its machine holds.
    pub slot: u32,
    /// The machine's name when it was configured.
    pub key: String,
    /// The attempt that configured it.
    pub attempt: u32,
    /// The user's cloud-config that its seed brought.
    pub user_data: Option<CloudConfig>,
}

/// Who sends a request, and until when it waits for the answer.
pub(super) struct Sender<'a> {
    pub client: u32,
    pub provider: &'a ProviderName,
    pub deadline: Instant,
}

/// The world's clock begins here, so that runs are repeatable.
const BEGAN: Timestamp = Timestamp::constant(1_767_225_600, 0);

impl World {
    /// An empty hypervisor.
    pub fn new(physics: Physics) -> Arc<Self> {
        let state = State::new(physics);
        Arc::new(Self {
            physics: state.physics.clone(),
            state: Mutex::new(state),
            began: Instant::now(),
            clients: AtomicU32::new(0),
        })
    }

    /// The state as of now.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // The step panics for broken invariants only; other tests' worlds are not concerned.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.advance(Instant::now());
        state
    }

    pub(super) fn next_client(&self) -> u32 {
        self.clients.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A moment on the world's wall clock.
    pub fn timestamp(&self, at: Instant) -> Timestamp {
        let since = at.saturating_duration_since(self.began);
        SignedDuration::try_from(since)
            .ok()
            .and_then(|since| BEGAN.checked_add(since).ok())
            .unwrap_or(Timestamp::MAX)
    }

    /// How long things take here.
    pub fn physics(&self) -> &Physics {
        &self.physics
    }

    /// The name of a host, by its place among the hosts.
    pub(super) fn host(&self, index: u8) -> &str {
        self.physics.host(index)
    }

    /// Sends every mutating request through this gate from now on; `None` passes all.
    pub fn set_gate(&self, gate: Option<Arc<dyn Gate>>) {
        self.state().gate = gate;
    }

    /// Every mutating request that arrived so far, refused ones included, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.state().log.clone()
    }

    /// How many mutating requests arrived so far.
    pub fn request_count(&self) -> usize {
        self.state().log.len()
    }

    /// Everything that could be left behind.
    pub fn inventory(&self) -> Inventory {
        let state = self.state();
        Inventory {
            machines: state.machines.keys().copied().collect(),
            seeds: state
                .seeds
                .keys()
                .map(std::string::ToString::to_string)
                .collect(),
            tasks: state
                .live
                .iter()
                .map(|((slot, _), task)| (*slot, task.order.kind().as_str()))
                .collect(),
        }
    }

    /// The slots of all machines that bear this key's mark or are being made with it, valid
    /// or not, without any lag: the judge's view, which no client has.
    pub fn machines_of(&self, key: &MachineKey) -> Vec<u32> {
        let state = self.state();
        let born = state
            .live
            .iter()
            .filter_map(|((slot, _), task)| match &task.order {
                Order::Clone { name, .. } if **name == *key.name() => Some(*slot),
                _ => None,
            });
        let marked = state.machines.iter().filter_map(|(slot, machine)| {
            (machine.named_uid().as_ref() == Some(key.uid())).then_some(*slot)
        });
        let found: BTreeSet<u32> = born.chain(marked).collect();
        found.into_iter().collect()
    }

    /// The guest that answers at an address now: booted, configured and running.
    pub fn guest_at(&self, address: std::net::IpAddr) -> Option<Guest> {
        let slot = super::machine::slot_of(address)?;
        let state = self.state();
        let machine = state.machines.get(&slot)?;
        let configured = machine.configured.as_ref()?;
        machine
            .booted(&state.physics, Instant::now())
            .then(|| Guest {
                slot,
                key: configured.key.to_string(),
                attempt: configured.attempt,
                user_data: configured.user_data.clone(),
            })
    }

    /// A read: one complete answer, or what stood in the way.
    pub(super) async fn read<R>(
        &self,
        deadline: Instant,
        look: impl FnOnce(&mut State, Instant) -> R,
    ) -> Result<R, Trouble> {
        if self.reach()? == Network::Silent {
            silence(deadline).await;
            return Err(Trouble::new(
                ErrorClass::Transient,
                "no answer before the deadline",
            ));
        }
        Ok(look(&mut self.state(), Instant::now()))
    }

    /// The way to the hypervisor, with the credential as it lies there now.
    fn reach(&self) -> Result<Network, Trouble> {
        let state = self.state();
        if state.faults.network == Network::Down {
            return Err(Trouble::new(ErrorClass::Transient, "connection refused"));
        }
        if state.credential.file != state.credential.accepted {
            return Err(Trouble::new(
                ErrorClass::Unauthorized,
                "the credential is refused",
            ));
        }
        Ok(state.faults.network)
    }

    /// A mutating request. `ask` is asked right before it is sent.
    pub(super) async fn request(
        &self,
        sender: Sender<'_>,
        slot: u32,
        order: Order,
        ask: impl FnOnce() -> crate::Result<()>,
    ) -> crate::Result<Result<Option<Handle>, Trouble>> {
        let mut request = Request {
            at: Instant::now(),
            client: sender.client,
            provider: sender.provider.clone(),
            kind: order.kind(),
            slot,
        };
        let gate = self.state().gate.clone();
        let verdict = match gate {
            Some(gate) => gate.decide(&request).await,
            None => Verdict::Pass,
        };
        if verdict == Verdict::HangBefore {
            silence(sender.deadline).await;
            return Ok(Err(unknown()));
        }
        ask()?;
        match self.reach() {
            Ok(Network::Silent) => {
                silence(sender.deadline).await;
                return Ok(Err(unknown()));
            }
            Ok(_) => {}
            Err(trouble) => return Ok(Err(trouble)),
        }
        request.at = Instant::now();
        let answer = {
            let mut state = self.state();
            let now = request.at;
            state.log.push(request);
            match &verdict {
                Verdict::Pass => return Ok(state.apply(slot, order, now)),
                Verdict::Refuse { class, said } => {
                    return Ok(Err(Trouble::new(*class, said.clone())));
                }
                Verdict::LoseAnswer { lands } => {
                    land(&mut state, slot, order, *lands, now);
                    Ok(Err(unknown()))
                }
                Verdict::HangLate { lands } => {
                    land(&mut state, slot, order, Some(*lands), now);
                    Ok(Err(unknown()))
                }
                Verdict::HangBefore | Verdict::HangAfter => {
                    let lag = state.physics.birth_lag;
                    let late = matches!(order, Order::Clone { .. }).then_some(lag);
                    land(&mut state, slot, order, Some(late.unwrap_or_default()), now);
                    Ok(Err(unknown()))
                }
            }
        };
        if matches!(verdict, Verdict::HangAfter | Verdict::HangLate { .. }) {
            silence(sender.deadline).await;
        }
        answer
    }
}

/// The effect of a request whose answer nobody hears.
fn land(state: &mut State, slot: u32, order: Order, lands: Option<Duration>, now: Instant) {
    match lands {
        None => {}
        Some(lag) if lag.is_zero() => drop(state.apply(slot, order, now)),
        Some(lag) => state.schedule_late(slot, order, now + lag),
    }
}

fn unknown() -> Trouble {
    Trouble::new(
        ErrorClass::OutcomeUnknown,
        "the connection broke before the answer came",
    )
}

/// Waits for an answer that never comes.
async fn silence(deadline: Instant) {
    // The time-out is the only way out.
    let _: Result<(), _> = timeout_at(deadline, pending()).await;
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inventory = self.inventory();
        f.debug_struct("World")
            .field("machines", &inventory.machines.len())
            .field("seeds", &inventory.seeds.len())
            .field("tasks", &inventory.tasks.len())
            .finish_non_exhaustive()
    }
}
