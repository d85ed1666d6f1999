//! `/healthz`, `/readyz` and `/metrics`, on an address of their own.
//!
//! hyper alone: a router for three paths is not worth its weight in a binary that is copied
//! into every machine.

use crate::{
    answer::{AnswerBody, text_answer, typed_answer},
    server::Shared,
};
use http::{Method, Request, Response, StatusCode};
use hyper::{body::Incoming, server::conn::http1::Builder, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{convert::Infallible, sync::Arc};
use tokio::{net::TcpListener, sync::Semaphore, time::Duration};
use tokio_util::task::TaskTracker;

/// Connections at once; further ones wait in the kernel.
const CONNECTIONS: usize = 32;
/// For a request's head, and so also for a connection without one.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// The type that OpenMetrics text has.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers on the management address for as long as the future is polled.
pub(crate) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let tasks = TaskTracker::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                crate::server::after_accept_error(&error).await;
                continue;
            }
        };
        let service = {
            let shared = Arc::clone(&shared);
            service_fn(move |request| {
                let answer = answer(&shared, &request);
                async { Ok::<_, Infallible>(answer) }
            })
        };
        let connection = Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .serve_connection(TokioIo::new(stream), service);
        let close = shared.close.clone();
        tasks.spawn(async move {
            let _ = close.run_until_cancelled(connection).await;
            drop(place);
        });
    }
}

fn answer(shared: &Shared, request: &Request<Incoming>) -> Response<AnswerBody> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text_answer(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET is answered here\n",
        );
    }
    match request.uri().path() {
        "/readyz" if shared.is_draining() => {
            text_answer(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        }
        "/healthz" | "/readyz" => text_answer(StatusCode::OK, "ok\n"),
        "/metrics" => typed_answer(StatusCode::OK, OPEN_METRICS, shared.metrics.page()),
        _ => text_answer(
            StatusCode::NOT_FOUND,
            "see /healthz, /readyz and /metrics\n",
        ),
    }
}
