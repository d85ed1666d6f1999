//! Fields that belong to one hop only (RFC 9110, 7.6.1) and are never passed on.

use http::{
    HeaderMap, HeaderName,
    header::{
        AUTHORIZATION, CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE,
    },
};

static KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
static PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Takes out the fields of this hop, those that `Connection` names included. Framing
/// (`Transfer-Encoding`) is put back by hyper from the body itself.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        // The usual words; they name no field, or one that goes below.
        .filter(|name| {
            !["close", "keep-alive"]
                .iter()
                .any(|word| name.eq_ignore_ascii_case(word))
        })
        .filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok())
        .collect();
    for name in &named {
        headers.remove(name);
    }
    for name in [
        &CONNECTION,
        &KEEP_ALIVE,
        &PROXY_AUTHENTICATE,
        &PROXY_AUTHORIZATION,
        &PROXY_CONNECTION,
        &TE,
        &TRAILER,
        &TRANSFER_ENCODING,
        &UPGRADE,
    ] {
        headers.remove(name);
    }
}

/// Whether a request authenticates the connection it goes over and not itself alone (RFC 4559):
/// whatever follows on that connection is answered as that client.
pub(crate) fn authenticates_connection(headers: &HeaderMap) -> bool {
    let schemes = headers.get_all(AUTHORIZATION).iter();
    let mut schemes = schemes.filter_map(|value| value.to_str().ok()?.split_whitespace().next());
    schemes.any(|scheme| {
        ["ntlm", "negotiate"]
            .iter()
            .any(|bound| scheme.eq_ignore_ascii_case(bound))
    })
}

#[cfg(test)]
mod tests;
