//! The configured providers, and which slots of each are spoken for.

use crate::presence::PresenceWatch;
use egress_core::{
    Claim, MachineKey, ProviderName, ProxyId, Record, Slot, Standing, proxy::Presence,
};
use egress_provider::{Provider, RecordedSlot};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

/// Who holds a slot.
#[derive(Clone, Debug)]
struct Holder {
    proxy: ProxyId,
    /// The key, once the claim is recorded and its machine was seen and should stay.
    expected: Option<MachineKey>,
}

/// One provider and what the engine keeps beside it.
pub struct ProviderLane {
    provider: Arc<dyn Provider>,
    slots: Mutex<HashMap<Slot, Holder>>,
    presence: tokio::sync::Mutex<PresenceWatch>,
}

impl ProviderLane {
    fn new(provider: Arc<dyn Provider>) -> Self {
        Self {
            provider,
            slots: Mutex::default(),
            presence: tokio::sync::Mutex::default(),
        }
    }

    /// The provider itself.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, HashMap<Slot, Holder>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Slots that others hold.
    pub(crate) fn taken_by_others(&self, id: &ProxyId) -> Vec<Slot> {
        self.slots()
            .iter()
            .filter(|(_, h)| h.proxy != *id)
            .map(|(s, _)| s.clone())
            .collect()
    }

    /// Speaks for a slot before its claim is recorded; false when another Proxy was first.
    pub(crate) fn reserve(&self, slot: &Slot, id: &ProxyId) -> bool {
        let mut slots = self.slots();
        if let Some(holder) = slots.get(slot) {
            holder.proxy == *id
        } else {
            slots.insert(
                slot.clone(),
                Holder {
                    proxy: id.clone(),
                    expected: None,
                },
            );
            true
        }
    }

    /// The claim as it now stands in the record.
    fn hold(&self, claim: &Claim, record: &Record, deleting: bool) {
        let expected = claim.standing >= Standing::Seen && claim.retiring.is_none() && !deleting;
        let holder = Holder {
            proxy: record.proxy.clone(),
            expected: expected.then(|| MachineKey::new(record.machine_uid.clone())),
        };
        self.slots().insert(claim.slot.clone(), holder);
    }

    fn release(&self, slot: &Slot, id: &ProxyId) {
        let mut slots = self.slots();
        if slots.get(slot).is_some_and(|h| h.proxy == *id) {
            slots.remove(slot);
        }
    }

    /// Every machine that should be there now.
    pub fn expected(&self) -> Vec<RecordedSlot> {
        self.slots()
            .iter()
            .filter_map(|(slot, holder)| {
                let key = holder.expected.clone()?;
                Some(RecordedSlot {
                    key,
                    slot: slot.clone(),
                })
            })
            .collect()
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
}

impl Providers {
    /// Takes these providers; known slots are told with [`Providers::note`].
    pub fn new(providers: impl IntoIterator<Item = Arc<dyn Provider>>) -> Self {
        let lanes = providers
            .into_iter()
            .map(|p| (p.name().clone(), Arc::new(ProviderLane::new(p))))
            .collect();
        Self {
            lanes: RwLock::new(lanes),
        }
    }

    /// Replaces the providers after a reload of the configuration; slots spoken for stay so.
    pub fn replace(&self, providers: impl IntoIterator<Item = Arc<dyn Provider>>) {
        let mut lanes = self.lanes.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::take(&mut *lanes);
        for provider in providers {
            let name = provider.name().clone();
            let lane = ProviderLane::new(provider);
            if let Some(before) = old.get(&name) {
                lane.slots().clone_from(&before.slots());
            }
            lanes.insert(name, Arc::new(lane));
        }
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

    /// To be told whenever a record was read or written: `before` and `after` as far as known.
    pub fn note(&self, before: Option<&Record>, after: Option<&Record>, deleting: bool) {
        let old = before.and_then(|r| r.claim.as_ref().map(|c| (r, c)));
        let new = after.and_then(|r| r.claim.as_ref().map(|c| (r, c)));
        if let Some((record, claim)) = old
            && new.is_none_or(|(_, c)| c.slot != claim.slot || c.provider != claim.provider)
            && let Some(lane) = self.get(&claim.provider)
        {
            lane.release(&claim.slot, &record.proxy);
        }
        if let Some((record, claim)) = new
            && let Some(lane) = self.get(&claim.provider)
        {
            lane.hold(claim, record, deleting);
        }
    }

    /// To be told when a Proxy is to go: its machine is no longer expected to be there.
    pub fn unexpect(&self, id: &ProxyId) {
        for lane in self.all() {
            for holder in lane.slots().values_mut().filter(|h| h.proxy == *id) {
                holder.expected = None;
            }
        }
    }

    /// Gives up a slot that was offered and not recorded.
    pub(crate) fn unreserve(&self, claim: &Claim, id: &ProxyId) {
        if let Some(lane) = self.get(&claim.provider) {
            lane.release(&claim.slot, id);
        }
    }
}
