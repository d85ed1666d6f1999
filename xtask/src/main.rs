//! The work around the code: `cargo xtask ci`, `tidy`, `codegen`, `bench`, `payload`, `kube-up`,
//! `libvirt-up`, `guest`, `fidelity`, `record`.
//!
//! Everything here reads the repository and runs cargo; nothing of the product depends on it.

mod bench;
mod ci;
mod codegen;
mod deploy;
mod fidelity;
mod guest;
mod image;
mod kube;
mod libvirt;
mod payload;
mod record;
mod run;
mod tidy;

use std::{path::PathBuf, process::ExitCode};

const USAGE: &str = "\
usage: cargo xtask <command>

  ci [STEP...]                       every check, or only the named steps; `ci --list` names them
  tidy                               the rules of this repository that no other tool checks
  codegen [--check]                  write the generated pages of docs/, or compare them
  deploy [--write]                   check the chart, what is rendered from it, alerts and dashboard;
                                     --write renders deploy/manifests
  bench [NAME...] [--record] [-- ARG...]
                                     run benchmarks; --record keeps what they print in docs/benchmarks.md
  image                              build the operator's image into an OCI archive, and run it from an empty root
  payload                            build the static proxyd; prints its path and size
  kube-up [--netns NAME] [--dir DIR] a real Kubernetes API server on loopback, until Ctrl-C; --netns runs it in a
                                     network namespace, --dir in an empty folder of your choice
  kube-assets                        find, fetch or build the programs of kube-up, and promtool; prints their paths
  guest NAME                         make a disk image for tests from Debian's packages, tiny, debian, or baked, which is
                                     debian with proxyd in it; prints its path
  libvirt-up [--name NAME] [--dir DIR] [--image GUEST|FILE] [-- COMMAND...]
                                     libvirt and QEMU in namespaces of their own, until Ctrl-C or the command's end;
                                     --name is the network namespace, --dir an empty folder of your choice
  fidelity [FOLDER]                  replay recorded exchanges in the simulator; prints the share that is
                                     answered alike, and writes what differs below FOLDER
  record --config FILE [FOLDER]      save what the hosts of a configuration answer to reads, as fixtures below
                                     FOLDER (target/recorded); refused when an answer holds a token

exit codes: 0 all well, 1 something was found or failed, 2 wrong usage
";

/// Why a command ended without success.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Something was found or failed; it has been printed already.
    Failed,
    /// Something was found or failed, told in one sentence.
    Because(String),
    /// The command line was wrong.
    Usage(String),
}

impl From<std::io::Error> for Stop {
    fn from(source: std::io::Error) -> Self {
        Self::Because(source.to_string())
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match args.split_first() {
        Some((first, rest)) => (first.as_str(), rest),
        None => ("--help", &[][..]),
    };
    let outcome = match command {
        "ci" => ci::ci(&root(), rest),
        "tidy" => no_arguments(rest).and_then(|()| tidy::tidy(&root())),
        "deploy" => deploy::deploy(&root(), rest),
        "codegen" => codegen::codegen(&root(), rest),
        "bench" => bench::bench(&root(), rest),
        "image" => no_arguments(rest).and_then(|()| image::image(&root())),
        "payload" => no_arguments(rest).and_then(|()| payload::payload(&root())),
        "kube-up" => kube::kube_up(&root(), rest),
        "kube-assets" => no_arguments(rest).and_then(|()| kube::assets::kube_assets(&root())),
        "guest" => guest::guest(rest),
        "libvirt-up" => libvirt::libvirt_up(rest),
        "fidelity" => fidelity::fidelity(&root(), rest),
        "record" => record::record(&root(), rest),
        "--help" | "-h" | "help" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(Stop::Usage(format!("no command is called `{other}`"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Failed) => ExitCode::from(1),
        Err(Stop::Because(why)) => {
            eprintln!("xtask: {why}");
            ExitCode::from(1)
        }
        Err(Stop::Usage(why)) => {
            eprint!("xtask: {why}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The top folder of the repository: the parent of this package's folder.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

fn no_arguments(rest: &[String]) -> Result<(), Stop> {
    match rest.first() {
        None => Ok(()),
        Some(extra) => Err(Stop::Usage(format!("unexpected argument `{extra}`"))),
    }
}
