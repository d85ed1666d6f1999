//! How a record is written as text: in a file, or in an annotation.

use super::{Stored, Version};
use egress_core::{ProxyId, Record};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The layout around the record, which has a layout of its own.
const SCHEMA: u32 = 1;

/// Why a text is not the record of a Proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// It is the record of another one: a copy.
    OtherProxy(ProxyId),
    /// It cannot be read, or has a layout that is not known here; the text says which.
    Unreadable(String),
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherProxy(other) => write!(f, "it is the record of {other}"),
            Self::Unreadable(why) => f.write_str(why),
        }
    }
}

#[derive(Serialize)]
struct Written<'a> {
    schema: u32,
    version: &'a str,
    record: &'a Record,
}

#[derive(Deserialize)]
struct Read<R> {
    version: String,
    record: R,
}

#[derive(Deserialize)]
struct Head {
    schema: u32,
}

/// The text of a record: one line of JSON, without an end of line.
pub fn encode(record: &Record, version: &Version) -> String {
    let written = Written {
        schema: SCHEMA,
        version: &version.0,
        record,
    };
    serde_json::to_string(&written).expect("plain fields are always JSON")
}

/// Reads a record that was written for this Proxy. Looks at the layouts first: a newer one may
/// not fit the types of this one.
pub fn decode(id: &ProxyId, bytes: &[u8]) -> Result<Stored, Misfit> {
    let outer: Head = parse(bytes)?;
    known(outer.schema, SCHEMA)?;
    let head: Read<Head> = parse(bytes)?;
    known(head.record.schema, Record::SCHEMA)?;
    let read: Read<Record> = parse(bytes)?;
    fits(id, &read.record)?;
    Ok(Stored {
        record: read.record,
        version: Version(read.version),
    })
}

/// Whether a record may be written for this Proxy.
pub fn fits(id: &ProxyId, record: &Record) -> Result<(), Misfit> {
    if record.proxy != *id {
        return Err(Misfit::OtherProxy(record.proxy.clone()));
    }
    known(record.schema, Record::SCHEMA)
}

fn known(schema: u32, known: u32) -> Result<(), Misfit> {
    if schema == known {
        return Ok(());
    }
    Err(Misfit::Unreadable(format!(
        "its layout is {schema}, known here is {known}"
    )))
}

fn parse<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T, Misfit> {
    serde_json::from_slice(bytes).map_err(|error| Misfit::Unreadable(error.to_string()))
}
