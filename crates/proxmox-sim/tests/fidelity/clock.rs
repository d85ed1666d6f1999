//! When each recorded row was sent, as seconds since the recorded host booted.
//!
//! A UPID holds the start of its task in hundredths of a second, so every row that began a task
//! has its time. Between two of them: rows follow the first closely until one says that a task
//! has ended; from that one on they stand just before the second.

use crate::{
    rows::Row,
    worlds::{Step, Worlds},
};
use std::time::Duration;

const CLOSELY: Duration = Duration::from_millis(20);
const JUST_BEFORE: Duration = Duration::from_millis(2);
/// How long after the last known time the rows behind it are asked.
const AT_THE_END: Duration = Duration::from_mins(1);

/// The start of a UPID's task since the boot of its host.
pub(crate) fn start_of(upid: &str) -> Option<Duration> {
    let ticks = u64::from_str_radix(upid.split(':').nth(3)?, 16).ok()?;
    Some(Duration::from_millis(ticks * 10))
}

fn ended(row: &Row) -> bool {
    let path = &row.request.path;
    path.contains("/tasks/")
        && row
            .response
            .body
            .as_deref()
            .is_some_and(|body| body.contains("\"status\":\"stopped\"") || body.contains("\"TASK "))
}

/// The time of each row of one series.
pub(crate) fn times(rows: &[&Row], worlds: &Worlds) -> Vec<Duration> {
    let known: Vec<Option<Duration>> = rows
        .iter()
        .map(|row| {
            let declared = worlds.at.get(&row.id).copied().map(Duration::from_secs_f64);
            declared.or_else(|| row.begun().and_then(start_of))
        })
        .collect();
    // A task whose request was not recorded began before the row that first asks for it.
    let begun: Vec<Option<Duration>> = rows
        .iter()
        .map(|row| {
            let steps = worlds.before(&row.id).flat_map(|before| &before.steps);
            steps.filter_map(Step::began).max()
        })
        .collect();
    let mut times = vec![Duration::ZERO; rows.len()];
    let mut last = Duration::from_secs(1);
    let mut at = 0;
    while at < rows.len() {
        if let Some(time) = known[at] {
            last = time.max(last);
            times[at] = last;
            at += 1;
            continue;
        }
        last = begun[at].map_or(last, |time| last.max(time));
        let next = (at + 1..rows.len()).find(|&i| known[i].is_some() || begun[i].is_some());
        let until = next.unwrap_or(rows.len());
        let end = next
            .and_then(|i| begun[i].or(known[i]))
            .unwrap_or(last + AT_THE_END);
        let turn = (at..until).find(|&i| ended(rows[i])).unwrap_or(until);
        for (i, time) in times.iter_mut().enumerate().take(until).skip(at) {
            let proposed = if i < turn {
                last + CLOSELY
            } else {
                let left = u32::try_from(until - i).expect("few rows");
                end.saturating_sub(JUST_BEFORE * left)
            };
            last = proposed.max(last + Duration::from_millis(1));
            *time = last;
        }
        at = until;
    }
    times
}
