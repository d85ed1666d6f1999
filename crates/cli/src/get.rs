//! `get`: what a running engine knows, or what the objects of a cluster say.

use crate::{admin_client::AdminClient, failure::Failure, operator};
use egress_api::v1alpha1::cluster::ProxyObject;
use jiff::Timestamp;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};
use std::{collections::BTreeMap, io::Write, path::PathBuf, time::Duration};

/// The time from one look to the next of `--watch`.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// Arguments of `get`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// What to show.
    #[arg(value_enum)]
    what: What,
    /// Only the one of this name.
    name: Option<String>,
    /// Only those of this namespace; with NAME, `default` where this is not given.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Go on until Ctrl-C, with a line for each change.
    #[arg(short, long)]
    watch: bool,
    /// How it is printed. With `json`: a `ProxyList`, the `Proxy` that NAME says, or with
    /// `--watch` one event a line, with its `type` and its `object`.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// The state directory of the engine to ask.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Ask a Kubernetes cluster instead, by this kubeconfig.
    #[arg(long, value_name = "FILE", conflicts_with = "state_dir")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    /// Proxies and how they stand.
    #[value(alias = "proxy")]
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
    let source = arguments.source().await?;
    let mut list = source.list().await?;
    let chosen = arguments.choose(&mut list);
    if let (Some(name), true) = (&arguments.name, chosen.is_empty()) {
        let namespace = arguments.namespace.as_deref().unwrap_or("default");
        return Err(Failure::failed(format!(
            "{namespace}/{name}: there is no such Proxy: `get proxies` shows all"
        )));
    }
    if arguments.watch {
        return Follower::new(arguments.output)
            .follow(arguments, &source, chosen)
            .await;
    }
    let text = match arguments.output {
        Output::Json if arguments.name.is_some() => pretty(chosen.first().unwrap_or(&Value::Null)),
        Output::Json => {
            list["items"] = chosen.into();
            pretty(&list)
        }
        Output::Table => {
            let now = Timestamp::now();
            let rows: Vec<Row> = chosen.iter().map(|proxy| Row::of(proxy, now)).collect();
            let troubles = source.troubles().await?;
            let troubles = troubles.iter().map(|trouble| format!("! {trouble}\n"));
            table(&rows, usize::MAX) + &troubles.collect::<String>()
        }
    };
    // `get | head` ends before everything is read.
    print(&text);
    Ok(())
}

/// Who is asked.
enum Source {
    Engine(AdminClient),
    Cluster(kube::Client),
}

impl Source {
    /// A `ProxyList`.
    async fn list(&self) -> Result<Value, Failure> {
        let client = match self {
            Self::Engine(engine) => return engine.get("/v1/proxies").await,
            Self::Cluster(client) => client.clone(),
        };
        let all = Api::<ProxyObject>::all(client);
        let mut listed = all
            .list(&ListParams::default())
            .await
            .map_err(|e| Failure::failed(format!("list the Proxies of the cluster: {e}")))?;
        for proxy in &mut listed.items {
            proxy.managed_fields_mut().clear();
        }
        serde_json::to_value(&listed)
            .map_err(|e| Failure::failed(format!("list the Proxies of the cluster: {e}")))
    }

    /// What the engine says of itself; a cluster's stands in its ProxyProviders.
    async fn troubles(&self) -> Result<Vec<String>, Failure> {
        match self {
            Self::Engine(engine) => engine.troubles().await,
            Self::Cluster(_) => Ok(Vec::new()),
        }
    }
}

impl Arguments {
    async fn source(&self) -> Result<Source, Failure> {
        if self.kubeconfig.is_some() {
            let client = operator::client(self.kubeconfig.as_deref()).await?;
            return Ok(Source::Cluster(client));
        }
        let dir = crate::standalone::state_dir(self.state_dir.as_deref(), None)?;
        AdminClient::find(&dir).map(Source::Engine)
    }

    /// Takes out of a list what was asked for.
    fn choose(&self, list: &mut Value) -> Vec<Value> {
        let default = self.name.as_ref().map(|_| "default");
        let namespace = self.namespace.as_deref().or(default);
        let is_chosen = |proxy: &Value| {
            let metadata = &proxy["metadata"];
            let is = |field: &str, wanted: Option<&str>| {
                wanted.is_none_or(|wanted| metadata[field] == wanted)
            };
            is("name", self.name.as_deref()) && is("namespace", namespace)
        };
        let mut all = match list["items"].take() {
            Value::Array(all) => all,
            _ => Vec::new(),
        };
        all.retain(is_chosen);
        all
    }
}

pub fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// Prints at once. False when nobody reads it any more.
pub fn print(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_ok()
}

/// Prints what changes.
struct Follower {
    output: Output,
    known: BTreeMap<String, Value>,
    troubles: Vec<String>,
    widths: Option<Widths>,
}

impl Follower {
    const fn new(output: Output) -> Self {
        Self {
            output,
            known: BTreeMap::new(),
            troubles: Vec::new(),
            widths: None,
        }
    }

    /// Looks until it is stopped, the engine ends, or nobody reads any more.
    async fn follow(
        mut self,
        arguments: &Arguments,
        source: &Source,
        mut now: Vec<Value>,
    ) -> Result<(), Failure> {
        loop {
            let troubles = match self.output {
                Output::Table => source.troubles().await?,
                Output::Json => Vec::new(),
            };
            if !print(&self.changes(now, troubles, Timestamp::now())) {
                return Ok(());
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
            now = arguments.choose(&mut source.list().await?);
        }
    }

    /// What is new since the last look, as it is printed.
    fn changes(&mut self, proxies: Vec<Value>, troubles: Vec<String>, now: Timestamp) -> String {
        let name = |proxy: &Value| {
            let metadata = &proxy["metadata"];
            format!("{}/{}", metadata["namespace"], metadata["name"])
        };
        let seen: BTreeMap<String, Value> = proxies.into_iter().map(|p| (name(&p), p)).collect();
        let mut events = Vec::new();
        for (name, proxy) in &self.known {
            if !seen.contains_key(name) {
                events.push(("DELETED", proxy.clone()));
            }
        }
        for (name, proxy) in &seen {
            match self.known.get(name) {
                None => events.push(("ADDED", proxy.clone())),
                Some(known) if known != proxy => events.push(("MODIFIED", proxy.clone())),
                Some(_) => {}
            }
        }
        self.known = seen;
        match self.output {
            Output::Json => {
                let mut lines = String::new();
                for (r#type, object) in &events {
                    lines += &json!({"type": r#type, "object": object}).to_string();
                    lines.push('\n');
                }
                lines
            }
            Output::Table => self.lines(&events, troubles, now),
        }
    }

    fn lines(&mut self, events: &[(&str, Value)], troubles: Vec<String>, now: Timestamp) -> String {
        let mut rows: Vec<[String; COLUMNS]> = Vec::new();
        if self.widths.is_none() {
            rows.push(HEAD.map(str::to_owned));
        }
        for (r#type, proxy) in events {
            let mut row = Row::of(proxy, now);
            if *r#type == "DELETED" {
                let last = &mut row.0[COLUMNS - 1];
                "it is gone".clone_into(last);
            }
            rows.push(row.0);
        }
        let widths = self.widths.get_or_insert_with(|| widths_of(&rows));
        let mut text: String = rows
            .iter()
            .map(|row| line(row, widths, usize::MAX))
            .collect();
        for trouble in troubles.iter().filter(|t| !self.troubles.contains(t)) {
            text.push_str("! ");
            text.push_str(trouble);
            text.push('\n');
        }
        self.troubles = troubles;
        text
    }
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row([String; COLUMNS]);

const COLUMNS: usize = 9;

/// How wide each column is, in characters.
type Widths = [usize; COLUMNS];

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
    /// Takes a Proxy as the admin page shows it, or as a cluster has it. Its age at `now` is that
    /// of its machine, or of the object.
    pub fn of(proxy: &Value, now: Timestamp) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let status = &proxy["status"];
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let find = |r#type: &str| conditions.iter().find(|c| c["type"] == r#type);
        let state = |r#type: &str| find(r#type).map_or_else(|| "-".into(), |c| text(&c["status"]));
        let told = ["Accepted", "Provisioned", "Serving"]
            .iter()
            .filter_map(|t| find(t))
            .find(|c| c["status"] != "True")
            // The machine runs, and is not the one that is wanted.
            .or_else(|| find("Provisioned").filter(|c| c["reason"] == "ReplacementRefused"));
        let message = told.map_or_else(String::new, |c| {
            format!("{}: {}", text(&c["reason"]), text(&c["message"]))
        });
        let paused = if status["paused"] == true || proxy["spec"]["paused"] == true {
            ",Paused"
        } else {
            ""
        };
        let made = status["machine"]["createdAt"].as_str();
        let made = made.or_else(|| proxy["metadata"]["creationTimestamp"].as_str());
        let provider = [&status["provider"], &proxy["spec"]["provider"]];
        let provider = provider.iter().find_map(|name| name.as_str());
        let made = made.and_then(|made| made.parse::<Timestamp>().ok());
        Self([
            text(&proxy["metadata"]["namespace"]),
            text(&proxy["metadata"]["name"]),
            provider.unwrap_or("-").to_owned(),
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

/// Cells in columns of these widths, at most `width` characters wide in all.
fn line<const N: usize>(cells: &[String; N], widths: &[usize; N], width: usize) -> String {
    let cells = cells.iter().zip(widths);
    let cells: Vec<String> = cells
        .map(|(cell, width)| format!("{cell:<width$}"))
        .collect();
    let line: String = cells.join("  ").chars().take(width).collect();
    format!("{}\n", line.trim_end())
}

fn widths_of<const N: usize>(rows: &[[String; N]]) -> [usize; N] {
    std::array::from_fn(|column| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    })
}

/// Rows under a head, each at most `width` characters wide.
pub fn columns<const N: usize>(head: [&str; N], rows: &[[String; N]], width: usize) -> String {
    let head = head.map(str::to_owned);
    let all: Vec<[String; N]> = std::iter::once(head).chain(rows.iter().cloned()).collect();
    let widths = widths_of(&all);
    all.iter().map(|row| line(row, &widths, width)).collect()
}

/// The rows under a head, each at most `width` characters wide.
pub fn table(rows: &[Row], width: usize) -> String {
    let rows: Vec<[String; COLUMNS]> = rows.iter().map(|row| row.0.clone()).collect();
    columns(HEAD, &rows, width)
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
        let proxy = json!({"metadata": {"namespace": "default", "name": "a"}, "status": {
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

    #[test]
    fn a_change_that_is_refused_is_told_although_the_machine_serves() {
        let provisioned = |reason: &str| {
            json!({"status": {"conditions": [
                {"type": "Provisioned", "status": "True", "reason": reason, "message": "why"},
                {"type": "Serving", "status": "True", "reason": "Serving", "message": ""}]}})
        };
        let message = |reason: &str| {
            let row = Row::of(&provisioned(reason), Timestamp::UNIX_EPOCH);
            row.0[COLUMNS - 1].clone()
        };
        assert_eq!(message("Provisioned"), "");
        assert_eq!(message("ReplacementRefused"), "ReplacementRefused: why");
    }

    fn running(name: &str, endpoint: &str) -> Value {
        json!({"metadata": {"namespace": "default", "name": name},
               "status": {"phase": "Running", "endpoint": endpoint}})
    }

    #[test]
    fn what_is_watched_is_told_once_for_each_change() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().expect("a time");
        let mut table = Follower::new(Output::Table);
        let mut look = |proxies: &[Value], troubles: &[&str]| {
            let troubles = troubles.iter().map(|&t| t.to_owned()).collect();
            table.changes(proxies.to_vec(), troubles, now)
        };
        let (a, b) = (running("a", "127.0.0.1:1"), running("b", "127.0.0.1:2"));
        let first = look(std::slice::from_ref(&a), &["no manifest"]);
        assert!(first.starts_with("NAMESPACE"), "{first}");
        assert_eq!(first.lines().count(), 3, "{first}");
        assert_eq!(look(std::slice::from_ref(&a), &["no manifest"]), "");
        let second = look(&[a, b.clone()], &[]);
        assert!(second.starts_with("default    b "), "{second}");
        let third = look(&[b], &[]);
        assert!(third.starts_with("default    a ") && third.ends_with("it is gone\n"));
    }

    #[test]
    fn what_is_watched_for_programs_is_an_event_a_line() {
        let mut events = Follower::new(Output::Json);
        let mut look = |proxies: &[Value]| {
            let text = events.changes(proxies.to_vec(), Vec::new(), Timestamp::UNIX_EPOCH);
            let of = |line: &str| -> Value { serde_json::from_str(line).expect("JSON") };
            text.lines()
                .map(|line| of(line)["type"].as_str().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };
        let (a, moved) = (running("a", "127.0.0.1:1"), running("a", "127.0.0.1:2"));
        assert_eq!(look(std::slice::from_ref(&a)), ["ADDED"]);
        assert!(look(&[a]).is_empty());
        assert_eq!(look(&[moved]), ["MODIFIED"]);
        assert_eq!(look(&[]), ["DELETED"]);
    }
}
