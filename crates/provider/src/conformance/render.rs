//! The suite's answer as a table for people.

use super::{CaseResult, Options, Outcome, cases};

/// A table of results, made line by line.
#[derive(Clone, Debug)]
pub struct Table {
    width: usize,
    passed: usize,
    failed: usize,
    not_run: usize,
}

impl Table {
    /// A table wide enough for every case of a run.
    pub fn of(options: &Options) -> Self {
        let chosen = cases().into_iter().filter(|case| options.chooses(case));
        Self::wide_enough(chosen.map(|case| case.title))
    }

    fn wide_enough<'a>(titles: impl Iterator<Item = &'a str>) -> Self {
        let longest = titles.map(|title| title.chars().count()).max();
        Self {
            width: longest.unwrap_or(0).max(4),
            passed: 0,
            failed: 0,
            not_run: 0,
        }
    }

    /// The line above all others, without its end.
    pub fn head(&self) -> String {
        let width = self.width;
        format!(
            "{:<4}  {:<width$}  {:>9}  RESULT",
            "RULE", "CASE", "SECONDS"
        )
    }

    /// Rule, case, time and result; below it the reason of what did not pass. Without the last
    /// line's end.
    pub fn line(&mut self, result: &CaseResult) -> String {
        let (count, word, why) = match &result.outcome {
            Outcome::Passed => (&mut self.passed, "passed", None),
            Outcome::Failed(why) => (&mut self.failed, "FAILED", Some(why)),
            Outcome::NotRun(why) => (&mut self.not_run, "not run", Some(why)),
        };
        *count += 1;
        let (width, seconds) = (self.width, result.duration.as_secs_f64());
        let line = format!(
            "{:<4}  {:<width$}  {seconds:>9.2}  {word}",
            result.rule, result.title
        );
        match why {
            Some(why) => format!("{line}\n      {why}"),
            None => line,
        }
    }

    /// How many cases failed so far.
    pub const fn failed(&self) -> usize {
        self.failed
    }

    /// How many cases ended how, without the line's end.
    pub fn sums(&self) -> String {
        format!(
            "{} passed, {} failed, {} not run",
            self.passed, self.failed, self.not_run
        )
    }
}

/// The table of a whole run, the sums last.
pub fn render(results: &[CaseResult]) -> String {
    let mut table = Table::wide_enough(results.iter().map(|result| result.title));
    let mut lines = vec![table.head()];
    lines.extend(results.iter().map(|result| table.line(result)));
    lines.push(table.sums());
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Tier;
    use std::time::Duration;

    #[test]
    fn the_table_has_a_line_for_each_case_and_the_reason_below_it() {
        let line = |rule, title, outcome| CaseResult {
            rule,
            title,
            tier: Tier::Basic,
            outcome,
            duration: Duration::from_millis(1500),
        };
        let table = render(&[
            line("C1", "one stays one", Outcome::Passed),
            line(
                "D4",
                "protected is left",
                Outcome::NotRun("the harness cannot protect".into()),
            ),
            line(
                "L1",
                "all or an error",
                Outcome::Failed("two of three".into()),
            ),
        ]);
        assert_eq!(
            table,
            "RULE  CASE                 SECONDS  RESULT\n\
             C1    one stays one           1.50  passed\n\
             D4    protected is left       1.50  not run\n      the harness cannot protect\n\
             L1    all or an error         1.50  FAILED\n      two of three\n\
             1 passed, 1 failed, 1 not run\n"
        );
    }
}
