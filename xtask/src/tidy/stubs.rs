//! Nothing is left half done.
//!
//! The needles are put together here so that this file does not find itself.

use super::{Finding, source, tree::Tree};

const CALLS: &[&str] = &[
    concat!("to", "do!("),
    concat!("unimpl", "emented!("),
    concat!("#[ig", "nore"),
];
const WORDS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
];

/// Findings about stubs, switched-off tests and notes to oneself.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let code = |path: &str| {
        [".rs", ".sh", ".toml", ".yaml", ".yml"]
            .iter()
            .any(|end| path.ends_with(end))
            || path.starts_with(".ci/")
    };
    for file in tree.files.iter().filter(|file| code(&file.path)) {
        for (number, line) in file.lines() {
            let call = CALLS.iter().find(|call| line.contains(**call));
            let word = || {
                WORDS
                    .iter()
                    .find(|word| source::find_word(line, word).is_some())
            };
            if let Some(needle) = call.or_else(word) {
                findings.push(Finding::new(
                    &file.path,
                    number,
                    format!("`{needle}`"),
                    "finish it, or take it out and open an issue",
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_needle_is_found_in_code_and_scripts() {
        for needle in CALLS.iter().chain(WORDS) {
            let text = format!("fine\n{needle} later\n");
            for path in ["a.rs", "b.sh", "Cargo.toml", ".ci/run"] {
                let lines: Vec<usize> = check(&Tree::of(&[(path, &text)]))
                    .iter()
                    .map(|finding| finding.line)
                    .collect();
                assert_eq!(lines, [2], "{needle} in {path}");
            }
        }
    }

    #[test]
    fn longer_words_and_prose_pass() {
        let template = format!("mktemp /tmp/a.{}", "X".repeat(6));
        assert!(check(&Tree::of(&[("a.sh", &template)])).is_empty());
        assert!(check(&Tree::of(&[("a.md", WORDS[0])])).is_empty());
    }
}
