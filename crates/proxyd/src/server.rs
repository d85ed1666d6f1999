//! The listener, and one task for each client from accept to close.

use crate::{
    access::Access,
    answer::{AnswerBody, Refusal, target_answer, text_answer, typed_answer},
    clock::{ClockedStream, IdleClock},
    config::validate,
    dial::Dialer,
    error::Error,
    forward::forward,
    management,
    metrics::{Admission, Metrics, RequestKind},
    places::{Full, Place, Places},
    pool::Pool,
    target::Target,
    tunnel::{TunnelEnd, copy_both_ways},
};
use egress_core::proxy_config::{IDENTITY_PATH, IdentityAnswer, ProxydConfig};
use http::{Method, Request, Response, StatusCode};
use hyper::{
    body::Incoming,
    server::conn::http1::Builder,
    service::service_fn,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    future::Future,
    io,
    net::{SocketAddr, UdpSocket},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::{Duration, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Connections that the kernel may hold for us before they are accepted.
const BACKLOG: u32 = 4096;
/// The least that hyper takes as the bound of its buffers, in bytes.
const LEAST_BUFFER: usize = 8192;
/// Connections over the limit that are told so; beyond them they are just closed.
const TOLD: u32 = 128;
/// How long a connection over the limit may take to send its request.
const TOLD_LIMIT: Duration = Duration::from_secs(2);
/// How long to wait when the process is out of descriptors before accepting again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What all connections of one server share.
pub(crate) struct Shared {
    config: ProxydConfig,
    access: Access,
    http: Builder,
    pub(crate) dialer: Dialer,
    pub(crate) pool: Arc<Pool>,
    pub(crate) idle: Duration,
    pub(crate) metrics: Arc<Metrics>,
    /// Cancelled when no new work is taken.
    drain: CancellationToken,
    /// Cancelled when what is still open is cut off.
    pub(crate) close: CancellationToken,
}

impl Shared {
    fn new(config: ProxydConfig) -> Self {
        let limits = &config.limits;
        let access = Access::new(&config.clients, &config.auth);
        let metrics = Arc::new(Metrics::new(access.generation()));
        let connect = Duration::from_secs(limits.connect_seconds.into());
        let header_bytes = limits.header_bytes as usize;
        let mut http = Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(Duration::from_secs(limits.header_seconds.into()))
            .max_header_size(header_bytes)
            .max_buf_size(header_bytes.max(LEAST_BUFFER));
        Self {
            access,
            http,
            dialer: Dialer::new(config.egress, connect, Arc::clone(&metrics)),
            pool: Arc::new(Pool::new(Arc::clone(&metrics))),
            idle: Duration::from_secs(limits.idle_seconds.into()),
            metrics,
            drain: CancellationToken::new(),
            close: CancellationToken::new(),
            config,
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drain.is_cancelled()
    }

    fn identity(&self) -> Response<AnswerBody> {
        let answer = IdentityAnswer {
            key: self.config.key.clone(),
            attempt: self.config.attempt,
            credential_generation: self.access.generation(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            draining: self.is_draining(),
        };
        match serde_json::to_string(&answer) {
            Ok(text) => typed_answer(StatusCode::OK, "application/json", text),
            Err(_) => text_answer(StatusCode::INTERNAL_SERVER_ERROR, "no identity\n"),
        }
    }
}

/// A proxy that listens, but does not accept yet.
pub struct Server {
    shared: Arc<Shared>,
    listener: TcpListener,
    management: Option<TcpListener>,
    local_addr: SocketAddr,
    management_addr: Option<SocketAddr>,
}

impl Server {
    /// Checks the configuration and takes its addresses; from here on connections wait in
    /// the kernel. Needs a tokio runtime. Errors are of kind `Config`, or `Bind` with the
    /// field and the address.
    pub fn bind(config: ProxydConfig) -> Result<Self, Error> {
        let findings = validate(&config);
        if !findings.is_empty() {
            return Err(Error::Config {
                file: None,
                findings,
            });
        }
        if let Some(egress) = config.egress {
            let address = SocketAddr::new(egress, 0);
            let remedy = "name an address of this host";
            UdpSocket::bind(address).map_err(|source| Error::Bind {
                field: "egress",
                address,
                remedy,
                source,
            })?;
        }
        let (listener, local_addr) = listen("listen", config.listen)?;
        let (management, management_addr) = config
            .management
            .map(|address| listen("management", address))
            .transpose()?
            .unzip();
        let shared = Arc::new(Shared::new(config));
        Ok(Self {
            shared,
            listener,
            management,
            local_addr,
            management_addr,
        })
    }

    /// Where the proxy listens, with the port that port 0 became.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Where the management page listens, if it does.
    pub fn management_addr(&self) -> Option<SocketAddr> {
        self.management_addr
    }

    /// Serves until `shutdown` comes back, then drains: no new connections, unused ones are
    /// closed at once, requests and tunnels may go on for `limits.drainSeconds`. Comes back
    /// when nothing is open any more. Dropping the future cuts everything off.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) {
        let Self {
            shared,
            listener,
            management,
            ..
        } = self;
        let _cut_off = shared.close.clone().drop_guard();
        let tasks = TaskTracker::new();
        {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                let management = async {
                    match management {
                        Some(listener) => management::serve(listener, Arc::clone(&shared)).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = management => {}
                    () = shared.pool.keep_swept() => {}
                    () = shared.close.cancelled() => {}
                }
            });
        }
        tokio::select! {
            () = shutdown => {}
            () = accept(&shared, &listener, &tasks) => {}
        }

        drop(listener);
        shared.drain.cancel();
        shared.metrics.draining.set(1);
        shared.pool.clear();
        tasks.close();
        tracing::info!(open = tasks.len(), "draining");
        let limit = Duration::from_secs(shared.config.limits.drain_seconds.into());
        if timeout(limit, tasks.wait()).await.is_err() {
            tracing::warn!(open = tasks.len(), "cutting off what is still open");
            shared.close.cancel();
            tasks.wait().await;
        }
        shared.pool.clear();
    }
}

/// Binds and serves until `shutdown` comes back and the drain is over.
pub async fn run(config: ProxydConfig, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
    Server::bind(config)?.serve(shutdown).await;
    Ok(())
}

fn listen(field: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let open = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // A restart must not wait for the connections of the process before it.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    let remedy = "name a free address of this host, or end what listens there";
    open().map_err(|source| Error::Bind {
        field,
        address,
        remedy,
        source,
    })
}

/// Out of descriptors or memory: others must close first. Anything else concerns only the
/// connection that was to be accepted.
pub(crate) async fn after_accept_error(error: &io::Error) {
    if !matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    ) {
        tracing::warn!(%error, "accept");
        sleep(ACCEPT_PAUSE).await;
    }
}

/// Accepts for as long as the future is polled.
async fn accept(shared: &Arc<Shared>, listener: &TcpListener, tasks: &TaskTracker) {
    let limits = &shared.config.limits;
    let places = Arc::new(Places::new(
        limits.connections,
        limits.connections_per_client,
    ));
    let told = Arc::new(Places::new(TOLD, TOLD));
    loop {
        let (stream, client) = match listener.accept().await {
            // A dual-stack socket shows IPv4 clients as mapped addresses; the lists do not.
            Ok((stream, peer)) => (stream, peer.ip().to_canonical()),
            Err(error) => {
                after_accept_error(&error).await;
                continue;
            }
        };
        if !shared.access.admits(client) {
            shared.metrics.admitted(Admission::OutsideClients);
            continue;
        }
        match places.take(client) {
            Ok(place) => {
                shared.metrics.admitted(Admission::Served);
                tasks.spawn(serve_client(Arc::clone(shared), stream, place));
            }
            Err(full) => {
                shared.metrics.admitted(match full {
                    Full::Total => Admission::OverLimit,
                    Full::Client => Admission::OverClientLimit,
                });
                if let Ok(place) = told.take(client) {
                    tasks.spawn(turn_away(Arc::clone(shared), stream, place));
                }
            }
        }
    }
}

/// A CONNECT that was granted: what is needed once hyper lets go of the client.
struct Granted {
    upgrade: OnUpgrade,
    target: TcpStream,
}

/// One client connection, as its requests see it.
struct Client {
    clock: Arc<IdleClock>,
    granted: Mutex<Option<Granted>>,
}

/// Serves one client until it or the server is done.
async fn serve_client(shared: Arc<Shared>, stream: TcpStream, place: Place) {
    shared.metrics.open_connections.inc();
    let close = shared.close.clone();
    close
        .run_until_cancelled(serve_requests(&shared, stream))
        .await;
    shared.metrics.open_connections.dec();
    drop(place);
}

async fn serve_requests(shared: &Arc<Shared>, stream: TcpStream) {
    // Best effort: without it answers are slower, not wrong.
    let _ = stream.set_nodelay(true);
    let clock = Arc::new(IdleClock::new());
    let client = Arc::new(Client {
        clock: Arc::clone(&clock),
        granted: Mutex::new(None),
    });
    let io = TokioIo::new(ClockedStream::new(stream, Arc::clone(&clock)));
    let service = {
        let (shared, client) = (Arc::clone(shared), Arc::clone(&client));
        service_fn(move |request| {
            let (shared, client) = (Arc::clone(&shared), Arc::clone(&client));
            async move { Ok::<_, Infallible>(answer(&shared, &client, request).await) }
        })
    };
    // Boxed, so that a tunnel's task does not carry the spent connection's space along.
    let mut connection = Box::pin(shared.http.serve_connection(io, service).with_upgrades());
    let mut draining = false;
    loop {
        tokio::select! {
            biased;
            _ = connection.as_mut() => break,
            () = shared.drain.cancelled(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
            () = clock.idle_for(shared.idle) => return,
        }
    }
    drop(connection);
    let granted = client
        .granted
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(granted) = granted {
        drop((client, clock));
        serve_tunnel(shared, granted).await;
    }
}

/// Who may ask first, then what is asked for.
async fn answer(
    shared: &Arc<Shared>,
    client: &Client,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    let refuse = |refusal: Refusal| {
        shared.metrics.refused(refusal);
        refusal.answer()
    };
    if !shared.access.accepts(request.headers()) {
        return refuse(Refusal::Unauthenticated);
    }
    let uri = request.uri();
    let kind = if request.method() == Method::CONNECT {
        RequestKind::Connect
    } else if uri.authority().is_some() {
        RequestKind::Forward
    } else if request.method() == Method::GET && uri.path() == IDENTITY_PATH {
        RequestKind::Identity
    } else {
        RequestKind::Other
    };
    shared.metrics.requested(kind);
    match kind {
        RequestKind::Connect => connect(shared, client, request).await,
        RequestKind::Forward => forward(shared, &client.clock, request).await,
        RequestKind::Identity => shared.identity(),
        RequestKind::Other => refuse(Refusal::PathUnknown),
    }
}

/// Dials the target of a CONNECT; a granted one waits for hyper to let go of the client.
async fn connect(
    shared: &Shared,
    client: &Client,
    mut request: Request<Incoming>,
) -> Response<AnswerBody> {
    let _hold = client.clock.hold();
    let target = match Target::of_connect(request.uri()) {
        Ok(target) => target,
        Err(error) => {
            shared.metrics.refused(Refusal::RequestInvalid);
            return target_answer(error);
        }
    };
    match shared.dialer.dial(&target).await {
        Ok(stream) => {
            let upgrade = hyper::upgrade::on(&mut request);
            let granted = Granted {
                upgrade,
                target: stream,
            };
            *client
                .granted
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(granted);
            Response::new(AnswerBody::Empty)
        }
        Err(refusal) => {
            shared.metrics.refused(refusal);
            refusal.answer()
        }
    }
}

/// Copies until the tunnel ends.
async fn serve_tunnel(shared: &Shared, granted: Granted) {
    let Granted {
        upgrade,
        mut target,
    } = granted;
    let Some((mut client, early)) = upgrade.await.ok().and_then(client_stream) else {
        return;
    };
    let metrics = &shared.metrics;
    metrics.open_tunnels.inc();
    let counters = [&metrics.sent_bytes, &metrics.received_bytes];
    let end = copy_both_ways(&mut client, early, &mut target, shared.idle, counters).await;
    if end == TunnelEnd::Broken {
        // A cut must look like one: an orderly end would make half a file look whole.
        let _ = client.set_zero_linger();
        let _ = target.set_zero_linger();
    }
    metrics.open_tunnels.dec();
}

/// The client's stream out of hyper's hands, with what it already read.
fn client_stream(upgraded: Upgraded) -> Option<(TcpStream, hyper::body::Bytes)> {
    let parts = upgraded.downcast::<TokioIo<ClockedStream>>().ok()?;
    Some((parts.io.into_inner().into_stream(), parts.read_buf))
}

/// Tells a client over the limit so, quickly.
async fn turn_away(shared: Arc<Shared>, stream: TcpStream, _place: Place) {
    let service = service_fn(|_: Request<Incoming>| {
        shared.metrics.refused(Refusal::Overloaded);
        async { Ok::<_, Infallible>(Refusal::Overloaded.answer()) }
    });
    let connection = Builder::new()
        .keep_alive(false)
        .max_buf_size(LEAST_BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let _ = shared
        .close
        .run_until_cancelled(timeout(TOLD_LIMIT, connection))
        .await;
}
