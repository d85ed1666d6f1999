//! The one body that is not a form: an ISO image as multipart (§8.1).
//!
//! The server reads it with regular expressions, so that the order of the parts, the
//! spelling of the headers and the quotes are part of the protocol.

use super::ids::BadId;
use hyper::body::Bytes;
use std::{fmt, str::FromStr};

/// A file name that the server stores unchanged: `[A-Za-z0-9_.-]`, ending in `.iso`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IsoName(String);

impl IsoName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// The volume it becomes on a storage.
    pub fn volid(&self, storage: &str) -> String {
        format!("{storage}:iso/{}", self.0)
    }
}

impl fmt::Display for IsoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for IsoName {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        // The server takes `.ISO` too, but then the volume has that name.
        let fits = text.len() <= 255
            && text
                .strip_suffix(".iso")
                .is_some_and(|stem| !stem.is_empty())
            && !text.starts_with(['.', '-'])
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadId {
                what: "name of an ISO file ([A-Za-z0-9_.-], at most 255 characters, ending in .iso)",
                text: text.chars().take(300).collect(),
            })
        }
    }
}

/// The content type and the body. No checksum is sent: TLS and the length guard the way, and
/// the server would read the whole file once more.
pub(crate) fn multipart(name: &IsoName, image: &Bytes) -> (String, Bytes) {
    let boundary = boundary(image);
    let mut body = Vec::with_capacity(image.len() + 512);
    body.extend_from_slice(
        format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n\
             --{boundary}\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"{name}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        )
        .as_bytes(),
    );
    body.extend_from_slice(image);
    body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    (
        format!("multipart/form-data; boundary={boundary}"),
        body.into(),
    )
}

/// A boundary that the image does not contain.
fn boundary(image: &[u8]) -> String {
    let mut boundary = String::from("egress-proxies-seed");
    while contains(image, boundary.as_bytes()) {
        boundary.push('x');
    }
    boundary
}

fn contains(image: &[u8], needle: &[u8]) -> bool {
    image.windows(needle.len()).any(|window| window == needle)
}
