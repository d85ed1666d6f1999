//! A reader of ISO 9660 images (ECMA-119) with Rock Ridge names, for their root folder.

use std::collections::BTreeMap;

const SECTOR: usize = 2048;
const FIRST_DESCRIPTOR: usize = 16;
const PRIMARY: u8 = 1;
const TERMINATOR: u8 = 255;
/// Flag of a folder's record.
const FOLDER: u8 = 0b10;
/// Flag of a record that is continued by the next one.
const CONTINUED: u8 = 0b1000_0000;

/// Why an image cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    /// It ends early.
    #[error("the image ends before byte {0}")]
    Short(usize),
    /// It is something else.
    #[error("no primary volume descriptor")]
    Foreign,
    /// The two byte orders of a number disagree.
    #[error("the number at byte {0} differs between its byte orders")]
    TwoFaced(usize),
    /// A record does not fit its folder.
    #[error("the record at byte {0} is malformed")]
    Record(usize),
}

/// An image's label and the files of its root folder.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Image<'a> {
    /// The volume identifier, trimmed.
    pub(super) label: String,
    /// Files by Rock Ridge name; by ISO name without version where there is none.
    pub(super) files: BTreeMap<String, &'a [u8]>,
}

fn slice(image: &[u8], at: usize, length: usize) -> Result<&[u8], Unreadable> {
    at.checked_add(length)
        .and_then(|end| image.get(at..end))
        .ok_or(Unreadable::Short(at.saturating_add(length)))
}

/// A number of four bytes in both orders.
fn both(image: &[u8], at: usize) -> Result<usize, Unreadable> {
    let bytes = slice(image, at, 8)?;
    let little = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let big = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    if little != big {
        return Err(Unreadable::TwoFaced(at));
    }
    usize::try_from(little).map_err(|_| Unreadable::Short(usize::MAX))
}

/// Reads an image.
pub(super) fn read(image: &[u8]) -> Result<Image<'_>, Unreadable> {
    for sector in FIRST_DESCRIPTOR.. {
        let at = sector * SECTOR;
        let descriptor = slice(image, at, SECTOR)?;
        if &descriptor[1..6] != b"CD001" || descriptor[0] == TERMINATOR {
            return Err(Unreadable::Foreign);
        }
        if descriptor[0] == PRIMARY {
            let label = String::from_utf8_lossy(&descriptor[40..72])
                .trim_end()
                .to_owned();
            let (start, length) = (
                both(image, at + 156 + 2)? * SECTOR,
                both(image, at + 156 + 10)?,
            );
            return Ok(Image {
                label,
                files: folder(image, start, length)?,
            });
        }
    }
    Err(Unreadable::Foreign)
}

fn folder(
    image: &[u8],
    start: usize,
    length: usize,
) -> Result<BTreeMap<String, &[u8]>, Unreadable> {
    slice(image, start, length)?;
    let mut files = BTreeMap::new();
    let mut skipped = 0;
    let mut at = start;
    while at < start + length {
        let size = usize::from(image[at]);
        if size == 0 {
            // Records do not cross sectors; the rest of this one is empty.
            at = (at / SECTOR + 1) * SECTOR;
            continue;
        }
        let record = slice(image, at, size)?;
        if size < 34 || at + size > start + length {
            return Err(Unreadable::Record(at));
        }
        let name_length = usize::from(record[32]);
        let name = record
            .get(33..33 + name_length)
            .ok_or(Unreadable::Record(at))?;
        let system_use = 33 + name_length + usize::from(name_length.is_multiple_of(2));
        let first = at == start;
        if first {
            skipped = sharing_skip(record.get(system_use..).unwrap_or_default());
        }
        let flags = record[25];
        if flags & CONTINUED != 0 {
            return Err(Unreadable::Record(at));
        }
        if flags & FOLDER == 0 {
            let area = record.get(system_use + skipped..).unwrap_or_default();
            let name = match alternate_name(image, area)? {
                Some(name) => name,
                None => String::from_utf8_lossy(name)
                    .split(';')
                    .next()
                    .unwrap_or_default()
                    .trim_end_matches('.')
                    .to_owned(),
            };
            let (extent, length) = (both(image, at + 2)?, both(image, at + 10)?);
            files.insert(name, slice(image, extent * SECTOR, length)?);
        }
        at += size;
    }
    Ok(files)
}

/// How many bytes stand before the entries of every system use area but the first record's.
fn sharing_skip(area: &[u8]) -> usize {
    match area {
        [b'S', b'P', 7, 1, 0xBE, 0xEF, skip, ..] => usize::from(*skip),
        _ => 0,
    }
}

/// The Rock Ridge name in a system use area and where it goes on, if there is one.
fn alternate_name(image: &[u8], area: &[u8]) -> Result<Option<String>, Unreadable> {
    let mut name: Option<Vec<u8>> = None;
    let mut areas = vec![area];
    while let Some(mut area) = areas.pop() {
        while area.len() >= 4 {
            let length = usize::from(area[2]);
            let Some(entry) = area.get(..length).filter(|entry| entry.len() >= 4) else {
                break;
            };
            match &entry[..2] {
                b"NM" if length >= 5 && entry[4] & 0b110 == 0 => {
                    name.get_or_insert_default().extend_from_slice(&entry[5..]);
                }
                b"CE" if length >= 28 => {
                    let offset = both(entry, 4)? * SECTOR + both(entry, 12)?;
                    areas.push(slice(image, offset, both(entry, 20)?)?);
                }
                b"ST" => break,
                _ => {}
            }
            area = &area[length..];
        }
    }
    Ok(name.map(|name| String::from_utf8_lossy(&name).into_owned()))
}

#[cfg(test)]
mod tests;
