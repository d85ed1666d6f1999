//! What the operator would do next with each Proxy of a cluster, and why nothing more. Nothing is
//! written and nothing is asked of a hypervisor but looks.

use crate::{
    api::{Proxies, in_time},
    cache::Cache,
    config::{ConfigSource, Present},
    credentials::KubeCredentials,
    objects::Held,
    run::{installation, term::settle},
    store::AnnotationStore,
    wishes::desired,
};
use egress_core::{Identity, ProxyId, history::History};
use egress_engine::{Never, Outcome, PassError, Prober, Providers, foresee, pass::Parts};
use kube::{Client, api::ListParams};
use std::{sync::Arc, time::Duration};

/// One Proxy and what a process that just came to lead would do with it.
#[derive(Debug)]
pub struct Foreseen {
    /// Which one.
    pub id: ProxyId,
    /// The next step; an error where its record cannot be read now. `None`: nothing of ours is
    /// left in it, it only waits for others before it goes.
    pub next: Option<Result<Outcome, PassError>>,
}

/// Looks at every Proxy of this namespace, or of all. Every line of an error says what is wrong
/// and what to do.
pub async fn preview(
    client: Client,
    namespace: Option<&str>,
    source: Arc<dyn ConfigSource>,
    prober: Arc<dyn Prober>,
) -> Result<Vec<Foreseen>, Vec<String>> {
    let loaded = tokio::task::spawn_blocking(move || Present::load(source));
    let config = loaded.await.map_err(|e| vec![e.to_string()])??;
    let installation = installation(&client, namespace, &config).await?;
    let proxies = Proxies::new(client.clone());
    let listed = in_time(proxies.watched(namespace).list(&ListParams::default())).await;
    let listed = listed.map_err(|why| vec![format!("list the Proxies: {why}")])?;
    let cache = Arc::new(Cache::default());
    cache.begin();
    listed
        .items
        .into_iter()
        .filter_map(Held::of)
        .for_each(|held| cache.put(held));
    cache.finish();

    let identity = Identity {
        installation: installation.clone(),
        writer: None,
    };
    let providers = Arc::new(Providers::new(config.config().providers(&identity)));
    let permits = Arc::new(Never);
    let settle = settle(&providers);
    let parts = Parts {
        store: Arc::new(AnnotationStore::new(
            proxies,
            cache.clone(),
            permits.clone(),
            settle,
        )),
        providers,
        credentials: Arc::new(KubeCredentials::new(client, cache.clone())),
        prober,
        permits,
    };
    let mut all = cache.all();
    all.sort_by(|a, b| a.id.cmp(&b.id));
    let mut foreseen = Vec::with_capacity(all.len());
    for held in all {
        let next = match desired(&held, &config, &installation) {
            Some(desired) => {
                let mut history = History::default();
                Some(foresee(&parts, &desired, Duration::ZERO, &mut history).await)
            }
            None => None,
        };
        let id = held.id.clone();
        foreseen.push(Foreseen { id, next });
    }
    Ok(foreseen)
}
