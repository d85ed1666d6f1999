//! From objects to wishes: what the engine is told is wanted.

use crate::{
    cache::Cache, config::Present, objects::Held, objects::Memory, store::AnnotationStore,
};
use egress_core::{
    Installation, ProxyId,
    document::add_unreported,
    proxy::{Desired, Intent},
};
use egress_engine::{Handle, store::StoreErrorKind};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What is wanted of an object by this configuration. `None`: nothing of ours is left in it, it
/// only waits for others before it goes.
pub fn desired(held: &Held, config: &Present, installation: &Installation) -> Option<Desired> {
    let unbegun = matches!(held.memory, Memory::Nothing | Memory::Copied(_));
    if held.deleting && unbegun && !held.is_held() {
        return None;
    }
    let intent = if held.deleting {
        if held.abandon {
            Intent::Abandon
        } else {
            Intent::Delete
        }
    } else {
        intent(held, config)
    };
    Some(Desired {
        proxy: held.id.clone(),
        uid: held.uid.parse().ok()?,
        installation: installation.clone(),
        generation: held.generation,
        intent,
    })
}

fn intent(held: &Held, config: &Present) -> Intent {
    let config = config.config();
    let Some(proxy) = held.manifest.as_deref() else {
        return Intent::Hold(held.findings.clone());
    };
    if !held.findings.is_empty() {
        let mut findings = held.findings.clone();
        add_unreported(&mut findings, config.refuses(proxy));
        return Intent::Hold(findings);
    }
    let abilities = config.abilities(&proxy.spec.provider);
    match proxy.accept(abilities.as_ref()) {
        Ok(accepted) => accepted.intent(),
        Err(findings) => Intent::Hold(findings),
    }
}

/// What the engine was last told of.
struct Known {
    uid: String,
    recorded: bool,
}

/// Tells one engine what is wanted.
pub struct Wishes {
    handle: Handle,
    cache: Arc<Cache>,
    store: AnnotationStore,
    config: Arc<Present>,
    installation: Installation,
    known: Mutex<HashMap<ProxyId, Known>>,
}

impl Wishes {
    /// Tells this engine of the objects in this cache.
    pub fn new(
        handle: Handle,
        cache: Arc<Cache>,
        store: AnnotationStore,
        config: Arc<Present>,
        installation: Installation,
    ) -> Self {
        Self {
            handle,
            cache,
            store,
            config,
            installation,
            known: Mutex::default(),
        }
    }

    /// Tells of every object.
    pub fn tell_all(&self) {
        for held in self.cache.all() {
            self.tell(&held.id);
        }
    }

    /// Tells of one object as it is now, or that it is gone.
    pub fn tell(&self, id: &ProxyId) {
        let held = self.cache.get(id);
        let mut known = self.known();
        if let Some(before) = known.get(id)
            && held.as_ref().is_none_or(|held| held.uid != before.uid)
        {
            self.forget(id, before);
            known.remove(id);
        }
        let Some(held) = held else { return };
        match desired(&held, &self.config, &self.installation) {
            Some(desired) => {
                let recorded = !matches!(held.memory, Memory::Nothing | Memory::Copied(_));
                let before = known.get(id).is_some_and(|known| known.recorded);
                let now = Known {
                    uid: held.uid.clone(),
                    recorded: recorded || before,
                };
                known.insert(id.clone(), now);
                drop(known);
                self.handle.want(desired);
                if before && !recorded {
                    // Its record was taken away: it gets another one before it can be deleted.
                    self.handle.wake(id.clone());
                }
                if held.lacks_hold() {
                    self.hold(&held);
                }
            }
            None => {
                if let Some(before) = known.remove(id) {
                    self.forget(id, &before);
                }
            }
        }
    }

    /// The next news of it tries again where this fails.
    fn hold(&self, held: &Held) {
        let (store, id, uid) = (self.store.clone(), held.id.clone(), held.uid.clone());
        tokio::spawn(async move {
            match store.hold(&id, &uid).await {
                Ok(()) => {}
                Err(e) if e.kind == StoreErrorKind::Conflict => {}
                Err(e) => tracing::warn!(proxy = %id, "its finalizer is missing: {}", e.chain()),
            }
        });
    }

    fn forget(&self, id: &ProxyId, before: &Known) {
        if self.store.released(id).as_ref() == Some(&before.uid) {
            return; // the engine is done with it by itself
        }
        // Without the lease it was another process that ended it.
        if before.recorded && self.store.may_act() {
            tracing::warn!(
                proxy = %id,
                "the object went without us: its finalizer was taken away. Its machine is left \
                 alone, and reported as an orphan by a later sweep"
            );
        }
        self.handle.forget(id.clone());
    }

    fn known(&self) -> MutexGuard<'_, HashMap<ProxyId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
