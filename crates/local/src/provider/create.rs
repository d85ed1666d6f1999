//! `create`: a directory by one rename, a process that holds its lock, and its ready line.

use super::{Local, RECHECK, RESERVE_BYTES, end::Ending, held, look::OurProcess, refused};
use crate::{
    directory::MachineDirectory,
    place::{Place, PortSight, holder, look_at_port},
    process::Run,
};
use egress_core::{
    Claim, ErrorClass, MachineKey, Mark, Slot,
    machine::{WantedMachine, Whose},
    proxy_config::{Auth, Limits, ProxydConfig},
};
use egress_provider::{Error, Operation, PROOF_LIFETIME, Permit, Progress, Proof, Result};
use rustix::fs::{Access, access, statvfs};
use std::{
    fs::File,
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tokio::time::Instant;

pub(super) const OPERATION: Operation = Operation::Create;

/// One call, with what it is about.
pub(super) struct Creation<'a> {
    pub(super) key: &'a MachineKey,
    pub(super) claim: &'a Claim,
    pub(super) place: Place,
    pub(super) config: Vec<u8>,
    auth: &'a Auth,
    pub(super) permit: &'a Permit,
}

impl Creation<'_> {
    pub(super) fn slot(&self) -> &Slot {
        &self.claim.slot
    }
    pub(super) fn error(&self, class: ErrorClass, said: impl Into<String>) -> Error {
        Error::new(class, OPERATION, self.slot().as_str(), said)
    }
    pub(super) fn refused(&self, step: &str, error: io::Error) -> Error {
        refused(OPERATION, self.slot().as_str(), step, error)
    }
    /// Free or taken; anything else is an error.
    pub(super) fn look_at_port(&self) -> Result<PortSight> {
        let socket = self.place.socket();
        match look_at_port(socket) {
            Ok(sight @ (PortSight::Free | PortSight::Taken)) => Ok(sight),
            Ok(PortSight::NotHere) => {
                let said = format!("address {} is not on this host", socket.ip());
                Err(self.error(ErrorClass::NeedsOperator, said))
            }
            Ok(PortSight::Forbidden) => {
                Err(self.error(ErrorClass::Permanent, format!("{socket} needs a privilege")))
            }
            Err(error) => Err(self.refused("cannot look at its port", error)),
        }
    }
    fn not_owned(&self) -> Error {
        self.error(
            ErrorClass::NotOwned,
            "the machine has this key's name and not its mark",
        )
    }
}

impl Local {
    pub(super) async fn create_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
        permit: &Permit,
    ) -> Result<Progress> {
        let place = self.place(OPERATION, claim)?;
        let config = self.proxyd_config(key, claim, wanted, place);
        let call = Creation {
            key,
            claim,
            place,
            config,
            auth: &wanted.settings.auth,
            permit,
        };

        let open = || {
            self.directories
                .open(call.slot())
                .map_err(|error| call.refused("cannot open its directory", error))
        };
        let mut directory = open()?;
        let hinted = self
            .hinted(key, call.slot(), directory.as_ref())
            .map_err(|error| call.refused("cannot look at its process", error))?;
        if let Some(found) = hinted {
            return self.already_runs(&call, &found, directory.as_ref()).await;
        }
        if directory.is_none() {
            self.meets_preconditions(OPERATION, call.slot().as_str(), wanted)?;
            if let Some(found) = self.elsewhere_or_here(&call).await? {
                return self.already_runs(&call, &found, None).await;
            }
            let mark = self.mark(key, claim, wanted).to_string();
            self.make_directory(&call, &mark)?;
            directory = open()?;
        }
        let Some(directory) = directory else {
            return Err(call.error(ErrorClass::Busy, "its directory vanished: look again"));
        };
        let mark = self.own_mark(&call, &directory)?;
        let Some(lock) = directory
            .lock()
            .map_err(|e| call.refused("cannot lock it", e))?
        else {
            // Someone starts it, or it runs and no hint says where.
            return self.locked(&call, &directory).await;
        };
        self.meets_preconditions(OPERATION, call.slot().as_str(), wanted)?;
        if call.look_at_port()? == PortSight::Taken {
            self.give_up(&call, &directory, &mark, &lock).await?;
        }
        let mark = Mark {
            attempt: claim.attempt,
            config: wanted.config_hash.clone(),
            proxy: wanted.proxy.clone(),
            ..mark
        };
        self.start(&call, &directory, &mark, lock).await
    }

    /// What makes a start impossible, before anything is changed (C4).
    /// What a new machine needs of this host, its place aside (C4).
    pub(super) fn meets_preconditions(
        &self,
        operation: Operation,
        slot: &str,
        wanted: &WantedMachine,
    ) -> Result<()> {
        let error = |class, said: String| Error::new(class, operation, slot, said);
        if wanted.settings.auth == (Auth::None {}) && wanted.settings.clients.is_empty() {
            let said = "neither credentials nor a list of clients: it would be an open proxy";
            return Err(error(ErrorClass::Permanent, said.to_owned()));
        }
        if let Err(why) = access(&self.program, Access::EXEC_OK) {
            let said = format!("{} cannot be run", self.program.display());
            return Err(error(ErrorClass::NeedsOperator, said).caused_by(why));
        }
        // The nearest directory that is there: ours are made with the first machine.
        let root = self.directories.root();
        let room = root.ancestors().find_map(|path| statvfs(path).ok());
        if room.is_some_and(|room| room.f_bavail * room.f_frsize < RESERVE_BYTES) {
            let said = format!(
                "less than {} MiB free below {}",
                RESERVE_BYTES >> 20,
                root.display()
            );
            return Err(error(ErrorClass::Capacity, said));
        }
        Ok(())
    }

    /// The slot has no directory: is the machine here without one, or elsewhere?
    async fn elsewhere_or_here(&self, call: &Creation<'_>) -> Result<Option<OurProcess>> {
        let free = call.look_at_port()? == PortSight::Free;
        // A look of a moment ago, as the claim's, will do where the port is free: that and
        // the rename decide. What it finds is looked at again before it counts.
        for age in [PROOF_LIFETIME, Duration::ZERO] {
            if !free && !age.is_zero() {
                continue;
            }
            let look = self
                .everything(OPERATION, call.slot().as_str(), age)
                .await?;
            let mut seen = self.of_key(call.key, Some(call.slot()), &look);
            let here = seen
                .processes
                .iter()
                .position(|p| p.process.slot == *call.slot());
            let nothing = seen.elsewhere(None).is_none() && seen.not_owned.is_none();
            if free && nothing {
                return Ok(None);
            }
            if !age.is_zero() {
                continue;
            }
            if let Some(here) = here {
                return Ok(Some(seen.processes.swap_remove(here)));
            }
            if let Some(other) = seen.elsewhere(Some(call.slot())) {
                let said = format!("the machine at {other} already bears this key's mark");
                return Err(call.error(ErrorClass::NeedsOperator, said));
            }
            if let Some(other) = seen.not_owned {
                let said = format!("the machine at {other} bears this key and is not ours");
                return Err(call.error(ErrorClass::NotOwned, said));
            }
        }
        if free {
            return Ok(None);
        }
        Err(self.port_taken(call).await)
    }

    async fn port_taken(&self, call: &Creation<'_>) -> Error {
        let socket = call.place.socket();
        let holder = tokio::task::spawn_blocking(move || holder(socket)).await;
        let holder = holder.unwrap_or_else(|_| "someone".to_owned());
        call.error(
            ErrorClass::Conflict,
            format!("port {socket} is held by {holder}"),
        )
    }

    fn make_directory(&self, call: &Creation<'_>, mark: &str) -> Result<()> {
        let target = call.slot().as_str();
        call.permit.ask(OPERATION, target)?;
        let staged = self
            .directories
            .stage(call.key, mark, &call.config)
            .map_err(|error| call.refused("cannot write its directory", error))?;
        call.permit.ask_creating(OPERATION, target)?;
        // When someone was faster, whose it is decides what follows.
        staged
            .commit(call.slot())
            .map(|_| ())
            .map_err(|error| call.refused("cannot put its directory in place", error))
    }

    /// The mark of the directory at the slot, if that is ours.
    fn own_mark(&self, call: &Creation<'_>, directory: &MachineDirectory) -> Result<Mark> {
        let label = directory
            .label()
            .map_err(|e| call.refused("cannot read its mark", e))?;
        match self.whose(call.key, Some(call.slot()), &label.sighting(&self.cluster)) {
            Whose::Ours(mark) => Ok(*mark),
            Whose::NotOwned => Err(call.not_owned()),
            Whose::Foreign { .. } => {
                let locked = label.text.is_none()
                    && directory
                        .is_locked()
                        .map_err(|e| call.refused("cannot look at its lock", e))?;
                if locked {
                    let said = "its directory has no mark yet, and someone holds its lock";
                    return Err(call.error(ErrorClass::Busy, said));
                }
                Err(call.error(
                    ErrorClass::Conflict,
                    "the directory belongs to someone else",
                ))
            }
        }
    }

    async fn already_runs(
        &self,
        call: &Creation<'_>,
        found: &OurProcess,
        directory: Option<&MachineDirectory>,
    ) -> Result<Progress> {
        let failed = |error| call.refused("cannot look at its process", error);
        let id = found.process.id;
        let (stopping, auth) = match directory {
            Some(directory) => (
                directory.stopping().map_err(failed)?,
                directory.auth().map_err(failed)?,
            ),
            None => (None, None),
        };
        // It read its credentials when it was started: for others it is started again.
        let outdated = auth.is_some_and(|auth| auth != *call.auth);
        if outdated || self.asked_to_end(id, stopping.as_ref()).is_some() {
            let ending = self.end(OPERATION, found, directory, call.permit).await?;
            return Ok(in_progress(match ending {
                Ending::Draining => "draining",
                Ending::Gone => "starting again",
            }));
        }
        if found.process.run == Run::Paused {
            let said = format!("process {} is paused: kill -CONT {0} lets it go on", id.pid);
            return Err(call.error(ErrorClass::NeedsOperator, said));
        }
        if !self.listens(call.place, found, directory).map_err(failed)? {
            return Ok(in_progress("starting"));
        }
        held(&self.seen_at).insert(call.slot().clone(), id);
        Ok(Progress::Done)
    }

    /// The lock is held: by the machine's own process, or by someone who starts it.
    async fn locked(&self, call: &Creation<'_>, directory: &MachineDirectory) -> Result<Progress> {
        let look = self
            .everything(OPERATION, call.slot().as_str(), Duration::ZERO)
            .await?;
        let seen = self.of_key(call.key, Some(call.slot()), &look);
        match seen
            .processes
            .iter()
            .find(|p| p.process.slot == *call.slot())
        {
            Some(found) => self.already_runs(call, found, Some(directory)).await,
            None => Ok(in_progress("starting")),
        }
    }

    /// The port of our own, lifeless directory is taken. When it still is after its holder
    /// was looked for, the machine can never run here: the directory goes before the slot is
    /// called someone else's. (A process of ours that is just dying lets go of lock and port
    /// one after the other.)
    pub(super) async fn give_up(
        &self,
        call: &Creation<'_>,
        directory: &MachineDirectory,
        mark: &Mark,
        _lock: &File,
    ) -> Result<()> {
        let conflict = self.port_taken(call).await;
        let seen = Instant::now();
        self.own_mark(call, directory)?;
        if call.look_at_port()? == PortSight::Free {
            return Ok(());
        }
        call.permit.ask(OPERATION, call.slot().as_str())?;
        Proof::new(mark, seen).spend(OPERATION, call.slot())?;
        self.directories
            .remove(call.key, directory)
            .map_err(|error| call.refused("cannot remove its directory", error))?;
        Err(conflict)
    }

    fn proxyd_config(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
        place: Place,
    ) -> Vec<u8> {
        let config = ProxydConfig {
            key: key.name().to_owned(),
            attempt: claim.attempt,
            listen: place.socket(),
            management: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            egress: Some(place.egress),
            clients: wanted.settings.clients.clone(),
            auth: wanted.settings.auth.clone(),
            limits: Limits {
                drain_seconds: self.config.drain_seconds,
                ..Limits::default()
            },
        };
        serde_json::to_vec_pretty(&config).expect("a configuration is plain data")
    }
}

pub(super) fn in_progress(step: &str) -> Progress {
    Progress::InProgress {
        step: step.to_owned(),
        handles: Vec::new(),
        recheck: RECHECK,
    }
}
