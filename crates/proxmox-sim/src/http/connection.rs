//! One connection to a node's server.

use super::{refuse, serve::Shared};
use crate::exchange::{Answer, Request};
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::{Bytes, Incoming},
    ext::ReasonPhrase,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

const IDLE: Duration = Duration::from_secs(5);
const MOST_REQUESTS: u32 = 100;
const FIRST_LINE: usize = 8 * 1024;
const LARGEST_HEAD: usize = 1024 * 1024;
/// What a client sends first when it speaks TLS.
const HANDSHAKE: u8 = 0x16;

/// Why a connection ends without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the answer is lost")]
struct Lost;

/// How a node's server takes a connection at this moment.
fn knock(shared: &Shared, node: &str) -> Answer {
    shared.step(&Request {
        node: node.to_owned(),
        method: "GET".to_owned(),
        target: "/api2/json/version".to_owned(),
        headers: Vec::new(),
        body: Vec::new(),
    })
}

/// Serves one connection until it ends.
pub(super) async fn serve(
    shared: Arc<Shared>,
    node: Arc<str>,
    tls: TlsAcceptor,
    stream: TcpStream,
) {
    match knock(&shared, &node) {
        Answer::Refused | Answer::Dropped { .. } => {
            // The nearest to a port where nothing listens that one of many nodes can show.
            let _ = stream.set_zero_linger();
            return;
        }
        Answer::Silence => return swallow(stream).await,
        Answer::Response { .. } => {}
    }
    let _ = stream.set_nodelay(true);
    let mut first = [0_u8];
    let Ok(Ok(1)) = timeout(IDLE, stream.peek(&mut first)).await else {
        return;
    };
    if first[0] != HANDSHAKE {
        let service = service_fn(|request: http::Request<Incoming>| {
            let node = Arc::clone(&node);
            async move {
                let (parts, _) = request.into_parts();
                answer(refuse::redirect(&head(&node, &parts)), false).await
            }
        });
        let _ = builder()
            .serve_connection(TokioIo::new(stream), service)
            .await;
        return;
    }
    let Ok(Ok(mut stream)) = timeout(IDLE, tls.accept(stream)).await else {
        return;
    };
    let Ok(Ok(read)) = timeout(IDLE, first_line(&mut stream)).await else {
        return;
    };
    if let Some(version) = foreign_version(&read) {
        let _ = stream.write_all(&told(&refuse::version(&version))).await;
        let _ = stream.shutdown().await;
        return;
    }
    let asked = AtomicU32::new(0);
    let service = service_fn(|request: http::Request<Incoming>| {
        let last = asked.fetch_add(1, Ordering::Relaxed) + 1 >= MOST_REQUESTS;
        let (shared, node) = (Arc::clone(&shared), Arc::clone(&node));
        async move { ask(&shared, &node, request, last).await }
    });
    let stream = Rewound {
        read,
        at: 0,
        stream,
    };
    let _ = builder()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_headers(1000)
        .max_buf_size(LARGEST_HEAD)
        .title_case_headers(true);
    builder
}

/// Takes everything and says nothing.
async fn swallow(mut stream: TcpStream) {
    let mut bytes = [0; 4096];
    while matches!(stream.read(&mut bytes).await, Ok(read) if read > 0) {}
}

fn head(node: &str, parts: &http::request::Parts) -> Request {
    Request {
        node: node.to_owned(),
        method: parts.method.as_str().to_owned(),
        target: parts
            .uri
            .path_and_query()
            .map_or_else(|| "/".to_owned(), ToString::to_string),
        headers: parts
            .headers
            .iter()
            .map(|(name, value)| {
                (
                    name.as_str().to_owned(),
                    String::from_utf8_lossy(value.as_bytes()).into_owned(),
                )
            })
            .collect(),
        body: Vec::new(),
    }
}

async fn ask(
    shared: &Shared,
    node: &str,
    request: http::Request<Incoming>,
    last: bool,
) -> Result<Response<Full<Bytes>>, Lost> {
    let (parts, body) = request.into_parts();
    let mut request = head(node, &parts);
    if let Some(reply) = refuse::refuse(&request) {
        return answer(reply, last).await;
    }
    // A request whose body is cut off was never made.
    let body = body.collect().await.map_err(|_| Lost)?;
    request.body = body.to_bytes().into();
    let reply = shared.step(&request);
    answer(reply, last).await
}

async fn answer(reply: Answer, last: bool) -> Result<Response<Full<Bytes>>, Lost> {
    let (status, reason, headers, body, close) = match reply {
        Answer::Response {
            status,
            reason,
            headers,
            body,
            after,
            close,
        } => {
            sleep(after).await;
            (status, reason, headers, body, close)
        }
        Answer::Dropped { after } => {
            sleep(after).await;
            return Err(Lost);
        }
        Answer::Refused => return Err(Lost),
        Answer::Silence => std::future::pending().await,
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(status).map_err(|_| Lost)?;
    if let Ok(reason) = ReasonPhrase::try_from(reason.into_bytes()) {
        response.extensions_mut().insert(reason);
    }
    for (name, value) in headers {
        let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value))
        else {
            continue;
        };
        response.headers_mut().append(name, value);
    }
    let connection = if close || last { "close" } else { "Keep-Alive" };
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static(connection));
    response.headers_mut().insert(
        header::SERVER,
        HeaderValue::from_static("pve-api-daemon/3.0"),
    );
    Ok(response)
}

/// Reads up to the end of the first line.
async fn first_line(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    while !read.contains(&b'\n') && read.len() < FIRST_LINE {
        if stream.read_buf(&mut read).await? == 0 {
            break;
        }
    }
    Ok(read)
}

/// The version of HTTP in a first line, if it is none that the server knows.
fn foreign_version(read: &[u8]) -> Option<String> {
    let line = read.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?.trim_end();
    let version = line.rsplit_once(" HTTP/")?.1;
    (!version.starts_with("1.")).then(|| version.to_owned())
}

/// An answer as bytes, for a connection that speaks no HTTP/1.
fn told(reply: &Answer) -> Vec<u8> {
    let Answer::Response {
        status,
        reason,
        body,
        ..
    } = reply
    else {
        return Vec::new();
    };
    let mut bytes = format!(
        "HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Length: {}\r\nServer: pve-api-daemon/3.0\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A stream whose first bytes were read already.
struct Rewound<S> {
    read: Vec<u8>,
    at: usize,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.at < self.read.len() {
            let count = into.remaining().min(self.read.len() - self.at);
            let at = self.at;
            into.put_slice(&self.read[at..at + count]);
            self.at += count;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_version_of_http_is_foreign() {
        assert_eq!(
            foreign_version(b"PRI * HTTP/2.0\r\n\r\n"),
            Some("2.0".to_owned())
        );
        assert_eq!(foreign_version(b"GET / HTTP/1.0\r\n"), None);
        assert_eq!(foreign_version(b"GET / HTTP/1.1\r\n"), None);
        assert_eq!(foreign_version(b"nonsense"), None);
    }
}
