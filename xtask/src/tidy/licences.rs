//! What we ship must be free to ship, come from the default registry, and avoid some crates.

use super::Finding;
use cargo_metadata::Metadata;
use std::collections::BTreeSet;

/// Licences that ask for no more than a notice.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that must not be anywhere in what we ship, and why.
const BANNED: &[(&str, &str)] = &[
    ("openssl", NO_C_LIBRARY),
    ("openssl-sys", NO_C_LIBRARY),
    ("native-tls", NO_C_LIBRARY),
    ("serde_yaml", "it is no longer kept; use serde-saphyr"),
    ("async-std", "it is no longer kept; use tokio"),
];

const NO_C_LIBRARY: &str = "use rustls: the binary is static and has no C library of TLS";

/// Crates that our own do without, and what we take instead; others may use them.
const NOT_OURS: &[(&str, &str)] = &[
    ("chrono", "use jiff"),
    ("time", "use jiff"),
    (
        "mockall",
        "the doubles are `provider::memory` and the simulators",
    ),
    ("log4rs", "use tracing"),
];

/// Where a package comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Workspace,
    DefaultRegistry,
    Elsewhere,
}

/// A package in the graph of all dependencies, those of tests included.
pub(crate) struct Package {
    name: String,
    version: String,
    licence: Option<String>,
    origin: Origin,
    /// One of ours names it.
    named: bool,
}

impl Package {
    /// All packages cargo would build for the platform we ship on.
    pub(crate) fn read(metadata: &Metadata) -> Vec<Self> {
        let named: BTreeSet<&str> = metadata
            .workspace_packages()
            .into_iter()
            .flat_map(|package| &package.dependencies)
            .map(|dependency| dependency.name.as_str())
            .collect();
        metadata
            .packages
            .iter()
            .map(|package| Self {
                named: named.contains(package.name.as_str()),
                name: package.name.to_string(),
                version: package.version.to_string(),
                licence: package.license.clone(),
                origin: match &package.source {
                    None if metadata.workspace_members.contains(&package.id) => Origin::Workspace,
                    Some(source) if source.is_crates_io() => Origin::DefaultRegistry,
                    _ => Origin::Elsewhere,
                },
            })
            .collect()
    }
}

/// Findings about all packages.
pub(crate) fn check(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let mut report = |problem: &str, remedy: &str| {
            let problem = format!("{} {} {problem}", package.name, package.version);
            findings.push(Finding::new("Cargo.lock", 0, problem, remedy));
        };
        match package.licence.as_deref() {
            None => report("names no licence", "use another crate"),
            Some(licence) if !allows(licence) => {
                report(
                    &format!("is under `{licence}`"),
                    "use another crate, or weigh the licence and add it in xtask/src/tidy/licences.rs",
                );
            }
            Some(_) => {}
        }
        if package.origin == Origin::Elsewhere {
            report(
                "is not from the default registry",
                "use a published version",
            );
        }
        let named = NOT_OURS.iter().filter(|_| package.named);
        let banned = BANNED.iter().chain(named);
        for (_, remedy) in banned.filter(|(name, _)| *name == package.name) {
            report("is banned", remedy);
        }
    }
    findings
}

/// Whether an SPDX expression can be met with allowed licences alone. `/` is an old `OR`.
fn allows(expression: &str) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any_of(&mut rest).is_some_and(|allowed| allowed && rest.is_empty())
}

/// Reads `a OR b OR ...`; `None` when it cannot be read.
fn any_of(rest: &mut &[&str]) -> Option<bool> {
    let mut allowed = all_of(rest)?;
    while let Some(after) = rest.strip_prefix(&["OR"]) {
        *rest = after;
        allowed |= all_of(rest)?;
    }
    Some(allowed)
}

fn all_of(rest: &mut &[&str]) -> Option<bool> {
    let mut allowed = one(rest)?;
    while let Some(after) = rest.strip_prefix(&["AND"]) {
        *rest = after;
        allowed &= one(rest)?;
    }
    Some(allowed)
}

fn one(rest: &mut &[&str]) -> Option<bool> {
    let (first, mut after) = rest.split_first()?;
    if *first == "(" {
        let allowed = any_of(&mut after)?;
        *rest = after.strip_prefix(&[")"])?;
        return Some(allowed);
    }
    let mut name = (*first).to_owned();
    if let ["WITH", exception, further @ ..] = after {
        name = format!("{name} WITH {exception}");
        after = further;
    }
    *rest = after;
    Some(ALLOWED.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_met_when_one_branch_is() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "MIT OR GPL-3.0-only",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0-only",
        ] {
            assert!(allows(good), "{good}");
        }
        for bad in [
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "(MIT OR Apache-2.0) AND AGPL-3.0-only",
            "GPL-2.0-only WITH Classpath-exception-2.0",
            "(MIT",
            "MIT MIT",
            "",
        ] {
            assert!(!allows(bad), "{bad}");
        }
    }

    #[test]
    fn a_bad_licence_a_foreign_source_and_a_banned_crate_are_found() {
        let package = |name: &str, licence: Option<&str>, origin| Package {
            name: name.into(),
            version: "1.0.0".into(),
            licence: licence.map(Into::into),
            origin,
            named: false,
        };
        let ours = |name| Package {
            named: true,
            ..package(name, Some("MIT"), Origin::DefaultRegistry)
        };
        let found = check(&[
            package("chrono", Some("MIT"), Origin::DefaultRegistry),
            ours("time"),
            ours("good-too"),
            package("good", Some("MIT"), Origin::DefaultRegistry),
            package("ours", Some("Apache-2.0"), Origin::Workspace),
            package("copyleft", Some("GPL-3.0-only"), Origin::DefaultRegistry),
            package("silent", None, Origin::DefaultRegistry),
            package("forked", Some("MIT"), Origin::Elsewhere),
            package("openssl", Some("Apache-2.0"), Origin::DefaultRegistry),
        ]);
        let problems: Vec<&str> = found
            .iter()
            .map(|finding| finding.problem.as_str())
            .collect();
        assert_eq!(
            problems,
            [
                "time 1.0.0 is banned",
                "copyleft 1.0.0 is under `GPL-3.0-only`",
                "silent 1.0.0 names no licence",
                "forked 1.0.0 is not from the default registry",
                "openssl 1.0.0 is banned",
            ]
        );
    }
}
