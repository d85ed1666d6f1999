//! The documents exist, their links lead somewhere, and the map names every crate.

use super::{
    Finding, source,
    tree::{File, Tree},
};
use std::collections::BTreeSet;

const TOP: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "STYLE.md",
    "CHANGELOG.md",
    "LICENSE",
];

/// Findings about documents and their links.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in TOP.iter().filter(|path| tree.file(path).is_none()) {
        findings.push(Finding::new(*path, 0, "does not exist", "write it"));
    }
    if tree.holds("crates/core/src/plan") || tree.holds("crates/core/src/plan.rs") {
        let path = "docs/states.md";
        if tree.file(path).is_none() {
            let remedy = "name every state of a Proxy and what follows it, with a drawing";
            findings.push(Finding::new(path, 0, "does not exist", remedy));
        }
    }
    if let Some(map) = tree.file("ARCHITECTURE.md") {
        for folder in tree.crate_folders() {
            if source::find_word(&map.text, folder).is_none() {
                findings.push(Finding::new(
                    &map.path,
                    0,
                    format!("does not name crate `{folder}`"),
                    "say on which floor it stands and what it is for",
                ));
            }
        }
    }
    for file in tree.with_extension(&["md"]) {
        for (line, target) in links(file) {
            if let Err(problem) = follow(tree, file, target) {
                let problem = format!("link `{target}`: {problem}");
                findings.push(Finding::new(&file.path, line, problem, "correct the link"));
            }
        }
    }
    findings
}

/// The lines outside of fenced code.
fn prose(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    file.lines().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Targets of `[text](target)` and `[label]: target` within this repository.
fn links(file: &File) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(file) {
        for (at, _) in line.match_indices("](") {
            let quoted = line[..at].matches('`').count() % 2 == 1;
            if let Some((target, _)) = line[at + 2..].split_once(')').filter(|_| !quoted) {
                found.push((number, target.split_whitespace().next().unwrap_or_default()));
            }
        }
        if let Some((_, target)) = line
            .strip_prefix('[')
            .and_then(|line| line.split_once("]: "))
            .filter(|_| !line.starts_with("[^"))
        {
            found.push((number, target.trim()));
        }
    }
    found.retain(|(_, target)| !target.contains("://") && !target.starts_with("mailto:"));
    found
}

/// Whether the target exists, and the heading after its `#` too.
fn follow(tree: &Tree, from: &File, target: &str) -> Result<(), String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() {
        from.path.clone()
    } else {
        let folder = from.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        resolve(folder, path).ok_or("leads out of the repository")?
    };
    if !tree.holds(&path) {
        return Err(format!("{path} does not exist"));
    }
    match tree.file(&path) {
        Some(file)
            if !anchor.is_empty()
                && file.extension() == Some("md")
                && !slugs(file).contains(anchor) =>
        {
            Err(format!("{path} has no heading `#{anchor}`"))
        }
        _ => Ok(()),
    }
}

/// The path from the top folder, without `.` and `..`; `None` where it leaves the top folder.
fn resolve(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    let start = if path.starts_with('/') { "" } else { folder };
    for part in start.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Anchors of a page's headings, made as the usual forges make them.
fn slugs(file: &File) -> BTreeSet<String> {
    let mut slugs = BTreeSet::new();
    for (_, line) in prose(file) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let slug: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let again = (1..).map(|count| format!("{slug}-{count}"));
        let free = std::iter::once(slug.clone())
            .chain(again)
            .find(|slug| !slugs.contains(slug));
        slugs.extend(free);
    }
    slugs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(text: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("docs/a.md", text),
            ("docs/b.md", "# One & two\n## x\n## x\n"),
            ("README.md", ""),
        ]);
        check(&tree)
            .into_iter()
            .map(|finding| finding.problem)
            .filter(|problem| problem.starts_with("link"))
            .collect()
    }

    #[test]
    fn a_link_that_leads_somewhere_is_silent() {
        let good = "[b](b.md) [up](../README.md) [top](/docs) [h](b.md#one--two) [n](b.md#x-1)\n# Here\n[here](#here)\n[label]: ./b.md\n<https://a.example> [w](https://a.example/x)\n";
        let nothing: [&str; 0] = [];
        assert_eq!(broken(good), nothing);
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        assert_eq!(
            broken("[c](c.md)"),
            ["link `c.md`: docs/c.md does not exist"]
        );
        assert_eq!(
            broken("[c](../../c.md)"),
            ["link `../../c.md`: leads out of the repository"]
        );
        assert_eq!(
            broken("[b](b.md#three)"),
            ["link `b.md#three`: docs/b.md has no heading `#three`"]
        );
        assert_eq!(
            broken("[label]: c.md"),
            ["link `c.md`: docs/c.md does not exist"]
        );
    }

    #[test]
    fn code_is_not_a_link() {
        let nothing: [&str; 0] = [];
        assert_eq!(broken("```\n[c](c.md)\n```\n`[c](c.md)`\n"), nothing);
    }

    #[test]
    fn missing_documents_are_found() {
        let tree = Tree::of(&[("crates/core/src/plan/mod.rs", "")]);
        let paths: Vec<String> = check(&tree)
            .into_iter()
            .map(|finding| finding.path)
            .collect();
        let mut expected: Vec<&str> = TOP.to_vec();
        expected.push("docs/states.md");
        assert_eq!(paths, expected);
    }

    #[test]
    fn a_crate_that_the_map_leaves_out_is_found() {
        let tree = Tree::of(&[
            ("ARCHITECTURE.md", "core/ scores"),
            ("crates/core/a", ""),
            ("crates/api/a", ""),
        ]);
        let problems: Vec<String> = check(&tree)
            .into_iter()
            .map(|finding| finding.problem)
            .collect();
        assert!(problems.contains(&"does not name crate `api`".to_owned()));
        assert!(!problems.contains(&"does not name crate `core`".to_owned()));
    }
}
