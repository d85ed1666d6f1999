//! A client of libvirt's remote protocol: what this provider needs of it, and no C library.
//!
//! A [`Client`] is one host, and opens a [`Session`]: a connection with the procedures and their
//! types. A [`Failure`] says what went wrong as [`errors`] sorted it, and whether it was sent.
//! Nothing here knows the contract of providers.

// The lint's advice does not compile: a method of `Reader<'a>` is not one of any `Reader<'_>`.
#![allow(clippy::redundant_closure_for_method_calls)]

mod calls;
pub mod connection;
pub mod errors;
mod failure;
pub mod frame;
pub mod procedure;
#[cfg(test)]
mod properties;
mod transport;
mod uri;
pub mod xdr;

pub use calls::{
    AddressSource, Domain, DomainState, Interface, Lease, MOST_DOWNLOADED, Memory, Metadata,
    Network, Pool, PoolRoom, Volume, VolumeSize, affect, define, device, shutdown, undefine, xml,
};
pub use failure::{Failure, Kind};
pub use transport::{Dialer, TlsFiles, Tunnel};
pub use uri::{BadUri, HostUri, Transport};

use connection::{Connection, Deadlines};
use procedure::Procedure;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use xdr::Writer;

/// How long a read may take.
pub const READ_DEADLINE: Duration = Duration::from_secs(10);
/// How long a request that changes something may take to be answered.
pub const CHANGE_DEADLINE: Duration = Duration::from_mins(2);
/// How long an upload may take.
pub const UPLOAD_DEADLINE: Duration = Duration::from_mins(10);

/// One host.
#[derive(Debug)]
pub struct Client {
    dialer: Dialer,
}

impl Client {
    /// The host that a dialer reaches. Nothing is opened before the first call.
    pub const fn new(dialer: Dialer) -> Self {
        Self { dialer }
    }

    /// Where it is.
    pub const fn uri(&self) -> &HostUri {
        self.dialer.uri()
    }

    /// A connection of its own, authenticated and with the driver open, within this time. Its
    /// reads take no longer than that, each.
    pub async fn open(&self, within: Duration) -> Result<Session, Failure> {
        let end = Instant::now() + within;
        let Ok(dialed) = timeout_at(end, self.dialer.dial()).await else {
            let asked = format!("connecting to {}", self.uri());
            return Err(Failure::not_sent(asked, "no connection in time"));
        };
        let connection = Connection::over(dialed?);
        let session = Session {
            connection,
            reads: end.saturating_duration_since(Instant::now()),
        };
        let opened = async {
            session.authenticate(self).await?;
            session.open_driver().await
        };
        if let Err(mut failure) = opened.await {
            if matches!(failure.kind, Kind::CutOff | Kind::NotSent)
                && let Some(words) = self.dialer.last_words().await
            {
                failure.said = format!("{} (ssh: {words})", failure.said);
            }
            return Err(failure);
        }
        Ok(Session {
            reads: within,
            ..session
        })
    }
}

/// An open connection to the driver for QEMU, with its procedures.
#[derive(Clone, Debug)]
pub struct Session {
    connection: Connection,
    reads: Duration,
}

impl Session {
    /// Whether it can still be used, as far as is known.
    pub fn is_open(&self) -> bool {
        self.connection.is_open()
    }

    async fn authenticate(&self, client: &Client) -> Result<(), Failure> {
        const NONE: i32 = 0;
        const POLKIT: i32 = 2;
        let ways = self
            .read(Procedure::AuthList, "", Writer::new(), |answer| {
                answer.list(20, |way| way.i32())
            })
            .await?;
        if ways.is_empty() || ways.contains(&NONE) {
            return Ok(());
        }
        if ways.contains(&POLKIT) {
            return self
                .read(Procedure::AuthPolkit, "", Writer::new(), |answer| {
                    answer.i32()
                })
                .await
                .map(drop);
        }
        Err(Failure {
            class: egress_core::ErrorClass::Unauthorized,
            kind: Kind::Unauthenticated,
            code: None,
            asked: format!("connecting to {}", client.uri()),
            said: "the server asks for SASL, which this client does not speak: use TLS with certificates, or ssh".to_owned(),
        })
    }

    async fn open_driver(&self) -> Result<(), Failure> {
        let arguments = Writer::new().optional(Some(HostUri::DRIVER)).u32(0);
        self.read(Procedure::ConnectOpen, HostUri::DRIVER, arguments, |_| {
            Ok(())
        })
        .await
    }

    async fn read<T>(
        &self,
        procedure: Procedure,
        about: &str,
        arguments: Writer,
        read: impl FnOnce(&mut xdr::Reader<'_>) -> Result<T, xdr::Malformed>,
    ) -> Result<T, Failure> {
        let deadlines = Deadlines::within(self.reads);
        self.connection
            .call(procedure, about, arguments, deadlines, read)
            .await
    }

    /// A request that changes something. After `last` it is not written.
    async fn change<T>(
        &self,
        procedure: Procedure,
        about: &str,
        arguments: Writer,
        last: Instant,
        read: impl FnOnce(&mut xdr::Reader<'_>) -> Result<T, xdr::Malformed>,
    ) -> Result<T, Failure> {
        let deadlines = Deadlines {
            write: last,
            answer: Instant::now() + CHANGE_DEADLINE,
        };
        self.connection
            .call(procedure, about, arguments, deadlines, read)
            .await
    }
}
