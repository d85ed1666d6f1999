//! How a proxy is set up: what the engine decides ([`ProxySettings`]) and the file that
//! `proxyd` reads in the machine ([`ProxydConfig`]).

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

/// Where `proxyd` answers, on the proxy's own port, who it is. The request is origin-form
/// (`GET /.well-known/egress-proxies HTTP/1.1`) and carries `Proxy-Authorization` where the
/// proxy has auth; the answer is an [`IdentityAnswer`] as JSON.
pub const IDENTITY_PATH: &str = "/.well-known/egress-proxies";

/// The user name of generated credentials.
pub const GENERATED_USER: &str = "egress";

/// The port of a proxy whose manifest and provider name none.
pub const DEFAULT_PORT: u16 = 3128;

/// SHA-256 over `user:password`, the bytes of a Basic credential before base64 (RFC 7617).
/// Generated passwords hold 128 random bits, so the hash can be read by anyone.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Verifier([u8; 32]);

impl Verifier {
    /// The verifier of one user and password.
    pub fn new(user: &str, password: &str) -> Self {
        Self::of_pair(format!("{user}:{password}").as_bytes())
    }
    /// The verifier of the decoded bytes of a Basic credential.
    pub fn of_pair(pair: &[u8]) -> Self {
        Self(Sha256::digest(pair).into())
    }
    /// The 32 bytes of the hash. Compare them in constant time.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier(..)")
    }
}

impl From<Verifier> for String {
    fn from(verifier: Verifier) -> Self {
        data_encoding::HEXLOWER.encode(&verifier.0)
    }
}

/// A text that is not 64 lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a SHA-256 in 64 lower-case hex digits")]
pub struct InvalidVerifier;

impl FromStr for Verifier {
    type Err = InvalidVerifier;
    fn from_str(text: &str) -> Result<Self, InvalidVerifier> {
        data_encoding::HEXLOWER
            .decode(text.as_bytes())
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .map(Self)
            .ok_or(InvalidVerifier)
    }
}

impl TryFrom<String> for Verifier {
    type Error = InvalidVerifier;
    fn try_from(text: String) -> Result<Self, InvalidVerifier> {
        text.parse()
    }
}

/// Who may use a proxy, by credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Auth {
    /// No credentials: only allowed next to a list of clients.
    None {},
    /// HTTP Basic credentials.
    Basic {
        /// Any of these is accepted; two while a credential is exchanged.
        verifiers: Vec<Verifier>,
        /// Rises with every exchange.
        generation: u32,
    },
}

/// What the engine decides about a proxy; the provider adds addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// The port the user asked for; `None` leaves it to the provider.
    pub port: Option<u16>,
    /// The networks whose clients may connect; empty means any, and then auth is required.
    pub clients: Vec<IpNet>,
    /// Credentials.
    pub auth: Auth,
}

/// Limits that keep one client from starving the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Open client connections; further ones are answered 503 and closed.
    pub connections: u32,
    /// Open client connections from one address.
    pub connections_per_client: u32,
    /// Request head, in bytes.
    pub header_bytes: u32,
    /// From accept to the end of a request's head, in seconds.
    pub header_seconds: u32,
    /// Connecting to a target, DNS included, in seconds.
    pub connect_seconds: u32,
    /// No byte in either direction, in seconds.
    pub idle_seconds: u32,
    /// After SIGTERM: how long open connections may go on, in seconds.
    pub drain_seconds: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            connections_per_client: 10_000,
            header_bytes: 64 * 1024,
            header_seconds: 15,
            connect_seconds: 15,
            idle_seconds: 300,
            drain_seconds: 10,
        }
    }
}

/// The file `proxyd` starts from, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProxydConfig {
    /// The machine's name: what the identity answer says.
    pub key: String,
    /// Which attempt made this machine.
    pub attempt: u32,
    /// Where the proxy listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where `/healthz`, `/readyz` and `/metrics` listen, if anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub management: Option<SocketAddr>,
    /// The source address of outgoing connections; unset leaves it to the kernel's routes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<IpAddr>,
    /// The networks whose clients may connect; empty means any, and then auth is required.
    #[serde(default)]
    pub clients: Vec<IpNet>,
    /// Credentials.
    pub auth: Auth,
    /// Limits, each with a default.
    #[serde(default)]
    pub limits: Limits,
}

/// What `proxyd` answers at [`IDENTITY_PATH`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityAnswer {
    /// The machine's name.
    pub key: String,
    /// Which attempt made this machine.
    pub attempt: u32,
    /// The generation of the credentials in force; 0 without auth.
    pub credential_generation: u32,
    /// The version of `proxyd`.
    pub version: String,
    /// Whether it is shutting down.
    pub draining: bool,
}

/// The line `proxyd` prints on standard output, as JSON, once it listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadyLine {
    /// Where the proxy listens.
    pub listen: SocketAddr,
    /// Where its management page listens.
    pub management: Option<SocketAddr>,
}
