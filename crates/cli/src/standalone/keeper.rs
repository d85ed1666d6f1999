//! Turns manifests into wishes: what the engine is told, and when a missing manifest means
//! deletion.

use super::{
    absence::{Absence, BETWEEN_SCANS},
    admin::Pruned,
    credentials::{Changed, StandaloneCredentials},
    manifests::{Declared, Manifests, Scan},
    metrics::StandaloneMetrics,
    reader::Reader,
    watch::Watch,
};
use crate::{config::Config, wording::counted};
use egress_api::v1alpha1::{AuthSpec, Proxy, UserDataSource};
use egress_core::{
    MachineUid, ProxyId,
    document::add_unreported,
    finding::Finding,
    proxy::{Desired, Intent, SourceKind},
};
use egress_engine::{
    Handle,
    admin::{Declaration, Declarations},
    store::{Store, file::FileStore},
};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// What is not well, for people: shown by `/readyz`, `get` and the live table.
pub type Troubles = egress_engine::checker::Troubles;

/// A Proxy that the keeper looks after.
struct Kept {
    uid: MachineUid,
    /// It should go; the manifest may be back meanwhile.
    deleting: bool,
    /// The annotation of the last manifest that could be accepted.
    abandon: bool,
    /// This process saw a manifest of it.
    declared: bool,
}

impl Kept {
    const fn new(uid: MachineUid) -> Self {
        Self {
            uid,
            deleting: false,
            abandon: false,
            declared: false,
        }
    }
}

/// How long a prune waits for a directory that is slow to read.
const PRUNE_PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
pub struct Keeper {
    handle: Handle,
    store: FileStore,
    credentials: Arc<StandaloneCredentials>,
    dir: PathBuf,
    /// Locked while a thread reads the directory.
    manifests: Arc<Mutex<Manifests>>,
    reader: Reader<Scan>,
    watch: Watch,
    absence: Absence,
    kept: BTreeMap<ProxyId, Kept>,
    epoch: Instant,
    troubles: Troubles,
    figures: StandaloneMetrics,
    told: Vec<String>,
    declared: Arc<Mutex<BTreeMap<ProxyId, Box<Proxy>>>>,
}

impl Keeper {
    /// Looks after these, which have records, and whatever the manifests declare.
    pub fn new(
        handle: Handle,
        store: FileStore,
        credentials: Arc<StandaloneCredentials>,
        dir: PathBuf,
        recorded: impl IntoIterator<Item = (ProxyId, MachineUid)>,
        troubles: Troubles,
        figures: StandaloneMetrics,
    ) -> Self {
        let kept = recorded
            .into_iter()
            .map(|(id, uid)| {
                let kept = Kept {
                    abandon: store.abandons(&id),
                    ..Kept::new(uid)
                };
                (id, kept)
            })
            .collect();
        Self {
            handle,
            store,
            credentials,
            reader: Reader::new(dir.display()),
            manifests: Arc::new(Mutex::new(Manifests::new(dir.clone()))),
            dir,
            watch: Watch::new(),
            absence: Absence::default(),
            kept,
            epoch: Instant::now(),
            troubles,
            figures,
            told: Vec::new(),
            declared: Arc::default(),
        }
    }

    /// Tells, at any time, how each Proxy was declared last without a fault.
    pub fn declarations(&self) -> Declarations {
        let declared = self.declared.clone();
        Arc::new(move |id| {
            let declared = declared.lock().unwrap_or_else(PoisonError::into_inner);
            let proxy = declared.get(id)?;
            Some(Declaration {
                metadata: serde_json::to_value(&proxy.metadata).ok()?,
                spec: serde_json::to_value(&proxy.spec).ok()?,
            })
        })
    }

    /// Wakes whoever waits for it when something in the manifest directory changes.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Reads the manifest directory, which may take so long before that is what it says.
    /// Dropped it goes on, and the next call waits for the same reading.
    pub async fn scan(&mut self, patience: Duration) -> Scan {
        let (manifests, watch) = (self.manifests.clone(), self.watch.clone());
        let read = move || {
            let mut manifests = manifests.lock().unwrap_or_else(PoisonError::into_inner);
            watch.add(manifests.dir());
            manifests.scan()
        };
        self.reader
            .read(patience, read)
            .await
            .unwrap_or_else(|late| {
                Scan::nothing(format!(
                    "{late}: nothing is deleted until it ends: see whether its file system answers"
                ))
            })
    }

    /// Tells the engine what a scan says. Answers with when to scan again, if sooner than
    /// usual.
    pub async fn apply(&mut self, scan: &Scan, config: &Config) -> Option<Duration> {
        self.forget_the_gone().await;
        let changed = self.credentials.set_sources(
            scan.secrets.clone(),
            scan.config_maps.clone(),
            scan.is_complete(),
        );
        self.note_declarations(scan);
        for (id, declared) in &scan.proxies {
            self.want(id, declared, config).await;
            if is_concerned(id, declared, &changed) {
                self.handle.renew(id.clone());
            }
        }
        let (again, guarded) = self.judge_absence(scan).await;
        if scan.is_complete() {
            self.figures.note_complete_scan(guarded);
        } else {
            self.figures.note_incomplete_scan();
        }
        self.tell(scan, guarded);
        let returns =
            |(id, kept): (&ProxyId, &Kept)| kept.deleting && scan.proxies.contains_key(id);
        if self.kept.iter().any(returns) {
            return Some(again.map_or(BETWEEN_SCANS, |again| again.min(BETWEEN_SCANS)));
        }
        again
    }

    fn note_declarations(&self, scan: &Scan) {
        let mut known = self.declared.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, declared) in &scan.proxies {
            let Declared::Sound(proxy) = declared else {
                continue;
            };
            if known.get(id) != Some(proxy) {
                known.insert(id.clone(), proxy.clone());
            }
        }
        known.retain(|id, _| scan.proxies.contains_key(id) || self.kept.contains_key(id));
    }

    /// The user's word that what is missing may go.
    pub async fn prune(&mut self, config: &Config) -> Pruned {
        // First the end of a reading under way, which may have begun before that word.
        let mut scan = self.scan(PRUNE_PATIENCE).await;
        let taken = self.manifests.clone();
        if taken.try_lock().map(|mut m| m.accept_place()).is_ok() {
            scan = self.scan(PRUNE_PATIENCE).await;
        }
        self.apply(&scan, config).await;
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
                        tracing::error!(proxy = %id, "{}", e.chain());
                        return; // tried again by the next scan
                    }
                };
                let installation = self.store.identity().installation;
                let uid = MachineUid::standalone(&installation, id, last + 1);
                place.insert(Kept::new(uid.clone()));
                uid
            }
        };
        if let Some(kept) = self.kept.get_mut(id) {
            kept.declared = true;
        }
        let (intent, generation) = match declared {
            Declared::Faulty(findings, partly) => {
                let mut findings = findings.clone();
                let more = partly.as_ref().map(|proxy| config.refuses(proxy));
                add_unreported(&mut findings, more.unwrap_or_default());
                (Intent::Hold(findings), 0)
            }
            Declared::Sound(proxy) => {
                let abilities = config.abilities(&proxy.spec.provider);
                match proxy.accept(abilities.as_ref()) {
                    Ok(accepted) => {
                        if let Some(kept) = self.kept.get_mut(id) {
                            kept.abandon = accepted.abandon;
                        }
                        if let Err(e) = self.store.set_abandons(id, accepted.abandon).await {
                            tracing::error!(proxy = %id, "{}", e.chain());
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
    async fn judge_absence(&mut self, scan: &Scan) -> (Option<Duration>, usize) {
        let known: BTreeSet<ProxyId> = self
            .kept
            .iter()
            .filter(|(_, k)| !k.deleting)
            .map(|(id, _)| id.clone())
            .collect();
        if !scan.is_complete() {
            // Those without a manifest are looked at all the same, and left alone.
            for id in known.iter().filter(|id| !scan.proxies.contains_key(id)) {
                self.hold_undeclared(id, "its manifest cannot be found now; nothing is deleted");
            }
            return (None, 0);
        }
        let declared: BTreeSet<ProxyId> = scan.proxies.keys().cloned().collect();
        let mut unrecorded = BTreeSet::new();
        for id in known.difference(&declared) {
            if matches!(self.store.load(id).await, Ok(None)) {
                unrecorded.insert(id.clone());
            }
        }
        let since = self.epoch.elapsed();
        let verdict = self.absence.judge(&known, &declared, &unrecorded, since);
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
        for id in &verdict.unconfirmed {
            self.hold_undeclared(
                id,
                "its manifest is gone; a second look decides whether it is deleted",
            );
        }
        for id in &verdict.guarded {
            self.hold_undeclared(
                id,
                "its manifest is gone; `egress-proxies prune` deletes it",
            );
        }
        let again =
            (!verdict.unconfirmed.is_empty()).then_some(BETWEEN_SCANS + Duration::from_millis(50));
        (again, verdict.guarded.len())
    }

    /// Shows a recorded Proxy whose manifest this process never saw.
    fn hold_undeclared(&self, id: &ProxyId, why: &str) {
        if let Some(kept) = self.kept.get(id).filter(|kept| !kept.declared) {
            let finding = Finding::new("metadata.name", id, why, "restore the manifest, or prune");
            let intent = Intent::Hold(vec![finding]);
            self.handle
                .want(self.desired(id, kept.uid.clone(), intent, 0));
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
                if let Err(e) = self.store.set_abandons(&id, false).await {
                    tracing::error!(proxy = %id, "{}", e.chain());
                }
            }
        }
    }

    fn tell(&mut self, scan: &Scan, guarded: usize) {
        let mut now: Vec<String> = scan.gaps.clone();
        now.extend(scan.faults.iter().cloned());
        if guarded > 0 {
            let of = self.kept.values().filter(|kept| !kept.deleting).count();
            let (have, these) = if guarded == 1 {
                (
                    "has",
                    "restore it, or run `egress-proxies prune` to delete this Proxy",
                )
            } else {
                (
                    "have",
                    "restore them, or run `egress-proxies prune` to delete these Proxies",
                )
            };
            now.push(format!(
                "{guarded} of {} {have} no manifest in {} any more: {these}",
                counted(of, "Proxy", "Proxies"),
                self.dir.display()
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

/// Whether the login or the user data of a Proxy comes from an object that changed.
fn is_concerned(id: &ProxyId, declared: &Declared, changed: &Changed) -> bool {
    let Declared::Sound(proxy) = declared else {
        return false;
    };
    let login = match &proxy.spec.proxy.auth {
        AuthSpec::SecretRef { name } => Some((SourceKind::Secret, name)),
        AuthSpec::Generated {} | AuthSpec::None {} => None,
    };
    let user_data = proxy.spec.user_data.as_ref().map(|source| match source {
        UserDataSource::SecretRef { name, .. } => (SourceKind::Secret, name),
        UserDataSource::ConfigMapRef { name, .. } => (SourceKind::ConfigMap, name),
    });
    let is_changed = |(kind, name): (SourceKind, &String)| {
        changed.has(kind, &(id.namespace().to_owned(), name.clone()))
    };
    [login, user_data].into_iter().flatten().any(is_changed)
}
