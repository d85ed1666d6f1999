//! Where one request ends and the next begins: JSON values, one after the other, with or
//! without anything between them. A byte 0xFF, which no JSON holds, begins anew.

/// Ends whatever came before it; answers to `guest-sync-delimited` begin with it.
pub(super) const DELIMITER: u8 = 0xff;
/// The longest request, in bytes; the longest one a provider sends has a hundred.
const LONGEST: usize = 64 * 1024;

/// What came from the host.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A value with balanced brackets.
    Request(Vec<u8>),
    /// One that grew beyond bounds; the rest of its line is dropped.
    TooLong,
    /// A line with something that begins no value.
    Noise,
}

#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
enum Within {
    #[default]
    Nothing,
    Value,
    Text,
    /// Behind a backslash.
    Escape,
    /// Dropped up to the end of the line.
    Dropped,
}

/// What has come of a request so far.
#[derive(Debug, Default)]
pub(super) struct Frames {
    within: Within,
    depth: u32,
    held: Vec<u8>,
}

impl Frames {
    /// Takes bytes in, and gives what they complete.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<Frame> {
        bytes.iter().filter_map(|byte| self.step(*byte)).collect()
    }

    fn step(&mut self, byte: u8) -> Option<Frame> {
        if byte == DELIMITER {
            *self = Self::default();
            return None;
        }
        match (self.within, byte) {
            (Within::Dropped, b'\n') => *self = Self::default(),
            (Within::Dropped, _) => {}
            (Within::Nothing, byte) if byte.is_ascii_whitespace() => {}
            (Within::Nothing, b'{' | b'[') => {
                self.within = Within::Value;
                self.depth = 1;
                self.held.push(byte);
            }
            (Within::Nothing, _) => {
                self.within = Within::Dropped;
                return Some(Frame::Noise);
            }
            (within, byte) => {
                if self.held.len() == LONGEST {
                    *self = Self {
                        within: Within::Dropped,
                        ..Self::default()
                    };
                    return Some(Frame::TooLong);
                }
                self.held.push(byte);
                self.within = match (within, byte) {
                    (Within::Text, b'\\') => Within::Escape,
                    (Within::Escape, _) | (Within::Value, b'"') => Within::Text,
                    (Within::Text, b'"') => Within::Value,
                    (within, _) => within,
                };
                if within == Within::Value {
                    match byte {
                        b'{' | b'[' => self.depth += 1,
                        b'}' | b']' => self.depth -= 1,
                        _ => {}
                    }
                }
                if self.depth == 0 {
                    let held = std::mem::take(self).held;
                    return Some(Frame::Request(held));
                }
            }
        }
        None
    }
}
