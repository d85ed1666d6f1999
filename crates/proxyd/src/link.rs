//! One HTTP connection to a target, polled by the task that uses it.
//!
//! hyper's client connection is a future of its own, usually spawned. Here the waiting
//! request, then the relayed body, polls it: no second task, no wake-up across threads, and a
//! client that goes away drops its connection on the spot. Between requests nobody polls it;
//! the pool looks at it when it is taken out, and now and then.

use crate::{headers::authenticates_connection, metrics::Metrics, pool::Pool, target::Target};
use futures_util::task::AtomicWaker;
use http::{Request, Response, StatusCode};
use hyper::{
    body::{Body, Bytes, Frame, Incoming, SizeHint},
    client::conn::{
        TrySendError,
        http1::{Builder, Connection, SendRequest},
    },
};
use hyper_util::rt::TokioIo;
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};
use tokio::{
    net::TcpStream,
    time::{Duration, Sleep, sleep},
};

/// Bound of a connection's buffers, and so of a response head, in bytes.
const BUFFER_BYTES: usize = 128 * 1024;
/// How long a body is held back for a `100 Continue` of a target that may never send one
/// (RFC 9110, 10.1.1).
const CONTINUE_WAIT: Duration = Duration::from_secs(1);

/// One HTTP connection to a target.
pub(crate) struct Link {
    sender: SendRequest<RequestBody>,
    connection: Connection<TokioIo<TcpStream>, RequestBody>,
    closed: bool,
    /// It is authenticated as one client, and serves no other.
    bound: bool,
}

impl Link {
    /// Readies a fresh connection for requests.
    pub(crate) async fn over(stream: TcpStream) -> Result<Box<Self>, hyper::Error> {
        let (sender, connection) = Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        Ok(Box::new(Self {
            sender,
            connection,
            closed: false,
            bound: false,
        }))
    }

    /// Sends one request and waits for the head of its response. The error gives the request
    /// back if no byte of it was sent.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody>>> {
        self.bound |= authenticates_connection(request.headers());
        let mut response = pin!(self.sender.try_send_request(request));
        poll_fn(|cx| {
            self.poll_connection(cx);
            response.as_mut().poll(cx)
        })
        .await
    }

    fn poll_connection(&mut self, cx: &mut Context<'_>) {
        if !self.closed {
            self.closed = Pin::new(&mut self.connection).poll(cx).is_ready();
        }
    }

    /// Whether the connection can take a request now, looked up without waiting and without
    /// leaving a trace of the asking task in it.
    pub(crate) fn is_usable(&mut self) -> bool {
        self.poll_connection(&mut Context::from_waker(Waker::noop()));
        !self.closed && self.sender.is_ready()
    }
}

/// A response's body on its way to the client; gives the connection back to the pool at the
/// end.
pub(crate) struct Relayed {
    body: Incoming,
    link: Option<Box<Link>>,
    home: Option<(Arc<Pool>, Target)>,
    metrics: Arc<Metrics>,
}

impl Relayed {
    pub(crate) fn new(
        body: Incoming,
        link: Box<Link>,
        home: (Arc<Pool>, Target),
        metrics: Arc<Metrics>,
    ) -> Self {
        let mut relayed = Self {
            body,
            link: Some(link),
            home: Some(home),
            metrics,
        };
        if relayed.body.is_end_stream() {
            relayed.release();
        }
        relayed
    }

    fn release(&mut self) {
        if let (Some(mut link), Some((pool, target))) = (self.link.take(), self.home.take())
            && !link.bound
            && link.is_usable()
        {
            pool.put(target, link);
        }
    }
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        // Asking the body first tells the connection that a frame is wanted.
        let mut polled = Pin::new(&mut this.body).poll_frame(cx);
        if polled.is_pending()
            && let Some(link) = &mut this.link
        {
            link.poll_connection(cx);
            polled = Pin::new(&mut this.body).poll_frame(cx);
        }
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    this.metrics.received_bytes.inc_by(data.len() as u64);
                }
                if this.body.is_end_stream() {
                    this.release();
                }
            }
            Poll::Ready(Some(Err(_))) => this.link = None,
            Poll::Ready(None) => this.release(),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request's body on its way to the target.
pub(crate) struct RequestBody {
    /// `None` in the copy of a request that had no body.
    body: Option<Incoming>,
    gate: Option<Gate>,
    metrics: Arc<Metrics>,
}

/// Holds a body back until the target says `100 Continue`, so that the client's own question
/// is answered by the target and not by us: hyper answers it when the body is first asked for.
struct Gate {
    open: Arc<(AtomicBool, AtomicWaker)>,
    timer: Pin<Box<Sleep>>,
}

impl RequestBody {
    pub(crate) fn new(body: Incoming, metrics: Arc<Metrics>) -> Self {
        Self {
            body: Some(body),
            gate: None,
            metrics,
        }
    }

    /// A copy of a request that may be sent twice: its method changes nothing (RFC 9110,
    /// 9.2.1) and it has no body.
    pub(crate) fn copy_of(request: &Request<Self>) -> Option<Request<Self>> {
        if !request.method().is_safe() || !request.body().is_end_stream() {
            return None;
        }
        let metrics = Arc::clone(&request.body().metrics);
        let mut copy = Request::new(Self {
            body: None,
            gate: None,
            metrics,
        });
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        Some(copy)
    }

    /// Holds the body of a request back until the target says `100 Continue`.
    pub(crate) fn expect_continue(request: &mut Request<Self>) {
        let open = Arc::new((AtomicBool::new(false), AtomicWaker::new()));
        let opener = Arc::clone(&open);
        hyper::ext::on_informational(request, move |response| {
            if response.status() == StatusCode::CONTINUE {
                opener.0.store(true, Relaxed);
                opener.1.wake();
            }
        });
        let timer = Box::pin(sleep(CONTINUE_WAIT));
        request.body_mut().gate = Some(Gate { open, timer });
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        if let Some(gate) = &mut this.gate {
            gate.open.1.register(cx.waker());
            if !gate.open.0.load(Relaxed) && gate.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.gate = None;
        }
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            this.metrics.sent_bytes.inc_by(data.len() as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
