//! How long a file may be.

use super::{Finding, source, tree::Tree};

const FAILS_ABOVE: usize = 1000;
const WARNS_ABOVE: usize = 600;
const TESTS_MOVE_ABOVE: usize = 150;

/// Findings about the length of Rust files, in lines.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with_extension(&["rs"]) {
        let length = file.lines().count();
        if length > WARNS_ABOVE {
            let finding = Finding::new(
                &file.path,
                0,
                format!("{length} lines"),
                format!(
                    "look for the second subject and give it a file; {FAILS_ABOVE} is the limit"
                ),
            );
            findings.push(if length > FAILS_ABOVE {
                finding
            } else {
                finding.warning()
            });
        }
        for (line, length) in source::inline_tests(file) {
            if length > TESTS_MOVE_ABOVE {
                let stem = file.path.trim_end_matches(".rs").trim_end_matches("/mod");
                findings.push(Finding::new(
                    &file.path,
                    line,
                    format!("{length} lines of tests inside the file"),
                    format!("move them to {stem}/tests.rs"),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::{super::Weight, *};

    fn found(text: &str) -> Vec<(Weight, String)> {
        check(&Tree::of(&[("src/a.rs", text)]))
            .into_iter()
            .map(|finding| (finding.weight, finding.problem))
            .collect()
    }

    #[test]
    fn six_hundred_lines_pass_one_more_warns_and_past_a_thousand_fails() {
        assert!(found(&"\n".repeat(600)).is_empty());
        assert_eq!(
            found(&"\n".repeat(601)),
            [(Weight::Warns, "601 lines".into())]
        );
        assert_eq!(
            found(&"\n".repeat(1000)),
            [(Weight::Warns, "1000 lines".into())]
        );
        assert_eq!(
            found(&"\n".repeat(1001)),
            [(Weight::Fails, "1001 lines".into())]
        );
    }

    #[test]
    fn long_tests_must_move_out_of_the_file() {
        let tests =
            |lines: usize| format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "\n".repeat(lines));
        assert!(found(&tests(148)).is_empty());
        let problem = "151 lines of tests inside the file".to_owned();
        assert_eq!(found(&tests(149)), [(Weight::Fails, problem)]);
    }
}
