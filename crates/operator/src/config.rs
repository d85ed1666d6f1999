//! The configuration, as far as the operator knows it: it knows no provider by name, and takes
//! a changed file on while it runs.

use egress_api::v1alpha1::{ProviderAbilities, Proxy};
use egress_core::{Identity, Installation, finding::Finding};
use egress_provider::Provider;
use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};
use tokio::sync::watch;

/// From one look at the file to the next. It is read and compared: a mounted ConfigMap changes
/// by a link, and some mounts tell of no change.
const PERIOD: Duration = Duration::from_secs(2);

/// A configuration without faults.
pub trait Configuration: Send + Sync {
    /// The name of this deployment, where it is written.
    fn installation(&self) -> Option<&Installation>;
    /// Where the admin page listens.
    fn admin(&self) -> SocketAddr;
    /// Makes the providers.
    fn providers(&self, identity: &Identity) -> Vec<Arc<dyn Provider>>;
    /// What the provider of this name can do, if it is configured.
    fn abilities(&self, provider: &str) -> Option<ProviderAbilities>;
    /// What stands against a Proxy's place at its provider.
    fn refuses(&self, proxy: &Proxy) -> Vec<Finding>;
}

/// Where the configuration is written.
pub trait ConfigSource: Send + Sync {
    /// The text as it is now. It may block.
    fn read(&self) -> io::Result<String>;
    /// Reads a text; everything that is wrong with it at once.
    fn parse(&self, text: io::Result<String>) -> Result<Arc<dyn Configuration>, Vec<String>>;
}

/// Is told of every change of the file: whether it was taken on, and what is wrong with it.
pub type Reloaded = Arc<dyn Fn(bool, &[String]) + Send + Sync>;

/// The configuration in force.
pub struct Present {
    source: Arc<dyn ConfigSource>,
    config: RwLock<Arc<dyn Configuration>>,
    /// As it was last taken on or refused; `None`: it could not be read.
    text: Mutex<Option<String>>,
    troubles: Mutex<Vec<String>>,
    /// Rises with every configuration that is taken on.
    taken: watch::Sender<u64>,
}

impl Present {
    /// Reads it for the first time: a fault refuses the start.
    pub fn load(source: Arc<dyn ConfigSource>) -> Result<Self, Vec<String>> {
        let text = source.read();
        let kept = text.as_ref().ok().cloned();
        let config = source.parse(text)?;
        Ok(Self {
            source,
            config: RwLock::new(config),
            text: Mutex::new(kept),
            troubles: Mutex::default(),
            taken: watch::Sender::new(0),
        })
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<dyn Configuration> {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        config.clone()
    }

    /// What is wrong with the file now, or not in force.
    pub fn troubles(&self) -> Vec<String> {
        let held = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        held.clone()
    }

    /// Changes whenever another configuration is in force.
    pub fn taken(&self) -> watch::Receiver<u64> {
        self.taken.subscribe()
    }

    /// Takes changed files on for as long as it is polled.
    pub async fn follow_forever(self: Arc<Self>, reloaded: Reloaded) {
        loop {
            tokio::time::sleep(PERIOD).await;
            let this = self.clone();
            // A mount that hangs holds up this task alone.
            let read = tokio::task::spawn_blocking(move || this.source.read());
            let Ok(read) = read.await else { return };
            if let Some(well) = self.look(read) {
                reloaded(well, &self.troubles());
            }
        }
    }

    /// Takes a text on that differs from the last; whether it could.
    pub fn look(&self, read: io::Result<String>) -> Option<bool> {
        let text = read.as_ref().ok().cloned();
        let mut kept = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        if text == *kept {
            return None;
        }
        *kept = text;
        drop(kept);
        let (well, troubles) = match self.source.parse(read) {
            Ok(config) => {
                let waiting = self.not_in_force(config.as_ref());
                *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
                self.taken.send_modify(|n| *n += 1);
                tracing::info!("the changed configuration is in force");
                for line in &waiting {
                    tracing::warn!("{line}");
                }
                (true, waiting)
            }
            Err(lines) => {
                for line in &lines {
                    tracing::error!("{line}: the configuration before stays in force");
                }
                (false, lines)
            }
        };
        *self.troubles.lock().unwrap_or_else(PoisonError::into_inner) = troubles;
        Some(well)
    }

    fn not_in_force(&self, new: &dyn Configuration) -> Vec<String> {
        let old = self.config();
        let mut findings = Vec::new();
        let mut differs = |field: &str, now: String, before: String| {
            findings.push(Finding::new(
                field,
                now,
                format!("changed while the operator runs, and {before} stays in force"),
                "restart the operator to take it on",
            ));
        };
        let shown = |c: &dyn Configuration| {
            c.installation()
                .map_or_else(|| "(none)".to_owned(), ToString::to_string)
        };
        if new.installation() != old.installation() {
            differs("installation", shown(new), shown(old.as_ref()));
        }
        if new.admin() != old.admin() {
            differs(
                "admin.listen",
                new.admin().to_string(),
                old.admin().to_string(),
            );
        }
        findings.iter().map(ToString::to_string).collect()
    }
}
