//! What the benchmarks share: arguments, percentiles, tables, and what a process costs.

#![allow(dead_code, reason = "each benchmark is a program and uses a part")]

pub mod standing;

use std::{
    fmt::Display,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Child,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// The number after this argument, or the default. Cargo's own `--bench` means nothing.
pub fn number(argument: &str, default: u32) -> u32 {
    text(argument)
        .map_or(Some(default), |text| text.parse().ok())
        .unwrap_or_else(|| panic!("{argument} needs a number"))
}

/// The word after this argument.
pub fn text(argument: &str) -> Option<String> {
    std::env::args().skip_while(|a| a != argument).nth(1)
}

/// A program that `cargo xtask bench` built and named in this variable.
pub fn program(variable: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(
        || panic!("{variable} names no program: run this by `cargo xtask bench`"),
        PathBuf::from,
    )
}

/// The value that a part (0 to 1) of the values does not exceed.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

/// The middle value.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Prints one row of a Markdown table.
pub fn row<T: Display>(cells: impl IntoIterator<Item = T>) {
    let cells: Vec<String> = cells.into_iter().map(|cell| cell.to_string()).collect();
    println!("| {} |", cells.join(" | "));
}

/// Prints the head of a Markdown table; the first column holds words, the others figures.
pub fn head(cells: &[&str]) {
    row(cells);
    let lines = cells
        .iter()
        .enumerate()
        .map(|(index, _)| if index == 0 { "---" } else { "---:" });
    row(lines);
}

/// A figure with as many digits as it has sense.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v.is_nan() => "–".to_owned(),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The memory that a process holds, in MiB: `VmRSS` now or `VmHWM` at its peak.
pub fn memory(pid: u32, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
        .map_or(f64::NAN, |kib| kib / 1024.0)
}

/// The processor time that all threads of a process have used. Threads that ended are in it.
pub fn processor_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The program's name, in parentheses, may hold anything.
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks: u64 = fields
        .split(' ')
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_millis(ticks * 1000 / per_second)
}

/// A directory that every user may enter, so that programs that drop their privileges can.
pub fn open_directory() -> TempDir {
    let everyone = Permissions::from_mode(0o777);
    tempfile::Builder::new()
        .prefix("egress-bench-")
        .permissions(everyone)
        .tempdir()
        .expect("a directory can be made")
}

/// A process of ours that ends with its owner, and is asked to: a simulator that is killed leaves
/// its guests behind.
pub struct Kept(pub Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let patience = Instant::now() + Duration::from_secs(30);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
