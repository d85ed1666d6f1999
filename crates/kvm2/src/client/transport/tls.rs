//! TLS with certificates on both sides, as libvirt's `libvirtd-tls.socket` speaks it. After the
//! handshake the server sends one byte of its own: 1 once it has accepted our certificate.

use crate::client::failure::Kind;
use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::{io::AsyncReadExt, net::TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// The files that a TLS connection needs, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authority that signed the hosts' certificates.
    pub ca: PathBuf,
    /// Our certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

type Trouble = (Kind, String);

pub(super) async fn connect(
    host: &str,
    port: u16,
    files: &TlsFiles,
) -> Result<TlsStream<TcpStream>, Trouble> {
    let config = configuration(files).map_err(|said| (Kind::FilesUnusable, said))?;
    let name = ServerName::try_from(host.to_owned()).map_err(|_| {
        (
            Kind::CertificateInvalid,
            format!("{host} is no name of a host"),
        )
    })?;
    let not_sent = |what: &str, error: &io::Error| (Kind::NotSent, format!("{what}: {error}"));
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(|error| not_sent("no connection", &error))?;
    let _latency_only = stream.set_nodelay(true);
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|error| {
            refusal(host, files, &error).unwrap_or_else(|| not_sent("no TLS", &error))
        })?;
    match stream.read_u8().await {
        Ok(1) => Ok(stream),
        Ok(_) => Err((
            Kind::UnexpectedAnswer,
            "the server does not speak libvirt's TLS".to_owned(),
        )),
        Err(error) => Err(refusal(host, files, &error).unwrap_or_else(|| {
            let said = format!(
                "the server ended the connection after the handshake ({}): it does not accept the certificate in {}",
                error.kind(),
                files.certificate.display()
            );
            (Kind::CertificateRefused, said)
        })),
    }
}

/// What the certificates had to do with a failed handshake.
fn refusal(host: &str, files: &TlsFiles, error: &io::Error) -> Option<Trouble> {
    let inner = error.get_ref()?;
    let mut next: Option<&(dyn Error + 'static)> = Some(inner);
    while let Some(error) = next {
        match error.downcast_ref::<rustls::Error>() {
            Some(rustls::Error::InvalidCertificate(why)) => {
                return Some(unacceptable(host, files, why));
            }
            Some(told @ rustls::Error::AlertReceived(_)) => {
                let file = files.certificate.display();
                let said = format!("the server refuses the certificate in {file}: {told}");
                return Some((Kind::CertificateRefused, said));
            }
            _ => next = error.source(),
        }
    }
    None
}

/// What is wrong with the certificate that the server shows.
fn unacceptable(host: &str, files: &TlsFiles, why: &CertificateError) -> Trouble {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => (
            Kind::CertificateUntrusted,
            format!(
                "the authority in {} did not sign the certificate that {host} shows",
                files.ca.display()
            ),
        ),
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => (
            Kind::CertificateExpired,
            format!("the certificate that {host} shows is not valid at this time: {why}"),
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => (
            Kind::CertificateForOthers,
            format!("the certificate that {host} shows is for another name: {why}"),
        ),
        _ => (
            Kind::CertificateInvalid,
            format!("the certificate that {host} shows is not acceptable: {why}"),
        ),
    }
}

fn configuration(files: &TlsFiles) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(&files.ca)? {
        roots.add(authority).map_err(|e| {
            let file = files.ca.display();
            format!("the CA file {file} holds a certificate that is no authority: {e}")
        })?;
    }
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
        .map_err(|_| format!("the key file {} holds no key in PEM", files.key.display()))?;
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|e| {
            let (certificate, key) = (files.certificate.display(), files.key.display());
            format!("{certificate} and {key} do not make a client: {e}")
        })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{} cannot be read: {}", path.display(), e.kind()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(&read(path)?)
        .collect::<Result<_, _>>()
        .map_err(|e| format!("{} is not PEM: {e}", path.display()))?;
    if found.is_empty() {
        return Err(format!("{} holds no certificate", path.display()));
    }
    Ok(found)
}
