//! `operator`: the engine on a Kubernetes cluster, driven by its Proxy objects.

use crate::{
    config::{Config, Faulty, PayloadArguments, Reach},
    failure::Failure,
    stop_signal,
};
use egress_api::v1alpha1::{ProviderAbilities, Proxy};
use egress_core::{Identity, Installation, finding::Finding};
use egress_engine::HttpProber;
use egress_operator::{
    ConfigSource, Configuration, Figures, LeaseSettings, Mirror, Operator, Settings,
};
use egress_provider::Provider;
use kube::config::{KubeConfigOptions, Kubeconfig};
use prometheus_client::registry::Registry;
use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// The Lease that replicas of one operator share.
const LEASE: &str = "egress-proxies-operator";
/// Where the provider `local` keeps its machines, unless the configuration says otherwise.
const STATE_DIR: &str = "/var/lib/egress-proxies";

/// Arguments of `operator`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The configuration file; it is read again when it changes.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Look after the Proxies of this namespace alone; the configuration must then name the
    /// installation. Default: all namespaces.
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// The namespace of the Lease by which one replica leads. Default: the one that is looked
    /// after, else that of the pod or of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    lease_namespace: Option<String>,
    /// The name of that Lease. Operators with different names do not know of each other.
    #[arg(long, value_name = "NAME", default_value = LEASE)]
    lease_name: String,
    /// How long another replica waits before it leads in place of one that fell silent, 5 to
    /// 300 seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(5..=300))]
    lease_duration: u64,
    /// Whether each configured provider is shown as a ProxyProvider object. Default: yes, and
    /// with --namespace no.
    #[arg(long, value_name = "BOOL")]
    provider_objects: Option<bool>,
    #[command(flatten)]
    payload: PayloadArguments,
}

/// Runs until a signal.
pub async fn run(arguments: Arguments) -> Result<(), Failure> {
    // Before anything can go wrong slowly, so that a signal always counts.
    let stop = stop_signal();
    let client = client(None).await?;
    let namespace = arguments.namespace.clone();
    let lease = LeaseSettings {
        namespace: arguments
            .lease_namespace
            .clone()
            .or_else(|| namespace.clone())
            .unwrap_or_else(|| client.default_namespace().to_owned()),
        name: arguments.lease_name.clone(),
        identity: identity()?,
        duration: Duration::from_secs(arguments.lease_duration),
    };
    let objects = arguments.provider_objects.unwrap_or(namespace.is_none());
    let figures = Figures::default();
    let mut registry = Registry::default();
    figures.register(&mut registry);
    let settings = Settings {
        client,
        source: Arc::new(File {
            path: arguments.config.clone(),
            payload: arguments.payload.clone(),
        }),
        namespace,
        lease,
        prober: Arc::new(HttpProber),
        mirror: if objects {
            Mirror::Objects
        } else {
            Mirror::Nothing
        },
        figures,
        registry,
    };
    tokio::pin!(stop);
    let operator = tokio::select! {
        prepared = Operator::prepare(settings) => prepared.map_err(Failure::refused_lines)?,
        () = &mut stop => return Ok(()),
    };
    let admin = operator.admin();
    let admin = admin.map_err(|e| Failure::failed(format!("admin page: {e}")))?;
    println!(
        "installation {}; admin page http://{admin}/",
        operator.installation()
    );
    operator.run(stop).await.map_err(Failure::failed)
}

/// A client of the cluster that this kubeconfig names, else of the one around us.
pub async fn client(kubeconfig: Option<&Path>) -> Result<kube::Client, Failure> {
    let named = kubeconfig.map_or("KUBECONFIG".into(), |path| path.display().to_string());
    let refused = |why: String| {
        Failure::refused(format!(
            "{named}: {why}: run in a pod with a service account, or name a kubeconfig file"
        ))
    };
    let config = match kubeconfig {
        Some(path) => match Kubeconfig::read_from(path) {
            Ok(read) => kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        },
        None => kube::Config::infer().await.map_err(|e| e.to_string()),
    };
    let mut config = config.map_err(|e| refused(format!("no cluster is configured ({e})")))?;
    // A request that is repeated out of sight could be sent when another process leads.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    // A watch ends by itself after a minute: one that is silent for longer is dead.
    config.read_timeout = Some(Duration::from_secs(75));
    kube::Client::try_from(config).map_err(|e| refused(e.to_string()))
}

/// Another text for each process: the host, which in a pod is the pod's name, and chance.
fn identity() -> Result<String, Failure> {
    let mut bits = [0; 4];
    getrandom::fill(&mut bits)
        .map_err(|e| Failure::failed(format!("the kernel gives no random bytes: {e}")))?;
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    Ok(format!("{host}_{}", data_encoding::HEXLOWER.encode(&bits)))
}

/// The configuration file.
pub struct File {
    /// Where it is.
    pub path: PathBuf,
    /// Where the payload of seeds is.
    pub payload: PayloadArguments,
}

impl ConfigSource for File {
    fn read(&self) -> io::Result<String> {
        std::fs::read_to_string(&self.path)
    }

    fn parse(&self, text: io::Result<String>) -> Result<Arc<dyn Configuration>, Vec<String>> {
        match Config::reaching(&self.path, text, Reach::Network) {
            Ok(config) => Ok(Arc::new(Parsed {
                config,
                payload: self.payload.clone(),
            })),
            Err(Faulty { failure, .. }) => Err(failure.into_lines()),
        }
    }
}

struct Parsed {
    config: Config,
    payload: PayloadArguments,
}

impl Configuration for Parsed {
    fn installation(&self) -> Option<&Installation> {
        self.config.installation.as_ref()
    }
    fn admin(&self) -> SocketAddr {
        self.config.admin.listen
    }
    fn providers(&self, identity: &Identity) -> Vec<Arc<dyn Provider>> {
        let dir = self.config.state_dir.as_deref();
        let dir = dir.unwrap_or(Path::new(STATE_DIR));
        self.config.providers(identity, dir, &self.payload)
    }
    fn abilities(&self, provider: &str) -> Option<ProviderAbilities> {
        self.config.abilities(provider)
    }
    fn refuses(&self, proxy: &Proxy) -> Vec<Finding> {
        self.config.refuses(proxy)
    }
}
