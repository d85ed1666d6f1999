//! The simulator against the recording of running Proxmox VE code: every recorded exchange that
//! a call of the product can meet is sent again, in order, in a declared start world. Recorded
//! were pve-manager 9.2.11 and qemu-server 9.2.6 on one node with directory storages and guests
//! under emulation; ids and secrets are replaced, and the set is a sample with gaps.
//!
//! `tests/data/exclusions.json` says which rows no call can meet, by rule and never by row;
//! `tests/data/differences.json` lists every row whose answer still differs, with the reason.
//! A row that differs and is not listed fails the test, and so does a listed row that does not
//! differ any more. `FIDELITY_REPORT=<folder>` writes what differs there, one file per series.

mod clock;
mod compare;
mod exclusions;
mod privileges;
mod replay;
mod rows;
mod timelines;
mod worlds;

use exclusions::Exclusions;
use replay::Replayed;
use rows::{Row, data, rows};
use serde::Deserialize;
use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};
use worlds::Worlds;

/// Rows whose answers differ for one reason.
#[derive(Debug, Deserialize)]
struct Difference {
    rows: Vec<String>,
    reason: String,
}

fn replayed(all: &[Row]) -> (Vec<Replayed>, BTreeMap<String, usize>) {
    let exclusions = Exclusions::load(all);
    let idle = exclusions.idle(all);
    assert!(idle.is_empty(), "rules that leave out nothing: {idle:?}");
    let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
    let mut series: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in all {
        series.entry(row.series()).or_default().push(row);
        if let Some(reason) = exclusions.reason(row) {
            *left_out.entry(reason.to_owned()).or_default() += 1;
        }
    }
    let worlds = Worlds::load();
    let replayed = series
        .values()
        .flat_map(|rows| replay::replay(&worlds, rows, |row| exclusions.reason(row).is_some()))
        .collect();
    (replayed, left_out)
}

fn report(folder: &Path, replayed: &[Replayed]) {
    let mut files: BTreeMap<&str, String> = BTreeMap::new();
    for row in replayed.iter().filter(|row| !row.differences.is_empty()) {
        let file = files.entry(&row.id[..1]).or_default();
        file.push_str(&row.told);
        for (part, recorded, ours) in &row.differences {
            writeln!(
                file,
                "  DIFFERS {part}\n     recorded {recorded}\n     ours     {ours}"
            )
            .expect("a string");
        }
        file.push('\n');
    }
    fs::create_dir_all(folder).expect("the report's folder");
    for letter in 'a'..='z' {
        let path = folder.join(format!("series-{letter}.txt"));
        match files.get(letter.to_string().as_str()) {
            Some(text) => fs::write(path, text).expect("the report"),
            None => drop(fs::remove_file(path)),
        }
    }
}

#[test]
fn every_recorded_exchange_the_product_can_meet_is_answered_alike_or_listed_with_a_reason() {
    let all = rows();
    let (replayed, left_out) = replayed(&all);
    let listed: Vec<Difference> =
        serde_json::from_str(&data("differences.json")).expect("differences.json");
    if let Some(folder) = std::env::var_os("FIDELITY_REPORT") {
        report(Path::new(&folder), &replayed);
    }
    let differing: Vec<&Replayed> = replayed
        .iter()
        .filter(|row| !row.differences.is_empty())
        .collect();
    let alike = replayed.len() - differing.len();
    println!(
        "fidelity: {alike} of {} recorded exchanges answered alike ({:.1} %)",
        replayed.len(),
        100.0 * alike as f64 / replayed.len() as f64
    );
    println!(
        "{} of {} recorded rows are left out, by {} rules:",
        all.len() - replayed.len(),
        all.len(),
        left_out.len()
    );
    for (reason, count) in &left_out {
        println!("  {count:4}  {reason}");
    }
    println!("differences:");
    for difference in &listed {
        println!("  {}: {}", difference.rows.join(" "), difference.reason);
    }
    let reasons: BTreeMap<&str, &str> = listed
        .iter()
        .flat_map(|difference| {
            difference
                .rows
                .iter()
                .map(|id| (id.as_str(), difference.reason.as_str()))
        })
        .collect();
    let mut wrong = String::new();
    for row in &differing {
        if !reasons.contains_key(row.id.as_str()) {
            writeln!(wrong, "not listed: {}", row.told).expect("a string");
            for (part, recorded, ours) in &row.differences {
                writeln!(wrong, "  DIFFERS {part}: recorded {recorded}, ours {ours}")
                    .expect("a string");
            }
        }
    }
    for id in reasons.keys() {
        if !differing.iter().any(|row| row.id == *id) {
            writeln!(wrong, "listed, but answered alike or left out: {id}").expect("a string");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
