//! Each provider has a spec that leaves none of the contract's questions open.

use super::{
    Finding, source,
    tree::{File, Tree},
};
use std::collections::BTreeSet;

/// Folders of `crates/` that hold a provider.
const PROVIDERS: &[&str] = &["local", "proxmox", "kvm2"];

const ENTRIES: usize = 24;

/// The contract's axes with their profiles. One that ends in `(` carries a bound: `lagging(2s)`.
const AXES: &[(&str, &[&str])] = &[
    ("create", &["synchronous", "task", "eventual"]),
    ("mark", &["with-create", "after-create"]),
    ("late-create", &["never", "same-slot"]),
    ("created-at", &["reported", "written-at-create"]),
    ("list", &["server-filtered", "client-filtered"]),
    ("reads", &["strong", "lagging("]),
    ("visibility", &["full", "scoped"]),
    ("address", &["immediate", "agent", "lease"]),
    ("user-data", &["native", "nocloud-iso", "process-arguments"]),
    ("seed-cleanup", &["with-machine", "separate"]),
    ("power", &["full", "hibernation-possible", "none"]),
    ("placement", &["single-host", "multi-host"]),
    ("quota", &["reported", "error-only", "absent"]),
    (
        "transport",
        &["https-token", "local-socket", "tls-socket", "in-process"],
    ),
];

/// The facts about Proxmox VE that its spec must build on: F1 to this.
const PROXMOX_FACTS: usize = 23;

/// Findings about `docs/*-spec.md`.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for provider in PROVIDERS
        .iter()
        .filter(|name| tree.holds(&format!("crates/{name}")))
    {
        let path = format!("docs/{provider}-spec.md");
        if tree.file(&path).is_none() {
            let remedy = "write the provider's spec: 24 entries, and a profile for each axis";
            findings.push(Finding::new(path, 0, "does not exist", remedy));
        }
    }
    let spec = |file: &&File| file.path.starts_with("docs/") && file.path.ends_with("-spec.md");
    for file in tree.files.iter().filter(spec) {
        check_entries(file, &mut findings);
        check_axes(file, &mut findings);
        if file.path == "docs/proxmox-spec.md" {
            check_facts(file, &mut findings);
        }
    }
    findings
}

fn check_entries(file: &File, findings: &mut Vec<Finding>) {
    // Line of the heading and lines of text below it.
    let mut entries = [(0_usize, 0_usize); ENTRIES];
    let mut current = None;
    for (number, line) in file.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            current = heading
                .split_once('.')
                .and_then(|(entry, _)| entry.parse::<usize>().ok())
                .and_then(|entry| entry.checked_sub(1))
                .filter(|index| *index < ENTRIES);
            if let Some(index) = current {
                if entries[index].0 > 0 {
                    let problem = format!("a second heading `## {}.`", index + 1);
                    findings.push(Finding::new(&file.path, number, problem, "keep one"));
                }
                entries[index] = (number, 0);
            }
        } else if let Some(index) = current
            && !line.trim().is_empty()
            && !line.starts_with('#')
        {
            entries[index].1 += 1;
        }
    }
    for (index, (line, length)) in entries.iter().enumerate() {
        let entry = index + 1;
        if *line == 0 {
            findings.push(Finding::new(
                &file.path,
                0,
                format!("no heading `## {entry}.`"),
                "answer all 24 entries of the contract's section on specs",
            ));
        } else if *length < 2 {
            findings.push(Finding::new(
                &file.path,
                *line,
                format!("entry {entry} is under two lines"),
                "say what holds and where that is known from",
            ));
        }
    }
}

fn check_axes(file: &File, findings: &mut Vec<Finding>) {
    for (axis, profiles) in AXES {
        let mut answers = BTreeSet::new();
        for (number, line) in file.lines() {
            // Between backticks: every second part.
            for word in line.split('`').skip(1).step_by(2) {
                let Some(profile) = word
                    .strip_prefix(axis)
                    .and_then(|rest| rest.strip_prefix(": "))
                else {
                    continue;
                };
                let legal = profiles.iter().any(|known| {
                    profile == *known
                        || (known.ends_with('(')
                            && profile.len() > known.len() + 1
                            && profile.starts_with(known)
                            && profile.ends_with(')'))
                });
                if legal {
                    answers.insert(profile);
                } else {
                    findings.push(Finding::new(
                        &file.path,
                        number,
                        format!("`{axis}` has no profile `{profile}`"),
                        format!("choose one of: {}", shown(profiles)),
                    ));
                }
            }
        }
        if answers.len() != 1 {
            findings.push(Finding::new(
                &file.path,
                0,
                format!("axis `{axis}` has {} answers", answers.len()),
                format!(
                    "write one as `` `{axis}: profile` ``, of: {}",
                    shown(profiles)
                ),
            ));
        }
    }
}

fn shown(profiles: &[&str]) -> String {
    profiles.join(", ").replace('(', "(bound)")
}

fn check_facts(file: &File, findings: &mut Vec<Finding>) {
    for fact in 1..=PROXMOX_FACTS {
        let id = format!("F{fact}");
        if source::find_word(&file.text, &id).is_none() {
            findings.push(Finding::new(
                &file.path,
                0,
                format!("no entry cites {id}"),
                "say what the fact means for this provider",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    fn spec() -> String {
        let mut text = String::new();
        for (axis, profiles) in AXES {
            let profile = profiles[0];
            writeln!(text, "- `{axis}: {profile}`").unwrap();
        }
        for entry in 1..=ENTRIES {
            writeln!(text, "## {entry}. title\n\nfirst\nsecond").unwrap();
        }
        text
    }

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)]))
            .into_iter()
            .map(|finding| finding.problem)
            .collect()
    }

    const PATH: &str = "docs/local-spec.md";

    #[test]
    fn a_full_spec_is_silent() {
        let nothing: [&str; 0] = [];
        assert_eq!(found(PATH, &spec()), nothing);
        let lagging = spec().replace("reads: strong", "reads: lagging(2s)");
        assert_eq!(found(PATH, &lagging), nothing);
    }

    #[test]
    fn a_provider_without_a_spec_is_found() {
        assert_eq!(found("crates/local/Cargo.toml", ""), ["does not exist"]);
    }

    #[test]
    fn a_missing_a_short_and_a_double_entry_are_found() {
        let missing = spec().replace("## 7. title", "7. title");
        assert_eq!(found(PATH, &missing), ["no heading `## 7.`"]);
        let short = spec().replace("## 9. title\n\nfirst\n", "## 9. title\n\n");
        assert_eq!(found(PATH, &short), ["entry 9 is under two lines"]);
        let double = format!("{}## 3. again\na\nb\n", spec());
        assert_eq!(found(PATH, &double), ["a second heading `## 3.`"]);
    }

    #[test]
    fn an_axis_with_no_answer_two_answers_or_a_wrong_one_is_found() {
        let none = spec().replace("`quota: reported`", "quota: reported");
        assert_eq!(found(PATH, &none), ["axis `quota` has 0 answers"]);
        let two = format!("{}\n`mark: after-create`\n", spec());
        assert_eq!(found(PATH, &two), ["axis `mark` has 2 answers"]);
        let wrong = spec().replace("`power: full`", "`power: some`");
        assert_eq!(
            found(PATH, &wrong),
            [
                "`power` has no profile `some`",
                "axis `power` has 0 answers"
            ]
        );
        let unbounded = spec().replace("reads: strong", "reads: lagging()");
        assert_eq!(found(PATH, &unbounded).len(), 2);
    }

    #[test]
    fn the_proxmox_spec_must_cite_every_fact() {
        let mut text = spec();
        for fact in (1..=PROXMOX_FACTS).filter(|fact| *fact != 2) {
            write!(text, " F{fact}").unwrap();
        }
        assert_eq!(found("docs/proxmox-spec.md", &text), ["no entry cites F2"]);
    }
}
