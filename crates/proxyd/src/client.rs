//! One client, from accept to close: its requests, and the tunnel that may follow them.

use crate::{
    answer::{AnswerBody, Refusal},
    clock::{ClockedStream, IdleClock},
    connect::{Granted, connect, serve_tunnel},
    forward::forward,
    metrics::{Metrics, RequestKind},
    places::Place,
    server::{LEAST_BUFFER, Shared},
};
use egress_core::proxy_config::IDENTITY_PATH;
use http::{Method, Request, Response};
use hyper::{body::Incoming, server::conn::http1::Builder, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    net::TcpStream,
    time::{Duration, timeout},
};

/// How long a connection over the limit may take to send its request.
const TOLD_LIMIT: Duration = Duration::from_secs(2);

/// One client connection, as its requests see it.
pub(crate) struct Client {
    pub(crate) clock: Arc<IdleClock>,
    granted: Mutex<Option<Granted>>,
}

impl Client {
    /// Leaves a tunnel for the time when hyper has let go of the stream.
    pub(crate) fn grant(&self, granted: Granted) {
        *self.granted() = Some(granted);
    }

    fn granted(&self) -> MutexGuard<'_, Option<Granted>> {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves one client until it or the server is done.
pub(crate) async fn serve_client(shared: Arc<Shared>, stream: TcpStream, _place: Place) {
    let _open = Metrics::counted(&shared.metrics.open_connections);
    let close = shared.close.clone();
    close
        .run_until_cancelled(serve_requests(&shared, stream))
        .await;
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
    let granted = client.granted().take();
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

/// Tells a client over the limit so, quickly.
pub(crate) async fn turn_away(shared: Arc<Shared>, stream: TcpStream, _place: Place) {
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
