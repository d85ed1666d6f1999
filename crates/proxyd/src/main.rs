//! The forward proxy as a process of its own, and the guest agent as another one.
//!
//! The arguments are read by hand: there are few, and this binary is copied into every
//! machine.

use egress_proxyd::{Session, agent, main_with};
use std::{ffi::OsStr, path::PathBuf, process::ExitCode};
use tracing_subscriber::filter::LevelFilter;

const USAGE: &str = "\
The forward proxy of egress-proxies, and the guest agent of its machines.

Usage: proxyd --config FILE [--detach]
       proxyd --agent [PORT]

  --config FILE  what to serve, as JSON (docs/proxyd.md)
  --detach       in a session of its own, to outlive whoever started it
  --agent [PORT] answer the hypervisor as QEMU's guest agent does, on the port
                 /dev/virtio-ports/org.qemu.guest_agent.0 where none is named
  --version      the version
  --help         this text

Environment: PROXYD_LOG is one of off, error, warn, info, debug, trace (default info).
Once it listens it prints one line of JSON on standard output; logs go to standard error.
Exit codes: 0 after SIGTERM or SIGINT, 2 bad input, 1 anything else.
";

fn main() -> ExitCode {
    let mut config = None;
    let mut session = Session::Inherited;
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--config") => config = arguments.next().map(PathBuf::from),
            Some("--agent") => {
                let port = arguments.next();
                if let Some(extra) = arguments.next() {
                    return unknown(&extra);
                }
                log();
                let port = port.unwrap_or_else(|| agent::PORT.into());
                let error = agent::run(port.as_ref());
                eprintln!("{}: {error}", port.display());
                return ExitCode::FAILURE;
            }
            Some("--detach") => session = Session::Own,
            Some("--version") => {
                println!("proxyd {}", env!("CARGO_PKG_VERSION"));
                return ExitCode::SUCCESS;
            }
            Some("--help") => {
                print!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            _ => return unknown(&argument),
        }
    }
    let Some(config) = config else {
        eprintln!("--config: (missing): no file is named: see --help");
        return ExitCode::from(2);
    };
    log();
    main_with(&config, session)
}

fn unknown(argument: &OsStr) -> ExitCode {
    eprintln!(
        "{}: not an argument of proxyd: see --help",
        argument.display()
    );
    ExitCode::from(2)
}

/// Sends the log to standard error.
fn log() {
    let level = std::env::var("PROXYD_LOG")
        .ok()
        .and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(level.unwrap_or(LevelFilter::INFO))
        .init();
}
