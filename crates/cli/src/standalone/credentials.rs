//! Passwords in standalone mode: generated ones in the state directory, the user's own in
//! Secrets among the manifests.

use async_trait::async_trait;
use egress_api::manifest::Secret;
use egress_core::{
    ErrorClass, ProxyId,
    proxy::{AuthSource, Trouble},
};
use egress_engine::{
    Credential, Credentials, Found,
    store::{StoreError, file},
};
use secrecy::{ExposeSecret, SecretString};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError, RwLock},
};

/// Namespace and name of a Secret.
pub type SecretName = (String, String);
/// The Secrets among the manifests.
pub type Secrets = BTreeMap<SecretName, Secret>;

/// See the module.
pub struct StandaloneCredentials {
    files: file::Credentials,
    /// What was read or made by this process: a password does not change while it runs.
    known: Mutex<HashMap<ProxyId, Credential>>,
    secrets: RwLock<Secrets>,
}

impl StandaloneCredentials {
    /// Keeps generated passwords in these files.
    pub fn new(files: file::Credentials) -> Self {
        Self {
            files,
            known: Mutex::default(),
            secrets: RwLock::default(),
        }
    }

    /// Takes the Secrets of the last scan. Answers with the names of those that came, went or
    /// changed.
    pub fn set_secrets(&self, secrets: Secrets) -> BTreeSet<SecretName> {
        let mut held = self.secrets.write().unwrap_or_else(PoisonError::into_inner);
        let changed = held
            .keys()
            .chain(secrets.keys())
            .filter(|name| !same(held.get(*name), secrets.get(*name)))
            .cloned()
            .collect();
        *held = secrets;
        changed
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

fn same(one: Option<&Secret>, other: Option<&Secret>) -> bool {
    let (Some(one), Some(other)) = (one, other) else {
        return one.is_none() && other.is_none();
    };
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

    async fn forget(&self, id: &ProxyId) -> Result<(), Trouble> {
        self.known().remove(id);
        self.files.remove(id).await.map_err(|e| told(&e))
    }
}
