//! The page of the custom resources: every field, from the definitions themselves.

use super::GENERATED;
use egress_api::v1alpha1::cluster::crds;
use serde_json::Value;
use std::fmt::Write as _;

const INTRODUCTION: &str = "\
# Custom resources

The kinds of the group `egress-proxies.io`, version `v1alpha1`. `egress-proxies crds` prints the \
definitions; they lie in [deploy/chart/files/crds](../deploy/chart/files/crds). What is said of \
a Proxy's `spec` holds for manifests of `standalone` too.

The API server refuses what breaks a bound or a rule, with the message below. What it cannot \
see, such as a provider that is not configured, is told in the condition `Accepted`. Fields \
without a default may be left out, unless they are required. Of `userData` and `auth`, exactly \
one choice is written; another one takes its place as a whole.
";

/// The page.
pub(super) fn page() -> String {
    let mut page = format!("{GENERATED}{INTRODUCTION}");
    for crd in crds() {
        let crd = serde_json::to_value(crd).unwrap_or_default();
        kind(&mut page, &crd["spec"]);
    }
    page
}

fn kind(page: &mut String, spec: &Value) {
    let names = &spec["names"];
    let version = &spec["versions"][0];
    let schema = &version["schema"]["openAPIV3Schema"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let listed = |value: &Value| {
        let all: Vec<String> = value.as_array().into_iter().flatten().map(text).collect();
        all.join("`, `")
    };
    let _ = write!(
        page,
        "\n## {}\n\n{}\n\n{}; `kubectl get {}`, short `{}`, in the category `{}`.",
        text(&names["kind"]),
        text(&schema["description"]),
        text(&spec["scope"]),
        text(&names["plural"]),
        listed(&names["shortNames"]),
        listed(&names["categories"]),
    );
    let selectable: Vec<String> = version["selectableFields"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|field| text(&field["jsonPath"]).trim_start_matches('.').to_owned())
        .collect();
    if !selectable.is_empty() {
        let _ = write!(
            page,
            " `--field-selector` takes `{}`.",
            selectable.join("`, `")
        );
    }
    page.push('\n');
    for part in ["spec", "status"] {
        let schema = &schema["properties"][part];
        if schema.is_null() {
            continue;
        }
        let _ = write!(
            page,
            "\n### {} {part}\n\n| field | type | default | bounds | meaning |\n|---|---|---|---|---|\n",
            text(&names["kind"])
        );
        rows(page, schema, part);
        let mut rules = String::new();
        messages(&mut rules, schema, part);
        if !rules.is_empty() {
            let _ = write!(
                page,
                "\nRules:\n\n| field | refused as |\n|---|---|\n{rules}"
            );
        }
    }
}

fn rows(page: &mut String, schema: &Value, path: &str) {
    let required = &schema["required"];
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let is_required = required
            .as_array()
            .is_some_and(|r| r.iter().any(|r| r == name));
        let default = match &field["default"] {
            Value::Null if is_required => "required".to_owned(),
            // Those of the fields within.
            Value::Null | Value::Object(_) => String::new(),
            value => format!("`{value}`"),
        };
        let meaning = field["description"].as_str().unwrap_or_default();
        let _ = writeln!(
            page,
            "| `{path}` | {} | {default} | {} | {} |",
            type_of(field),
            bounds(field),
            meaning.replace('\n', " ").replace('|', "\\|")
        );
        rows(page, field, &path);
        rows(page, &field["items"], &format!("{path}[]"));
    }
}

fn type_of(field: &Value) -> String {
    match field["type"].as_str().unwrap_or_default() {
        "array" => format!("list of {}", type_of(&field["items"])),
        "string" if field["format"] == "date-time" => "time".to_owned(),
        other => other.to_owned(),
    }
}

fn bounds(field: &Value) -> String {
    let mut all = Vec::new();
    let (items, schema) = (&field["items"], field);
    for schema in [schema, items] {
        if let Some(choices) = schema["enum"].as_array() {
            let choices: Vec<String> = choices
                .iter()
                .filter_map(|choice| choice.as_str())
                .map(|choice| format!("`{choice}`"))
                .collect();
            all.push(choices.join(", "));
        }
        if let (Some(least), Some(most)) = (schema["minimum"].as_f64(), schema["maximum"].as_f64())
        {
            all.push(format!("{least} to {most}"));
        }
        if let Some(most) = schema["maxItems"].as_u64() {
            all.push(format!("{most} entries"));
        }
        if let Some(most) = schema["maxLength"].as_u64() {
            all.push(format!("{most} characters"));
        }
    }
    all.join("; ")
}

fn messages(page: &mut String, schema: &Value, path: &str) {
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let below = rule["fieldPath"].as_str().unwrap_or_default();
        let message = rule["message"].as_str().unwrap_or_default();
        let _ = writeln!(page, "| `{path}{below}` | {message} |");
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        messages(page, field, &format!("{path}.{name}"));
        messages(page, &field["items"], &format!("{path}.{name}[]"));
    }
}
