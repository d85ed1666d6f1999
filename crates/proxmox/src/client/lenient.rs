//! Numbers and booleans as Proxmox VE writes them: as JSON numbers here, as strings there,
//! across versions and between two answers of one version (§5.1, §5.4).

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

/// A whole number, or `None` when it is missing, null or empty.
pub(crate) fn number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    match Option::<Value>::deserialize(from)? {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(value) => whole(&value)
            .map(Some)
            .ok_or_else(|| D::Error::custom(format!("{value} is not a whole number"))),
    }
}

/// A whole number that must be there.
pub(crate) fn needed_number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    number(from)?.ok_or_else(|| D::Error::custom("a number is missing"))
}

/// A boolean; missing, null and empty are `false`.
pub(crate) fn truth<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    let value = Option::<Value>::deserialize(from)?.unwrap_or(Value::Null);
    as_truth(&value).ok_or_else(|| D::Error::custom(format!("{value} is not a boolean")))
}

/// A text, or a number as its text; `None` when it is missing or null.
pub(crate) fn text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let value = Option::<Value>::deserialize(from)?.unwrap_or(Value::Null);
    match value {
        Value::Null => Ok(None),
        value => as_text(&value)
            .map(Some)
            .ok_or_else(|| D::Error::custom(format!("{value} is not a text"))),
    }
}

/// The items of a list, split at `,`, `;` and white space as the API splits them (F9).
pub(crate) fn items<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(match Option::<Value>::deserialize(from)? {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(values)) => values.iter().filter_map(as_text).collect(),
        Some(value) => split(&as_text(&value).ok_or_else(|| D::Error::custom("not a list"))?),
    })
}

/// Splits a list as the API does.
pub(crate) fn split(text: &str) -> Vec<String> {
    text.split(|c: char| matches!(c, ',' | ';' | '\0') || c.is_whitespace())
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}

fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::Number(n) => n.as_u64().or_else(|| {
            n.as_f64()
                .filter(|f| (0.0..9e15).contains(f))
                .map(|f| f as u64)
        }),
        Value::String(text) => {
            let text = text.trim();
            text.parse().ok().or_else(|| {
                text.parse()
                    .ok()
                    .filter(|f: &f64| (0.0..9e15).contains(f))
                    .map(|f| f as u64)
            })
        }
        Value::Bool(b) => Some(u64::from(*b)),
        _ => None,
    }
}

/// A boolean in any of its spellings.
pub(crate) fn as_truth(value: &Value) -> Option<bool> {
    match value {
        Value::Null => Some(false),
        Value::Bool(b) => Some(*b),
        Value::Number(n) => n.as_f64().map(|f| f != 0.0),
        Value::String(text) => match text.trim().to_ascii_lowercase().as_str() {
            "" | "0" | "no" | "off" | "false" => Some(false),
            "1" | "yes" | "on" | "true" => Some(true),
            _ => None,
        },
        _ => None,
    }
}

/// A scalar as text; booleans as `0` and `1`.
pub(crate) fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(n) => Some(n.to_string()),
        Value::Bool(b) => Some(String::from(if *b { "1" } else { "0" })),
        _ => None,
    }
}
