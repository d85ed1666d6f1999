//! The certificate authorities this client trusts, and what is wrong with a certificate.

use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::{
    error::Error,
    fmt, fs, io,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

/// What is wrong with a server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateTrouble {
    /// No authority of the CA file signed it.
    UnknownCa,
    /// It is for other names than the one in the URL.
    WrongName {
        /// The host of the URL.
        expected: String,
        /// The names in the certificate.
        presented: Vec<String>,
    },
    /// Its time is over.
    Expired {
        /// When it ended, in seconds since 1970, if told.
        not_after: Option<u64>,
    },
    /// Its time has not begun; perhaps a clock is wrong.
    NotYetValid {
        /// When it begins, in seconds since 1970, if told.
        not_before: Option<u64>,
    },
    /// Anything else that makes it unacceptable.
    Other(String),
}

impl fmt::Display for CertificateTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |seconds: &Option<u64>| {
            seconds
                .and_then(|s| i64::try_from(s).ok())
                .and_then(|s| jiff::Timestamp::from_second(s).ok())
                .map_or_else(|| "an unknown time".to_owned(), |t| t.to_string())
        };
        match self {
            Self::UnknownCa => {
                f.write_str("the server's certificate is not signed by an authority of the CA file")
            }
            Self::WrongName {
                expected,
                presented,
            } if presented.is_empty() => {
                write!(
                    f,
                    "the server's certificate names no host, and not {expected}"
                )
            }
            Self::WrongName {
                expected,
                presented,
            } => write!(
                f,
                "the server's certificate is for {}, not for {expected}",
                presented.join(", ")
            ),
            Self::Expired { not_after } => {
                write!(f, "the server's certificate expired at {}", time(not_after))
            }
            Self::NotYetValid { not_before } => write!(
                f,
                "the server's certificate is not valid before {}",
                time(not_before)
            ),
            Self::Other(text) => write!(f, "the server's certificate is not acceptable: {text}"),
        }
    }
}

impl CertificateTrouble {
    /// Finds it among an error and its sources. TLS libraries wrap it in I/O errors, whose
    /// `source` skips what they wrap.
    pub(crate) fn find(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(rustls::Error::InvalidCertificate(told)) = error.downcast_ref() {
                return Some(Self::from_rustls(told));
            }
            let inner = error
                .downcast_ref::<io::Error>()
                .and_then(io::Error::get_ref);
            if let Some(found) = inner.and_then(|inner| Self::find(inner)) {
                return Some(found);
            }
            next = error.source();
        }
        None
    }

    fn from_rustls(told: &CertificateError) -> Self {
        match told {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownCa,
            CertificateError::NotValidForNameContext {
                expected,
                presented,
            } => Self::WrongName {
                expected: expected.to_str().into_owned(),
                presented: presented.iter().map(|name| plain(name)).collect(),
            },
            CertificateError::NotValidForName => Self::WrongName {
                expected: "the host of the URL".to_owned(),
                presented: Vec::new(),
            },
            CertificateError::ExpiredContext { not_after, .. } => Self::Expired {
                not_after: Some(not_after.as_secs()),
            },
            CertificateError::Expired => Self::Expired { not_after: None },
            CertificateError::NotValidYetContext { not_before, .. } => Self::NotYetValid {
                not_before: Some(not_before.as_secs()),
            },
            CertificateError::NotValidYet => Self::NotYetValid { not_before: None },
            other => Self::Other(other.to_string()),
        }
    }
}

/// A presented name without the type that the library writes around it, as in
/// `DnsName("pve1")`.
fn plain(name: &str) -> String {
    name.split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'))
        .unwrap_or(name)
        .trim_matches('"')
        .to_owned()
}

/// The file with the authorities. It is opened when a connection needs it, and again when it
/// has changed.
pub(crate) struct CaFile {
    path: PathBuf,
    loaded: Mutex<Option<(Stamp, Arc<ClientConfig>)>>,
}

/// What tells one version of a file from the next.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl CaFile {
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self {
            path,
            loaded: Mutex::new(None),
        }
    }

    /// The TLS configuration that trusts the file as it is now. The same `Arc` comes back
    /// as long as the file is the same.
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, String> {
        let unreadable = |e: io::Error| {
            format!(
                "the CA file {} cannot be read: {}",
                self.path.display(),
                e.kind()
            )
        };
        let meta = fs::metadata(&self.path).map_err(unreadable)?;
        let stamp = Stamp {
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        };
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, config)) = &*loaded
            && *known == stamp
        {
            return Ok(Arc::clone(config));
        }
        let pem = fs::read(&self.path).map_err(unreadable)?;
        let config = Arc::new(
            trust(&pem).map_err(|why| format!("the CA file {} {why}", self.path.display()))?,
        );
        *loaded = Some((stamp, Arc::clone(&config)));
        Ok(config)
    }
}

fn trust(pem: &[u8]) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|e| format!("is not PEM: {e}"))?;
        roots
            .add(certificate)
            .map_err(|e| format!("holds a certificate that is no authority: {e}"))?;
    }
    if roots.is_empty() {
        return Err("holds no certificate".to_owned());
    }
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_root_certificates(roots).with_no_client_auth())
        .map_err(|e| e.to_string())
}
