use super::*;
use std::process::Command;

/// A sector with bytes at places.
fn sector(parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut sector = vec![0; SECTOR];
    for (at, bytes) in parts {
        sector[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    sector
}

fn two(number: u32) -> Vec<u8> {
    [number.to_le_bytes(), number.to_be_bytes()].concat()
}

fn record(name: &[u8], extent: u32, length: u32, flags: u8, system_use: &[u8]) -> Vec<u8> {
    let mut record = vec![0, 0];
    record.extend(two(extent));
    record.extend(two(length));
    record.extend([0; 7]);
    record.extend([flags, 0, 0, 1, 0, 0, 1]);
    record.push(u8::try_from(name.len()).expect("short"));
    record.extend(name);
    if name.len().is_multiple_of(2) {
        record.push(0);
    }
    record.extend(system_use);
    record[0] = u8::try_from(record.len()).expect("short");
    record
}

/// Root folder in sector 18, a continuation in sector 19, the file in sector 20.
fn image(first: &[u8], of_file: &[u8], file: &[u8]) -> Vec<u8> {
    let length = u32::try_from(file.len()).expect("small");
    let mut image = vec![0; FIRST_DESCRIPTOR * SECTOR];
    let mut label = [b' '; 32];
    label[..6].copy_from_slice(b"cidata");
    image.extend(sector(&[
        (0, b"\x01CD001\x01"),
        (40, &label),
        (156, &record(&[0], 18, 2048, FOLDER, &[])),
    ]));
    image.extend(sector(&[(0, b"\xffCD001\x01")]));
    let records = [
        record(&[0], 18, 2048, FOLDER, first),
        record(&[1], 18, 2048, FOLDER, &[]),
        record(b"META_DAT.;1", 20, length, 0, of_file),
    ]
    .concat();
    image.extend(sector(&[(0, &records)]));
    image.extend(sector(&[(7, b"NM\x09\x01\x00data")]));
    let mut content = file.to_vec();
    content.resize(file.len().next_multiple_of(SECTOR), 0);
    image.extend(content);
    image
}

#[test]
fn a_file_is_found_by_its_rock_ridge_name_also_when_that_goes_on_elsewhere() {
    let mut area = b"NM\x0a\x01\x01meta-".to_vec();
    area.extend(b"CE\x1c\x01");
    area.extend([two(19), two(7), two(9)].concat());
    let image = image(b"SP\x07\x01\xbe\xef\x00", &area, b"instance-id: a\n");
    let read = read(&image).expect("an image");
    assert_eq!(read.label, "cidata");
    assert_eq!(read.files["meta-data"], b"instance-id: a\n");
}

#[test]
fn a_file_without_a_rock_ridge_name_has_the_plain_one() {
    let image = image(&[], &[], b"x");
    assert_eq!(read(&image).expect("an image").files["META_DAT"], b"x");
}

#[test]
fn bytes_before_the_system_use_entries_are_skipped_where_the_first_record_says_so() {
    let image = image(b"SP\x07\x01\xbe\xef\x03", b"\0\0\0NM\x09\x01\x00meta", b"x");
    assert!(read(&image).expect("an image").files.contains_key("meta"));
}

#[test]
fn an_image_that_is_cut_off_or_two_faced_is_refused() {
    let whole = image(&[], &[], b"x");
    assert_eq!(
        read(&whole[..SECTOR * 18]),
        Err(Unreadable::Short(SECTOR * 19))
    );
    let mut two_faced = whole;
    let at = SECTOR * FIRST_DESCRIPTOR + 156 + 2;
    two_faced[at + 7] ^= 1;
    assert_eq!(read(&two_faced), Err(Unreadable::TwoFaced(at)));
}

#[test]
fn an_image_of_another_writer_is_read_alike() {
    let folder = tempfile::tempdir().expect("a folder");
    let (files, image) = (folder.path().join("files"), folder.path().join("x.iso"));
    std::fs::create_dir(&files).expect("a folder");
    let contents: Vec<(String, Vec<u8>)> = [
        ("user-data", 3),
        ("meta-data", 5000),
        ("a-rather-long-name-with.many.dots.in-it.service", 0),
    ]
    .map(|(name, length)| (name.to_owned(), vec![b'x'; length]))
    .into();
    for (name, content) in &contents {
        std::fs::write(files.join(name), content).expect("a file");
    }
    let made = Command::new("genisoimage")
        .args(["-quiet", "-rational-rock", "-volid", "cidata", "-output"])
        .args([&image, &files])
        .status();
    if made.is_err() {
        let ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!ci, "genisoimage is missing: apt-get install genisoimage");
        eprintln!("NOT RUN: genisoimage is missing: apt-get install genisoimage");
        return;
    }
    let bytes = std::fs::read(image).expect("the image");
    let read = read(&bytes).expect("an image");
    assert_eq!(read.label, "cidata");
    let found: Vec<(String, Vec<u8>)> = read
        .files
        .into_iter()
        .map(|(name, content)| (name, content.to_vec()))
        .collect();
    let mut contents = contents;
    contents.sort();
    assert_eq!(found, contents);
}
