//! `cargo xtask bench`: runs the benchmarks of `crates/simtest/benches` and keeps what they say.
//!
//! A benchmark is a program without the test harness that prints one Markdown table.

use crate::{
    Stop,
    guest::{self, Guest},
    libvirt, payload, run,
};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const PACKAGE: &str = "egress-simtest";
const PAGE: &str = "docs/benchmarks.md";
/// The benchmark that runs on libvirt, in namespaces of its own.
const GUESTS: &str = "guests";

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    names: Vec<String>,
    record: bool,
    passed_on: Vec<String>,
}

impl Asked {
    fn parse(args: &[String]) -> Result<Self, Stop> {
        let mut asked = Self::default();
        let mut args = args.iter();
        for arg in args.by_ref() {
            match arg.as_str() {
                "--" => break,
                "--record" => asked.record = true,
                flag if flag.starts_with('-') => {
                    return Err(Stop::Usage(format!(
                        "bench knows no `{flag}`; the benchmark's own arguments follow `--`"
                    )));
                }
                name => asked.names.push(name.to_owned()),
            }
        }
        asked.passed_on = args.cloned().collect();
        Ok(asked)
    }
}

/// Runs the named benchmarks, or all.
pub(crate) fn bench(root: &Path, args: &[String]) -> Result<(), Stop> {
    let asked = Asked::parse(args)?;
    let known = known(root)?;
    if let Some(unknown) = asked.names.iter().find(|name| !known.contains(name)) {
        return Err(Stop::Usage(format!(
            "no benchmark `{unknown}`; there are: {}",
            known.join(", ")
        )));
    }
    let names = if asked.names.is_empty() {
        &known
    } else {
        &asked.names
    };
    if names.is_empty() {
        return Err(Stop::Because(format!("{PACKAGE} has no benchmarks")));
    }
    let programs = Programs::build(root, names)?;
    let mut failed = Vec::new();
    for name in names {
        let mut command = run::cargo(root);
        command.args(["bench", "--quiet", "--package", PACKAGE, "--bench", name]);
        let ground = (name == GUESTS).then(|| Ground::make(root)).transpose()?;
        if let Some(ground) = &ground {
            command = ground.around(&command, root)?;
        }
        programs.tell(&mut command);
        if !asked.passed_on.is_empty() {
            command.arg("--").args(&asked.passed_on);
        }
        eprintln!("== {}", run::line(&command));
        let mut printed = String::new();
        let ended_well = run::each_line(&mut command, |line| {
            println!("{line}");
            printed.push_str(line);
            printed.push('\n');
        })?;
        if !ended_well {
            failed.push(name.as_str());
        } else if asked.record {
            let page = std::fs::read_to_string(root.join(PAGE)).unwrap_or_default();
            let typed = typed(name, &asked.passed_on);
            let section = format!("`{typed}` on {}\n\n{}", machine(), printed.trim());
            run::write(root, PAGE, &with_section(&page, name, &section))?;
            eprintln!("== kept in {PAGE}");
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(Stop::Because(format!(
            "ended with an error: {}",
            failed.join(", ")
        )))
    }
}

/// What benchmarks run, as it is shipped.
struct Programs {
    /// Where only guests are measured, nobody runs it.
    command: Option<PathBuf>,
    proxyd: PathBuf,
}

impl Programs {
    fn build(root: &Path, names: &[String]) -> Result<Self, Stop> {
        let mut build = run::cargo(root);
        build.args(["build", "--release", "--package", "egress-cli"]);
        let command = names
            .iter()
            .any(|name| name != GUESTS)
            .then(|| run::built(&mut build, "egress-proxies"));
        Ok(Self {
            command: command.transpose()?,
            proxyd: payload::build(root)?,
        })
    }

    fn tell(&self, benchmark: &mut Command) {
        benchmark.env("BENCH_PROXYD", &self.proxyd);
        if let Some(command) = &self.command {
            benchmark.env("BENCH_EGRESS_PROXIES", command);
        }
    }
}

/// What the benchmark of guests runs on: images, and packages for those that install one.
struct Ground {
    debian: PathBuf,
    baked: PathBuf,
    mirror: PathBuf,
}

impl Ground {
    fn make(root: &Path) -> Result<Self, Stop> {
        let obstacle = libvirt::obstacle();
        let obstacle = obstacle.or_else(|| guest::lacking(&[("genisoimage", "genisoimage")]));
        obstacle.map_or(Ok(()), |why| Err(Stop::Because(why)))?;
        // There, nothing can be fetched.
        let mut build = run::cargo(root);
        build.args(["bench", "--quiet", "--package", PACKAGE, "--bench", GUESTS]);
        build.arg("--no-run");
        if !run::succeeds(&mut build)? {
            return Err(Stop::Failed);
        }
        let ground = Self {
            debian: guest::image(Guest::Debian)?,
            baked: guest::image(Guest::Baked)?,
            mirror: std::env::temp_dir().join(format!("egress-mirror-{}", std::process::id())),
        };
        guest::mirror(&ground.mirror, "qemu-guest-agent")?;
        Ok(ground)
    }

    /// The command where libvirt is.
    fn around(&self, command: &Command, root: &Path) -> Result<Command, Stop> {
        let mut within = Command::new(std::env::current_exe()?);
        within
            .args(["libvirt-up", "--image"])
            .arg(&self.debian)
            .arg("--")
            .arg(command.get_program())
            .args(command.get_args())
            .current_dir(root)
            .stdin(Stdio::null())
            .env("CARGO_NET_OFFLINE", "true")
            .env("BENCH_BAKED", &self.baked)
            .env("BENCH_MIRROR", &self.mirror);
        Ok(within)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // Where it was not made in the end, there is nothing to remove.
        let _ = std::fs::remove_dir_all(&self.mirror);
    }
}

fn known(root: &Path) -> Result<Vec<String>, Stop> {
    let metadata = run::metadata(root)?;
    let packages = metadata
        .packages
        .iter()
        .filter(|package| package.name.as_str() == PACKAGE);
    let targets = packages.flat_map(|package| &package.targets);
    Ok(targets
        .filter(|target| target.is_bench())
        .map(|target| target.name.clone())
        .collect())
}

/// The command as a person would type it to get these figures again.
fn typed(name: &str, passed_on: &[String]) -> String {
    let mut typed = format!("cargo xtask bench {name}");
    for (index, arg) in passed_on.iter().enumerate() {
        typed.push_str(if index == 0 { " -- " } else { " " });
        typed.push_str(arg);
    }
    typed
}

/// Processor, cores and kernel: figures mean little without them.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let model = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("an unnamed processor", |(_, model)| model.trim());
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = read("/proc/sys/kernel/osrelease");
    let kernel: Vec<&str> = kernel.trim().split('.').take(2).collect();
    format!("{model}, {cores} cores, Linux {}", kernel.join("."))
}

/// The page with this benchmark's section replaced, or added at its end.
fn with_section(page: &str, name: &str, section: &str) -> String {
    let (begin, end) = (
        format!("<!-- bench: {name} -->\n"),
        format!("<!-- end: {name} -->\n"),
    );
    let inside = format!("{begin}{section}\n{end}");
    let place = page.find(&begin).and_then(|from| {
        let to = page[from..].find(&end)? + from + end.len();
        Some((from, to))
    });
    match place {
        Some((from, to)) => format!("{}{inside}{}", &page[..from], &page[to..]),
        None => format!("{}\n\n## {name}\n\n{inside}", page.trim_end())
            .trim_start()
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(Into::into).collect()
    }

    #[test]
    fn arguments_after_two_dashes_are_the_benchmarks_own() {
        let asked = Asked::parse(&words("a b --record -- --count 3 --")).expect("parses");
        let expected = Asked {
            names: words("a b"),
            record: true,
            passed_on: words("--count 3 --"),
        };
        assert_eq!(asked, expected);
        assert_eq!(
            typed("a", &asked.passed_on),
            "cargo xtask bench a -- --count 3 --"
        );
        assert!(matches!(
            Asked::parse(&words("--count")),
            Err(Stop::Usage(_))
        ));
    }

    #[test]
    fn a_section_is_added_once_and_then_replaced() {
        let first = with_section("# Benchmarks\n", "start", "old");
        assert_eq!(
            first,
            "# Benchmarks\n\n## start\n\n<!-- bench: start -->\nold\n<!-- end: start -->\n"
        );
        let two = with_section(&first, "load", "x");
        assert_eq!(
            with_section(&two, "start", "new"),
            two.replace("old", "new")
        );
    }
}
