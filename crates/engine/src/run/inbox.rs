//! What the engine was asked for and has not taken yet. A later wish for a Proxy takes the
//! place of an earlier one, so it holds no more than there are Proxies.

use egress_core::{ProxyId, proxy::Desired};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::mpsc;

/// All that was asked for since the engine last took it.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// These are gone from where wishes come from; before what is wanted anew.
    pub(super) forgotten: BTreeSet<ProxyId>,
    pub(super) wanted: BTreeMap<ProxyId, Desired>,
    pub(super) wake: BTreeSet<ProxyId>,
    /// Something that they refer to is another one now.
    pub(super) renewed: BTreeSet<ProxyId>,
    pub(super) wake_all: bool,
}

/// The side that asks.
#[derive(Clone)]
pub(super) struct Sender {
    asked: Arc<Mutex<Asked>>,
    /// Full means that it was rung already.
    bell: mpsc::Sender<()>,
}

/// The engine's side.
pub(super) struct Receiver {
    asked: Arc<Mutex<Asked>>,
    bell: mpsc::Receiver<()>,
}

pub(super) fn inbox() -> (Sender, Receiver) {
    let asked = Arc::default();
    let (ring, bell) = mpsc::channel(1);
    let sender = Sender {
        asked: Arc::clone(&asked),
        bell: ring,
    };
    (sender, Receiver { asked, bell })
}

impl Sender {
    pub(super) fn ask(&self, change: impl FnOnce(&mut Asked)) {
        change(&mut held(&self.asked));
        let _ = self.bell.try_send(());
    }
}

impl Receiver {
    /// Waits until something is asked for; `None` once nobody is left who could ask. Dropped
    /// before it answers, it loses nothing.
    pub(super) async fn take(&mut self) -> Option<Asked> {
        self.bell.recv().await?;
        Some(std::mem::take(&mut *held(&self.asked)))
    }
}

/// A panic elsewhere leaves no half-made wish behind the lock.
fn held(asked: &Mutex<Asked>) -> MutexGuard<'_, Asked> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}
