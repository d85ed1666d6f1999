//! Tasks: their table, their UPIDs, their logs, and the machinery that runs them.

mod reads;

use super::{World, access::Caller, jobs::Job, locks::Resource};
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// How many finished tasks are remembered.
const REMEMBERED: usize = 20_000;

pub(super) type TaskId = u64;

/// What a task waits for, and until when.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub(super) resource: Resource,
    until: Duration,
    /// Whether the log says so.
    noted: bool,
}

/// A task.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) upid: String,
    pub(super) node: String,
    pid: u32,
    pstart: u64,
    starttime: u64,
    pub(super) kind: &'static str,
    id: String,
    /// `user@realm` or `user@realm!token`.
    user: String,
    pub(super) log: Vec<String>,
    job: Option<Job>,
    /// How it ended, and when.
    pub(super) ended: Option<(String, u64)>,
    /// Wakes of earlier turns are void.
    turn: u64,
    pub(super) held: Vec<Resource>,
    pub(super) wait: Option<Wait>,
    stalled: bool,
    /// Whether a wake came while it was stalled.
    owed: bool,
    warnings: u32,
}

/// All tasks.
#[derive(Clone, Debug, Default)]
pub(super) struct Tasks {
    all: BTreeMap<TaskId, Task>,
    live: std::collections::BTreeSet<TaskId>,
    by_upid: HashMap<String, TaskId>,
    last: TaskId,
    pid: u32,
    /// Workers of these types are stopped when they begin: how many more.
    pub(super) stalls: BTreeMap<String, u32>,
}

/// Why a job goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// It is time, or what it waited for is there.
    Go,
    /// What it waited for did not come; the text says so.
    TimedOut(String),
    /// It shall end, and clean up after itself.
    Interrupted,
}

/// What a job does next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// It goes on after so long.
    After(Duration),
    /// It goes on when it has this, or gives up after so many seconds.
    Have(Resource, f64),
    /// It ended well.
    Done,
    /// It ended in an error.
    Failed(String),
}

impl Tasks {
    pub(super) fn get(&self, id: TaskId) -> Option<&Task> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        self.all.get_mut(&id)
    }

    /// The tasks that run.
    pub(super) fn running(&self) -> impl DoubleEndedIterator<Item = (TaskId, &Task)> {
        self.live
            .iter()
            .filter_map(|id| self.all.get(id).map(|task| (*id, task)))
    }

    fn forget_old(&mut self) {
        while self.all.len() > REMEMBERED {
            let oldest = self
                .all
                .iter()
                .find(|(_, task)| task.ended.is_some())
                .map(|(id, _)| *id);
            let Some(task) = oldest.and_then(|id| self.all.remove(&id)) else {
                return;
            };
            self.by_upid.remove(&task.upid);
        }
    }

    /// The next process number, also for what is not a task.
    pub(super) fn next_pid(&mut self) -> u32 {
        self.pid += 1;
        0x100 + self.pid
    }
}

impl World {
    /// How a task ended, if it did.
    pub(super) fn exit_of(&self, upid: &str) -> Option<String> {
        let id = self.tasks.by_upid.get(upid)?;
        let (exit, _) = self.tasks.get(*id)?.ended.as_ref()?;
        Some(exit.clone())
    }

    /// The process number given last.
    pub(super) const fn tasks_pid(&self) -> u32 {
        self.tasks.pid + 0x100
    }

    /// Begins a task. Answers its UPID.
    pub(super) fn begin_task(
        &mut self,
        node: &str,
        kind: &'static str,
        id: &str,
        caller: &Caller,
        job: Job,
    ) -> String {
        let pid = self.tasks.next_pid();
        let starttime = self.time_of_day(node);
        let uptime = self.nodes.get(node).map_or(0, |it| it.setup.uptime);
        let pstart = uptime * 100 + u64::try_from(self.now.as_millis() / 10).unwrap_or_default();
        let user = &caller.id;
        let upid =
            format!("UPID:{node}:{pid:08X}:{pstart:08X}:{starttime:08X}:{kind}:{id}:{user}:");
        self.tasks.last += 1;
        let number = self.tasks.last;
        let stalled = match self.tasks.stalls.get_mut(kind) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        };
        self.tasks.all.insert(
            number,
            Task {
                upid: upid.clone(),
                node: node.to_owned(),
                pid,
                pstart,
                starttime,
                kind,
                id: id.to_owned(),
                user: user.clone(),
                log: Vec::new(),
                job: Some(job),
                ended: None,
                turn: 0,
                held: Vec::new(),
                wait: None,
                stalled,
                owed: false,
                warnings: 0,
            },
        );
        self.tasks.live.insert(number);
        self.tasks.by_upid.insert(upid.clone(), number);
        self.tasks.forget_old();
        self.run_task(number, Wake::Go);
        upid
    }

    /// Adds a line to a task's log.
    pub(super) fn log(&mut self, id: TaskId, line: impl Into<String>) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.log.push(line.into());
        }
    }

    /// Adds a warning to a task's log; a task with warnings ends in `WARNINGS: n`.
    pub(super) fn warn(&mut self, id: TaskId, line: &str) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.log.push(format!("WARN: {line}"));
            task.warnings += 1;
        }
    }

    /// A wake of a turn that may be over by now.
    pub(super) fn wake_task(&mut self, id: TaskId, turn: u64) {
        if self.tasks.get(id).is_some_and(|task| task.turn == turn) {
            self.run_task(id, Wake::Go);
        }
    }

    /// Looks whether a waiting task has what it waits for.
    pub(super) fn poke_task(&mut self, id: TaskId) {
        if self.tasks.get(id).is_some_and(|task| task.wait.is_some()) {
            self.run_task(id, Wake::Go);
        }
    }

    /// Lets all tasks that wait now look again at a time.
    pub(super) fn poke_waiting(&mut self, at: Duration) {
        let waiting: Vec<TaskId> = self
            .tasks
            .running()
            .filter(|(_, task)| task.wait.is_some())
            .map(|(id, _)| id)
            .collect();
        for id in waiting {
            self.schedule(at, super::Event::Poke(id));
        }
    }

    fn run_task(&mut self, id: TaskId, wake: Wake) {
        let now = self.now;
        let mut wake = wake;
        loop {
            let Some(task) = self.tasks.get_mut(id).filter(|task| task.ended.is_none()) else {
                return;
            };
            if task.stalled && wake == Wake::Go {
                task.owed = true;
                return;
            }
            if let Some(wait) = task.wait.clone() {
                let held = wake == Wake::Go && self.take(&wait.resource, id);
                let Some(task) = self.tasks.get_mut(id) else {
                    return;
                };
                if held {
                    task.wait = None;
                    if wait.noted {
                        task.log.push(" OK".to_owned());
                    }
                } else if wake == Wake::Interrupted {
                    task.wait = None;
                } else if now >= wait.until {
                    task.wait = None;
                    wake = Wake::TimedOut(Self::lock_text(&wait.resource));
                } else {
                    if !wait.noted {
                        task.log.push("trying to acquire lock...".to_owned());
                        task.wait = Some(Wait {
                            noted: true,
                            ..wait
                        });
                    }
                    return;
                }
            }
            let Some(task) = self.tasks.get_mut(id) else {
                return;
            };
            let Some(mut job) = task.job.take() else {
                return;
            };
            let next = self.advance_job(id, &mut job, wake);
            let Some(task) = self.tasks.get_mut(id) else {
                return;
            };
            task.job = Some(job);
            task.turn += 1;
            let turn = task.turn;
            match next {
                Next::After(time) => {
                    self.schedule(now + time, super::Event::Task(id, turn));
                    return;
                }
                Next::Have(resource, seconds) => {
                    let until = now + self.pace.of(seconds);
                    task.wait = Some(Wait {
                        resource: resource.clone(),
                        until,
                        noted: false,
                    });
                    let free_at = self.free_at(&resource).min(until);
                    for at in [free_at, until] {
                        if at > now {
                            self.schedule(at, super::Event::Poke(id));
                        }
                    }
                    wake = Wake::Go;
                }
                Next::Done => {
                    let warnings = task.warnings;
                    let exit = if warnings == 0 {
                        "OK".to_owned()
                    } else {
                        format!("WARNINGS: {warnings}")
                    };
                    self.end_task(id, exit, true);
                    return;
                }
                Next::Failed(text) => {
                    self.end_task(id, text, true);
                    return;
                }
            }
        }
    }

    /// Ends a task; a killed one writes no last line.
    fn end_task(&mut self, id: TaskId, exit: String, writes: bool) {
        let Some(node) = self.tasks.get(id).map(|task| task.node.clone()) else {
            return;
        };
        let time = self.time_of_day(&node);
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if writes {
            task.log.push(if exit == "OK" {
                "TASK OK".to_owned()
            } else if exit.starts_with("WARNINGS: ") {
                format!("TASK {exit}")
            } else {
                format!("TASK ERROR: {exit}")
            });
        }
        task.ended = Some((exit, time));
        task.job = None;
        task.wait = None;
        let held = std::mem::take(&mut task.held);
        self.tasks.live.remove(&id);
        for resource in held {
            self.release(&resource, id);
        }
    }

    /// SIGTERM, or an accident that its worker notices: it ends and cleans up.
    pub(super) fn interrupt_task(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.stalled = false;
        }
        self.run_task(id, Wake::Interrupted);
    }

    /// SIGKILL: it is gone, and what it did stays as it is.
    pub(super) fn kill_task(&mut self, id: TaskId) {
        if self.tasks.get(id).is_some_and(|task| task.ended.is_none()) {
            self.end_task(id, "unexpected status".to_owned(), false);
        }
    }

    /// SIGSTOP to the running tasks of a type.
    pub(super) fn stall_tasks(&mut self, kind: &str, most: u32) -> u32 {
        let ids: Vec<TaskId> = self
            .tasks
            .running()
            .filter(|(_, task)| task.kind == kind && !task.stalled)
            .map(|(id, _)| id)
            .take(most as usize)
            .collect();
        for id in &ids {
            if let Some(task) = self.tasks.get_mut(*id) {
                task.stalled = true;
            }
        }
        u32::try_from(ids.len()).unwrap_or(u32::MAX)
    }

    /// SIGCONT to all.
    pub(super) fn continue_tasks(&mut self) {
        self.tasks.stalls.clear();
        let ids: Vec<TaskId> = self
            .tasks
            .running()
            .filter(|(_, task)| task.stalled)
            .map(|(id, _)| id)
            .collect();
        for id in ids {
            let owed = self.tasks.get_mut(id).is_some_and(|task| {
                task.stalled = false;
                std::mem::take(&mut task.owed)
            });
            if owed {
                self.run_task(id, Wake::Go);
            }
        }
    }
}
