//! The listener: what starts, is let in, and drains.

use crate::{
    access::Access,
    answer::{AnswerBody, text_answer, typed_answer},
    client::{serve_client, turn_away},
    config::validate,
    dial::Dialer,
    error::Error,
    management,
    metrics::{Admission, Metrics},
    places::{Full, Places},
    pool::Pool,
};
use egress_core::proxy_config::{IdentityAnswer, ProxydConfig};
use http::{Response, StatusCode};
use hyper::server::conn::http1::Builder;
use hyper_util::rt::TokioTimer;
use rustix::{io::Errno, net::sockopt::set_ipv6_v6only};
use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
};
use tokio::{
    net::{TcpListener, TcpSocket},
    time::{Duration, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Connections that the kernel may hold for us before they are accepted.
const BACKLOG: u32 = 4096;
/// The least that hyper takes as the bound of its buffers, in bytes.
pub(crate) const LEAST_BUFFER: usize = 8192;
/// Connections over the limit that are told so; beyond them they are just closed.
const TOLD: u32 = 128;
/// How long to wait when the process is out of descriptors before accepting again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What all connections of one server share.
pub(crate) struct Shared {
    config: ProxydConfig,
    pub(crate) access: Access,
    pub(crate) http: Builder,
    pub(crate) dialer: Dialer,
    pub(crate) pool: Arc<Pool>,
    pub(crate) idle: Duration,
    pub(crate) metrics: Arc<Metrics>,
    /// Cancelled when no new work is taken.
    pub(crate) drain: CancellationToken,
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

    /// Who this proxy says it is.
    pub(crate) fn identity(&self) -> Response<AnswerBody> {
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
        let everywhere = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let (socket, address) = match address {
            SocketAddr::V4(_) => (TcpSocket::new_v4()?, address),
            SocketAddr::V6(_) => match TcpSocket::new_v6() {
                // A kernel without IPv6: everywhere is then every address of IPv4.
                Err(e)
                    if everywhere
                        && e.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error()) =>
                {
                    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
                    (TcpSocket::new_v4()?, address)
                }
                socket => (socket?, address),
            },
        };
        if everywhere && address.is_ipv6() {
            // Whatever `net.ipv6.bindv6only` says.
            set_ipv6_v6only(&socket, false)?;
        }
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
