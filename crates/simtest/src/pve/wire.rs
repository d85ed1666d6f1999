//! One provider's way to the simulator, with the fuse on it.

use super::Pve;
use crate::fuse::Trick;
use async_trait::async_trait;
use egress_core::ErrorClass;
use egress_proxmox::client::{Wire, WireAnswer, WireError, WireRequest};
use egress_proxmox_sim::exchange::{Answer, Request};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};
use std::{future::pending, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep_until, timeout_at};

/// The wire of one provider.
pub(super) struct SimWire {
    pub(super) pve: Arc<Pve>,
    pub(super) client: u32,
}

#[async_trait]
impl Wire for SimWire {
    async fn send(&self, request: WireRequest) -> Result<WireAnswer, WireError> {
        // As a connection takes a moment, so does this: a call can be dropped here.
        tokio::task::yield_now().await;
        let trick = self.burn(&request);
        match trick {
            Some(Trick::DieBefore) => pending().await,
            Some(Trick::Freeze(time)) => tokio::time::sleep(time).await,
            _ => {}
        }
        let expired = request.write_before.is_some_and(|at| Instant::now() >= at);
        if expired || Instant::now() >= request.deadline {
            return Err(WireError::NotSent {
                why: "too late before the connection was ready".to_owned(),
            });
        }
        if let Some(Trick::Refuse(class)) = trick {
            return Ok(refusal(class));
        }
        let answer = self.step(&request, trick);
        if matches!(trick, Some(Trick::DieAfter | Trick::DieLate(_))) {
            pending::<()>().await;
        }
        timeout_at(request.deadline, answered(answer, request.deadline))
            .await
            .unwrap_or_else(|_| Err(cut_off("no answer in time")))
    }
}

impl SimWire {
    fn burn(&self, request: &WireRequest) -> Option<Trick> {
        // The fuse may call someone who meddles with the world: it is not held meanwhile.
        let fuse = self.pve.inner().fuse.clone();
        if request.method == Method::GET {
            fuse.burn_at_read()
        } else {
            fuse.burn()
        }
    }

    fn step(&self, request: &WireRequest, trick: Option<Trick>) -> Answer {
        let told = told(request);
        let mut inner = self.pve.inner();
        let now = self.pve.began.elapsed();
        let lost = match trick {
            Some(Trick::LoseAnswer(lands)) => Some((lands, false)),
            Some(Trick::DieLate(lands)) if request.target.ends_with("/clone") => {
                Some((Some(lands), false))
            }
            Some(Trick::TimeOut(lands)) => Some((lands, true)),
            _ => None,
        };
        if let Some((lands, timed_out)) = lost {
            let order = lose_answer(lands, timed_out);
            inner.tell(order, now).expect("an answer can be lost");
        }
        if request.method != Method::GET {
            let line = format!("{} {}", request.method, request.target);
            inner.requests.push((self.client, Instant::now(), line));
        }
        inner.world.step(&told, now)
    }
}

fn lose_answer(lands: Option<Duration>, timed_out: bool) -> Value {
    let (landing, seconds) = match lands {
        None => ("lost", 0.0),
        Some(Duration::ZERO) => ("landed", 0.0),
        Some(lag) => ("late", lag.as_secs_f64()),
    };
    json!({
        "do": "lose-answer",
        "landing": landing,
        "seconds": seconds,
        "timedOut": timed_out,
    })
}

fn told(request: &WireRequest) -> Request {
    let mut headers: Vec<(String, String)> = request
        .headers
        .iter()
        .map(|(name, value)| {
            (
                name.to_string(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            )
        })
        .collect();
    headers.push(("host".to_owned(), request.base.authority()));
    if !request.body.is_empty() || matches!(request.method.as_str(), "POST" | "PUT") {
        headers.push(("content-length".to_owned(), request.body.len().to_string()));
    }
    Request {
        node: request.base.host().to_owned(),
        method: request.method.to_string(),
        target: request.target.clone(),
        headers,
        body: request.body.to_vec(),
    }
}

async fn answered(answer: Answer, deadline: Instant) -> Result<WireAnswer, WireError> {
    match answer {
        Answer::Response {
            status,
            reason,
            headers,
            body,
            after,
            ..
        } => {
            tokio::time::sleep(after).await;
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                if let (Ok(name), Ok(value)) =
                    (HeaderName::try_from(name), HeaderValue::try_from(value))
                {
                    map.append(name, value);
                }
            }
            Ok(WireAnswer {
                status,
                reason,
                headers: map,
                body: body.into(),
            })
        }
        Answer::Refused => Err(WireError::NotSent {
            why: "connection refused".to_owned(),
        }),
        Answer::Dropped { after } => {
            tokio::time::sleep(after).await;
            Err(cut_off("the connection was closed without an answer"))
        }
        Answer::Silence => {
            sleep_until(deadline).await;
            Err(cut_off("no answer"))
        }
    }
}

fn cut_off(why: &str) -> WireError {
    WireError::CutOff {
        why: why.to_owned(),
    }
}

/// What Proxmox VE, or something in front of it, says when a request of this class is refused.
fn refusal(class: ErrorClass) -> WireAnswer {
    let (status, reason) = match class {
        ErrorClass::Busy => (500, "VM is locked (backup)"),
        ErrorClass::Unauthorized => (403, "Permission check failed (/vms/100000, VM.Allocate)"),
        ErrorClass::NeedsOperator => (500, "can't remove VM 100000 - protection mode enabled"),
        ErrorClass::OutcomeUnknown => (599, "Too many redirections"),
        ErrorClass::Internal => (200, "OK"),
        _ => (595, "No route to host"),
    };
    let body = match status {
        200 => "<html>Welcome</html>".to_owned(),
        595.. => String::new(),
        _ => json!({"data": null, "message": format!("{reason}\n")}).to_string(),
    };
    let mut headers = HeaderMap::new();
    if status < 595 {
        let json = HeaderValue::from_static("application/json;charset=UTF-8");
        headers.insert(http::header::CONTENT_TYPE, json);
    }
    WireAnswer {
        status,
        reason: reason.to_owned(),
        headers,
        body: body.into(),
    }
}
