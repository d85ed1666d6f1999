//! The `egress-proxies` command: one file a subcommand.

mod admin_client;
mod check;
mod config;
mod conformance;
mod crds;
mod docs;
mod echo;
mod failure;
mod get;
mod logs;
mod operator;
mod plan;
mod prune;
mod sim;
mod standalone;
mod traces;
mod wording;

use clap::{Parser, Subcommand};
use failure::Failure;
use mimalloc::MiMalloc;
use std::{path::PathBuf, process::ExitCode};

/// Gives memory back after a crowd of machines was made, which the system's allocator does not
/// (decision 0020).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Egress IPs on your own hypervisors: declared proxies become exactly one machine each.
#[derive(Debug, Parser)]
#[command(name = "egress-proxies", version, after_help = EXIT_CODES)]
struct Command {
    /// How log lines are written on standard error.
    #[arg(long, global = true, value_enum, default_value = "text")]
    log_format: logs::Format,
    /// Which log lines are written: error, warn, info (the default; warn in a quick start),
    /// debug or trace, or a filter such as `info,egress_engine=debug`.
    #[arg(long, global = true)]
    log_level: Option<String>,
    /// Send traces to a collector by OTLP over HTTP, to this URL with `/v1/traces` after it.
    /// Without a URL: where OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT
    /// says, else to http://localhost:4318. The other standard variables hold too, as
    /// OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE and OTEL_TRACES_SAMPLER.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    otlp: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

/// The end of a help text: exit codes, and examples of this command.
macro_rules! after {
    ($one:literal; $($example:literal),+ $(,)?) => {
        concat!(
            "Exit codes:\n",
            "  0  done\n",
            "  1  ", $one, "\n",
            "  2  bad input, or refused to start; nothing was changed\n\n",
            "Examples:",
            $("\n  egress-proxies ", $example),+
        )
    };
}

const EXIT_CODES: &str = after!(
    "something failed; the reason is on standard error";
    "standalone",
    "standalone --config config.yaml --manifests manifests",
    "get proxies -o json",
);

#[derive(Debug, Subcommand)]
enum Verb {
    /// Keep the declared proxies running on this host. Without arguments: a quick start with
    /// three proxies and a page to try them on.
    #[command(after_help = after!(
        "the engine ended by itself, as when its state directory was taken away";
        "standalone",
        "standalone --config config.yaml",
        "standalone --config config.yaml --manifests manifests --state-dir state",
    ))]
    Standalone(standalone::Arguments),
    /// Keep the Proxies of a Kubernetes cluster running, while it leads.
    #[command(after_help = after!(
        "the operator ended by itself";
        "operator --config config.yaml",
        "operator --config config.yaml --namespace shop --log-format json",
    ))]
    Operator(operator::Arguments),
    /// Run one forward proxy (what the local provider starts for each Proxy).
    #[command(after_help = after!(
        "it could not listen, or the system refused something";
        "proxyd --config proxyd.json",
    ))]
    Proxyd(ProxydArguments),
    /// Serve a page that says who is asking.
    #[command(after_help = after!(
        "something failed; the reason is on standard error";
        "echo",
        "echo --listen 127.0.0.1:0",
    ))]
    Echo(echo::Arguments),
    /// Look, without changing anything, whether the configured providers can make machines.
    #[command(after_help = after!(
        "a provider is not ready";
        "check --config config.yaml",
        "check --config config.yaml -o json",
    ))]
    Check(check::Arguments),
    /// Run the conformance suite of the provider contract against a configured provider. It
    /// makes a few machines and removes them.
    #[command(after_help = after!(
        "a case failed, or the run was interrupted";
        "conformance --config config.yaml --provider here",
        "conformance --config config.yaml --provider here --tier extended",
    ))]
    Conformance(conformance::Arguments),
    /// Show what a running engine knows.
    #[command(after_help = after!(
        "no engine runs on the state directory, or it does not answer";
        "get proxies",
        "get proxies -o json --state-dir state",
        "get proxies --kubeconfig kubeconfig --namespace shop",
    ))]
    Get(get::Arguments),
    /// Show, without changing anything, what the operator would do next with each Proxy of a
    /// cluster, as a process would that just came to lead.
    #[command(after_help = after!(
        "the cluster or a hypervisor does not answer";
        "plan --config config.yaml",
        "plan --config config.yaml --kubeconfig kubeconfig --namespace shop -o json",
    ))]
    Plan(plan::Arguments),
    /// Delete the Proxies whose manifests are gone, where the engine waits for your word.
    #[command(after_help = after!(
        "no engine runs on the state directory, or it cannot tell now what is missing";
        "prune",
        "prune --state-dir state",
    ))]
    Prune(prune::Arguments),
    /// Print the custom resource definitions for a Kubernetes cluster, as YAML.
    #[command(after_help = after!(
        "something failed; the reason is on standard error";
        "crds",
        "crds | kubectl apply --server-side -f -",
    ))]
    Crds,
    /// Run a simulated hypervisor to try the product with, until Ctrl-C.
    #[command(after_help = after!(
        "something failed; the reason is on standard error";
        "sim proxmox --state-dir sim",
        "sim proxmox --state-dir sim --listen 127.0.0.1:0 --speed 10",
    ))]
    Sim(sim::Arguments),
    /// Print one of the generated pages of the documentation.
    #[command(hide = true)]
    Docs(docs::Arguments),
}

#[derive(Debug, clap::Args)]
struct ProxydArguments {
    /// What to serve, as JSON (docs/proxyd.md).
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Run in a session of its own, to outlive whoever started it.
    #[arg(long)]
    detach: bool,
    /// Whose process it is; read by the local provider from the argument list.
    #[arg(long, value_name = "TEXT")]
    mark: Option<String>,
}

fn main() -> ExitCode {
    let command = Command::parse();
    let level = command.log_level.as_deref();
    let result = match command.verb {
        // Before any runtime or thread: it makes its own.
        Verb::Proxyd(arguments) => {
            // Started through /proc/self/exe it would be called `exe` in `ps` and `top`.
            let _ = std::fs::write("/proc/self/comm", "egress-proxies");
            if let Err(failure) = logs::start(
                command.log_format,
                level.unwrap_or("info"),
                logs::Target::Stderr,
                None,
            ) {
                return failure.report();
            }
            let session = if arguments.detach {
                egress_proxyd::Session::Own
            } else {
                egress_proxyd::Session::Inherited
            };
            return egress_proxyd::main_with(&arguments.config, session);
        }
        Verb::Docs(arguments) => docs::run(&arguments),
        Verb::Crds => crds::run(),
        verb => run(verb, command.log_format, level, command.otlp.as_deref()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(
    verb: Verb,
    format: logs::Format,
    level: Option<&str>,
    otlp: Option<&str>,
) -> Result<(), Failure> {
    let quiet = matches!(&verb, Verb::Standalone(arguments) if arguments.is_quick_start());
    let level = level.unwrap_or(if quiet { "warn" } else { "info" });
    let target = match &verb {
        Verb::Standalone(arguments) => arguments.log_target(),
        _ => logs::Target::Stderr,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("starting the runtime: {e}")))?;
    let traces = otlp.map(|url| traces::Traces::start(url, runtime.handle()));
    let traces = traces.transpose()?;
    logs::start(format, level, target, traces.as_ref())?;
    let result = runtime.block_on(async {
        match verb {
            Verb::Standalone(arguments) => standalone::run(arguments).await,
            Verb::Operator(arguments) => operator::run(arguments).await,
            Verb::Echo(arguments) => echo::run(&arguments).await,
            Verb::Check(arguments) => check::run(&arguments).await,
            Verb::Conformance(arguments) => conformance::run(&arguments).await,
            Verb::Get(arguments) => get::run(&arguments).await,
            Verb::Plan(arguments) => plan::run(&arguments).await,
            Verb::Prune(arguments) => prune::run(&arguments).await,
            Verb::Sim(arguments) => sim::run(&arguments).await,
            Verb::Proxyd(_) | Verb::Docs(_) | Verb::Crds => Ok(()),
        }
    });
    if let Some(traces) = traces {
        traces.end();
    }
    // Blocking reads of a slow disk must not hold up the end.
    runtime.shutdown_background();
    result
}

/// Resolves at the first SIGINT or SIGTERM from now on; from now on neither ends the process by
/// itself.
fn stop_signal() -> impl Future<Output = ()> + Send + 'static {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    );
    async {
        let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
            return std::future::pending().await;
        };
        let signal = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal, "asked to stop");
    }
}
