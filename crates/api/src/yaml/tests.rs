use super::*;
use proptest::prelude::*;
use serde_json::json;

fn only_fault(text: &str) -> String {
    let mut documents = read_all(text);
    assert_eq!(documents.len(), 1, "{documents:?}");
    documents.remove(0).content.unwrap_err().to_string()
}

/// Lists of nine times the list before, `levels` deep: 9^levels items in a few hundred bytes.
fn bomb(levels: usize) -> String {
    let mut lines = vec!["a0: &a0 [x]".to_owned()];
    lines.extend((1..=levels).map(|level| {
        let nine = vec![format!("*a{}", level - 1); 9].join(", ");
        format!("a{level}: &a{level} [{nine}]")
    }));
    lines.join("\n")
}

#[test]
fn a_text_that_grows_through_aliases_is_refused() {
    let fault = only_fault(&bomb(12));
    assert!(fault.contains("grows beyond bounds"), "{fault}");
    assert!(read_all(&bomb(2))[0].content.is_ok());
}

#[test]
fn a_text_of_ten_megabytes_is_refused_before_it_is_read() {
    let fault = only_fault(&"a".repeat(10 * 1024 * 1024));
    assert_eq!(
        fault,
        "10485760 bytes: is larger than 4194304 bytes: split the file"
    );
}

#[test]
fn a_text_of_too_many_documents_is_refused_after_the_last_one_allowed() {
    let documents = read_all(&"a: 1\n---\n".repeat(MAX_DOCUMENTS + 5));
    assert_eq!(documents.len(), MAX_DOCUMENTS + 1);
    assert!(documents[MAX_DOCUMENTS - 1].content.is_ok());
    assert!(documents[MAX_DOCUMENTS].content.is_err());
}

#[test]
fn a_text_that_is_nested_too_deeply_is_refused() {
    let steps: Vec<_> = (0..600)
        .map(|depth| format!("{}a:", " ".repeat(depth)))
        .collect();
    for text in [
        format!("{}{}", "[".repeat(5_000), "]".repeat(5_000)),
        steps.join("\n"),
    ] {
        assert!(read_all(&text).last().unwrap().content.is_err());
    }
}

#[test]
fn documents_are_counted_without_the_empty_ones_and_know_their_line() {
    let places: Vec<_> = read_all("# head\n---\na: 1\n---\n# nothing\n---\n\nb: 2\n...\n")
        .into_iter()
        .map(|document| (document.at.document, document.at.line))
        .collect();
    assert_eq!(places, [(1, 3), (2, 8)]);
    assert_eq!(read_all(""), []);
    assert_eq!(read_all("---\n---\n"), []);
}

#[test]
fn only_what_is_plainly_a_number_or_boolean_is_one() {
    let read = read_one("[no, off, 0755, 1_000, 12:30, 0x1F, true, False, ~, 2026-11-30, 1e3]");
    assert_eq!(
        read.unwrap(),
        json!([
            "no",
            "off",
            "0755",
            "1_000",
            "12:30",
            31,
            true,
            false,
            null,
            "2026-11-30",
            1000.0
        ])
    );
}

#[test]
fn a_fault_of_one_document_leaves_the_others_readable() {
    let documents = read_all("a: 1\na: 2\n---\nb: 2\n");
    assert_eq!(
        documents[0].content.as_ref().unwrap_err().to_string(),
        "line 2, column 1: `a` is given twice: keep one of them"
    );
    assert_eq!(documents[1].content, Ok(json!({"b": 2})));
}

#[test]
fn a_configuration_file_is_one_document() {
    assert_eq!(read_one("# nothing\n"), Ok(json!({})));
    assert_eq!(
        read_one("a: &x [1]\nb: *x\n"),
        Ok(json!({"a": [1], "b": [1]}))
    );
    assert_eq!(
        read_one("a: 1\n---\nb: 2\n").unwrap_err().to_string(),
        "line 3: a second document begins here: keep one document in this file"
    );
    assert!(read_one("a: [").is_err());
    assert!(read_one("a: 1\n---\nb: [").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn no_text_brings_the_reader_down(text in "([a-c]: |- |\\[|\\]|\\{|\\}|&a |\\*a|\n|  |---\n|'|\"|#|!!?s |<<: |\\||>|\\PC){0,40}") {
        let documents = read_all(&text);
        prop_assert!(documents.len() <= text.len());
        for (index, document) in documents.iter().enumerate() {
            prop_assert_eq!(document.at.document, index + 1);
            prop_assert_eq!(document.at.line == 0, document.content.is_err());
        }
    }
}
