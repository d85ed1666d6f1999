//! `echo`: a page that says who is asking.

use crate::{failure::Failure, stop_signal};
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// Arguments of `echo`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Where to listen; port 0 takes a free one, which is printed.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
}

/// Serves until a signal.
pub async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let listener = TcpListener::bind(arguments.listen).await.map_err(|e| {
        Failure::refused(format!(
            "--listen: {}: cannot listen there ({e}): give a free address of this host",
            arguments.listen
        ))
    })?;
    let address = listener
        .local_addr()
        .map_err(|e| Failure::failed(format!("echo: {e}")))?;
    let stop = stop_signal();
    println!("http://{address}/");
    egress_proxyd::echo::serve(listener, stop).await;
    Ok(())
}
