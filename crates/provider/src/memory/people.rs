//! What people and accidents do to a world behind every client's back.

use super::{
    World,
    gate::RequestKind,
    machine::{Agent, Lock, Machine, Power},
    state::Network,
};
use egress_core::ClusterId;
use std::sync::Arc;
use tokio::time::Instant;

/// A machine of someone else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stranger {
    /// Its name.
    pub name: Option<String>,
    /// What stands where a mark would stand.
    pub text: Option<String>,
    /// A template; else an ordinary, running machine.
    pub template: bool,
    /// Locked for this reason; `clone` hides name and text.
    pub lock: Option<String>,
}

/// Each answers whether there was something to do it to.
impl World {
    /// Puts someone's machine at a free slot.
    pub fn place(&self, slot: u32, stranger: &Stranger) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        if state.machines.contains_key(&slot) {
            return false;
        }
        let mut machine = Machine::bare(0, now);
        machine.name = stranger.name.as_deref().map(Arc::from);
        machine.text = stranger.text.as_deref().map(Arc::from);
        machine.template = stranger.template;
        machine.lock = stranger.lock.as_deref().map(|reason| Lock::Held {
            reason: reason.into(),
            since: now,
        });
        if !stranger.template {
            machine.power_on(now);
        }
        state.machines.insert(slot, machine);
        state.text_changed(slot, now);
        true
    }

    /// Copies a machine with all it bears to a free slot.
    pub fn copy(&self, from: u32, to: u32) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        if state.machines.contains_key(&to) {
            return false;
        }
        let Some(mut copy) = state.machines.get(&from).cloned() else {
            return false;
        };
        copy.created = now;
        copy.lock = None;
        copy.seed = None;
        state.machines.insert(to, copy);
        state.text_changed(to, now);
        true
    }

    /// Removes a machine with its seed, whatever runs on it.
    pub fn remove(&self, slot: u32) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        let Some(gone) = state.free(slot, now) else {
            return false;
        };
        if let Some(seed) = gone.seed {
            state.seeds.remove(&seed);
        }
        true
    }

    fn change(&self, slot: u32, change: impl FnOnce(&mut Machine, Instant)) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        let Some(machine) = state.machines.get_mut(&slot) else {
            return false;
        };
        change(machine, now);
        true
    }

    /// Renames a machine.
    pub fn rename(&self, slot: u32, name: &str) -> bool {
        self.change(slot, |machine, _| machine.name = Some(name.into()))
    }

    /// Replaces the text that holds the mark, or takes it away.
    pub fn edit_text(&self, slot: u32, text: Option<&str>) -> bool {
        let changed = self.change(slot, |machine, _| machine.text = text.map(Arc::from));
        self.state().text_changed(slot, Instant::now());
        changed
    }

    /// Changes how a machine runs.
    pub fn set_power(&self, slot: u32, power: Power) -> bool {
        self.change(slot, |machine, now| match power {
            Power::Running => machine.power_on(now),
            other => machine.power_off(other),
        })
    }

    /// Changes how a machine's agent answers.
    pub fn set_agent(&self, slot: u32, agent: Agent) -> bool {
        let physics = self.physics();
        self.change(slot, |machine, now| machine.set_agent(agent, physics, now))
    }

    /// Protects a machine against removal, or no longer.
    pub fn set_protected(&self, slot: u32, protected: bool) -> bool {
        self.change(slot, |machine, _| machine.protected = protected)
    }

    /// Locks a machine for a reason; `clone` hides its name and text.
    pub fn lock(&self, slot: u32, reason: &str) -> bool {
        self.change(slot, |machine, since| {
            machine.lock = Some(Lock::Held {
                reason: reason.into(),
                since,
            });
        })
    }

    /// Takes a lock away that no task holds.
    pub fn unlock(&self, slot: u32) -> bool {
        self.change(slot, |machine, _| {
            machine
                .lock
                .take_if(|lock| matches!(lock, Lock::Held { .. }));
        })
    }

    /// Moves a machine to another host, by its place among the hosts.
    pub fn move_to(&self, slot: u32, host: u8) -> bool {
        self.change(slot, |machine, _| machine.host = host)
    }

    /// Ends the tasks at a slot in an error; they clean up. Answers how many there were.
    pub fn fail_tasks(&self, slot: u32) -> usize {
        self.break_tasks(|at| at == slot, false)
    }

    /// Kills the tasks at a slot: they end with an unexpected status, a clone leaves its
    /// lock behind. Answers how many there were.
    pub fn kill_tasks(&self, slot: u32) -> usize {
        self.break_tasks(|at| at == slot, true)
    }

    /// Ends every task in an error. Answers how many there were.
    pub fn fail_all_tasks(&self) -> usize {
        self.break_tasks(|_| true, false)
    }

    fn break_tasks(&self, chosen: impl Fn(u32) -> bool, unexpected: bool) -> usize {
        let now = Instant::now();
        let mut state = self.state();
        let tasks: Vec<(u32, u64)> = state
            .live
            .keys()
            .copied()
            .filter(|(slot, _)| chosen(*slot))
            .collect();
        tasks
            .into_iter()
            .filter(|(slot, id)| state.break_task(*slot, *id, unexpected, now))
            .count()
    }

    /// Stores a seed that no machine uses, by its full name.
    pub fn leave_seed(&self, name: &str) {
        let now = Instant::now();
        self.state().seeds.insert(name.into(), now);
    }

    /// Deletes a seed by its full name.
    pub fn remove_seed(&self, name: &str) -> bool {
        self.state().seeds.remove(name).is_some()
    }

    /// Changes the way to the hypervisor.
    pub fn set_network(&self, network: Network) {
        self.state().faults.network = network;
    }

    /// Lies a credential where the clients read it; the hypervisor takes the one it took.
    pub fn write_credential(&self, credential: &str) {
        self.state().credential.file = credential.into();
    }

    /// Makes the hypervisor take this credential and no other.
    pub fn accept_credential(&self, credential: &str) {
        self.state().credential.accepted = credential.into();
    }

    /// Answers as this cluster from now on.
    pub fn set_cluster(&self, cluster: &ClusterId) {
        self.state().cluster = cluster.clone();
    }

    /// Shows only a part of the machines, or all again.
    pub fn set_partial(&self, partial: bool) {
        self.state().faults.partial = partial;
    }

    /// Has no room for another machine, or has again.
    pub fn set_full(&self, full: bool) {
        self.state().faults.full = full;
    }

    /// Loses the quorum, or has it again.
    pub fn set_quorum(&self, quorum: bool) {
        self.state().faults.no_quorum = !quorum;
    }

    /// Loses the template, or has it again.
    pub fn set_template(&self, there: bool) {
        self.state().faults.no_template = !there;
    }

    /// Takes the privilege for these requests away, and gives every other one.
    pub fn deny(&self, kinds: &[RequestKind]) {
        self.state().faults.denied = kinds.iter().copied().collect();
    }

    /// Whether a host answers, by its place among the hosts.
    pub fn set_host_up(&self, host: u8, up: bool) {
        let down = &mut self.state().faults.hosts_down;
        if up {
            down.remove(&host);
        } else {
            down.insert(host);
        }
    }
}
