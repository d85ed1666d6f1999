//! The start world of each series, and what happened between two recorded rows.

use crate::{
    clock,
    rows::{Omissions, Sent, data},
};
use egress_proxmox_sim::world::Setup;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{collections::BTreeMap, time::Duration};

/// `tests/data/worlds.json`.
#[derive(Debug, Deserialize)]
pub(crate) struct Worlds {
    /// What the recording left out of its requests.
    #[serde(flatten)]
    pub(crate) omissions: Omissions,
    /// What all start worlds have in common.
    lab: Map<String, Value>,
    /// What each series begins with.
    series: BTreeMap<String, Map<String, Value>>,
    /// Seconds by which the broadcasts of a series' world come later than its rows say.
    shift: BTreeMap<String, f64>,
    /// Rows whose time is known otherwise, in seconds since the boot.
    pub(crate) at: BTreeMap<String, f64>,
    before: Vec<Before>,
}

/// What happened before a row.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Before {
    row: String,
    /// How many seconds before it.
    #[serde(default)]
    pub(crate) earlier: f64,
    /// In this order.
    pub(crate) steps: Vec<Step>,
}

/// Something that happened before a row.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Step {
    /// A request that was not recorded.
    Request {
        /// What was sent, by the token T1.
        send: Sent,
        /// The task it began, as later rows name it.
        upid: Option<String>,
    },
    /// What a person or an accident did.
    Control(Value),
}

impl Step {
    /// When the task of an unrecorded request began.
    pub(crate) fn began(&self) -> Option<Duration> {
        match self {
            Self::Request { upid, .. } => upid.as_deref().and_then(clock::start_of),
            Self::Control(_) => None,
        }
    }
}

impl Worlds {
    /// The checked-in worlds.
    pub(crate) fn load() -> Self {
        serde_json::from_str(&data("worlds.json")).expect("worlds.json")
    }

    /// The world that a series begins with.
    pub(crate) fn start(&self, series: &str) -> Setup {
        let mut setup = self.lab.clone();
        setup.extend(self.series[series].clone());
        serde_json::from_value(Value::Object(setup)).expect("a setup")
    }

    /// The credential of a token of the recording.
    pub(crate) fn credential(&self, token: &str) -> Option<String> {
        let id = match token {
            "T1" => "op@pve!t1",
            "RO" => "ro@pve!t1",
            "SEP" => "op@pve!sep",
            "FULL" => "root@pam!full",
            "EXPIRED" => "op@pve!expired",
            "DIS" => "dis@pve!t1",
            _ => return None,
        };
        let tokens = self.lab["tokens"].as_array().expect("tokens");
        let token = tokens
            .iter()
            .find(|token| token["id"] == id)
            .expect("a token");
        Some(format!(
            "PVEAPIToken={id}={}",
            token["secret"].as_str().expect("a secret")
        ))
    }

    /// How much later than its rows say a series is replayed.
    pub(crate) fn shift(&self, series: &str) -> Duration {
        Duration::from_secs_f64(self.shift.get(series).copied().unwrap_or_default())
    }

    /// What happened before a row.
    pub(crate) fn before(&self, row: &str) -> impl Iterator<Item = &Before> {
        self.before.iter().filter(move |before| before.row == row)
    }
}
