//! From the types to schemas that the API server takes.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::ValidationRule;
use kube_core::schema::{OptionalEnum, StructuralSchemaRewriter};
use schemars::{JsonSchema, generate::SchemaSettings, transform::AddNullable};
use serde_json::{Map, Value, json};
use std::ops::RangeInclusive;

/// The longest message of a condition, as for every condition in Kubernetes.
pub(super) const MAX_MESSAGE_CHARS: usize = 32_768;
/// The longest text of a finding.
pub(super) const MAX_FINDING_CHARS: usize = 1_024;

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
/// - `title`: the name of a Rust type; and the links in descriptions, which lead nowhere.
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
    if let Some(Value::String(text)) = keys.get_mut("description") {
        *text = text.replace("[`", "`").replace("`]", "`");
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

/// A place in a schema, to add to it what the types do not say.
pub(super) struct Place<'a>(&'a mut Map<String, Value>);

impl<'a> Place<'a> {
    /// The schema itself.
    pub(super) fn root(schema: &'a mut Value) -> Self {
        Self(schema.as_object_mut().expect("a schema is an object"))
    }

    /// The place of a field (`proxy.port`) or of the items of a list (`proxy.clients[]`).
    pub(super) fn at(&mut self, path: &str) -> Place<'_> {
        let mut here = &mut *self.0;
        for part in path.split('.') {
            let (name, is_list) = match part.strip_suffix("[]") {
                Some(name) => (name, true),
                None => (part, false),
            };
            let found = here.get_mut("properties").and_then(|p| p.get_mut(name));
            let found = if is_list {
                found.and_then(|list| list.get_mut("items"))
            } else {
                found
            };
            here = found
                .and_then(Value::as_object_mut)
                .unwrap_or_else(|| panic!("the types have no field {path}"));
        }
        Place(here)
    }

    /// Sets a key of the schema.
    pub(super) fn set(self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// Takes a key out.
    pub(super) fn without(self, key: &str) -> Self {
        self.0.remove(key);
        self
    }

    /// A number within these bounds.
    pub(super) fn within(self, bounds: &RangeInclusive<i64>) -> Self {
        self.set("minimum", *bounds.start())
            .set("maximum", *bounds.end())
    }

    /// Adds a rule.
    pub(super) fn rule(self, rule: Rule) -> Self {
        let rules = self
            .0
            .entry("x-kubernetes-validations")
            .or_insert_with(|| json!([]));
        let rule = serde_json::to_value(rule.0).expect("a rule is JSON");
        rules.as_array_mut().expect("a list").push(rule);
        self
    }
}

/// A rule in the Common Expression Language, with what is told when it does not hold.
pub(super) struct Rule(ValidationRule);

impl Rule {
    /// A rule that holds for a sound value; else its message says what is wrong and what to do.
    pub(super) fn new(rule: &str, problem: &str, remedy: &str) -> Self {
        Self(ValidationRule {
            rule: rule.to_owned(),
            message: Some(format!("{problem}: {remedy}")),
            ..ValidationRule::default()
        })
    }

    /// A message with the value in it, in the Common Expression Language; the plain message is
    /// for the case that it cannot be made.
    pub(super) fn saying(mut self, expression: &str) -> Self {
        self.0.message_expression = Some(expression.to_owned());
        self
    }

    /// Why the server refuses the value, where not for being invalid.
    pub(super) fn because(mut self, reason: &str) -> Self {
        self.0.reason = Some(reason.to_owned());
        self
    }

    /// The field at fault, below the place of the rule: `.auth`.
    pub(super) fn on(mut self, field: &str) -> Self {
        self.0.field_path = Some(field.to_owned());
        self
    }
}

/// The schema of a whole object of these parts.
pub(super) fn whole(description: &str, parts: &[(&str, Value)], required: &[&str]) -> Value {
    let properties: Map<String, Value> = parts
        .iter()
        .map(|(name, schema)| ((*name).to_owned(), schema.clone()))
        .collect();
    let mut schema = json!({
        "type": "object",
        "description": description,
        "properties": properties,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}
