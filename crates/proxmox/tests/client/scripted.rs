//! A wire that answers from a script and remembers what it was asked.

use async_trait::async_trait;
use egress_proxmox::client::{
    BaseUrl, Client, ClientConfig, Wire, WireAnswer, WireError, WireRequest,
};
use std::{
    collections::VecDeque,
    fs,
    sync::{Arc, Mutex},
};
use tempfile::TempDir;

/// The secret that must never show.
pub const CANARY: &str = "c0ffee00-dead-4bee-8f00-00000000beef";

/// What the wire does with one request.
#[derive(Clone)]
pub enum Turn {
    /// Answers.
    Answer(WireAnswer),
    /// Fails.
    Fail(WireError),
    /// Never answers.
    Hang,
}

/// The wire.
pub struct Script {
    turns: Mutex<VecDeque<Turn>>,
    /// Every request, in order.
    pub seen: Mutex<Vec<WireRequest>>,
}

#[async_trait]
impl Wire for Script {
    async fn send(&self, request: WireRequest) -> Result<WireAnswer, WireError> {
        self.seen.lock().unwrap().push(request);
        let turn = self.turns.lock().unwrap().pop_front();
        match turn.expect("the script has no further turn") {
            Turn::Answer(answer) => Ok(answer),
            Turn::Fail(error) => Err(error),
            Turn::Hang => std::future::pending().await,
        }
    }
}

/// A client of `servers` servers over a script; the directory holds its token.
pub struct Bench {
    pub client: Client,
    pub script: Arc<Script>,
    pub dir: TempDir,
}

pub fn bench(servers: usize, turns: impl IntoIterator<Item = Turn>) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let token_file = dir.path().join("token");
    fs::write(&token_file, format!("op@pve!t1={CANARY}\n")).unwrap();
    let script = Arc::new(Script {
        turns: Mutex::new(turns.into_iter().collect()),
        seen: Mutex::new(Vec::new()),
    });
    let urls = (1..=servers)
        .map(|n| format!("https://pve{n}:8006").parse::<BaseUrl>().unwrap())
        .collect();
    let client = Client::new(ClientConfig { urls, token_file }, script.clone());
    Bench {
        client,
        script,
        dir,
    }
}

pub fn answer(status: u16, reason: &str, body: &str) -> Turn {
    Turn::Answer(WireAnswer {
        status,
        reason: reason.to_owned(),
        headers: http::HeaderMap::new(),
        body: body.to_owned().into(),
    })
}

pub fn ok(data: &str) -> Turn {
    answer(200, "OK", &format!("{{\"data\":{data}}}"))
}

pub fn not_sent() -> Turn {
    Turn::Fail(WireError::NotSent {
        why: "connection refused".to_owned(),
    })
}

pub fn cut_off() -> Turn {
    Turn::Fail(WireError::CutOff {
        why: "connection closed".to_owned(),
    })
}
