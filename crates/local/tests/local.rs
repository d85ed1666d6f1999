//! The provider against real processes of this host.
//!
//! Called with `proxyd` as its first argument this program is the proxy, as the product's own
//! program is, so that a test starts machines just as production does. Else it runs its
//! cases one after the other; an argument chooses those whose name holds it.

#[path = "local/cases.rs"]
mod cases;
#[path = "local/harness.rs"]
mod harness;
#[path = "local/world.rs"]
mod world;

use std::{panic::AssertUnwindSafe, path::PathBuf, process::ExitCode, time::Instant};

/// Set for a process that is to be a machine deaf to SIGTERM.
pub const DEAF: &str = "EGRESS_TEST_DEAF";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "proxyd") {
        return proxyd(&arguments[1..]);
    }
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let chosen =
        |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()));
    let cases = cases::all().into_iter().filter(|(name, _)| chosen(name));
    if arguments.iter().any(|argument| argument == "--list") {
        cases.for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let mut failed = 0;
    for (name, case) in cases {
        let begun = Instant::now();
        let passed = std::panic::catch_unwind(AssertUnwindSafe(case)).is_ok();
        let word = if passed { "ok" } else { "FAILED" };
        println!(
            "test {name} ... {word} ({:.2} s)",
            begun.elapsed().as_secs_f64()
        );
        failed += usize::from(!passed);
    }
    if failed == 0 {
        return ExitCode::SUCCESS;
    }
    println!("{failed} failed");
    ExitCode::FAILURE
}

/// The arguments that the provider passes: `--config FILE --detach --mark TEXT`.
fn proxyd(arguments: &[String]) -> ExitCode {
    let [flag, config, detach, mark, _text] = arguments else {
        return ExitCode::from(2);
    };
    if (flag.as_str(), detach.as_str(), mark.as_str()) != ("--config", "--detach", "--mark") {
        return ExitCode::from(2);
    }
    let config = PathBuf::from(config);
    if std::env::var_os(DEAF).is_some() {
        return world::be_deaf(&config);
    }
    egress_proxyd::main_with(&config, egress_proxyd::Session::Own)
}
