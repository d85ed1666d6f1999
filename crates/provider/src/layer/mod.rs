//! Wrappers that are providers themselves, and pass the same suite: [`observed`] in
//! production, [`faulty`] in tests.

pub mod faulty;
pub mod observed;

#[cfg(test)]
mod tests;
