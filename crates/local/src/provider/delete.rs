//! `delete`: ends the process through a pidfd, then takes the directory away.

use super::{Local, RECHECK, end::Ending, held, refused};
use crate::directory::MachineDirectory;
use egress_core::{Claim, ErrorClass, MachineKey, Mark, Slot, machine::Whose};
use egress_provider::{Error, Operation, Permit, Progress, Proof, Result};
use std::time::Duration;
use tokio::time::Instant;

const OPERATION: Operation = Operation::Delete;

impl Local {
    pub(super) async fn delete_machine(
        &self,
        key: &MachineKey,
        claim: &Claim,
        permit: &Permit,
    ) -> Result<Progress> {
        self.place(OPERATION, claim)?;
        let target = claim.slot.as_str();
        let error = |class, said: String| Error::new(class, OPERATION, target, said);
        let failed = |step: &'static str| move |error| refused(OPERATION, target, step, error);

        let look = self.everything(OPERATION, target, Duration::ZERO).await?;
        let seen = self.of_key(key, Some(&claim.slot), &look);
        if let Some(slot) = &seen.not_owned {
            let said = format!("the machine at {slot} bears this key and is not ours");
            return Err(error(ErrorClass::NotOwned, said));
        }
        // Everything that stands in the way is looked at before anything is stopped.
        let mut directories = Vec::new();
        for mark in &seen.directories {
            let Some(directory) = self
                .directories
                .open(&mark.slot)
                .map_err(failed("cannot open its directory"))?
            else {
                continue;
            };
            // What lies there by now may be someone else's.
            if self.own_mark_of(key, &claim.slot, &directory)?.is_none() {
                continue;
            }
            let strange = directory
                .strange_files()
                .map_err(failed("cannot read its directory"))?;
            if !strange.is_empty() {
                let said = format!(
                    "{} holds what is not ours: move it away: {}",
                    self.directories.root().join(mark.slot.as_str()).display(),
                    strange.join(", ")
                );
                return Err(error(ErrorClass::NeedsOperator, said));
            }
            directories.push(directory);
        }
        self.undecided(&claim.slot, seen.at_slot.as_ref())?;

        let mut draining = false;
        for found in &seen.processes {
            let at = directories.iter().find(|d| d.slot == found.process.slot);
            draining |= self.end(OPERATION, found, at, permit).await? == Ending::Draining;
        }
        if draining {
            return Ok(Progress::InProgress {
                step: "draining".to_owned(),
                handles: Vec::new(),
                recheck: RECHECK,
            });
        }
        for directory in directories {
            self.remove_directory(key, &claim.slot, &directory, permit)?;
        }
        for trace in &seen.traces {
            permit.ask(OPERATION, target)?;
            self.directories
                .clear(trace)
                .map_err(failed("cannot clear what a crash left"))?;
        }
        held(&self.seen_at).remove(&claim.slot);
        self.directories.trim();
        Ok(Progress::Done)
    }

    /// A directory without a mark that someone holds locked may still become anything.
    fn undecided(&self, slot: &Slot, whose: Option<&Whose>) -> Result<()> {
        if !matches!(whose, Some(Whose::Foreign { copied: false })) {
            return Ok(());
        }
        let failed = |error| refused(OPERATION, slot.as_str(), "cannot look at the slot", error);
        let Some(directory) = self.directories.open(slot).map_err(failed)? else {
            return Ok(());
        };
        let nameless = directory.label().map_err(failed)?.text.is_none();
        if nameless && directory.is_locked().map_err(failed)? {
            let said = "its directory has no mark yet, and someone holds its lock";
            return Err(Error::new(ErrorClass::Busy, OPERATION, slot.as_str(), said));
        }
        Ok(())
    }

    fn remove_directory(
        &self,
        key: &MachineKey,
        claimed: &Slot,
        directory: &MachineDirectory,
        permit: &Permit,
    ) -> Result<()> {
        let target = directory.slot.as_str();
        let failed = |step: &'static str| move |error| refused(OPERATION, target, step, error);
        let busy = |said| Error::new(ErrorClass::Busy, OPERATION, target, said);
        // Not even a lock is made in what has become someone else's.
        if self.own_mark_of(key, claimed, directory)?.is_none() {
            return Err(busy("its mark changed: look again"));
        }
        let Some(_lock) = directory
            .lock()
            .map_err(failed("cannot lock its directory"))?
        else {
            return Err(busy("a process that /proc does not show holds its lock"));
        };
        let seen = Instant::now();
        let Some(mark) = self.own_mark_of(key, claimed, directory)? else {
            return Err(busy("its mark changed: look again"));
        };
        permit.ask(OPERATION, target)?;
        Proof::new(&mark, seen).spend(OPERATION, &directory.slot)?;
        self.directories
            .remove(key, directory)
            .map_err(failed("cannot remove its directory"))
    }

    /// The mark that a directory bears now, if it is this key's.
    fn own_mark_of(
        &self,
        key: &MachineKey,
        claimed: &Slot,
        directory: &MachineDirectory,
    ) -> Result<Option<Mark>> {
        let label = directory.label().map_err(|error| {
            refused(
                OPERATION,
                directory.slot.as_str(),
                "cannot read its mark",
                error,
            )
        })?;
        Ok(
            match self.whose(key, Some(claimed), &label.sighting(&self.cluster)) {
                Whose::Ours(mark) => Some(*mark),
                Whose::Foreign { .. } | Whose::NotOwned => None,
            },
        )
    }
}
