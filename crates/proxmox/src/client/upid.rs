//! Tasks: their ids, how they end, and how often to ask (§4, F16).

use super::ids::{BadId, NodeName, Vmid};
use std::{fmt, str::FromStr, time::Duration};

/// The id of a task, as Proxmox VE writes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Upid {
    text: String,
    node: NodeName,
    start: i64,
    kind: String,
    id: String,
    user: String,
}

impl Upid {
    /// The whole id.
    pub fn as_str(&self) -> &str {
        &self.text
    }
    /// The node the task runs on: the only one that can tell its status (§4.1).
    pub const fn node(&self) -> &NodeName {
        &self.node
    }
    /// When it began, in seconds since 1970 on the node's clock.
    pub const fn started(&self) -> i64 {
        self.start
    }
    /// Its type, such as `qmclone`.
    pub fn kind(&self) -> &str {
        &self.kind
    }
    /// What it is about: the source's VMID for a clone, empty for an upload.
    pub fn id(&self) -> &str {
        &self.id
    }
    /// The guest it is about, if [`id`](Self::id) is one.
    pub fn vmid(&self) -> Option<Vmid> {
        self.id.parse().ok()
    }
    /// Who began it: `user@realm` or `user@realm!token`.
    pub fn user(&self) -> &str {
        &self.user
    }
}

impl fmt::Display for Upid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Upid {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        parse(text).ok_or_else(|| BadId {
            what: "UPID",
            text: text.chars().take(200).collect(),
        })
    }
}

fn parse(text: &str) -> Option<Upid> {
    let hex = |part: &str, longest: usize| {
        let fits =
            (8..=longest).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
        fits.then(|| i64::from_str_radix(part, 16).ok()).flatten()
    };
    let plain = |part: &str| !part.contains(['/', ' ', '\t', '\n', '\r']);
    let mut parts = text.split(':');
    if parts.next()? != "UPID" {
        return None;
    }
    let node = parts.next()?.parse().ok()?;
    hex(parts.next()?, 8)?;
    hex(parts.next()?, 9)?;
    let start = hex(parts.next()?, 8)?;
    let (kind, id, user) = (parts.next()?, parts.next()?, parts.next()?);
    if kind.is_empty() || user.is_empty() || ![kind, id, user].into_iter().all(plain) {
        return None;
    }
    (parts.next() == Some("") && parts.next().is_none()).then(|| Upid {
        text: text.to_owned(),
        node,
        start,
        kind: kind.to_owned(),
        id: id.to_owned(),
        user: user.to_owned(),
    })
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskEnd {
    /// `OK`.
    Ok,
    /// `WARNINGS: n`, which is success (§4.2): the log says what was not done.
    Warnings(u32),
    /// Nobody knows: the worker was killed, or its log is cut. The effect may be half done.
    Unexpected(String),
    /// It failed, and says how.
    Error(String),
}

impl TaskEnd {
    /// From the `exitstatus` of a stopped task, or the `status` of a finished list entry.
    pub fn parse(exit_status: &str) -> Self {
        let text = exit_status.trim();
        if text == "OK" {
            return Self::Ok;
        }
        if let Some(count) = text.strip_prefix("WARNINGS: ") {
            return count
                .trim()
                .parse()
                .map_or_else(|_| Self::Unexpected(text.to_owned()), Self::Warnings);
        }
        if text.is_empty()
            || text == "unexpected status"
            || text.starts_with("unable to get last line from task log")
            || text.starts_with("unable to read tail")
        {
            return Self::Unexpected(text.to_owned());
        }
        Self::Error(text.to_owned())
    }
    /// Whether the task did what it was asked: `OK`, or with warnings.
    pub const fn is_success(&self) -> bool {
        matches!(self, Self::Ok | Self::Warnings(_))
    }
}

/// What a task is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Its process lives.
    Running,
    /// It has ended.
    Ended(TaskEnd),
}

/// How long to wait before each poll of a task: 0.25 s first, then half as much again each
/// time, up to 2 s (rule 12).
pub fn poll_waits() -> impl Iterator<Item = Duration> {
    const LONGEST: Duration = Duration::from_secs(2);
    std::iter::successors(Some(Duration::from_millis(250)), |wait| {
        Some((*wait * 3 / 2).min(LONGEST))
    })
}
