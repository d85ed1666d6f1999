//! Counting tests from what cargo prints.

use std::{fmt, ops::AddAssign};

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    /// Reads `test result: ok. 2 passed; 0 failed; 1 ignored; ...`; `None` for any other line.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut tally = Self::default();
        for count in counts.split(';') {
            match count.trim().split_once(' ') {
                Some((number, "passed")) => tally.passed = number.parse().ok()?,
                Some((number, "failed")) => tally.failed = number.parse().ok()?,
                Some((number, "ignored")) => tally.skipped = number.parse().ok()?,
                _ => {}
            }
        }
        Some(tally)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.skipped += more.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_own_line_is_read() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 9 filtered out; finished in 0.01s";
        let tally = Tally::parse(line).expect("a result");
        assert_eq!(
            tally,
            Tally {
                passed: 12,
                failed: 3,
                skipped: 1
            }
        );
        assert_eq!(tally.to_string(), "12 passed, 3 failed, 1 skipped");
    }

    #[test]
    fn other_lines_are_not_results() {
        assert_eq!(Tally::parse("test a_test_result ... ok"), None);
        assert_eq!(Tally::parse("test result: ok. many passed;"), None);
    }
}
