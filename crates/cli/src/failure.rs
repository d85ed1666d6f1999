//! How a command ends when it does not succeed.

use egress_core::finding::Finding;
use std::{error::Error, process::ExitCode};

/// What to print on standard error, and the exit code.
#[derive(Debug)]
pub struct Failure {
    lines: Vec<String>,
    code: u8,
    /// Another engine uses what this one wanted.
    in_use: bool,
}

impl Failure {
    /// Something failed: exit code 1.
    pub fn failed(line: impl Into<String>) -> Self {
        Self {
            lines: vec![line.into()],
            code: 1,
            in_use: false,
        }
    }
    /// Bad input, or refused to start: exit code 2.
    pub fn refused(line: impl Into<String>) -> Self {
        Self {
            lines: vec![line.into()],
            code: 2,
            in_use: false,
        }
    }
    /// Refused to start for an error, told with everything that caused it: exit code 2.
    pub fn refused_by(error: &dyn Error) -> Self {
        let mut line = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            line = format!("{line}: {error}");
            cause = error.source();
        }
        Self::refused(line)
    }
    /// Several reasons for one refusal: exit code 2.
    pub fn refused_lines(lines: Vec<String>) -> Self {
        Self {
            lines,
            code: 2,
            in_use: false,
        }
    }
    /// Faults in a file: exit code 2.
    pub fn faults(file: &str, findings: &[Finding]) -> Self {
        let lines = findings
            .iter()
            .map(|finding| format!("{file}: {finding}"))
            .collect();
        Self {
            lines,
            code: 2,
            in_use: false,
        }
    }
    /// The same failure, known to come from another engine that runs or not.
    pub const fn because_in_use(mut self, in_use: bool) -> Self {
        self.in_use = in_use;
        self
    }
    /// Whether another engine uses what this one wanted.
    pub const fn is_in_use(&self) -> bool {
        self.in_use
    }
    /// The same failure with more lines.
    pub fn and(mut self, more: impl IntoIterator<Item = String>) -> Self {
        self.lines.extend(more);
        self
    }
    /// The lines, for whoever goes on.
    pub fn into_lines(self) -> Vec<String> {
        self.lines
    }
    /// Prints the lines.
    pub fn report(&self) -> ExitCode {
        for line in &self.lines {
            eprintln!("{line}");
        }
        ExitCode::from(self.code)
    }
}
