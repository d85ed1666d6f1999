//! Every rule of the provider contract has a case in the conformance suite, and no case
//! names a rule that the contract does not have.

use super::{Finding, source, tree::Tree};
use std::collections::{BTreeMap, BTreeSet};

const CONTRACT: &str = "docs/provider-contract.md";
const SUITE: &str = "crates/provider/src/conformance";

/// The letters that rule ids begin with.
const LETTERS: &[char] = &['C', 'G', 'D', 'L', 'E', 'T', 'O'];

/// Findings about the contract's page and the suite.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(contract) = tree.file(CONTRACT) else {
        return vec![Finding::new(
            CONTRACT,
            0,
            "does not exist",
            "write the contract there, each rule with its id in bold: `**C1**`",
        )];
    };
    let mut rules: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, line) in contract.lines() {
        for (at, _) in line.match_indices("**") {
            let after = &line[at + 2..];
            if let Some(id) = rule_id(after).filter(|id| after[id.len()..].starts_with("**")) {
                rules.entry(id).or_insert(number);
            }
        }
    }
    let mut findings = Vec::new();
    for letter in LETTERS {
        if !rules.keys().any(|id| id.starts_with(*letter)) {
            findings.push(Finding::new(
                CONTRACT,
                0,
                format!("has no rule of group {letter}"),
                "write each rule's id in bold: `**C1**`",
            ));
        }
    }
    let mut covered: BTreeSet<&str> = BTreeSet::new();
    for file in tree
        .with_extension(&["rs"])
        .filter(|file| file.path.starts_with(SUITE))
    {
        for (number, line) in source::product_lines(file) {
            for (at, _) in line.match_indices('"') {
                let Some(id) = rule_id(&line[at + 1..]) else {
                    continue;
                };
                if rules.contains_key(id) {
                    covered.insert(id);
                } else {
                    findings.push(Finding::new(
                        &file.path,
                        number,
                        format!("a case names rule {id}, which the contract does not have"),
                        format!("correct the id, or add the rule to {CONTRACT}"),
                    ));
                }
            }
        }
    }
    for (id, line) in &rules {
        if !covered.contains(id) {
            findings.push(Finding::new(
                CONTRACT,
                *line,
                format!("rule {id} has no case"),
                format!("add one to {SUITE}, with `\"{id}\"` or `\"{id} ...\"` as its rule"),
            ));
        }
    }
    findings
}

/// `C1` of `C1 and more`: a letter of the contract, digits, and then no more of a word.
fn rule_id(text: &str) -> Option<&str> {
    let digits = text.strip_prefix(LETTERS)?;
    let length = digits.chars().take_while(char::is_ascii_digit).count();
    let after = digits[length..].chars().next();
    let ends = length > 0 && !after.is_some_and(|c| c.is_alphanumeric() || c == '_');
    ends.then(|| &text[..=length])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str =
        "- **C1** a. **C2** b.\n- **G1** c. **D1** **L1** **E1** **T1** **O1** **bold**\n";
    const CASES: &str = "rule: \"C1\"\n\"C2 a slot held by another\"\n[\"G1\", \"D1\", \"L1\", \"E1\", \"T1\", \"O1\", \"E2E\"]\n";

    fn found(page: &str, path: &str, cases: &str) -> Vec<String> {
        let tree = Tree::of(&[(CONTRACT, page), (path, cases)]);
        check(&tree)
            .into_iter()
            .map(|finding| finding.problem)
            .collect()
    }

    #[test]
    fn a_rule_with_a_case_is_silent() {
        let nothing: [&str; 0] = [];
        assert_eq!(
            found(PAGE, "crates/provider/src/conformance/create.rs", CASES),
            nothing
        );
    }

    #[test]
    fn a_rule_without_a_case_is_found_at_its_line() {
        let page = PAGE.replace("**D1**", "**D1** **D12**");
        let tree = Tree::of(&[
            (CONTRACT, &page),
            ("crates/provider/src/conformance.rs", CASES),
        ]);
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].line, found[0].problem.as_str()),
            (2, "rule D12 has no case")
        );
    }

    #[test]
    fn a_case_for_an_unknown_rule_is_found() {
        let cases = format!("{CASES}\"C9 nobody wrote this\"\n");
        assert_eq!(
            found(PAGE, "crates/provider/src/conformance/a.rs", &cases),
            ["a case names rule C9, which the contract does not have"]
        );
    }

    #[test]
    fn a_test_of_the_suite_is_not_a_case() {
        let problems = found(PAGE, "crates/provider/src/conformance/tests.rs", CASES);
        assert!(problems.contains(&"rule C1 has no case".to_owned()));
    }

    #[test]
    fn a_missing_page_and_a_missing_group_are_found() {
        assert_eq!(check(&Tree::of(&[]))[0].problem, "does not exist");
        let page = PAGE.replace("**O1**", "O1");
        let cases = CASES.replace(", \"O1\"", "");
        assert_eq!(
            found(&page, "crates/provider/src/conformance/a.rs", &cases),
            ["has no rule of group O"]
        );
    }
}
