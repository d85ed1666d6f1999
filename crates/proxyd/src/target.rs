//! Where a request wants to go, parsed once into a type that can only be right.
//!
//! What two readers could understand differently is refused rather than guessed: user names
//! in the authority, bare IPv6, zone ids, IPv4 in octal, hexadecimal or short form, ports
//! out of range.

use http::{HeaderValue, Uri};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The longest name, in bytes, without the dot at its end (RFC 1035, 2.3.4).
const NAME_BYTES: usize = 253;
/// The longest label of a name, in bytes.
const LABEL_BYTES: usize = 63;
/// The port of `http://` without one.
const HTTP_PORT: u16 = 80;

/// A host: an address, or a name in lower case without the dot at its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Host {
    Ip(IpAddr),
    Name(Box<str>),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Ip(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A host and a port; the port is never 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Why a request's target is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TargetError {
    #[error("a proxy request names its target in full: GET http://host/path, or CONNECT host:port")]
    NotAbsolute,
    #[error("only http:// is forwarded; use CONNECT host:port for anything else")]
    Scheme,
    #[error("a CONNECT target is host:port")]
    NoPort,
    #[error("the target's port is not a number from 1 to 65535")]
    Port,
    #[error("credentials do not belong in the target")]
    Credentials,
    #[error("the target's host is not a name, an IPv4 address or a bracketed IPv6 address")]
    Host,
}

impl Target {
    /// The target of an absolute-form request, `http://` only, with the `Host` value that
    /// the target must be sent: the received one is ignored (RFC 9112, 3.2.2).
    pub(crate) fn of_absolute(uri: &Uri) -> Result<(Self, HeaderValue), TargetError> {
        match uri.scheme_str() {
            Some("http") => {}
            Some(_) => return Err(TargetError::Scheme),
            None => return Err(TargetError::NotAbsolute),
        }
        let authority = uri.authority().ok_or(TargetError::NotAbsolute)?.as_str();
        let (host, port) = parse_authority(authority)?;
        let field = HeaderValue::from_str(authority.strip_suffix(':').unwrap_or(authority))
            .map_err(|_| TargetError::Host)?;
        Ok((
            Self {
                host,
                port: port.unwrap_or(HTTP_PORT),
            },
            field,
        ))
    }

    /// The target of a CONNECT request, which must name a port (RFC 9110, 9.3.6).
    pub(crate) fn of_connect(uri: &Uri) -> Result<Self, TargetError> {
        if uri.scheme().is_some() || uri.path_and_query().is_some() {
            return Err(TargetError::NoPort);
        }
        let authority = uri.authority().ok_or(TargetError::NoPort)?;
        let (host, port) = parse_authority(authority.as_str())?;
        Ok(Self {
            host,
            port: port.ok_or(TargetError::NoPort)?,
        })
    }
}

/// `host`, `host:` or `host:port`.
fn parse_authority(text: &str) -> Result<(Host, Option<u16>), TargetError> {
    if text.contains('@') {
        return Err(TargetError::Credentials);
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']').ok_or(TargetError::Host)?;
        let address: Ipv6Addr = inside.parse().map_err(|_| TargetError::Host)?;
        let port = match after.strip_prefix(':') {
            Some(digits) => parse_port(digits)?,
            None if after.is_empty() => None,
            None => return Err(TargetError::Host),
        };
        // One spelling for one destination: later checks must not see two.
        return Ok((Host::Ip(IpAddr::V6(address).to_canonical()), port));
    }
    let (host, port) = match text.split_once(':') {
        Some((host, digits)) => (host, parse_port(digits)?),
        None => (text, None),
    };
    Ok((parse_host(host)?, port))
}

fn parse_port(digits: &str) -> Result<Option<u16>, TargetError> {
    if digits.is_empty() {
        return Ok(None);
    }
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TargetError::Port);
    }
    match digits.parse() {
        Ok(0) | Err(_) => Err(TargetError::Port),
        Ok(port) => Ok(Some(port)),
    }
}

fn parse_host(text: &str) -> Result<Host, TargetError> {
    let name = text.strip_suffix('.').unwrap_or(text);
    if let Ok(address) = name.parse::<Ipv4Addr>() {
        return Ok(Host::Ip(IpAddr::V4(address)));
    }
    let mut last = "";
    if name.len() > NAME_BYTES {
        return Err(TargetError::Host);
    }
    for label in name.split('.') {
        let letters = label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if label.is_empty() || label.len() > LABEL_BYTES || !letters {
            return Err(TargetError::Host);
        }
        last = label;
    }
    // A name whose last label is a number is an IPv4 address to some readers and a name to
    // others: `127.1`, `0x7f000001`, `017700000001`.
    let hexadecimal = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    if last.bytes().all(|b| b.is_ascii_digit())
        || hexadecimal.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        return Err(TargetError::Host);
    }
    Ok(Host::Name(name.to_ascii_lowercase().into_boxed_str()))
}

#[cfg(test)]
mod tests;
