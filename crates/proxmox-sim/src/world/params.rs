//! How parameters arrive: query, form, JSON, with the decoding the real server has.

use super::answers::Refusal;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use std::collections::BTreeMap;

/// The parameters of a call. Values are strings, or arrays, objects and nulls that a
/// check will refuse or a call will skip.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Params(pub(super) BTreeMap<String, Value>);

impl Params {
    /// A value as text; `None` when it is not there or null.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    /// A boolean that was checked before.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.text(name) == Some("1")
    }

    /// A whole number that was checked before.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.text(name).and_then(|text| text.parse().ok())
    }

    pub(super) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.0.insert(name.to_owned(), Value::String(value.into()));
    }

    fn add(&mut self, name: String, value: String) {
        match self.0.get_mut(&name) {
            None => {
                self.0.insert(name, Value::String(value));
            }
            Some(Value::Array(values)) => values.push(Value::String(value)),
            Some(first) => {
                let first_value = first.take();
                *first = Value::Array(vec![first_value, Value::String(value)]);
            }
        }
    }

    /// Decodes `a=1&b=2`: split at `&` and `;`, and of every pair only the first two parts
    /// around `=` count.
    pub(super) fn decode_form(text: &str) -> Self {
        let mut params = Self::default();
        for pair in text.split(['&', ';']).filter(|pair| !pair.is_empty()) {
            let mut parts = pair.split('=');
            let name = decode(parts.next().unwrap_or_default());
            let value = decode(parts.next().unwrap_or_default());
            if name != "_dc" {
                params.add(name, value);
            }
        }
        params
    }

    /// Decodes a JSON object; numbers and booleans become text.
    pub(super) fn decode_json(body: &[u8]) -> Result<Self, Refusal> {
        let text = String::from_utf8_lossy(body);
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let object: serde_json::Map<String, Value> =
            serde_json::from_str(&text).map_err(|error| malformed(&text, &error))?;
        Ok(Self(
            object
                .into_iter()
                .map(|(name, value)| {
                    let value = match value {
                        Value::Bool(yes) => Value::String(u8::from(yes).to_string()),
                        Value::Number(number) => Value::String(number.to_string()),
                        other => other,
                    };
                    (name, value)
                })
                .collect(),
        ))
    }

    /// Adds those of the query, which win.
    pub(super) fn overlay(&mut self, query: Self) {
        self.0.extend(query.0);
    }
}

/// The text of Perl's JSON decoder, as far as the cut-off documents that clients send go.
fn malformed(text: &str, error: &serde_json::Error) -> Refusal {
    let offset = if error.is_eof() {
        text.len()
    } else {
        error.column().saturating_sub(1)
    };
    let rest = match text.get(offset..) {
        Some("") | None => "(end of string)",
        Some(rest) => rest,
    };
    Refusal::plain(
        500,
        &format!(
            "malformed JSON string, neither tag, array, object, number, string or atom, at character offset {offset} (before \"{rest}\") at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 934.\n"
        ),
    )
}

/// Percent-decoding where `+` is a space.
fn decode(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unencoded_property_string_loses_all_behind_its_second_equals_sign() {
        let params = Params::decode_form("net0=virtio=AA,bridge=vmbr0&tags=a;b=1&_dc=1");
        assert_eq!(params.text("net0"), Some("virtio"));
        assert_eq!(params.text("tags"), Some("a"));
        assert_eq!(params.text("b"), Some("1"));
        assert_eq!(params.0.len(), 3);
    }

    #[test]
    fn a_repeated_key_becomes_an_array() {
        let params = Params::decode_form("memory=256&memory=300");
        assert!(params.0["memory"].is_array());
    }
}
