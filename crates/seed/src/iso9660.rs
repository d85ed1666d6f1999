//! A writer of ISO 9660 images (ECMA-119) with Rock Ridge names: one flat folder, one
//! descriptor set, fixed times.
//!
//! A single primary descriptor is what every reader agrees on. A second set (Joliet) would hold
//! names and label once more, and readers differ in which one they believe. Linux takes names
//! and modes from Rock Ridge; a reader without it sees names of interchange level 2, such as
//! `USER_DATA.;1`.

const SECTOR: usize = 2048;
/// Sectors before the first descriptor, for boot loaders.
const SYSTEM_AREA: usize = 16;
const L_PATH_TABLE: u32 = 18;
const M_PATH_TABLE: u32 = 19;
const ROOT: u32 = 20;
/// Bytes of the path table's one entry, the root.
const PATH_TABLE_BYTES: u32 = 10;

/// 1 January 2020, 00:00 UTC, as records and descriptors write it.
const RECORD_TIME: [u8; 7] = [120, 1, 1, 0, 0, 0, 0];
const DESCRIPTOR_TIME: &[u8; 17] = b"2020010100000000\0";
const NO_TIME: &[u8; 17] = b"0000000000000000\0";

/// Modes as `stat` tells them: for root alone, since user-data may hold secrets.
const FOLDER_MODE: u32 = 0o040_500;
const FILE_MODE: u32 = 0o100_400;

/// A file of the image.
pub(crate) struct File<'a> {
    /// 1 to 31 of `a-z 0-9 . _ -`, at most one dot, and unique when lower case, `-` and `_` are
    /// not told apart.
    name: &'a str,
    content: &'a [u8],
}

impl<'a> File<'a> {
    /// A file; the name is of this program, not of a user.
    pub(crate) const fn new(name: &'a str, content: &'a [u8]) -> Self {
        Self { name, content }
    }
}

/// The image with these files in its root folder.
pub(crate) fn render(label: &str, files: &[File<'_>]) -> Vec<u8> {
    let mut files: Vec<_> = files
        .iter()
        .map(|file| (plain_name(file.name), file))
        .collect();
    // ECMA-119, 9.3: records are sorted by name.
    files.sort_by(|a, b| a.0.cmp(&b.0));

    let mut folder_bytes = folder(&files, ROOT, SECTOR).len();
    let first_file = ROOT + sectors(folder_bytes);
    let folder_records = folder(&files, first_file, folder_bytes);
    folder_bytes = folder_records.len();

    let total = files
        .iter()
        .fold(first_file, |at, (_, file)| at + sectors(file.content.len()));
    let mut image = vec![0; SYSTEM_AREA * SECTOR];
    image.reserve(total as usize * SECTOR);
    image.extend(primary_descriptor(label, total, folder_bytes));
    image.extend(terminator());
    image.extend(path_table(u32::to_le_bytes, u16::to_le_bytes));
    image.extend(path_table(u32::to_be_bytes, u16::to_be_bytes));
    image.extend(folder_records);
    for (_, file) in &files {
        image.extend_from_slice(file.content);
        image.resize(image.len().next_multiple_of(SECTOR), 0);
    }
    debug_assert_eq!(image.len(), total as usize * SECTOR);
    image
}

/// The name as readers without Rock Ridge see it.
fn plain_name(name: &str) -> String {
    let name: String = name
        .chars()
        .map(|c| match c.to_ascii_uppercase() {
            c @ ('A'..='Z' | '0'..='9' | '.') => c,
            _ => '_',
        })
        .collect();
    let dot = if name.contains('.') { "" } else { "." };
    format!("{name}{dot};1")
}

fn sectors(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(SECTOR)).expect("an image is smaller than 8 TiB")
}

/// The root folder's records, in whole sectors; no record crosses a sector's end. Files begin
/// at `first_file`; `folder_bytes` is what the two records of the folder itself tell.
fn folder(files: &[(String, &File<'_>)], first_file: u32, folder_bytes: usize) -> Vec<u8> {
    let mut here = sharing_protocol();
    here.extend(posix(FOLDER_MODE, 2));
    here.extend(extension_reference());
    let mut records = vec![
        record(&[0], ROOT, folder_bytes, Kind::Folder, &here),
        record(
            &[1],
            ROOT,
            folder_bytes,
            Kind::Folder,
            &posix(FOLDER_MODE, 2),
        ),
    ];
    let mut at = first_file;
    for (plain, file) in files {
        let mut system_use = posix(FILE_MODE, 1);
        system_use.extend(alternate_name(file.name));
        records.push(record(
            plain.as_bytes(),
            at,
            file.content.len(),
            Kind::File,
            &system_use,
        ));
        at += sectors(file.content.len());
    }
    let mut packed: Vec<u8> = Vec::new();
    for record in records {
        if packed.len() % SECTOR + record.len() > SECTOR {
            packed.resize(packed.len().next_multiple_of(SECTOR), 0);
        }
        packed.extend(record);
    }
    packed.resize(packed.len().next_multiple_of(SECTOR), 0);
    packed
}

#[derive(Clone, Copy)]
enum Kind {
    File,
    Folder,
}

/// A directory record (ECMA-119, 9.1).
fn record(name: &[u8], sector: u32, bytes: usize, kind: Kind, system_use: &[u8]) -> Vec<u8> {
    let mut record = vec![0, 0];
    record.extend(both32(sector));
    record.extend(both32(u32::try_from(bytes).expect("files are below 4 GiB")));
    record.extend(RECORD_TIME);
    record.push(match kind {
        Kind::File => 0,
        Kind::Folder => 2,
    });
    record.extend([0, 0]);
    record.extend(both16(1));
    record.push(u8::try_from(name.len()).expect("names are short"));
    record.extend(name);
    record.resize(record.len().next_multiple_of(2), 0);
    record.extend(system_use);
    record.resize(record.len().next_multiple_of(2), 0);
    record[0] = u8::try_from(record.len()).expect("names are short");
    record
}

/// A system use entry (SUSP, 4.1), version 1.
fn entry(signature: [u8; 2], content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len() + 4).expect("entries are short");
    let mut entry = vec![signature[0], signature[1], length, 1];
    entry.extend(content);
    entry
}

/// `SP`: extensions are used in this image (SUSP, 5.3).
fn sharing_protocol() -> Vec<u8> {
    entry(*b"SP", &[0xbe, 0xef, 0])
}

/// `ER`: the extension is Rock Ridge (SUSP, 5.5; RRIP, 4.3).
fn extension_reference() -> Vec<u8> {
    const ID: &[u8] = b"RRIP_1991A";
    const DESCRIPTION: &[u8] =
        b"THE ROCK RIDGE INTERCHANGE PROTOCOL PROVIDES SUPPORT FOR POSIX FILE SYSTEM SEMANTICS";
    let mut content = vec![ID.len() as u8, DESCRIPTION.len() as u8, 0, 1];
    content.extend(ID);
    content.extend(DESCRIPTION);
    entry(*b"ER", &content)
}

/// `PX`: mode and links; owner and group are root (RRIP, 4.1.1).
fn posix(mode: u32, links: u32) -> Vec<u8> {
    let fields = [mode, links, 0, 0];
    entry(*b"PX", &fields.map(both32).concat())
}

/// `NM`: the name as it was given (RRIP, 4.1.4).
fn alternate_name(name: &str) -> Vec<u8> {
    let mut content = vec![0];
    content.extend(name.as_bytes());
    entry(*b"NM", &content)
}

/// The primary volume descriptor (ECMA-119, 8.4).
fn primary_descriptor(label: &str, total: u32, folder_bytes: usize) -> Vec<u8> {
    let mut at = descriptor_head(1);
    let text = |at: &mut Vec<u8>, value: &str, width: usize| {
        let end = at.len() + width;
        at.extend_from_slice(value.as_bytes());
        assert!(at.len() <= end, "the descriptor's texts are short");
        at.resize(end, b' ');
    };
    at.push(0);
    text(&mut at, "LINUX", 32);
    text(&mut at, label, 32);
    at.extend([0; 8]);
    at.extend(both32(total));
    at.extend([0; 32]);
    at.extend(both16(1));
    at.extend(both16(1));
    at.extend(both16(SECTOR as u16));
    at.extend(both32(PATH_TABLE_BYTES));
    at.extend(L_PATH_TABLE.to_le_bytes());
    at.extend([0; 4]);
    at.extend(M_PATH_TABLE.to_be_bytes());
    at.extend([0; 4]);
    at.extend(record(&[0], ROOT, folder_bytes, Kind::Folder, &[]));
    // Volume set, publisher, preparer, application; copyright, abstract, bibliography.
    text(&mut at, "", 128);
    text(&mut at, "", 128);
    text(&mut at, "", 128);
    text(&mut at, "EGRESS-PROXIES SEED", 128);
    text(&mut at, "", 3 * 37);
    at.extend(DESCRIPTOR_TIME);
    at.extend(DESCRIPTOR_TIME);
    at.extend(NO_TIME);
    at.extend(NO_TIME);
    at.extend([1, 0]);
    at.resize(SECTOR, 0);
    at
}

fn terminator() -> Vec<u8> {
    let mut descriptor = descriptor_head(255);
    descriptor.resize(SECTOR, 0);
    descriptor
}

fn descriptor_head(kind: u8) -> Vec<u8> {
    let mut head = vec![kind];
    head.extend(b"CD001\x01");
    head
}

/// The path table with its one entry, the root (ECMA-119, 9.4).
fn path_table(four: fn(u32) -> [u8; 4], two: fn(u16) -> [u8; 2]) -> Vec<u8> {
    let mut table = vec![1, 0];
    table.extend(four(ROOT));
    table.extend(two(1));
    table.extend([0, 0]);
    table.resize(SECTOR, 0);
    table
}

fn both32(value: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&value.to_le_bytes());
    bytes[4..].copy_from_slice(&value.to_be_bytes());
    bytes
}

fn both16(value: u16) -> [u8; 4] {
    let mut bytes = [0; 4];
    bytes[..2].copy_from_slice(&value.to_le_bytes());
    bytes[2..].copy_from_slice(&value.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests;
