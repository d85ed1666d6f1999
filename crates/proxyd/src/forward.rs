//! Plain HTTP, forwarded: one request in absolute form becomes one in origin form.

use crate::{
    answer::{AnswerBody, Refusal, target_answer},
    clock::IdleClock,
    headers::strip_hop_by_hop,
    link::{Link, Relayed, RequestBody},
    server::Shared,
    target::Target,
};
use http::{
    Request, Response, StatusCode, Uri, Version,
    header::{EXPECT, HOST},
    request::Parts,
};
use hyper::{
    body::{Body, Incoming},
    client::conn::TrySendError,
};
use std::sync::Arc;

/// Forwards one request and answers with what the target answers.
pub(crate) async fn forward(
    shared: &Arc<Shared>,
    clock: &IdleClock,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    let (target, host) = match Target::of_absolute(request.uri()) {
        Ok(found) => found,
        Err(error) => {
            shared.metrics.refused(Refusal::RequestInvalid);
            return target_answer(error);
        }
    };
    let (mut parts, body) = request.into_parts();
    strip_hop_by_hop(&mut parts.headers);
    parts.headers.insert(HOST, host);
    parts.uri = match parts.uri.into_parts().path_and_query {
        Some(path) => Uri::from(path),
        None => Uri::from_static("/"),
    };
    if parts.version < Version::HTTP_11 {
        // RFC 9110, 10.1.1: not to be heeded from a client this old.
        parts.headers.remove(EXPECT);
    }
    parts.version = Version::HTTP_11;

    // The connection must not count as idle while this request has deadlines of its own.
    let _hold = clock.hold();
    match relay(shared, clock, target, parts, body).await {
        Ok(answer) => answer,
        Err(refusal) => {
            shared.metrics.refused(refusal);
            refusal.answer()
        }
    }
}

/// Sends the request over a kept or a fresh connection.
async fn relay(
    shared: &Arc<Shared>,
    clock: &IdleClock,
    target: Target,
    parts: Parts,
    body: Incoming,
) -> Result<Response<AnswerBody>, Refusal> {
    let expects = parts.headers.contains_key(EXPECT) && !body.is_end_stream();
    let body = RequestBody::new(body, Arc::clone(&shared.metrics));
    let mut request = Request::from_parts(parts, body);
    if expects {
        RequestBody::expect_continue(&mut request);
    }

    if let Some(mut link) = shared.pool.take(&target) {
        shared.metrics.reused_connections.inc();
        let copy = RequestBody::copy_of(&request);
        match exchange(shared, clock, &mut link, request).await? {
            Ok(response) => return answer(shared, target, link, response),
            // The target may have closed the kept connection just now (RFC 9112, 9.3.1):
            // once more on a fresh one, if nothing was sent or it may be sent twice.
            Err(mut error) => {
                let broken = refusal(error.error());
                let copy = copy.filter(|_| broken == Refusal::TargetClosed);
                request = error.take_message().or(copy).ok_or(broken)?;
            }
        }
    }
    let stream = shared.dialer.dial(&target).await?;
    let mut link = Link::over(stream).await.map_err(|error| refusal(&error))?;
    match exchange(shared, clock, &mut link, request).await? {
        Ok(response) => answer(shared, target, link, response),
        Err(error) => Err(refusal(error.error())),
    }
}

type Exchanged = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>;

/// One request and the head of its response, unless the client's connection and so the
/// upload stays quiet for the idle time.
async fn exchange(
    shared: &Shared,
    clock: &IdleClock,
    link: &mut Link,
    request: Request<RequestBody>,
) -> Result<Exchanged, Refusal> {
    clock.touch();
    tokio::select! {
        biased;
        exchanged = link.exchange(request) => Ok(exchanged),
        () = clock.quiet_for(shared.idle) => Err(Refusal::ResponseTimeout),
    }
}

fn answer(
    shared: &Arc<Shared>,
    target: Target,
    link: Box<Link>,
    response: Response<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    // Nobody asked for another protocol: the wish was stripped.
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Refusal::ResponseBroken);
    }
    let (mut parts, body) = response.into_parts();
    strip_hop_by_hop(&mut parts.headers);
    parts.version = Version::HTTP_11;
    let home = (Arc::clone(&shared.pool), target);
    let body = Relayed::new(body, link, home, Arc::clone(&shared.metrics));
    Ok(Response::from_parts(parts, AnswerBody::Relayed(body)))
}

/// What a failed exchange means to the client.
fn refusal(error: &hyper::Error) -> Refusal {
    if error.is_parse() {
        Refusal::ResponseBroken
    } else if error.is_user() {
        // The request's body, which is the client's.
        Refusal::RequestInvalid
    } else {
        Refusal::TargetClosed
    }
}
