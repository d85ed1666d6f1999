//! `cargo xtask ci`: every check, each named with its time, and a table at the end.
//!
//! The last line is `N passed, M failed`: the tests as cargo counts them; a step that failed
//! without a failed test of its own counts as one more.

mod rungs;
mod tally;

use crate::{Stop, codegen, deploy, image, run, tidy};
use rungs::{RUNGS, Rung};
use std::{
    io::IsTerminal,
    path::Path,
    time::{Duration, Instant},
};
use tally::Tally;

/// What became of a step.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    /// With what would enable it.
    NotRun(String),
}

#[derive(Clone, Copy)]
enum Step {
    Format,
    Tidy,
    Clippy,
    Build,
    Rung(&'static Rung),
    Generated,
    Deploy,
    Image,
    Docs,
}

impl Step {
    fn all() -> Vec<Self> {
        [Self::Format, Self::Tidy, Self::Clippy, Self::Build]
            .into_iter()
            .chain(RUNGS.iter().map(Self::Rung))
            .chain([Self::Generated, Self::Deploy, Self::Image, Self::Docs])
            .collect()
    }

    /// What the command line calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Format => "fmt",
            Self::Tidy => "tidy",
            Self::Clippy => "clippy",
            Self::Build => "build",
            Self::Rung(rung) => rung.name,
            Self::Generated => "generated",
            Self::Deploy => "deploy",
            Self::Image => "image",
            Self::Docs => "docs",
        }
    }

    fn title(self) -> String {
        match self {
            Self::Format => "fmt: sources are as rustfmt writes them".into(),
            Self::Tidy => "tidy: the rules of this repository".into(),
            Self::Clippy => "clippy: no warnings".into(),
            Self::Build => "build: everything the tests need".into(),
            Self::Rung(rung) => format!("{}: rung {}, {}", rung.name, rung.number, rung.what),
            Self::Generated => {
                "generated: pages of docs/ and definitions are as the program writes them".into()
            }
            Self::Deploy => "deploy: chart, plain YAML, alerts and dashboard".into(),
            Self::Image => "image: the programs run with nothing but the image around them".into(),
            Self::Docs => "docs: rustdoc without warnings".into(),
        }
    }

    fn run(self, root: &Path) -> Result<(Outcome, Tally), Stop> {
        let cargo = |line: &str| {
            let mut command = run::cargo(root);
            command.args(line.split_whitespace());
            command
        };
        let well = match self {
            // rustfmt colours a log file too, unless told not to.
            Self::Format => run::succeeds(&mut cargo(if std::io::stdout().is_terminal() {
                "fmt --all --check"
            } else {
                "fmt --all --check -- --color never"
            }))?,
            Self::Tidy => passes(tidy::tidy(root))?,
            Self::Clippy => run::succeeds(&mut cargo(
                "clippy --workspace --all-targets --all-features -- -D warnings",
            ))?,
            Self::Build => run::succeeds(&mut cargo(
                "test --workspace --all-features --no-run --quiet",
            ))?,
            Self::Rung(rung) => return rung.run(root, in_ci()),
            Self::Generated => passes(codegen::codegen(root, &["--check".to_owned()]))?,
            // Helm, promtool or buildah cannot be had everywhere.
            Self::Deploy | Self::Image => {
                let outcome = if matches!(self, Self::Deploy) {
                    deploy::deploy(root, &[])
                } else {
                    image::check(root)
                };
                match outcome {
                    Err(Stop::Because(why)) if !in_ci() => {
                        println!("{why}");
                        return Ok((Outcome::NotRun(why), Tally::default()));
                    }
                    outcome => passes(outcome)?,
                }
            }
            Self::Docs => run::succeeds(
                cargo("doc --no-deps --workspace --all-features --quiet")
                    .env("RUSTDOCFLAGS", "-D warnings"),
            )?,
        };
        Ok((
            if well {
                Outcome::Passed
            } else {
                Outcome::Failed
            },
            Tally::default(),
        ))
    }
}

/// Whether this is the machine whose word counts: there, nothing may be left out.
fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// Turns an ending that has told its reason into `false`.
fn passes(outcome: Result<(), Stop>) -> Result<bool, Stop> {
    match outcome {
        Ok(()) => Ok(true),
        Err(Stop::Failed) => Ok(false),
        Err(Stop::Because(why)) => {
            println!("{why}");
            Ok(false)
        }
        Err(usage @ Stop::Usage(_)) => Err(usage),
    }
}

/// One row of the table.
struct Row {
    name: &'static str,
    outcome: Outcome,
    tally: Tally,
    took: Duration,
}

/// Runs all steps, or the named ones.
pub(crate) fn ci(root: &Path, args: &[String]) -> Result<(), Stop> {
    if args == ["--list"] {
        for step in Step::all() {
            println!("{}", step.title());
        }
        return Ok(());
    }
    let steps = chosen(args)?;
    let mut rows: Vec<Row> = Vec::new();
    for step in steps {
        let broken = rows
            .iter()
            .any(|row| row.name == "build" && row.outcome == Outcome::Failed);
        if broken && matches!(step, Step::Rung(_) | Step::Generated | Step::Image) {
            let outcome = Outcome::NotRun("the build must pass first".into());
            rows.push(Row {
                name: step.name(),
                outcome,
                tally: Tally::default(),
                took: Duration::ZERO,
            });
            continue;
        }
        println!("\n== {}", step.title());
        let begun = Instant::now();
        let (outcome, tally) = step.run(root)?;
        let row = Row {
            name: step.name(),
            outcome,
            tally,
            took: begun.elapsed(),
        };
        println!(
            "== {}: {} in {:.1} s",
            row.name,
            word(&row.outcome),
            row.took.as_secs_f64()
        );
        rows.push(row);
    }
    print!("\n{}", table(&rows));
    let total = total(&rows);
    println!("\n{total}");
    if total.failed == 0 {
        Ok(())
    } else {
        Err(Stop::Failed)
    }
}

fn chosen(names: &[String]) -> Result<Vec<Step>, Stop> {
    let all = Step::all();
    if let Some(name) = names
        .iter()
        .find(|name| all.iter().all(|step| step.name() != *name))
    {
        let known: Vec<&str> = all.iter().map(|step| step.name()).collect();
        return Err(Stop::Usage(format!(
            "no step `{name}`; there are: {}",
            known.join(", ")
        )));
    }
    let wanted = |step: &Step| names.is_empty() || names.iter().any(|name| name == step.name());
    Ok(all.into_iter().filter(wanted).collect())
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "ok",
        Outcome::Failed => "FAILED",
        Outcome::NotRun(_) => "not run",
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = format!("{:<14} {:<8} {:>8}  tests\n", "step", "result", "seconds");
    for row in rows {
        let note = match &row.outcome {
            Outcome::NotRun(enable) => format!("to run it: {enable}"),
            _ if row.tally == Tally::default() => String::new(),
            _ => row.tally.to_string(),
        };
        let seconds = row.took.as_secs_f64();
        let line = format!(
            "{:<14} {:<8} {seconds:>8.1}  {note}",
            row.name,
            word(&row.outcome)
        );
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

fn total(rows: &[Row]) -> Tally {
    let mut total = Tally::default();
    for row in rows {
        total += row.tally;
        if row.outcome == Outcome::Failed && row.tally.failed == 0 {
            total.failed += 1;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, outcome: Outcome, passed: u64, failed: u64) -> Row {
        let tally = Tally {
            passed,
            failed,
            skipped: 0,
        };
        Row {
            name,
            outcome,
            tally,
            took: Duration::from_millis(1250),
        }
    }

    #[test]
    fn a_step_that_fails_without_a_failed_test_counts_as_one() {
        let rows = [
            row("fmt", Outcome::Failed, 0, 0),
            row("table", Outcome::Passed, 5, 0),
            row("whole", Outcome::Failed, 2, 3),
            row("docs", Outcome::NotRun("x".into()), 0, 0),
        ];
        assert_eq!(total(&rows).to_string(), "7 passed, 4 failed");
    }

    #[test]
    fn the_table_says_what_would_enable_a_step_that_was_not_run() {
        let rows = [
            row("fmt", Outcome::Passed, 0, 0),
            row("table", Outcome::Passed, 5, 0),
            row("script", Outcome::NotRun("write a scenario".into()), 0, 0),
        ];
        let expected = "\
step           result    seconds  tests
fmt            ok            1.2
table          ok            1.2  5 passed, 0 failed
script         not run       1.2  to run it: write a scenario
";
        assert_eq!(table(&rows), expected);
    }

    #[test]
    fn steps_are_chosen_by_name_and_an_unknown_name_is_wrong_usage() {
        let names = |args: &[&str]| -> Vec<&str> {
            let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
            chosen(&args)
                .expect("known")
                .into_iter()
                .map(Step::name)
                .collect()
        };
        assert_eq!(names(&["docs", "fmt"]), ["fmt", "docs"]);
        assert_eq!(names(&[]).len(), Step::all().len());
        assert!(matches!(chosen(&["fnt".to_owned()]), Err(Stop::Usage(_))));
    }
}
