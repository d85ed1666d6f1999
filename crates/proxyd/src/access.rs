//! Who may use the proxy: by network, then by credentials.

use egress_core::proxy_config::{Auth, Verifier};
use http::{HeaderMap, header::PROXY_AUTHORIZATION};
use ipnet::{IpNet, Ipv4Net};
use std::net::IpAddr;
use subtle::{Choice, ConstantTimeEq};

/// The allowed networks and credentials, ready to be asked.
pub(crate) struct Access {
    networks: Vec<IpNet>,
    verifiers: Option<Vec<Verifier>>,
    generation: u32,
}

impl Access {
    pub(crate) fn new(clients: &[IpNet], auth: &Auth) -> Self {
        let (verifiers, generation) = match auth {
            Auth::None {} => (None, 0),
            Auth::Basic {
                verifiers,
                generation,
            } => (Some(verifiers.clone()), *generation),
        };
        Self {
            networks: clients.iter().map(canonical).collect(),
            verifiers,
            generation,
        }
    }

    /// The generation of the credentials in force; 0 without auth.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether a client may connect; the address is already canonical.
    pub(crate) fn admits(&self, client: IpAddr) -> bool {
        self.networks.is_empty()
            || self
                .networks
                .iter()
                .any(|network| network.contains(&client))
    }

    /// Whether a request's credentials are right, or none are asked for.
    pub(crate) fn accepts(&self, headers: &HeaderMap) -> bool {
        let Some(verifiers) = &self.verifiers else {
            return true;
        };
        let Some(offered) = offered(headers) else {
            return false;
        };
        // Every verifier is compared, so that the time says nothing about which one is near.
        let found = verifiers.iter().fold(Choice::from(0), |found, verifier| {
            found | verifier.as_bytes().ct_eq(offered.as_bytes())
        });
        found.into()
    }
}

/// The hash of the credential that a request carries; `None` for none, a broken or a doubled
/// one.
fn offered(headers: &HeaderMap) -> Option<Verifier> {
    let mut values = headers.get_all(PROXY_AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    if values.next().is_some() {
        return None;
    }
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = data_encoding::BASE64
        .decode(encoded.trim().as_bytes())
        .ok()?;
    Some(Verifier::of_pair(&pair))
}

/// An IPv4-mapped network as the IPv4 network it means, since clients are compared so.
fn canonical(network: &IpNet) -> IpNet {
    if let IpNet::V6(v6) = network
        && v6.prefix_len() >= 96
        && let Some(address) = v6.network().to_ipv4_mapped()
        && let Ok(v4) = Ipv4Net::new(address, v6.prefix_len() - 96)
    {
        return IpNet::V4(v4);
    }
    *network
}

#[cfg(test)]
mod tests;
