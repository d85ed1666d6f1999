use super::*;
use proptest::prelude::*;
use secrecy::ExposeSecret;

fn proxy(name: &str) -> String {
    format!(
        "apiVersion: egress-proxies.io/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}}}\n\
         spec: {{provider: local}}\n---\n"
    )
}

fn secret(fields: &str) -> Secret {
    let text = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\n{fields}");
    match documents(&text).entries.remove(0).content {
        Ok(Document::Secret(secret)) => secret,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_plain_values_of_a_secret_lie_over_the_encoded_ones() {
    let secret = secret(
        "data: {username: YWRtaW4=, password: \"aHVu\\ndGVyMg==\\n\", token: b2xk}\nstringData: {token: new}",
    );
    let value = |key: &str| secret.data[key].expose_secret().to_owned();
    assert_eq!(
        (value("username"), value("password"), value("token")),
        ("admin".to_owned(), "hunter2".to_owned(), "new".to_owned())
    );
}

#[test]
fn no_print_of_a_document_shows_what_is_in_a_secret() {
    let read = documents(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: hunter2}\n---\n\
         apiVersion: v1\nkind: Secret\nmetadata: {name: t}\nstringData: {password: [hunter2]}\n",
    );
    let printed = format!("{read:?}");
    assert!(
        printed.contains("password") && !printed.contains("hunter2"),
        "{printed}"
    );
    let credentials = secret("stringData: {username: u, password: hunter2}").basic_credentials();
    assert!(!format!("{credentials:?}").contains("hunter2"));
}

#[test]
fn credentials_are_a_user_name_and_a_password_that_http_basic_can_carry() {
    let good = secret("stringData: {username: u, password: \"p:w\"}")
        .basic_credentials()
        .unwrap();
    assert_eq!(
        (good.username.as_str(), good.password.expose_secret()),
        ("u", "p:w")
    );
    let told = |fields: &str| -> Vec<String> {
        let findings = secret(fields).basic_credentials().unwrap_err();
        findings.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        told("stringData: {user: u}"),
        [
            "data.username: (missing): is required: add the key username",
            "data.password: (missing): is required: add the key password",
        ]
    );
    assert_eq!(
        told("stringData: {username: \"a:b\", password: \"\"}").len(),
        2
    );
    assert_eq!(
        told("stringData: {username: a, password: \"b\\n\"}").len(),
        1
    );
}

#[test]
fn a_faulty_document_still_says_which_object_it_is_about() {
    let read = documents(
        "apiVersion: egress-proxies.io/v1alpha1\nkind: Proxy\nmetadata: {name: a, namespace: n}\nspec: {}\n",
    );
    let entry = &read.entries[0];
    assert!(entry.content.is_err());
    assert_eq!(entry.id.as_ref().unwrap().to_string(), "Proxy n/a");
    assert!(read.is_complete());
}

#[test]
fn a_file_with_something_unreadable_is_not_complete() {
    for rest in [
        "a: [",
        "kind: Proxy\n",
        "a: 1\na: 2\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n",
    ] {
        let read = documents(&format!("{}{rest}", proxy("a")));
        assert!(!read.is_complete(), "{rest}");
        assert!(read.entries[0].content.is_ok());
    }
    assert!(documents("").is_complete());
}

#[test]
fn an_object_declared_twice_is_told_at_both_places() {
    let first = documents(&format!("{}{}", proxy("a"), proxy("b")));
    let second = documents(&format!("{}{}", proxy("c"), proxy("b")));
    let found = duplicates([("one.yaml", &first), ("two.yaml", &second)]);
    let lines: Vec<_> = found
        .iter()
        .map(|d| format!("{}: {}: {}", d.file, d.at, d.finding))
        .collect();
    assert_eq!(
        lines,
        [
            "one.yaml: document 2 (line 6): metadata.name: default/b: \
             is also declared in two.yaml, document 2 (line 6): rename or remove one of them",
            "two.yaml: document 2 (line 6): metadata.name: default/b: \
             is also declared in one.yaml, document 2 (line 6): rename or remove one of them",
        ]
    );
    assert_eq!(duplicates([("one.yaml", &first)]), []);
    let same_name = documents(&format!(
        "{}apiVersion: v1\nkind: Secret\nmetadata: {{name: a}}\n",
        proxy("a")
    ));
    assert_eq!(duplicates([("one.yaml", &same_name)]), []);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn a_manifest_cut_short_anywhere_is_read_or_told_and_never_shows_its_secret(cut in 0usize..400) {
        let whole = format!(
            "{}apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData:\n  username: u\n  password: hunter2\n---\n{}",
            proxy("a"),
            proxy("b"),
        );
        let text: String = whole.chars().take(cut).collect();
        let read = documents(&text);
        for line in read.faults("f") {
            prop_assert!(!line.contains("hunter2"), "{line}");
        }
        prop_assert!(read.entries.iter().all(|e| e.content.is_ok() || e.content.as_ref().is_err_and(|f| !f.is_empty())));
    }
}
