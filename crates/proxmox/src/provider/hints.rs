//! What this process remembers. Every word of it is a hint that saves a request or a wait:
//! a new process without it does the same, later or with one request more.

use super::{
    delete::remains::Remains,
    grammar,
    power::{LockMeaning, meaning},
    shared::{Guest, PERIOD, Sighted},
    turns::{Turns, Wait},
};
use crate::client::{NodeName, TaskEnd, Upid, VmConfig, Vmid};
use egress_core::{Handle, MachineKey, Mark, machine::ObservedMachine};
use egress_provider::Pace;
use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// How many ended tasks are remembered.
const MOST_TOLD: usize = 4096;
/// For how long failed clones make a storage slow, and how many do.
const FAILURES_WITHIN: Duration = Duration::from_mins(10);
const FAILURES: usize = 3;
/// For how long a slot that was seen free counts as free.
const JUST_NOW: Duration = Duration::from_secs(2);
/// How many machines whose address is known are looked at in a minute.
const STEADY_TURNS: usize = 60;
/// When a clone of which nothing more was heard counts no more.
const FORGET_CLONE: Duration = Duration::from_mins(15);

/// What the guest's agent last had to do with one machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    /// The addresses it reported last, however long ago.
    pub(super) addresses: Vec<IpAddr>,
    /// When it was asked last.
    pub(super) asked: Option<Instant>,
    /// Whether it had an answer with an address then.
    pub(super) answered: bool,
    /// Its last words, for people.
    pub(super) said: String,
    /// Since when an address is waited for.
    pub(super) waiting_since: Option<Instant>,
}

/// A machine of ours as one complete look showed it.
#[derive(Clone, Debug)]
pub(super) struct LastLook {
    pub(super) at: Instant,
    pub(super) node: NodeName,
    pub(super) seen: ObservedMachine,
    pub(super) mark: Mark,
}

#[derive(Debug, Default)]
pub(super) struct Hints {
    pub(super) pace: Pace,
    sightings: HashMap<Vmid, Arc<Sighted>>,
    looks: HashMap<(Vmid, MachineKey), LastLook>,
    reports: HashMap<(Vmid, MachineKey), Reports>,
    freed: HashMap<Vmid, Instant>,
    told: HashSet<String>,
    /// Tasks whose failure a look saw first: the next call that changes something tells it.
    untold: HashMap<(Vmid, MachineKey), Vec<Handle>>,
    ends: HashMap<String, TaskEnd>,
    ends_order: VecDeque<String>,
    /// How often a task was found running, and when it was heard of last.
    polls: HashMap<String, (u32, Instant)>,
    clones: HashMap<Vmid, Instant>,
    /// When machines of a key were made last, by its name: a list from before does not show them.
    made: HashMap<String, Instant>,
    /// Which machine each clone of this process makes, while it runs.
    clone_targets: HashMap<Upid, Vmid>,
    turns: Turns,
    clone_failures: VecDeque<Instant>,
    /// When a clone task was last seen alive, by the machine it makes.
    cloning: HashMap<Vmid, Instant>,
    stale: HashMap<Vmid, Instant>,
    /// Requests to destroy whose answer never came.
    destroys_in_doubt: HashMap<Vmid, Instant>,
    /// When a request to destroy it was sent last, answered or not; kept beyond the machine,
    /// and longer than any proof of ownership is good.
    destroys_sent: HashMap<Vmid, Instant>,
    /// Machines whose seed was missing when it was needed, and how often.
    seed_missing: HashMap<Vmid, u32>,
    /// When a machine was asked to stop last.
    stops: HashMap<Vmid, Instant>,
    /// Uploads whose answer never came, by the size of what was sent.
    uploads_in_doubt: HashMap<Vmid, u64>,
    /// When machines whose address is known were looked at last, for a minute.
    steady_turns: VecDeque<Instant>,
    /// Machines whose own disk is gone.
    broken: HashSet<Vmid>,
    free: HashMap<Vmid, Instant>,
    /// Disks that outlived their machines, by where those were.
    pub(super) left_behind: BTreeMap<(NodeName, Vmid), Remains>,
    pub(super) tags_refused: bool,
    /// The host is older than 8.2.
    pub(super) cannot_overrule: bool,
    pub(super) running: usize,
}

impl Hints {
    /// Remembers what a configuration bears, unless its machine is being made and hides it.
    pub(super) fn sight(&mut self, vmid: Vmid, config: &VmConfig) -> Arc<Sighted> {
        let volumes = grammar::drives(&config.keys).filter_map(|(_, drive)| drive.volume);
        let sighted = Arc::new(Sighted {
            name: config.name.clone(),
            tags: config.tags.clone(),
            text: config.description.clone(),
            template: config.template,
            volumes: volumes.collect(),
        });
        let hides = config.lock.as_ref().is_some_and(|lock| {
            matches!(meaning(lock), LockMeaning::Making | LockMeaning::Deleting)
        });
        if hides {
            self.sightings.remove(&vmid);
        } else {
            self.sightings.insert(vmid, sighted.clone());
        }
        sighted
    }
    pub(super) fn sighted(&self, vmid: Vmid) -> Option<Arc<Sighted>> {
        self.sightings.get(&vmid).cloned()
    }
    /// Forgets what is on no list any more.
    pub(super) fn forget_sightings(&mut self, guests: &BTreeMap<Vmid, Guest>) {
        self.sightings.retain(|vmid, _| guests.contains_key(vmid));
    }

    pub(super) fn look(&self, vmid: Vmid, key: &MachineKey) -> Option<LastLook> {
        self.looks.get(&(vmid, key.clone())).cloned()
    }
    pub(super) fn looked(&mut self, vmid: Vmid, key: &MachineKey, look: LastLook) {
        self.looks.insert((vmid, key.clone()), look);
    }
    pub(super) fn reports(&self, vmid: Vmid, key: &MachineKey) -> Reports {
        self.reports
            .get(&(vmid, key.clone()))
            .cloned()
            .unwrap_or_default()
    }
    pub(super) fn reported(&mut self, vmid: Vmid, key: &MachineKey, reports: Reports) {
        self.reports.insert((vmid, key.clone()), reports);
        self.running = self.reports.len();
    }

    /// Whether a machine whose address is known may be looked at again: so many in a minute,
    /// also where all of them were looked at in the same moment once.
    pub(super) fn take_steady_turn(&mut self) -> bool {
        let minute = Duration::from_mins(1);
        while self
            .steady_turns
            .front()
            .is_some_and(|at| self.pace.since(*at) >= minute)
        {
            self.steady_turns.pop_front();
        }
        let free = self.steady_turns.len() < STEADY_TURNS;
        if free {
            self.steady_turns.push_back(Instant::now());
        }
        free
    }

    /// Something was changed at a slot: what was seen there counts no more.
    pub(super) fn changed(&mut self, vmid: Vmid) {
        self.sightings.remove(&vmid);
        self.looks.retain(|(at, _), _| *at != vmid);
        self.free.remove(&vmid);
    }
    /// The machine at a slot is gone: no key gets the slot again before the settle bound.
    pub(super) fn gone(&mut self, vmid: Vmid, freed: bool) {
        self.changed(vmid);
        self.reports.retain(|(at, _), _| *at != vmid);
        self.running = self.reports.len();
        self.clone_ended(vmid);
        self.cloning.remove(&vmid);
        self.stale.remove(&vmid);
        self.destroys_in_doubt.remove(&vmid);
        self.uploads_in_doubt.remove(&vmid);
        self.stops.remove(&vmid);
        self.seed_missing.remove(&vmid);
        self.broken.remove(&vmid);
        if freed {
            self.freed.insert(vmid, Instant::now());
        }
    }
    pub(super) fn is_resting(&mut self, vmid: Vmid, settle: Duration) -> bool {
        let pace = self.pace;
        self.freed.retain(|_, since| pace.since(*since) < settle);
        self.freed.contains_key(&vmid)
    }

    /// The slot was free a moment ago; the next request decides anyway.
    pub(super) fn seen_free(&mut self, vmid: Vmid) {
        let pace = self.pace;
        self.free.retain(|_, at| pace.since(*at) < JUST_NOW);
        self.free.insert(vmid, Instant::now());
    }
    pub(super) fn is_free(&mut self, vmid: Vmid) -> bool {
        self.free
            .remove(&vmid)
            .is_some_and(|at| self.pace.since(at) < JUST_NOW)
    }

    /// Whether the end of a task is news; it is told once in this process's life.
    pub(super) fn is_news(&mut self, upid: &str) -> bool {
        self.told.insert(upid.to_owned())
    }
    /// A look saw this task end in a failure, and a look tells no failures.
    pub(super) fn saw_failure(&mut self, vmid: Vmid, key: &MachineKey, handle: &Handle) {
        let seen = self.untold.entry((vmid, key.clone())).or_default();
        if !self.told.contains(&handle.id) && !seen.contains(handle) {
            seen.push(handle.clone());
        }
    }
    pub(super) fn take_untold(&mut self, vmid: Vmid, key: &MachineKey) -> Vec<Handle> {
        self.untold.remove(&(vmid, key.clone())).unwrap_or_default()
    }
    /// A task was found running once more.
    pub(super) fn polled(&mut self, upid: &str) {
        let now = Instant::now();
        let heard = self.polls.entry(upid.to_owned()).or_insert((0, now));
        *heard = (heard.0 + 1, now);
    }
    /// A clone to this VMID was begun a moment ago.
    pub(super) fn clone_sent(&mut self, upid: &Upid, vmid: Vmid) {
        self.polls
            .insert(upid.as_str().to_owned(), (0, Instant::now()));
        self.clone_targets.insert(upid.clone(), vmid);
    }
    /// The machine that a clone of this process makes.
    pub(super) fn clone_target(&self, upid: &Upid) -> Option<Vmid> {
        self.clone_targets.get(upid).copied()
    }
    /// How long ago it was begun, where nobody has asked for it since.
    pub(super) fn begun_ago(&self, upid: &str) -> Option<Duration> {
        let (polls, at) = self.polls.get(upid)?;
        (*polls == 0).then(|| self.pace.since(*at))
    }
    /// How often a task was found running, and how long ago it was heard of last.
    pub(super) fn polls_of(&self, upid: &str) -> (u32, Duration) {
        let heard = self.polls.get(upid);
        heard.map_or((0, Duration::ZERO), |(count, at)| (*count, at.elapsed()))
    }
    /// A task ended: it is never asked for again.
    pub(super) fn ended(&mut self, upid: &str, end: &TaskEnd) {
        self.polls.remove(upid);
        if self.ends.insert(upid.to_owned(), end.clone()).is_none() {
            self.ends_order.push_back(upid.to_owned());
        }
        if self.ends_order.len() > MOST_TOLD
            && let Some(oldest) = self.ends_order.pop_front()
        {
            self.ends.remove(&oldest);
            self.told.remove(&oldest);
        }
    }
    /// How a task ended, where this process saw it.
    pub(super) fn end_of(&self, upid: &str) -> Option<TaskEnd> {
        self.ends.get(upid).cloned()
    }

    pub(super) fn clone_begun(&mut self, vmid: Vmid, key: &MachineKey) {
        self.clones.insert(vmid, Instant::now());
        self.turns.leave(vmid);
        self.made(key);
    }
    /// A machine of this key may be there from now on.
    pub(super) fn made(&mut self, key: &MachineKey) {
        let now = Instant::now();
        self.made.retain(|_, at| now < *at + 2 * PERIOD);
        self.made.insert(key.name().to_owned(), now);
    }
    /// When one was last made, if that is no longer ago than a list may be.
    pub(super) fn made_last(&self, key: &MachineKey) -> Option<Instant> {
        self.made.get(key.name()).copied()
    }
    /// It cannot be cloned now: others need not wait for it.
    pub(super) fn leave_line(&mut self, vmid: Vmid) {
        self.turns.leave(vmid);
    }
    pub(super) fn clone_ended(&mut self, vmid: Vmid) {
        self.clone_targets.retain(|_, target| *target != vmid);
        if self.clones.remove(&vmid).is_some() {
            self.turns.call_in();
        }
    }
    /// How many clones this process has under way beside this one.
    pub(super) fn clones_beside(&mut self, vmid: Vmid) -> usize {
        let pace = self.pace;
        self.clones
            .retain(|_, since| pace.since(*since) < FORGET_CLONE);
        self.clones.keys().filter(|at| **at != vmid).count()
    }
    /// Asks for a turn to clone: `None` when it may now.
    pub(super) fn ask_for_turn(&mut self, vmid: Vmid, configured: u32) -> Option<Wait> {
        let (running, limit) = (self.clones_beside(vmid), self.clone_limit(configured));
        self.turns.ask(vmid, running, limit)
    }
    /// Where those stand whose turn comes next.
    pub(super) fn door(&self) -> Arc<Notify> {
        self.turns.door()
    }
    /// Whether it waits for its turn to clone.
    pub(super) fn waits_for_turn(&self, vmid: Vmid) -> bool {
        self.turns.waits(vmid)
    }
    pub(super) fn clone_failed(&mut self) {
        self.clone_failures.push_back(Instant::now());
    }
    /// After three failures in ten minutes, one clone at a time (rule 16).
    pub(super) fn clone_limit(&mut self, configured: u32) -> usize {
        let pace = self.pace;
        self.clone_failures
            .retain(|at| pace.since(*at) < FAILURES_WITHIN);
        if self.clone_failures.len() >= FAILURES {
            1
        } else {
            configured as usize
        }
    }
    pub(super) fn seen_cloning(&mut self, vmid: Vmid) {
        self.cloning.insert(vmid, Instant::now());
    }
    /// Whether the clone ran until a moment ago, so that nobody can have started its machine.
    pub(super) fn just_cloned(&self, vmid: Vmid) -> bool {
        self.cloning
            .get(&vmid)
            .is_some_and(|at| self.pace.since(*at) < Duration::from_secs(3))
    }

    /// For how long a lock has been seen without a task.
    pub(super) fn stale_for(&mut self, vmid: Vmid) -> Duration {
        let since = *self.stale.entry(vmid).or_insert_with(Instant::now);
        self.pace.since(since)
    }
    pub(super) fn not_stale(&mut self, vmid: Vmid) {
        self.stale.remove(&vmid);
    }

    pub(super) fn destroy_in_doubt(&mut self, vmid: Vmid) {
        self.destroys_in_doubt.insert(vmid, Instant::now());
        let pace = self.pace;
        self.destroys_sent
            .retain(|_, at| pace.since(*at) < Duration::from_mins(1));
        self.destroys_sent.insert(vmid, Instant::now());
    }
    /// Whether a request to destroy it was sent after this look at it began.
    pub(super) fn destroy_sent_since(&self, vmid: Vmid, look: Instant) -> bool {
        self.destroys_sent.get(&vmid).is_some_and(|at| *at >= look)
    }
    /// For how long the outcome of a request to destroy has been unknown.
    pub(super) fn destroy_in_doubt_for(&self, vmid: Vmid) -> Option<Duration> {
        self.destroys_in_doubt
            .get(&vmid)
            .map(|at| self.pace.since(*at))
    }
    pub(super) fn destroy_settled(&mut self, vmid: Vmid) {
        self.destroys_in_doubt.remove(&vmid);
    }

    pub(super) fn stop_requested(&mut self, vmid: Vmid) {
        self.stops.insert(vmid, Instant::now());
    }
    /// For how long a request to stop it has been out.
    pub(super) fn stop_requested_for(&self, vmid: Vmid) -> Option<Duration> {
        self.stops.get(&vmid).map(|at| self.pace.since(*at))
    }

    pub(super) fn upload_in_doubt(&mut self, vmid: Vmid, bytes: u64) {
        self.uploads_in_doubt.insert(vmid, bytes);
    }
    /// The size of an upload of which it is not known whether it arrived.
    pub(super) fn doubtful_upload(&self, vmid: Vmid) -> Option<u64> {
        self.uploads_in_doubt.get(&vmid).copied()
    }
    pub(super) fn upload_settled(&mut self, vmid: Vmid) {
        self.uploads_in_doubt.remove(&vmid);
    }

    pub(super) fn seed_was_missing(&mut self, vmid: Vmid) {
        *self.seed_missing.entry(vmid).or_default() += 1;
    }
    pub(super) fn times_seed_missing(&self, vmid: Vmid) -> u32 {
        self.seed_missing.get(&vmid).copied().unwrap_or(0)
    }
    pub(super) fn seed_is_there(&mut self, vmid: Vmid) {
        self.seed_missing.remove(&vmid);
    }
    pub(super) fn is_broken(&self, vmid: Vmid) -> bool {
        self.broken.contains(&vmid)
    }
    pub(super) fn broke(&mut self, vmid: Vmid) {
        self.broken.insert(vmid);
    }
}
