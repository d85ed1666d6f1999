//! What a machine takes from the seed in its drive.

use super::iso9660;
use serde_json::Value;
use std::net::IpAddr;

/// Why a machine has no proxy from its drive.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoSeed {
    /// The image cannot be read.
    #[error("the image cannot be read: {0}")]
    Unreadable(#[from] iso9660::Unreadable),
    /// The image is none that cloud-init takes.
    #[error("its label is `{0}`, not `cidata`")]
    Label(String),
    /// A file is missing that must be there.
    #[error("it has no file `{0}`")]
    Missing(&'static str),
    /// cloud-init does not take it for a new machine.
    #[error("its meta-data has no instance-id")]
    NoInstance,
    /// The proxy's configuration is none.
    #[error("its proxyd.json is no configuration: {0}")]
    Config(String),
}

/// What a seed has for a machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found<'a> {
    /// The proxy's configuration, as JSON that only the proxy understands.
    pub(super) config: Value,
    /// The proxy's program; without one it is in the image.
    pub(super) program: Option<&'a [u8]>,
    /// Whether the machine gets a guest agent from it, or has one in its image.
    pub(super) agent: bool,
}

/// What is on a seed.
pub(super) fn read(image: &[u8]) -> Result<Found<'_>, NoSeed> {
    let image = iso9660::read(image)?;
    if !image.label.eq_ignore_ascii_case("cidata") {
        return Err(NoSeed::Label(image.label));
    }
    let file = |name: &'static str| image.files.get(name).copied().ok_or(NoSeed::Missing(name));
    let meta_data = String::from_utf8_lossy(file("meta-data")?);
    if !meta_data
        .lines()
        .any(|line| line.starts_with("instance-id:"))
    {
        return Err(NoSeed::NoInstance);
    }
    file("user-data")?;
    let program = image.files.get("proxyd").copied();
    if program.is_some() {
        // A program that nothing starts is none.
        file("vendor-data")?;
        file("proxyd.service")?;
    }
    let vendor_data = image.files.get("vendor-data").copied().unwrap_or_default();
    let vendor_data = String::from_utf8_lossy(vendor_data);
    let agent = program.is_none()
        || image.files.contains_key("egress-proxies-agent.service")
        || vendor_data.contains("filename: egress-proxies-agent");
    let config: Value = serde_json::from_slice(file("proxyd.json")?)
        .map_err(|error| NoSeed::Config(error.to_string()))?;
    if config.get("listen").and_then(Value::as_str).is_none() {
        return Err(NoSeed::Config("no `listen`".to_owned()));
    }
    Ok(Found {
        config,
        program,
        agent,
    })
}

/// A configuration with the machine's own address where it says any.
pub(super) fn at(config: &Value, address: IpAddr) -> Value {
    let mut config = config.clone();
    for key in ["listen", "management"] {
        if let Some(listen) = config.get_mut(key)
            && let Some(port) = listen
                .as_str()
                .and_then(|listen| listen.rsplit_once(':'))
                .map(|(_, port)| port.to_owned())
        {
            *listen = Value::String(format!("{address}:{port}"));
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_listener_moves_to_the_machines_address() {
        let config = json!({"listen": "0.0.0.0:3128", "management": "[::1]:9090", "key": "px-a"});
        assert_eq!(
            at(&config, [127, 64, 0, 100].into()),
            json!({"listen": "127.64.0.100:3128", "management": "127.64.0.100:9090", "key": "px-a"})
        );
    }

    #[test]
    fn an_image_that_is_no_seed_says_why() {
        assert_eq!(
            read(&vec![0; 40_000]).expect_err("no seed").to_string(),
            "the image cannot be read: no primary volume descriptor"
        );
        assert!(read(b"abc").is_err());
    }
}
