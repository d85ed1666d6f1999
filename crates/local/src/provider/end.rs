//! Ends a process: by `delete`, and by `create` where it has to start again.

use super::{END_PATIENCE, Local, held, look::OurProcess, refused};
use crate::{
    directory::{MachineDirectory, Stopping},
    host,
    process::Run,
};
use egress_provider::{Operation, Permit, Proof, Result};
use rustix::process::Signal;
use std::io;
use tokio::time::Instant;

/// What became of a process that was to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Gone,
    Draining,
}

impl Local {
    /// Asks a process to end, kills one that took too long, and waits a moment.
    pub(super) async fn end(
        &self,
        operation: Operation,
        found: &OurProcess,
        directory: Option<&MachineDirectory>,
        permit: &Permit,
    ) -> Result<Ending> {
        let slot = &found.mark.slot;
        let failed =
            |step: &'static str| move |error| refused(operation, slot.as_str(), step, error);
        let id = found.process.id;
        let recorded = match directory {
            Some(directory) => directory
                .stopping()
                .map_err(failed("cannot read its state"))?,
            None => None,
        };
        let asked = self.asked_to_end(id, recorded.as_ref());
        // SIGTERM once: proxyd takes a second one as the end of its drain.
        let signal = match asked {
            None => Some(Signal::TERM),
            Some(ago) if ago < self.drain_limit() => None,
            Some(_) => Some(Signal::KILL),
        };
        let seen = Instant::now();
        let Some(process) = found
            .process
            .hold()
            .map_err(failed("cannot take hold of its process"))?
        else {
            return Ok(Ending::Gone);
        };
        let proof = Proof::new(&found.mark, seen);
        if let Some(signal) = signal {
            if signal == Signal::TERM {
                permit.ask(operation, slot.as_str())?;
                self.note_stopping(found, directory)
                    .map_err(failed("cannot write its state"))?;
            }
            permit.ask(operation, slot.as_str())?;
            proof.spend(operation, slot)?;
            process
                .signal(signal)
                .map_err(failed("cannot signal its process"))?;
            if signal == Signal::TERM && found.process.run == Run::Paused {
                // A paused process sees the signal only when it goes on.
                process
                    .signal(Signal::CONT)
                    .map_err(failed("cannot signal its process"))?;
            }
        }
        let ended = process.ended_within(END_PATIENCE).await;
        if !ended.map_err(failed("cannot wait for its process"))? {
            return Ok(Ending::Draining);
        }
        held(&self.stopping).remove(&id);
        Ok(Ending::Gone)
    }

    /// Written down before the signal is sent, so that no restart sends it twice.
    fn note_stopping(
        &self,
        found: &OurProcess,
        directory: Option<&MachineDirectory>,
    ) -> io::Result<()> {
        let asked_after_boot = host::since_boot();
        if let Some(directory) = directory {
            directory.record_stopping(&Stopping {
                boot_id: self.boot_id.clone(),
                process: found.process.id,
                asked_after_boot,
            })?;
        }
        held(&self.stopping).insert(found.process.id, asked_after_boot);
        Ok(())
    }
}
