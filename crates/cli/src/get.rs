//! `get`: what a running engine knows.

use crate::{admin_client::AdminClient, failure::Failure};
use jiff::Timestamp;
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
            let (all, now) = (proxies.as_array(), Timestamp::now());
            let all = all.into_iter().flatten();
            let rows: Vec<Row> = all.map(|proxy| Row::of(proxy, now)).collect();
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
pub struct Row([String; COLUMNS]);

const COLUMNS: usize = 9;

const HEAD: [&str; COLUMNS] = [
    "NAMESPACE",
    "NAME",
    "PROVIDER",
    "PHASE",
    "SERVING",
    "READY",
    "ADDRESS",
    "AGE",
    "MESSAGE",
];

impl Row {
    /// Takes a Proxy as the admin page shows it; its age is that of its machine at `now`.
    pub fn of(proxy: &Value, now: Timestamp) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let status = &proxy["status"];
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let find = |r#type: &str| conditions.iter().find(|c| c["type"] == r#type);
        let state = |r#type: &str| find(r#type).map_or_else(|| "-".into(), |c| text(&c["status"]));
        let told = ["Accepted", "Provisioned", "Serving"]
            .iter()
            .filter_map(|t| find(t))
            .find(|c| c["status"] != "True");
        let message = told.map_or_else(String::new, |c| {
            format!("{}: {}", text(&c["reason"]), text(&c["message"]))
        });
        let paused = if status["paused"] == true {
            ",Paused"
        } else {
            ""
        };
        let made = status["machine"]["createdAt"].as_str();
        let made = made.and_then(|made| made.parse::<Timestamp>().ok());
        Self([
            text(&proxy["namespace"]),
            text(&proxy["name"]),
            text(&status["provider"]),
            text(&status["phase"]) + paused,
            state("Serving"),
            state("Ready"),
            text(&status["endpoint"]),
            made.map_or_else(
                || "-".into(),
                |made| age(now.duration_since(made).as_secs()),
            ),
            message,
        ])
    }
}

/// An age in seconds, as `kubectl` writes it: the two greatest units while it is young in the
/// greater one.
fn age(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |one: i64, unit: &str, less: i64, smaller: &str| {
        let rest = seconds % one / less;
        let rest = if rest == 0 {
            String::new()
        } else {
            format!("{rest}{smaller}")
        };
        format!("{}{unit}{rest}", seconds / one)
    };
    match seconds {
        ..0 => "0s".to_owned(), // the clock was set back
        0..120 => format!("{seconds}s"),
        120..600 => two(MINUTE, "m", 1, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(HOUR, "h", MINUTE, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(DAY, "d", HOUR, "h"),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        _ => two(YEAR, "y", DAY, "d"),
    }
}

/// The rows under a head, each at most `width` characters wide.
pub fn table(rows: &[Row], width: usize) -> String {
    let head = Row(HEAD.map(str::to_owned));
    let all: Vec<&Row> = std::iter::once(&head).chain(rows).collect();
    let widths: Vec<usize> = (0..COLUMNS)
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        for (seconds, text) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (191, "3m11s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_400, "3h10m"),
            (28_800, "8h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (700_000, "8d"),
            (63_072_000, "2y"),
            (70_000_000, "2y80d"),
        ] {
            assert_eq!(age(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn a_row_shows_provider_pause_address_and_the_age_of_the_machine() {
        let condition = |r#type: &str, status: &str| json!({"type": r#type, "status": status, "reason": "R", "message": "m"});
        let proxy = json!({"namespace": "default", "name": "a", "status": {
            "phase": "Running", "paused": true, "provider": "here", "endpoint": "127.0.0.1:1",
            "machine": {"createdAt": "2026-01-01T00:00:00Z"},
            "conditions": [condition("Serving", "True"), condition("Ready", "Unknown")]}});
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().expect("a time");
        let text = table(
            &[Row::of(&proxy, now), Row::of(&json!({}), now)],
            usize::MAX,
        );
        let cells: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(cells[0], HEAD);
        assert_eq!(
            cells[1],
            [
                "default",
                "a",
                "here",
                "Running,Paused",
                "True",
                "Unknown",
                "127.0.0.1:1",
                "60s"
            ]
        );
        assert_eq!(cells[2], ["-"; COLUMNS - 1]);
    }
}
