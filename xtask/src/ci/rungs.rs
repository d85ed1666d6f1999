//! The ladder of tests, and which test stands on which rung.
//!
//! A test inside a crate stands on the rung of its module's name: `plan::properties::...`. A
//! test program, `crates/x/tests/NAME.rs`, stands as a whole on the rung of its own name; with
//! no word of a rung in it, it tries a crate from outside and stands on `whole`. Every test runs
//! exactly once.

use super::{Outcome, tally::Tally};
use crate::{Stop, kube, run};
use std::path::{Path, PathBuf};

/// One rung that this repository has by now.
#[derive(Debug)]
pub(crate) struct Rung {
    /// As ARCHITECTURE.md counts them.
    pub(crate) number: u8,
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// End of the module's name, with `::`, of its tests inside a crate; empty for all others.
    module: &'static str,
    /// A word in the name of its test programs.
    word: &'static str,
}

/// The rung whose tests run an API server.
const CLUSTER: u8 = 7;

pub(crate) const RUNGS: &[Rung] = &[
    Rung {
        number: 1,
        name: "table",
        what: "one fact a row",
        module: "",
        word: "table",
    },
    Rung {
        number: 2,
        name: "property",
        what: "what holds for any input",
        module: "properties::",
        word: "propert",
    },
    Rung {
        number: 3,
        name: "script",
        what: "scenarios with their expected output, in virtual time",
        module: "scenarios::",
        word: "scenario",
    },
    Rung {
        number: 4,
        name: "crash-walk",
        what: "a crash before and after every effect",
        module: "crash_walk::",
        word: "crash",
    },
    Rung {
        number: 5,
        name: "conformance",
        what: "every provider, store and wrapper against the contract",
        module: "conformance::",
        word: "conformance",
    },
    Rung {
        number: 6,
        name: "fidelity",
        what: "the simulator against recordings of the real thing",
        module: "fidelity::",
        word: "fidelity",
    },
    Rung {
        number: CLUSTER,
        name: "cluster",
        what: "the operator on a real Kubernetes API server",
        module: "api_server::",
        word: "cluster",
    },
    Rung {
        number: 8,
        name: "whole",
        what: "processes on loopback and real traffic",
        module: "whole::",
        word: "",
    },
];

impl Rung {
    /// Runs the rung's tests; a rung without any is a failure where nothing may be missing.
    pub(crate) fn run(&self, root: &Path, in_ci: bool) -> Result<(Outcome, Tally), Stop> {
        let mut tally = Tally::default();
        let mut well = true;
        let environment = match self.prepare(root) {
            Ok(environment) => environment,
            Err(Stop::Because(why)) => {
                println!("{why}");
                let outcome = if in_ci {
                    Outcome::Failed
                } else {
                    Outcome::NotRun(why)
                };
                return Ok((outcome, tally));
            }
            Err(other) => return Err(other),
        };
        for arguments in self.invocations(&test_programs(root)?) {
            let mut command = run::cargo(root);
            command.args([
                "test",
                "--quiet",
                "--workspace",
                "--all-features",
                "--no-fail-fast",
            ]);
            command.args(arguments).envs(environment.clone());
            println!("$ {}", run::line(&command));
            well &= run::each_line(&mut command, |line| {
                let counted = Tally::parse(line);
                tally += counted.unwrap_or_default();
                // Crates without a test on this rung would fill the screen.
                if counted != Some(Tally::default())
                    && line != "running 0 tests"
                    && !line.is_empty()
                {
                    println!("{line}");
                }
            })?;
        }
        let outcome = if !well {
            Outcome::Failed
        } else if tally.passed > 0 {
            Outcome::Passed
        } else {
            println!("no test stands on rung `{}`", self.name);
            if in_ci {
                Outcome::Failed
            } else {
                Outcome::NotRun(self.enable())
            }
        };
        Ok((outcome, tally))
    }

    /// What the rung's tests find in their environment; an error says what would enable them.
    fn prepare(&self, root: &Path) -> Result<Vec<(&'static str, PathBuf)>, Stop> {
        if self.number != CLUSTER {
            return Ok(Vec::new());
        }
        kube::assets::prepare(root)?;
        Ok(vec![("EGRESS_KUBE_UP", std::env::current_exe()?)])
    }

    fn enable(&self) -> String {
        if self.word.is_empty() {
            return "write a test program below tests/ of a crate".into();
        }
        let module = self.module.trim_end_matches("::");
        format!(
            "write a test in a module `{module}`, or a test program named *{}*",
            self.word
        )
    }

    /// What follows `cargo test --workspace` in each call that this rung needs.
    fn invocations(&self, programs: &[String]) -> Vec<Vec<String>> {
        let own = |text: &str| text.to_owned();
        let mut inside = vec![
            own("--lib"),
            own("--bins"),
            own("--"),
            self.module.to_owned(),
        ];
        inside.retain(|argument| !argument.is_empty());
        // A test below two such modules belongs to the higher rung, and runs there only.
        for higher in RUNGS.iter().filter(|rung| rung.number > self.number) {
            inside.extend([own("--skip"), higher.module.to_owned()]);
        }
        let mut calls = vec![inside];
        let mut outside: Vec<String> = Vec::new();
        for program in programs
            .iter()
            .filter(|name| rung_of(name).name == self.name)
        {
            outside.extend([own("--test"), program.clone()]);
        }
        if !outside.is_empty() {
            calls.push(outside);
        }
        if self.module.is_empty() {
            calls.push(vec![own("--doc")]);
        }
        calls
    }
}

/// The rung of a test program, by its name.
fn rung_of(program: &str) -> &'static Rung {
    let named = RUNGS
        .iter()
        .find(|rung| !rung.word.is_empty() && program.contains(rung.word));
    named.unwrap_or(&RUNGS[RUNGS.len() - 1])
}

/// Names of all test programs of the workspace.
fn test_programs(root: &Path) -> Result<Vec<String>, Stop> {
    let metadata = run::metadata(root)?;
    let targets = metadata
        .workspace_packages()
        .into_iter()
        .flat_map(|package| &package.targets);
    let mut names: Vec<String> = targets
        .filter(|target| target.is_test())
        .map(|target| target.name.clone())
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether libtest would run the test with these arguments.
    fn runs(arguments: &[String], test: &str) -> bool {
        let after = arguments
            .iter()
            .skip_while(|argument| *argument != "--")
            .skip(1);
        let (mut wanted, mut skipped, mut skip) = (Vec::new(), Vec::new(), false);
        for argument in after {
            match argument.as_str() {
                "--skip" => skip = true,
                filter if std::mem::take(&mut skip) => skipped.push(filter),
                filter => wanted.push(filter),
            }
        }
        let matches = |filters: &[&str]| filters.iter().any(|filter| test.contains(filter));
        (wanted.is_empty() || matches(&wanted)) && !matches(&skipped)
    }

    #[test]
    fn every_test_inside_a_crate_runs_on_exactly_one_rung() {
        for (test, rung) in [
            ("plan::tests::a_row", "table"),
            ("plan::tests::the_whole_answer", "table"),
            ("plan::properties::audit_is_empty", "property"),
            ("conformance::properties::any_slot", "conformance"),
            ("api_server::a_namespace", "cluster"),
            ("world::cluster::tests::a_row", "table"),
            ("whole::three_proxies", "whole"),
        ] {
            let on: Vec<&str> = RUNGS
                .iter()
                .filter(|rung| runs(&rung.invocations(&[])[0], test))
                .map(|rung| rung.name)
                .collect();
            assert_eq!(on, [rung], "{test}");
        }
    }

    #[test]
    fn every_test_program_runs_on_exactly_one_rung() {
        for (program, rung) in [
            ("plan_table", "table"),
            ("properties", "property"),
            ("scenarios", "script"),
            ("crash_walk", "crash-walk"),
            ("store_conformance", "conformance"),
            ("cluster_life", "cluster"),
            ("forward", "whole"),
        ] {
            assert_eq!(rung_of(program).name, rung, "{program}");
            let holding = RUNGS.iter().filter(|rung| {
                rung.invocations(&[program.to_owned()])
                    .iter()
                    .flatten()
                    .any(|word| word == program)
            });
            assert_eq!(holding.count(), 1, "{program}");
        }
    }

    #[test]
    fn tests_in_documentation_run_once() {
        let calls = RUNGS.iter().flat_map(|rung| rung.invocations(&[]));
        assert_eq!(calls.flatten().filter(|word| word == "--doc").count(), 1);
    }
}
