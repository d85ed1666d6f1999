//! A relay before an API server that is late, or refuses, as networks and busy servers do. It
//! speaks plain HTTP to the operator and HTTPS to the server, and passes on what it is given.

use super::cluster::Cluster;
use http_body_util::{BodyExt, Either, Full};
use hyper::{
    Request, Response, StatusCode,
    body::{Body, Bytes, Frame, Incoming},
    header,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    sync::mpsc,
    time::Instant,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::CertificateDer},
};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The API server never sees it; this status is answered.
    Refused(u16),
    /// The API server does it; this status is answered in place of its answer.
    Lost(u16),
    /// The API server never sees it, and nothing is answered.
    Silence,
}

/// Decides by method and target, path and query.
type Rule = Box<dyn FnMut(&str, &str) -> Option<Fault> + Send>;

/// See the module.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Ends with this.
    _runtime: Runtime,
}

struct Shared {
    server: SocketAddr,
    tls: TlsConnector,
    rule: Mutex<Rule>,
    late: Mutex<Duration>,
}

impl Relay {
    pub fn before(cluster: &Cluster) -> Self {
        let kubeconfig = fs::read_to_string(cluster.kubeconfig()).expect("a kubeconfig");
        let quoted = |key: &str| {
            let after = kubeconfig.split_once(&format!("{key}: '"));
            let value = after.and_then(|(_, rest)| rest.split_once('\''));
            value.expect("its cluster").0.to_owned()
        };
        let server = quoted("server");
        let server = server.trim_start_matches("https://").parse();
        let shared = Arc::new(Shared {
            server: server.expect("an address"),
            tls: tls(Path::new(&quoted("certificate-authority"))),
            rule: Mutex::new(Box::new(|_, _| None)),
            late: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("it listens");
        runtime.spawn(serve(listener, shared.clone()));
        Self {
            address,
            shared,
            _runtime: runtime,
        }
    }

    /// The user of a kubeconfig, by way of this relay.
    pub fn kubeconfig(&self, of: &Path) -> PathBuf {
        let text = fs::read_to_string(of).expect("a kubeconfig");
        let cluster = format!(
            "clusters: [{{name: egress, cluster: {{server: 'http://{}'}}}}]",
            self.address
        );
        let lines = text.lines().map(|line| {
            if line.starts_with("clusters:") {
                &cluster
            } else {
                line
            }
        });
        let relayed: Vec<&str> = lines.collect();
        let path = of.with_extension("relayed");
        fs::write(&path, relayed.join("\n")).expect("written");
        path
    }

    /// Tells of every change so much later from now on.
    pub fn delay_watches(&self, late: Duration) {
        *held(&self.shared.late) = late;
    }

    /// Decides so from now on.
    pub fn set_rule(&self, rule: impl FnMut(&str, &str) -> Option<Fault> + Send + 'static) {
        *held(&self.shared.rule) = Box::new(rule);
    }
}

fn held<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tls(authority: &Path) -> TlsConnector {
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority).expect("a file") {
        roots.add(certificate.expect("a certificate")).expect("one");
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, shared.clone()));
            // It ends when either side goes away.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

type Answer = Response<Either<Full<Bytes>, Late>>;
type Trouble = Box<dyn std::error::Error + Send + Sync>;

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Answer, Trouble> {
    let target = request.uri().to_string();
    let fault = (held(&shared.rule))(request.method().as_str(), &target);
    match fault {
        None => {}
        Some(Fault::Silence) => std::future::pending().await,
        Some(Fault::Refused(status)) => return Ok(refusal(status)),
        Some(Fault::Lost(status)) => {
            pass_on(request, &shared).await?.collect().await?;
            return Ok(refusal(status));
        }
    }
    let watches = target.contains("watch=true") || target.contains("watch=1");
    let late = if watches {
        *held(&shared.late)
    } else {
        Duration::ZERO
    };
    let answered = pass_on(request, &shared).await?;
    Ok(answered.map(|body| Either::Right(Late::by(late, body))))
}

fn refusal(status: u16) -> Answer {
    let reason = match status {
        409 => "Conflict",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "the relay says so", "reason": reason, "code": status,
    });
    let mut response = Response::new(Either::Left(Full::from(body.to_string())));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

async fn pass_on(
    request: Request<Incoming>,
    shared: &Shared,
) -> Result<Response<Incoming>, Trouble> {
    let stream = TcpStream::connect(shared.server).await?;
    let stream = shared
        .tls
        .connect(shared.server.ip().into(), stream)
        .await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (mut parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let host = header::HeaderValue::from_str(&shared.server.to_string())?;
    parts.headers.insert(header::HOST, host);
    parts.headers.remove(header::TRANSFER_ENCODING);
    Ok(sender
        .send_request(Request::from_parts(parts, Full::new(body)))
        .await?)
}

/// A body whose every part is told so much later than it came.
struct Late(mpsc::UnboundedReceiver<Frame<Bytes>>);

impl Late {
    fn by(late: Duration, mut body: Incoming) -> Self {
        let (come, mut came) = mpsc::unbounded_channel();
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(frame)) = body.frame().await {
                if come.send((Instant::now() + late, frame)).is_err() {
                    break;
                }
            }
        });
        tokio::spawn(async move {
            while let Some((due, frame)) = came.recv().await {
                tokio::time::sleep_until(due).await;
                if tell.send(frame).is_err() {
                    break;
                }
            }
        });
        Self(told)
    }
}

impl Body for Late {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|frame| frame.map(Ok))
    }
}
