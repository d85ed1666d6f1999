//! The way to a host's libvirt: one stream of bytes a connection.

mod ssh;
mod tls;

use super::{
    errors::class,
    failure::{Failure, Kind},
    procedure::Effect,
    uri::{HostUri, Transport},
};
pub use ssh::Tunnel;
use std::{
    fmt, io,
    path::{Path, PathBuf},
};
pub use tls::TlsFiles;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

/// Where libvirt's sockets are: of the one daemon, and of the one for QEMU alone.
const SOCKETS: [&str; 2] = [
    "/var/run/libvirt/libvirt-sock",
    "/var/run/libvirt/virtqemud-sock",
];

/// Bytes both ways.
pub trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// Opens streams to one host.
pub struct Dialer {
    uri: HostUri,
    files: TlsFiles,
    tunnel: Tunnel,
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer")
            .field("uri", &self.uri)
            .finish_non_exhaustive()
    }
}

impl Dialer {
    /// To the host of this URI. The files matter for TLS alone, and are read again for each
    /// connection.
    pub fn new(uri: HostUri, files: TlsFiles) -> Self {
        Self {
            uri,
            files,
            tunnel: Tunnel::new(PathBuf::from("ssh")),
        }
    }

    /// The same with another program in the place of `ssh`.
    #[must_use]
    pub fn with_ssh(mut self, program: PathBuf) -> Self {
        self.tunnel = Tunnel::new(program);
        self
    }

    /// The host's URI.
    pub const fn uri(&self) -> &HostUri {
        &self.uri
    }

    /// A stream of its own.
    pub async fn dial(&self) -> Result<Box<dyn Bytes>, Failure> {
        match self.uri.transport() {
            Transport::Unix(Some(path)) => self.socket(path).await,
            Transport::Unix(None) => {
                let first = self.socket(Path::new(SOCKETS[0])).await;
                match first {
                    Ok(stream) => Ok(stream),
                    Err(failure) => self
                        .socket(Path::new(SOCKETS[1]))
                        .await
                        .map_err(|_| failure),
                }
            }
            Transport::Tls { host, port } => {
                let stream = tls::connect(host, *port, &self.files).await;
                let stream = stream.map_err(|(kind, said)| self.failure(kind, said))?;
                Ok(Box::new(stream))
            }
            Transport::Ssh {
                user,
                host,
                port,
                socket,
            } => {
                let target = ssh::Target {
                    user: user.as_deref(),
                    host,
                    port: *port,
                    socket: socket.as_deref().unwrap_or(Path::new(SOCKETS[0])),
                };
                let stream = self.tunnel.connect(&target).await;
                let stream = stream.map_err(|(kind, said)| self.failure(kind, said))?;
                Ok(Box::new(stream))
            }
        }
    }

    /// What the way there had to say about a stream that ended before its first answer: `ssh`
    /// takes a connection before it knows whether the other side lets it through.
    pub async fn last_words(&self) -> Option<String> {
        match self.uri.transport() {
            Transport::Ssh { .. } => self.tunnel.last_words().await,
            Transport::Unix(_) | Transport::Tls { .. } => None,
        }
    }

    async fn socket(&self, path: &Path) -> Result<Box<dyn Bytes>, Failure> {
        let stream = UnixStream::connect(path).await.map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::PermissionDenied => Kind::AccessDenied,
                _ => Kind::NotSent,
            };
            let said = format!("the socket {}: {}", path.display(), error.kind());
            self.failure(kind, said)
        })?;
        Ok(Box::new(stream))
    }

    fn failure(&self, kind: Kind, said: String) -> Failure {
        Failure {
            // Nothing of libvirt's was sent on a stream that is not there.
            class: class(kind, Effect::Reads),
            kind,
            code: None,
            asked: format!("connecting to {}", self.uri),
            said,
        }
    }
}
