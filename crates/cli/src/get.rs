//! `get`: what a running engine knows.

use crate::{admin_client::AdminClient, failure::Failure};
use serde_json::Value;
use std::{io::Write, path::PathBuf};

/// Arguments of `get`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// What to show.
    #[arg(value_enum)]
    what: What,
    /// How it is printed.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// The state directory of the engine to ask.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    /// Every Proxy and how it stands.
    Proxies,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Asks the engine and prints.
pub async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let What::Proxies = arguments.what;
    let dir = crate::standalone::state_dir(arguments.state_dir.as_deref(), None)?;
    let client = AdminClient::find(&dir)?;
    let proxies = client.get("/v1/proxies").await?;
    let text = match arguments.output {
        Output::Json => serde_json::to_string_pretty(&proxies).unwrap_or_default() + "\n",
        Output::Table => {
            let rows: Vec<Row> = proxies
                .as_array()
                .into_iter()
                .flatten()
                .map(Row::from)
                .collect();
            let troubles = client.troubles().await?;
            let troubles = troubles.iter().map(|trouble| format!("! {trouble}\n"));
            table(&rows, usize::MAX) + &troubles.collect::<String>()
        }
    };
    // `get | head` ends before everything is read.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(())
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row([String; 6]);

impl Row {
    /// Takes a Proxy as the admin page shows it.
    pub fn from(proxy: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let status = &proxy["status"];
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let find = |r#type: &str| conditions.iter().find(|c| c["type"] == r#type);
        let serving = find("Serving");
        let told = ["Accepted", "Provisioned", "Serving"]
            .iter()
            .filter_map(|t| find(t))
            .find(|c| c["status"] != "True");
        let message = told.map_or_else(String::new, |c| {
            format!("{}: {}", text(&c["reason"]), text(&c["message"]))
        });
        Self([
            text(&proxy["namespace"]),
            text(&proxy["name"]),
            text(&status["phase"]),
            serving.map_or_else(|| "-".into(), |c| text(&c["status"])),
            text(&status["endpoint"]),
            message,
        ])
    }
}

const HEAD: [&str; 6] = [
    "NAMESPACE",
    "NAME",
    "PHASE",
    "SERVING",
    "ENDPOINT",
    "MESSAGE",
];

/// The rows under a head, each at most `width` characters wide.
pub fn table(rows: &[Row], width: usize) -> String {
    let head = Row(HEAD.map(str::to_owned));
    let all: Vec<&Row> = std::iter::once(&head).chain(rows).collect();
    let widths: Vec<usize> = (0..HEAD.len())
        .map(|column| {
            all.iter()
                .map(|r| r.0[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in all {
        let cells: Vec<String> = row
            .0
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        let line: String = cells.join("  ").chars().take(width).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
