//! `prune`: the user's word that missing manifests mean deletion.

use crate::{admin_client::AdminClient, failure::Failure};
use std::path::PathBuf;

/// Arguments of `prune`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The state directory of the engine to ask.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Asks the engine to delete what its manifests no longer declare.
pub async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let dir = crate::standalone::state_dir(arguments.state_dir.as_deref(), None)?;
    let answer = AdminClient::find(&dir)?.post("/v1/prune").await?;
    let names: Vec<&str> = answer["deleting"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(serde_json::Value::as_str)
        .collect();
    if let Some(refused) = answer["refused"].as_str() {
        return Err(Failure::failed(format!("nothing was deleted: {refused}")));
    }
    match names.len() {
        0 => println!("nothing to delete: every Proxy has its manifest"),
        n => println!("deleting {n}: {}", names.join(", ")),
    }
    Ok(())
}
