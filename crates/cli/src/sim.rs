//! `sim`: simulated hypervisors to try the product with.

use crate::{failure::Failure, stop_signal};
use egress_proxmox_sim::{
    http::{GuestKind, Options, now, serve},
    world::Setup,
};
use std::{net::SocketAddr, path::PathBuf};

/// Arguments of `sim`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, clap::Subcommand)]
enum Kind {
    /// Answer as Proxmox VE does, over HTTPS. The first line printed is JSON: url, caFile,
    /// tokenFile, node, template, storage, isoStorage, controlUrl (docs/simulator.md).
    Proxmox(ProxmoxArguments),
}

#[derive(Debug, clap::Args)]
struct ProxmoxArguments {
    /// Where its first node listens; further nodes take the ports behind it. Port 0 takes
    /// free ones.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8006")]
    listen: SocketAddr,
    /// What runs in started machines.
    #[arg(long, value_enum, default_value = "proxyd")]
    guests: Guests,
    /// Where its certificate authority, its token and its guests' files lie.
    #[arg(long, value_name = "DIR")]
    state_dir: PathBuf,
    /// How many hosts it has; more than one are a cluster.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u8).range(1..=16))]
    nodes: u8,
    /// The memory of each host, in GiB.
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u32).range(4..))]
    memory_gib: u32,
    /// The size of its storage for disks, in GiB.
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u32).range(16..))]
    storage_gib: u32,
    /// Divides every duration of the simulated world; 1 is real time.
    #[arg(long, value_name = "N", default_value = "1", value_parser = speed)]
    speed: f64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Guests {
    /// Nothing: machines report an address where nothing listens.
    None,
    /// The real proxy, as the machine's seed configures it, on an address of 127.64.0.0/10.
    Proxyd,
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed.is_finite() => Ok(speed),
        _ => Err("give a number above 0, such as 10".to_owned()),
    }
}

fn setup(arguments: &ProxmoxArguments) -> Setup {
    let bytes = |gib: u32| u64::from(gib) << 30;
    let mut setup = Setup {
        epoch: now(),
        ..Setup::of_nodes(arguments.nodes)
    };
    for node in &mut setup.nodes {
        node.memory = bytes(arguments.memory_gib);
    }
    let disks = setup.storages.iter_mut().find(|s| s.name == "local-lvm");
    disks.expect("the default world has it").total = bytes(arguments.storage_gib);
    setup
}

/// Serves until a signal.
pub async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Kind::Proxmox(arguments) = &arguments.kind;
    let stop = stop_signal();
    let guests = match arguments.guests {
        Guests::None => GuestKind::None,
        Guests::Proxyd => GuestKind::Proxyd {
            program: std::env::current_exe()
                .map_err(|e| Failure::failed(format!("the path of this program: {e}")))?,
            arguments: vec!["proxyd".into()],
        },
    };
    let options = Options {
        listen: arguments.listen,
        guests,
        state_dir: arguments.state_dir.clone(),
        speed: arguments.speed,
        setup: setup(arguments),
    };
    let running = serve(options).await.map_err(|e| {
        Failure::refused(format!(
            "the simulator cannot start on {} with {}: {e}: give a free address of this host and a directory that can be written",
            arguments.listen,
            arguments.state_dir.display()
        ))
    })?;
    let facts = serde_json::to_string(running.facts())
        .map_err(|e| Failure::failed(format!("the simulator's facts: {e}")))?;
    println!("{facts}");
    stop.await;
    running.stop().await;
    Ok(())
}
