use super::*;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Machine {
    cpus: i64,
    memory_mib: u16,
    ratio: f64,
    labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum Auth {
    Generated {},
    SecretRef { name: String, key: String },
    None {},
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Mode {
    Shared,
    Unique,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    id: u32,
    #[serde(default)]
    on: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Thing {
    name: String,
    provider: crate::ProviderName,
    #[serde(default)]
    machine: Machine,
    #[serde(default)]
    auth: Option<Auth>,
    #[serde(default)]
    mode: Option<Mode>,
    #[serde(default)]
    paused: bool,
    #[serde(default)]
    parts: Vec<Part>,
    #[serde(default)]
    pair: Option<(u8, u8)>,
    #[serde(default)]
    password: Option<u8>,
    #[serde(default)]
    free: Value,
}

fn told(document: Value) -> Vec<String> {
    read_document::<Thing>(document)
        .findings
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn told_of(field: &str, value: Value) -> Vec<String> {
    let mut document = json!({"name": "n", "provider": "p"});
    document[field] = value;
    told(document)
}

#[test]
fn a_sound_document_is_read_and_nothing_is_found() {
    let thing: Thing = read_document(json!({
        "name": "n", "provider": "p", "machine": {"cpus": 2, "ratio": 1, "labels": {"a": "b"}},
        "auth": {"secretRef": {"name": "s", "key": "k"}}, "mode": "unique", "paused": true,
        "parts": [{"id": 1}, {"id": 2, "on": true}], "pair": [1, 2], "free": {"x": [null]},
    }))
    .into_result()
    .unwrap();
    assert_eq!(thing.machine.cpus, 2);
    assert_eq!(
        thing.auth,
        Some(Auth::SecretRef {
            name: "s".into(),
            key: "k".into()
        })
    );
    assert_eq!(thing.mode, Some(Mode::Unique));
    assert_eq!(
        thing.parts,
        [Part { id: 1, on: false }, Part { id: 2, on: true }]
    );
    assert_eq!(
        (thing.pair, thing.free),
        (Some((1, 2)), json!({"x": [null]}))
    );
}

#[test]
fn all_faults_are_told_at_once_each_with_its_own_place() {
    let document = json!({
        "provider": "Not Legal", "nmae": "x", "paused": "False", "mode": "uniqe",
        "machine": {"cpus": "4", "memoryMib": 70_000, "disk": 3, "labels": {"a.b/c": 1}},
        "auth": {"generated": {}, "none": {}},
        "parts": [{"id": -1}, 7, {"on": 0}, {"id": 4, "of": true}],
    });
    assert_eq!(
        told(document),
        [
            "auth: {generated, none}: names more than one choice: \
             keep exactly one of `generated`, `secretRef`, `none`",
            "machine.cpus: \"4\": must be a whole number, not a text: write 4, without quotes",
            "machine.disk: 3: unknown field: \
             use one of `cpus`, `memoryMib`, `ratio`, `labels`",
            "machine.labels[\"a.b/c\"]: 1: must be a text, not a number: put it in quotes, \"1\"",
            "machine.memoryMib: 70000: is out of bounds: write a whole number of 0 to 65535",
            "mode: uniqe: unknown value: did you mean `unique`?",
            "nmae: (hidden): unknown field: did you mean `name`?",
            "parts[0].id: -1: is out of bounds: write a whole number of 0 to 4294967295",
            "parts[1]: 7: must be a map of fields, not a number: write its fields below it",
            "parts[2].on: 0: must be true or false, not a number: write false",
            "parts[2].id: (missing): is required: add `id`",
            "parts[3].of: true: unknown field: use one of `id`, `on`",
            "paused: \"False\": must be true or false, not a text: write false, without quotes",
            "provider: Not Legal: \"Not Legal\" is not a valid provider name: \
             use 1 to 63 of a-z, 0-9 and '-', not beginning or ending with '-'",
            "name: (missing): is required: add `name`",
        ]
    );
}

#[test]
fn every_missing_field_is_told_also_within_what_is_missing_itself() {
    assert_eq!(
        told(json!({"auth": {"secretRef": {}}})),
        [
            "auth.secretRef.name: (missing): is required: add `name`",
            "auth.secretRef.key: (missing): is required: add `key`",
            "name: (missing): is required: add `name`",
            "provider: (missing): is required: add `provider`",
        ]
    );
    assert_eq!(
        told(json!({"name": null, "provider": "p"})),
        ["name: (missing): is required: add `name`"]
    );
}

#[test]
fn an_enum_is_told_by_its_choices() {
    for (written, expected) in [
        (
            json!({"secretref": {"name": "s"}}),
            "auth.secretref: (hidden): unknown choice: did you mean `secretRef`?",
        ),
        (
            json!("none"),
            "auth: none: must be a map of fields: write {none: {}}",
        ),
        (
            json!("nope"),
            "auth: nope: unknown value: did you mean `none`?",
        ),
        (
            json!({}),
            "auth: {}: names no choice: write one of `generated`, `secretRef`, `none`",
        ),
        (
            json!(true),
            "auth: true: names no choice: write one of `generated`, `secretRef`, `none`",
        ),
        (
            json!({"none": null}),
            "auth.none: null: must be a map of fields, not empty: write its fields below it, or {}",
        ),
        (
            json!({"none": {"x": 1}}),
            "auth.none.x: 1: unknown field: remove it",
        ),
    ] {
        assert_eq!(told_of("auth", written), [expected]);
    }
    assert_eq!(told_of("mode", json!({"unique": 1})).len(), 1);
    assert_eq!(told_of("mode", json!({"unique": null})), [""; 0]);
}

#[test]
fn what_is_wrong_within_a_choice_is_not_told_of_the_choice_again() {
    assert_eq!(
        told_of("auth", json!({"secretRef": 1})),
        [
            "auth.secretRef: (hidden): must be a map of fields, not a number: write its fields below it"
        ]
    );
}

#[test]
fn a_field_written_without_a_value_counts_as_not_written() {
    let thing: Thing =
        read_document(json!({"name": "n", "provider": "p", "machine": null, "parts": null}))
            .into_result()
            .unwrap();
    assert_eq!(thing.machine, Machine::default());
    assert_eq!(
        told_of("mashine", Value::Null),
        ["mashine: null: unknown field: did you mean `machine`?"]
    );
}

#[test]
fn a_list_is_no_struct_and_a_text_no_list() {
    assert_eq!(
        told_of("machine", json!([1, 2])),
        [
            "machine: (a list of 2): must be a map of fields, not a list: write its fields without `- `"
        ]
    );
    assert_eq!(
        told_of("parts", json!("a")),
        ["parts: a: must be a list, not a text: write [a]"]
    );
    assert_eq!(
        told_of("parts", json!({"id": 1})),
        ["parts: {id}: must be a list, not a map of fields: begin each item with `- `"]
    );
}

#[test]
fn no_secret_is_repeated_not_even_under_a_misspelt_name() {
    for document in [
        json!({"name": "n", "provider": "p", "password": "hunter2"}),
        json!({"name": "n", "provider": "p", "passwrod": 7_777_777}),
        json!({"name": "n", "provider": "p", "pass": "hunter2"}),
        json!({"name": "n", "provider": "p", "auth": [{"password": "hunter2"}]}),
        json!({"name": "n", "provider": "p", "machine": {"labels": {"token": ["hunter2"]}}}),
    ] {
        let lines = told(document);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            !lines[0].contains("hunter2") && !lines[0].contains("7777777"),
            "{lines:?}"
        );
    }
}

#[test]
fn what_validation_finds_is_added_where_the_structure_was_sound() {
    let reading = read_document::<Thing>(json!({"provider": "p", "machine": {"cpus": "x"}}));
    let both = reading.checked(|thing| {
        assert_eq!((thing.name.as_str(), thing.machine.cpus), ("", 0));
        vec![
            Finding::new("name", "", "is empty", "write one"),
            Finding::new("machine.cpus", 0, "is too small", "write 1"),
            Finding::new("machine.ratio", 0, "is too small", "write 1"),
        ]
    });
    let paths: Vec<_> = both.findings.iter().map(|f| f.path.as_str()).collect();
    assert_eq!(paths, ["machine.cpus", "name", "machine.ratio"]);
    assert!(both.into_result().is_err());
}

/// A type whose required fields take no empty text and no zero.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Strict {
    name: crate::ProviderName,
    address: std::net::IpAddr,
    socket: std::net::SocketAddr,
    network: ipnet::IpNet,
    count: std::num::NonZeroU8,
    rest: i64,
}

#[test]
fn a_bad_field_that_takes_no_empty_value_hides_nothing_of_its_block() {
    let blocks = json!([
        {"name": "Bad Name", "address": 5, "socket": "here", "count": 0, "rest": -1},
        {"name": "good", "address": "::1", "socket": "[::1]:1", "network": "::/0", "count": 1, "rest": -2},
    ]);
    let reading = read_document::<Vec<Strict>>(blocks).checked(|blocks| {
        let negative = blocks.iter().enumerate().filter(|(_, b)| b.rest < 0);
        negative
            .map(|(i, b)| Finding::new(format!("[{i}].rest"), b.rest, "is negative", "write 0"))
            .collect()
    });
    let paths: Vec<&str> = reading.findings.iter().map(|f| f.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "[0].address",
            "[0].count",
            "[0].name",
            "[0].socket",
            "[0].network",
            "[0].rest",
            "[1].rest"
        ]
    );
}

#[test]
fn a_document_of_the_wrong_kind_is_told_as_a_whole() {
    assert_eq!(
        told(json!("x")),
        ["x: must be a map of fields, not a text: write its fields below it"]
    );
    assert_eq!(told(json!([])).len(), 1);
}

#[test]
fn the_list_of_faults_ends_at_a_hundred() {
    let parts: Vec<_> = (0..5_000).map(|_| json!({"id": "x"})).collect();
    let findings =
        read_document::<Thing>(json!({"name": "n", "provider": "p", "parts": parts})).findings;
    assert_eq!(findings.len(), MAX_FINDINGS + 1);
    assert_eq!(
        findings[MAX_FINDINGS].to_string(),
        "100 faults: there may be more: correct these first"
    );
}

#[derive(Debug, Deserialize)]
#[allow(dead_code)] // its shape matters, not its content
struct Endless {
    again: Box<Endless>,
}

#[test]
fn a_type_that_contains_itself_ends_all_the_same() {
    let reading = read_document::<Endless>(json!({"again": {"again": {}}}));
    assert!(reading.value.is_none());
    assert_eq!(reading.findings[0].path, "again.again.again");
}

fn any_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "name",
        "provider",
        "machine",
        "cpus",
        "memoryMib",
        "labels",
        "auth",
        "generated",
        "secretRef",
        "none",
        "key",
        "mode",
        "paused",
        "parts",
        "id",
        "on",
        "pair",
        "password",
        "free",
        "odd \"name\".",
        "",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec!["", "n", "none", "shared", "4", "False"]).prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..10).prop_map(|entries| {
                Value::Object(
                    entries
                        .into_iter()
                        .map(|(k, v)| (k.to_owned(), v))
                        .collect(),
                )
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn any_json_is_either_read_or_told_what_is_wrong_with_it(document in any_json()) {
        let reading = read_document::<Thing>(document.clone());
        prop_assert!(reading.findings.len() <= MAX_FINDINGS + 1);
        // The reader agrees with serde_json about what is right, but for the two things it
        // is stricter (lists as structs) or more lenient (fields without a value) in.
        let sound = reading.value.is_some() && reading.findings.is_empty();
        if serde_json::from_value::<Thing>(document.clone()).is_ok() {
            let strict = reading.findings.iter().all(|f| f.problem.ends_with("not a list"));
            prop_assert!(sound || strict, "{:?}", reading.findings);
        } else if !document.to_string().contains("null") {
            prop_assert!(!sound, "{document}");
        }
        prop_assert!(sound || !reading.findings.is_empty());
        for finding in &reading.findings {
            prop_assert!(finding.value.chars().count() <= crate::finding::MAX_VALUE_CHARS);
            prop_assert!(!finding.problem.is_empty() && !finding.remedy.is_empty());
        }
    }

    #[test]
    fn exactly_the_unknown_fields_are_told(unknown in prop::collection::btree_set("x[a-z]{6}", 0..20)) {
        let mut document = json!({"name": "n", "provider": "p", "machine": {"cpus": 1}});
        for (index, field) in unknown.iter().enumerate() {
            let place = if index % 2 == 0 { &mut document } else { &mut document["machine"] };
            place[field.as_str()] = json!(index);
        }
        let findings = read_document::<Thing>(document).findings;
        prop_assert_eq!(findings.len(), unknown.len());
        prop_assert!(findings.iter().all(|f| f.problem == "unknown field"));
    }
}
