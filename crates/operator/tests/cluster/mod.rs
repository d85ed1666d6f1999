//! A cluster and a hypervisor in memory, with people who use them.

use async_trait::async_trait;
use egress_api::v1alpha1::{ProviderAbilities, Proxy};
use egress_core::{
    Identity, Installation, ProviderName, finding::Finding, proxy::ServingFault,
    proxy_config::IdentityAnswer,
};
use egress_engine::{Credential, Prober, probe::Fault};
use egress_operator::{
    ConfigSource, Configuration, Figures, LeaseSettings, Mirror, Operator, Settings,
    double::{Server, Target, Verb},
};
use egress_provider::{
    Provider,
    memory::{self, Memory, Physics, World},
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinHandle, time::Instant};

/// The name of the only replica.
pub const REPLICA: &str = "only";
const NAMESPACE: &str = "shop";
/// Nothing takes longer than this.
const DEADLINE: Duration = Duration::from_mins(30);

pub fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// See the module.
pub struct Cluster {
    pub server: Server,
    pub world: Arc<World>,
    installation: &'static str,
    /// The configuration file.
    config: Arc<Mutex<String>>,
}

impl Cluster {
    pub fn new() -> Self {
        Self::on(Physics::default())
    }

    /// Beside a hypervisor like this.
    pub fn on(physics: Physics) -> Self {
        Self {
            server: Server::new(),
            world: World::new(physics),
            installation: "a",
            config: Arc::new(Mutex::new("lab".into())),
        }
    }

    /// Writes the configuration file: names of providers, or something broken.
    pub fn configure(&self, text: &str) {
        text.clone_into(&mut self.config.lock().unwrap());
    }

    /// A ProxyProvider object.
    pub fn provider(&self, name: &str) -> Option<Value> {
        let target = Target {
            resource: "proxyproviders".into(),
            namespace: None,
            ..Target::proxies(Verb::Get, "", Some(name))
        };
        self.server.ask(&target, &Value::Null).ok()
    }

    /// The same cluster, where the operator has another installation id.
    pub fn rename_installation(&self, installation: &'static str) -> Self {
        Self {
            server: self.server.clone(),
            world: self.world.clone(),
            installation,
            config: self.config.clone(),
        }
    }

    /// An empty cluster beside the same hypervisor.
    pub fn in_another_cluster(&self) -> Self {
        let server = Server::new();
        // Its UIDs are others.
        for n in 0..5 {
            server.create_proxy("other", &format!("x{n}"), &json!({}));
            server.delete_proxy("other", &format!("x{n}"));
        }
        Self {
            server,
            world: self.world.clone(),
            installation: self.installation,
            config: self.config.clone(),
        }
    }

    /// Starts a replica of the operator.
    pub async fn start(&self, name: &str) -> Replica {
        let source = Source {
            world: self.world.clone(),
            installation: self.installation.parse().unwrap(),
            config: self.config.clone(),
        };
        let settings = Settings {
            client: self.server.client(),
            source: Arc::new(source),
            namespace: None,
            lease: LeaseSettings {
                namespace: "system".into(),
                name: "operator".into(),
                identity: name.into(),
                duration: secs(15),
            },
            prober: Arc::new(GuestProber(self.world.clone())),
            mirror: Mirror::Objects,
            figures: Figures::default(),
            registry: Registry::default(),
        };
        let operator = Operator::prepare(settings).await.expect("it is sound");
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(operator.run(async {
            let _ = stopped.await;
        }));
        Replica {
            stop: Some(stop),
            task,
        }
    }

    pub fn apply(&self, name: &str) {
        self.apply_at(name, "lab");
    }
    pub fn apply_at(&self, name: &str, provider: &str) {
        self.server
            .create_proxy(NAMESPACE, name, &json!({"provider": provider}));
    }
    pub fn delete(&self, name: &str) {
        self.server.delete_proxy(NAMESPACE, name);
    }
    pub fn patch(&self, name: &str, patch: &Value) {
        self.server.patch_proxy(NAMESPACE, name, patch).unwrap();
    }
    pub fn proxy(&self, name: &str) -> Value {
        self.server.proxy(NAMESPACE, name).unwrap_or_default()
    }
    /// Puts a saved object back, as backup tools do: without what the server sets.
    pub fn restore(&self, saved: &Value) {
        let body = json!({
            "apiVersion": saved["apiVersion"], "kind": "Proxy", "spec": saved["spec"],
            "metadata": {
                "name": saved["metadata"]["name"],
                "annotations": saved["metadata"]["annotations"],
                "finalizers": saved["metadata"]["finalizers"],
            },
        });
        let create = Target::proxies(Verb::Create, NAMESPACE, None);
        self.server.ask(&create, &body).unwrap();
    }
    pub fn secret(&self, name: &str) -> Option<Value> {
        let target = Target {
            group: "v1".into(),
            resource: "secrets".into(),
            ..Target::proxies(Verb::Get, NAMESPACE, Some(name))
        };
        self.server.ask(&target, &Value::Null).ok()
    }
    /// The texts of all events with this reason.
    pub fn events(&self, reason: &str) -> Vec<String> {
        self.events_in(NAMESPACE, reason)
    }
    /// The same of another namespace.
    pub fn events_in(&self, namespace: &str, reason: &str) -> Vec<String> {
        let target = Target {
            group: "events.k8s.io/v1".into(),
            resource: "events".into(),
            ..Target::proxies(Verb::List, namespace, None)
        };
        let all = self.server.ask(&target, &Value::Null).unwrap();
        let all = all["items"].as_array().cloned().unwrap_or_default();
        all.iter()
            .filter(|event| event["reason"] == reason)
            .map(|event| event["note"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
    /// Status and message of a condition.
    pub fn condition(&self, name: &str, of: &str) -> (String, String) {
        let found = self.find(name, of);
        let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("message"))
    }
    pub fn condition_reason(&self, name: &str, of: &str) -> String {
        self.find(name, of)["reason"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
    fn find(&self, name: &str, of: &str) -> Value {
        let object = self.proxy(name);
        let all = object["status"]["conditions"].as_array().cloned();
        let mut all = all.unwrap_or_default().into_iter();
        all.find(|c| c["type"] == of).unwrap_or_default()
    }

    /// How many machines there are.
    pub fn machines(&self) -> usize {
        self.world.inventory().machines.len()
    }

    pub async fn wait(&self, what: &str, until: impl Fn() -> bool) {
        let begun = Instant::now();
        while !until() {
            assert!(begun.elapsed() < DEADLINE, "waited for {what} in vain");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    pub async fn wait_serving(&self, name: &str) {
        let what = format!("{name} to serve");
        self.wait(&what, || self.condition(name, "Serving").0 == "True")
            .await;
    }
    pub async fn wait_gone(&self, name: &str) {
        let what = format!("{name} to be gone");
        self.wait(&what, || self.server.proxy(NAMESPACE, name).is_none())
            .await;
    }
}

/// A running operator; killed when it is dropped.
pub struct Replica {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), String>>,
}

impl Replica {
    /// Ends it as SIGTERM does.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        let ended = (&mut self.task).await.expect("it does not panic");
        assert_eq!(ended, Ok(()));
    }
    /// Ends it as SIGKILL does.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Source {
    world: Arc<World>,
    installation: Installation,
    config: Arc<Mutex<String>>,
}

impl ConfigSource for Source {
    fn read(&self) -> io::Result<String> {
        Ok(self.config.lock().unwrap().clone())
    }
    fn parse(&self, text: io::Result<String>) -> Result<Arc<dyn Configuration>, Vec<String>> {
        let text = text.map_err(|e| vec![e.to_string()])?;
        if text.contains('!') {
            return Err(vec!["config.yaml: !: is no name".into()]);
        }
        Ok(Arc::new(Lab {
            names: text.split_whitespace().map(ToOwned::to_owned).collect(),
            world: self.world.clone(),
            installation: self.installation.clone(),
        }))
    }
}

/// A configuration with these providers, all on one hypervisor.
struct Lab {
    names: Vec<String>,
    world: Arc<World>,
    installation: Installation,
}

impl Configuration for Lab {
    fn installation(&self) -> Option<&Installation> {
        Some(&self.installation)
    }
    fn admin(&self) -> SocketAddr {
        ([127, 0, 0, 1], 0).into()
    }
    fn providers(&self, identity: &Identity) -> Vec<Arc<dyn Provider>> {
        let provider = |name: &String| -> Arc<dyn Provider> {
            let (name, world) = (name.parse::<ProviderName>().unwrap(), self.world.clone());
            let settings = memory::Settings::default();
            Arc::new(Memory::new(name, identity.clone(), world, settings))
        };
        self.names.iter().map(provider).collect()
    }
    fn abilities(&self, provider: &str) -> Option<ProviderAbilities> {
        let known = self.names.iter().any(|name| name == provider);
        known.then_some(ProviderAbilities {
            kind: "memory",
            user_data: true,
        })
    }
    fn refuses(&self, _: &Proxy) -> Vec<Finding> {
        Vec::new()
    }
}

/// Asks the guests of a [`World`].
struct GuestProber(Arc<World>);

#[async_trait]
impl Prober for GuestProber {
    async fn identify(
        &self,
        endpoint: SocketAddr,
        credential: Option<&Credential>,
        _: Duration,
    ) -> Result<IdentityAnswer, Fault> {
        let guest = self.0.guest_at(endpoint.ip()).ok_or_else(|| {
            let said = format!("nothing listens at {endpoint}");
            (ServingFault::PortClosed, said)
        })?;
        Ok(IdentityAnswer {
            key: guest.key,
            attempt: guest.attempt,
            credential_generation: credential.map_or(0, |c| c.generation),
            version: "test".into(),
            draining: false,
        })
    }
}
