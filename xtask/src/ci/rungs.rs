//! The ladder of tests, and which test stands on which rung.
//!
//! A test inside a crate stands on the rung of its module's name: `plan::properties::...`. A
//! test program, `crates/x/tests/NAME.rs`, stands as a whole on the rung that its name begins
//! with, as `crash_walk`; any other name tries a crate from outside and stands on `whole`, and
//! must not hold a rung's word further on. Every test runs exactly once.

use super::{Outcome, tally::Tally};
use crate::{
    Stop,
    guest::{self, Guest},
    kube, libvirt, payload, run,
};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// One rung that this repository has by now.
#[derive(Debug)]
pub(crate) struct Rung {
    /// As ARCHITECTURE.md counts them.
    pub(crate) number: u8,
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// Which tests inside a crate.
    inside: Inside,
    /// What the names of its test programs begin with; nothing for those that are left.
    words: &'static [&'static str],
    needs: Needs,
}

/// The tests inside a crate that stand on a rung.
#[derive(Debug, PartialEq, Eq)]
enum Inside {
    /// Those below modules of this name, which ends with `::`.
    Module(&'static str),
    /// All that stand on no other rung.
    Rest,
    /// None.
    Nothing,
}

impl Inside {
    const fn module(&self) -> Option<&'static str> {
        match self {
            Self::Module(name) => Some(name),
            _ => None,
        }
    }
}

/// What a rung's tests run on.
#[derive(Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// A Kubernetes API server.
    ApiServer,
    /// libvirt, in namespaces of its own.
    Libvirt,
}

pub(crate) const RUNGS: &[Rung] = &[
    Rung {
        number: 1,
        name: "table",
        what: "one fact a row",
        inside: Inside::Rest,
        words: &["table"],
        needs: Needs::Nothing,
    },
    Rung {
        number: 2,
        name: "property",
        what: "what holds for any input",
        inside: Inside::Module("properties::"),
        words: &["property", "properties"],
        needs: Needs::Nothing,
    },
    Rung {
        number: 3,
        name: "script",
        what: "scenarios with their expected output, in virtual time",
        inside: Inside::Module("scenarios::"),
        words: &["scenario", "scenarios"],
        needs: Needs::Nothing,
    },
    Rung {
        number: 4,
        name: "crash-walk",
        what: "a crash before and after every effect",
        inside: Inside::Module("crash_walk::"),
        words: &["crash"],
        needs: Needs::Nothing,
    },
    Rung {
        number: 5,
        name: "conformance",
        what: "every provider, store and wrapper against the contract",
        inside: Inside::Module("conformance::"),
        words: &["conformance"],
        needs: Needs::Nothing,
    },
    Rung {
        number: 6,
        name: "fidelity",
        what: "the simulator against recordings of the real thing",
        inside: Inside::Module("fidelity::"),
        words: &["fidelity"],
        needs: Needs::Nothing,
    },
    Rung {
        number: 7,
        name: "cluster",
        what: "the operator on a real Kubernetes API server",
        inside: Inside::Module("api_server::"),
        words: &["cluster"],
        needs: Needs::ApiServer,
    },
    Rung {
        number: 8,
        name: "whole",
        what: "processes on loopback and real traffic",
        inside: Inside::Module("whole::"),
        words: &["whole"],
        needs: Needs::Nothing,
    },
    Rung {
        number: 8,
        name: "guests",
        what: "real machines on libvirt, under emulation",
        inside: Inside::Nothing,
        words: &["guests"],
        needs: Needs::Libvirt,
    },
];

impl Rung {
    /// Runs the rung's tests; a rung without any is a failure where nothing may be missing.
    pub(crate) fn run(&self, root: &Path, in_ci: bool) -> Result<(Outcome, Tally), Stop> {
        let mut tally = Tally::default();
        let mut well = true;
        let programs = test_programs(root)?;
        let ground = match misnamed(&programs).and_then(|()| self.prepare(root)) {
            Ok(ground) => ground,
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
        for arguments in self.invocations(&programs) {
            let mut command = ground.cargo(root)?;
            command.args([
                "test",
                "--quiet",
                "--workspace",
                "--all-features",
                "--no-fail-fast",
            ]);
            command.args(arguments);
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

    /// Sees to it that what the rung's tests run on is there; an error says what would enable
    /// them.
    fn prepare(&self, root: &Path) -> Result<Ground, Stop> {
        match self.needs {
            Needs::Nothing => Ok(Ground::Plain),
            Needs::ApiServer => {
                kube::assets::prepare(root)?;
                Ok(Ground::ApiServer)
            }
            Needs::Libvirt => {
                libvirt::rung_obstacle().map_or(Ok(()), |why| Err(Stop::Because(why)))?;
                // The operator is tried there, too.
                kube::assets::prepare(root)?;
                Ok(Ground::Libvirt {
                    debian: guest::image(Guest::Debian)?,
                    baked: guest::image(Guest::Baked)?,
                    agent: libvirt::agent_packages()?,
                    payload: payload::build(root)?,
                })
            }
        }
    }

    fn enable(&self) -> String {
        let Some(word) = self.words.first() else {
            return "write a test program below tests/ of a crate".into();
        };
        match self.inside.module() {
            Some(module) => format!(
                "write a test in a module `{}`, or a test program named {word}_*",
                module.trim_end_matches("::")
            ),
            None => format!("write a test program named {word}_*"),
        }
    }

    /// What follows `cargo test --workspace` in each call that this rung needs.
    fn invocations(&self, programs: &[String]) -> Vec<Vec<String>> {
        let own = |text: &str| text.to_owned();
        let mut calls = Vec::new();
        if self.inside != Inside::Nothing {
            let mut inside = vec![own("--lib"), own("--bins"), own("--")];
            inside.extend(self.inside.module().map(own));
            // A test below two such modules belongs to the higher rung, and runs there only.
            let higher = RUNGS.iter().filter(|rung| rung.number > self.number);
            for module in higher.filter_map(|rung| rung.inside.module()) {
                inside.extend([own("--skip"), own(module)]);
            }
            calls.push(inside);
        }
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
        if self.inside == Inside::Rest {
            calls.push(vec![own("--doc")]);
        }
        calls
    }
}

/// What a rung's tests run on, once it is there.
enum Ground {
    Plain,
    ApiServer,
    /// With the images of the full guest, as it is and baked, packages of the guest agent, and the
    /// static proxyd.
    Libvirt {
        debian: PathBuf,
        baked: PathBuf,
        agent: PathBuf,
        payload: PathBuf,
    },
}

impl Ground {
    /// A cargo command on it.
    fn cargo(&self, root: &Path) -> Result<Command, Stop> {
        let mut cargo = run::cargo(root);
        match self {
            Self::Plain => {}
            Self::ApiServer => {
                cargo.env("EGRESS_KUBE_UP", std::env::current_exe()?);
            }
            Self::Libvirt {
                debian,
                baked,
                agent,
                payload,
            } => {
                let mut within = Command::new(std::env::current_exe()?);
                within
                    .args(["libvirt-up", "--"])
                    .arg(cargo.get_program())
                    .current_dir(root)
                    .stdin(Stdio::null())
                    .env("EGRESS_KUBE_UP", std::env::current_exe()?)
                    .env("EGRESS_GUEST_DEBIAN", debian)
                    .env("EGRESS_GUEST_BAKED", baked)
                    .env("EGRESS_GUEST_AGENT_PACKAGES", agent)
                    .env("EGRESS_PAYLOAD", payload)
                    // There is no network, and everything is built by now.
                    .env("CARGO_NET_OFFLINE", "true");
                return Ok(within);
            }
        }
        Ok(cargo)
    }
}

/// The rung of a test program, by what its name begins with.
fn rung_of(program: &str) -> &'static Rung {
    let first = program.split('_').next().unwrap_or(program);
    let rung = |word: &str| RUNGS.iter().find(|rung| rung.words.contains(&word));
    rung(first).or_else(|| rung("whole")).unwrap_or(&RUNGS[0])
}

/// Whether every name says at its begin where the program stands.
fn misnamed(programs: &[String]) -> Result<(), Stop> {
    let first = |name: &str| name.split('_').next().unwrap_or(name).to_owned();
    let is_word = |word: &str| RUNGS.iter().any(|rung| rung.words.contains(&word));
    let Some(bad) = programs
        .iter()
        .find(|name| !is_word(&first(name)) && name.split('_').any(is_word))
    else {
        return Ok(());
    };
    Err(Stop::Because(format!(
        "tests/{bad}.rs: holds the word of a rung, but does not begin with it: begin with it, or \
         leave it out"
    )))
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
            ("guests::supervisor::tests::a_row", "table"),
        ] {
            let on: Vec<&str> = RUNGS
                .iter()
                .filter(|rung| {
                    let calls = rung.invocations(&[]);
                    calls.first().is_some_and(|inside| runs(inside, test))
                })
                .map(|rung| rung.name)
                .collect();
            assert_eq!(on, [rung], "{test}");
        }
    }

    #[test]
    fn every_test_program_runs_on_exactly_one_rung() {
        for (program, rung) in [
            ("table_plan", "table"),
            ("properties", "property"),
            ("scenarios", "script"),
            ("crash_walk", "crash-walk"),
            ("conformance_store", "conformance"),
            ("cluster_life", "cluster"),
            ("crash_walk_cluster", "crash-walk"),
            ("guests_tiny", "guests"),
            ("forward", "whole"),
            ("whole_state", "whole"),
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
    fn a_rungs_word_stands_at_the_names_begin_or_not_at_all() {
        let names = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        assert!(misnamed(&names(&["crash_walk_cluster", "forward", "guestsome_a"])).is_ok());
        let refused = misnamed(&names(&["crash_walk", "store_crash"]));
        let told = matches!(refused, Err(Stop::Because(why)) if why.contains("store_crash"));
        assert!(told);
    }

    #[test]
    fn tests_in_documentation_run_once() {
        let calls = RUNGS.iter().flat_map(|rung| rung.invocations(&[]));
        assert_eq!(calls.flatten().filter(|word| word == "--doc").count(), 1);
    }
}
