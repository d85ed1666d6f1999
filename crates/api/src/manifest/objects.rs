//! The two kinds of Kubernetes that a Proxy may refer to.

use crate::v1alpha1::{Metadata, without_server_fields};
use data_encoding::BASE64;
use egress_core::{
    document::read_document,
    finding::{Finding, HIDDEN, shortened},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A `v1 Secret`. Its values are texts; `Debug` shows none of them.
#[derive(Clone, Debug)]
pub struct Secret {
    /// Names, labels and annotations.
    pub metadata: Metadata,
    /// `data` decoded, with `stringData` laid over it.
    pub data: BTreeMap<String, SecretString>,
}

/// A user name and password for HTTP Basic.
#[derive(Clone, Debug)]
pub struct BasicCredentials {
    /// The user name; never empty, without a colon (RFC 7617).
    pub username: String,
    /// The password; never empty.
    pub password: SecretString,
}

impl Secret {
    /// The credentials under the keys of `kubernetes.io/basic-auth`, `username` and
    /// `password`, or everything wrong with them.
    pub fn basic_credentials(&self) -> Result<BasicCredentials, Vec<Finding>> {
        let mut findings = Vec::new();
        let mut value_of = |key: &str, banned: &str| -> String {
            let Some(value) = self.data.get(key).map(ExposeSecret::expose_secret) else {
                let remedy = format!("add the key {key}");
                findings.push(Finding::new(
                    format!("data.{key}"),
                    "",
                    "is required",
                    remedy,
                ));
                return String::new();
            };
            let bad = |c: char| c.is_control() || banned.contains(c);
            let (problem, remedy) = if value.is_empty() {
                ("is empty", "write a text")
            } else if value.contains(bad) {
                (
                    "holds a character that HTTP Basic does not allow",
                    "take out line breaks and colons",
                )
            } else {
                return value.to_owned();
            };
            findings.push(Finding::new(format!("data.{key}"), HIDDEN, problem, remedy));
            String::new()
        };
        let username = value_of("username", ":");
        let password = SecretString::from(value_of("password", ""));
        if findings.is_empty() {
            Ok(BasicCredentials { username, password })
        } else {
            Err(findings)
        }
    }

    pub(super) fn read(mut document: Value) -> Result<Self, Vec<Finding>> {
        without_server_fields(&mut document);
        let read = read_document::<WrittenSecret>(document).checked(|secret| {
            let mut findings = secret.metadata.validate_names();
            findings.extend(keys("data", secret.data.keys()));
            findings.extend(keys("stringData", secret.string_data.keys()));
            for (key, encoded) in &secret.data {
                if let Err((problem, remedy)) = decoded(encoded) {
                    findings.push(Finding::new(key_path("data", key), HIDDEN, problem, remedy));
                }
            }
            findings
        });
        let written = read.into_result()?;
        let plain = written.string_data.into_iter();
        let mut data = BTreeMap::new();
        for (key, encoded) in written.data {
            if let Ok(value) = decoded(&encoded) {
                data.insert(key, value);
            }
        }
        data.extend(plain.map(|(key, value)| (key, SecretString::from(value))));
        Ok(Self {
            metadata: written.metadata,
            data,
        })
    }
}

/// A `v1 ConfigMap` of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigMap {
    /// Names, labels and annotations.
    pub metadata: Metadata,
    /// Its texts.
    pub data: BTreeMap<String, String>,
}

impl ConfigMap {
    pub(super) fn read(mut document: Value) -> Result<Self, Vec<Finding>> {
        without_server_fields(&mut document);
        let read = read_document::<WrittenConfigMap>(document).checked(|map| {
            let mut findings = map.metadata.validate_names();
            findings.extend(keys("data", map.data.keys()));
            findings
        });
        read.into_result().map(|written| Self {
            metadata: written.metadata,
            data: written.data,
        })
    }
}

/// A Secret as it is written. Without `Debug`, as its values are open.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenSecret {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: Metadata,
    #[serde(default, rename = "type")]
    _type: String,
    #[serde(default, rename = "immutable")]
    _immutable: bool,
    #[serde(default)]
    data: BTreeMap<String, String>,
    #[serde(default)]
    string_data: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenConfigMap {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: Metadata,
    #[serde(default, rename = "immutable")]
    _immutable: bool,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

/// The text behind a value of `data`.
fn decoded(encoded: &str) -> Result<SecretString, (&'static str, &'static str)> {
    // Line breaks are what `base64` puts in on its own.
    let packed: String = encoded
        .chars()
        .filter(|c| !c.is_ascii_whitespace())
        .collect();
    let bytes = BASE64.decode(packed.as_bytes()).map_err(|_| {
        (
            "is not base64",
            "encode it, or write it as it is under stringData",
        )
    })?;
    let text =
        String::from_utf8(bytes).map_err(|_| ("does not hold a text", "encode a text in UTF-8"))?;
    Ok(SecretString::from(text))
}

fn keys<'a>(field: &str, keys: impl Iterator<Item = &'a String>) -> Vec<Finding> {
    keys.filter(|key| !crate::v1alpha1::is_data_key(key))
        .map(|key| {
            Finding::new(
                key_path(field, key),
                HIDDEN,
                "is not a valid key",
                "use 1 to 253 of a-z, A-Z, 0-9, '-', '_' and '.'",
            )
        })
        .collect()
}

fn key_path(field: &str, key: &str) -> String {
    if crate::v1alpha1::is_data_key(key) && !key.contains('.') {
        format!("{field}.{key}")
    } else {
        format!("{field}[{}]", Value::from(shortened(key)))
    }
}
