//! Turns manifests into wishes: what the engine is told, and when a missing manifest means
//! deletion.

use super::{
    absence::{Absence, BETWEEN_SCANS},
    admin::Pruned,
    credentials::{SecretName, StandaloneCredentials},
    manifests::{Declared, Manifests, Scan},
    metrics::StandaloneMetrics,
};
use crate::config::Config;
use egress_api::v1alpha1::AuthSpec;
use egress_core::{
    MachineUid, ProxyId,
    proxy::{Desired, Intent},
};
use egress_engine::{
    Handle,
    store::{Store, file::FileStore},
};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// What is not well, for people: shown by `/readyz`, `get` and the live table.
pub type Troubles = Arc<Mutex<Vec<String>>>;

/// A Proxy that the keeper looks after.
struct Kept {
    uid: MachineUid,
    /// It should go; the manifest may be back meanwhile.
    deleting: bool,
    /// The annotation of the last manifest that could be accepted.
    abandon: bool,
}

/// See the module.
pub struct Keeper {
    handle: Handle,
    store: FileStore,
    credentials: Arc<StandaloneCredentials>,
    manifests: Manifests,
    absence: Absence,
    kept: BTreeMap<ProxyId, Kept>,
    epoch: Instant,
    troubles: Troubles,
    figures: StandaloneMetrics,
    told: Vec<String>,
}

impl Keeper {
    /// Looks after these, which have records, and whatever the manifests declare.
    pub fn new(
        handle: Handle,
        store: FileStore,
        credentials: Arc<StandaloneCredentials>,
        manifests: Manifests,
        recorded: impl IntoIterator<Item = (ProxyId, MachineUid)>,
        troubles: Troubles,
        figures: StandaloneMetrics,
    ) -> Self {
        let kept = recorded
            .into_iter()
            .map(|(id, uid)| {
                (
                    id,
                    Kept {
                        uid,
                        deleting: false,
                        abandon: false,
                    },
                )
            })
            .collect();
        Self {
            handle,
            store,
            credentials,
            manifests,
            absence: Absence::default(),
            kept,
            epoch: Instant::now(),
            troubles,
            figures,
            told: Vec::new(),
        }
    }

    /// Scans once and tells the engine. Answers with when to scan again, if sooner than usual.
    pub async fn turn(&mut self, config: &Config) -> Option<Duration> {
        self.forget_the_gone().await;
        let scan = self.manifests.scan();
        let changed = self.credentials.set_secrets(scan.secrets.clone());
        for (id, declared) in &scan.proxies {
            self.want(id, declared, config).await;
            if secret_of(id, declared).is_some_and(|secret| changed.contains(&secret)) {
                self.handle.wake(id.clone());
            }
        }
        let (again, guarded) = self.judge_absence(&scan);
        if scan.is_complete() {
            self.figures.note_complete_scan(guarded);
        } else {
            self.figures.note_incomplete_scan();
        }
        self.tell(&scan, guarded);
        let returns =
            |(id, kept): (&ProxyId, &Kept)| kept.deleting && scan.proxies.contains_key(id);
        if self.kept.iter().any(returns) {
            return Some(again.map_or(BETWEEN_SCANS, |again| again.min(BETWEEN_SCANS)));
        }
        again
    }

    /// The user's word that what is missing may go.
    pub async fn prune(&mut self, config: &Config) -> Pruned {
        self.manifests.accept_place();
        self.turn(config).await;
        let scan = self.manifests.scan();
        if !scan.is_complete() {
            return Pruned {
                refused: Some(scan.gaps.join("; ")),
                ..Pruned::default()
            };
        }
        let deleting = self
            .absence
            .prune()
            .iter()
            .map(ToString::to_string)
            .collect();
        Pruned {
            deleting,
            refused: None,
        }
    }

    async fn want(&mut self, id: &ProxyId, declared: &Declared, config: &Config) {
        let uid = match self.kept.entry(id.clone()) {
            Entry::Occupied(kept) if kept.get().deleting => return, // first the old one goes
            Entry::Occupied(kept) => kept.get().uid.clone(),
            Entry::Vacant(place) => {
                let last = match self.store.incarnation(id).await {
                    Ok(last) => last,
                    Err(e) => {
                        tracing::error!(proxy = %id, "{e}");
                        return; // tried again by the next scan
                    }
                };
                let installation = self.store.identity().installation;
                let uid = MachineUid::standalone(&installation, id, last + 1);
                place.insert(Kept {
                    uid: uid.clone(),
                    deleting: false,
                    abandon: false,
                });
                uid
            }
        };
        let (intent, generation) = match declared {
            Declared::Faulty(findings) => (Intent::Hold(findings.clone()), 0),
            Declared::Sound(proxy) => {
                let abilities = config.abilities(&proxy.spec.provider);
                match proxy.accept(abilities.as_ref()) {
                    Ok(accepted) => {
                        if let Some(kept) = self.kept.get_mut(id) {
                            kept.abandon = accepted.abandon;
                        }
                        (accepted.intent(), accepted.generation)
                    }
                    Err(findings) => (Intent::Hold(findings), 0),
                }
            }
        };
        self.handle.want(self.desired(id, uid, intent, generation));
    }

    fn desired(&self, id: &ProxyId, uid: MachineUid, intent: Intent, generation: i64) -> Desired {
        Desired {
            proxy: id.clone(),
            uid,
            installation: self.store.identity().installation,
            generation,
            intent,
        }
    }

    /// Deletes what two complete scans lack. Answers with when to scan again, and how many
    /// wait for `prune`.
    fn judge_absence(&mut self, scan: &Scan) -> (Option<Duration>, usize) {
        let known: BTreeSet<ProxyId> = self
            .kept
            .iter()
            .filter(|(_, k)| !k.deleting)
            .map(|(id, _)| id.clone())
            .collect();
        if !scan.is_complete() {
            // Those without a manifest are looked at all the same, and left alone.
            for id in known.iter().filter(|id| !scan.proxies.contains_key(id)) {
                self.hold_unless_known(id, "its manifest cannot be found now; nothing is deleted");
            }
            return (None, 0);
        }
        let declared = scan.proxies.keys().cloned().collect();
        let verdict = self.absence.judge(&known, &declared, self.epoch.elapsed());
        for id in &verdict.delete {
            self.absence.forget(id);
            let Some(kept) = self.kept.get_mut(id) else {
                continue;
            };
            kept.deleting = true;
            let intent = if kept.abandon {
                Intent::Abandon
            } else {
                Intent::Delete
            };
            let uid = kept.uid.clone();
            tracing::info!(proxy = %id, "its manifest is gone: it is deleted");
            self.handle.want(self.desired(id, uid, intent, 0));
        }
        for id in &verdict.guarded {
            self.hold_unless_known(
                id,
                "its manifest is gone; `egress-proxies prune` deletes it",
            );
        }
        let again = (verdict.unconfirmed > 0).then_some(BETWEEN_SCANS + Duration::from_millis(50));
        (again, verdict.guarded.len())
    }

    /// Shows a recorded Proxy whose manifest this process never saw.
    fn hold_unless_known(&self, id: &ProxyId, why: &str) {
        if self.handle.view(id).is_some() {
            return;
        }
        if let Some(kept) = self.kept.get(id) {
            let finding = egress_core::finding::Finding::new(
                "metadata.name",
                id,
                why,
                "restore the manifest, or prune",
            );
            self.handle
                .want(self.desired(id, kept.uid.clone(), Intent::Hold(vec![finding]), 0));
        }
    }

    /// A Proxy that was deleted and left nothing is new when its manifest comes back.
    async fn forget_the_gone(&mut self) {
        let deleting: Vec<ProxyId> = self
            .kept
            .iter()
            .filter(|(_, k)| k.deleting)
            .map(|(id, _)| id.clone())
            .collect();
        for id in deleting {
            let shown = self.handle.view(&id).is_some();
            if !shown && matches!(self.store.load(&id).await, Ok(None)) {
                self.kept.remove(&id);
            }
        }
    }

    fn tell(&mut self, scan: &Scan, guarded: usize) {
        let mut now: Vec<String> = scan.gaps.clone();
        now.extend(scan.faults.iter().cloned());
        if guarded > 0 {
            now.push(format!(
                "{guarded} of {} Proxies have no manifest in {} any more: restore them, or run \
                 `egress-proxies prune` to delete these Proxies",
                self.kept.len(),
                self.manifests.dir().display()
            ));
        }
        for trouble in now.iter().filter(|t| !self.told.contains(t)) {
            tracing::warn!("{trouble}");
        }
        if now.is_empty() && !self.told.is_empty() {
            tracing::info!("the manifests are well again");
        }
        self.told.clone_from(&now);
        *self.troubles.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// How many Proxies there are.
    pub fn count(&self) -> usize {
        self.kept.len()
    }
}

/// The Secret that a Proxy takes its login from.
fn secret_of(id: &ProxyId, declared: &Declared) -> Option<SecretName> {
    match declared {
        Declared::Sound(proxy) => match &proxy.spec.proxy.auth {
            AuthSpec::SecretRef { name } => Some((id.namespace().to_owned(), name.clone())),
            AuthSpec::Generated {} | AuthSpec::None {} => None,
        },
        Declared::Faulty(_) => None,
    }
}
