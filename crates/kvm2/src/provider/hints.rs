//! What this process remembers. Every word of it is a hint that saves a request or a wait: a
//! new process without it does the same, later or with one request more.

use egress_core::{MachineKey, Mark, machine::WantedMachine};
use std::{collections::HashMap, net::IpAddr, time::Duration};
use tokio::time::Instant;
use uuid::Uuid;

/// What was last learned of one machine's addresses.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    /// The addresses that were told last, however long ago.
    pub(super) addresses: Vec<IpAddr>,
    /// When it was asked last.
    pub(super) asked: Option<Instant>,
    /// Whether there was an answer with an address then.
    pub(super) answered: bool,
    /// The last words, for people.
    pub(super) said: String,
    /// Since when an address is waited for.
    pub(super) waiting_since: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Hints {
    reports: HashMap<(Uuid, MachineKey), Reports>,
    marks: HashMap<(Uuid, MachineKey), Mark>,
    /// Seeds that this process has written whole, by slot, and for which wish.
    seeds: HashMap<Uuid, WantedMachine>,
    /// When a machine was asked to shut down.
    asked_to_stop: HashMap<Uuid, Instant>,
    /// When a slot was freed.
    freed: HashMap<Uuid, Instant>,
}

impl Hints {
    pub(super) fn reports(&self, uuid: Uuid, key: &MachineKey) -> Reports {
        let known = self.reports.get(&(uuid, key.clone()));
        known.cloned().unwrap_or_default()
    }
    pub(super) fn reported(&mut self, uuid: Uuid, key: &MachineKey, reports: Reports) {
        self.reports.insert((uuid, key.clone()), reports);
    }
    /// It was started, or is off: an address is waited for anew, and what it said holds until
    /// another is told.
    pub(super) fn starts(&mut self, uuid: Uuid, key: &MachineKey) {
        if let Some(reports) = self.reports.get_mut(&(uuid, key.clone())) {
            reports.answered = false;
            reports.asked = None;
            reports.waiting_since = None;
        }
    }
    /// The mark that it bore when this process saw it last.
    pub(super) fn mark(&self, uuid: Uuid, key: &MachineKey) -> Option<Mark> {
        self.marks.get(&(uuid, key.clone())).cloned()
    }
    pub(super) fn marked(&mut self, uuid: Uuid, key: &MachineKey, mark: &Mark) {
        self.marks.insert((uuid, key.clone()), mark.clone());
    }
    pub(super) fn seed_written(&mut self, uuid: Uuid, wanted: &WantedMachine) {
        self.seeds.insert(uuid, wanted.clone());
    }
    pub(super) fn seed_lost(&mut self, uuid: Uuid) {
        self.seeds.remove(&uuid);
    }
    pub(super) fn has_seed(&self, uuid: Uuid, wanted: &WantedMachine) -> bool {
        self.seeds.get(&uuid) == Some(wanted)
    }
    pub(super) fn asked_to_stop(&mut self, uuid: Uuid) {
        self.asked_to_stop.insert(uuid, Instant::now());
    }
    pub(super) fn stop_asked(&self, uuid: Uuid) -> Option<Instant> {
        self.asked_to_stop.get(&uuid).copied()
    }
    /// Nothing of the key is there any more.
    pub(super) fn gone(&mut self, uuid: Uuid, key: &MachineKey) {
        self.reports.remove(&(uuid, key.clone()));
        self.marks.remove(&(uuid, key.clone()));
        self.seeds.remove(&uuid);
        self.asked_to_stop.remove(&uuid);
        self.freed.insert(uuid, Instant::now());
    }
    /// Whether it was freed within this time. What is older is forgotten.
    pub(super) fn is_resting(&mut self, uuid: Uuid, settle: Duration) -> bool {
        self.freed.retain(|_, at| at.elapsed() < settle);
        self.freed.contains_key(&uuid)
    }
}
