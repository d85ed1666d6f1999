//! Connections to targets: from the intended source address, within one deadline.

use crate::{
    answer::Refusal,
    metrics::Metrics,
    resolve::{Family, Names},
    target::{Host, Target},
};
use futures_util::stream::{FuturesUnordered, StreamExt};
use nix::sys::socket::{setsockopt, sockopt::IpBindAddressNoPort};
use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::{Duration, Instant, sleep, timeout_at},
};

/// How long one address is tried alone before the next joins in (RFC 8305, 5).
const STAGGER: Duration = Duration::from_millis(250);

/// Connects to targets.
pub(crate) struct Dialer {
    egress: Option<IpAddr>,
    limit: Duration,
    names: Names,
    metrics: Arc<Metrics>,
}

impl Dialer {
    pub(crate) fn new(egress: Option<IpAddr>, limit: Duration, metrics: Arc<Metrics>) -> Self {
        Self {
            egress,
            limit,
            names: Names::system(Family::of(egress)),
            metrics,
        }
    }

    /// A connection to the target. Name look-up included, it is there before the deadline or
    /// never: dropping the future closes every attempt.
    pub(crate) async fn dial(&self, target: &Target) -> Result<TcpStream, Refusal> {
        let start = Instant::now();
        let result = self.dial_by(target, start + self.limit).await;
        self.metrics
            .dial_seconds
            .observe(start.elapsed().as_secs_f64());
        result
    }

    async fn dial_by(&self, target: &Target, deadline: Instant) -> Result<TcpStream, Refusal> {
        let name = match &target.host {
            Host::Ip(address) if Family::of(self.egress).includes(*address) => {
                let address = SocketAddr::new(*address, target.port);
                return timeout_at(deadline, self.connect(address))
                    .await
                    .map_err(|_| Refusal::ConnectionTimeout)?;
            }
            Host::Ip(_) => return Err(Refusal::Unroutable),
            Host::Name(name) => name,
        };
        let addresses = timeout_at(deadline, self.names.lookup(name))
            .await
            .map_err(|_| Refusal::DnsTimeout)??;
        timeout_at(deadline, self.connect_any(&addresses, target.port))
            .await
            .map_err(|_| Refusal::ConnectionTimeout)?
    }

    /// The first of the addresses to accept. The next is tried when one fails, or beside it
    /// when it takes long.
    async fn connect_any(&self, addresses: &[IpAddr], port: u16) -> Result<TcpStream, Refusal> {
        let mut waiting = addresses.iter();
        let mut attempts = FuturesUnordered::new();
        let mut first_refusal = None;
        loop {
            match waiting.next() {
                Some(address) => attempts.push(self.connect(SocketAddr::new(*address, port))),
                None if attempts.is_empty() => break,
                None => {}
            }
            tokio::select! {
                Some(result) = attempts.next() => match result {
                    Ok(stream) => return Ok(stream),
                    Err(refusal) => { first_refusal.get_or_insert(refusal); }
                },
                () = sleep(STAGGER), if waiting.len() > 0 => {}
            }
        }
        Err(first_refusal.unwrap_or(Refusal::DnsFailed))
    }

    async fn connect(&self, address: SocketAddr) -> Result<TcpStream, Refusal> {
        let stream = self
            .socket(address)?
            .connect(address)
            .await
            .map_err(|error| refusal(&error))?;
        // Waiting for full segments helps nobody behind a proxy.
        stream.set_nodelay(true).map_err(|error| refusal(&error))?;
        Ok(stream)
    }

    fn socket(&self, address: SocketAddr) -> Result<TcpSocket, Refusal> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }
        .map_err(|error| refusal(&error))?;
        if let Some(egress) = self.egress {
            // The port is chosen at connect, unique for the pair of addresses only; chosen at
            // bind it would be unique for the source, and 28,000 closed connections would
            // use them all up.
            setsockopt(&socket, IpBindAddressNoPort, &true)
                .map_err(|error| refusal(&io::Error::from(error)))?;
            socket.bind(SocketAddr::new(egress, 0)).map_err(|error| {
                tracing::warn!(%egress, %error, "the outgoing address cannot be bound");
                Refusal::EgressUnavailable
            })?;
        }
        Ok(socket)
    }
}

/// What a failed socket call means to the client.
fn refusal(error: &io::Error) -> Refusal {
    match error.kind() {
        ErrorKind::ConnectionRefused => Refusal::ConnectionRefused,
        ErrorKind::TimedOut => Refusal::ConnectionTimeout,
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable | ErrorKind::NetworkDown => {
            Refusal::Unroutable
        }
        ErrorKind::AddrNotAvailable | ErrorKind::AddrInUse => Refusal::OutOfSockets,
        _ => match error.raw_os_error().map(nix::errno::Errno::from_raw) {
            Some(
                nix::errno::Errno::EMFILE | nix::errno::Errno::ENFILE | nix::errno::Errno::ENOBUFS,
            ) => Refusal::OutOfSockets,
            _ => Refusal::ConnectionFailed,
        },
    }
}

#[cfg(test)]
mod tests;
