use super::*;
use proptest::prelude::*;
use sha2::{Digest, Sha256};

/// A reader of its own: the names and contents that a Rock Ridge reader sees, by the plain ones.
fn read(image: &[u8]) -> Vec<(String, String, Vec<u8>)> {
    let le32 = |at: &[u8]| u32::from_le_bytes(at[..4].try_into().expect("four")) as usize;
    let descriptor = &image[16 * SECTOR..][..SECTOR];
    assert_eq!(&descriptor[..7], b"\x01CD001\x01");
    assert_eq!(le32(&descriptor[80..]) * SECTOR, image.len());
    let root = &descriptor[156..190];
    let (start, length) = (le32(&root[2..]) * SECTOR, le32(&root[10..]));
    let folder = &image[start..start + length];
    let mut found = Vec::new();
    let mut at = 0;
    while at < folder.len() {
        let size = usize::from(folder[at]);
        if size == 0 {
            at = (at + 1).next_multiple_of(SECTOR);
            continue;
        }
        let record = &folder[at..at + size];
        let name_length = usize::from(record[32]);
        let plain = String::from_utf8_lossy(&record[33..33 + name_length]).into_owned();
        let mut used = &record[(33 + name_length).next_multiple_of(2)..];
        let mut name = String::new();
        while used.len() > 4 {
            if used.starts_with(b"NM") {
                name = String::from_utf8_lossy(&used[5..usize::from(used[2])]).into_owned();
            }
            used = &used[usize::from(used[2])..];
        }
        if record[25] == 0 {
            let start = le32(&record[2..]) * SECTOR;
            let content = &image[start..start + le32(&record[10..])];
            found.push((plain, name, content.to_vec()));
        } else {
            assert_eq!(le32(&record[2..]) * SECTOR, start);
            assert_eq!(le32(&record[10..]), length);
        }
        at += size;
    }
    found
}

#[test]
fn names_are_told_in_lower_case_and_in_plain() {
    let image = render(
        "cidata",
        &[
            File::new("user-data", b"u"),
            File::new("proxyd.json", b"{}"),
        ],
    );
    let names: Vec<_> = read(&image)
        .into_iter()
        .map(|(plain, name, _)| (plain, name))
        .collect();
    assert_eq!(
        names,
        [
            ("PROXYD.JSON;1".to_owned(), "proxyd.json".to_owned()),
            ("USER_DATA.;1".to_owned(), "user-data".to_owned()),
        ]
    );
}

/// A change of these bytes is a change of every seed: let `tests/tools` read the new ones.
#[test]
fn golden_bytes() {
    let image = render(
        "cidata",
        &[File::new("meta-data", b"m\n"), File::new("user-data", b"")],
    );
    assert_eq!(image.len(), 22 * SECTOR);
    assert!(image[..16 * SECTOR].iter().all(|byte| *byte == 0));
    let descriptor = &image[16 * SECTOR..17 * SECTOR];
    assert_eq!(
        &descriptor[..48],
        b"\x01CD001\x01\0LINUX                           cidata  "
    );
    assert_eq!(&descriptor[80..88], [22, 0, 0, 0, 0, 0, 0, 22]);
    assert_eq!(&descriptor[813..830], b"2020010100000000\0");
    assert_eq!(&image[17 * SECTOR..][..7], b"\xffCD001\x01");
    assert_eq!(&image[18 * SECTOR..][..10], [1, 0, 20, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(&image[19 * SECTOR..][..10], [1, 0, 0, 0, 0, 20, 0, 1, 0, 0]);
    assert_eq!(&image[21 * SECTOR..][..3], b"m\n\0");
    let hash = data_encoding::HEXLOWER.encode(&Sha256::digest(&image));
    assert_eq!(
        hash,
        "5251b504787e6147ece2dce25e53c6fc768c64edf5a09a4bc7e8235e89c341a9"
    );
}

#[test]
fn a_program_of_five_mib_comes_back_whole() {
    let program: Vec<u8> = (0..5 * 1024 * 1024_u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8)
        .collect();
    let image = render(
        "cidata",
        &[File::new("proxyd", &program), File::new("user-data", b"u")],
    );
    assert_eq!(read(&image)[0].2, program);
}

mod properties {
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn what_goes_in_comes_out(
            files in prop::collection::btree_map(
                "[a-z0-9]{1,20}",
                prop::collection::vec(any::<u8>(), 0..5000),
                0..24,
            )
        ) {
            let given: Vec<_> = files.iter().map(|(name, content)| File::new(name, content)).collect();
            let found: std::collections::BTreeMap<_, _> = read(&render("cidata", &given))
                .into_iter()
                .map(|(_, name, content)| (name, content))
                .collect();
            prop_assert_eq!(found, files);
        }
    }
}
