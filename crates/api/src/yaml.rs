//! YAML with limits. Booleans are `true` and `false` alone; `no`, `0755` and `1_000` stay
//! texts; a key given twice is a fault; anchors and merge keys work, within bounds.

use egress_core::finding::Finding;
use serde_json::Value;
use serde_saphyr::{DefaultMessageFormatter, Error, MessageFormatter, Options, Spanned};
use std::io::Cursor;

/// The greatest text that is read, in bytes.
pub const MAX_BYTES: usize = 4 * 1024 * 1024;

/// The most documents in one text.
pub const MAX_DOCUMENTS: usize = 10_000;

/// Where a document stands in its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Which document, from 1; empty ones do not count.
    pub document: usize,
    /// Its first line; 0 where the fault itself names a line.
    pub line: u64,
}

/// One document of a text, or why it could not be read.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlDocument {
    /// Where it stands.
    pub at: Position,
    /// Its content.
    pub content: Result<Value, Finding>,
}

/// Every document of a text; empty ones are left out. After a document whose fault is in the
/// text itself (a missing bracket, too many aliases) there is no next one.
pub fn read_all(text: &str) -> Vec<YamlDocument> {
    if text.len() > MAX_BYTES {
        let at = Position {
            document: 1,
            line: 0,
        };
        return vec![YamlDocument {
            at,
            content: Err(too_large(text.len())),
        }];
    }
    let mut source = Cursor::new(text.as_bytes());
    let mut documents = Vec::new();
    for read in serde_saphyr::read_with_options::<_, Spanned<Value>>(&mut source, options()) {
        let document = documents.len() + 1;
        if document > MAX_DOCUMENTS {
            let finding = Finding::new(
                "",
                format!("more than {MAX_DOCUMENTS} documents"),
                "there are too many documents",
                "split the file",
            );
            let at = Position { document, line: 0 };
            documents.push(YamlDocument {
                at,
                content: Err(finding),
            });
            break;
        }
        documents.push(match read {
            Ok(read) => YamlDocument {
                at: Position {
                    document,
                    line: read.referenced.line(),
                },
                content: Ok(read.value),
            },
            Err(error) => YamlDocument {
                at: Position { document, line: 0 },
                content: Err(finding(&error)),
            },
        });
    }
    documents
}

/// The one document of a text: a configuration file. An empty text is an empty map.
pub fn read_one(text: &str) -> Result<Value, Finding> {
    let mut documents = read_all(text).into_iter();
    let first = match documents.next() {
        None => return Ok(Value::Object(serde_json::Map::new())),
        Some(document) => document.content?,
    };
    match documents.next() {
        None => Ok(first),
        Some(YamlDocument {
            content: Err(finding),
            ..
        }) => Err(finding),
        Some(second) => Err(Finding::new(
            "",
            format!("line {}", second.at.line),
            "a second document begins here",
            "keep one document in this file",
        )),
    }
}

fn options() -> Options {
    serde_saphyr::options! {
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        reject_unsupported_tags: true,
        // A snippet of the text would repeat what may be secret.
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_reader_input_bytes: Some(MAX_BYTES),
            max_depth: 64,
            max_recorded_anchor_bytes: MAX_BYTES,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
    }
}

fn too_large(bytes: usize) -> Finding {
    Finding::new(
        "",
        format!("{bytes} bytes"),
        format!("is larger than {MAX_BYTES} bytes"),
        "split the file",
    )
}

/// A fault of the text in words. Of the text itself at most a key is repeated.
fn finding(error: &Error) -> Finding {
    let place = error.location().map_or_else(
        || "this text".to_owned(),
        |location| format!("line {}, column {}", location.line(), location.column()),
    );
    let inner = match error.without_snippet() {
        Error::AliasError { error, .. } => error,
        other => other,
    };
    let (problem, remedy) = match inner {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            (format!("`{key}` is given twice"), "keep one of them")
        }
        Error::DuplicateMappingKey { .. } => {
            ("a key is given twice".to_owned(), "keep one of them")
        }
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayCounterOverflow { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => (
            "grows beyond bounds".to_owned(),
            "nest less deeply, and repeat less through aliases",
        ),
        Error::UnknownAnchor { .. } => (
            "an alias names no anchor of this document".to_owned(),
            "put it in quotes if it is a text",
        ),
        Error::RecursiveReferencesRequireWeakTypes { .. } => (
            "an anchor contains itself".to_owned(),
            "write the value out",
        ),
        Error::NonFiniteFloat { .. } => (
            "is not a finite number".to_owned(),
            "put it in quotes if it is a text",
        ),
        Error::Unexpected { expected, .. } if expected.contains("string") => {
            ("a key must be a text".to_owned(), "put it in quotes")
        }
        other => (
            format!("is not valid YAML ({})", message(other)),
            "correct the text near there",
        ),
    };
    Finding::new("", place, problem, remedy)
}

/// What the parser says, on one line of bearable length.
fn message(error: &Error) -> String {
    let text = DefaultMessageFormatter.format_message(error);
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(200).collect()
}

#[cfg(test)]
mod tests;
