//! The passwords of proxies. They never leave this process but for the user's own store.

use egress_core::{
    ProxyId,
    proxy::{AuthSource, Trouble},
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

/// Where passwords are kept.
#[async_trait::async_trait]
pub trait Credentials: Send + Sync {
    /// Looks; makes nothing.
    async fn find(&self, id: &ProxyId, source: &AuthSource) -> Result<Found, Trouble>;
    /// Finds them, or makes generated ones and keeps them before it returns. Of a Secret
    /// that is missing: [`Found::Missing`].
    async fn ensure(&self, id: &ProxyId, source: &AuthSource) -> Result<Found, Trouble>;
    /// Removes generated ones. Of none: `Ok`.
    async fn forget(&self, id: &ProxyId) -> Result<(), Trouble>;
}
