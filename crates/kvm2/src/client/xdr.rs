//! XDR (RFC 4506), as far as libvirt's messages use it. Every item takes a multiple of four
//! bytes, numbers are big-endian, and a length is believed only as far as bytes are there.

use std::fmt;

/// The longest text that libvirt lets a message hold, in bytes (`VIR_NET_MESSAGE_STRING_MAX`).
pub const LONGEST_TEXT: usize = 4 * 1024 * 1024;

/// Bytes that are not what the procedure's answer should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the answer of this procedure: {what}")]
pub struct Malformed {
    /// What is wrong with them.
    pub what: &'static str,
}

const fn malformed(what: &'static str) -> Malformed {
    Malformed { what }
}

/// Arguments on their way into a message.
#[derive(Clone, Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self(Vec::new())
    }
    /// The bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
    /// A number of 32 bits.
    #[must_use]
    pub fn u32(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }
    /// A signed number of 32 bits.
    #[must_use]
    pub fn i32(mut self, number: i32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }
    /// A number of 64 bits (`hyper`).
    #[must_use]
    pub fn u64(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }
    /// Bytes of a length that both sides know; a multiple of four.
    #[must_use]
    pub fn fixed(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self.pad();
        self
    }
    /// A text.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.0.extend(length.to_be_bytes());
        self.0.extend(text.as_bytes());
        self.pad();
        self
    }
    /// A text that may be missing.
    #[must_use]
    pub fn optional(self, text: Option<&str>) -> Self {
        match text {
            Some(text) => self.u32(1).text(text),
            None => self.u32(0),
        }
    }
    fn pad(&mut self) {
        while !self.0.len().is_multiple_of(4) {
            self.0.push(0);
        }
    }
}

/// An answer being read. It never reads beyond its end, and reserves no more than is there.
#[derive(Clone, Copy)]
pub struct Reader<'a>(&'a [u8]);

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reader({} bytes left)", self.0.len())
    }
}

impl<'a> Reader<'a> {
    /// From the beginning of a message's body.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
    /// Bytes of a known length, without their padding.
    pub fn fixed(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let padded = length
            .checked_next_multiple_of(4)
            .ok_or(malformed("a length is out of bounds"))?;
        let (taken, rest) = self
            .0
            .split_at_checked(padded)
            .ok_or(malformed("it ends too early"))?;
        self.0 = rest;
        Ok(&taken[..length])
    }
    /// A number of 32 bits.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        let (bytes, rest) = self
            .0
            .split_first_chunk()
            .ok_or(malformed("it ends too early"))?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*bytes))
    }
    /// A signed number of 32 bits.
    pub fn i32(&mut self) -> Result<i32, Malformed> {
        self.u32().map(u32::cast_signed)
    }
    /// A number of 64 bits.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        let (bytes, rest) = self
            .0
            .split_first_chunk()
            .ok_or(malformed("it ends too early"))?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*bytes))
    }
    /// A signed number of 64 bits.
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.u64().map(u64::cast_signed)
    }
    /// A text; bytes that are not UTF-8 become replacement characters.
    pub fn text(&mut self) -> Result<String, Malformed> {
        let length = self.u32()? as usize;
        if length > LONGEST_TEXT {
            return Err(malformed("a text is longer than libvirt allows"));
        }
        let bytes = self.fixed(length)?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }
    /// A text that may be missing.
    pub fn optional(&mut self) -> Result<Option<String>, Malformed> {
        if self.present()? {
            self.text().map(Some)
        } else {
            Ok(None)
        }
    }
    /// Whether an optional item follows.
    pub fn present(&mut self) -> Result<bool, Malformed> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(malformed("neither there nor missing")),
        }
    }
    /// A list of at most so many items.
    pub fn list<T>(
        &mut self,
        most: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let length = self.u32()? as usize;
        if length > most {
            return Err(malformed("a list is longer than libvirt allows"));
        }
        // Each item takes four bytes or more: what is not there reserves nothing.
        let mut items = Vec::with_capacity(length.min(self.0.len() / 4));
        for _ in 0..length {
            items.push(item(self)?);
        }
        Ok(items)
    }
    /// The answer ends here.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(malformed("it goes on after its end"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_and_takes_multiples_of_four_bytes() {
        let bytes = Writer::new()
            .u32(7)
            .i32(-2)
            .u64(1 << 40)
            .text("abcde")
            .optional(None)
            .optional(Some(""))
            .fixed(&[1, 2, 3, 4])
            .into_bytes();
        assert_eq!(bytes.len() % 4, 0);
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.u32(), Ok(7));
        assert_eq!(reader.i32(), Ok(-2));
        assert_eq!(reader.u64(), Ok(1 << 40));
        assert_eq!(reader.text().unwrap(), "abcde");
        assert_eq!(reader.optional(), Ok(None));
        assert_eq!(reader.optional(), Ok(Some(String::new())));
        assert_eq!(reader.fixed(4).unwrap(), [1, 2, 3, 4]);
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn a_length_that_lies_is_refused_and_reserves_nothing() {
        let huge = Writer::new().u32(u32::MAX).into_bytes();
        assert!(Reader::new(&huge).text().is_err());
        assert!(Reader::new(&huge).list(16_384, Reader::u32).is_err());
        let short = Writer::new().u32(16_000).u32(1).into_bytes();
        assert!(Reader::new(&short).list(16_384, Reader::u32).is_err());
        assert!(Reader::new(&short).text().is_err());
        assert!(Reader::new(&[0, 0, 0]).u32().is_err());
        assert!(Reader::new(&[0, 0, 0, 9]).present().is_err());
        assert!(Reader::new(&[0, 0, 0, 0]).end().is_err());
    }
}
