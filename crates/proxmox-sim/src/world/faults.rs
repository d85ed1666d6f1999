//! What goes wrong on the way, and what of it Heal undoes.

use super::{Control, Daemon, DaemonState, Event, Landing, Network, World, answers::Refusal, draw};
use crate::exchange::{Answer, Request};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// How the answer of a request is lost.
#[derive(Clone, Copy, Debug)]
struct Loss {
    landing: Landing,
    late: Duration,
    timed_out: bool,
}

/// An answer of something in front of the API.
#[derive(Clone, Debug)]
struct InFront {
    status: u16,
    reason: String,
    body: String,
    content_type: Option<String>,
    path: String,
    left: Option<u32>,
}

/// Everything that is out of order and does not lie on a machine.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    network: BTreeMap<String, Network>,
    everywhere: Network,
    daemons: BTreeMap<(String, Daemon), DaemonState>,
    losses: VecDeque<Loss>,
    permille: u32,
    reads_too: bool,
    dice: u64,
    in_front: Vec<InFront>,
    pub(super) quorum: bool,
    /// What someone fills of a node's memory, in bytes.
    pub(super) memory: BTreeMap<String, u64>,
    /// Requests that a hung daemon took, by node: it works on them when it goes on.
    stuck: Vec<(String, Request)>,
}

impl Faults {
    pub(super) const fn new(seed: u64) -> Self {
        Self {
            network: BTreeMap::new(),
            everywhere: Network::Up,
            daemons: BTreeMap::new(),
            losses: VecDeque::new(),
            permille: 0,
            reads_too: false,
            dice: seed ^ 0xd1ce,
            in_front: Vec::new(),
            quorum: true,
            memory: BTreeMap::new(),
            stuck: Vec::new(),
        }
    }
}

impl World {
    pub(super) fn daemon(&self, node: &str, daemon: Daemon) -> DaemonState {
        let found = self.faults.daemons.get(&(node.to_owned(), daemon));
        found.copied().unwrap_or(DaemonState::Up)
    }

    /// What becomes of a request before any API server reads it.
    pub(super) fn way_to(&self, request: &Request) -> Option<Answer> {
        let node = &request.node;
        let to_node = self.faults.network.get(node).copied();
        match to_node.unwrap_or(self.faults.everywhere) {
            Network::Up => {}
            Network::Down => return Some(Answer::Refused),
            Network::Hanging => return Some(Answer::Silence),
        }
        if self.nodes.get(node).is_none_or(|node| !node.up) {
            return Some(Answer::Silence);
        }
        match self.daemon(node, Daemon::Pveproxy) {
            DaemonState::Up => None,
            DaemonState::Down => Some(Answer::Refused),
            DaemonState::Hung => Some(Answer::Silence),
        }
    }

    /// The answer of something in front of the API, where someone put it there.
    pub(super) fn in_front(&mut self, request: &Request) -> Option<Answer> {
        let at = self
            .faults
            .in_front
            .iter()
            .position(|it| it.left != Some(0) && request.target.contains(&it.path))?;
        let front = &mut self.faults.in_front[at];
        if let Some(left) = &mut front.left {
            *left -= 1;
        }
        let headers = front
            .content_type
            .iter()
            .map(|kind| ("content-type".to_owned(), kind.clone()))
            .collect();
        Some(Answer::Response {
            status: front.status,
            reason: front.reason.clone(),
            headers,
            body: front.body.clone().into_bytes(),
            after: Duration::from_millis(1),
            close: true,
        })
    }

    /// The answer, unless it is to be lost.
    pub(super) fn perhaps_lost(&mut self, request: &Request) -> Answer {
        let mutating = request.is_mutating();
        let planned = if mutating {
            self.faults.losses.pop_front()
        } else {
            None
        };
        let loss = planned.or_else(|| self.throw(mutating));
        let Some(loss) = loss else {
            return self.answer(request);
        };
        match loss.landing {
            Landing::Landed => {
                self.answer(request);
            }
            Landing::Lost => {}
            Landing::Late => {
                let at = self.now + loss.late;
                self.schedule(at, Event::Late(Box::new(request.clone())));
            }
        }
        let patience = self.pace.of(self.pace.t.proxy_timeout);
        if loss.timed_out {
            let usual = self.pace.of(self.pace.t.mutation);
            return Refusal::empty(596, "Connection timed out")
                .after(patience)
                .answer(usual);
        }
        Answer::Dropped {
            after: self.pace.of(self.pace.t.mutation),
        }
    }

    fn throw(&mut self, mutating: bool) -> Option<Loss> {
        if self.faults.permille == 0 || !(mutating || self.faults.reads_too) {
            return None;
        }
        let thrown = draw(&mut self.faults.dice);
        (thrown % 1000 < u64::from(self.faults.permille)).then(|| Loss {
            landing: match (thrown / 1000) % 3 {
                0 => Landing::Landed,
                1 => Landing::Lost,
                _ => Landing::Late,
            },
            late: Duration::from_millis((thrown / 3000) % 3000),
            timed_out: false,
        })
    }

    /// Whether a node name leads anywhere.
    pub(super) fn resolve(&self, name: &str) -> Result<(), Refusal> {
        match self.nodes.get(name).map(|node| &node.setup) {
            Some(setup) if setup.resolvable && !setup.address.is_empty() => Ok(()),
            Some(setup) if setup.resolvable => Err(Refusal::died(format!(
                "address lookup for '{name}' did not find any IP address"
            ))),
            _ => Err(Refusal::died(format!(
                "hostname lookup '{name}' failed - failed to get address info for: {name}: Name or service not known"
            ))),
        }
    }

    /// Whether a request gets from one API server to the node and daemon that do it.
    pub(super) fn reach(
        &mut self,
        server: &str,
        target: &str,
        protected: bool,
        request: &Request,
    ) -> Result<(), Refusal> {
        if target != server {
            self.resolve(target)?;
            let up = self.nodes.get(target).is_some_and(|node| node.up);
            let hears = match self.faults.network.get(target) {
                None | Some(Network::Up) => up,
                Some(_) => false,
            };
            if !hears {
                let wait = self.pace.of(3.0);
                return Err(Refusal::empty(595, "No route to host").after(wait));
            }
            if self.daemon(target, Daemon::Pveproxy) != DaemonState::Up {
                return Err(Refusal::empty(595, "Connection refused"));
            }
        }
        if !protected {
            return Ok(());
        }
        match self.daemon(target, Daemon::Pvedaemon) {
            DaemonState::Up => Ok(()),
            DaemonState::Down => Err(Refusal::empty(595, "Connection refused")),
            DaemonState::Hung => {
                if request.is_mutating() {
                    self.faults.stuck.push((target.to_owned(), request.clone()));
                    self.mutations.pop();
                }
                let wait = self.pace.of(self.pace.t.proxy_timeout);
                Err(Refusal::empty(596, "Connection timed out").after(wait))
            }
        }
    }

    /// Does one of the things that [`Control`] lists under faults; the rest is people's work.
    pub(super) fn cause(&mut self, control: Control) -> Result<(), String> {
        match control {
            Control::LoseAnswer {
                landing,
                seconds,
                timed_out,
            } => self.faults.losses.push_back(Loss {
                landing,
                late: self.pace.of(seconds),
                timed_out,
            }),
            Control::LoseAtRandom { permille, reads } => {
                self.faults.permille = permille;
                self.faults.reads_too = reads;
            }
            Control::AnswerWith {
                status,
                reason,
                body,
                content_type,
                path,
                count,
            } => self.faults.in_front.push(InFront {
                status,
                reason,
                body,
                content_type,
                path,
                left: count,
            }),
            Control::Network { state, node: None } => {
                self.faults.everywhere = state;
                self.faults.network.clear();
            }
            Control::Network {
                state,
                node: Some(node),
            } => {
                self.faults.network.insert(node, state);
            }
            Control::Quorum { on } => self.faults.quorum = on,
            Control::FillMemory { node, free } => {
                let names: Vec<String> = match node {
                    Some(name) => vec![name],
                    None => self.nodes.keys().cloned().collect(),
                };
                for name in names {
                    self.faults.memory.remove(&name);
                    let total = self.nodes.get(&name).map_or(0, |it| it.setup.memory);
                    let left = total.saturating_sub(self.memory_used(&name));
                    self.faults.memory.insert(name, left.saturating_sub(free));
                }
            }
            Control::Daemon {
                node,
                daemon,
                state,
            } => {
                let names: Vec<String> = match node {
                    Some(name) => vec![name],
                    None => self.nodes.keys().cloned().collect(),
                };
                for name in names {
                    self.set_daemon(&name, daemon, state);
                }
            }
            other => return Err(format!("{other:?} is not a fault")),
        }
        Ok(())
    }

    fn set_daemon(&mut self, node: &str, daemon: Daemon, state: DaemonState) {
        let key = (node.to_owned(), daemon);
        self.faults.daemons.insert(key, state);
        if daemon == Daemon::Pvedaemon && state == DaemonState::Up {
            self.work_off(node);
        }
    }

    /// A daemon that was hung works on what it had taken.
    fn work_off(&mut self, node: &str) {
        let (mine, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.faults.stuck)
            .into_iter()
            .partition(|(its, _)| its == node);
        self.faults.stuck = others;
        let now = self.now;
        for (_, request) in mine {
            self.schedule(now, Event::Late(Box::new(request)));
        }
    }

    /// Undoes every fault that does not lie on a machine.
    pub(super) fn heal(&mut self) {
        let dice = self.faults.dice;
        let stuck = std::mem::take(&mut self.faults.stuck);
        self.faults = Faults::new(0);
        self.faults.dice = dice;
        let now = self.now;
        for (_, request) in stuck {
            self.schedule(now, Event::Late(Box::new(request)));
        }
        let mut back = Vec::new();
        for (name, node) in &mut self.nodes {
            if !node.up {
                node.up = true;
                node.since = now;
                back.push(name.clone());
            }
            node.skew = 0;
        }
        for name in back {
            self.boot_machines(&name);
        }
        for storage in self.storages.values_mut() {
            storage.online = true;
            storage.filler = 0;
        }
        self.access.missing.clear();
        let revoked = std::mem::take(&mut self.access.revoked);
        for (id, token) in revoked {
            self.access.tokens.entry(id).or_insert(token);
        }
        let hidden = std::mem::take(&mut self.hidden);
        for (vmid, guest) in hidden {
            self.guests.entry(vmid).or_insert(guest);
        }
        self.datacenter = self.setup.datacenter.clone();
        self.elsewhere = None;
        self.continue_tasks();
    }
}
