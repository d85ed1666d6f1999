//! Where the records of a ground are: in memory, or in annotations of objects of an API server.

use crate::fuse::{Fuse, Trick};
use async_trait::async_trait;
use egress_core::{
    ProxyId,
    proxy::{Desired, Intent},
};
use egress_engine::{
    Always, PermitSource,
    store::{Store, StoreError, Stored, memory::MemoryStore},
};
use egress_operator::{
    api::Proxies,
    cache::Cache,
    double::{Gate, Server, Target, Verb, Verdict},
    objects::{Held, RECORD_ANNOTATION},
    store::AnnotationStore,
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// Records that outlive a process. A clone is the same ones.
#[derive(Clone)]
pub enum Records {
    /// In memory.
    Memory(MemoryStore),
    /// In annotations of this server's objects.
    Cluster(Server),
}

impl Records {
    /// As a process opens them that acts by these permits. `settle`: how late a machine may
    /// come whose record was lost.
    pub fn open(&self, permits: Arc<dyn PermitSource>, settle: Duration) -> Opened {
        match self {
            Self::Memory(store) => Opened {
                store: Arc::new(store.clone()),
                watched: None,
            },
            Self::Cluster(server) => {
                let cache = Arc::new(Cache::default());
                let proxies = Proxies::new(server.client());
                let settle = Arc::new(move || settle);
                let store = AnnotationStore::new(proxies, cache.clone(), permits, settle);
                Opened {
                    store: Arc::new(store),
                    watched: Some((server.clone(), cache)),
                }
            }
        }
    }

    /// Sends every write of a record through this fuse from now on.
    pub fn arm(&self, fuse: &Arc<Fuse>) {
        match self {
            Self::Memory(store) => store.set_gate(Some(fuse.clone())),
            Self::Cluster(server) => server.set_gate(Some(fuse.clone())),
        }
    }

    /// Loses all records: the objects that had them keep the finalizer.
    pub fn lose(&mut self) {
        match self {
            Self::Memory(store) => *store = MemoryStore::new(),
            Self::Cluster(server) => {
                for held in listed(server) {
                    let patch = json!({"metadata": {"annotations": {RECORD_ANNOTATION: null}}});
                    let (namespace, name) = (held.id.namespace(), held.id.name());
                    let lost = server.patch_proxy(namespace, name, &patch);
                    lost.expect("it was just listed");
                }
            }
        }
    }

    /// All records, as a judge sees them.
    pub async fn list(&self) -> Result<Vec<(ProxyId, Result<Stored, StoreError>)>, StoreError> {
        self.judge().list().await
    }

    /// A store that acts for people and judges.
    pub fn judge(&self) -> Arc<dyn Store> {
        let opened = self.open(Arc::new(Always), Duration::ZERO);
        opened.refresh();
        opened.store
    }
}

/// Records as one process has them.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    watched: Option<(Server, Arc<Cache>)>,
}

impl Opened {
    /// Lists all objects anew, as a leader does first.
    pub fn refresh(&self) {
        let Some((server, cache)) = &self.watched else {
            return;
        };
        cache.begin();
        for held in listed(server) {
            cache.put(held);
        }
        cache.finish();
    }

    /// People see to it that the object is as this Proxy is wanted, and the watch tells.
    pub fn see(&self, desired: &Desired) {
        let Some((server, _)) = &self.watched else {
            return;
        };
        let (namespace, name) = (desired.proxy.namespace(), desired.proxy.name());
        if desired.intent == Intent::Delete {
            server.delete_proxy(namespace, name);
        } else if server.proxy(namespace, name).is_none() {
            server.create_proxy(namespace, name, &json!({}));
        }
        self.refresh();
    }
}

fn listed(server: &Server) -> Vec<Held> {
    let all = Target {
        namespace: None,
        ..Target::proxies(Verb::List, "", None)
    };
    let all = server.ask(&all, &Value::Null).expect("a list is answered");
    let items = all["items"].as_array().cloned().unwrap_or_default();
    let read = |object| Held::of(serde_json::from_value(object).ok()?);
    items.into_iter().filter_map(read).collect()
}

#[async_trait]
impl Gate for Fuse {
    async fn judge(&self, target: &Target) -> Verdict {
        if !target.is_record_write() {
            return Verdict::Pass;
        }
        match self.burn() {
            None => Verdict::Pass,
            Some(Trick::DieBefore) => Verdict::HangBefore,
            Some(Trick::DieAfter) => Verdict::HangAfter,
            Some(Trick::LoseAnswer(None)) => Verdict::CutBefore,
            Some(Trick::LoseAnswer(Some(_))) => Verdict::CutAfter,
            Some(Trick::TimeOut(None)) => Verdict::Refuse(504),
            Some(Trick::TimeOut(Some(_))) => Verdict::FailAfter(504),
            Some(Trick::Refuse(_)) => Verdict::Refuse(429),
            Some(Trick::Freeze(time)) => {
                tokio::time::sleep(time).await;
                Verdict::Pass
            }
        }
    }
}
