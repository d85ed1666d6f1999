//! Which system this is.

use serde_json::{Map, Value, json};
use std::{fs, path::Path};

/// Fields of `os-release(5)` that the answer has, by their names there.
const FIELDS: [(&str, &str); 7] = [
    ("ID", "id"),
    ("NAME", "name"),
    ("PRETTY_NAME", "pretty-name"),
    ("VERSION", "version"),
    ("VERSION_ID", "version-id"),
    ("VARIANT", "variant"),
    ("VARIANT_ID", "variant-id"),
];

/// The answer to `guest-get-osinfo`; what the system does not tell is left out.
pub(super) fn info(root: &Path) -> Value {
    let kernel = rustix::system::uname();
    let mut answer = Map::new();
    for (name, value) in [
        ("kernel-release", kernel.release()),
        ("kernel-version", kernel.version()),
        ("machine", kernel.machine()),
    ] {
        answer.insert(name.to_owned(), json!(value.to_string_lossy()));
    }
    let text = ["etc/os-release", "usr/lib/os-release"]
        .iter()
        .find_map(|path| fs::read_to_string(root.join(path)).ok())
        .unwrap_or_default();
    for line in text.lines() {
        let Some((name, value)) = line.split_once('=') else {
            continue;
        };
        if let Some((_, field)) = FIELDS.iter().find(|(known, _)| *known == name) {
            answer.insert((*field).to_owned(), json!(unquoted(value)));
        }
    }
    Value::Object(answer)
}

/// A value as a shell would read it, as far as such files use it.
fn unquoted(value: &str) -> String {
    let value = value.trim();
    let inner = ['"', '\'']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
    inner
        .unwrap_or(value)
        .replace("\\\"", "\"")
        .replace("\\$", "$")
        .replace("\\\\", "\\")
}

/// The name that the kernel has for this machine.
pub(super) fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}
