//! Asks the admin page of a running engine.

use crate::failure::Failure;
use egress_engine::store::file::FileStore;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    Method, Request, StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{AUTHORIZATION, HOST},
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::{net::SocketAddr, path::Path, time::Duration};
use tokio::net::TcpStream;

/// The file in the state directory with the word that lets a command change something.
pub const TOKEN_FILE: &str = "admin-token";

const DEADLINE: Duration = Duration::from_secs(30);
const MAX_ANSWER: usize = 256 * 1024 * 1024;

/// Where the engine of a state directory listens, and how to be let in.
#[derive(Debug)]
pub struct AdminClient {
    address: SocketAddr,
    token: String,
    dir: String,
}

impl AdminClient {
    /// Reads where the engine listens.
    pub fn find(dir: &Path) -> Result<Self, Failure> {
        let shown = dir.display().to_string();
        let address = FileStore::read_admin(dir)
            .map_err(|e| Failure::failed(e.to_string()))?
            .ok_or_else(|| not_running(&shown))?;
        let token = std::fs::read_to_string(dir.join(TOKEN_FILE)).unwrap_or_default();
        Ok(Self {
            address,
            token: token.trim().to_owned(),
            dir: shown,
        })
    }

    /// A GET whose answer is JSON.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.ask(Method::GET, path).await.map(|(_, value)| value)
    }

    /// A POST whose answer is JSON.
    pub async fn post(&self, path: &str) -> Result<Value, Failure> {
        let (status, value) = self.ask(Method::POST, path).await?;
        if status.is_success() {
            Ok(value)
        } else {
            Err(Failure::failed(format!(
                "the engine answered {status} to {path}"
            )))
        }
    }

    /// What the engine says is not well.
    pub async fn troubles(&self) -> Result<Vec<String>, Failure> {
        let readiness = self.get("/readyz").await?;
        let lines = readiness["troubles"].as_array().into_iter().flatten();
        Ok(lines.filter_map(Value::as_str).map(str::to_owned).collect())
    }

    async fn ask(&self, method: Method, path: &str) -> Result<(StatusCode, Value), Failure> {
        let asked = tokio::time::timeout(DEADLINE, self.exchange(method, path)).await;
        match asked {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) if e.is_connect => Err(not_running(&self.dir)),
            Ok(Err(e)) => Err(Failure::failed(format!(
                "asking the engine at {}: {}",
                self.address, e.text
            ))),
            Err(_) => Err(Failure::failed(format!(
                "the engine at {} did not answer within {} s",
                self.address,
                DEADLINE.as_secs()
            ))),
        }
    }

    async fn exchange(&self, method: Method, path: &str) -> Result<(StatusCode, Value), Trouble> {
        let stream = TcpStream::connect(self.address)
            .await
            .map_err(|e| Trouble {
                is_connect: true,
                text: e.to_string(),
            })?;
        let other = |text: String| Trouble {
            is_connect: false,
            text,
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| other(e.to_string()))?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.address.to_string())
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .body(Empty::<Bytes>::new())
            .map_err(|e| other(e.to_string()))?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|e| other(e.to_string()))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|e| other(e.to_string()))?
            .to_bytes();
        let value = serde_json::from_slice(&body)
            .map_err(|e| other(format!("{status}, and the answer is no JSON: {e}")))?;
        Ok((status, value))
    }
}

struct Trouble {
    is_connect: bool,
    text: String,
}

fn not_running(dir: &str) -> Failure {
    Failure::failed(format!(
        "no engine runs on the state directory {dir}: start `egress-proxies standalone`, or name \
         another directory with --state-dir"
    ))
}
