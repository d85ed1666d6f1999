//! Looking: at one slot with a hint in a few system calls, or at everything.

use super::{Local, held, refused};
use crate::{
    directory::{Label, MachineDirectory, Trace},
    process::{MarkedProcess, scan},
};
use egress_core::{
    ErrorClass, MachineKey, Mark, Slot,
    machine::{Sighting, Whose, whose},
};
use egress_provider::{Error, Operation, Result};
use std::{io, sync::Arc, time::Duration};
use tokio::{sync::Mutex, time::Instant};

/// One complete look at this host.
#[derive(Debug)]
pub(super) struct Everything {
    /// When it began.
    pub(super) at: Instant,
    pub(super) processes: Vec<MarkedProcess>,
    pub(super) directories: Vec<Label>,
    pub(super) traces: Vec<Trace>,
}

/// The last complete look. Callers that wait at the same time share the next one: each gets
/// one that began after its call did, and a hundred calls cost two looks.
pub(super) type LastLook = Mutex<Option<Arc<Everything>>>;

/// A living process with a valid mark of ours.
#[derive(Clone, Debug)]
pub(super) struct OurProcess {
    pub(super) process: MarkedProcess,
    pub(super) mark: Mark,
}

/// What a complete look shows of one key.
#[derive(Debug, Default)]
pub(super) struct OfKey {
    pub(super) processes: Vec<OurProcess>,
    /// Directories that bear the key's valid mark.
    pub(super) directories: Vec<Mark>,
    /// Whose the directory at the recorded slot is.
    pub(super) at_slot: Option<Whose>,
    /// A foreign process has the recorded slot in its arguments.
    pub(super) stranger_at_slot: bool,
    /// Something that bears the key's UID without being ours, by its slot.
    pub(super) not_owned: Option<Slot>,
    /// Names of directories in the making or in removal.
    pub(super) traces: Vec<String>,
}

impl OfKey {
    /// A slot other than this one where something of ours is.
    pub(super) fn elsewhere(&self, slot: Option<&Slot>) -> Option<&Slot> {
        let processes = self.processes.iter().map(|p| &p.mark.slot);
        processes
            .chain(self.directories.iter().map(|m| &m.slot))
            .find(|s| Some(*s) != slot)
    }
}

impl Local {
    pub(super) fn whose(
        &self,
        key: &MachineKey,
        recorded: Option<&Slot>,
        seen: &Sighting<'_>,
    ) -> Whose {
        // A text without the key's UID holds no mark of this key. Of many machines all but one
        // are told apart so, without reading their marks.
        let names_it = seen
            .text
            .is_some_and(|text| text.contains(key.uid().as_str()));
        if !names_it && seen.name.is_none() && recorded != Some(seen.slot) {
            return Whose::Foreign { copied: false };
        }
        whose(key, &self.identity, &self.name, recorded, seen)
    }

    /// A complete look that began at most `age` before this call.
    pub(super) async fn everything(
        &self,
        operation: Operation,
        target: &str,
        age: Duration,
    ) -> Result<Arc<Everything>> {
        let called = Instant::now();
        let mut last = self.last_look.lock().await;
        if let Some(look) = last.as_ref().filter(|look| look.at + age >= called) {
            return Ok(look.clone());
        }
        let at = Instant::now();
        let directories = self.directories.clone();
        // Hundreds of small reads: off the runtime's threads.
        let look = tokio::task::spawn_blocking(move || {
            let labels: io::Result<Vec<Label>> = directories
                .all()?
                .iter()
                .map(MachineDirectory::label)
                .collect();
            let (directories, traces) = (labels?, directories.traces()?);
            Ok(Everything {
                at,
                processes: scan()?,
                directories,
                traces,
            })
        })
        .await
        .map_err(|error| {
            Error::new(
                ErrorClass::Internal,
                operation,
                target,
                "the look was cut off",
            )
            .caused_by(error)
        })?
        .map_err(|error| refused(operation, target, "cannot see all machines", error))?;
        Ok(last.insert(Arc::new(look)).clone())
    }

    /// What a look shows of one key, with `slot` as its recorded one.
    pub(super) fn of_key(&self, key: &MachineKey, slot: Option<&Slot>, look: &Everything) -> OfKey {
        let mut seen = OfKey::default();
        for process in &look.processes {
            match self.whose(key, slot, &process.sighting(&self.cluster)) {
                Whose::Ours(mark) => {
                    seen.processes.push(OurProcess {
                        process: process.clone(),
                        mark: *mark,
                    });
                }
                Whose::NotOwned => seen.not_owned = Some(process.slot.clone()),
                Whose::Foreign { .. } => seen.stranger_at_slot |= slot == Some(&process.slot),
            }
        }
        for label in &look.directories {
            let whose = self.whose(key, slot, &label.sighting(&self.cluster));
            match &whose {
                Whose::Ours(mark) => seen.directories.push((**mark).clone()),
                Whose::NotOwned => seen.not_owned = Some(label.slot.clone()),
                Whose::Foreign { .. } => {}
            }
            if slot == Some(&label.slot) {
                seen.at_slot = Some(whose);
            }
        }
        // The oldest process first: it is the one that holds the port.
        seen.processes
            .sort_by_key(|p| (p.process.id.start_time, p.process.id.pid));
        let traces = look
            .traces
            .iter()
            .filter(|trace| trace.machine == key.name());
        seen.traces = traces.map(|trace| trace.name.clone()).collect();
        seen
    }

    /// The process of this key at a slot, where it was last seen or recorded. `None` says
    /// nothing: it may be elsewhere.
    pub(super) fn hinted(
        &self,
        key: &MachineKey,
        slot: &Slot,
        directory: Option<&MachineDirectory>,
    ) -> io::Result<Option<OurProcess>> {
        let remembered = held(&self.seen_at).get(slot).copied();
        if let Some(found) = self.at_hint(key, slot, remembered.map(|id| id.pid))? {
            return Ok(Some(found));
        }
        let started = match directory {
            Some(directory) => directory.started()?.filter(|s| s.boot_id == self.boot_id),
            None => None,
        };
        self.at_hint(key, slot, started.map(|started| started.process.pid))
    }

    fn at_hint(
        &self,
        key: &MachineKey,
        slot: &Slot,
        pid: Option<i32>,
    ) -> io::Result<Option<OurProcess>> {
        let Some(pid) = pid else { return Ok(None) };
        // Whatever has the pid now is judged by what it bears itself, not by the hint.
        let Some(process) = MarkedProcess::of(pid)?.filter(|process| process.slot == *slot) else {
            return Ok(None);
        };
        Ok(
            match self.whose(key, Some(slot), &process.sighting(&self.cluster)) {
                Whose::Ours(mark) => Some(OurProcess {
                    process,
                    mark: *mark,
                }),
                Whose::Foreign { .. } | Whose::NotOwned => None,
            },
        )
    }
}
