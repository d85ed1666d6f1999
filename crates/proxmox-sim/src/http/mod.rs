//! The world over real HTTPS.
//!
//! One port per node, a certificate authority of its own, and the habits of the HTTP server of
//! Proxmox VE: what it refuses before any API code sees it ([`refuse`]), 100 requests and 5
//! seconds of idleness per connection, the end of a connection with every answer of 400 and
//! above. What the world wants to be refused, dropped or never answered is.
//!
//! Three habits are not copied, since `hyper` decides them: `Expect: 100-continue` is answered,
//! answers 595 to 599 bear `Content-Length: 0`, and bodies are never compressed.

mod authority;
mod connection;
mod control;
mod refuse;
mod serve;

pub(crate) use authority::write_secret;
pub use refuse::{redirect, refuse};
pub(crate) use serve::Shared;
pub use serve::{Facts, GuestKind, Options, Running, now, serve};
