//! The suite's answer as a table for people.

use super::{CaseResult, Outcome};
use std::fmt::Write as _;

/// Rule, case, time and result, one line each; the reason of what did not pass below it; the
/// sums last.
pub fn render(results: &[CaseResult]) -> String {
    let width = results
        .iter()
        .map(|r| r.title.chars().count())
        .max()
        .unwrap_or(0)
        .max(4);
    let mut table = format!(
        "{:<4}  {:<width$}  {:>9}  RESULT\n",
        "RULE", "CASE", "SECONDS"
    );
    let (mut passed, mut failed, mut not_run) = (0, 0, 0);
    for result in results {
        let (word, why) = match &result.outcome {
            Outcome::Passed => ("passed", None),
            Outcome::Failed(why) => ("FAILED", Some(why)),
            Outcome::NotRun(why) => ("not run", Some(why)),
        };
        match result.outcome {
            Outcome::Passed => passed += 1,
            Outcome::Failed(_) => failed += 1,
            Outcome::NotRun(_) => not_run += 1,
        }
        let seconds = result.duration.as_secs_f64();
        // Writing to a string does not fail.
        let _ = writeln!(
            table,
            "{:<4}  {:<width$}  {seconds:>9.2}  {word}",
            result.rule, result.title
        );
        if let Some(why) = why {
            let _ = writeln!(table, "      {why}");
        }
    }
    let _ = writeln!(table, "{passed} passed, {failed} failed, {not_run} not run");
    table
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
