//! How a command ends when it does not succeed.

use egress_core::finding::Finding;
use std::{error::Error, process::ExitCode};

/// What to print on standard error, and the exit code.
#[derive(Debug)]
pub struct Failure {
    lines: Vec<String>,
    code: u8,
}

impl Failure {
    /// Something failed: exit code 1.
    pub fn failed(line: impl Into<String>) -> Self {
        Self {
            lines: vec![line.into()],
            code: 1,
        }
    }
    /// Bad input, or refused to start: exit code 2.
    pub fn refused(line: impl Into<String>) -> Self {
        Self {
            lines: vec![line.into()],
            code: 2,
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
        Self { lines, code: 2 }
    }
    /// Faults in a file: exit code 2.
    pub fn faults(file: &str, findings: &[Finding]) -> Self {
        let lines = findings
            .iter()
            .map(|finding| format!("{file}: {finding}"))
            .collect();
        Self { lines, code: 2 }
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
