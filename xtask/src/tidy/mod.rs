//! `cargo xtask tidy`: what holds in this repository and no other tool checks.
//!
//! One rule a file, each a function from the files (and the crates) to findings. All findings
//! are printed at once, each with its place and what to do about it.

mod contract;
mod dependencies;
mod docs;
mod licences;
mod names;
mod purity;
mod reach;
mod reports;
mod sizes;
mod source;
mod specs;
mod stubs;
mod tree;

use crate::{Stop, run};
use std::{fmt, path::Path};
use tree::Tree;

/// One thing that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// File, from the top folder.
    path: String,
    /// Line, from 1; 0 where the finding is about the whole file.
    line: usize,
    problem: String,
    remedy: String,
    /// A warning is printed and fails nothing.
    weight: Weight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    Fails,
    Warns,
}

impl Finding {
    fn new(
        path: impl Into<String>,
        line: usize,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            path: path.into(),
            line,
            problem: problem.into(),
            remedy: remedy.into(),
            weight: Weight::Fails,
        }
    }

    fn warning(self) -> Self {
        Self {
            weight: Weight::Warns,
            ..self
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        let warning = if self.weight == Weight::Warns {
            "warning: "
        } else {
            ""
        };
        write!(f, ": {warning}{}: {}", self.problem, self.remedy)
    }
}

/// Checks every rule and prints what was found.
pub(crate) fn tidy(root: &Path) -> Result<(), Stop> {
    let tree = Tree::read(root)?;
    let metadata = run::metadata(root)?;
    let crates = dependencies::Crate::read(&metadata);
    let mut findings = [
        dependencies::check(&crates),
        licences::check(&licences::Package::read(&metadata)),
        contract::check(&tree),
        docs::check(&tree),
        names::check(&tree),
        purity::check(&tree),
        reach::check(&tree),
        reports::check(&tree),
        sizes::check(&tree),
        specs::check(&tree),
        stubs::check(&tree),
    ]
    .concat();
    findings.sort_by_key(|finding| (finding.weight == Weight::Fails, finding.clone()));
    for finding in &findings {
        println!("{finding}");
    }
    let failing = findings
        .iter()
        .filter(|finding| finding.weight == Weight::Fails)
        .count();
    let warnings = findings.len() - failing;
    println!(
        "tidy: {} files, {} crates: {failing} findings, {warnings} warnings",
        tree.files.len(),
        crates.len()
    );
    if failing == 0 {
        Ok(())
    } else {
        Err(Stop::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_names_place_problem_and_remedy() {
        let finding = Finding::new("a.rs", 3, "is wrong", "make it right");
        assert_eq!(finding.to_string(), "a.rs:3: is wrong: make it right");
        assert_eq!(
            finding.warning().to_string(),
            "a.rs:3: warning: is wrong: make it right"
        );
        assert_eq!(Finding::new("a.md", 0, "x", "y").to_string(), "a.md: x: y");
    }
}
