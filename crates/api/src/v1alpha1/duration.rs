//! Durations as Kubernetes writes them: `30s`, `1m30s`, `500ms`.

use serde::{Deserialize, Deserializer, Serialize, de};
use std::{fmt, time::Duration};

/// A duration as written; [`DurationText::parse`] tells what it means. Kept as a text, so that
/// an object with a bad one can still be read, and its fault be told in its status.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct DurationText(String);

impl DurationText {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// What it means.
    pub fn parse(&self) -> Result<Duration, InvalidDuration> {
        parse_duration(&self.0)
    }
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = DurationText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as 30s")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<DurationText, E> {
                Ok(DurationText(text.to_owned()))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// A text that is no duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidDuration;

impl fmt::Display for InvalidDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not whole numbers with the units h, m, s, ms")
    }
}

impl std::error::Error for InvalidDuration {}

/// The longest text of a duration.
pub(super) const MAX_DURATION_CHARS: usize = 32;

/// Reads whole numbers with units (`h`, `m`, `s`, `ms`), one or more: `1m30s`.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidDuration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() || rest.len() > MAX_DURATION_CHARS {
        return Err(InvalidDuration);
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.len()
            - tail
                .trim_start_matches(|c: char| c.is_ascii_alphabetic())
                .len();
        let (unit, tail) = tail.split_at(letters);
        let number: u64 = number.parse().map_err(|_| InvalidDuration)?;
        let millis = match unit {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return Err(InvalidDuration),
        };
        let part = number.checked_mul(millis).map(Duration::from_millis);
        total = part
            .and_then(|part| total.checked_add(part))
            .ok_or(InvalidDuration)?;
        rest = tail;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_whole_numbers_with_units() {
        for (text, millis) in [
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1h", 3_600_000),
            ("0s", 0),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for text in [
            "",
            "30",
            "s",
            "-1s",
            "1.5s",
            "1 s",
            "1d",
            "99999999999999999999s",
            "9999999999999999h",
            "000000000000000000000000000000001s",
        ] {
            assert_eq!(parse_duration(text), Err(InvalidDuration), "{text}");
        }
    }
}
