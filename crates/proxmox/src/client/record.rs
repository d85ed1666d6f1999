//! Captures the answers of a live host as fixtures, with reads only.
//!
//! It lives here and not in `xtask`, which uses nothing of the product: what is captured must
//! be asked by the very client whose understanding the fixtures will test. `xtask` runs the
//! product's command for it.
//!
//! Nothing is written before everything was looked through: a capture that holds the token,
//! or anything that looks like a secret, is refused as a whole.

use super::{
    answers::{Answered, Resource, ResourceKind},
    call::Call,
    exchange::Client,
    failure::Failure,
    ids::NodeName,
    params::{ResourceFilter, TaskFilter},
};
use serde_json::{Value, json};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The file that a capture writes: one exchange a line, as JSON.
pub const FILE: &str = "exchanges.jsonl";

/// What must stand in no fixture, whatever token is in use.
const SECRETS: [&str; 4] = [
    "PVEAPIToken",
    "PVEAuthCookie",
    "PRIVATE KEY-----",
    "CSRFPreventionToken\":\"",
];

/// Why nothing was saved.
#[derive(Debug, thiserror::Error)]
pub enum NotCaptured {
    /// A call had no answer at all.
    #[error("{0}")]
    NoAnswer(Failure),
    /// An answer holds a secret.
    #[error("the answer to {asked} holds {what}: nothing was saved")]
    Secret {
        /// Which request.
        asked: String,
        /// What was found; never the secret.
        what: String,
    },
    /// The file could not be written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// What was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The file.
    pub path: PathBuf,
    /// How many exchanges it holds.
    pub exchanges: usize,
}

/// Asks everything that this client can ask without changing anything, errors included, and
/// saves the answers as [`FILE`] in `dir`. Of the guests, only templates and machines tagged
/// by this product are asked for, so that no one else's config ends in a fixture.
pub async fn capture(client: &Client, dir: &Path) -> Result<Captured, NotCaptured> {
    let mut lines = Vec::new();
    let list = Call::ClusterResources(ResourceFilter::All);
    let resources = ask(client, &list, &mut lines)
        .await?
        .and_then(|data| Vec::<Resource>::read(data).ok())
        .unwrap_or_default();
    for call in cluster_calls(&resources)
        .into_iter()
        .chain(resources.iter().flat_map(calls_for))
    {
        ask(client, &call, &mut lines).await?;
    }
    let path = dir.join(FILE);
    let broken = |source| NotCaptured::File {
        path: path.clone(),
        source,
    };
    fs::create_dir_all(dir).map_err(broken)?;
    fs::write(&path, lines.join("\n") + "\n").map_err(broken)?;
    Ok(Captured {
        exchanges: lines.len(),
        path,
    })
}

fn cluster_calls(resources: &[Resource]) -> Vec<Call> {
    let mut calls = vec![
        Call::Version,
        Call::ClusterStatus,
        Call::ClusterOptions,
        Call::Nodes,
        Call::Vnets,
        Call::ClusterResources(ResourceFilter::Guests),
    ];
    calls.extend(
        ["/", "/vms", "/storage", "/sdn/zones", "/pool"].map(|path| Call::Permissions {
            path: path.to_owned(),
        }),
    );
    calls.extend(resources.iter().filter_map(|r| r.vmid).map(Call::NextId));
    calls
}

fn calls_for(resource: &Resource) -> Vec<Call> {
    let Some(node) = resource.node.clone() else {
        return resource
            .pool
            .clone()
            .filter(|_| resource.kind == ResourceKind::Pool)
            .map(|poolid| Call::Pool { poolid })
            .into_iter()
            .collect();
    };
    match resource.kind {
        ResourceKind::Node => node_calls(&node),
        ResourceKind::Storage => resource.storage.clone().map_or_else(Vec::new, |storage| {
            vec![
                Call::StorageStatus {
                    node: node.clone(),
                    storage: storage.clone(),
                },
                Call::StorageContent {
                    node,
                    storage,
                    content: Some("iso".to_owned()),
                    vmid: None,
                },
            ]
        }),
        ResourceKind::Qemu
            if resource.template || resource.tags.iter().any(|t| t == "proxy_operator") =>
        {
            resource.vmid.map_or_else(Vec::new, |vmid| {
                vec![
                    Call::VmConfig {
                        node: node.clone(),
                        vmid,
                    },
                    Call::VmStatus {
                        node: node.clone(),
                        vmid,
                    },
                    Call::AgentInterfaces { node, vmid },
                ]
            })
        }
        _ => Vec::new(),
    }
}

fn node_calls(node: &NodeName) -> Vec<Call> {
    vec![
        Call::NodeTime(node.clone()),
        Call::Certificates(node.clone()),
        Call::Bridges(node.clone()),
        Call::Tasks {
            node: node.clone(),
            filter: TaskFilter::active(),
        },
        Call::Tasks {
            node: node.clone(),
            filter: TaskFilter::archive(),
        },
    ]
}

/// Asks, notes the exchange, and gives the answer's data if it has any.
async fn ask(
    client: &Client,
    call: &Call,
    lines: &mut Vec<String>,
) -> Result<Option<Value>, NotCaptured> {
    let answer = client.raw(call).await.map_err(NotCaptured::NoAnswer)?;
    let rendered = call.render();
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    let headers: serde_json::Map<String, Value> = ["connection", "content-length", "content-type"]
        .into_iter()
        .filter_map(|name| {
            let value = answer.headers.get(name)?.to_str().ok()?;
            Some((name.to_owned(), Value::from(value)))
        })
        .collect();
    let line = json!({
        "id": format!("r{:03}", lines.len() + 1),
        "request": {"method": rendered.method.as_str(), "path": rendered.target()},
        "response": {
            "status": answer.status,
            "reason": answer.reason,
            "headers": headers,
            "body": body,
        },
    })
    .to_string();
    refuse_secrets(client, &rendered.target(), &line)?;
    lines.push(line);
    Ok(serde_json::from_str::<Value>(&body)
        .ok()
        .and_then(|mut answer| answer.get_mut("data").map(Value::take)))
}

fn refuse_secrets(client: &Client, asked: &str, line: &str) -> Result<(), NotCaptured> {
    let secret = |what: String| NotCaptured::Secret {
        asked: format!("GET {asked}"),
        what,
    };
    if client.secret_is_in(line).map_err(NotCaptured::NoAnswer)? {
        return Err(secret("the token in use".to_owned()));
    }
    // A line is JSON, and its body JSON inside it, whose quotes are escaped.
    let plain = line.replace('\\', "");
    match SECRETS.iter().find(|word| plain.contains(*word)) {
        Some(word) => Err(secret(format!("{:?}", word.trim_end_matches("\":\"")))),
        None => Ok(()),
    }
}
