//! The repository stands alone: it names no folder beside it, no build machine, no registry.
//!
//! The needles are put together here so that this file does not find itself.

use super::{Finding, tree::Tree};

const BESIDE: &[&str] = &[concat!("../sha", "red")];

/// Folders of a build machine; a user's home is found by what follows it.
const FOLDERS: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
];

const REGISTRIES: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("sum.golang", ".org"),
    concat!("registry.npmjs", ".org"),
    concat!("rubygems", ".org"),
    concat!("deb.debian", ".org"),
    concat!("security.debian", ".org"),
    concat!("archive.ubuntu", ".com"),
    concat!("static.rust-lang", ".org"),
    concat!("sh.rustup", ".rs"),
];

/// Findings about every file; in the lock file each package names its registry, by cargo's rule.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in file.lines() {
            let mut report = |what: &str, remedy: &str| {
                findings.push(Finding::new(
                    &file.path,
                    number,
                    format!("names `{what}`"),
                    remedy,
                ));
            };
            for needle in BESIDE.iter().filter(|needle| line.contains(**needle)) {
                report(
                    needle,
                    "copy what is needed into the repository and say it in our words",
                );
            }
            for needle in FOLDERS.iter().filter(|needle| names_folder(line, needle)) {
                report(
                    needle,
                    "use a path below the repository, `$HOME`, or an argument",
                );
            }
            let locked = file.name() == "Cargo.lock" && line.starts_with("source = ");
            for needle in REGISTRIES
                .iter()
                .filter(|needle| !locked && line.contains(**needle))
            {
                report(
                    needle,
                    "leave the choice of registry to the machine's own settings",
                );
            }
        }
    }
    findings
}

/// Whether the line holds the folder as the beginning of an absolute path with more behind it.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + folder.len()..].chars().next();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-~}>)*".contains(c))
            && after.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '.')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn every_needle_is_found_in_any_file() {
        for needle in BESIDE.iter().chain(FOLDERS).chain(REGISTRIES) {
            assert_eq!(found("any", &format!("see {needle}x")), 1, "{needle}");
        }
    }

    #[test]
    fn a_folder_inside_a_path_is_not_a_build_machine() {
        let folder = FOLDERS[0];
        assert_eq!(found("a.md", &format!("target{folder}x and ~{folder}x")), 0);
        assert_eq!(found("a.md", &format!("file://{folder}x")), 1);
    }

    #[test]
    fn only_the_source_line_of_a_lock_file_may_name_the_registry() {
        let line = format!("source = \"registry+https://index.{}/\"", REGISTRIES[0]);
        assert_eq!(found("Cargo.lock", &line), 0);
        assert_eq!(found("Cargo.lock", &format!("# {}", REGISTRIES[0])), 1);
        assert_eq!(found("Cargo.toml", &line), 1);
    }
}
