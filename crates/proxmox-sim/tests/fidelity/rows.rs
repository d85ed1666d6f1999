//! The recorded exchanges and how each is sent again.

use egress_proxmox_sim::exchange::Request;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{collections::BTreeMap, fs, path::PathBuf};

/// Where the recording put bytes that it did not keep.
const ELIDED: &str = "<zero bytes>";

/// What the forms of the recording left as it is.
const FORM: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// One recorded exchange.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Row {
    /// Its letter series and its place in it.
    pub(crate) id: String,
    /// What was tried.
    pub(crate) name: String,
    /// Which token asked; `custom` stands in `worlds.json`.
    pub(crate) token: Option<String>,
    /// What was sent.
    pub(crate) request: Sent,
    /// What came back.
    pub(crate) response: Received,
}

/// A recorded request.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Sent {
    /// The method.
    pub(crate) method: String,
    /// Path and query.
    pub(crate) path: String,
    /// The type of the body.
    pub(crate) content_type: Option<String>,
    /// The parameters in the body.
    pub(crate) params: Option<Map<String, Value>>,
    /// The body, where it is no list of parameters.
    pub(crate) body: Option<Value>,
}

/// A recorded answer.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Received {
    /// Absent when no answer came.
    pub(crate) status: Option<u16>,
    /// The reason phrase.
    pub(crate) reason: Option<String>,
    /// The headers but length and date.
    pub(crate) headers: BTreeMap<String, String>,
    /// The body.
    pub(crate) body: Option<String>,
}

impl Row {
    /// The letter of its series.
    pub(crate) fn series(&self) -> &str {
        &self.id[..1]
    }

    /// The UPID that the answer to a request other than a read holds.
    pub(crate) fn begun(&self) -> Option<&str> {
        if self.request.method == "GET" {
            return None;
        }
        upid_in(self.response.body.as_deref()?)
    }

    /// The UPID in the path.
    pub(crate) fn asked(&self) -> Option<String> {
        upid_in(&decoded(&self.request.path)).map(str::to_owned)
    }
}

/// The first UPID in a text.
pub(crate) fn upid_in(text: &str) -> Option<&str> {
    let start = text.find("UPID:")?;
    let rest = &text[start..];
    let end = rest.find(['"', '/', '?', ' ']).unwrap_or(rest.len());
    Some(&rest[..end])
}

/// A text without percent-encoding.
pub(crate) fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// A text as one path segment or form value.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, FORM).to_string()
}

/// A file of `tests/data`.
pub(crate) fn data(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every recorded row.
pub(crate) fn rows() -> Vec<Row> {
    data("exchanges.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).expect("a recorded row"))
        .collect()
}

/// What the recording left out of its requests.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Omissions {
    /// Headers by row.
    pub(crate) headers: BTreeMap<String, BTreeMap<String, String>>,
    /// The rows that were sent without TLS.
    pub(crate) plain_http: Vec<String>,
    /// How many bytes stand where the recording kept none, by row; `*` for all others.
    pub(crate) zero_bytes: BTreeMap<String, usize>,
    /// What followed those bytes, where it was not the end of the form.
    pub(crate) tails: BTreeMap<String, String>,
    /// The recorded digests of contents, and those of the zero bytes in their place.
    pub(crate) digests: BTreeMap<String, String>,
}

impl Omissions {
    /// A text with the digests of the stand-ins in place of the recorded ones.
    pub(crate) fn with_digests(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (recorded, ours) in &self.digests {
            text = text.replace(recorded, ours);
        }
        text
    }

    fn body(&self, id: &str, recorded: &str, content_type: &str) -> Vec<u8> {
        let recorded = self.with_digests(recorded);
        let Some((head, _)) = recorded.split_once(ELIDED) else {
            return recorded.into_bytes();
        };
        let zeroes = self.zero_bytes.get(id).unwrap_or(&self.zero_bytes["*"]);
        let mut body = head.as_bytes().to_vec();
        body.resize(body.len() + zeroes, 0);
        body.extend_from_slice(self.tails.get(id).map_or("", String::as_str).as_bytes());
        if let Some((_, boundary)) = content_type.split_once("boundary=") {
            body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        }
        body
    }

    /// A row as a request to one node.
    pub(crate) fn request(&self, row: &Row, node: &str, credential: Option<String>) -> Request {
        let sent = &row.request;
        let mut headers: Vec<(String, String)> = Vec::new();
        if let Some(credential) = credential {
            headers.push(("authorization".into(), credential));
        }
        for (name, value) in self.headers.get(&row.id).into_iter().flatten() {
            headers.push((name.clone(), value.clone()));
        }
        let content_type = sent.content_type.clone().unwrap_or_default();
        let body = match (&sent.params, &sent.body) {
            (Some(params), _) if content_type.starts_with("application/json") => {
                serde_json::to_vec(params).expect("parameters are JSON")
            }
            (Some(params), _) => form(params).into_bytes(),
            (None, Some(body)) => self.body(&row.id, &spelled(body), &content_type),
            (None, None) => Vec::new(),
        };
        if !content_type.is_empty() {
            headers.push(("content-type".into(), content_type));
        }
        if !matches!(sent.method.as_str(), "GET" | "HEAD")
            && (sent.params.is_some() || !body.is_empty())
        {
            headers.push(("content-length".into(), body.len().to_string()));
        }
        Request {
            node: node.into(),
            method: sent.method.clone(),
            target: sent.path.clone(),
            headers,
            body,
        }
    }
}

/// Parameters as a form.
pub(crate) fn form(params: &Map<String, Value>) -> String {
    params
        .iter()
        .map(|(name, value)| format!("{}={}", encoded(name), encoded(&spelled(value))))
        .collect::<Vec<_>>()
        .join("&")
}

/// A value as text; long runs of one letter are stored as their length.
fn spelled(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(run) => {
            let before = run.get("before").and_then(Value::as_str).unwrap_or("");
            let letter = run["repeat"].as_str().expect("a letter");
            let times = usize::try_from(run["times"].as_u64().expect("a number")).expect("small");
            format!("{before}{}", letter.repeat(times))
        }
        other => other.to_string(),
    }
}
