//! What the HTTP server of Proxmox VE refuses before any API code sees it. These answers are
//! plain text or empty, never JSON.

use crate::exchange::{Answer, Request};
use std::time::Duration;

/// The largest body of a request that is no upload, in bytes.
const LARGEST_BODY: usize = 512 * 1024;
/// From so many header lines or bytes of them on, the server never answers.
const MOST_HEADERS: usize = 63;
const LARGEST_HEAD: usize = 8 * 1024;

fn header<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request
        .headers
        .iter()
        .find(|(header, _)| header == name)
        .map(|(_, value)| value.as_str())
}

fn told(status: u16, reason: String, body: bool) -> Answer {
    Answer::Response {
        status,
        headers: Vec::new(),
        body: if body {
            reason.clone().into_bytes()
        } else {
            Vec::new()
        },
        reason,
        after: Duration::ZERO,
        close: true,
    }
}

/// The answer to a request that the server refuses by its head alone, if it does.
///
/// The length of the body counts as the header says it, where it does.
#[must_use]
pub fn refuse(request: &Request) -> Option<Answer> {
    let method = request.method.as_str();
    let head: usize = request
        .headers
        .iter()
        .map(|(name, value)| name.len() + value.len() + 4)
        .sum();
    if request.headers.len() > MOST_HEADERS || head >= LARGEST_HEAD {
        return Some(Answer::Silence);
    }
    if !matches!(method, "GET" | "POST" | "PUT" | "DELETE") {
        return Some(told(501, format!("method '{method}' not available"), false));
    }
    if let Some(encoding) = header(request, "transfer-encoding") {
        let reason = if encoding.eq_ignore_ascii_case("chunked") {
            "chunked transfer encoding not supported".to_owned()
        } else {
            format!("Unknown transfer encoding '{encoding}'")
        };
        return Some(told(501, reason, true));
    }
    let length = header(request, "content-length")
        .and_then(|length| length.trim().parse().ok())
        .unwrap_or(request.body.len());
    if length == 0 {
        return None;
    }
    if matches!(method, "GET" | "DELETE") {
        return Some(told(
            501,
            format!("Unexpected content for method '{method}'"),
            true,
        ));
    }
    let kind = header(request, "content-type").unwrap_or_default();
    let plain = kind.split(';').next().unwrap_or_default().trim();
    if plain.eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    if length > LARGEST_BODY {
        return Some(told(501, "for data too large".to_owned(), true));
    }
    let known = ["", "application/x-www-form-urlencoded", "application/json"];
    if !known.iter().any(|known| plain.eq_ignore_ascii_case(known)) {
        return Some(told(
            506,
            format!("upload 'Content-Type '{kind}' not implemented"),
            true,
        ));
    }
    None
}

/// The answer to a request that came without TLS.
#[must_use]
pub fn redirect(request: &Request) -> Answer {
    let (status, reason) = if matches!(request.method.as_str(), "GET" | "HEAD") {
        (301, "Moved Permanently")
    } else {
        (308, "Permanent Redirect")
    };
    let host = header(request, "host").unwrap_or("localhost");
    Answer::Response {
        status,
        reason: reason.to_owned(),
        headers: vec![(
            "Location".to_owned(),
            format!("https://{host}{}", request.target),
        )],
        body: reason.as_bytes().to_vec(),
        after: Duration::ZERO,
        close: false,
    }
}

/// The answer to a request of another version of HTTP than 1.0 and 1.1.
#[must_use]
pub(super) fn version(version: &str) -> Answer {
    told(
        506,
        format!("http protocol version {version} not supported"),
        true,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, headers: &[(&str, &str)], body: &[u8]) -> Request {
        Request {
            node: "pve1".into(),
            method: method.into(),
            target: "/api2/json/version".into(),
            headers: headers
                .iter()
                .map(|&(name, value)| (name.into(), value.into()))
                .collect(),
            body: body.to_vec(),
        }
    }

    fn outcome(method: &str, headers: &[(&str, &str)], body: &[u8]) -> Option<(u16, String)> {
        refuse(&request(method, headers, body)).map(|answer| match answer {
            Answer::Response { status, reason, .. } => (status, reason),
            other => (0, format!("{other:?}")),
        })
    }

    #[test]
    fn a_request_that_the_server_understands_passes() {
        assert_eq!(outcome("GET", &[], b""), None);
        assert_eq!(outcome("DELETE", &[("content-length", "0")], b""), None);
        assert_eq!(
            outcome(
                "POST",
                &[(
                    "content-type",
                    "application/x-www-form-urlencoded; charset=utf-8"
                )],
                b"a=1"
            ),
            None
        );
        let upload = [
            ("content-type", "multipart/form-data; boundary=x"),
            ("content-length", "9000000"),
        ];
        assert_eq!(outcome("POST", &upload, b""), None);
    }

    #[test]
    fn what_the_server_refuses_has_its_own_reason_phrase() {
        let expect = |status: u16, reason: &str| Some((status, reason.to_owned()));
        assert_eq!(
            outcome("HEAD", &[], b""),
            expect(501, "method 'HEAD' not available")
        );
        assert_eq!(
            outcome("GET", &[("content-length", "3")], b""),
            expect(501, "Unexpected content for method 'GET'")
        );
        assert_eq!(
            outcome("POST", &[("transfer-encoding", "chunked")], b""),
            expect(501, "chunked transfer encoding not supported")
        );
        assert_eq!(
            outcome("PUT", &[("content-type", "text/plain")], b"a=1"),
            expect(506, "upload 'Content-Type 'text/plain' not implemented")
        );
        let long = (LARGEST_BODY + 1).to_string();
        assert_eq!(
            outcome("PUT", &[("content-length", &long)], b""),
            expect(501, "for data too large")
        );
    }

    #[test]
    fn too_many_header_lines_are_never_answered() {
        let many = vec![("x-one", "1"); 64];
        assert_eq!(refuse(&request("GET", &many, b"")), Some(Answer::Silence));
    }
}
