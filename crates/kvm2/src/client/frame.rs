//! Messages on the wire: a length of four bytes that counts itself, a header of 24, a body
//! (`virnetprotocol.x`).

use super::xdr::{Malformed, Reader, Writer};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The program of libvirt's own procedures.
pub const REMOTE: u32 = 0x2000_8086;
/// The program of signs of life, which carry no body.
pub const KEEPALIVE: u32 = 0x6b65_6570;
/// The keep-alive procedure that asks for a sign of life.
pub const PING: u32 = 1;
/// The one that gives it.
pub const PONG: u32 = 2;
/// Every program of ours is at this version.
const VERSION: u32 = 1;

/// The length and the header, in bytes.
pub const OVERHEAD: usize = 28;
/// The longest message, its length included, in bytes (`VIR_NET_MESSAGE_MAX` and its length).
pub const LONGEST: usize = 16 * 1024 * 1024 + 4;
/// The most that one message of a stream may carry to any server, in bytes
/// (`VIR_NET_MESSAGE_LEGACY_PAYLOAD_MAX` without a header).
pub const STREAM_CHUNK: usize = 262_120;
/// How much is reserved ahead of bytes that have arrived.
const AHEAD: usize = 64 * 1024;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    /// A procedure is called.
    Call,
    /// Its answer.
    Reply,
    /// News that nobody asked for.
    Event,
    /// A part of a stream.
    Stream,
}

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Well, and at an end.
    Ok,
    /// Wrong: the body says how.
    Error,
    /// More of the stream follows.
    Continue,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which set of procedures.
    pub program: u32,
    /// Which of them.
    pub procedure: u32,
    /// What the message is.
    pub kind: MessageType,
    /// Which call it belongs to; 0 for events.
    pub serial: u32,
    /// How it stands.
    pub status: Status,
}

/// A whole message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its header.
    pub header: Header,
    /// Its body, in XDR or raw bytes of a stream.
    pub body: Vec<u8>,
}

/// Why no message could be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The connection ended or broke.
    #[error("the connection broke")]
    Broken(#[from] std::io::Error),
    /// What arrived is no message.
    #[error("no message of libvirt: {0}")]
    Malformed(&'static str),
}

impl From<Malformed> for Unreadable {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed.what)
    }
}

impl Frame {
    /// The bytes on the wire; `None` when the body is longer than a message may be.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let length = OVERHEAD + self.body.len();
        if length > LONGEST {
            return None;
        }
        let kind = match self.header.kind {
            MessageType::Call => 0,
            MessageType::Reply => 1,
            MessageType::Event => 2,
            MessageType::Stream => 3,
        };
        let status = match self.header.status {
            Status::Ok => 0,
            Status::Error => 1,
            Status::Continue => 2,
        };
        let mut bytes = Writer::new()
            .u32(u32::try_from(length).ok()?)
            .u32(self.header.program)
            .u32(VERSION)
            .u32(self.header.procedure)
            .u32(kind)
            .u32(self.header.serial)
            .u32(status)
            .into_bytes();
        bytes.extend(&self.body);
        Some(bytes)
    }

    /// A message without its length.
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let program = reader.u32()?;
        if reader.u32()? != VERSION {
            return Err(Malformed {
                what: "another version of the protocol",
            });
        }
        let procedure = reader.u32()?;
        let kind = match reader.u32()? {
            0 => MessageType::Call,
            1 => MessageType::Reply,
            2 => MessageType::Event,
            3 => MessageType::Stream,
            _ => {
                return Err(Malformed {
                    what: "an unknown type of message",
                });
            }
        };
        let serial = reader.u32()?;
        let status = match reader.u32()? {
            0 => Status::Ok,
            1 => Status::Error,
            2 => Status::Continue,
            _ => {
                return Err(Malformed {
                    what: "an unknown status",
                });
            }
        };
        Ok(Self {
            header: Header {
                program,
                procedure,
                kind,
                serial,
                status,
            },
            body: bytes[OVERHEAD - 4..].to_vec(),
        })
    }

    /// Reads one message. Memory grows with what arrives, not with the length that is claimed.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Self, Unreadable> {
        let length = from.read_u32().await? as usize;
        if !(OVERHEAD..=LONGEST).contains(&length) {
            return Err(Unreadable::Malformed("its length is out of bounds"));
        }
        let left = length - 4;
        let mut bytes = Vec::with_capacity(left.min(AHEAD));
        let mut rest = from.take(left as u64);
        while bytes.len() < left {
            if rest.read_buf(&mut bytes).await? == 0 {
                return Err(Unreadable::Broken(std::io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Ok(Self::decode(&bytes)?)
    }
}
