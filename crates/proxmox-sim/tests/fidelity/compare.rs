//! What counts as the same answer.
//!
//! Bodies are compared parsed. The order of keys means nothing, nor does that of lists but for
//! the lines of a task's log. Values that no two hosts share are replaced by what they are:
//!
//! | what | becomes |
//! | --- | --- |
//! | a UPID's process, process start and start time | `UPID:node:::…` |
//! | MAC addresses with the prefix of Proxmox (`BC:24:11`) | `<mac>` |
//! | UUIDs | `<uuid>` |
//! | SHA-1, as of a configuration | `<sha1>` |
//! | MD5 in the name of a staged upload | `<md5>` |
//! | `ctime=` of a configuration | `ctime=<time>` |
//! | a certificate's fingerprint | `<fingerprint>` |
//! | `/var/var/tmp`, where the lab had its `/var/tmp` | `/var/tmp` |
//! | a progress line of a copy | left out, and not counted in `total` |
//! | numbers that measure: processes, times, loads, used and free bytes, packets | `<measured>` |

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The headers that matter to a client; the recording kept no others.
const HEADERS: &[&str] = &["connection", "content-type", "location"];

/// Keys whose numbers measure the host or the moment.
const MEASURED: &[&str] = &[
    "avail",
    "cpu",
    "ctime",
    "disk",
    "diskread",
    "diskwrite",
    "endtime",
    "mem",
    "memhost",
    "netin",
    "netout",
    "pid",
    "pstart",
    "rx-bytes",
    "rx-packets",
    "starttime",
    "tx-bytes",
    "tx-packets",
    "uptime",
    "used",
    "used_fraction",
];

/// An answer, recorded or ours, made comparable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comparable {
    status: Option<u16>,
    reason: String,
    headers: BTreeMap<String, String>,
    body: Value,
    /// A log that is longer than one answer: how many of its lines were told.
    cut: Option<usize>,
}

impl Comparable {
    /// An answer; `None` when none came.
    pub(crate) fn new(
        answer: Option<(u16, &str, BTreeMap<String, String>, &str)>,
        path: &str,
    ) -> Self {
        let Some((status, reason, headers, body)) = answer else {
            return Self {
                status: None,
                reason: String::new(),
                headers: BTreeMap::new(),
                body: Value::Null,
                cut: None,
            };
        };
        let body = match serde_json::from_str::<Value>(body) {
            Ok(value) => value,
            Err(_) => Value::String(body.trim_end().to_owned()),
        };
        let log = path.ends_with("/log");
        let (told, cut) = if log {
            lines(&body)
        } else {
            (plain(&body, ""), None)
        };
        Self {
            status: Some(status),
            reason: text(reason),
            headers: headers
                .into_iter()
                .map(|(name, value)| (name.to_lowercase(), value))
                .filter(|(name, _)| HEADERS.contains(&name.as_str()))
                .collect(),
            body: told,
            cut,
        }
    }

    /// The parts in which two answers differ, as (part, recorded, ours).
    pub(crate) fn differences(&self, ours: &Self) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        if self.status != ours.status {
            found.push((
                "status".into(),
                format!("{:?}", self.status),
                format!("{:?}", ours.status),
            ));
        }
        if self.reason != ours.reason {
            found.push(("reason".into(), self.reason.clone(), ours.reason.clone()));
        }
        if self.headers != ours.headers {
            found.push((
                "headers".into(),
                format!("{:?}", self.headers),
                format!("{:?}", ours.headers),
            ));
        }
        let mut body = ours.body.clone();
        if let (Some(cut), Some(lines)) = (self.cut, body.as_array_mut()) {
            lines.truncate(cut);
        }
        differ("body", &self.body, &body, &mut found);
        found
    }
}

fn differ(at: &str, recorded: &Value, ours: &Value, found: &mut Vec<(String, String, String)>) {
    match (recorded, ours) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let at = format!("{at}.{key}");
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => differ(&at, a, b, found),
                    (a, b) => found.push((at, shown(a), shown(b))),
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                differ(&format!("{at}[{i}]"), a, b, found);
            }
        }
        (a, b) if a != b => found.push((at.into(), shown(Some(a)), shown(Some(b)))),
        _ => {}
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "(absent)".into(), Value::to_string)
}

/// A log: its lines in order, without the progress of copies, and how many of them were told
/// where the answer holds only its beginning.
fn lines(body: &Value) -> (Value, Option<usize>) {
    let Some(data) = body.get("data").and_then(Value::as_array) else {
        return (plain(body, ""), None);
    };
    let told: Vec<Value> = data
        .iter()
        .filter_map(|line| line["t"].as_str())
        .filter(|line| !line.starts_with("transferred "))
        .map(|line| Value::String(text(line)))
        .collect();
    let cut = (body["total"].as_u64() > Some(data.len() as u64)).then_some(told.len());
    (Value::Array(told), cut)
}

fn plain(value: &Value, key: &str) -> Value {
    match value {
        Value::Number(_) if MEASURED.contains(&key) => json!("<measured>"),
        Value::String(told) => Value::String(text(told)),
        Value::Array(all) => {
            let mut all: Vec<Value> = all.iter().map(|value| plain(value, key)).collect();
            all.sort_by_key(sort_key);
            Value::Array(all)
        }
        Value::Object(map) => Value::Object(
            map.iter()
                .map(|(key, value)| {
                    // Lists in one text, in no order.
                    let value = match value {
                        Value::String(told) if key == "content" => {
                            let mut parts: Vec<&str> = told.split(',').collect();
                            parts.sort_unstable();
                            Value::String(parts.join(","))
                        }
                        other => plain(other, key),
                    };
                    (key.clone(), value)
                })
                .collect::<Map<_, _>>(),
        ),
        other => other.clone(),
    }
}

/// What tells the entries of a list apart.
fn sort_key(value: &Value) -> String {
    [
        "id", "volid", "iface", "key", "upid", "name", "node", "poolid", "vmid",
    ]
    .iter()
    .find_map(|key| value.get(key))
    .unwrap_or(value)
    .to_string()
}

/// A text without what no two hosts share.
pub(crate) fn text(told: &str) -> String {
    let mut out = String::with_capacity(told.len());
    let mut rest = told;
    while !rest.is_empty() {
        let (shown, length) = shape(rest, out.chars().last());
        out.push_str(shown);
        if length == 0 {
            let mut chars = rest.chars();
            out.extend(chars.next());
            rest = chars.as_str();
        } else {
            rest = &rest[length..];
        }
    }
    // The lab's own root folder shows in one path.
    upids(&out).replace("/var/var/tmp/", "/var/tmp/")
}

/// A value that no two hosts share at the start of a text, and its length; 0 if there is none.
fn shape(rest: &str, before: Option<char>) -> (&'static str, usize) {
    if before.is_some_and(|before| before.is_ascii_alphanumeric()) {
        return ("", 0);
    }
    let run = |step: usize, parts: usize, separator: u8| {
        let length = parts * (step + 1) - 1;
        let bytes = rest.as_bytes();
        let fits = bytes.len() >= length
            && bytes[..length].iter().enumerate().all(|(i, byte)| {
                if i % (step + 1) == step {
                    *byte == separator
                } else {
                    byte.is_ascii_hexdigit()
                }
            });
        let ends = bytes
            .get(length)
            .is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != separator);
        (fits && ends).then_some(length)
    };
    if let Some(length) = run(2, 32, b':') {
        return ("<fingerprint>", length);
    }
    if let Some(length) = run(2, 6, b':')
        && rest[..8].eq_ignore_ascii_case("bc:24:11")
    {
        return ("<mac>", length);
    }
    if let Some(length) = run(40, 1, b'-') {
        return ("<sha1>", length);
    }
    if let Some(length) = run(32, 1, b'-') {
        return ("<md5>", length);
    }
    if let Some(digits) = rest.strip_prefix("ctime=") {
        let count = digits.bytes().take_while(u8::is_ascii_digit).count();
        return ("ctime=<time>", 6 + count);
    }
    let bytes = rest.as_bytes();
    let groups = [8, 4, 4, 4, 12];
    let mut at = 0;
    for (i, group) in groups.into_iter().enumerate() {
        if i > 0 {
            if bytes.get(at) != Some(&b'-') {
                return ("", 0);
            }
            at += 1;
        }
        if bytes.len() < at + group || !bytes[at..at + group].iter().all(u8::is_ascii_hexdigit) {
            return ("", 0);
        }
        at += group;
    }
    ("<uuid>", at)
}

/// UPIDs without process and times.
fn upids(told: &str) -> String {
    let mut out = String::new();
    for (i, part) in told.split("UPID:").enumerate() {
        if i > 0 {
            let mut fields: Vec<&str> = part.splitn(8, ':').collect();
            if fields.len() == 8 {
                for field in &mut fields[1..4] {
                    *field = "";
                }
            }
            out.push_str("UPID:");
            out.push_str(&fields.join(":"));
        } else {
            out.push_str(part);
        }
    }
    out
}
