//! Faults in what people write, told all at once.

use std::fmt;

/// One fault in a manifest or a configuration: which field, what it holds, what is wrong
/// with that, and what to do. Printed as `path: value: what is wrong: what to do`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The field, from the top of the document: `spec.proxy.clients[1]`; empty for the
    /// document itself.
    pub path: String,
    /// The value as written, shortened; empty where the field is missing; never a secret.
    pub value: String,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

/// Faults of one block, which stands at a path of its document.
#[derive(Debug)]
pub struct Findings<'a> {
    path: &'a str,
    /// What was found, in the order of looking.
    pub found: Vec<Finding>,
}

impl<'a> Findings<'a> {
    /// None yet, of the block at this path.
    pub const fn at(path: &'a str) -> Self {
        Self {
            path,
            found: Vec::new(),
        }
    }

    /// Adds one of a field of the block.
    pub fn add(
        &mut self,
        field: &str,
        value: impl fmt::Display,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let path = format!("{}.{field}", self.path);
        self.found.push(Finding::new(path, value, problem, remedy));
    }
}

impl Finding {
    /// Puts a finding together. The value is shortened to [`MAX_VALUE_CHARS`] characters and
    /// hidden where the path suggests a secret.
    pub fn new(
        path: impl Into<String>,
        value: impl fmt::Display,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let path = path.into();
        let value = value.to_string();
        let value = if value.is_empty() {
            value
        } else if is_secret_path(&path) {
            HIDDEN.to_owned()
        } else {
            shortened(&value)
        };
        Self {
            path,
            value,
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    /// The same finding in a document that stands at `prefix` of a greater one.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        if self.path.is_empty() {
            prefix.clone_into(&mut self.path);
        } else if self.path.starts_with('[') || prefix.is_empty() {
            self.path.insert_str(0, prefix);
        } else {
            self.path = format!("{prefix}.{}", self.path);
        }
        self
    }

    /// Whether this finding speaks of an element, or of something within it, of the list at
    /// `path`.
    pub fn is_element_of(&self, path: &str) -> bool {
        let rest = self.path.strip_prefix(path);
        !path.is_empty() && rest.is_some_and(|rest| rest.starts_with('['))
    }

    /// Whether this finding speaks of the field at `path` or of something within it.
    pub fn is_within(&self, path: &str) -> bool {
        self.path
            .strip_prefix(path)
            .is_some_and(|rest| path.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        let value = if self.value.is_empty() {
            "(missing)"
        } else {
            &self.value
        };
        write!(f, "{value}: {}: {}", self.problem, self.remedy)
    }
}

/// The longest value a finding repeats, in characters.
pub const MAX_VALUE_CHARS: usize = 60;

/// What stands in place of a value that may be secret.
pub const HIDDEN: &str = "(hidden)";

/// The text on one line, cut to [`MAX_VALUE_CHARS`] characters.
pub fn shortened(text: &str) -> String {
    let mut chars = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut short: String = chars.by_ref().take(MAX_VALUE_CHARS).collect();
    if chars.next().is_some() {
        short.pop();
        short.push('…');
    }
    short
}

/// Whether a field's name suggests that its value is secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    matches!(name.as_str(), "data" | "stringdata" | "pwd")
        || [
            "password",
            "passwd",
            "passphrase",
            "token",
            "secret",
            "credential",
            "privatekey",
        ]
        .iter()
        .any(|word| name.contains(word))
}

/// Whether a path, as a finding writes it, leads into a field whose name suggests a secret.
/// A reference (`secretRef.name`) names a secret and holds none.
pub fn is_secret_path(path: &str) -> bool {
    let mut names = path
        .split(['.', '[', ']', '"'])
        .filter(|name| !name.is_empty())
        .peekable();
    while let Some(name) = names.next() {
        let names_another = name.ends_with("Ref") && names.peek().is_some();
        if is_secret_name(name) && !names_another {
            return true;
        }
    }
    false
}

/// What to write in place of an unknown name: the known one it resembles, else all of them.
pub fn suggestion(given: &str, known: &[&str]) -> String {
    match nearest(given, known) {
        Some(name) => format!("did you mean `{name}`?"),
        None if known.is_empty() => "remove it".to_owned(),
        None => format!("use one of {}", listed(known)),
    }
}

/// Names in backquotes, joined by commas.
pub fn listed(names: &[&str]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// The known name that a misspelt one most likely stands for.
pub fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |text: &str| -> String {
        text.chars()
            .filter(char::is_ascii_alphanumeric)
            .collect::<String>()
            .to_ascii_lowercase()
    };
    let wanted = plain(given);
    let (distance, name) = known
        .iter()
        .map(|name| {
            let candidate = plain(name);
            let begins = wanted.len() >= 3
                && (candidate.starts_with(&wanted) || wanted.starts_with(&candidate))
                && !candidate.is_empty();
            let distance = strsim::osa_distance(&wanted, &candidate);
            (if begins { distance.min(1) } else { distance }, *name)
        })
        .min()?;
    let bearable = (wanted.len().min(plain(name).len()) / 3).max(usize::from(wanted.len() > 2));
    (distance <= bearable).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_answered_with_the_one_it_resembles() {
        let known = ["cpus", "memoryMiB", "diskGiB"];
        assert_eq!(nearest("cpu", &known), Some("cpus"));
        assert_eq!(nearest("memory_mib", &known), Some("memoryMiB"));
        assert_eq!(nearest("memory", &known), Some("memoryMiB"));
        assert_eq!(nearest("dskGiB", &known), Some("diskGiB"));
        assert_eq!(nearest("network", &known), None);
        assert_eq!(nearest("", &known), None);
        assert_eq!(
            suggestion("x", &known),
            "use one of `cpus`, `memoryMiB`, `diskGiB`"
        );
    }

    #[test]
    fn a_value_is_cut_to_sixty_characters_on_one_line() {
        let finding = Finding::new("a", "é\n".repeat(50), "too long", "cut it");
        assert_eq!(finding.value.chars().count(), MAX_VALUE_CHARS);
        assert!(finding.value.ends_with('…') && !finding.value.contains('\n'));
    }

    #[test]
    fn a_value_is_hidden_where_the_path_suggests_a_secret() {
        for path in [
            "password",
            "providers[0].tokenFile",
            "data.username",
            "stringData[\"a.b\"]",
            "spec.auth.secretRef",
            "auth.clientSecret",
        ] {
            assert_eq!(
                Finding::new(path, "hunter2", "p", "r").value,
                HIDDEN,
                "{path}"
            );
        }
        for path in ["spec.auth.secretRef.name", "metadata.name", "database"] {
            assert_eq!(
                Finding::new(path, "shown", "p", "r").value,
                "shown",
                "{path}"
            );
        }
    }

    #[test]
    fn a_finding_keeps_its_place_within_a_greater_document() {
        let at = |path: &str| Finding::new(path, 1, "p", "r").under("items[2]").path;
        assert_eq!(at("spec.port"), "items[2].spec.port");
        assert_eq!(at("[1]"), "items[2][1]");
        assert_eq!(at(""), "items[2]");
        assert_eq!(Finding::new("a", 1, "p", "r").under("").path, "a");
        assert!(Finding::new("a.b", 1, "p", "r").is_within("a"));
        assert!(!Finding::new("ab", 1, "p", "r").is_within("a"));
        assert!(Finding::new("a.b[0].c", 1, "p", "r").is_element_of("a.b"));
        assert!(!Finding::new("a.b", 1, "p", "r").is_element_of("a.b"));
    }
}
