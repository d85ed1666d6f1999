//! Telling the tests of a Rust file from the rest of it, by the form rustfmt gives it.

use super::tree::File;

/// Whether the whole file is a test, a benchmark, or part of one.
pub(crate) fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/") || path.contains("/benches/")
}

/// Length in lines of each module inside the file that only tests have, with its first line.
pub(crate) fn inline_tests(file: &File) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let mut marked = false;
    for (number, line) in file.lines() {
        if let Some((first, end)) = &open {
            if line == end {
                found.push((*first, number - first + 1));
                open = None;
            }
            continue;
        }
        let bare = line.trim_start();
        if bare.starts_with("#[cfg(test)]") || bare.starts_with("#[cfg(all(test") {
            marked = true;
        } else if marked && !bare.starts_with("#[") {
            marked = false;
            if bare.contains("mod ") && bare.ends_with('{') {
                let indent = &line[..line.len() - bare.len()];
                open = Some((number, format!("{indent}}}")));
            }
        }
    }
    found
}

/// The lines that go into the product, with their numbers: no tests, no comments.
pub(crate) fn product_lines(file: &File) -> Vec<(usize, &str)> {
    if is_test_file(&file.path) {
        return Vec::new();
    }
    let tests = inline_tests(file);
    let in_tests = |number: usize| {
        tests
            .iter()
            .any(|(first, length)| (*first..first + length).contains(&number))
    };
    file.lines()
        .filter(|(number, line)| !line.trim_start().starts_with("//") && !in_tests(*number))
        .collect()
}

/// Where the word occurs in the text with no letter, digit or `_` on either side.
pub(crate) fn find_word(text: &str, word: &str) -> Option<usize> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .find(|(at, _)| !text[..*at].ends_with(part) && !text[at + word.len()..].starts_with(part))
        .map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
//! Instant::now in a comment
#[cfg(test)]
mod tests;
fn product() {}
#[cfg(test)]
mod more {
    fn inner() {
    }
}
fn after() {}
";

    fn file(path: &str) -> File {
        File {
            path: path.to_owned(),
            text: FILE.to_owned(),
        }
    }

    #[test]
    fn a_test_module_ends_at_its_brace_and_not_at_an_inner_one() {
        assert_eq!(inline_tests(&file("src/a.rs")), [(6, 4)]);
    }

    #[test]
    fn what_follows_a_test_module_is_product_again() {
        let file = file("src/a.rs");
        let lines = product_lines(&file);
        assert!(lines.contains(&(4, "fn product() {}")));
        assert!(lines.contains(&(10, "fn after() {}")));
        assert!(
            !lines
                .iter()
                .any(|(_, line)| line.contains("inner") || line.contains("comment"))
        );
    }

    #[test]
    fn a_test_file_has_no_product_lines() {
        for path in [
            "src/a/tests.rs",
            "crates/a/tests/b.rs",
            "crates/a/benches/b.rs",
        ] {
            assert!(product_lines(&file(path)).is_empty(), "{path}");
        }
    }

    #[test]
    fn a_word_is_not_a_part_of_a_longer_one() {
        assert_eq!(find_word("corelate core", "core"), Some(9));
        assert_eq!(find_word("hardcore", "core"), None);
    }
}
