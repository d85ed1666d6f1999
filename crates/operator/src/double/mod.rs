//! An API server in memory, for tests: what clients of it may rely on, and nothing of its inside.
//!
//! It knows objects of any kind with versions, merge patches, applied statuses, finalizers,
//! watches that end and versions that are too old, and it can fail any single request, landed or
//! not. The same tests that run over it run over the real API server.

mod objects;
mod paths;

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::{Client, client::Body};
use objects::Objects;
pub use paths::{Target, Verb};
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};
use tokio::sync::watch;

type Answered = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is answered as if there were no gate.
    Pass,
    /// It is answered with this code and changes nothing.
    Refuse(u16),
    /// It has its effect, and is answered with this code.
    FailAfter(u16),
    /// It changes nothing, and the connection breaks.
    CutBefore,
    /// It has its effect, and the connection breaks.
    CutAfter,
    /// It changes nothing and is never answered.
    HangBefore,
    /// It has its effect and is never answered.
    HangAfter,
}

/// Decides over every request before it happens. It may wait first.
#[async_trait::async_trait]
pub trait Gate: Send + Sync {
    /// The verdict on one request.
    async fn judge(&self, target: &Target) -> Verdict;
}

/// The server, by one way to it. A clone is the same one by the same way.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
    gate: Arc<Mutex<Option<Arc<dyn Gate>>>>,
}

struct Shared {
    objects: Mutex<Objects>,
    asked: Mutex<Vec<Target>>,
    /// The newest version, and how often all watches were ended.
    news: watch::Sender<(u64, u64)>,
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// One without objects.
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                objects: Mutex::default(),
                asked: Mutex::default(),
                news: watch::Sender::new((0, 0)),
            }),
            gate: Arc::default(),
        }
    }

    /// The same server by another way, with a gate of its own: as another host reaches it.
    #[must_use]
    pub fn by_another_way(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            gate: Arc::default(),
        }
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }

    /// Puts a gate before every request by this way from now on, or takes it away.
    pub fn set_gate(&self, gate: Option<Arc<dyn Gate>>) {
        *held(&self.gate) = gate;
    }

    /// A person's request: past the gate and the log. An error is the answer's code.
    pub fn ask(&self, target: &Target, body: &Value) -> Result<Value, u16> {
        self.effect(target, body).map_err(|(code, _)| code)
    }

    /// What every client asked since the last call, watches and lists included.
    pub fn take_asked(&self) -> Vec<Target> {
        std::mem::take(&mut *held(&self.shared.asked))
    }

    /// Ends all watches, as the server does now and then.
    pub fn end_watches(&self) {
        self.shared.news.send_modify(|(_, epoch)| *epoch += 1);
    }

    /// Forgets what was before, as compaction does: a watch from there on is answered with 410.
    pub fn compact(&self) {
        held(&self.shared.objects).compact();
        self.end_watches();
    }

    /// A person puts this Proxy there.
    pub fn create_proxy(&self, namespace: &str, name: &str, spec: &Value) -> Value {
        let target = Target::proxies(Verb::Create, namespace, None);
        let body = json!({
            "apiVersion": "egress-proxies.io/v1alpha1", "kind": "Proxy",
            "metadata": {"name": name, "namespace": namespace}, "spec": spec,
        });
        self.ask(&target, &body).expect("its name is free")
    }

    /// A Proxy as it is now.
    pub fn proxy(&self, namespace: &str, name: &str) -> Option<Value> {
        let target = Target::proxies(Verb::Get, namespace, Some(name));
        self.ask(&target, &Value::Null).ok()
    }

    /// A person changes a Proxy by a merge patch.
    pub fn patch_proxy(&self, namespace: &str, name: &str, patch: &Value) -> Result<Value, u16> {
        self.ask(&Target::proxies(Verb::Patch, namespace, Some(name)), patch)
    }

    /// A person deletes a Proxy.
    pub fn delete_proxy(&self, namespace: &str, name: &str) {
        let target = Target::proxies(Verb::Delete, namespace, Some(name));
        let _ = self.ask(&target, &Value::Null);
    }

    fn effect(&self, target: &Target, body: &Value) -> Result<Value, (u16, String)> {
        let mut objects = held(&self.shared.objects);
        let answer = objects.answer(target, body);
        let newest = objects.newest();
        drop(objects);
        self.shared.news.send_if_modified(|(version, _)| {
            let rose = *version != newest;
            *version = newest;
            rose
        });
        answer
    }

    async fn serve(self, request: Request<Body>) -> Result<Answered, std::io::Error> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.map_err(std::io::Error::other)?;
        let Some(target) = Target::of(&parts.method, &parts.uri) else {
            return Ok(failure(404, &format!("no such path: {}", parts.uri)));
        };
        held(&self.shared.asked).push(target.clone());
        let body: Value = if bytes.is_empty() || parts.method == Method::GET {
            Value::Null
        } else {
            match serde_json::from_slice(&bytes) {
                Ok(body) => body,
                Err(e) => return Ok(failure(400, &e.to_string())),
            }
        };
        let gate = held(&self.gate).clone();
        let verdict = match gate {
            Some(gate) => gate.judge(&target).await,
            None => Verdict::Pass,
        };
        let cut = || std::io::Error::new(std::io::ErrorKind::ConnectionReset, "cut by the test");
        match verdict {
            Verdict::Pass if target.verb == Verb::Watch => Ok(self.watch(&target)),
            Verdict::Pass => Ok(match self.effect(&target, &body) {
                Ok(value) => json_body(StatusCode::OK, &value),
                Err((code, said)) => failure(code, &said),
            }),
            Verdict::Refuse(code) => Ok(failure(code, "refused by the test")),
            Verdict::FailAfter(code) => {
                let _ = self.effect(&target, &body);
                Ok(failure(code, "failed by the test"))
            }
            Verdict::CutBefore => Err(cut()),
            Verdict::CutAfter => {
                let _ = self.effect(&target, &body);
                Err(cut())
            }
            Verdict::HangBefore => std::future::pending().await,
            Verdict::HangAfter => {
                let _ = self.effect(&target, &body);
                std::future::pending().await
            }
        }
    }

    /// A stream of what happens from a version on, one line each.
    fn watch(&self, target: &Target) -> Answered {
        let from = target.version.unwrap_or(0);
        if held(&self.shared.objects).is_too_old(from) {
            return failure(410, "too old resource version");
        }
        let mut news = self.shared.news.subscribe();
        let epoch = news.borrow_and_update().1;
        let state = (self.shared.clone(), news, target.clone(), from);
        let lines = stream::unfold(state, move |(shared, mut news, target, from)| async move {
            loop {
                if news.borrow_and_update().1 != epoch {
                    return None;
                }
                let (lines, newest) = held(&shared.objects).since(&target, from);
                if !lines.is_empty() {
                    let frame = Frame::data(Bytes::from(lines));
                    return Some((Ok(frame), (shared, news, target, newest)));
                }
                news.changed().await.ok()?;
            }
        });
        let mut response = Response::new(StreamBody::new(lines).boxed_unsync());
        let json = http::HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }
}

impl tower_service::Service<Request<Body>> for Server {
    type Response = Answered;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Answered, std::io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().serve(request))
    }
}

fn json_body(code: StatusCode, value: &Value) -> Answered {
    let body = Full::new(Bytes::from(value.to_string()));
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = code;
    response
}

fn failure(code: u16, said: &str) -> Answered {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        _ => "InternalError",
    };
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": said, "reason": reason, "code": code,
    });
    json_body(StatusCode::from_u16(code).unwrap_or_default(), &status)
}

fn held<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
