//! Reading and checking the configuration file.

use crate::error::Error;
use egress_core::{
    finding::Finding,
    proxy_config::{Auth, ProxydConfig},
};
use std::{fs, path::Path};

/// Reads and checks a configuration file (JSON). Every fault is in the error, which is of
/// kind `Config`, also where the file is missing or unreadable.
pub fn load_config(path: &Path) -> Result<ProxydConfig, Error> {
    let refuse = |finding| Error::Config {
        file: Some(path.to_owned()),
        findings: vec![finding],
    };
    let text = fs::read(path).map_err(|error| {
        refuse(Finding::new(
            "(file)",
            "",
            error.to_string(),
            "name a readable JSON file",
        ))
    })?;
    let config: ProxydConfig = serde_json::from_slice(&text).map_err(|error| {
        let place = format!("line {} column {}", error.line(), error.column());
        refuse(Finding::new(
            "(file)",
            place,
            error.to_string(),
            "see docs/proxyd.md for the fields",
        ))
    })?;
    let findings = validate(&config);
    if findings.is_empty() {
        Ok(config)
    } else {
        Err(Error::Config {
            file: Some(path.to_owned()),
            findings,
        })
    }
}

/// Everything that is wrong with a configuration; empty means that it can be served.
pub fn validate(config: &ProxydConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut refuse = |path: &str, value: &str, problem: &str, remedy: &str| {
        findings.push(Finding::new(path, value, problem, remedy));
    };

    match &config.auth {
        Auth::None {} if config.clients.is_empty() => refuse(
            "auth",
            "none",
            "an open proxy: neither credentials nor a list of clients",
            "set auth.basic, or list the allowed networks in clients",
        ),
        Auth::None {} => {
            for (index, network) in config.clients.iter().enumerate() {
                if network.prefix_len() == 0 {
                    refuse(
                        &format!("clients[{index}]"),
                        &network.to_string(),
                        "an open proxy: without credentials this lets everyone in",
                        "set auth.basic, or name a narrower network",
                    );
                }
            }
        }
        Auth::Basic { verifiers, .. } if verifiers.is_empty() => refuse(
            "auth.basic.verifiers",
            "[]",
            "no credential could ever be accepted",
            "list at least one SHA-256 of user:password",
        ),
        Auth::Basic { .. } => {}
    }

    if config.key.is_empty() {
        refuse(
            "key",
            "",
            "the identity answer needs a name",
            "set the machine's name",
        );
    }
    if let Some(egress) = config.egress
        && (egress.is_unspecified() || egress.is_multicast())
    {
        refuse(
            "egress",
            &egress.to_string(),
            "not a source address",
            "name an address of this host, or leave the field out",
        );
    }
    if config.management == Some(config.listen) && config.listen.port() != 0 {
        refuse(
            "management",
            &config.listen.to_string(),
            "the same address as listen",
            "give the management page an address of its own",
        );
    }

    let limits = &config.limits;
    for (name, value, least) in [
        ("connections", limits.connections, 1),
        ("connectionsPerClient", limits.connections_per_client, 1),
        ("headerBytes", limits.header_bytes, 1024),
        ("headerSeconds", limits.header_seconds, 1),
        ("connectSeconds", limits.connect_seconds, 1),
        ("idleSeconds", limits.idle_seconds, 1),
    ] {
        if value < least {
            refuse(
                &format!("limits.{name}"),
                &value.to_string(),
                "too small",
                &format!("set {least} or more, or leave the field out"),
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests;
