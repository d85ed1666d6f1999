//! Passwords and user data in standalone mode: generated passwords in the state directory, the
//! user's own, and cloud-config, in Secrets and ConfigMaps among the manifests.

use async_trait::async_trait;
use egress_api::manifest::{ConfigMap, Secret};
use egress_core::{
    ErrorClass, ProxyId,
    proxy::{AuthSource, SourceKind, Trouble, UserDataRef},
};
use egress_engine::{
    Credential, Credentials, Found, FoundText,
    store::{StoreError, file},
};
use secrecy::{ExposeSecret, SecretString};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError, RwLock},
};

/// Namespace and name of a Secret or ConfigMap.
pub type ObjectName = (String, String);
/// The Secrets among the manifests.
pub type Secrets = BTreeMap<ObjectName, Secret>;
/// The ConfigMaps among the manifests.
pub type ConfigMaps = BTreeMap<ObjectName, ConfigMap>;

/// The Secrets and ConfigMaps that came, went or changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    secrets: BTreeSet<ObjectName>,
    config_maps: BTreeSet<ObjectName>,
}

impl Changed {
    /// Whether this one did.
    pub fn has(&self, kind: SourceKind, name: &ObjectName) -> bool {
        match kind {
            SourceKind::Secret => self.secrets.contains(name),
            SourceKind::ConfigMap => self.config_maps.contains(name),
        }
    }
}

/// See the module.
pub struct StandaloneCredentials {
    files: file::Credentials,
    /// What was read or made by this process: a password does not change while it runs.
    known: Mutex<HashMap<ProxyId, Credential>>,
    secrets: RwLock<Secrets>,
    config_maps: RwLock<ConfigMaps>,
}

impl StandaloneCredentials {
    /// Keeps generated passwords in these files.
    pub fn new(files: file::Credentials) -> Self {
        Self {
            files,
            known: Mutex::default(),
            secrets: RwLock::default(),
            config_maps: RwLock::default(),
        }
    }

    /// Takes the Secrets and ConfigMaps of a scan. Those that an incomplete one lacks are not
    /// known to be gone, and stay.
    pub fn set_sources(
        &self,
        secrets: Secrets,
        config_maps: ConfigMaps,
        is_complete: bool,
    ) -> Changed {
        Changed {
            secrets: take(&self.secrets, secrets, is_complete, same),
            config_maps: take(&self.config_maps, config_maps, is_complete, |one, other| {
                one.data == other.data
            }),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<ProxyId, Credential>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn secret(&self, id: &ProxyId, name: &str) -> Found {
        let secrets = self.secrets.read().unwrap_or_else(PoisonError::into_inner);
        let key = (id.namespace().to_owned(), name.to_owned());
        let Some(secret) = secrets.get(&key) else {
            return Found::Missing(format!(
                "Secret {}/{name} is not among the manifests: add it, with the keys username and password",
                id.namespace()
            ));
        };
        match secret.basic_credentials() {
            Ok(basic) => Found::Known(Credential {
                user: basic.username,
                password: basic.password,
                generation: 1,
            }),
            Err(findings) => {
                let all: Vec<String> = findings.iter().map(ToString::to_string).collect();
                Found::Missing(format!(
                    "Secret {}/{name}: {}",
                    id.namespace(),
                    all.join("; ")
                ))
            }
        }
    }

    fn text(&self, id: &ProxyId, source: &UserDataRef) -> FoundText {
        let name = (id.namespace().to_owned(), source.name.clone());
        let at = |text: Option<&str>| FoundText::at(id, source, text);
        let found = match source.kind {
            SourceKind::Secret => {
                let held = self.secrets.read().unwrap_or_else(PoisonError::into_inner);
                let text = |secret: &Secret| {
                    at(secret
                        .data
                        .get(&source.key)
                        .map(ExposeSecret::expose_secret))
                };
                held.get(&name).map(text)
            }
            SourceKind::ConfigMap => {
                let held = self.config_maps.read();
                let held = held.unwrap_or_else(PoisonError::into_inner);
                let text = |map: &ConfigMap| at(map.data.get(&source.key).map(String::as_str));
                held.get(&name).map(text)
            }
        };
        found.unwrap_or_else(|| {
            FoundText::Missing(format!(
                "{} is not among the manifests: add it, with the key {}",
                source.named(id),
                source.key
            ))
        })
    }

    async fn generated(&self, id: &ProxyId) -> Result<Found, Trouble> {
        if let Some(credential) = self.known().get(id).cloned() {
            return Ok(Found::Known(credential));
        }
        match self.files.load(id).await.map_err(|e| told(&e))? {
            Some(credential) => {
                self.known().insert(id.clone(), credential.clone());
                Ok(Found::Known(credential))
            }
            None => Ok(Found::Nothing),
        }
    }
}

/// Puts the objects of a scan in the place of those held. Answers with the names of those that
/// came, went or changed.
fn take<T: Clone>(
    held: &RwLock<BTreeMap<ObjectName, T>>,
    mut scanned: BTreeMap<ObjectName, T>,
    is_complete: bool,
    same: impl Fn(&T, &T) -> bool,
) -> BTreeSet<ObjectName> {
    let mut held = held.write().unwrap_or_else(PoisonError::into_inner);
    if !is_complete {
        for (name, object) in held.iter() {
            scanned
                .entry(name.clone())
                .or_insert_with(|| object.clone());
        }
    }
    let stays = |name: &ObjectName| match (held.get(name), scanned.get(name)) {
        (Some(one), Some(other)) => same(one, other),
        _ => false,
    };
    let changed = held
        .keys()
        .chain(scanned.keys())
        .filter(|name| !stays(name))
        .cloned()
        .collect();
    *held = scanned;
    changed
}

fn same(one: &Secret, other: &Secret) -> bool {
    let value = |(key, value): (&String, &SecretString)| {
        other.data.get(key).map(ExposeSecret::expose_secret) == Some(value.expose_secret())
    };
    one.data.len() == other.data.len() && one.data.iter().all(value)
}

fn told(error: &StoreError) -> Trouble {
    Trouble {
        class: ErrorClass::Transient,
        text: error.to_string(),
    }
}

#[async_trait]
impl Credentials for StandaloneCredentials {
    async fn find(&self, id: &ProxyId, source: &AuthSource) -> Result<Found, Trouble> {
        match source {
            AuthSource::None => Ok(Found::NotNeeded),
            AuthSource::Secret(name) => Ok(self.secret(id, name)),
            AuthSource::Generated => self.generated(id).await,
        }
    }

    async fn ensure(&self, id: &ProxyId, source: &AuthSource) -> Result<Found, Trouble> {
        let found = self.find(id, source).await?;
        if !matches!((&found, source), (Found::Nothing, AuthSource::Generated)) {
            return Ok(found);
        }
        let credential = Credential::generate(1).map_err(|e| Trouble {
            class: ErrorClass::Transient,
            text: format!("the kernel gives no random bytes: {e}"),
        })?;
        self.files
            .save(id, &credential)
            .await
            .map_err(|e| told(&e))?;
        self.known().insert(id.clone(), credential.clone());
        Ok(Found::Known(credential))
    }

    async fn cloud_config(&self, id: &ProxyId, source: &UserDataRef) -> Result<FoundText, Trouble> {
        Ok(self.text(id, source))
    }

    async fn forget(&self, id: &ProxyId) -> Result<(), Trouble> {
        self.known().remove(id);
        self.files.remove(id).await.map_err(|e| told(&e))
    }
}

#[cfg(test)]
mod tests;
