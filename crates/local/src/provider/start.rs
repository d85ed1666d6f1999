//! The second half of `create`: a process that holds its directory's lock, and its ready line.

use super::{
    Local, OWN_PROGRAM, READY_DEADLINE,
    create::{Creation, OPERATION, in_progress},
    held,
};
use crate::{
    directory::{MachineDirectory, Started},
    place::PortSight,
    process::{ProcessId, arguments},
};
use egress_core::{ErrorClass, Mark, Slot, proxy_config::ReadyLine};
use egress_provider::{Error, Progress, Result};
use std::{
    fs::File,
    io,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// How a start went.
enum Start {
    Ready(ReadyLine),
    /// It ended before it was ready.
    Ended(Option<ExitStatus>),
    /// It lives and has said nothing.
    Silent,
}

impl Local {
    /// Starts the process and waits for its ready line. Dropped before that, the line finds
    /// no reader and the process ends; a later call starts it again.
    pub(super) async fn start(
        &self,
        call: &Creation<'_>,
        directory: &MachineDirectory,
        mark: &Mark,
        lock: File,
    ) -> Result<Progress> {
        let target = call.slot().as_str();
        let line = mark.to_string();
        call.permit.ask(OPERATION, target)?;
        directory
            .renew(&line, &call.config)
            .map_err(|error| call.refused("cannot write its configuration", error))?;
        let log = directory
            .log()
            .map_err(|e| call.refused("cannot open its log", e))?;
        call.permit.ask(OPERATION, target)?;
        let mut child = self
            .spawn(call.slot(), &line, lock, log)
            .map_err(|error| call.refused("cannot start its process", error))?;
        let id = child.id().and_then(|pid| i32::try_from(pid).ok());
        // Nothing is synced to the disk: after a power cut no process is left, and a directory
        // that lost its mark is no machine; `check` names it.

        match ready(&mut child)
            .await
            .map_err(|e| call.refused("cannot read its ready line", e))?
        {
            Start::Silent => Ok(in_progress("starting")),
            Start::Ended(status) => Err(self.ended(call, directory, mark, status).await?),
            Start::Ready(ready) => {
                let process = id.map(ProcessId::of).transpose();
                let process = process.map_err(|e| call.refused("cannot look at its process", e))?;
                let Some((process, _)) = process.flatten() else {
                    return Err(call.error(ErrorClass::Transient, "it ended after it was ready"));
                };
                held(&self.seen_at).insert(call.slot().clone(), process);
                let started = Started {
                    boot_id: self.boot_id.clone(),
                    process,
                    listen: ready.listen,
                    management: ready.management,
                    mark: line,
                };
                // A hint that is missing costs a scan.
                if call.permit.ask(OPERATION, target).is_ok()
                    && let Err(error) = directory.record_started(&started)
                {
                    tracing::warn!(slot = target, %error, "where its process is was not written down");
                }
                Ok(Progress::Done)
            }
        }
    }

    fn spawn(&self, slot: &Slot, mark: &str, lock: File, log: File) -> io::Result<Child> {
        // `--detach` gives it a session of its own. It inherits nothing that could be secret.
        let logging = std::env::var_os("PROXYD_LOG").map(|level| ("PROXYD_LOG", level));
        let own = || std::env::args_os().next();
        let shown = own().filter(|_| self.program == Path::new(OWN_PROGRAM));
        Command::new(&self.program)
            .arg0(shown.as_deref().unwrap_or(self.program.as_os_str()))
            .args(arguments(&self.directories.config_path(slot), mark))
            .env_clear()
            .envs(logging)
            .stdin(Stdio::from(lock))
            .stdout(Stdio::piped())
            .stderr(Stdio::from(log))
            .spawn()
    }

    /// Why a process ended before it was ready.
    async fn ended(
        &self,
        call: &Creation<'_>,
        directory: &MachineDirectory,
        mark: &Mark,
        status: Option<ExitStatus>,
    ) -> Result<Error> {
        let words = directory.last_words();
        if call.look_at_port()? == PortSight::Taken {
            let Some(lock) = directory
                .lock()
                .map_err(|e| call.refused("cannot lock it", e))?
            else {
                return Ok(call.error(ErrorClass::Busy, "another process of ours was faster"));
            };
            self.give_up(call, directory, mark, &lock).await?;
        }
        let (class, status) = match status {
            // Bad input: the same start can never succeed.
            Some(status) if status.code() == Some(2) => (ErrorClass::Permanent, status.to_string()),
            Some(status) => (ErrorClass::Transient, status.to_string()),
            None => (ErrorClass::Transient, "standard output closed".to_owned()),
        };
        Ok(call.error(
            class,
            format!("proxyd ended before it was ready ({status}): {words}"),
        ))
    }
}

/// Waits for the ready line, the end, or the deadline.
async fn ready(child: &mut Child) -> io::Result<Start> {
    let Some(stdout) = child.stdout.take() else {
        return Ok(Start::Silent);
    };
    let mut lines = BufReader::new(stdout).lines();
    match timeout(READY_DEADLINE, lines.next_line()).await {
        Err(_) => Ok(Start::Silent),
        Ok(line) => match line?.map(|line| serde_json::from_str(&line)) {
            Some(Ok(ready)) => Ok(Start::Ready(ready)),
            Some(Err(error)) => Err(error.into()),
            None => match timeout(Duration::from_secs(1), child.wait()).await {
                Ok(status) => Ok(Start::Ended(Some(status?))),
                Err(_) => Ok(Start::Ended(None)),
            },
        },
    }
}
