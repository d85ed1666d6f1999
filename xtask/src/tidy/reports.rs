//! Every field report has a row, and every row that says where it is tested is right.

use super::{Finding, tree::Tree};
use std::collections::BTreeMap;

const PAGE: &str = "docs/field-reports.md";

/// What the last cell of a row begins with.
const TESTED: &str = "tested: ";
const OTHERS: &[&str] = &["later: ", "cannot apply: ", "guide: "];

/// Findings about the page of field reports and the tests that cite its ids.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.file(PAGE) else {
        let remedy = "write a table there, one row for each field report";
        return vec![Finding::new(PAGE, 0, "does not exist", remedy)];
    };
    let mut findings = Vec::new();
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, line) in page.lines() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split(" | ").collect();
        let id = cells[0].trim();
        if !line.starts_with('|') || !is_id(id) {
            continue;
        }
        let mut report = |problem: String, remedy: &str| {
            findings.push(Finding::new(PAGE, number, problem, remedy));
        };
        if rows.insert(id, number).is_some() {
            report(format!("a second row for {id}"), "keep one");
        }
        let held = cells.last().copied().unwrap_or_default().trim();
        let Some(places) = held.strip_prefix(TESTED) else {
            if !OTHERS.iter().any(|word| held.starts_with(word)) {
                report(
                    format!("{id} is neither tested nor explained"),
                    "begin its last cell with `tested: `, `later: `, `cannot apply: ` or `guide: `",
                );
            }
            continue;
        };
        // Between backticks: every second part.
        let paths: Vec<&str> = places.split('`').skip(1).step_by(2).collect();
        if paths.is_empty() {
            report(format!("{id} names no file"), "name its tests' files");
        }
        for path in paths {
            let cites = tree.file(path).is_some_and(|file| cites(&file.text, id));
            if !cites {
                report(
                    format!("{path} does not cite {id}"),
                    "begin a test's name with the id, or name the file that does",
                );
            }
        }
    }
    for file in tree.with_extension(&["rs"]) {
        for (number, line) in file.lines() {
            for id in ids_of_test(line) {
                if !rows.contains_key(id.as_str()) {
                    findings.push(Finding::new(
                        &file.path,
                        number,
                        format!("{id} has no row in {PAGE}"),
                        "add one, or correct the id",
                    ));
                }
            }
        }
    }
    findings
}

/// `B03` or `X1`.
fn is_id(text: &str) -> bool {
    text.strip_prefix(['B', 'X'])
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a file has the id in a test's name or in a comment.
fn cites(text: &str, id: &str) -> bool {
    text.lines().any(|line| {
        let comment = line.split_once("//").is_some_and(|(_, comment)| {
            let mut words = comment.split(|c: char| !c.is_alphanumeric());
            words.any(|word| word == id)
        });
        comment || ids_of_test(line).iter().any(|named| named == id)
    })
}

/// The ids that a test's name begins with: `async fn f5_x5_b117_the_agent`.
fn ids_of_test(line: &str) -> Vec<String> {
    let line = line.trim_start();
    let line = line.strip_prefix("async ").unwrap_or(line);
    let Some(name) = line.strip_prefix("fn ") else {
        return Vec::new();
    };
    let name = name.split('(').next().unwrap_or_default();
    name.split('_')
        .map(str::to_ascii_uppercase)
        .take_while(|word| is_id(word) || is_id(&word.replacen(['F', 'T'], "B", 1)))
        .filter(|word| is_id(word))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = "crates/a/tests/a.rs";

    fn found(page: &str, test: &str) -> Vec<String> {
        check(&Tree::of(&[(PAGE, page), (TEST, test)]))
            .into_iter()
            .map(|finding| finding.problem)
            .collect()
    }

    const ROW: &str = "| B03 | a stranger | tested: `crates/a/tests/a.rs` |\n";

    #[test]
    fn a_row_whose_test_is_there_is_silent() {
        let nothing: [&str; 0] = [];
        assert_eq!(found(ROW, "async fn f2_b03_it_is_left() {"), nothing);
        assert_eq!(found(ROW, "    // B02, B03: left alone."), nothing);
        let other = "| X1 | a lock | later: the part that has locks |\n";
        assert_eq!(found(other, ""), nothing);
    }

    #[test]
    fn a_row_without_its_test_is_found() {
        let missing = ["crates/a/tests/a.rs does not cite B03"];
        for test in ["", "let b03 = 1;", "// B031", "fn b_03_x() {"] {
            assert_eq!(found(ROW, test), missing, "{test}");
        }
        assert_eq!(
            found("| B03 | x | tested: somewhere |\n", ""),
            ["B03 names no file"]
        );
        assert_eq!(
            found("| B03 | x | soon |\n", ""),
            ["B03 is neither tested nor explained"]
        );
    }

    #[test]
    fn a_test_without_a_row_and_a_second_row_are_found() {
        assert_eq!(
            found(ROW, "fn b03_b04_both() {"),
            ["B04 has no row in docs/field-reports.md"]
        );
        let twice = format!("{ROW}{ROW}");
        assert_eq!(found(&twice, "fn b03_left() {"), ["a second row for B03"]);
    }

    #[test]
    fn a_missing_page_is_found() {
        assert_eq!(check(&Tree::of(&[]))[0].problem, "does not exist");
    }
}
