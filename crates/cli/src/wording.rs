//! Words for people that depend on a number.

/// A number and its noun: `1 proxy`, `2 proxies`.
pub fn counted(count: usize, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}
