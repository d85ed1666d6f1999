//! What can keep the proxy from starting or running.

use egress_core::finding::Finding;
use std::{fmt, io, net::SocketAddr, path::PathBuf};

/// What can keep the proxy from starting or running; refusals to clients are answers, not
/// errors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is unreadable or wrong; every fault is listed.
    #[error("{}", Lines(.file.as_ref(), .findings))]
    Config {
        /// The file, where the configuration came from one.
        file: Option<PathBuf>,
        /// Every fault, at least one.
        findings: Vec<Finding>,
    },
    /// An address cannot be listened on or sent from.
    #[error("{field}: {address}: cannot be bound: {remedy}")]
    Bind {
        /// The configuration field that names the address.
        field: &'static str,
        /// The address.
        address: SocketAddr,
        /// What to do about it.
        remedy: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something else of the operating system.
    #[error("{step}")]
    Io {
        /// What was being done.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The kinds of [`Error`], for callers that must choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A person must change the configuration.
    Config,
    /// An address is taken or not on this host.
    Bind,
    /// The operating system refused something else.
    Io,
}

impl Error {
    /// The kind of this error.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Config { .. } => ErrorKind::Config,
            Self::Bind { .. } => ErrorKind::Bind,
            Self::Io { .. } => ErrorKind::Io,
        }
    }

    /// The exit code a process ends with: 2 for bad input, else 1.
    pub const fn exit_code(&self) -> u8 {
        match self.kind() {
            ErrorKind::Config => 2,
            ErrorKind::Bind | ErrorKind::Io => 1,
        }
    }
}

/// One finding a line, each with the file's name in front.
struct Lines<'a>(Option<&'a PathBuf>, &'a [Finding]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.1.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            if let Some(file) = self.0 {
                write!(f, "{}: ", file.display())?;
            }
            write!(f, "{finding}")?;
        }
        Ok(())
    }
}
