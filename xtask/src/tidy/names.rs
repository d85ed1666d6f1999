//! Names that say nothing about what a file holds.

use super::{Finding, tree::Tree};

const EMPTY_NAMES: &[&str] = &[
    "base", "common", "helper", "helpers", "manager", "misc", "types", "util", "utils",
];

/// Findings about the names of Rust files and their folders.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with_extension(&["rs"]) {
        let mut parts = file.path.trim_end_matches(".rs").split('/');
        if let Some(part) = parts.find(|part| EMPTY_NAMES.contains(part)) {
            findings.push(Finding::new(
                &file.path,
                0,
                format!("`{part}` does not say what is inside"),
                "name the file after the noun it defines or the verb it does",
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_or_folder_with_an_empty_name_is_found() {
        let bad = ["crates/a/src/utils.rs", "crates/a/tests/common/mod.rs"];
        for path in bad {
            assert_eq!(check(&Tree::of(&[(path, "")])).len(), 1, "{path}");
        }
        assert!(check(&Tree::of(&[("crates/a/src/utilisation.rs", "")])).is_empty());
    }
}
