//! What `serde` found wrong, kept as data until it becomes a finding.

use super::node::Node;
use crate::finding::{
    Finding, HIDDEN, is_secret_name, is_secret_path, listed, nearest, shortened, suggestion,
};
use serde::de::{self, Expected, Unexpected};
use serde_json::Value;
use std::fmt;

/// A map, in words.
const MAP: &str = "a map of fields";

/// One step of the way to a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    Field(String),
    Item(usize),
}

/// One fault; its place is noted on the way out, so the innermost step comes first.
#[derive(Debug)]
pub(super) struct Fault {
    steps: Vec<Segment>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    UnknownField {
        field: String,
        known: &'static [&'static str],
    },
    UnknownVariant {
        variant: String,
        known: &'static [&'static str],
        keyed: bool,
    },
    MissingField(&'static str),
    /// The wrong kind of value: `found` in the place of `expected`.
    Type {
        found: &'static str,
        expected: String,
    },
    /// The right kind of value, out of bounds.
    Bounds {
        expected: String,
    },
    /// An enum with `given` variants at once.
    Variants {
        given: usize,
        known: &'static [&'static str],
    },
    /// A variant with fields, written as a bare word.
    BareVariant(String),
    Other(String),
}

impl Fault {
    fn new(kind: Kind) -> Self {
        Self {
            steps: Vec::new(),
            kind,
        }
    }
    pub(super) fn variants(given: usize, known: &'static [&'static str]) -> Self {
        Self::new(Kind::Variants { given, known })
    }
    pub(super) fn bare_variant(variant: &str) -> Self {
        Self::new(Kind::BareVariant(variant.to_owned()))
    }
    pub(super) fn within_field(mut self, field: &str) -> Self {
        self.steps.push(Segment::Field(field.to_owned()));
        self
    }
    pub(super) fn within_item(mut self, index: usize) -> Self {
        self.steps.push(Segment::Item(index));
        self
    }
    /// Notes that an unknown variant was written as the key of a map.
    pub(super) fn keyed(mut self) -> Self {
        if let Kind::UnknownVariant { keyed, .. } = &mut self.kind {
            *keyed = true;
        }
        self
    }

    /// The way from the root to the value at fault, or to the struct that lacks a field or
    /// has one too many.
    pub(super) fn path(&self) -> Vec<Segment> {
        self.steps.iter().rev().cloned().collect()
    }
    pub(super) fn missing_field(&self) -> Option<&'static str> {
        match self.kind {
            Kind::MissingField(field) => Some(field),
            _ => None,
        }
    }
    pub(super) fn unknown_field(&self) -> Option<&str> {
        match &self.kind {
            Kind::UnknownField { field, .. } => Some(field),
            _ => None,
        }
    }

    /// The fault in words. `node` is what stands at `path`.
    pub(super) fn finding(&self, path: &[Segment], node: Option<&Node>) -> Finding {
        let mut place = path_text(path);
        let hidden = is_secret_path(&place);
        let value = node.map(Node::written).unwrap_or_default();
        let (problem, remedy) = match &self.kind {
            Kind::UnknownField { field, known } => {
                return misnamed(place, node, field, known, "unknown field");
            }
            Kind::UnknownVariant {
                variant,
                known,
                keyed: true,
            } => {
                return misnamed(place, node, variant, known, "unknown choice");
            }
            Kind::UnknownVariant { known, .. } if hidden => {
                ("unknown value".to_owned(), suggestion("", known))
            }
            Kind::UnknownVariant { variant, known, .. } => {
                ("unknown value".to_owned(), suggestion(variant, known))
            }
            Kind::MissingField(field) => {
                push_field(&mut place, field);
                let remedy = format!("add `{field}`");
                return Finding::new(place, "", "is required", remedy);
            }
            Kind::Type { found, expected } => {
                let wanted = in_words(expected);
                let remedy =
                    retyped(expected, node.filter(|_| !hidden)).unwrap_or_else(|| match wanted {
                        MAP => "write its fields below it".to_owned(),
                        _ => format!("write {wanted}"),
                    });
                (format!("must be {wanted}, not {found}"), remedy)
            }
            Kind::Bounds { expected } => match whole_number_range(expected) {
                Some(range) => ("is out of bounds".to_owned(), format!("write {range}")),
                None => (format!("is not {expected}"), format!("write {expected}")),
            },
            Kind::Variants { given: 0, known } => (
                "names no choice".to_owned(),
                format!("write one of {}", listed(known)),
            ),
            Kind::Variants { known, .. } => (
                "names more than one choice".to_owned(),
                format!("keep exactly one of {}", listed(known)),
            ),
            Kind::BareVariant(variant) if !hidden => (
                "must be a map of fields".to_owned(),
                format!("write {{{variant}: {{}}}}"),
            ),
            Kind::BareVariant(_) => (
                "must be a map of fields".to_owned(),
                "write its fields below it".to_owned(),
            ),
            Kind::Other(_) if hidden => (
                "is not valid".to_owned(),
                "compare it with the documentation".to_owned(),
            ),
            Kind::Other(text) => match text.rsplit_once(": ") {
                Some((problem, remedy)) => (problem.to_owned(), remedy.to_owned()),
                None => (text.clone(), "write a valid value".to_owned()),
            },
        };
        Finding::new(place, value, problem, remedy)
    }
}

/// A name that is not known, written at `place`, and what to write instead. Its value is no
/// part of the fault, and may be a secret under a misspelt name: of texts nothing is shown.
fn misnamed(
    mut place: String,
    node: Option<&Node>,
    name: &str,
    known: &[&str],
    problem: &str,
) -> Finding {
    push_field(&mut place, name);
    let value = node.and_then(|node| node.child(name));
    let secret = nearest(name, known).is_some_and(is_secret_name);
    let shown = match value {
        Some(Node::Text(_)) | None => HIDDEN.to_owned(),
        Some(_) if secret => HIDDEN.to_owned(),
        Some(value) => value.written(),
    };
    Finding::new(place, shown, problem, suggestion(name, known))
}

/// The path as people read it: `spec.clients[1]`, `metadata.labels["a.b/c"]`.
fn path_text(path: &[Segment]) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Field(field) => push_field(&mut text, field),
            Segment::Item(index) => push_bracket(&mut text, &index.to_string()),
        }
    }
    text
}

fn push_field(text: &mut String, field: &str) {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if field.is_empty() || !field.chars().all(plain) {
        push_bracket(text, &Value::from(shortened(field)).to_string());
        return;
    }
    if !text.is_empty() {
        text.push('.');
    }
    text.push_str(field);
}

fn push_bracket(text: &mut String, inner: &str) {
    text.push('[');
    text.push_str(inner);
    text.push(']');
}

/// What `serde` expects, in words. Only the wording depends on the texts matched here.
fn in_words(expected: &str) -> &str {
    match expected {
        "a boolean" => "true or false",
        "f32" | "f64" => "a number",
        "a string" | "a character" => "a text",
        "a sequence" => "a list",
        "a map" => MAP,
        _ if whole_number_range(expected).is_some() => "a whole number",
        _ if expected.starts_with("struct ") => MAP,
        other => other,
    }
}

fn whole_number_range(expected: &str) -> Option<String> {
    let (least, most): (i128, i128) = match expected {
        "u8" => (0, u8::MAX.into()),
        "u16" => (0, u16::MAX.into()),
        "u32" => (0, u32::MAX.into()),
        "u64" | "usize" => (0, u64::MAX.into()),
        "i8" => (i8::MIN.into(), i8::MAX.into()),
        "i16" => (i16::MIN.into(), i16::MAX.into()),
        "i32" => (i32::MIN.into(), i32::MAX.into()),
        "i64" | "isize" => (i64::MIN.into(), i64::MAX.into()),
        _ => return None,
    };
    Some(format!("a whole number of {least} to {most}"))
}

/// The same value in the kind that is wanted, where it is plain what was meant.
fn retyped(expected: &str, node: Option<&Node>) -> Option<String> {
    let node = node?;
    match (in_words(expected), node) {
        ("true or false", Node::Text(text)) => {
            let meant = match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "y" | "1" => "true",
                "false" | "no" | "off" | "n" | "0" => "false",
                _ => return None,
            };
            Some(format!("write {meant}, without quotes"))
        }
        ("true or false", Node::Number(number)) => match number.as_i64() {
            Some(0) => Some("write false".to_owned()),
            Some(1) => Some("write true".to_owned()),
            _ => None,
        },
        ("a whole number", Node::Text(text)) => {
            let number: i64 = text.parse().ok()?;
            Some(format!("write {number}, without quotes"))
        }
        ("a text", Node::Number(_) | Node::Bool(_)) => {
            Some(format!("put it in quotes, \"{}\"", node.written()))
        }
        ("a list", Node::Text(_) | Node::Number(_) | Node::Bool(_)) => {
            Some(format!("write [{}]", node.written()))
        }
        ("a list", Node::Map(_)) => Some("begin each item with `- `".to_owned()),
        (MAP, Node::List(_)) => Some("write its fields without `- `".to_owned()),
        (MAP, Node::Null) => Some("write its fields below it, or {}".to_owned()),
        _ => None,
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.finding(&self.path(), None))
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self::new(Kind::Other(text.to_string()))
    }
    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let found = match found {
            Unexpected::Bool(_) => "true or false",
            Unexpected::Unsigned(_) | Unexpected::Signed(_) => "a number",
            Unexpected::Float(_) => "a fraction",
            Unexpected::Char(_) | Unexpected::Str(_) => "a text",
            Unexpected::Unit | Unexpected::Option => "empty",
            Unexpected::Seq => "a list",
            Unexpected::Map => MAP,
            _ => "this",
        };
        Self::new(Kind::Type {
            found,
            expected: expected.to_string(),
        })
    }
    fn invalid_value(_found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(Kind::Bounds {
            expected: expected.to_string(),
        })
    }
    fn invalid_length(_length: usize, expected: &dyn Expected) -> Self {
        Self::new(Kind::Bounds {
            expected: expected.to_string(),
        })
    }
    fn unknown_variant(variant: &str, known: &'static [&'static str]) -> Self {
        Self::new(Kind::UnknownVariant {
            variant: variant.to_owned(),
            known,
            keyed: false,
        })
    }
    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        Self::new(Kind::UnknownField {
            field: field.to_owned(),
            known,
        })
    }
    fn missing_field(field: &'static str) -> Self {
        Self::new(Kind::MissingField(field))
    }
    fn duplicate_field(field: &'static str) -> Self {
        Self::new(Kind::Other(format!(
            "`{field}` is given under two names: keep one"
        )))
    }
}
