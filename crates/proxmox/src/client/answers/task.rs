//! What a node answers about its tasks.

use super::{Answered, Misfit, entries, shape};
use crate::client::{
    ids::Vmid,
    lenient,
    upid::{TaskEnd, TaskState, Upid},
};
use serde::Deserialize;
use serde_json::Value;

/// An entry of a task list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The task.
    pub upid: Upid,
    /// Running or ended, as the list says; only the task's own status is proof.
    pub state: TaskState,
    /// When it ended, in seconds since 1970.
    pub ended: Option<u64>,
}

impl Answered for Vec<Task> {
    fn read(data: Value) -> Result<Self, Misfit> {
        #[derive(Deserialize)]
        struct Wire {
            upid: String,
            #[serde(default)]
            status: Option<String>,
            #[serde(default, deserialize_with = "lenient::number")]
            endtime: Option<u64>,
        }
        Ok(entries::<Wire>(data)?
            .into_iter()
            .filter_map(|wire| {
                let state = match wire.status.as_deref() {
                    Some("RUNNING" | "running") => TaskState::Running,
                    None if wire.endtime.is_none() => TaskState::Running,
                    end => TaskState::Ended(TaskEnd::parse(end.unwrap_or_default())),
                };
                Some(Task {
                    upid: wire.upid.parse().ok()?,
                    state,
                    ended: wire.endtime,
                })
            })
            .collect())
    }
}

impl Answered for TaskState {
    fn read(data: Value) -> Result<Self, Misfit> {
        #[derive(Deserialize)]
        struct Wire {
            status: String,
            #[serde(default)]
            exitstatus: Option<String>,
        }
        let wire: Wire = shape(data)?;
        match wire.status.as_str() {
            "running" => Ok(Self::Running),
            "stopped" => Ok(Self::Ended(TaskEnd::parse(
                wire.exitstatus.as_deref().unwrap_or_default(),
            ))),
            other => Err(format!("{other:?} is not a task's status")),
        }
    }
}

/// The log of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskLog {
    /// Its lines, in order.
    pub lines: Vec<String>,
}

impl TaskLog {
    /// The new machine that a clone's log names; written from qemu-server 9.1.6 (rule 2).
    pub fn clone_target(&self) -> Option<Vmid> {
        self.lines.iter().find_map(|line| {
            let (_, rest) = line.split_once("creating a clone of VM ")?;
            let (_, id) = rest.split_once(" with ID ")?;
            id.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        })
    }
    /// The lines that warn.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        self.lines
            .iter()
            .map(String::as_str)
            .filter(|line| line.starts_with("WARN:") || line.starts_with("WARNING:"))
    }
}

impl Answered for TaskLog {
    fn read(data: Value) -> Result<Self, Misfit> {
        #[derive(Deserialize)]
        struct Wire {
            #[serde(default)]
            t: Option<String>,
        }
        Ok(Self {
            lines: shape::<Vec<Wire>>(data)?
                .into_iter()
                .map(|line| line.t.unwrap_or_default())
                .collect(),
        })
    }
}

/// A call that ends in a task.
impl Answered for Upid {
    fn read(data: Value) -> Result<Self, Misfit> {
        match data {
            Value::String(text) => text.parse().map_err(|e| format!("{e}")),
            other => Err(format!("{other} is not a UPID")),
        }
    }
}

/// A call that ends in a task, or has ended already.
impl Answered for Option<Upid> {
    fn read(data: Value) -> Result<Self, Misfit> {
        match data {
            Value::Null => Ok(None),
            data => Upid::read(data).map(Some),
        }
    }
}
