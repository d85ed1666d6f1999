//! What a machine is given beside its spec: the passwords of proxies, which never leave this
//! process but for the user's own store, and the user's cloud-config.

use egress_core::{
    ProxyId,
    machine::CloudConfig,
    proxy::{AuthSource, Trouble, UserDataRef},
    proxy_config::{Auth, Verifier},
};
use secrecy::{ExposeSecret, SecretString};

/// One user name and password.
#[derive(Clone, Debug)]
pub struct Credential {
    /// The user name.
    pub user: String,
    /// The password.
    pub password: SecretString,
    /// Rises with every exchange, from 1.
    pub generation: u32,
}

impl Credential {
    /// What the machine is given: a verifier, never the password.
    pub fn auth(&self) -> Auth {
        Auth::Basic {
            verifiers: vec![Verifier::new(&self.user, self.password.expose_secret())],
            generation: self.generation,
        }
    }
}

/// What a look for credentials found.
#[derive(Clone, Debug)]
pub enum Found {
    /// The proxy has no auth.
    NotNeeded,
    /// Here they are.
    Known(Credential),
    /// None were made, or they are lost.
    Nothing,
    /// The user's Secret is missing or lacks a key; the text says which, and what to do.
    Missing(String),
}

/// What a look for a user's cloud-config found. `Debug` does not show the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundText {
    /// Here it is.
    Here(CloudConfig),
    /// It cannot be used; the text says why and what to do.
    Missing(String),
}

impl FoundText {
    /// The object is there, and holds this text under the key, or none.
    pub fn at(id: &ProxyId, source: &UserDataRef, text: Option<&str>) -> Self {
        let (object, key) = (source.named(id), &source.key);
        match text {
            None => Self::Missing(format!("{object} lacks the key {key}: add it")),
            Some(text) if text.len() > CloudConfig::MAX_BYTES => Self::Missing(format!(
                "{object}: the text of the key {key} has {} bytes: shorten it to {}, what a Secret \
                 or ConfigMap can hold",
                text.len(),
                CloudConfig::MAX_BYTES
            )),
            Some(text) => Self::Here(CloudConfig::new(text.to_owned())),
        }
    }
}

/// Where passwords and the user's texts are kept.
#[async_trait::async_trait]
pub trait Credentials: Send + Sync {
    /// Looks; makes nothing.
    async fn find(&self, id: &ProxyId, source: &AuthSource) -> Result<Found, Trouble>;
    /// Finds them, or makes generated ones and keeps them before it returns. Of a Secret
    /// that is missing: [`Found::Missing`].
    async fn ensure(&self, id: &ProxyId, source: &AuthSource) -> Result<Found, Trouble>;
    /// The cloud-config that a Proxy refers to, as it is now.
    async fn cloud_config(&self, id: &ProxyId, source: &UserDataRef) -> Result<FoundText, Trouble>;
    /// Removes generated ones. Of none: `Ok`.
    async fn forget(&self, id: &ProxyId) -> Result<(), Trouble>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::id;
    use egress_core::proxy::SourceKind;

    fn found(text: Option<&str>) -> FoundText {
        let source = UserDataRef {
            kind: SourceKind::Secret,
            name: "extra".into(),
            key: "k".into(),
        };
        FoundText::at(&id("a"), &source, text)
    }

    #[test]
    fn a_text_longer_than_a_secret_can_hold_is_refused_by_name_and_size() {
        let longest = "a".repeat(CloudConfig::MAX_BYTES);
        let here = FoundText::Here(CloudConfig::new(longest.clone()));
        assert!(found(Some(&longest)) == here);
        let FoundText::Missing(why) = found(Some(&(longest + "a"))) else {
            panic!("it is too long")
        };
        assert_eq!(
            why,
            "Secret shop/extra: the text of the key k has 1048577 bytes: shorten it to 1048576, \
             what a Secret or ConfigMap can hold"
        );
    }

    #[test]
    fn a_debug_print_of_a_found_text_does_not_show_it() {
        let shown = format!("{:?}", found(Some("#cloud-config\npassword: hidden\n")));
        assert_eq!(shown, "Here(CloudConfig(31 bytes))");
    }
}
