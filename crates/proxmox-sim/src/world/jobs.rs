//! What tasks do: one small machine of steps for each kind.

use super::{
    World,
    tasks::{Next, TaskId, Wake},
};
pub(super) use super::{
    clone::CloneMachine,
    config::WriteConfig,
    create::{CreateMachine, MakeTemplate},
    destroy::DestroyMachine,
    disks::{DeleteVolume, ResizeDisk},
    power::{PowerChange, RequestHa, StartMachine, StopMachine},
    upload::ImportFile,
};

/// The work of a task.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Clone(Box<CloneMachine>),
    Config(Box<WriteConfig>),
    Create(Box<CreateMachine>),
    DeleteVolume(DeleteVolume),
    Destroy(DestroyMachine),
    Ha(RequestHa),
    Import(ImportFile),
    Power(PowerChange),
    Resize(ResizeDisk),
    Start(StartMachine),
    Stop(StopMachine),
    Template(MakeTemplate),
}

impl World {
    /// Takes the next step of a job.
    pub(super) fn advance_job(&mut self, id: TaskId, job: &mut Job, wake: Wake) -> Next {
        match job {
            Job::Clone(job) => job.step(self, id, wake),
            Job::Config(job) => job.step(self, id, wake),
            Job::Create(job) => job.step(self, id, wake),
            Job::DeleteVolume(job) => job.step(self, id, wake),
            Job::Destroy(job) => job.step(self, id, wake),
            Job::Ha(job) => job.step(self, id, wake),
            Job::Import(job) => job.step(self, id, wake),
            Job::Power(job) => job.step(self, id, wake),
            Job::Resize(job) => job.step(self, id, wake),
            Job::Start(job) => job.step(self, id, wake),
            Job::Stop(job) => job.step(self, id, wake),
            Job::Template(job) => job.step(self, id, wake),
        }
    }
}

/// What every job says to a wake that is none of its own business: a time-out becomes its
/// error, an interruption the usual text.
pub(super) fn ended_by(wake: &Wake) -> Option<Next> {
    match wake {
        Wake::Go => None,
        Wake::TimedOut(text) => Some(Next::Failed(text.clone())),
        Wake::Interrupted => Some(Next::Failed("received interrupt".to_owned())),
    }
}
