//! The table of what a Proxy is answered at both doors: as a manifest, by `validate()`, and in
//! a cluster, by the schema and the rules of the custom resource.

use egress_api::v1alpha1::{
    API_VERSION, Proxy,
    cluster::{ProxyObject, crds, proxy_crd},
};
use kube_cel::{Validator, apply_defaults, compile_schema};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(rename = "row")]
    title: String,
    #[serde(default)]
    metadata: Option<Value>,
    spec: Value,
    #[serde(default)]
    before: Option<Value>,
    #[serde(default)]
    manifest: Vec<String>,
    #[serde(default)]
    cluster: Option<Vec<String>>,
    #[serde(default)]
    because: Option<String>,
}

impl Row {
    fn object(&self, spec: &Value) -> Value {
        let named = || json!({"name": "one", "namespace": "team"});
        json!({
            "apiVersion": API_VERSION,
            "kind": "Proxy",
            "metadata": self.metadata.clone().unwrap_or_else(named),
            "spec": spec,
        })
    }
}

fn rows() -> Vec<Row> {
    let text = include_str!("admission.yaml");
    let rows: Vec<Row> = serde_saphyr::from_str(text).expect("the table");
    assert!(rows.len() > 40);
    rows
}

fn schema() -> Value {
    let crd = proxy_crd();
    let schema = crd.spec.versions[0].schema.as_ref();
    serde_json::to_value(schema.and_then(|s| s.open_api_v3_schema.as_ref())).expect("JSON")
}

/// What the schema alone refuses, in the API server's words, shortened: the server says
/// `spec.x in body should be ...`. Holds for the keywords that our schemas use.
fn structural_faults(schema: &Value, value: &Value, path: &str, faults: &mut Vec<String>) {
    let mut fault = |what: String| faults.push(format!("{path}: {what}"));
    let wanted = schema["type"].as_str().unwrap_or_default();
    let fits = match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        other => panic!("{path}: no rule for the type {other:?}"),
    };
    if !fits {
        return fault(format!("must be of type {wanted}"));
    }
    let count = |key: &str| schema[key].as_u64();
    match value {
        Value::Number(number) => {
            let number = number.as_i64().expect("a number of ours");
            if let Some(least) = schema["minimum"].as_f64().filter(|m| (number as f64) < *m) {
                fault(format!("should be greater than or equal to {least}"));
            }
            if let Some(most) = schema["maximum"].as_f64().filter(|m| (number as f64) > *m) {
                fault(format!("should be less than or equal to {most}"));
            }
        }
        Value::String(text) => {
            let most = count("maxLength").filter(|m| text.chars().count() as u64 > *m);
            if let Some(most) = most {
                fault(format!("may not be more than {most} bytes"));
            }
            if let Some(choices) = schema["enum"].as_array().filter(|c| !c.contains(value)) {
                let all: Vec<String> = choices.iter().map(ToString::to_string).collect();
                fault(format!("supported values: {}", all.join(", ")));
            }
        }
        Value::Array(items) => {
            if let Some(most) = count("maxItems").filter(|m| items.len() as u64 > *m) {
                fault(format!("must have at most {most} items"));
            }
            for (index, item) in items.iter().enumerate() {
                structural_faults(&schema["items"], item, &format!("{path}[{index}]"), faults);
            }
        }
        Value::Object(fields) => {
            for name in schema["required"].as_array().into_iter().flatten() {
                let name = name.as_str().expect("a name");
                if !fields.contains_key(name) {
                    faults.push(format!("{}: Required value", below(path, name)));
                }
            }
            for (name, field) in fields {
                match &schema["properties"][name] {
                    Value::Null => {} // dropped
                    schema => structural_faults(schema, field, &below(path, name), faults),
                }
            }
        }
        _ => {}
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// A spec as the API server stores it: defaults of objects are filled in turn.
fn with_defaults(schema: &Value, spec: &Value) -> Value {
    let mut object = json!({"spec": spec});
    loop {
        let filled = apply_defaults(schema, &object);
        if filled == object {
            return object["spec"].take();
        }
        object = filled;
    }
}

/// What a cluster says of a spec that is created, or changed from another one.
fn of_the_cluster(schema: &Value, row: &Row) -> Vec<String> {
    let defaulted = |spec: &Value| {
        let mut object = row.object(&with_defaults(schema, spec));
        // The server checks these by itself.
        object
            .as_object_mut()
            .expect("an object")
            .retain(|key, _| key == "spec");
        object
    };
    let object = defaulted(&row.spec);
    let mut faults = Vec::new();
    structural_faults(schema, &object, "", &mut faults);
    if !faults.is_empty() {
        return faults;
    }
    let before = row.before.as_ref().map(defaulted);
    match Validator::new().validate(schema, &object, before.as_ref()) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

/// `path: value: what is wrong: what to do` without the value.
fn without_value(finding: &str) -> String {
    let (path, rest) = finding.split_once(": ").expect("a path");
    let (_, message) = rest.split_once(": ").expect("a value");
    format!("{path}: {message}")
}

#[test]
fn every_row_is_answered_as_the_table_says_at_both_doors() {
    let schema = schema();
    let mut wrong = Vec::new();
    for row in rows() {
        let findings = Proxy::read(row.object(&row.spec)).findings;
        let told: Vec<String> = findings.iter().map(ToString::to_string).collect();
        if told != row.manifest {
            wrong.push(format!("{}: as a manifest: {told:#?}", row.title));
        }
        let same: Vec<String> = row.manifest.iter().map(|f| without_value(f)).collect();
        let expected = row.cluster.as_ref().unwrap_or(&same);
        let said = of_the_cluster(&schema, &row);
        if said != *expected {
            wrong.push(format!("{}: in the cluster: {said:#?}", row.title));
        }
        if (*expected != same) != row.because.is_some() {
            wrong.push(format!(
                "{}: `because` stands where, and only where, the two differ",
                row.title
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_object_of_a_cluster_is_told_what_its_manifest_is_told() {
    for row in rows() {
        let written = row.object(&row.spec);
        let object: ProxyObject = serde_json::from_value(written.clone()).expect("an object");
        let (of_object, of_manifest) = (object.read(), Proxy::read(written));
        assert_eq!(of_object.findings, of_manifest.findings, "{}", row.title);
        assert_eq!(
            of_object.value.map(|proxy| proxy.spec),
            of_manifest.value.map(|proxy| proxy.spec),
            "{}",
            row.title
        );
    }
}

#[test]
fn the_defaults_of_the_schema_are_our_own_and_change_no_fingerprint() {
    let schema = schema();
    for row in rows().into_iter().filter(|row| row.manifest.is_empty()) {
        let plain = Proxy::read(row.object(&row.spec))
            .into_result()
            .expect("sound");
        let defaulted = with_defaults(&schema, &row.spec);
        let stored = Proxy::read(row.object(&defaulted))
            .into_result()
            .expect("sound");
        assert_eq!(stored, plain, "{}", row.title);
        let hash = |proxy: &Proxy| proxy.accept(None).expect("sound").spec.config_hash;
        assert_eq!(hash(&stored), hash(&plain), "{}", row.title);
    }
    let defaulted = with_defaults(&schema, &json!({"provider": "lab"}));
    let wanted = json!({
        "provider": "lab",
        "machine": {"cpus": 1, "memoryMiB": 512, "diskGiB": 4},
        "proxy": {"protocols": ["http"]},
        "egress": "shared",
        "probe": {"interval": "10s", "timeout": "5s", "failureThreshold": 3},
        "paused": false,
    });
    assert_eq!(defaulted, wanted);
}

/// Every rule below a schema, with its message.
fn rules(schema: &Value, path: &str, found: &mut Vec<(String, String)>) {
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let text = |key: &str| rule[key].as_str().unwrap_or_default().to_owned();
        found.push((format!("{path}: {}", text("rule")), text("message")));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        rules(field, &below(path, name), found);
    }
    if schema["items"].is_object() {
        rules(&schema["items"], &format!("{path}[]"), found);
    }
}

#[test]
fn every_rule_compiles_is_broken_by_a_row_and_names_the_remedy() {
    let schema = schema();
    let mut all = Vec::new();
    rules(&schema, "", &mut all);
    assert!(all.len() > 20, "{all:#?}");
    assert!(!compile_schema(&schema).has_errors());
    let told: Vec<String> = rows()
        .iter()
        .flat_map(|row| of_the_cluster(&schema, row))
        .collect();
    for (rule, message) in all {
        let (problem, remedy) = message.split_once(": ").expect("what is wrong: what to do");
        assert!(!remedy.is_empty());
        // The first words: some messages go on with the value.
        assert!(
            told.iter().any(|t| t.contains(problem)),
            "no row breaks {rule}: {message}"
        );
    }
}

/// Faults of a schema that the API server refuses or that let too much through.
fn unsound(schema: &Value, path: &str, faults: &mut Vec<String>) {
    let mut fault = |what: &str| faults.push(format!("{path}: {what}"));
    if schema["type"].as_str().is_none() {
        fault("has no type");
    }
    for key in [
        "nullable",
        "title",
        "oneOf",
        "anyOf",
        "allOf",
        "additionalProperties",
    ] {
        if !schema[key].is_null() {
            fault(&format!("has {key}"));
        }
    }
    if schema["description"].as_str().is_none_or(str::is_empty) && !path.ends_with("[]") {
        fault("has no description");
    }
    let is_spec = path.starts_with("spec");
    if schema["type"] == "array" && schema["maxItems"].is_null() {
        fault("is a list without bounds");
    }
    if is_spec
        && schema["type"] == "string"
        && schema["enum"].is_null()
        && schema["maxLength"].is_null()
    {
        fault("is a text without bounds");
    }
    if is_spec
        && schema["type"] == "integer"
        && (schema["minimum"].is_null() || schema["maximum"].is_null())
    {
        fault("is a number without bounds");
    }
    let format = &schema["format"];
    if !format.is_null() && !["int64", "date-time"].iter().any(|known| format == known) {
        fault("has a format that the server does not know");
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        unsound(field, &below(path, name), faults);
    }
    if schema["items"].is_object() {
        unsound(&schema["items"], &format!("{path}[]"), faults);
    }
}

#[test]
fn every_definition_is_structural_bounded_and_explained() {
    for crd in crds() {
        let version = serde_json::to_value(&crd.spec.versions[0]).expect("JSON");
        let schema = &version["schema"]["openAPIV3Schema"];
        let mut faults = Vec::new();
        unsound(schema, "", &mut faults);
        assert_eq!(faults, [""; 0], "{:?}", crd.metadata.name);
        assert_eq!(version["subresources"], json!({"status": {}}));
        assert_eq!(
            crd.spec.names.categories.as_deref(),
            Some(&["egress".to_owned()][..])
        );
    }
}
