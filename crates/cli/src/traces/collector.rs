//! How spans get to a collector: one connection for each batch, which comes every few seconds.

use async_trait::async_trait;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Uri, header};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    runtime::Handle,
    time::Instant,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

/// Where the authorities of a collector's certificate are read from, the first one that is set.
const CERTIFICATES: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "SSL_CERT_FILE",
];
/// Where a system keeps those that it trusts.
const OF_THE_SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";
/// One try of one batch ends by then.
const DEADLINE: Duration = Duration::from_secs(10);
/// The longest answer that is read, in bytes.
const MAX_ANSWER: usize = 1 << 20;
/// How long after a word on a lost batch the next one is said.
const QUIET: Duration = Duration::from_mins(1);

/// See the module.
pub(super) struct Collector {
    runtime: Handle,
    tls: Option<TlsConnector>,
    told: Mutex<Option<Instant>>,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").finish_non_exhaustive()
    }
}

impl Collector {
    /// For this URL, whose authorities the environment may name.
    pub(super) fn new(
        endpoint: &str,
        variable: impl Fn(&str) -> Option<String>,
        runtime: Handle,
    ) -> Result<Self, String> {
        let tls = endpoint.starts_with("https:").then(|| {
            let named = CERTIFICATES.into_iter().find_map(|name| {
                let file = variable(name)?;
                Some((name, file))
            });
            let (name, file) = named.unwrap_or((CERTIFICATES[1], OF_THE_SYSTEM.to_owned()));
            tls(Path::new(&file)).map_err(|why| {
                format!("{name}: {file}: {why}: name a file with the collector's authority, in PEM")
            })
        });
        Ok(Self {
            runtime,
            tls: tls.transpose()?,
            told: Mutex::default(),
        })
    }

    /// One line tells of many batches that are lost alike.
    fn tell(&self, target: &Uri, why: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|at| at.elapsed() >= QUIET) {
            *told = Some(Instant::now());
            tracing::warn!("traces are not taken at {target}: {why}");
        }
    }
}

fn tls(authorities: &Path) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    let read = CertificateDer::pem_file_iter(authorities).map_err(|e| e.to_string())?;
    // A system's file may hold some that this library does not know.
    roots.add_parsable_certificates(read.filter_map(Result::ok));
    if roots.is_empty() {
        return Err("holds no certificate".to_owned());
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[async_trait]
impl HttpClient for Collector {
    /// Called on a thread of the exporter's own, which has no runtime.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let target = request.uri().clone();
        let sending = send(self.tls.clone(), request);
        let sent = async move { tokio::time::timeout(DEADLINE, sending).await };
        let result = match self.runtime.spawn(sent).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(format!("no answer within {} s", DEADLINE.as_secs()).into()),
            Err(ended) => Err(ended.into()),
        };
        match &result {
            Ok(answer) if !answer.status().is_success() => {
                self.tell(&target, &format!("answered {}", answer.status()));
            }
            Ok(_) => {}
            Err(e) => self.tell(&target, &e.to_string()),
        }
        result
    }
}

async fn send(
    tls: Option<TlsConnector>,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let host = request.uri().host().unwrap_or_default().to_owned();
    let host = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    let port = request.uri().port_u16();
    let port = port.unwrap_or(if tls.is_some() { 443 } else { 80 });
    let stream = TcpStream::connect((&*host, port)).await?;
    match tls {
        None => exchange(stream, request).await,
        Some(tls) => {
            let name = ServerName::try_from(host)?;
            exchange(tls.connect(name, stream).await?, request).await
        }
    }
}

async fn exchange<S>(stream: S, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (host, path) = {
        let uri = request.uri();
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        (uri.authority().map(ToString::to_string), path.to_owned())
    };
    let host = header::HeaderValue::from_str(&host.unwrap_or_default())?;
    request.headers_mut().insert(header::HOST, host);
    *request.uri_mut() = path.parse()?;
    let answer = sender.send_request(request.map(Full::new)).await?;
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
    Ok(Response::from_parts(parts, body))
}
