//! The configured providers, and which slots of each are spoken for.

use crate::{listing::SharedListing, presence::PresenceWatch};
use egress_core::{
    Claim, ErrorClass, MachineKey, ProviderName, ProxyId, Record, Slot, Standing,
    proxy::{Presence, Trouble},
};
use egress_provider::{CheckReason, Listing, Provider, RecordedSlot, Report, Severity};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};
use tokio::sync::Notify;

#[cfg(test)]
mod tests;

/// Who holds a slot, and how firmly.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    proxy: ProxyId,
    hold: Hold,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hold {
    /// It was offered, and no record says so yet.
    Offered,
    /// A record claims it.
    Claimed,
    /// A record claims it, and the machine of this key was seen there and should stay.
    Expected(MachineKey),
}

/// The slots of one provider name that are spoken for. It outlives the provider: records keep
/// their claims, and passes in flight their offers, while the configuration lacks it.
#[derive(Debug, Default)]
struct SlotBook(Mutex<HashMap<Slot, Holder>>);

impl SlotBook {
    fn slots(&self) -> MutexGuard<'_, HashMap<Slot, Holder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim as it now stands in the record.
    fn hold(&self, claim: &Claim, record: &Record, deleting: bool) {
        let expected = claim.standing >= Standing::Seen && claim.retiring.is_none() && !deleting;
        let hold = if expected {
            Hold::Expected(MachineKey::new(record.machine_uid.clone()).of(&record.proxy))
        } else {
            Hold::Claimed
        };
        let holder = Holder {
            proxy: record.proxy.clone(),
            hold,
        };
        self.slots().insert(claim.slot.clone(), holder);
    }

    fn release(&self, slot: &Slot, id: &ProxyId) {
        let mut slots = self.slots();
        if slots.get(slot).is_some_and(|h| h.proxy == *id) {
            slots.remove(slot);
        }
    }
}

/// What a provider's check said, as far as a change of it means that calls may now succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CheckSeen {
    /// What stands in the way, with what was found.
    Report(Vec<(CheckReason, String)>),
    Failed(ErrorClass),
}

/// Providers whose configuration or check changed since the engine last looked.
#[derive(Debug, Default)]
struct Changes {
    names: Mutex<BTreeSet<ProviderName>>,
    bell: Notify,
}

impl Changes {
    fn names(&self) -> MutexGuard<'_, BTreeSet<ProviderName>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn note(&self, name: &ProviderName) {
        self.names().insert(name.clone());
        self.bell.notify_one();
    }
}

/// One provider and what the engine keeps beside it.
pub struct ProviderLane {
    provider: Arc<dyn Provider>,
    book: Arc<SlotBook>,
    presence: tokio::sync::Mutex<PresenceWatch>,
    listing: SharedListing,
    checked: Mutex<Option<CheckSeen>>,
    changes: Arc<Changes>,
}

impl ProviderLane {
    /// The provider itself.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    /// Checks the provider. When the result differs from the one before, calls that failed
    /// are tried again at once.
    pub async fn check(&self) -> egress_provider::Result<Report> {
        let result = self.provider.check().await;
        let seen = match &result {
            Ok(report) => {
                let errors = report
                    .findings
                    .iter()
                    .filter(|f| f.severity == Severity::Error);
                CheckSeen::Report(errors.map(|f| (f.reason, f.found.clone())).collect())
            }
            Err(e) => CheckSeen::Failed(e.class()),
        };
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if checked.as_ref() != Some(&seen) {
            self.changes.note(self.provider.name());
            *checked = Some(seen);
        }
        drop(checked);
        result
    }

    /// Slots that others hold.
    pub(crate) fn taken_by_others(&self, id: &ProxyId) -> Vec<Slot> {
        self.book
            .slots()
            .iter()
            .filter(|(_, h)| h.proxy != *id)
            .map(|(s, _)| s.clone())
            .collect()
    }

    /// Speaks for a slot before its claim is recorded; false when another Proxy was first.
    pub(crate) fn reserve(&self, slot: &Slot, id: &ProxyId) -> bool {
        let mut slots = self.book.slots();
        if let Some(holder) = slots.get(slot) {
            holder.proxy == *id
        } else {
            slots.insert(
                slot.clone(),
                Holder {
                    proxy: id.clone(),
                    hold: Hold::Offered,
                },
            );
            true
        }
    }

    /// Every machine that should be there now.
    pub fn expected(&self) -> Vec<RecordedSlot> {
        self.book
            .slots()
            .iter()
            .filter_map(|(slot, holder)| match &holder.hold {
                Hold::Expected(key) => Some(RecordedSlot {
                    key: key.clone(),
                    slot: slot.clone(),
                }),
                Hold::Offered | Hold::Claimed => None,
            })
            .collect()
    }

    /// A listing that began a moment ago, for whoever searches for one machine.
    pub(crate) async fn listing(&self) -> Result<Arc<Listing>, Trouble> {
        self.listing
            .get(self.provider.as_ref(), &self.expected())
            .await
    }

    pub(crate) async fn judge_presence(&self) -> Presence {
        let expected = self.expected();
        self.presence
            .lock()
            .await
            .judge(self.provider.as_ref(), &expected)
            .await
    }
}

/// All configured providers, by name.
#[derive(Default)]
pub struct Providers {
    lanes: RwLock<BTreeMap<ProviderName, Arc<ProviderLane>>>,
    /// Of every name that was ever configured or claimed from: as few as people write down.
    books: Mutex<BTreeMap<ProviderName, Arc<SlotBook>>>,
    changes: Arc<Changes>,
    /// Rung when the providers were replaced.
    replaced: Notify,
}

impl Providers {
    /// Takes these providers; known slots are told with [`Providers::note`].
    pub fn new(providers: impl IntoIterator<Item = Arc<dyn Provider>>) -> Self {
        let new = Self::default();
        *new.lanes.write().unwrap_or_else(PoisonError::into_inner) = new.lanes_of(providers);
        new
    }

    /// Replaces the providers after a reload of the configuration. Slots spoken for stay so,
    /// also those of a provider that is taken out and put back later. Calls that failed are
    /// tried again at once.
    pub fn replace(&self, providers: impl IntoIterator<Item = Arc<dyn Provider>>) {
        let new = self.lanes_of(providers);
        let names: Vec<ProviderName> = new.keys().cloned().collect();
        *self.lanes.write().unwrap_or_else(PoisonError::into_inner) = new;
        for name in &names {
            self.changes.note(name);
        }
        self.replaced.notify_one();
    }

    /// Waits until the providers were replaced since the last answer. For one who waits at a time.
    pub(crate) async fn replaced(&self) {
        self.replaced.notified().await;
    }

    fn lanes_of(
        &self,
        providers: impl IntoIterator<Item = Arc<dyn Provider>>,
    ) -> BTreeMap<ProviderName, Arc<ProviderLane>> {
        let lane = |provider: Arc<dyn Provider>| {
            let name = provider.name().clone();
            let lane = ProviderLane {
                provider,
                book: self.book(&name),
                presence: tokio::sync::Mutex::default(),
                listing: SharedListing::default(),
                checked: Mutex::default(),
                changes: self.changes.clone(),
            };
            (name, Arc::new(lane))
        };
        providers.into_iter().map(lane).collect()
    }

    fn book(&self, name: &ProviderName) -> Arc<SlotBook> {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        books.entry(name.clone()).or_default().clone()
    }

    /// One provider.
    pub fn get(&self, name: &ProviderName) -> Option<Arc<ProviderLane>> {
        self.lanes
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    /// Every provider, by name.
    pub fn all(&self) -> Vec<Arc<ProviderLane>> {
        self.lanes
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    /// Waits until the configuration or the check of a provider changed; answers with all
    /// that did since the last answer. Dropped before it answers, it loses nothing.
    pub(crate) async fn changed(&self) -> BTreeSet<ProviderName> {
        loop {
            let names = std::mem::take(&mut *self.changes.names());
            if !names.is_empty() {
                return names;
            }
            self.changes.bell.notified().await;
        }
    }

    /// To be told whenever a record was read or written: `before` and `after` as far as known.
    pub fn note(&self, before: Option<&Record>, after: Option<&Record>, deleting: bool) {
        let old = before.and_then(|r| r.claim.as_ref().map(|c| (r, c)));
        let new = after.and_then(|r| r.claim.as_ref().map(|c| (r, c)));
        if let Some((record, claim)) = old
            && new.is_none_or(|(_, c)| c.slot != claim.slot || c.provider != claim.provider)
        {
            self.book(&claim.provider)
                .release(&claim.slot, &record.proxy);
        }
        if let Some((record, claim)) = new {
            self.book(&claim.provider).hold(claim, record, deleting);
        }
    }

    /// To be told when a Proxy is to go: its machine is no longer expected to be there.
    pub fn unexpect(&self, id: &ProxyId) {
        let books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        for book in books.values() {
            for holder in book.slots().values_mut().filter(|h| h.proxy == *id) {
                if matches!(holder.hold, Hold::Expected(_)) {
                    holder.hold = Hold::Claimed;
                }
            }
        }
    }

    /// Gives up a slot that was offered, unless a record claims it by now.
    pub(crate) fn unreserve(&self, claim: &Claim, id: &ProxyId) {
        let book = self.book(&claim.provider);
        let mut slots = book.slots();
        let offered = slots
            .get(&claim.slot)
            .is_some_and(|h| h.proxy == *id && h.hold == Hold::Offered);
        if offered {
            slots.remove(&claim.slot);
        }
    }
}
