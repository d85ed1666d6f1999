//! From the types to schemas that the API server takes.

use kube_core::schema::{OptionalEnum, StructuralSchemaRewriter};
use schemars::{JsonSchema, generate::SchemaSettings, transform::AddNullable};
use serde_json::{Map, Value, json};

/// The longest message of a condition, as for every condition in Kubernetes.
pub(super) const MAX_MESSAGE_CHARS: usize = 32_768;
/// The longest text of a finding.
pub(super) const MAX_FINDING_CHARS: usize = 1_024;
/// The longest name, id or address in a status.
pub(super) const MAX_TEXT_CHARS: usize = 512;

/// The structural schema of a type.
pub(super) fn structural<T: JsonSchema>() -> Value {
    let schema = SchemaSettings::openapi3()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .into_generator()
        .into_root_schema_for::<T>();
    let mut schema = Value::from(schema);
    plain(&mut schema);
    schema
}

/// Takes out of a schema, and of all within it, what does harm in a cluster:
///
/// - `title`: the name of a Rust type.
/// - `nullable`: without it the API server takes a null for a field that is not written, as we
///   do; with it a null would be stored, and no default set.
/// - `additionalProperties: false`: refused by the API server, which drops unknown fields by
///   itself.
/// - Defaults of objects: a default of each field within does the same, and a default of a
///   union (`auth: {generated: {}}`) would stand beside what a user applies later.
fn plain(schema: &mut Value) {
    let Value::Object(keys) = schema else { return };
    for key in ["title", "nullable"] {
        keys.remove(key);
    }
    if keys.get("additionalProperties") == Some(&Value::Bool(false)) {
        keys.remove("additionalProperties");
    }
    match keys.get("default") {
        Some(Value::Object(_)) => {
            let has_defaults_within = keys
                .get("properties")
                .and_then(Value::as_object)
                .is_some_and(|properties| properties.values().any(|p| p.get("default").is_some()));
            if has_defaults_within && !keys.contains_key("oneOf") {
                keys.insert("default".into(), json!({}));
            } else {
                keys.remove("default");
            }
        }
        Some(Value::Array(items)) if items.is_empty() => {
            keys.remove("default");
        }
        _ => {}
    }
    if let Some(properties) = keys.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(plain);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = keys.get_mut(key) {
            plain(inner);
        }
    }
}

/// The schema of a whole object of these parts.
pub(super) fn whole(description: &str, parts: &[(&str, Value)], required: &[&str]) -> Value {
    let properties: Map<String, Value> = parts
        .iter()
        .map(|(name, schema)| ((*name).to_owned(), schema.clone()))
        .collect();
    json!({
        "type": "object",
        "description": description,
        "properties": properties,
        "required": required,
    })
}
