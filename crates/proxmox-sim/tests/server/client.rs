//! A simulator and a client that writes its own bytes.

use egress_proxmox_sim::{
    http::{Facts, GuestKind, Options, Running, serve},
    world::Setup,
};
use std::{fs, net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

pub(crate) const LONG: Duration = Duration::from_secs(20);

/// A simulator of its own, with its folder.
pub(crate) struct Bench {
    pub(crate) running: Running,
    folder: tempfile::TempDir,
}

impl Bench {
    pub(crate) async fn start() -> Self {
        Self::with(GuestKind::None).await
    }

    pub(crate) async fn with(guests: GuestKind) -> Self {
        Self::of(guests, None).await
    }

    pub(crate) async fn of(guests: GuestKind, setup: Option<Setup>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let running = serve(Options {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            guests,
            state_dir: folder.path().to_path_buf(),
            speed: 100.0,
            setup: setup.unwrap_or_default(),
        })
        .await
        .expect("a simulator");
        Self { running, folder }
    }

    pub(crate) fn facts(&self) -> &Facts {
        self.running.facts()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        address(&self.facts().url)
    }

    pub(crate) async fn connect(&self) -> TlsStream<TcpStream> {
        self.try_connect(self.address())
            .await
            .expect("a connection")
    }

    pub(crate) async fn try_connect(
        &self,
        at: SocketAddr,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        let pem = fs::read(&self.facts().ca_file).expect("the authority");
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            roots
                .add(certificate.expect("a certificate"))
                .expect("a root");
        }
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(at).await?;
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }

    pub(crate) fn authorization(&self) -> String {
        let token = fs::read_to_string(&self.facts().token_file).expect("the token");
        format!("Authorization: PVEAPIToken={}", token.trim())
    }

    /// One request on a connection of its own; the answer as text, until the server closes or
    /// the body is complete.
    pub(crate) async fn ask(&self, head: &str, body: &[u8]) -> String {
        let mut stream = self.connect().await;
        exchange(&mut stream, head, body).await
    }

    pub(crate) async fn control(&self, body: &str) -> String {
        let at = self
            .facts()
            .control_url
            .trim_start_matches("http://")
            .trim_end_matches('/');
        let mut stream = TcpStream::connect(at).await.expect("the control URL");
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer
    }
}

/// The address in a node's URL.
pub(crate) fn address(url: &str) -> SocketAddr {
    let at = url.trim_start_matches("https://");
    at.parse().expect("an address")
}

pub(crate) async fn exchange(stream: &mut TlsStream<TcpStream>, head: &str, body: &[u8]) -> String {
    let head = format!("{}\r\n\r\n", head.replace('\n', "\r\n"));
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream.write_all(body).await.expect("sent");
    answer(stream).await
}

pub(crate) async fn answer(stream: &mut TlsStream<TcpStream>) -> String {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "))
                .and_then(|length| length.parse::<usize>().ok());
            if length.is_some_and(|length| body.len() >= length) {
                return text;
            }
        }
        match timeout(LONG, stream.read_buf(&mut read))
            .await
            .expect("in time")
        {
            Ok(0) | Err(_) => return String::from_utf8_lossy(&read).into_owned(),
            Ok(_) => {}
        }
    }
}
