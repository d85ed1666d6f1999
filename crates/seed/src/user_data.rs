//! The user's cloud-config. It goes into the seed byte for byte, since cloud-init reads YAML 1.1
//! and what we would write again could mean something else (`0644` is octal there, `yes` a
//! boolean). We read it only to refuse what cloud-init would not take, and what would undo ours.

mod conflicts;
mod older;

use egress_core::finding::Finding;
use serde_json::{Map, Value};
use serde_saphyr::{DefaultMessageFormatter, Error, MessageFormatter, Options};

/// What stands in the seed where the user gives nothing. An empty file would do for cloud-init,
/// but not for its schema check.
pub(crate) const NONE: &str = "#cloud-config\n{}\n";

/// The first line of what we take.
const HEADER: &str = "#cloud-config";

/// Other formats by what they begin with, longer beginnings first, and their names.
const OTHER_FORMATS: &[(&str, &str)] = &[
    ("#cloud-config-archive", "a cloud-config archive"),
    ("#cloud-config-jsonp", "a JSON patch of a cloud-config"),
    ("#cloud-boothook", "a boothook"),
    ("#part-handler", "a part handler"),
    ("#include", "a list of addresses to include"),
    ("#upstart-job", "an upstart job"),
    ("#!", "a script"),
    ("## template:", "a Jinja template"),
    ("content-type:", "a MIME message"),
    ("h4si", "gzip as base64"),
];

/// How far into a text cloud-init looks for the sign of a MIME message, in bytes.
const MIME_REACH: usize = 4096;

/// All that is wrong with a user's cloud-config, for a machine of this host name.
pub(crate) fn faults(text: &str, host_name: &str) -> Vec<Finding> {
    if let Some(finding) = wrong_format(text) {
        return vec![finding.under("userData")];
    }
    match read(text) {
        Ok(config) => older::unread(text)
            .into_iter()
            .chain(conflicts::find(&config, host_name))
            .collect(),
        Err(finding) => vec![finding],
    }
    .into_iter()
    .map(|finding| finding.under("userData"))
    .collect()
}

fn wrong_format(text: &str) -> Option<Finding> {
    let refused =
        |value: &str, problem: &str, remedy: &str| Some(Finding::new("", value, problem, remedy));
    if let Some((place, character)) = unprintable(text) {
        return refused(
            &format!("line {place}"),
            &format!(
                "holds U+{:04X}, which a cloud-config may not hold",
                u32::from(character)
            ),
            "write it as an escape in double quotes",
        );
    }
    let first = text.lines().next().unwrap_or_default();
    let begins = text.trim_start().to_lowercase();
    let other = OTHER_FORMATS
        .iter()
        .find(|(beginning, _)| begins.starts_with(beginning));
    if let Some((_, name)) = other {
        return refused(
            first,
            &format!("is {name}"),
            "write a cloud-config; scripts go into its `runcmd` or `bootcmd`",
        );
    }
    let reach = text.as_bytes().get(..MIME_REACH).unwrap_or(text.as_bytes());
    if reach
        .to_ascii_lowercase()
        .windows(b"mime-version:".len())
        .any(|at| at == b"mime-version:")
    {
        return refused(
            "mime-version:",
            "makes cloud-init take the text for a MIME message",
            "write a cloud-config, and keep these words out of its first 4096 bytes",
        );
    }
    // Trailing blanks and a carriage return are fine.
    if first.trim_end() != HEADER {
        return refused(
            first,
            "is not the first line of a cloud-config",
            "begin with the line `#cloud-config`",
        );
    }
    None
}

/// The first character that YAML 1.1 forbids (5.1) or takes for a line's end where we do not
/// (5.4), with its line from 1.
fn unprintable(text: &str) -> Option<(usize, char)> {
    let allowed = |c: char| {
        matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{7e}' | '\u{a0}'..='\u{fffd}')
            && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
            || c >= '\u{10000}'
    };
    // cloud-init does not know its header behind a byte order mark.
    let at = text.find(|c| !allowed(c))?;
    let character = text[at..].chars().next()?;
    Some((text[..at].matches('\n').count() + 1, character))
}

fn read(text: &str) -> Result<Map<String, Value>, Finding> {
    let value: Value =
        serde_saphyr::from_str_with_options(text, options()).map_err(|error| unreadable(&error))?;
    match value {
        Value::Object(map) => Ok(map),
        Value::Null => Err(Finding::new(
            "",
            HEADER,
            "holds nothing",
            "leave userData out",
        )),
        other => Err(Finding::new(
            "",
            kind(&other),
            "is no map of keys",
            "write keys such as `runcmd:`, each on a line of its own",
        )),
    }
}

fn options() -> Options {
    serde_saphyr::options! {
        reject_unsupported_tags: true,
        // A snippet of the text would repeat what may be secret.
        with_snippet: false,
        budget: serde_saphyr::budget! { max_depth: 64 },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
    }
}

/// Where the text cannot be read and why. Of the text itself at most a key is repeated.
fn unreadable(error: &Error) -> Finding {
    let place = error.location().map_or_else(
        || "this text".to_owned(),
        |location| format!("line {}, column {}", location.line(), location.column()),
    );
    match error.without_snippet() {
        Error::DuplicateMappingKey { key: Some(key), .. } => Finding::new(
            "",
            place,
            format!(
                "the key `{key}` stands here a second time, and cloud-init would drop the first"
            ),
            "keep one",
        ),
        Error::MultipleDocuments { .. } => Finding::new(
            "",
            place,
            "a second document begins here",
            "keep one document",
        ),
        other => Finding::new(
            "",
            place,
            format!(
                "cannot be read as YAML: {}",
                DefaultMessageFormatter.format_message(other)
            ),
            "correct it; `cloud-init schema -c FILE` tells more",
        ),
    }
}

/// What a value is, where itself it may be long or secret.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

#[cfg(test)]
mod tests;
