//! The table of good and bad manifests: every file of `manifests/`, and what is found in it.
//! After a change of wording: `UPDATE_GOLDEN=1 cargo test -p egress-api`, then read the diff.

use egress_api::manifest::{Document, documents, duplicates};
use egress_api::v1alpha1::Proxy;
use std::{
    fs,
    path::{Path, PathBuf},
};

fn yaml_files(directory: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/manifests")
        .join(directory);
    let mut files: Vec<_> = fs::read_dir(directory)
        .expect("the table is there")
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    files.sort();
    assert!(files.len() > 3);
    files
}

fn proxies(text: &str) -> Vec<Proxy> {
    documents(text)
        .entries
        .into_iter()
        .filter_map(|entry| match entry.content {
            Ok(Document::Proxy(proxy)) => Some(*proxy),
            _ => None,
        })
        .collect()
}

#[test]
fn every_good_manifest_is_accepted_and_the_same_when_written_out_again() {
    for file in yaml_files("good") {
        let text = fs::read_to_string(&file).expect("a manifest");
        let read = documents(&text);
        assert_eq!(read.faults("good"), [""; 0], "{}", file.display());
        assert!(read.is_complete());
        let proxies = proxies(&text);
        assert!(!proxies.is_empty(), "{}", file.display());
        for proxy in proxies {
            let accepted = proxy.accept(None).expect("a sound Proxy");
            assert_eq!(accepted.id.name(), proxy.metadata.name);
            // JSON is YAML, and has every default written out.
            let written = serde_json::to_string(&proxy).expect("JSON");
            let again = self::proxies(&written).remove(0);
            assert_eq!(again, proxy);
            assert_eq!(again.accept(None).expect("a sound Proxy"), accepted);
        }
    }
}

#[test]
fn every_fault_of_a_bad_manifest_is_told_at_once_and_no_secret_is_repeated_b201() {
    for file in yaml_files("bad") {
        let text = fs::read_to_string(&file).expect("a manifest");
        let name = file
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name");
        let mut told = documents(&text).faults(name).join("\n");
        told.push('\n');
        assert!(
            !told.contains("hunter2") && !told.contains("1234567"),
            "{told}"
        );
        let golden = file.with_extension("txt");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&golden, &told).expect("the golden file is written");
        }
        let expected = fs::read_to_string(&golden).expect("the expected findings");
        assert_eq!(told, expected, "{}", file.display());
        assert!(told.len() > 1, "{name} has no fault");
    }
}

#[test]
fn no_boolean_but_true_and_false_is_taken_for_one_b201() {
    let with = |written: &str| {
        let text = format!(
            "apiVersion: egress-proxies.io/v1alpha1\nkind: Proxy\nmetadata: {{name: a}}\n\
             spec: {{provider: local, paused: {written}}}\n"
        );
        proxies(&text).first().map(|proxy| proxy.spec.paused)
    };
    for refused in [
        "\"False\"",
        "\"false\"",
        "0",
        "1",
        "no",
        "yes",
        "off",
        "on",
        "n",
        "y",
        "\"\"",
        "[]",
        "{}",
    ] {
        assert_eq!(with(refused), None, "{refused}");
    }
    for (taken, meaning) in [
        ("true", true),
        ("True", true),
        ("false", false),
        ("False", false),
        ("", false),
    ] {
        assert_eq!(with(taken), Some(meaning), "{taken}");
    }
}

#[test]
fn the_example_of_three_proxies_is_sound() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/manifests/three-proxies.yaml");
    let text = fs::read_to_string(file).expect("the example");
    let read = documents(&text);
    assert_eq!(read.faults("three-proxies.yaml"), [""; 0]);
    assert_eq!(duplicates([("three-proxies.yaml", &read)]), []);
    assert_eq!(proxies(&text).len(), 3);
    for proxy in proxies(&text) {
        proxy.accept(None).expect("a sound Proxy");
    }
    let secrets: Vec<_> = read
        .entries
        .iter()
        .filter_map(|entry| match &entry.content {
            Ok(Document::Secret(secret)) => Some(secret),
            _ => None,
        })
        .collect();
    assert_eq!(
        secrets[0]
            .basic_credentials()
            .expect("credentials")
            .username,
        "scraper"
    );
}
