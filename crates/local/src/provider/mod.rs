//! The contract, one file an operation.

mod check;
mod claim;
mod create;
mod delete;
mod end;
mod get;
mod list;
mod look;
mod start;
mod survey;

use crate::{
    config::Config,
    directory::{Directories, Stopping},
    host,
    place::Place,
    process::ProcessId,
};
use async_trait::async_trait;
use egress_core::{
    Claim, ClusterId, ErrorClass, Host, Identity, MachineKey, ProviderName, Slot,
    machine::{ObservedMachine, WantedMachine},
};
use egress_provider::{
    AddressSource, Capabilities, CreateKind, Error, LateCreate, Listing, Operation, Permit,
    Placement, Progress, Provider, RecordedSlot, Report, Result, UserData,
};
use look::LastLook;
use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long a process may take from its start to its ready line.
const READY_DEADLINE: Duration = Duration::from_secs(10);
/// How long a call waits for a process to end before it answers that this goes on.
const END_PATIENCE: Duration = Duration::from_millis(250);
/// After the drain, before SIGKILL.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// How soon to come back to a process that is starting or draining.
const RECHECK: Duration = Duration::from_millis(250);
/// How long a process that runs may take to listen.
const BOOT_TIMEOUT: Duration = Duration::from_secs(30);
/// Less than this is no room for another machine: its files and its log.
const RESERVE_BYTES: u64 = 8 * 1024 * 1024;

/// The program that runs now, whatever lies at its path by now: what is given to
/// [`Local::new`] where an engine starts proxies with its own code (proc_pid_exe(5)).
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// The provider that runs each proxy as a process of this host.
#[derive(Debug)]
pub struct Local {
    name: ProviderName,
    identity: Identity,
    config: Config,
    directories: Directories,
    program: PathBuf,
    cluster: ClusterId,
    host: Host,
    boot_id: String,
    /// Where a machine's process was last seen. Only a hint: it is looked at again each time.
    seen_at: Mutex<HashMap<Slot, ProcessId>>,
    /// Processes that were asked to end, and when, since boot.
    stopping: Mutex<HashMap<ProcessId, Duration>>,
    /// Sockets proposed a moment ago, that no record may name yet.
    offered: Mutex<HashMap<SocketAddr, claim::Offer>>,
    last_look: LastLook,
}

impl Local {
    /// A provider that keeps its machines below `state_dir` and starts them as
    /// `<program> proxyd …`: the program must run the proxy when its first argument is
    /// `proxyd`, and take `--config FILE --detach --mark TEXT` after that. [`OWN_PROGRAM`] is
    /// shown by the name that this process was started by.
    pub fn new(
        name: ProviderName,
        identity: Identity,
        config: Config,
        state_dir: PathBuf,
        program: PathBuf,
    ) -> Self {
        let absolute = std::path::absolute(&state_dir).unwrap_or(state_dir);
        let root = absolute.join("machines").join(name.as_str());
        Self {
            name,
            identity,
            config,
            directories: Directories::new(root),
            program,
            cluster: host::cluster_id(),
            host: host::name(),
            boot_id: host::boot_id(),
            seen_at: Mutex::default(),
            stopping: Mutex::default(),
            offered: Mutex::default(),
            last_look: LastLook::default(),
        }
    }

    /// The place that a claim names, on this host.
    fn place(&self, operation: Operation, claim: &Claim) -> Result<Place> {
        let error = |class, said: String| Error::new(class, operation, claim.slot.as_str(), said);
        if claim.cluster != self.cluster {
            let there = match &claim.host {
                Some(host) => format!("{host} ({})", claim.cluster),
                None => claim.cluster.to_string(),
            };
            let said = format!(
                "the machine was promised on host {there}, this is {} ({}), and nothing here can \
                 tell whether it still runs there: delete the Proxy on that host; where that \
                 host is gone for good, set the annotation egress-proxies.io/abandon: \"true\", \
                 remove the manifest, and declare the Proxy again",
                self.host, self.cluster
            );
            return Err(error(ErrorClass::NeedsOperator, said));
        }
        Place::parse(&claim.slot).ok_or_else(|| {
            error(
                ErrorClass::Permanent,
                "not a slot of this provider".to_owned(),
            )
        })
    }

    /// How long ago a process was asked to end, if it was.
    fn asked_to_end(&self, id: ProcessId, recorded: Option<&Stopping>) -> Option<Duration> {
        let recorded = recorded.filter(|s| s.process == id && s.boot_id == self.boot_id);
        let asked = recorded
            .map(|s| s.asked_after_boot)
            .or_else(|| held(&self.stopping).get(&id).copied())?;
        Some(host::since_boot().saturating_sub(asked))
    }

    /// How long a process that was asked to end may take.
    fn drain_limit(&self) -> Duration {
        Duration::from_secs(self.config.drain_seconds.into()) + KILL_GRACE
    }
}

/// No code panics while it holds one of these locks, so what they guard is whole.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the operating system refused, by what a caller may do about it. One table.
fn class_of(error: &io::Error) -> ErrorClass {
    use io::ErrorKind as K;
    match error.kind() {
        K::StorageFull | K::QuotaExceeded | K::OutOfMemory => ErrorClass::Capacity,
        K::PermissionDenied | K::ReadOnlyFilesystem | K::NotADirectory | K::DirectoryNotEmpty => {
            ErrorClass::NeedsOperator
        }
        _ => ErrorClass::Transient,
    }
}

/// An error of the operating system during `step` of an operation.
fn refused(operation: Operation, target: &str, step: &str, error: io::Error) -> Error {
    Error::new(class_of(&error), operation, target, step).caused_by(error)
}

#[async_trait]
impl Provider for Local {
    fn name(&self) -> &ProviderName {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "local"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            create: CreateKind::Synchronous,
            late_create: LateCreate::Never,
            address: AddressSource::Immediate,
            user_data: UserData::ProcessArguments,
            placement: Placement::SingleHost,
            loopback: true,
            boot_timeout: BOOT_TIMEOUT,
        }
    }

    async fn check(&self) -> Result<Report> {
        Ok(self.report())
    }

    async fn claim(
        &self,
        key: &MachineKey,
        wanted: &WantedMachine,
        attempt: u32,
        taken: &[Slot],
    ) -> Result<Claim> {
        self.claim_place(key, wanted, attempt, taken).await
    }

    async fn survey(&self, key: &MachineKey, claim: &Claim, wanted: &WantedMachine) -> Result<()> {
        self.survey_next(key, claim, wanted)
    }

    async fn create(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
        permit: &Permit,
    ) -> Result<Progress> {
        self.create_machine(key, claim, wanted, permit).await
    }

    async fn get(&self, key: &MachineKey, claim: &Claim) -> Result<ObservedMachine> {
        self.get_machine(key, claim).await
    }

    async fn seal(&self, _: &MachineKey, _: &Claim, _: &Permit) -> Result<Progress> {
        // There is no seed: the configuration holds verifiers only and is read at each start.
        Ok(Progress::Done)
    }

    async fn delete(&self, key: &MachineKey, claim: &Claim, permit: &Permit) -> Result<Progress> {
        self.delete_machine(key, claim, permit).await
    }

    async fn list(&self, _recorded: &[RecordedSlot]) -> Result<Listing> {
        // Every slot is a directory below one root, or in a process's arguments: no record is
        // needed to find one.
        self.list_machines().await
    }
}
