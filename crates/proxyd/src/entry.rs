//! A whole `proxyd` process: what the binary and `egress-proxies proxyd` share.

use crate::{config::load_config, error::Error, server::Server};
use egress_core::proxy_config::{ProxydConfig, ReadyLine};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, setsid};
use std::{
    error::Error as _,
    io::{self, Write},
    num::NonZero,
    path::Path,
    process::ExitCode,
    thread::available_parallelism,
};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

/// More workers than this only wake each other up.
const MOST_WORKERS: usize = 8;

/// Which session the process belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    /// The session of whoever started it.
    Inherited,
    /// One of its own, so that it outlives whoever started it (`--detach`).
    Own,
}

/// Runs one proxy until SIGTERM or SIGINT and the drain after it; a second signal ends the
/// drain. Prints one [`ReadyLine`] on standard output once it listens. The exit code is 0
/// after a drain, 2 for bad input, 1 for anything else; the reason goes to standard error.
/// Must not be called inside a tokio runtime: it makes its own.
pub fn main_with(config: &Path, session: Session) -> ExitCode {
    match start(config, session) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            match error.source() {
                Some(source) => eprintln!("{error}: {source}"),
                None => eprintln!("{error}"),
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn start(config: &Path, session: Session) -> Result<(), Error> {
    let config = load_config(config)?;
    if session == Session::Own
        && let Err(error) = setsid()
    {
        // Only a process that leads a group already cannot; it can still serve.
        tracing::warn!(%error, "no session of its own");
    }
    raise_descriptor_limit(&config);
    let runtime = runtime().map_err(|source| Error::Io {
        step: "starting the runtime",
        source,
    })?;
    let result = runtime.block_on(serve(config));
    // Name look-ups may still be under way; nobody waits for them any more.
    runtime.shutdown_background();
    result
}

async fn serve(config: ProxydConfig) -> Result<(), Error> {
    let on = |kind| {
        signal(kind).map_err(|source| Error::Io {
            step: "listening for signals",
            source,
        })
    };
    let (mut terminate, mut interrupt) =
        (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
    let server = Server::bind(config)?;
    let ready = ReadyLine {
        listen: server.local_addr(),
        management: server.management_addr(),
    };
    print_ready(&ready).map_err(|source| Error::Io {
        step: "printing the ready line",
        source,
    })?;
    tracing::info!(listen = %ready.listen, "serving");

    let (first, second) = tokio::sync::oneshot::channel::<()>();
    let signals = async {
        any(&mut terminate, &mut interrupt).await;
        let _ = first.send(());
        any(&mut terminate, &mut interrupt).await;
    };
    tokio::select! {
        () = server.serve(async { let _ = second.await; }) => {}
        () = signals => {}
    }
    Ok(())
}

async fn any(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

fn print_ready(ready: &ReadyLine) -> io::Result<()> {
    let mut line = serde_json::to_vec(ready)?;
    line.push(b'\n');
    let mut output = io::stdout().lock();
    output.write_all(&line)?;
    output.flush()
}

/// One processor needs no second thread.
fn runtime() -> io::Result<Runtime> {
    match available_parallelism().map_or(1, NonZero::get) {
        1 => Builder::new_current_thread().enable_all().build(),
        processors => Builder::new_multi_thread()
            .worker_threads(processors.min(MOST_WORKERS))
            .enable_all()
            .build(),
    }
}

/// Each client needs two descriptors (B185). The soft limit is raised as far as allowed.
fn raise_descriptor_limit(config: &ProxydConfig) {
    let needed = u64::from(config.limits.connections) * 2 + 64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return;
    }
    let raised = maximum.map_or(needed, |maximum| maximum.min(needed));
    let wanted = Rlimit {
        current: Some(raised),
        maximum,
    };
    if setrlimit(Resource::Nofile, wanted).is_err() || raised < needed {
        tracing::warn!(
            needed,
            allowed = raised,
            "limits.connections needs more descriptors"
        );
    }
}
