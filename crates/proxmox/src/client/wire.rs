//! How a request gets to a Proxmox VE API server and its answer back.
//!
//! Production speaks HTTPS ([`super::HttpsWire`]); a test steps a simulated world in one
//! process. What a failed exchange proves is part of the type: a request that was never
//! sent may be repeated, one that was cut off may have had its effect.

use super::tls::CertificateTrouble;
use async_trait::async_trait;
use http::{HeaderMap, Method};
use hyper::body::Bytes;
use std::{fmt, str::FromStr};
use tokio::time::Instant;

/// Carries one request to one API server.
#[async_trait]
pub trait Wire: Send + Sync {
    /// Sends it once and waits for the whole answer, until `request.deadline`.
    async fn send(&self, request: WireRequest) -> Result<WireAnswer, WireError>;
    /// What is wrong with the authorities that certificates are checked against, if anything
    /// is: known without sending.
    fn ca_trouble(&self) -> Option<String> {
        None
    }
}

/// Which connection a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// A read: any idle connection, and the wire may repeat it.
    KeepAlive,
    /// A mutation: a connection of its own, written once, never repeated by the wire.
    Fresh,
}

/// The root of one API server: scheme, host and port, no path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BaseUrl {
    host: String,
    port: u16,
}

impl BaseUrl {
    /// The host as written in the URL, without the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        &self.host
    }
    /// The port; 443 when the URL names none.
    pub const fn port(&self) -> u16 {
        self.port
    }
    /// Host and port as a `Host` header and a URL write them.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.authority())
    }
}

/// Why a URL is not the root of an API server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    /// Not a URL with a host.
    #[error("not a URL such as https://pve1.example.org:8006")]
    Malformed,
    /// Proxmox VE speaks HTTPS only; a token never travels in the clear.
    #[error("the scheme must be https")]
    Scheme,
    /// More than the root of a server; only `/api2/json` may stand behind it.
    #[error("a path, a query or a user name is not allowed: only https://host:port")]
    Extra,
}

impl FromStr for BaseUrl {
    type Err = BadUrl;
    fn from_str(text: &str) -> Result<Self, BadUrl> {
        let uri: http::Uri = text.trim().parse().map_err(|_| BadUrl::Malformed)?;
        if uri.scheme_str() != Some("https") {
            return Err(if uri.scheme().is_some() {
                BadUrl::Scheme
            } else {
                BadUrl::Malformed
            });
        }
        let authority = uri.authority().ok_or(BadUrl::Malformed)?;
        // Pasted from a browser or a document; the client adds the path itself.
        let path = uri.path().trim_end_matches('/');
        if authority.as_str().contains('@')
            || !matches!(path, "" | "/api2" | "/api2/json")
            || uri.query().is_some()
        {
            return Err(BadUrl::Extra);
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(BadUrl::Malformed);
        }
        Ok(Self {
            host,
            port: authority.port_u16().unwrap_or(443),
        })
    }
}

/// One request, whole.
#[derive(Clone, Debug)]
pub struct WireRequest {
    /// The API server it goes to.
    pub base: BaseUrl,
    /// GET, POST, PUT or DELETE.
    pub method: Method,
    /// Path and query, percent-encoded, beginning with `/api2/json/`.
    pub target: String,
    /// Headers but for `host` and `content-length`; the authorization is marked sensitive.
    pub headers: HeaderMap,
    /// The whole body; always empty for GET and DELETE.
    pub body: Bytes,
    /// Which connection it may use.
    pub reuse: Reuse,
    /// Until when an answer is waited for.
    pub deadline: Instant,
    /// A mutation is not written after this moment: the permit behind it has expired.
    pub write_before: Option<Instant>,
}

/// One answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireAnswer {
    /// The status code, also Proxmox VE's own 595 to 599.
    pub status: u16,
    /// The reason phrase; before PVE 8.3 the only place of an error's text (F1).
    pub reason: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Nothing was written: it is safe to repeat.
    #[error("{why}")]
    NotSent {
        /// What prevented it, for people.
        why: String,
    },
    /// The request, or a part of it, was written and no whole answer came.
    #[error("{why}")]
    CutOff {
        /// What ended it, for people.
        why: String,
    },
    /// The server's certificate is not acceptable; nothing was written.
    #[error("{0}")]
    Certificate(CertificateTrouble),
    /// The file with the certificate authorities cannot be used; nothing was written.
    #[error("{why}")]
    BadCa {
        /// The path and what is wrong with it.
        why: String,
    },
}
