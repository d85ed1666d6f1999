//! One engine of an installation for each user of a host. The lock on a state directory does
//! not see to that: machines are found by their marks, whatever directory their records are in.

use crate::failure::Failure;
use egress_core::Installation;
use rustix::{net::sockopt::socket_peercred, process::geteuid};
use std::{
    io::ErrorKind,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
};

/// Held for as long as it lives; the kernel ends it with the process.
#[derive(Debug)]
pub struct HostLock {
    /// A name that no file stands for (unix(7), abstract sockets); nobody is ever answered.
    _name: Option<UnixListener>,
}

impl HostLock {
    /// Takes the lock, or refuses with the pid of the engine that holds it.
    pub fn take(installation: &Installation) -> Result<Self, Failure> {
        let user = geteuid();
        let failed = |e: std::io::Error| Failure::failed(format!("the lock of this host: {e}"));
        let name = format!("egress-proxies/{}/{installation}", user.as_raw());
        let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
        match UnixListener::bind_addr(&address) {
            Ok(name) => Ok(Self { _name: Some(name) }),
            Err(e) if e.kind() == ErrorKind::AddrInUse => {
                let holder = UnixStream::connect_addr(&address).map_err(failed)?;
                let holder = socket_peercred(&holder).map_err(|e| failed(e.into()))?;
                if holder.uid == user {
                    return Err(Failure::refused(format!(
                        "another engine of installation {installation}, pid {}, runs on this host: \
                         stop it, or give this one an installation of its own",
                        holder.pid.as_raw_nonzero()
                    )));
                }
                // Whoever took the name cannot touch this user's machines.
                tracing::warn!(
                    uid = holder.uid.as_raw(),
                    "another user holds the lock of this host: it is not waited for"
                );
                Ok(Self { _name: None })
            }
            Err(e) => Err(failed(e)),
        }
    }
}
