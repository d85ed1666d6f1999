//! What the proxy says in its own name, and the body type of everything it says.

use crate::{link::Relayed, target::TargetError};
use http::{
    HeaderName, HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, PROXY_AUTHENTICATE, RETRY_AFTER},
};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use prometheus_client::encoding::EncodeLabelValue;
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

static PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// Why a request got no answer from its target; a closed set, also a metrics label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Refusal {
    RequestInvalid,
    PathUnknown,
    Unauthenticated,
    Overloaded,
    DnsFailed,
    DnsTimeout,
    ConnectionRefused,
    ConnectionTimeout,
    ConnectionFailed,
    Unroutable,
    EgressUnavailable,
    OutOfSockets,
    ResponseTimeout,
    ResponseBroken,
    TargetClosed,
}

impl Refusal {
    pub(crate) const ALL: [Self; 15] = [
        Self::RequestInvalid,
        Self::PathUnknown,
        Self::Unauthenticated,
        Self::Overloaded,
        Self::DnsFailed,
        Self::DnsTimeout,
        Self::ConnectionRefused,
        Self::ConnectionTimeout,
        Self::ConnectionFailed,
        Self::Unroutable,
        Self::EgressUnavailable,
        Self::OutOfSockets,
        Self::ResponseTimeout,
        Self::ResponseBroken,
        Self::TargetClosed,
    ];

    /// Status, error type for `Proxy-Status` (RFC 9209, 2.3; none where the answer is not
    /// about the target) and the text for a person.
    const fn parts(self) -> (StatusCode, Option<&'static str>, &'static str) {
        match self {
            Self::RequestInvalid => (
                StatusCode::BAD_REQUEST,
                Some("http_request_error"),
                "the request is not valid",
            ),
            Self::PathUnknown => (
                StatusCode::NOT_FOUND,
                None,
                "this is a forward proxy; nothing is served here",
            ),
            Self::Unauthenticated => (
                StatusCode::PROXY_AUTHENTICATION_REQUIRED,
                None,
                "this proxy asks for credentials",
            ),
            Self::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                Some("proxy_internal_response"),
                "too many connections; try again",
            ),
            Self::DnsFailed => (
                StatusCode::BAD_GATEWAY,
                Some("dns_error"),
                "the target's name has no address",
            ),
            Self::DnsTimeout => (
                StatusCode::GATEWAY_TIMEOUT,
                Some("dns_timeout"),
                "no name server answered in time",
            ),
            Self::ConnectionRefused => (
                StatusCode::BAD_GATEWAY,
                Some("connection_refused"),
                "the target refused the connection",
            ),
            Self::ConnectionTimeout => (
                StatusCode::GATEWAY_TIMEOUT,
                Some("connection_timeout"),
                "the target did not accept the connection in time",
            ),
            Self::ConnectionFailed => (
                StatusCode::BAD_GATEWAY,
                Some("destination_unavailable"),
                "the connection to the target could not be made",
            ),
            Self::Unroutable => (
                StatusCode::BAD_GATEWAY,
                Some("destination_ip_unroutable"),
                "there is no route from this proxy to the target",
            ),
            Self::EgressUnavailable => (
                StatusCode::BAD_GATEWAY,
                Some("proxy_internal_error"),
                "the proxy's outgoing address is not on this host",
            ),
            Self::OutOfSockets => (
                StatusCode::SERVICE_UNAVAILABLE,
                Some("proxy_internal_error"),
                "the proxy has no socket left; try again",
            ),
            Self::ResponseTimeout => (
                StatusCode::GATEWAY_TIMEOUT,
                Some("http_response_timeout"),
                "the target did not answer in time",
            ),
            Self::ResponseBroken => (
                StatusCode::BAD_GATEWAY,
                Some("http_protocol_error"),
                "the target's answer is not valid HTTP",
            ),
            Self::TargetClosed => (
                StatusCode::BAD_GATEWAY,
                Some("connection_terminated"),
                "the target closed the connection without an answer",
            ),
        }
    }

    /// The answer that tells the client.
    pub(crate) fn answer(self) -> Response<AnswerBody> {
        self.answer_with(self.parts().2)
    }

    fn answer_with(self, text: &str) -> Response<AnswerBody> {
        let (status, error, _) = self.parts();
        let mut answer = text_answer(status, format!("{text}\n"));
        let headers = answer.headers_mut();
        if let Some(error) = error
            && let Ok(value) = HeaderValue::try_from(format!("egress-proxies; error={error}"))
        {
            headers.insert(&PROXY_STATUS, value);
        }
        match self {
            Self::Unauthenticated => {
                let challenge = HeaderValue::from_static("Basic realm=\"egress-proxies\"");
                headers.insert(PROXY_AUTHENTICATE, challenge);
            }
            Self::Overloaded | Self::OutOfSockets => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        answer
    }
}

/// The answer to a request whose target is refused.
pub(crate) fn target_answer(error: TargetError) -> Response<AnswerBody> {
    Refusal::RequestInvalid.answer_with(&error.to_string())
}

/// A plain text answer.
pub(crate) fn text_answer(status: StatusCode, text: impl Into<Bytes>) -> Response<AnswerBody> {
    typed_answer(status, "text/plain; charset=utf-8", text)
}

/// An answer of any type.
pub(crate) fn typed_answer(
    status: StatusCode,
    content_type: &'static str,
    content: impl Into<Bytes>,
) -> Response<AnswerBody> {
    let mut answer = Response::new(AnswerBody::Own(Full::new(content.into())));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// The body of an answer: ours, or the target's as it comes in.
pub(crate) enum AnswerBody {
    Empty,
    Own(Full<Bytes>),
    Relayed(Relayed),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Own(body) => Pin::new(body)
                .poll_frame(cx)
                .map_err(|never: Infallible| match never {}),
            Self::Relayed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Own(body) => body.is_end_stream(),
            Self::Relayed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Own(body) => body.size_hint(),
            Self::Relayed(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests;
