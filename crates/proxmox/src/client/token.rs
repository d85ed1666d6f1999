//! The API token, read anew for each request so that a rotation needs no restart.

use super::ids::encoded;
use secrecy::{ExposeSecret, SecretString};
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

/// The file that holds the token.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    warned: AtomicBool,
}

/// A token of the right shape.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    id: String,
    secret: SecretString,
}

/// Why the token file cannot be used. Never shows what stands in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadToken {
    #[error("the token file {0} cannot be read: {1}")]
    Unreadable(String, io::ErrorKind),
    #[error("the token file {0} {1}; it must hold one line: user@realm!id=secret")]
    Shape(String, &'static str),
}

impl TokenFile {
    /// The file at this path; it is not opened before it is needed.
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self {
            path,
            warned: AtomicBool::new(false),
        }
    }
    /// Reads it now. The file is small and local, so that it is read in place: nothing may
    /// be awaited between a permit and the request it is for.
    pub(crate) fn read(&self) -> Result<Token, BadToken> {
        let name = || self.path.display().to_string();
        let text = SecretString::from(
            fs::read_to_string(&self.path).map_err(|e| BadToken::Unreadable(name(), e.kind()))?,
        );
        self.warn_once(&self.path);
        parse(text.expose_secret()).map_err(|why| BadToken::Shape(name(), why))
    }
    fn warn_once(&self, path: &Path) {
        // Its group may: a pod reads a mounted Secret as the group of its volumes.
        let open = fs::metadata(path).is_ok_and(|m| m.permissions().mode() & 0o004 != 0);
        if open && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                path = %path.display(),
                "the token file can be read by everyone; chmod 600 it"
            );
        }
    }
}

impl Token {
    /// The value of the `Authorization` header. The server undoes percent-encoding and cuts
    /// at a semicolon (§3.1), so that the user's name is encoded.
    pub(crate) fn header(&self) -> SecretString {
        let (user, rest) = self.id.split_once('@').unwrap_or((&self.id, ""));
        format!(
            "PVEAPIToken={}@{rest}={}",
            encoded(user),
            self.secret.expose_secret()
        )
        .into()
    }
    /// A text in which the secret does not stand.
    pub(crate) fn redact(&self, text: &str) -> String {
        text.replace(self.secret.expose_secret(), "[token]")
    }
}

fn parse(text: &str) -> Result<Token, &'static str> {
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return Err("is empty");
    }
    if text.lines().count() > 1 {
        return Err("has more than one line");
    }
    if text.starts_with("PVEAPIToken") || text.starts_with("Authorization") {
        return Err("holds a whole header instead of the token alone");
    }
    let (id, secret) = text
        .rsplit_once('=')
        .ok_or("has no `=` before the secret")?;
    let (user, rest) = id.rsplit_once('@').ok_or("has no `@` before the realm")?;
    let (realm, name) = rest
        .split_once('!')
        .ok_or("has no `!` before the token's id")?;
    let word = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    if user.is_empty() || user.contains([':', '/']) || user.contains(char::is_whitespace) {
        return Err("has an unusable user name");
    }
    if !word(realm) {
        return Err("has an unusable realm");
    }
    if !word(name) {
        return Err("has an unusable token id");
    }
    if secret.len() < 8
        || !secret
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    {
        return Err("has no secret after the `=`, which is 36 letters, digits and dashes");
    }
    Ok(Token {
        id: id.to_owned(),
        secret: secret.to_owned().into(),
    })
}
