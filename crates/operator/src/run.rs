//! The operator's life: it follows objects and configuration all the time, and drives an engine
//! while it holds the lease.
//!
//! ```text
//!   watch ─▶ cache ─▶ wishes ─▶ engine ─▶ providers
//!              ▲                 │  └───▶ records (annotations), on permits of the lease
//!              └───── status ◀───┘
//! ```
//!
//! Each time it comes to lead it lists all Proxies anew before the engine looks at any: what the
//! leader before wrote last is known then.

pub(crate) mod term;

use crate::{
    api::{Failure, Proxies, in_time},
    cache::Cache,
    config::{ConfigSource, Present},
    figures::Figures,
    lease::{Elector, LeaseSettings, Standing},
    news::News,
    watch::Watch,
};
use axum::Router;
use egress_core::{Identity, Installation};
use egress_engine::{
    Handle, Prober,
    admin::{self, Readiness},
    checker::Troubles,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
};

/// What an operator works with.
pub struct Settings {
    /// Asks the API server.
    pub client: Client,
    /// Where the configuration is written.
    pub source: Arc<dyn ConfigSource>,
    /// The one namespace whose Proxies it looks after; `None`: all.
    pub namespace: Option<String>,
    /// How it comes to lead.
    pub lease: LeaseSettings,
    /// What asks proxies who they are.
    pub prober: Arc<dyn Prober>,
    /// Whether it writes ProxyProvider objects, which belong to no namespace.
    pub mirror: Mirror,
    /// The figures, as they are registered.
    pub figures: Figures,
    /// All figures under their names.
    pub registry: Registry,
}

/// Whether the configured providers are shown as objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mirror {
    /// One ProxyProvider for each.
    Objects,
    /// None: the same is in `/readyz` and the metrics.
    Nothing,
}

/// An operator that is ready to run.
pub struct Operator {
    pub(crate) settings: Settings,
    pub(crate) config: Arc<Present>,
    pub(crate) identity: Identity,
    pub(crate) cache: Arc<Cache>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) news: News,
    pub(crate) present: Arc<PresentTerm>,
    listener: TcpListener,
}

/// What there is only while this process leads.
#[derive(Default)]
pub(crate) struct PresentTerm {
    handle: Mutex<Option<Handle>>,
    /// What the providers' checks found.
    pub(crate) providers: Troubles,
}

impl PresentTerm {
    pub(crate) fn set(&self, handle: Option<Handle>) {
        if handle.is_none() {
            let mut providers = self
                .providers
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            providers.clear();
        }
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner) = handle;
    }

    fn handle(&self) -> Option<Handle> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.clone()
    }
}

impl Operator {
    /// Reads the configuration, finds out who it is, and begins to listen. Every line of an
    /// error says what is wrong and what to do.
    pub async fn prepare(settings: Settings) -> Result<Self, Vec<String>> {
        let source = settings.source.clone();
        let loaded = tokio::task::spawn_blocking(move || Present::load(source));
        let config = loaded.await.map_err(|e| vec![e.to_string()])??;
        let config = Arc::new(config);
        let listen = config.config().admin();
        let listener = TcpListener::bind(listen).await.map_err(|e| {
            vec![format!(
                "admin.listen: {listen}: cannot listen there ({e}): choose a free port, or 0"
            )]
        })?;
        let namespace = settings.namespace.as_deref();
        let installation = installation(&settings.client, namespace, &config).await?;
        let cache = Arc::new(Cache::default());
        let proxies = Proxies::new(settings.client.clone());
        let watch = Watch::new(proxies, settings.namespace.clone(), cache.clone());
        let news = News::start(settings.client.clone(), settings.lease.identity.clone());
        Ok(Self {
            config,
            identity: Identity {
                installation,
                writer: None,
            },
            cache,
            watch: Arc::new(watch),
            news,
            present: Arc::default(),
            listener,
            settings,
        })
    }

    /// Where the admin page is.
    pub fn admin(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The name of this deployment.
    pub fn installation(&self) -> &Installation {
        &self.identity.installation
    }

    /// Works until `stop` resolves; then ends what runs and gives the lease up.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), String> {
        let Self {
            mut settings,
            config,
            identity,
            cache,
            watch,
            news,
            present,
            listener,
        } = self;
        let elector = Elector::new(settings.client.clone(), settings.lease.clone());
        let (leadership, mut standing) = (elector.leadership(), elector.standing());
        let registry = Arc::new(std::mem::take(&mut settings.registry));
        let page = page(
            &present,
            &config,
            &watch,
            &cache,
            standing.clone(),
            registry,
        );
        let figures = settings.figures.clone();
        let (reloads, lease) = (figures.operator.clone(), settings.lease.clone());
        let of_config = news.clone();
        let helpers = Helpers(vec![
            tokio::spawn(async move {
                if let Err(e) = admin::serve(listener, page, std::future::pending()).await {
                    tracing::error!("the admin page ended: {e}");
                }
            }),
            tokio::spawn({
                let watch = watch.clone();
                async move { watch.follow_forever().await }
            }),
            tokio::spawn(config.clone().follow_forever(Arc::new(
                move |well: bool, troubles: &[String]| {
                    reloads.note_reload(well);
                    of_config.tell_of_config(&lease, troubles);
                },
            ))),
        ]);
        let (give_up, given_up) = oneshot::channel::<()>();
        let elector = tokio::spawn(elector.run(async {
            let _ = given_up.await;
        }));
        let terms = term::Terms {
            client: settings.client,
            namespace: settings.namespace,
            mirror: settings.mirror,
            prober: settings.prober,
            figures,
            config,
            identity,
            cache,
            watch,
            news,
            present,
            leadership,
        };
        let result = terms.run(&mut standing, stop).await;
        let _ = give_up.send(());
        let _ = elector.await;
        drop(helpers);
        result
    }
}

/// Tasks that end with this.
pub(crate) struct Helpers(pub(crate) Vec<tokio::task::JoinHandle<()>>);

impl Drop for Helpers {
    fn drop(&mut self) {
        for helper in &self.0 {
            helper.abort();
        }
    }
}

/// The installation that is configured, else the cluster's own.
pub(crate) async fn installation(
    client: &Client,
    namespace: Option<&str>,
    config: &Present,
) -> Result<Installation, Vec<String>> {
    if let Some(installation) = config.config().installation() {
        return Ok(installation.clone());
    }
    let refused = |why: String| {
        vec![format!(
            "installation: (missing): {why}: write a name of this deployment's own"
        )]
    };
    if namespace.is_some() {
        return Err(refused(
            "it cannot be derived where one namespace is looked after".into(),
        ));
    }
    let api: Api<Namespace> = Api::all(client.clone());
    let found = in_time(api.get("kube-system")).await;
    let found = found.map_err(|failure: Failure| {
        refused(format!(
            "it is derived from the UID of the namespace kube-system, which cannot be read ({failure})"
        ))
    })?;
    let uid = found.metadata.uid.unwrap_or_default();
    format!("cluster-{uid}")
        .parse()
        .map_err(|e| refused(format!("the namespace kube-system has no usable UID ({e})")))
}

fn page(
    present: &Arc<PresentTerm>,
    config: &Arc<Present>,
    watch: &Arc<Watch>,
    cache: &Arc<Cache>,
    standing: watch::Receiver<Standing>,
    registry: Arc<Registry>,
) -> Router {
    let of = present.clone();
    let views = move || of.handle().map(|handle| handle.views()).unwrap_or_default();
    let (present, config) = (present.clone(), config.clone());
    let (watch, cache) = (watch.clone(), cache.clone());
    let readiness = move || {
        let mut serious = Vec::from_iter(watch.trouble());
        if serious.is_empty() && !cache.is_synced() {
            serious.push("the Proxies are not listed yet: wait a moment".to_owned());
        }
        if let Standing::Trouble(text) = &*standing.borrow() {
            serious.push(text.clone());
        }
        // What follows needs someone, and no other process would be better off.
        let ready = serious.is_empty();
        let mut troubles = serious;
        troubles.extend(config.troubles());
        let providers = present.providers.lock();
        troubles.extend(providers.unwrap_or_else(PoisonError::into_inner).clone());
        troubles.extend(present.handle().and_then(|handle| handle.store_trouble()));
        Readiness { ready, troubles }
    };
    admin::router_of(Arc::new(views), registry, Arc::new(readiness))
}
