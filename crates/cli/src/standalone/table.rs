//! The live table on a terminal.

use crate::{get, logs};
use egress_engine::{Handle, admin::ProxyJson};
use std::{
    io::{IsTerminal, Write, stdout},
    sync::Arc,
    time::Duration,
};

/// How often the table is drawn at most.
const PERIOD: Duration = Duration::from_millis(200);

/// Whether standard output shows a table.
pub fn wanted() -> bool {
    stdout().is_terminal()
}

/// Draws until dropped: Proxies, troubles, the last log lines.
pub async fn draw(handle: Handle, troubles: Arc<dyn Fn() -> Vec<String> + Send + Sync>) {
    let mut changes = handle.changes();
    let mut drawn = 0;
    loop {
        drawn = frame(&handle, &troubles(), drawn);
        tokio::time::sleep(PERIOD).await;
        let _ = tokio::time::timeout(Duration::from_secs(1), changes.changed()).await;
    }
}

/// Draws over the `before` lines of the last frame; answers with how many lines it drew.
fn frame(handle: &Handle, troubles: &[String], before: usize) -> usize {
    let (columns, lines) = size();
    let now = jiff::Timestamp::now();
    let rows: Vec<get::Row> = handle
        .views()
        .iter()
        .filter_map(|view| serde_json::to_value(ProxyJson::of(view, None)).ok())
        .map(|value| get::Row::of(&value, now))
        .collect();
    let table = get::table(&rows, columns);
    let tail: Vec<String> = troubles
        .iter()
        .map(|t| format!("! {t}"))
        .chain(std::iter::once(String::new()))
        .chain(logs::recent())
        .map(|line| line.chars().take(columns).collect())
        .collect();
    let room = lines.saturating_sub(tail.len() + 2).max(3);
    let all = table.lines().count();
    let mut text = String::new();
    if before > 0 {
        text = format!("\x1b[{before}A\x1b[J");
    }
    let mut count = 0;
    let more = (all > room).then(|| format!("... and {} more", all - room));
    let shown = table.lines().take(room).map(str::to_owned);
    for line in shown.chain(more).chain(tail) {
        text.push_str(&line);
        text.push('\n');
        count += 1;
    }
    let mut out = stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    count
}

fn size() -> (usize, usize) {
    rustix::termios::tcgetwinsize(stdout())
        .ok()
        .filter(|size| size.ws_col > 0 && size.ws_row > 0)
        .map_or((120, 40), |size| (size.ws_col.into(), size.ws_row.into()))
}
