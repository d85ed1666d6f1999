//! The one error of the contract.

use egress_core::ErrorClass;
use std::fmt;

/// The result of a provider's operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The operations of the contract, for errors, metrics and spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// [`crate::Provider::check`].
    Check,
    /// [`crate::Provider::claim`].
    Claim,
    /// [`crate::Provider::survey`].
    Survey,
    /// [`crate::Provider::create`].
    Create,
    /// [`crate::Provider::get`].
    Get,
    /// [`crate::Provider::seal`].
    Seal,
    /// [`crate::Provider::delete`].
    Delete,
    /// [`crate::Provider::list`].
    List,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 8] = [
        Self::Check,
        Self::Claim,
        Self::Survey,
        Self::Create,
        Self::Get,
        Self::Seal,
        Self::Delete,
        Self::List,
    ];
    /// The operation as it stands in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Claim => "claim",
            Self::Survey => "survey",
            Self::Create => "create",
            Self::Get => "get",
            Self::Seal => "seal",
            Self::Delete => "delete",
            Self::List => "list",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What went wrong, sorted by what the caller may do about it. Its text says operation,
/// target and what the other side said; it never repeats its source and never holds a secret.
#[derive(Debug)]
pub struct Error {
    class: ErrorClass,
    operation: Operation,
    target: String,
    said: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// `target` is what the operation was about (a slot, a path, a URL without credentials);
    /// `said` is what the other side answered, or what was found, for people.
    pub fn new(
        class: ErrorClass,
        operation: Operation,
        target: impl Into<String>,
        said: impl Into<String>,
    ) -> Self {
        Self {
            class,
            operation,
            target: target.into(),
            said: said.into(),
            source: None,
        }
    }
    /// Adds the error that caused this one.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }
    /// What the caller may do.
    pub const fn class(&self) -> ErrorClass {
        self.class
    }
    /// Which operation failed.
    pub const fn operation(&self) -> Operation {
        self.operation
    }
    /// What the operation was about.
    pub fn target(&self) -> &str {
        &self.target
    }
    /// What the other side said.
    pub fn said(&self) -> &str {
        &self.said
    }
    /// This error and its sources in one line, for the top of the program.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(source) = next {
            text.push_str(": ");
            text.push_str(&source.to_string());
            next = source.source();
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.operation, self.target, self.said)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_deref()
            .map(|e| e as &(dyn std::error::Error + 'static))
    }
}
