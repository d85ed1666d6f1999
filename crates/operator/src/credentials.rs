//! Passwords and user data from Secrets and ConfigMaps of the cluster.
//!
//! A generated password lies in the Secret `<name>-credentials`, owned by its Proxy: it is there
//! before the machine is asked for, and the cluster removes it with its owner. Somebody who
//! removes it sees it come back, for as long as a process remembers what it held. The user's own
//! are read when they are needed. A Secret is believed for a while, so that steady passes ask
//! nothing; what changes in it is noticed after that.

#[cfg(test)]
mod tests;

use crate::{
    api::{FIELD_MANAGER, Failure, Write, in_time},
    cache::Cache,
};
use async_trait::async_trait;
use egress_api::{
    manifest,
    v1alpha1::{API_VERSION, PROXY_KIND},
};
use egress_core::{
    ErrorClass, ProxyId,
    proxy::{AuthSource, SourceKind, Trouble, UserDataRef},
};
use egress_engine::{Credential, Credentials, Found, FoundText};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Client, api::PostParams};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How long a Secret of the user's is believed: after that a new password is noticed.
pub const BELIEF: Duration = Duration::from_secs(30);
/// The same of a Secret of ours, of which there is one for each Proxy.
pub const OWN_BELIEF: Duration = Duration::from_mins(10);
/// What a Secret of ours bears.
const LABEL: &str = "egress-proxies.io/credentials";
const GENERATED: &str = "generated";
/// The longest name of an object.
const MAX_NAME: usize = 253;

/// What was read of a Secret, and until when it is believed.
struct Believed {
    credential: Credential,
    /// The UID of the Proxy that owns it, where it is one of ours.
    owner: Option<String>,
    until: Instant,
}

/// See the module.
pub struct KubeCredentials {
    client: Client,
    cache: Arc<Cache>,
    believed: Mutex<HashMap<(String, String), Believed>>,
}

/// The name of the Secret that holds the generated password of a Proxy.
pub fn secret_name(id: &ProxyId) -> String {
    let name = format!("{}-credentials", id.name());
    if name.len() <= MAX_NAME {
        return name;
    }
    // Two long names that are alike at one end have Secrets of their own.
    let digest = data_encoding::BASE32_NOPAD.encode(&Sha256::digest(id.name())[..10]);
    format!("proxy-{}-credentials", digest.to_ascii_lowercase())
}

impl KubeCredentials {
    /// Reads and writes through this client; owners are the objects of this cache.
    pub fn new(client: Client, cache: Arc<Cache>) -> Self {
        Self {
            client,
            cache,
            believed: Mutex::default(),
        }
    }

    fn believed(&self) -> MutexGuard<'_, HashMap<(String, String), Believed>> {
        self.believed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self, id: &ProxyId, name: &str) -> Result<Option<Secret>, Trouble> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), id.namespace());
        let what = || format!("Secret {}/{name}", id.namespace());
        in_time(api.get_opt(name))
            .await
            .map_err(|failure| trouble(&what(), &failure))
    }

    async fn users(&self, id: &ProxyId, name: &str) -> Result<Found, Trouble> {
        let key = (id.namespace().to_owned(), name.to_owned());
        if let Some(credential) = self.recall(&key, None) {
            return Ok(Found::Known(credential));
        }
        let what = format!("Secret {}/{name}", id.namespace());
        let Some(secret) = self.read(id, name).await? else {
            return Ok(Found::Missing(format!(
                "{what} does not exist: create it, with the keys username and password"
            )));
        };
        Ok(match credential(&secret) {
            Ok(credential) => {
                self.believe(key, credential.clone(), None, BELIEF);
                Found::Known(credential)
            }
            Err(why) => Found::Missing(format!("{what}: {why}")),
        })
    }

    async fn generated(&self, id: &ProxyId) -> Result<Found, Trouble> {
        let name = secret_name(id);
        let Some(uid) = self.owner(id) else {
            return Ok(Found::Nothing);
        };
        let key = (id.namespace().to_owned(), name.clone());
        if let Some(credential) = self.recall(&key, Some(&uid)) {
            return Ok(Found::Known(credential));
        }
        let Some(secret) = self.read(id, &name).await? else {
            return match self.remembered(&key, &uid) {
                Some(credential) if self.stays(id) => self.keep(id, uid, credential).await,
                _ => Ok(Found::Nothing),
            };
        };
        let what = format!("Secret {}/{name}", id.namespace());
        if !is_owned(&secret, &uid) {
            return Ok(Found::Missing(format!(
                "{what} belongs to something else, and the generated password cannot be kept \
                 there: remove it, or wait for the cluster to remove it with its former owner"
            )));
        }
        Ok(match credential(&secret) {
            Ok(credential) => {
                self.believe(key, credential.clone(), Some(uid), OWN_BELIEF);
                Found::Known(credential)
            }
            Err(why) => Found::Missing(format!(
                "{what}: {why}; or remove the Secret, and the Proxy, to have a new password made"
            )),
        })
    }

    fn owner(&self, id: &ProxyId) -> Option<String> {
        self.cache.get(id).map(|held| held.uid.clone())
    }

    /// Whether nobody asked for the deletion of this Proxy, which takes its Secret along.
    fn stays(&self, id: &ProxyId) -> bool {
        self.cache.get(id).is_some_and(|held| !held.deleting)
    }

    fn recall(&self, key: &(String, String), owner: Option<&String>) -> Option<Credential> {
        let believed = self.believed();
        let found = believed.get(key)?;
        let good = found.until > Instant::now() && found.owner.as_ref() == owner;
        good.then(|| found.credential.clone())
    }

    /// What a Secret of ours held when it was read last, also when that is long ago.
    fn remembered(&self, key: &(String, String), owner: &String) -> Option<Credential> {
        let believed = self.believed();
        let found = believed
            .get(key)
            .filter(|b| b.owner.as_ref() == Some(owner));
        found.map(|believed| believed.credential.clone())
    }

    fn believe(
        &self,
        key: (String, String),
        credential: Credential,
        owner: Option<String>,
        time: Duration,
    ) {
        // Not all at once, of Proxies that were made together.
        let spread = u32::try_from(key.1.bytes().map(u64::from).sum::<u64>() % 100).unwrap_or(0);
        let until = Instant::now() + time - time / 400 * spread;
        self.believed().insert(
            key,
            Believed {
                credential,
                owner,
                until,
            },
        );
    }

    async fn make(&self, id: &ProxyId) -> Result<Found, Trouble> {
        let Some(uid) = self.owner(id) else {
            return Err(transient(format!("{id} went meanwhile")));
        };
        let made = Credential::generate(1)
            .map_err(|e| transient(format!("the kernel gives no random bytes: {e}")))?;
        self.keep(id, uid, made).await
    }

    /// Writes a password into its Secret, which is not there.
    async fn keep(&self, id: &ProxyId, uid: String, made: Credential) -> Result<Found, Trouble> {
        let secret = secret(id, &uid, &made);
        let api: Api<Secret> = Api::namespaced(self.client.clone(), id.namespace());
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PostParams::default()
        };
        let name = secret_name(id);
        let write = Write {
            method: "POST",
            resource: "secrets",
            namespace: Some(id.namespace()),
            name: &name,
        };
        match write.in_time(api.create(&params, &secret)).await {
            Ok(_) => {
                let key = (id.namespace().to_owned(), name);
                self.believe(key, made.clone(), Some(uid), OWN_BELIEF);
                Ok(Found::Known(made))
            }
            // It is there by now: the next look shows whose it is.
            Err(Failure::Conflict) => Err(transient(format!(
                "Secret {}/{name} was made meanwhile, and is looked at again",
                id.namespace()
            ))),
            Err(failure) => {
                let what = format!("Secret {}/{name}", id.namespace());
                Err(trouble(&what, &failure))
            }
        }
    }
}

#[async_trait]
impl Credentials for KubeCredentials {
    async fn find(&self, id: &ProxyId, source: &AuthSource) -> Result<Found, Trouble> {
        match source {
            AuthSource::None => Ok(Found::NotNeeded),
            AuthSource::Secret(name) => self.users(id, name).await,
            AuthSource::Generated => self.generated(id).await,
        }
    }

    async fn ensure(&self, id: &ProxyId, source: &AuthSource) -> Result<Found, Trouble> {
        let found = self.find(id, source).await?;
        if !matches!((&found, source), (Found::Nothing, AuthSource::Generated)) {
            return Ok(found);
        }
        self.make(id).await
    }

    async fn cloud_config(&self, id: &ProxyId, source: &UserDataRef) -> Result<FoundText, Trouble> {
        let what = source.named(id);
        let missing = || {
            FoundText::Missing(format!(
                "{what} does not exist: create it, with the key {}",
                source.key
            ))
        };
        let text: Option<SecretString> = match source.kind {
            SourceKind::Secret => {
                let Some(secret) = self.read(id, &source.name).await? else {
                    return Ok(missing());
                };
                texts(&secret).remove(&source.key)
            }
            SourceKind::ConfigMap => {
                let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), id.namespace());
                let found = in_time(api.get_opt(&source.name)).await;
                let Some(map) = found.map_err(|failure| trouble(&what, &failure))? else {
                    return Ok(missing());
                };
                let text = map.data.unwrap_or_default().remove(&source.key);
                text.map(SecretString::from)
            }
        };
        let text = text.as_ref().map(ExposeSecret::expose_secret);
        Ok(FoundText::at(id, source, text))
    }

    async fn forget(&self, id: &ProxyId) -> Result<(), Trouble> {
        // The Secret goes with its owner.
        let key = (id.namespace().to_owned(), secret_name(id));
        self.believed().remove(&key);
        Ok(())
    }
}

/// The texts of a Secret; what is no text is left out.
fn texts(secret: &Secret) -> BTreeMap<String, SecretString> {
    let text = |(key, value): (&String, &ByteString)| {
        let text = String::from_utf8(value.0.clone()).ok()?;
        Some((key.clone(), text.into()))
    };
    secret.data.iter().flatten().filter_map(text).collect()
}

fn credential(secret: &Secret) -> Result<Credential, String> {
    let read = manifest::Secret {
        metadata: (&secret.metadata).into(),
        data: texts(secret),
    };
    match read.basic_credentials() {
        Ok(basic) => Ok(Credential {
            user: basic.username,
            password: basic.password,
            generation: 1,
        }),
        Err(findings) => {
            let all: Vec<String> = findings.iter().map(ToString::to_string).collect();
            Err(all.join("; "))
        }
    }
}

/// Whether a Secret is that of a Proxy: it owns it, or it is one of ours that nobody owns, as a
/// restore from a backup leaves it. Its former owner's UID would have the cluster remove it.
fn is_owned(secret: &Secret, uid: &str) -> bool {
    let owners = secret.metadata.owner_references.as_deref();
    let owners = owners.unwrap_or_default();
    let labels = secret.metadata.labels.iter().flatten();
    let mut labels = labels.filter(|(name, _)| *name == LABEL);
    let is_ours = labels.any(|(_, value)| value == GENERATED);
    let by_it = |owner: &OwnerReference| owner.kind == PROXY_KIND && owner.uid == uid;
    owners.iter().any(by_it) || (owners.is_empty() && is_ours)
}

fn secret(id: &ProxyId, uid: &str, credential: &Credential) -> Secret {
    let labels = [
        ("app.kubernetes.io/managed-by", FIELD_MANAGER.to_owned()),
        (LABEL, GENERATED.to_owned()),
    ];
    let data = [
        ("username", credential.user.clone()),
        ("password", credential.password.expose_secret().to_owned()),
    ];
    Secret {
        metadata: ObjectMeta {
            name: Some(secret_name(id)),
            namespace: Some(id.namespace().to_owned()),
            labels: Some(labels.map(|(k, v)| (k.to_owned(), v)).into()),
            owner_references: Some(vec![OwnerReference {
                api_version: API_VERSION.to_owned(),
                kind: PROXY_KIND.to_owned(),
                name: id.name().to_owned(),
                uid: uid.to_owned(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/basic-auth".to_owned()),
        data: Some(
            data.map(|(k, v)| (k.to_owned(), ByteString(v.into_bytes())))
                .into(),
        ),
        ..Secret::default()
    }
}

fn trouble(what: &str, failure: &Failure) -> Trouble {
    transient(format!("{what}: {failure}"))
}

fn transient(text: String) -> Trouble {
    Trouble {
        class: ErrorClass::Transient,
        text,
    }
}
