//! Tasks of ours: asked for at their own node, told once when they fail, and found again by
//! what their log says (rules 2 and 12).

use super::{
    Proxmox,
    call::{Call, handle, remedy},
    shared::Snapshot,
    waits,
};
use crate::client::{
    Failure, Kind, NodeName, TaskEnd, TaskFilter, TaskState, Upid, Vmid, poll_waits,
};
use egress_core::{Claim, ErrorClass, Handle};
use egress_provider::{Progress, Result};
use std::time::Duration;

pub(super) const CLONE: &str = "clone";
pub(super) const UPLOAD: &str = "upload";
pub(super) const RESIZE: &str = "resize";
pub(super) const START: &str = "start";
pub(super) const STOP: &str = "stop";
pub(super) const DESTROY: &str = "destroy";
pub(super) const DELETE_SEED: &str = "delete-seed";

/// The lines of a clone's log among which it names its machine.
const LOG_LINES: u32 = 50;

/// How a task of a claim stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Running,
    Ended(TaskEnd),
    /// Its node knows nothing of it any more, or does not tell this token.
    Lost,
}

/// The tasks of a claim.
#[derive(Clone, Debug, Default)]
pub(super) struct Tasks(pub(super) Vec<(Handle, Standing)>);

impl Tasks {
    /// Tasks that are taken to run without asking.
    pub(super) fn thought_running(handles: &[Handle]) -> Self {
        let running = |handle: &Handle| (handle.clone(), Standing::Running);
        Self(handles.iter().map(running).collect())
    }
    fn of(&self, step: &str) -> impl Iterator<Item = &(Handle, Standing)> {
        self.0.iter().filter(move |(handle, _)| handle.step == step)
    }
    pub(super) fn has(&self, step: &str) -> bool {
        self.of(step).next().is_some()
    }
    pub(super) fn is_live(&self, step: &str) -> bool {
        self.of(step)
            .any(|(_, standing)| *standing == Standing::Running)
    }
    /// Whether the step's last task did what it was asked.
    pub(super) fn succeeded(&self, step: &str) -> bool {
        let last = self.of(step).last();
        last.is_some_and(|(_, s)| matches!(s, Standing::Ended(end) if end.is_success()))
    }
    /// The step of a task that still runs.
    pub(super) fn live_step(&self) -> Option<&str> {
        self.0
            .iter()
            .find(|(_, standing)| *standing == Standing::Running)
            .map(|(handle, _)| handle.step.as_str())
    }
    /// What a claim keeps of them: those that run, and those whose success the next step
    /// builds on.
    pub(super) fn kept(&self) -> Vec<Handle> {
        self.0
            .iter()
            .filter(|(handle, standing)| match standing {
                Standing::Running => true,
                Standing::Ended(end) => {
                    end.is_success() && [CLONE, UPLOAD].contains(&handle.step.as_str())
                }
                Standing::Lost => false,
            })
            .map(|(handle, _)| handle.clone())
            .collect()
    }
    /// Those that ended in a failure.
    pub(super) fn failed(&self) -> impl Iterator<Item = &Handle> {
        self.0
            .iter()
            .filter(|(_, standing)| matches!(standing, Standing::Ended(end) if !end.is_success()))
            .map(|(handle, _)| handle)
    }
    pub(super) fn ended(&self, step: &str) -> Option<&TaskEnd> {
        self.of(step).find_map(|(_, standing)| match standing {
            Standing::Ended(end) => Some(end),
            _ => None,
        })
    }
}

/// How long to wait for a task that was found running so often.
fn wait_before(polls: u32) -> Duration {
    let mut waits = poll_waits().skip(polls as usize);
    waits.next().unwrap_or(Duration::from_secs(2))
}

impl Call<'_> {
    /// How each task of a claim stands; what has ended is not asked for again.
    pub(super) async fn poll(&self, handles: &[Handle]) -> Result<Tasks> {
        let mut tasks = Vec::with_capacity(handles.len());
        for handle in handles {
            let standing = match handle.id.parse::<Upid>() {
                // Nothing is known to end that fast, and the next poll comes later for it.
                Ok(upid) if self.is_young(&upid) => Standing::Running,
                Ok(upid) => self.poll_one(&upid).await?,
                Err(_) => Standing::Lost,
            };
            tasks.push((handle.clone(), standing));
        }
        Ok(Tasks(tasks))
    }

    /// Whether this process sent for it less than a first wait ago.
    fn is_young(&self, upid: &Upid) -> bool {
        let hints = self.provider.hints();
        let begun = hints.begun_ago(upid.as_str());
        begun.is_some_and(|ago| ago < wait_before(0))
    }

    async fn poll_one(&self, upid: &Upid) -> Result<Standing> {
        let known = self.provider.hints().end_of(upid.as_str());
        if let Some(end) = known {
            return Ok(Standing::Ended(end));
        }
        match self.reads().task_status(upid).await {
            Ok(TaskState::Running) => {
                self.provider.hints().polled(upid.as_str());
                Ok(Standing::Running)
            }
            Ok(TaskState::Ended(end)) => {
                self.provider.hints().ended(upid.as_str(), &end);
                Ok(Standing::Ended(end))
            }
            Err(failure) if matches!(failure.kind, Kind::NoSuchTask | Kind::Forbidden { .. }) => {
                Ok(Standing::Lost)
            }
            Err(failure) => Err(self.failed(failure)),
        }
    }

    /// Tells each failed task once in this process's life. Ends that only say that someone else
    /// was faster are no failures: a look decides.
    pub(super) fn tell_failures(&self, tasks: &Tasks, vmid: Vmid) -> Result<()> {
        let mut first = None;
        for (handle, standing) in &tasks.0 {
            let Standing::Ended(end) = standing else {
                continue;
            };
            let Ok(upid) = handle.id.parse::<Upid>() else {
                continue;
            };
            let mut hints = self.provider.hints();
            if handle.step == CLONE {
                hints.clone_ended(vmid);
            }
            if !hints.is_news(upid.as_str()) {
                continue;
            }
            if let TaskEnd::Warnings(count) = end {
                tracing::warn!(task = %upid, step = handle.step, count, "a task ended with warnings: its log tells");
            }
            let Some(failure) = end.failure(&upid) else {
                continue;
            };
            match (handle.step.as_str(), &failure.kind) {
                (CLONE, Kind::VmidTaken)
                | (START, Kind::AlreadyRunning)
                | (STOP | DESTROY, Kind::NotExistOnNode) => {
                    tracing::debug!(task = %upid, said = failure.said, "a task was not needed");
                    continue;
                }
                (CLONE, Kind::LockTimeout)
                    if failure.said.contains(&format!("lock-{vmid}.conf")) =>
                {
                    tracing::debug!(task = %upid, "someone else clones to this VMID");
                    continue;
                }
                (CLONE, _) => hints.clone_failed(),
                (START, Kind::VolumeMissing) if failure.said.contains(".iso") => {
                    hints.seed_was_missing(vmid);
                }
                (START, Kind::VolumeMissing) => hints.broke(vmid),
                _ => {}
            }
            drop(hints);
            first.get_or_insert_with(|| self.task_failed(&handle.step, failure));
        }
        first.map_or(Ok(()), Err)
    }

    fn task_failed(&self, step: &str, failure: Failure) -> egress_provider::Error {
        let mut said = format!("the {step} task ended with: {}", failure.said);
        if let Some(remedy) = remedy(&failure) {
            said = format!("{said}: {remedy}");
        }
        self.error(failure.class, said)
    }

    /// The answer while a task or something else is waited for: come back when it is to be
    /// asked for.
    pub(super) fn in_progress(&self, step: &str, handles: Vec<Handle>) -> Progress {
        let hints = self.provider.hints();
        let next = |handle: &Handle| {
            let (polls, ago) = hints.polls_of(&handle.id);
            wait_before(polls).saturating_sub(ago)
        };
        let running = handles.iter().filter(|h| hints.end_of(&h.id).is_none());
        let recheck = running.map(next).min();
        let recheck = recheck.unwrap_or_else(|| wait_before(2));
        Progress::InProgress {
            step: waits::told(step).to_owned(),
            handles,
            recheck: self.provider.pace.wait(recheck),
        }
    }

    /// A clone to this VMID that runs now, whoever began it: by its log from qemu-server 9.1.6
    /// on; before that any clone of a template of ours counts.
    pub(super) async fn find_clone(
        &self,
        vmid: Vmid,
        snapshot: &Snapshot,
    ) -> Result<Option<Handle>> {
        for (node, template) in self.provider.template_places(snapshot) {
            if !snapshot.node_is_online(&node) {
                let said = format!("node {node}, where the template is, is offline");
                return Err(self.error(ErrorClass::Transient, said));
            }
            let filter = TaskFilter::active().kind("qmclone").vmid(template);
            let tasks = self
                .reads()
                .tasks(&node, filter)
                .await
                .map_err(|failure| self.failed(failure))?;
            for task in tasks {
                if task.state != TaskState::Running {
                    continue;
                }
                let known = self.provider.hints().clone_target(&task.upid);
                if known.is_some_and(|target| target != vmid) {
                    continue;
                }
                let log = self.reads().task_log(&task.upid, LOG_LINES).await;
                let target = match log {
                    Ok(log) => log.clone_target(),
                    Err(failure)
                        if matches!(failure.kind, Kind::Forbidden { .. } | Kind::NoSuchTask) =>
                    {
                        continue;
                    }
                    Err(failure) => return Err(self.failed(failure)),
                };
                // A clone that does not yet name its machine may be anybody's, but not of one that
                // waits for its turn: whatever an earlier process sent, the next request decides.
                let waits = self.provider.hints().waits_for_turn(vmid);
                let fits = target.or(known).map_or(!waits, |target| target == vmid);
                if fits && self.poll_one(&task.upid).await? == Standing::Running {
                    return Ok(Some(handle(CLONE, &task.upid)));
                }
            }
        }
        Ok(None)
    }

    /// A task that works on the machine now, as its node lists it and the task confirms.
    pub(super) async fn active_task(&self, node: &NodeName, vmid: Vmid) -> Result<Option<Handle>> {
        let filter = TaskFilter::active().vmid(vmid);
        let tasks = self
            .reads()
            .tasks(node, filter)
            .await
            .map_err(|failure| self.failed(failure))?;
        for task in tasks {
            let step = match task.upid.kind() {
                "qmdestroy" => DESTROY,
                "qmstart" => START,
                "qmstop" | "qmshutdown" => STOP,
                "resize" => RESIZE,
                _ => continue,
            };
            if task.state == TaskState::Running
                && self.poll_one(&task.upid).await? == Standing::Running
            {
                return Ok(Some(handle(step, &task.upid)));
            }
        }
        Ok(None)
    }
}

impl Proxmox {
    /// Where the templates are: as configured, else where the list shows them.
    pub(super) fn template_places(&self, snapshot: &Snapshot) -> Vec<(NodeName, Vmid)> {
        if let Some(template) = self.config.template.and_then(Vmid::new) {
            return snapshot
                .guests
                .get(&template)
                .map(|guest| (guest.node.clone(), template))
                .into_iter()
                .collect();
        }
        let places = self.config.templates.iter();
        places
            .filter_map(|t| Some((t.node.parse().ok()?, Vmid::new(t.vmid)?)))
            .collect()
    }
}

/// Whether an attempt may have been sent without that its tasks are known.
pub(super) fn is_unknown(claim: &Claim) -> bool {
    claim.unsettled
        || (claim.handles.is_empty() && claim.standing == egress_core::Standing::Accepted)
}
