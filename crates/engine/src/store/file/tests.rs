mod crash;
mod damage;
mod kept;
mod opening;

use super::*;
use crate::Credential;
use crate::store::StoreErrorKind::{Conflict, Corrupt, Lost, OutcomeUnknown, Unavailable};
use disk::Step;
use egress_core::MachineUid;
use rustix::io::Errno;
use secrecy::ExposeSecret;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

/// What happens at a step.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// The system call fails.
    Fail(Errno),
    /// The process ends, as by `kill -9`: nothing after it runs, no clean-up either.
    Die,
}

/// Cuts changes on disk short, for the tests here.
#[derive(Default)]
pub(in crate::store::file) struct Cuts {
    plan: Mutex<Option<(usize, Cut)>>,
    reached: Mutex<Vec<Step>>,
}

impl Cuts {
    pub(in crate::store::file) fn reach(&self, step: Step) -> io::Result<()> {
        let mut reached = held(&self.reached);
        reached.push(step);
        match *held(&self.plan) {
            Some((at, Cut::Fail(error))) if reached.len() > at => Err(error.into()),
            Some((at, Cut::Die)) if reached.len() > at => {
                std::panic::resume_unwind(Box::new("cut off"))
            }
            _ => Ok(()),
        }
    }
    /// Lets so many steps pass, then every later one is cut.
    fn after(&self, steps: usize, cut: Cut) {
        held(&self.reached).clear();
        *held(&self.plan) = Some((steps, cut));
    }
    /// Lets every step pass; answers with those that were reached since the last plan.
    fn none(&self) -> Vec<Step> {
        *held(&self.plan) = None;
        std::mem::take(&mut *held(&self.reached))
    }
}

fn lab() -> Installation {
    "lab".parse().unwrap()
}

fn open(root: &Path) -> FileStore {
    FileStore::open(root, &lab(), "here", OpenMode::default()).unwrap()
}

fn refusal(root: &Path, installation: &Installation, host: &str) -> OpenError {
    FileStore::open(root, installation, host, OpenMode::default()).unwrap_err()
}

fn take_over(root: &Path, host: &str) -> FileStore {
    FileStore::open(root, &lab(), host, OpenMode { take_over: true }).unwrap()
}

fn id(name: &str) -> ProxyId {
    ProxyId::new("shop", name).unwrap()
}

fn record(name: &str, number: u32) -> Record {
    let uid = MachineUid::standalone(&lab(), &id(name), 1);
    Record {
        last_attempt: number,
        ..Record::new(uid, lab(), id(name))
    }
}

fn record_file(root: &Path, name: &str) -> PathBuf {
    root.join("records/shop").join(format!("{name}.json"))
}

/// Every file below a directory, but for the lock and the identity.
fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in disk::entries(&directory).unwrap() {
            if entry.path().is_dir() {
                directories.push(entry.path());
            }
            let path = entry
                .path()
                .strip_prefix(root)
                .unwrap()
                .to_string_lossy()
                .into_owned();
            if !["lock", IDENTITY].contains(&path.as_str()) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Create,
    Replace,
    Remove,
}

impl Change {
    const ALL: [Self; 3] = [Self::Create, Self::Replace, Self::Remove];

    /// A directory in which the record is as it must be before the change.
    async fn prepare(self) -> (TempDir, FileStore, Option<Stored>) {
        let root = TempDir::new().unwrap();
        let store = open(root.path());
        store
            .save(&id("other"), &record("other", 1), None)
            .await
            .unwrap();
        if self != Self::Create {
            store.save(&id("a"), &record("a", 1), None).await.unwrap();
        }
        let before = store.load(&id("a")).await.unwrap();
        (root, store, before)
    }

    async fn execute(self, store: &FileStore, before: Option<&Stored>) -> Result<(), StoreError> {
        let version = before.map(|stored| &stored.version);
        match self {
            Self::Create | Self::Replace => store
                .save(&id("a"), &record("a", 2), version)
                .await
                .map(drop),
            Self::Remove => store.remove(&id("a"), version.unwrap()).await,
        }
    }

    fn after(self) -> Option<Record> {
        (self != Self::Remove).then(|| record("a", 2))
    }
}
