//! Faults in what people write, told all at once.

use std::fmt;

/// One fault in a manifest or a configuration: which field, what it holds, what is wrong
/// with that, and what to do. Printed as `path: value: what is wrong: what to do`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The field, from the top of the document: `spec.proxy.clients[1]`.
    pub path: String,
    /// The value as written, shortened; empty where the field is missing; never a secret.
    pub value: String,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

impl Finding {
    /// Puts a finding together.
    pub fn new(
        path: impl Into<String>,
        value: impl fmt::Display,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            path: path.into(),
            value: value.to_string(),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = if self.value.is_empty() { "(missing)" } else { &self.value };
        write!(f, "{}: {value}: {}: {}", self.path, self.problem, self.remedy)
    }
}
