//! The wire of production: HTTP/1.1 over TLS.
//!
//! Reads share a pool whose idle connections are dropped before the server drops them at 5 s
//! (§2). Each mutation has a connection of its own, made by hand and not by a pool: so it is
//! certain that it is written once, and known whether it was written at all.

use super::{
    tls::{CaFile, CertificateTrouble},
    wire::{Reuse, Wire, WireAnswer, WireError, WireRequest},
};
use async_trait::async_trait;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1,
    ext::ReasonPhrase,
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::ClientConfig;
use std::{
    error::Error,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, timeout_at};
use tower_service::Service;

/// Below the 5 s after which the server closes an idle connection.
const IDLE: Duration = Duration::from_secs(4);
/// How long a connection may take to come about, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// The greatest answer that is read, in bytes.
const LARGEST_ANSWER: usize = 32 << 20;

type Connector = HttpsConnector<HttpConnector>;

/// HTTPS to the API servers of one cluster.
pub struct HttpsWire {
    ca: CaFile,
    clients: Mutex<Option<Clients>>,
}

/// What is made of one version of the CA file.
#[derive(Clone)]
struct Clients {
    config: Arc<ClientConfig>,
    connector: Connector,
    reads: legacy::Client<Connector, Full<Bytes>>,
}

impl HttpsWire {
    /// A wire that trusts the authorities in this file. The file is opened with the first
    /// request and again whenever it changed, so that it may come later.
    pub const fn new(ca_file: PathBuf) -> Self {
        Self {
            ca: CaFile::new(ca_file),
            clients: Mutex::new(None),
        }
    }

    /// The clients for the CA file as it is now. After a change the old pool goes, so that no
    /// connection outlives the trust it was made with.
    fn clients(&self) -> Result<Clients, WireError> {
        let config = self.ca.config().map_err(|why| WireError::BadCa { why })?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*clients
            && Arc::ptr_eq(&known.config, &config)
        {
            return Ok(known.clone());
        }
        let made = Clients::new(config);
        *clients = Some(made.clone());
        Ok(made)
    }
}

impl Clients {
    fn new(config: Arc<ClientConfig>) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config((*config).clone())
            .https_only()
            .enable_http1()
            .wrap_connector(tcp);
        let reads = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            // Only ever for reads: one that met a closed connection goes out again.
            .retry_canceled_requests(true)
            .build(connector.clone());
        Self {
            config,
            connector,
            reads,
        }
    }
}

#[async_trait]
impl Wire for HttpsWire {
    async fn send(&self, request: WireRequest) -> Result<WireAnswer, WireError> {
        let clients = self.clients()?;
        let deadline = request.deadline;
        match request.reuse {
            Reuse::KeepAlive => timeout_at(deadline, pooled(&clients, request))
                .await
                .unwrap_or_else(|_| Err(cut("no answer in time"))),
            Reuse::Fresh => alone(clients.connector, request).await,
        }
    }

    fn ca_trouble(&self) -> Option<String> {
        self.ca.config().err()
    }
}

async fn pooled(clients: &Clients, request: WireRequest) -> Result<WireAnswer, WireError> {
    let uri = uri(&request)?;
    let request = built(request, uri, None)?;
    let response = clients.reads.request(request).await.map_err(|error| {
        if let Some(trouble) = CertificateTrouble::find(&error) {
            WireError::Certificate(trouble)
        } else if error.is_connect() {
            WireError::NotSent { why: chain(&error) }
        } else {
            cut(&chain(&error))
        }
    })?;
    whole(response).await
}

async fn alone(mut connector: Connector, request: WireRequest) -> Result<WireAnswer, WireError> {
    let not_sent = |why: String| WireError::NotSent { why };
    let deadline = request.deadline;
    let connect_by = deadline.min(Instant::now() + CONNECT);
    let uri = uri(&request)?;
    let stream = timeout_at(connect_by, connector.call(uri.clone()))
        .await
        .map_err(|_| not_sent("no connection in time".to_owned()))?
        .map_err(|error| {
            CertificateTrouble::find(&*error)
                .map_or_else(|| not_sent(chain(&*error)), WireError::Certificate)
        })?;
    let (mut sender, connection) = http1::handshake::<_, Full<Bytes>>(stream)
        .await
        .map_err(|error| not_sent(chain(&error)))?;
    // It ends with the exchange: when the answer is read, or when this call is dropped.
    tokio::spawn(connection);
    sender
        .ready()
        .await
        .map_err(|error| not_sent(chain(&error)))?;
    let write_before = request.write_before;
    let authority = request.base.authority();
    let origin_form = request
        .target
        .parse::<Uri>()
        .map_err(|e| not_sent(e.to_string()))?;
    let request = built(request, origin_form, Some(&authority))?;
    if write_before.is_some_and(|moment| Instant::now() >= moment) {
        return Err(not_sent(
            "the permit, or the look at whose machine it is, expired before the connection was ready".to_owned(),
        ));
    }
    let exchange = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| cut(&chain(&error)))?;
        whole(response).await
    };
    timeout_at(deadline, exchange)
        .await
        .unwrap_or_else(|_| Err(cut("no answer in time")))
}

fn uri(request: &WireRequest) -> Result<Uri, WireError> {
    format!("{}{}", request.base, request.target)
        .parse()
        .map_err(|e: http::uri::InvalidUri| WireError::NotSent { why: e.to_string() })
}

/// `host` is for a connection made by hand; the pool adds its own.
fn built(
    request: WireRequest,
    uri: Uri,
    host: Option<&str>,
) -> Result<Request<Full<Bytes>>, WireError> {
    let bad = |e: http::header::InvalidHeaderValue| WireError::NotSent { why: e.to_string() };
    let length = request.body.len();
    let writes = matches!(request.method, Method::POST | Method::PUT);
    let mut built = Request::new(Full::new(request.body));
    *built.method_mut() = request.method;
    *built.uri_mut() = uri;
    let headers = built.headers_mut();
    *headers = request.headers;
    if writes {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let Some(host) = host {
        headers.insert(header::HOST, HeaderValue::from_str(host).map_err(bad)?);
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(built)
}

async fn whole(response: Response<Incoming>) -> Result<WireAnswer, WireError> {
    let (parts, body) = response.into_parts();
    let status = parts.status;
    let body = Limited::new(body, LARGEST_ANSWER)
        .collect()
        .await
        .map_err(|error| cut(&chain(&*error)))?
        .to_bytes();
    Ok(WireAnswer {
        status: status.as_u16(),
        reason: reason(status, parts.extensions.get()),
        headers: parts.headers,
        body,
    })
}

/// The phrase as it was sent. The parser keeps it only when it is not the usual one.
fn reason(status: StatusCode, sent: Option<&ReasonPhrase>) -> String {
    sent.map_or_else(
        || status.canonical_reason().unwrap_or_default().to_owned(),
        |phrase| String::from_utf8_lossy(phrase.as_bytes()).into_owned(),
    )
}

fn cut(why: &str) -> WireError {
    WireError::CutOff {
        why: why.to_owned(),
    }
}

/// An error and its sources in one line, each said once.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let said = source.to_string();
        // rustls ends a text with where to read more.
        let said = said
            .split(": https://")
            .next()
            .unwrap_or_default()
            .to_owned();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = source.source();
    }
    text
}
