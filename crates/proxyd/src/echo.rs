//! A page that says who is asking: what the quick start and the tests go to through a proxy.

use crate::{
    answer::{AnswerBody, text_answer, typed_answer},
    server::after_accept_error,
};
use http::{HeaderValue, Method, Request, Response, StatusCode, header::ALLOW};
use hyper::{body::Incoming, server::conn::http1::Builder, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{convert::Infallible, future::Future, net::IpAddr, sync::Arc};
use tokio::{net::TcpListener, sync::Semaphore, time::Duration};
use tokio_util::sync::CancellationToken;

/// Connections at once; further ones wait in the kernel.
const CONNECTIONS: usize = 1024;
/// For a request's head, and so also for a connection without one.
const HEAD_LIMIT: Duration = Duration::from_secs(10);

/// Answers any GET with the client's IP address until `shutdown` comes back: a line of text,
/// at `/json` as `{"ip":"..."}`. What is open then is cut off.
pub async fn serve(listener: TcpListener, shutdown: impl Future<Output = ()>) {
    let close = CancellationToken::new();
    let _cut_off = close.clone().drop_guard();
    tokio::select! {
        () = shutdown => {}
        () = accept(&listener, &close) => {}
    }
}

async fn accept(listener: &TcpListener, close: &CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let (stream, client) = match listener.accept().await {
            Ok((stream, peer)) => (stream, peer.ip().to_canonical()),
            Err(error) => {
                after_accept_error(&error).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let service = service_fn(move |request| {
            let answer = answer(&request, client);
            async { Ok::<_, Infallible>(answer) }
        });
        let connection = Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .serve_connection(TokioIo::new(stream), service);
        let close = close.clone();
        tokio::spawn(async move {
            let _ = close.run_until_cancelled(connection).await;
            drop(place);
        });
    }
}

fn answer(request: &Request<Incoming>, client: IpAddr) -> Response<AnswerBody> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = text_answer(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET is answered here\n",
        );
        answer
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    if request.uri().path() == "/json" {
        let text = format!("{{\"ip\":\"{client}\"}}\n");
        return typed_answer(StatusCode::OK, "application/json", text);
    }
    text_answer(StatusCode::OK, format!("{client}\n"))
}
