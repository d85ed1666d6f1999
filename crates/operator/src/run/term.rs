//! One engine at a time, from the moment this process leads until it no longer does.

use super::{Helpers, Mirror, PresentTerm};
use crate::{
    api::Proxies,
    cache::Cache,
    config::Present,
    credentials::KubeCredentials,
    figures::Figures,
    lease::{Leadership, Standing},
    news::News,
    objects::Memory,
    providers::{self, Mirrored},
    status::Statuses,
    store::{AnnotationStore, Settle},
    texts::Texts,
    watch::Watch,
    wishes::Wishes,
};
use egress_core::{Identity, ProxyId, events::Event};
use egress_engine::{
    Engine, Handle, Prober, Providers, checker, metrics::EngineMetrics, pass::Parts,
    store::StoreError, sweep::Namespaces, sweeper::Sweeper,
};
use egress_provider::{Provider, layer::observed::Observed};
use kube::Client;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
};

/// How long statuses may take that are not written yet when the engine ended.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// What every term works with.
pub(super) struct Terms {
    pub(super) client: Client,
    pub(super) namespace: Option<String>,
    pub(super) mirror: Mirror,
    pub(super) prober: Arc<dyn Prober>,
    pub(super) figures: Figures,
    pub(super) config: Arc<Present>,
    pub(super) identity: Identity,
    pub(super) cache: Arc<Cache>,
    pub(super) watch: Arc<Watch>,
    pub(super) news: News,
    pub(super) present: Arc<PresentTerm>,
    pub(super) leadership: Leadership,
}

/// Why a term ended.
enum Ended {
    /// It is time to stop.
    Stopped,
    /// Somebody else may lead now.
    Lost,
}

impl Terms {
    /// Term after term, until `stop` resolves.
    pub(super) async fn run(
        &self,
        standing: &mut watch::Receiver<Standing>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), String> {
        tokio::pin!(stop);
        let mut told = None;
        loop {
            let now = standing.borrow_and_update().clone();
            if told.as_ref() != Some(&now) {
                say(&now);
                told = Some(now.clone());
            }
            if now == Standing::Leading {
                let ended = tokio::select! {
                    () = &mut stop => Ended::Stopped,
                    () = self.watch.refresh() => self.term(standing, stop.as_mut()).await?,
                    () = lost(standing) => Ended::Lost,
                };
                if matches!(ended, Ended::Stopped) {
                    return Ok(());
                }
                continue;
            }
            tokio::select! {
                () = &mut stop => return Ok(()),
                changed = standing.changed() => if changed.is_err() {
                    return Err("leader election ended".into());
                },
            }
        }
    }

    async fn term(
        &self,
        standing: &mut watch::Receiver<Standing>,
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, String> {
        let running = self.start().await?;
        self.present.set(Some(running.handle.clone()));
        self.figures.operator.set_leading(true);
        let Running {
            mut engine,
            stop_engine,
            statuses,
            helpers,
            ..
        } = running;
        let ended = tokio::select! {
            () = stop => Ok(Ended::Stopped),
            () = lost(standing) => Ok(Ended::Lost),
            result = &mut engine => Err(result),
        };
        let result = match ended {
            Ok(ended) => {
                let _ = stop_engine.send(());
                engine
                    .await
                    .map_err(|e| format!("the engine ended: {e}"))
                    .map(|_| ended)
            }
            Err(Ok(Ok(()))) => Err("the engine ended".to_owned()),
            Err(Ok(Err(e))) => Err(format!("stopped: {e}")),
            Err(Err(e)) => Err(format!("the engine ended: {e}")),
        };
        if matches!(result, Ok(Ended::Stopped)) {
            let _late = tokio::time::timeout(LAST_WORDS, statuses.settled()).await;
        }
        drop(helpers);
        self.figures.operator.set_leading(false);
        self.figures.engine.reset();
        self.figures.sweeps.clear();
        self.present.set(None);
        result
    }

    async fn start(&self) -> Result<Running, String> {
        let providers = Arc::new(Providers::new(self.providers()));
        let proxies = Proxies::new(self.client.clone());
        let permits = Arc::new(self.leadership.clone());
        let store = AnnotationStore::new(
            proxies.clone(),
            self.cache.clone(),
            permits.clone(),
            settle(&providers),
        );
        let parts = Parts {
            store: Arc::new(store.clone()),
            providers,
            credentials: Arc::new(KubeCredentials::new(
                self.client.clone(),
                self.cache.clone(),
            )),
            prober: self.prober.clone(),
            permits,
        };
        let metrics: EngineMetrics = self.figures.engine.clone();
        let (engine, handle) = Engine::new(parts, metrics);
        let engine = engine.with_farewell(self.farewell(&store));
        for (id, record) in engine.load().await.map_err(|e| e.chain())? {
            if let Err(e) = record {
                tracing::error!(proxy = %id, "{}", e.chain());
            }
        }
        let wishes = Arc::new(Wishes::new(
            handle.clone(),
            self.cache.clone(),
            store.clone(),
            self.config.clone(),
            self.identity.installation.clone(),
        ));
        let counts = self.figures.operator.clone();
        let statuses = Statuses::new(
            handle.clone(),
            proxies,
            self.cache.clone(),
            self.config.clone(),
            self.news.clone(),
            Arc::new(move |written| counts.note_status(written)),
        );
        let mirrored = Mirrored::default();
        let (stop_engine, stopped) = oneshot::channel::<()>();
        let engine = tokio::spawn(engine.run(async {
            let _ = stopped.await;
        }));
        wishes.tell_all();
        let helpers = self.helpers(&handle, &store, wishes, &statuses, mirrored);
        Ok(Running {
            handle,
            engine,
            stop_engine,
            statuses,
            helpers,
        })
    }

    fn helpers(
        &self,
        handle: &Handle,
        store: &AnnotationStore,
        wishes: Arc<Wishes>,
        statuses: &Statuses,
        mirrored: Mirrored,
    ) -> Helpers {
        let scope = self.namespace.as_ref().map_or(Namespaces::All, |name| {
            Namespaces::Only([name.clone()].into())
        });
        let cache = self.cache.clone();
        let sweeper = Sweeper {
            handle: handle.clone(),
            store: Arc::new(store.clone()),
            identity: self.identity.clone(),
            scope,
            wanted: Arc::new(move || {
                let all = cache.all();
                all.iter()
                    .filter_map(|held| held.uid.parse().ok())
                    .collect()
            }),
            metrics: self.figures.sweeps.clone(),
            told: Some(mirrored.listings()),
        };
        let texts = Texts {
            handle: handle.clone(),
            cache: self.cache.clone(),
            config: self.config.clone(),
            installation: self.identity.installation.clone(),
            credentials: handle.parts().credentials.clone(),
        };
        let mut helpers = vec![
            tokio::spawn(follow_objects(
                self.cache.clone(),
                wishes.clone(),
                statuses.clone(),
                self.figures.clone(),
            )),
            tokio::spawn({
                let statuses = statuses.clone();
                async move { statuses.write_forever().await }
            }),
            tokio::spawn(follow_config(
                self.config.clone(),
                self.identity.clone(),
                self.figures.clone(),
                handle.clone(),
                wishes,
            )),
            tokio::spawn(checker::check_forever(
                handle.clone(),
                self.present.providers.clone(),
                Some(mirrored.reports()),
            )),
            tokio::spawn(sweeper.sweep_forever()),
            tokio::spawn(texts.follow_forever()),
        ];
        if self.mirror == Mirror::Objects {
            helpers.push(tokio::spawn(providers::mirror_forever(
                self.client.clone(),
                self.identity.installation.clone(),
                handle.clone(),
                self.cache.clone(),
                mirrored,
            )));
        }
        Helpers(helpers)
    }

    fn providers(&self) -> Vec<Arc<dyn Provider>> {
        observed(&self.config, &self.identity, &self.figures)
    }

    /// The last news of a Proxy, and the end of one that never had a record of its own.
    fn farewell(&self, store: &AnnotationStore) -> egress_engine::Farewell {
        let (news, cache, store) = (self.news.clone(), self.cache.clone(), store.clone());
        Arc::new(move |id: &ProxyId, events: &[Event]| {
            let held = cache.get(id);
            let uid = store
                .released(id)
                .or_else(|| held.as_ref().map(|held| held.uid.clone()));
            if let Some(uid) = uid {
                news.tell(id, &uid, events.iter().cloned());
            }
            let Some(held) = held else { return };
            if matches!(held.memory, Memory::Lost | Memory::Copied(_)) {
                let (store, id) = (store.clone(), id.clone());
                tokio::spawn(async move {
                    if let Err(e) = store.release_unrecorded(&id).await {
                        tracing::warn!(proxy = %id, "{}", e.chain());
                    }
                });
            }
        })
    }
}

/// An engine and all beside it.
struct Running {
    handle: Handle,
    engine: JoinHandle<Result<(), StoreError>>,
    stop_engine: oneshot::Sender<()>,
    statuses: Statuses,
    helpers: Helpers,
}

fn observed(config: &Present, identity: &Identity, figures: &Figures) -> Vec<Arc<dyn Provider>> {
    let made = config.config().providers(identity);
    made.into_iter()
        .map(|p| Arc::new(Observed::new(p, &figures.calls)) as Arc<dyn Provider>)
        .collect()
}

/// The longest time after which a machine may still come, of any provider.
pub(crate) fn settle(providers: &Arc<Providers>) -> Settle {
    let providers = providers.clone();
    Arc::new(move || {
        let all = providers.all();
        let settles = all
            .iter()
            .map(|lane| lane.provider().capabilities().late_create.settle());
        settles.max().unwrap_or_default()
    })
}

async fn follow_objects(
    cache: Arc<Cache>,
    wishes: Arc<Wishes>,
    statuses: Statuses,
    figures: Figures,
) {
    loop {
        figures.operator.set_objects(cache.count());
        for id in cache.changed().await {
            wishes.tell(&id);
            statuses.note(id);
        }
    }
}

async fn follow_config(
    config: Arc<Present>,
    identity: Identity,
    figures: Figures,
    handle: Handle,
    wishes: Arc<Wishes>,
) {
    let mut taken = config.taken();
    while taken.changed().await.is_ok() {
        let providers = observed(&config, &identity, &figures);
        handle.parts().providers.replace(providers);
        wishes.tell_all();
        handle.wake_all();
    }
}

async fn lost(standing: &mut watch::Receiver<Standing>) {
    let _ = standing.wait_for(|now| *now != Standing::Leading).await;
}

fn say(standing: &Standing) {
    match standing {
        Standing::Unknown => {}
        Standing::Leading => tracing::info!("this process leads"),
        Standing::Following(other) => tracing::info!(leader = %other, "another process leads"),
        Standing::Trouble(text) => tracing::warn!("{text}"),
    }
}
