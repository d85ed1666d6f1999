//! Where log lines go.

use crate::{failure::Failure, traces::Traces};
use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Mutex, PoisonError},
};
use tracing_subscriber::{
    EnvFilter, Layer as _, fmt::MakeWriter, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// How log lines are written.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Where they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard error.
    Stderr,
    /// The last few are kept for the live table to show.
    Table,
}

/// Lines that the live table shows.
static RECENT: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
const KEPT: usize = 6;

/// The last log lines, oldest first.
pub fn recent() -> Vec<String> {
    RECENT
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .cloned()
        .collect()
}

#[derive(Clone, Copy)]
struct Sink(Target);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == Target::Stderr {
            return io::stderr().write(bytes);
        }
        let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
        for line in String::from_utf8_lossy(bytes).lines() {
            recent.push_back(line.to_owned());
        }
        while recent.len() > KEPT {
            recent.pop_front();
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        *self
    }
}

/// Begins to write log lines, and to hand spans to `traces`.
pub fn start(
    format: Format,
    level: &str,
    target: Target,
    traces: Option<&Traces>,
) -> Result<(), Failure> {
    // What libraries tell at these levels would bury our own lines; a filter can ask for it.
    let ours = match level {
        "debug" | "trace" => format!("info,egress={level}"),
        other => other.to_owned(),
    };
    let filter = EnvFilter::try_new(ours).map_err(|e| {
        Failure::refused(format!(
            "--log-level: {level}: is no log filter ({e}): use error, warn, info, debug or trace"
        ))
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(false)
        .with_writer(Sink(target));
    let lines = match format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(traces.map(Traces::layer))
        .init();
    Ok(())
}
