//! The crates of words and decisions know no time but what they are told, and touch nothing.

use super::{Finding, source, tree::Tree};

const PURE_FOLDERS: &[&str] = &["crates/core/src/", "crates/api/src/", "crates/seed/src/"];

/// Calls that look at the world.
const CALLS: &[&str] = &[
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
    "Zoned::now",
    "thread::sleep",
    "TcpStream::",
    "TcpListener::",
    "UdpSocket::",
];

/// Modules of the standard library that look at the world or change it.
const MODULES: &[&str] = &["fs", "env", "process", "thread"];

/// Findings about the sources of the pure crates, tests left out.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let pure = |path: &str| PURE_FOLDERS.iter().any(|folder| path.starts_with(folder));
    for file in tree.with_extension(&["rs"]).filter(|file| pure(&file.path)) {
        let mut group: Option<String> = None;
        for (number, line) in source::product_lines(file) {
            let mut report = |what: &str| {
                findings.push(Finding::new(
                    &file.path,
                    number,
                    format!("`{what}` in a crate without I/O and clock"),
                    "take the value as an argument; the caller looks",
                ));
            };
            for call in CALLS.iter().filter(|call| line.contains(**call)) {
                report(call);
            }
            for module in MODULES {
                let path = format!("std::{module}");
                if source::find_word(line, &path).is_some() {
                    report(&path);
                }
            }
            // `use std::{fmt, fs};`, on one line or several.
            if let Some(at) = line.find("std::{") {
                group = Some(line[at + "std::{".len()..].to_owned());
            } else if let Some(open) = &mut group {
                line.clone_into(open);
            }
            if let Some(names) = &group {
                for module in MODULES {
                    if names
                        .split([',', '}', ';'])
                        .any(|name| head(name) == *module)
                    {
                        report(&format!("std::{module}"));
                    }
                }
                if line.trim_end().ends_with(';') {
                    group = None;
                }
            }
        }
    }
    findings
}

/// `fs` of ` fs::File`.
fn head(name: &str) -> &str {
    name.trim().split("::").next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)]))
            .into_iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn a_clock_a_file_and_the_environment_are_found() {
        let bad = "use std::{fmt, fs};\nuse std::{\n    fmt,\n    env::var,\n};\nlet a = Instant::now();\nstd::fs::read(x);\njiff::Timestamp::now();\n";
        assert_eq!(lines("crates/core/src/a.rs", bad), [1, 4, 6, 7, 8]);
    }

    #[test]
    fn words_that_only_look_alike_pass() {
        let good =
            "use std::{fmt, net::IpAddr};\nuse std::time::Duration;\n// Instant::now\nfn fs() {}\n";
        assert!(lines("crates/core/src/a.rs", good).is_empty());
    }

    #[test]
    fn tests_and_upper_floors_may_look() {
        assert!(lines("crates/engine/src/a.rs", "Instant::now()").is_empty());
        assert!(lines("crates/core/src/a/tests.rs", "Instant::now()").is_empty());
        let inline = "#[cfg(test)]\nmod tests {\n    fn a() { std::fs::read(x) }\n}\n";
        assert!(lines("crates/core/src/a.rs", inline).is_empty());
    }
}
