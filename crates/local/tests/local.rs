//! The provider against real processes of this host.
//!
//! Called with `proxyd` as its first argument this program is the proxy, as the product's own
//! program is, so that a test starts machines just as production does. Else it runs its
//! cases one after the other; an argument chooses those whose name holds it.

type Case = (&'static str, fn());

/// Every case of a module by its name.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub fn all() -> Vec<crate::Case> {
            vec![$((stringify!($name), || crate::block_on($name()))),*]
        }
    };
}

#[path = "local/cases.rs"]
mod cases;
#[path = "local/places.rs"]
mod places;
#[path = "local/strangers.rs"]
mod strangers;
#[path = "local/world.rs"]
mod world;

use std::{panic::AssertUnwindSafe, path::Path, process::ExitCode, time::Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "proxyd") {
        return proxyd(&arguments[1..]);
    }
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let chosen =
        |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()));
    let modules = [cases::all(), strangers::all(), places::all()];
    let all = modules.into_iter().flatten();
    let cases = all.filter(|(name, _)| chosen(name));
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
    egress_proxyd::main_with(Path::new(config), egress_proxyd::Session::Own)
}

fn block_on(case: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(case);
}
