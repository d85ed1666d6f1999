//! Wrappers that are providers themselves, and pass the same suite.
