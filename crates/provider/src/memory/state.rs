//! The hypervisor's state and its pure step: what is due by now happens, in order, and
//! nothing ever happens in between. No I/O, no waiting, no clock but the `now` it is told.

use super::{
    gate::{Gate, Request, RequestKind},
    machine::{CLONE_LOCK, Lock, Machine, Power},
    order::{Event, Failure, Order, Task, Trouble, task_id},
    physics::Physics,
};
use egress_core::{ClusterId, ErrorClass, Handle, MachineUid};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};
use tokio::time::Instant;

/// How the way to the hypervisor is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Good.
    #[default]
    Up,
    /// No connection is made.
    Down,
    /// Requests are taken, have no effect and are never answered.
    Silent,
}

/// What is wrong with a world.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    pub network: Network,
    pub partial: bool,
    pub full: bool,
    pub no_quorum: bool,
    pub no_template: bool,
    pub denied: BTreeSet<RequestKind>,
    pub hosts_down: BTreeSet<u8>,
}

/// The credential that the hypervisor takes, and the one that lies where clients read it.
#[derive(Clone)]
pub(super) struct Credential {
    pub accepted: Arc<str>,
    pub file: Arc<str>,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(..)")
    }
}

/// One complete look at a slot.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// When it was taken.
    pub at: Instant,
    /// The machine there; name and mark are missing while they are hidden.
    pub machine: Option<Machine>,
    /// The tasks that run at the slot.
    pub tasks: Vec<Handle>,
    /// Whether the seed that was asked for is stored.
    pub seed: bool,
    /// Those of the handles asked for whose tasks ended without their effect.
    pub failures: Vec<(u64, Failure)>,
    /// A host that does not answer: the machine's own, else any.
    pub blind: Option<String>,
}

/// Everything the hypervisor knows.
pub(super) struct State {
    pub physics: Arc<Physics>,
    pub cluster: ClusterId,
    pub machines: BTreeMap<u32, Machine>,
    pub seeds: BTreeMap<Arc<str>, Instant>,
    /// Slots by the UID their text names, as the search shows it: lagging, and never pruned
    /// of what is gone before someone looks there.
    index: HashMap<MachineUid, Vec<u32>>,
    /// When a slot was freed; forgotten after the settle bound.
    pub freed: BTreeMap<u32, Instant>,
    pub live: BTreeMap<(u32, u64), Task>,
    pub failed: BTreeMap<u64, Failure>,
    due: BTreeMap<(Instant, u64), Event>,
    serial: u64,
    pub faults: Faults,
    pub credential: Credential,
    pub log: Vec<Request>,
    pub gate: Option<Arc<dyn Gate>>,
}

/// How many failed tasks are remembered.
const FAILURES_KEPT: usize = 1024;

impl State {
    pub fn new(mut physics: Physics) -> Self {
        physics.settle = physics.settle.max(physics.birth_lag + physics.read_lag);
        let token: Arc<str> = "memory-token-1".into();
        Self {
            physics: Arc::new(physics),
            cluster: ClusterId::new("memory-1"),
            machines: BTreeMap::new(),
            seeds: BTreeMap::new(),
            index: HashMap::new(),
            freed: BTreeMap::new(),
            live: BTreeMap::new(),
            failed: BTreeMap::new(),
            due: BTreeMap::new(),
            serial: 0,
            faults: Faults::default(),
            credential: Credential {
                accepted: token.clone(),
                file: token,
            },
            log: Vec::new(),
            gate: None,
        }
    }

    /// Lets everything happen that is due by `now`.
    pub fn advance(&mut self, now: Instant) {
        while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((at, _), event) = entry.remove_entry();
            match event {
                Event::Ends(slot, id) => {
                    if let Some(task) = self.live.remove(&(slot, id)) {
                        self.end(slot, task.order, at);
                    }
                }
                // A late request that is refused by then (its slot is taken) has no effect.
                Event::Lands(slot, order) => drop(self.apply(slot, order, at)),
                Event::Refresh(slot) => self.refresh(slot),
                Event::Forget(slot) => drop(self.freed.remove(&slot)),
            }
        }
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.serial += 1;
        self.due.insert((at, self.serial), event);
    }

    /// A request that arrives later.
    pub fn schedule_late(&mut self, slot: u32, order: Order, at: Instant) {
        self.schedule(at, Event::Lands(slot, order));
    }

    /// One look at a slot, and whether a seed is there.
    pub fn look(&self, slot: u32, seed: &str, handles: &[Handle], now: Instant) -> Look {
        let machine = self.machines.get(&slot).cloned().map(|mut machine| {
            if machine.hidden() {
                machine.name = None;
                machine.text = None;
            }
            machine
        });
        let down = &self.faults.hosts_down;
        let blind = match &machine {
            Some(machine) => Some(machine.host).filter(|host| down.contains(host)),
            None => down.first().copied(),
        };
        Look {
            at: now,
            machine,
            tasks: self.tasks(slot),
            seed: self.seeds.contains_key(seed),
            failures: handles
                .iter()
                .filter_map(task_id)
                .filter_map(|id| self.failed.get(&id).map(|failure| (id, *failure)))
                .collect(),
            blind: blind.map(|host| self.physics.host(host).to_owned()),
        }
    }

    fn tasks(&self, slot: u32) -> Vec<Handle> {
        self.live
            .range((slot, 0)..=(slot, u64::MAX))
            .map(|((_, id), task)| task.handle(*id))
            .collect()
    }

    /// The numbers of the tasks that run at a slot.
    pub fn task_ids(&self, slot: u32) -> Vec<u64> {
        self.live
            .range((slot, 0)..=(slot, u64::MAX))
            .map(|((_, id), _)| *id)
            .collect()
    }

    /// Slots that the lagging search shows for a UID, each to be looked at before it counts.
    pub fn find(&mut self, uid: &MachineUid) -> Vec<u32> {
        let Some(slots) = self.index.get_mut(uid) else {
            return Vec::new();
        };
        slots.retain(|slot| {
            self.machines
                .get(slot)
                .is_some_and(|m| m.named_uid().as_ref() == Some(uid))
        });
        let found = slots.clone();
        if found.is_empty() {
            self.index.remove(uid);
        }
        found
    }

    /// Every slot that the lagging search shows for any mark.
    pub fn marked(&self) -> impl Iterator<Item = u32> {
        self.index.values().flatten().copied()
    }

    /// The text at a slot changed: the search shows it after the read lag.
    pub fn text_changed(&mut self, slot: u32, now: Instant) {
        if self.physics.read_lag.is_zero() {
            self.refresh(slot);
        } else {
            self.schedule(now + self.physics.read_lag, Event::Refresh(slot));
        }
    }

    fn refresh(&mut self, slot: u32) {
        if let Some(uid) = self.machines.get(&slot).and_then(Machine::named_uid) {
            let slots = self.index.entry(uid).or_default();
            if !slots.contains(&slot) {
                slots.push(slot);
            }
        }
    }

    /// Takes a machine away and remembers when its slot was freed.
    pub fn free(&mut self, slot: u32, now: Instant) -> Option<Machine> {
        let gone = self.machines.remove(&slot)?;
        // What worked on it dies with it: the next holder of the slot is another machine.
        for id in self.task_ids(slot) {
            let upload = |task: &Task| task.order.kind() == RequestKind::Upload;
            if !self.live.get(&(slot, id)).is_some_and(upload) {
                self.live.remove(&(slot, id));
            }
        }
        if !self.physics.settle.is_zero() {
            self.freed.insert(slot, now);
            self.schedule(now + self.physics.settle, Event::Forget(slot));
        }
        Some(gone)
    }

    /// Carries a request out, or begins its task.
    pub fn apply(
        &mut self,
        slot: u32,
        order: Order,
        now: Instant,
    ) -> Result<Option<Handle>, Trouble> {
        let kind = order.kind();
        self.admit(slot, kind)?;
        match order {
            Order::Configure { seed, configured } => {
                let machine = self.machine(slot)?;
                machine.seed = Some(seed);
                machine.configured = Some(configured);
            }
            Order::Detach => self.machine(slot)?.seed = None,
            Order::DeleteSeed { seed } => drop(self.seeds.remove(&seed)),
            order => {
                if kind == RequestKind::Clone {
                    self.machines.insert(slot, Machine::bare(0, now));
                }
                if kind != RequestKind::Upload {
                    self.machine(slot)?.lock = Some(Lock::Task(kind));
                }
                self.serial += 1;
                let id = self.serial;
                let task = Task { order };
                let handle = task.handle(id);
                self.live.insert((slot, id), task);
                self.schedule(now + self.physics.task_time(kind), Event::Ends(slot, id));
                return Ok(Some(handle));
            }
        }
        Ok(None)
    }

    /// What a hypervisor refuses by itself, whoever asks.
    fn admit(&self, slot: u32, kind: RequestKind) -> Result<(), Trouble> {
        if self.faults.no_quorum {
            return Err(Trouble::no_quorum());
        }
        if self.faults.denied.contains(&kind) {
            return Err(Trouble::denied(kind));
        }
        let machine = self.machines.get(&slot);
        match kind {
            RequestKind::Upload | RequestKind::DeleteSeed => return Ok(()),
            RequestKind::Clone => {
                return match machine {
                    Some(_) => Err(Trouble::new(ErrorClass::Conflict, "the slot is taken")),
                    None if self.faults.full => Err(Trouble::full()),
                    None if self.faults.no_template => Err(Trouble::no_template()),
                    None => Ok(()),
                };
            }
            _ => {}
        }
        let Some(machine) = machine else {
            return Err(Trouble::gone());
        };
        let refused = match (&machine.lock, kind, machine.power) {
            (Some(_), ..) => "the machine is locked",
            (None, RequestKind::Configure | RequestKind::Start, Power::Running)
            | (None, RequestKind::Destroy, Power::Running | Power::Paused | Power::IoError) => {
                "the machine runs"
            }
            (None, RequestKind::Stop, Power::Stopped) => "the machine does not run",
            (None, RequestKind::Destroy, _) if machine.protected => {
                return Err(Trouble::protected());
            }
            _ => return Ok(()),
        };
        Err(Trouble::new(ErrorClass::Busy, refused))
    }

    /// The machine at a slot.
    pub fn machine(&mut self, slot: u32) -> Result<&mut Machine, Trouble> {
        self.machines.get_mut(&slot).ok_or_else(Trouble::gone)
    }

    /// The effect of a task that ended well.
    fn end(&mut self, slot: u32, order: Order, at: Instant) {
        match order {
            Order::Upload { seed } => drop(self.seeds.insert(seed, at)),
            Order::Destroy => drop(self.free(slot, at)),
            order => {
                // Someone may have removed the machine under its task.
                let Some(machine) = self.machines.get_mut(&slot) else {
                    return;
                };
                machine.lock = None;
                match order {
                    Order::Clone { name, text } => {
                        machine.name = Some(name);
                        machine.text = Some(text);
                        self.text_changed(slot, at);
                    }
                    Order::Start => machine.power_on(at),
                    Order::Stop => machine.power_off(Power::Stopped),
                    _ => {}
                }
            }
        }
    }

    /// Ends a running task without its effect. `unexpected`: killed, and a clone leaves its
    /// lock behind; else it failed and cleaned up after itself.
    pub fn break_task(&mut self, slot: u32, id: u64, unexpected: bool, now: Instant) -> bool {
        let Some(task) = self.live.remove(&(slot, id)) else {
            return false;
        };
        let kind = task.order.kind();
        match (kind, unexpected) {
            (RequestKind::Upload, _) => {}
            (RequestKind::Clone, false) => drop(self.free(slot, now)),
            (RequestKind::Clone, true) => {
                if let Some(machine) = self.machines.get_mut(&slot) {
                    machine.lock = Some(Lock::Held {
                        reason: CLONE_LOCK.into(),
                        since: now,
                    });
                }
            }
            _ => {
                if let Some(machine) = self.machines.get_mut(&slot) {
                    machine.lock = None;
                }
            }
        }
        self.failed.insert(id, Failure { kind, unexpected });
        while self.failed.len() > FAILURES_KEPT {
            self.failed.pop_first();
        }
        true
    }
}
