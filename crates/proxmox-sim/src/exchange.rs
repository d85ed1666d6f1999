//! What comes in and what goes out, on the level of HTTP.

use std::time::Duration;

/// A request as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The node whose API server took it.
    pub node: String,
    /// The method, in capitals.
    pub method: String,
    /// Path and query as sent, percent-encoded.
    pub target: String,
    /// Header names in lower case, and values, in the order sent.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Vec<u8>,
}

/// What the client sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An answer of the API server.
    Response {
        /// The status code; also 595 to 599, which have no body.
        status: u16,
        /// The reason phrase.
        reason: String,
        /// Header names and values; length and date are left to the server.
        headers: Vec<(String, String)>,
        /// The body.
        body: Vec<u8>,
        /// How long after the request it is sent.
        after: Duration,
        /// Whether the connection is closed behind it.
        close: bool,
    },
    /// The connection is refused: nothing listens.
    Refused,
    /// The connection is closed so long after the request, without an answer.
    Dropped {
        /// How long after the request.
        after: Duration,
    },
    /// No answer ever; the connection stays open until the client gives up.
    Silence,
}
