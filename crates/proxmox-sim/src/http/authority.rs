//! The simulator's certificate authority.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use sha2::{Digest as _, Sha256};
use std::{
    fs, io,
    io::Write as _,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
    },
};

const CA_FILE: &str = "ca.pem";
const KEY_FILE: &str = "ca.key";

/// A certificate authority that outlives the simulator in its state folder.
pub(super) struct Authority {
    params: CertificateParams,
    key: KeyPair,
    file: PathBuf,
}

fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::other(error)
}

/// Writes a file that only its owner may read, whole or not at all.
pub(crate) fn write_secret(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

impl Authority {
    /// The authority in a folder, made there if there is none.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(
            DnType::CommonName,
            "Proxmox Virtual Environment (simulated)",
        );
        params
            .distinguished_name
            .push(DnType::OrganizationalUnitName, "PVE Cluster Manager CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let (file, key_file) = (folder.join(CA_FILE), folder.join(KEY_FILE));
        let key = match fs::read_to_string(&key_file) {
            Ok(pem) if file.exists() => KeyPair::from_pem(&pem).map_err(other)?,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {
                let key = KeyPair::generate().map_err(other)?;
                let certificate = params.self_signed(&key).map_err(other)?;
                write_secret(&key_file, &key.serialize_pem())?;
                fs::write(&file, certificate.pem())?;
                key
            }
        };
        Ok(Self { params, key, file })
    }

    /// The file with the authority's certificate.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// The SHA-256 of its certificate, as the API tells it: upper-case hex with colons.
    pub(super) fn fingerprint(&self) -> io::Result<String> {
        let certificate = CertificateDer::from_pem_file(&self.file).map_err(other)?;
        let digest = Sha256::digest(&certificate);
        let pairs: Vec<String> = digest.iter().map(|byte| format!("{byte:02X}")).collect();
        Ok(pairs.join(":"))
    }

    /// What a node's server needs for TLS under its name and an address.
    pub(super) fn acceptor(&self, node: &str, address: IpAddr) -> io::Result<TlsAcceptor> {
        let mut names = vec![
            "localhost".to_owned(),
            node.to_owned(),
            "127.0.0.1".to_owned(),
            "::1".to_owned(),
        ];
        if !address.is_unspecified() && !names.contains(&address.to_string()) {
            names.push(address.to_string());
        }
        let mut params = CertificateParams::new(names).map_err(other)?;
        params.distinguished_name.push(DnType::CommonName, node);
        params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ServerAuth);
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(other)?;
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate = params.signed_by(&key, &issuer).map_err(other)?;
        let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(other)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authority_stays_the_same_over_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = Authority::open(folder.path()).expect("an authority");
        let pem = fs::read_to_string(first.file()).expect("its certificate");
        let second = Authority::open(folder.path()).expect("the same");
        assert_eq!(
            fs::read_to_string(second.file()).expect("its certificate"),
            pem
        );
        assert_eq!(first.key.serialize_pem(), second.key.serialize_pem());
        let fingerprint = second.fingerprint().expect("a fingerprint");
        assert_eq!((fingerprint.len(), &fingerprint[2..3]), (95, ":"));
        assert!(second.acceptor("pve1", [127, 0, 0, 1].into()).is_ok());
    }
}
