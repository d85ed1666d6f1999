//! Where a libvirt host is, written as libvirt writes it.

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use std::{fmt, path::PathBuf, str::FromStr};

/// The port of libvirt's TLS socket.
const TLS_PORT: u16 = 16514;

/// How the host is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// A socket of this host; `None` looks where libvirt puts it.
    Unix(Option<PathBuf>),
    /// TLS with certificates on both sides.
    Tls {
        /// A name or address that the host's certificate holds.
        host: String,
        /// Its port.
        port: u16,
    },
    /// A socket of that host, forwarded by `ssh`.
    Ssh {
        /// What `ssh` is to log in as; `None` leaves it to its configuration.
        user: Option<String>,
        /// The host, or its name in ssh's configuration.
        host: String,
        /// The port; `None` leaves it to ssh's configuration.
        port: Option<u16>,
        /// The socket over there; `None` looks where libvirt puts it.
        socket: Option<PathBuf>,
    },
}

/// The URI of a host: `qemu:///system`, `qemu+unix:///system?socket=/path`,
/// `qemu+tls://host/system` or `qemu+ssh://user@host/system`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostUri {
    text: String,
    transport: Transport,
}

/// A text that is no URI of a host, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}: {remedy}")]
pub struct BadUri {
    problem: &'static str,
    remedy: &'static str,
}

impl BadUri {
    /// What is wrong with it.
    pub const fn problem(&self) -> &'static str {
        self.problem
    }
    /// What to write instead.
    pub const fn remedy(&self) -> &'static str {
        self.remedy
    }
}

const fn bad(problem: &'static str, remedy: &'static str) -> BadUri {
    BadUri { problem, remedy }
}

const FORMS: &str = "write qemu:///system, qemu+unix:///system?socket=/path, qemu+tls://host/system or qemu+ssh://user@host/system";

impl HostUri {
    /// The driver that is opened at the other end.
    pub const DRIVER: &str = "qemu:///system";

    /// How it is reached.
    pub const fn transport(&self) -> &Transport {
        &self.transport
    }
    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for HostUri {
    type Err = BadUri;

    fn from_str(text: &str) -> Result<Self, BadUri> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or(bad("is no URI of libvirt", FORMS))?;
        let (authority, rest) = rest.split_once('/').ok_or(bad("names no driver", FORMS))?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        if path != "system" {
            return Err(bad(
                "is not the system's libvirt",
                "end the path with /system: machines of a session end with it",
            ));
        }
        let socket = socket(query)?;
        let transport = match scheme {
            "qemu" | "qemu+unix" if !authority.is_empty() => {
                return Err(bad(
                    "names a host without saying how to reach it",
                    "write qemu+tls:// or qemu+ssh:// for another host",
                ));
            }
            "qemu" | "qemu+unix" => Transport::Unix(socket),
            "qemu+tls" => {
                if socket.is_some() {
                    return Err(bad("has a socket that TLS does not use", "remove ?socket="));
                }
                let place = Authority::parse(authority)?;
                if place.user.is_some() {
                    return Err(bad(
                        "names a user",
                        "remove it: with TLS the client's certificate says who asks",
                    ));
                }
                Transport::Tls {
                    host: place.host,
                    port: place.port.unwrap_or(TLS_PORT),
                }
            }
            "qemu+ssh" => {
                let place = Authority::parse(authority)?;
                Transport::Ssh {
                    user: place.user,
                    host: place.host,
                    port: place.port,
                    socket,
                }
            }
            _ => return Err(bad("is reached in no way that is known here", FORMS)),
        };
        Ok(Self {
            text: text.to_owned(),
            transport,
        })
    }
}

struct Authority {
    user: Option<String>,
    host: String,
    port: Option<u16>,
}

impl Authority {
    fn parse(text: &str) -> Result<Self, BadUri> {
        let (user, place) = match text.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, text),
        };
        if user.is_some_and(|user| !is_plain(user)) {
            // Shown by nobody: it might hold a password.
            return Err(bad(
                "has a user that is more than a name",
                "write letters, digits, `.`, `-` and `_`, and no password: keys and certificates say who asks",
            ));
        }
        let (host, port) = if let Some(rest) = place.strip_prefix('[') {
            let (host, rest) = rest
                .split_once(']')
                .ok_or(bad("has an address without its `]`", FORMS))?;
            (host, rest.strip_prefix(':').filter(|p| !p.is_empty()))
        } else {
            match place.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            }
        };
        let is_address = place.starts_with('[') && host.parse::<std::net::Ipv6Addr>().is_ok();
        if !is_address && !is_plain(host) {
            return Err(bad(
                "names no host",
                "write a name, an IPv4 address, or an IPv6 address in brackets",
            ));
        }
        let port = port
            .map(|port| port.parse::<u16>().ok().filter(|port| *port > 0))
            .map(|port| port.ok_or(bad("has a port that is none", "use 1 to 65535")))
            .transpose()?;
        Ok(Self {
            user: user.map(str::to_owned),
            host: host.to_owned(),
            port,
        })
    }
}

/// Letters, digits, `.`, `-` and `_`, and no hyphen first: `ssh` would take it for an option.
fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn socket(query: &str) -> Result<Option<PathBuf>, BadUri> {
    let mut socket = None;
    for parameter in query.split('&').filter(|p| !p.is_empty()) {
        let Some(("socket", value)) = parameter.split_once('=') else {
            return Err(bad(
                "has a parameter that is not known here",
                "use ?socket=/path alone; certificates are named in the provider's block",
            ));
        };
        let path = percent_decode_str(value)
            .decode_utf8()
            .map_err(|_| bad("has a socket that is no text", "write the path in UTF-8"))?;
        let forwardable = path.bytes().all(|b| b > b' ' && !b":\"'\\".contains(&b));
        if !path.starts_with('/') || !forwardable {
            return Err(bad(
                "has a socket that is no absolute path",
                "write ?socket=/path/of/the/socket, without blanks, quotes and colons",
            ));
        }
        socket = Some(PathBuf::from(path.as_ref()));
    }
    Ok(socket)
}

impl TryFrom<String> for HostUri {
    type Error = BadUri;
    fn try_from(text: String) -> Result<Self, BadUri> {
        text.parse()
    }
}

impl From<HostUri> for String {
    fn from(uri: HostUri) -> Self {
        uri.text
    }
}

impl fmt::Display for HostUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transport(text: &str) -> Transport {
        text.parse::<HostUri>().unwrap().transport
    }

    #[test]
    fn every_form_is_read() {
        assert_eq!(transport("qemu:///system"), Transport::Unix(None));
        assert_eq!(
            transport("qemu+unix:///system?socket=%2Frun%2Fa-b%2Flibvirt-sock"),
            Transport::Unix(Some("/run/a-b/libvirt-sock".into()))
        );
        assert_eq!(
            transport("qemu+tls://kvm-1.example/system"),
            Transport::Tls {
                host: "kvm-1.example".into(),
                port: 16514
            }
        );
        assert_eq!(
            transport("qemu+tls://[2001:db8::7]:99/system"),
            Transport::Tls {
                host: "2001:db8::7".into(),
                port: 99
            }
        );
        assert_eq!(
            transport("qemu+ssh://egress@kvm-1:2222/system?socket=/run/x"),
            Transport::Ssh {
                user: Some("egress".into()),
                host: "kvm-1".into(),
                port: Some(2222),
                socket: Some("/run/x".into())
            }
        );
    }

    #[test]
    fn what_is_none_is_refused_with_what_to_write() {
        for (text, problem) in [
            ("qemu", "is no URI of libvirt"),
            ("qemu:///session", "is not the system's libvirt"),
            ("qemu://kvm-1/system", "without saying how"),
            ("xen:///system", "no way that is known"),
            ("qemu+tcp://kvm-1/system", "no way that is known"),
            ("qemu+ssh://root:secret@kvm-1/system", "more than a name"),
            ("qemu+ssh://-oProxyCommand=x/system", "names no host"),
            ("qemu+ssh://kvm-1:0/system", "has a port that is none"),
            ("qemu+tls:///system", "names no host"),
            ("qemu+tls://a@kvm-1/system", "names a user"),
            ("qemu+tls://kvm-1/system?no_verify=1", "not known here"),
            ("qemu+unix:///system?socket=run/x", "no absolute path"),
            ("qemu+unix:///system?socket=/run/x%20y", "no absolute path"),
        ] {
            let error = text.parse::<HostUri>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
