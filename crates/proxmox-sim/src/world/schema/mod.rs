//! The published parameter schema: which calls there are, what they take, whom they let in.

mod formats;

use super::{answers::Refusal, params::Params};
pub(super) use formats::{normalised_tags, property_list, split_list};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    sync::LazyLock,
};

/// The calls of one major version.
#[derive(Debug, Deserialize)]
pub(super) struct Schema {
    formats: HashMap<String, BTreeMap<String, Property>>,
    routes: BTreeMap<String, Route>,
}

/// One call.
#[derive(Debug, Deserialize)]
pub(super) struct Route {
    /// Whether pvedaemon does it.
    #[serde(default)]
    pub(super) protected: u8,
    /// Whether tokens may use it.
    #[serde(default)]
    allowtoken: u8,
    /// Whether it is passed on to the node in the path.
    #[serde(default)]
    pub(super) proxyto: Option<String>,
    #[serde(default)]
    permissions: Option<Permissions>,
    properties: BTreeMap<String, Property>,
}

#[derive(Debug, Deserialize)]
struct Permissions {
    #[serde(default)]
    check: Option<Value>,
    #[serde(default)]
    user: Option<String>,
}

/// One parameter.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Property {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    optional: u8,
    #[serde(default, rename = "enum")]
    choices: Vec<String>,
    #[serde(default)]
    pattern: Option<String>,
    #[serde(default)]
    format: Option<String>,
    #[serde(default)]
    minimum: Option<f64>,
    #[serde(default)]
    maximum: Option<f64>,
    #[serde(default, rename = "maxLength")]
    max_length: Option<usize>,
    #[serde(default)]
    requires: Option<String>,
    #[serde(default)]
    default_key: u8,
    #[serde(default)]
    alias: Option<String>,
    #[serde(default, rename = "keyAlias")]
    key_alias: Option<String>,
}

/// A call that was found, with what its path says.
pub(super) struct Call<'a> {
    /// Method and path template.
    pub(super) name: &'a str,
    pub(super) route: &'a Route,
    /// The variables of the path.
    pub(super) path: BTreeMap<String, String>,
}

impl Schema {
    /// The schema of a major version.
    pub(super) fn of(version: u8) -> &'static Self {
        static EIGHT: LazyLock<Schema> = LazyLock::new(|| read(include_str!("8.json")));
        static NINE: LazyLock<Schema> = LazyLock::new(|| read(include_str!("9.json")));
        if version == 8 { &EIGHT } else { &NINE }
    }

    /// Finds the call of a method and path (`/nodes/pve1/qemu`).
    pub(super) fn find(&self, method: &str, path: &str) -> Option<Call<'_>> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        self.routes.iter().find_map(|(name, route)| {
            let (its_method, template) = name.split_once(' ')?;
            let path = matches(template, &parts).filter(|_| its_method == method)?;
            Some(Call { name, route, path })
        })
    }

    /// The property of a route, also of `net0` where the schema says `net[n]`.
    fn property<'a>(route: &'a Route, name: &str) -> Option<&'a Property> {
        route.properties.get(name).or_else(|| {
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
            let index: u32 = name[stem.len()..].parse().ok()?;
            let limit = match stem {
                "sata" => 6,
                "scsi" => 31,
                "virtio" | "hostpci" => 16,
                "net" | "ipconfig" => 32,
                "unused" => 256,
                "ide" | "serial" => 4,
                "usb" => 14,
                "parallel" => 3,
                "numa" => 8,
                "virtiofs" => 10,
                _ => 0,
            };
            (index < limit).then_some(())?;
            route.properties.get(&format!("{stem}[n]"))
        })
    }

    /// Whether a configuration key is known.
    pub(super) fn knows_config_key(&self, name: &str) -> bool {
        let not_keys = [
            "node", "vmid", "delete", "digest", "revert", "skiplock", "force",
        ];
        !not_keys.contains(&name)
            && self
                .routes
                .get("PUT /nodes/{node}/qemu/{vmid}/config")
                .is_some_and(|route| Self::property(route, name).is_some())
    }

    /// Whether a configuration key is a number or a boolean, which answers carry as numbers.
    pub(super) fn is_numeric(&self, name: &str) -> bool {
        self.routes
            .get("PUT /nodes/{node}/qemu/{vmid}/config")
            .and_then(|route| Self::property(route, name))
            .is_some_and(|property| matches!(property.kind.as_str(), "integer" | "boolean"))
    }

    /// Checks parameters; all that is wrong is named at once.
    pub(super) fn check(&self, route: &Route, params: &mut Params) -> Result<(), Refusal> {
        let mut errors = BTreeMap::new();
        for (name, property) in &route.properties {
            if property.optional == 0 && !name.ends_with("[n]") && !params.0.contains_key(name) {
                errors.insert(
                    name.clone(),
                    "property is missing and it is not optional".to_owned(),
                );
            }
        }
        for (name, value) in &mut params.0 {
            let Some(property) = Self::property(route, name) else {
                errors.insert(
                    name.clone(),
                    "property is not defined in schema and the schema does not allow additional properties"
                        .to_owned(),
                );
                continue;
            };
            if let (Value::Array(all), Some(format)) = (&*value, &property.format)
                && format.ends_with("-list")
            {
                let joined: Vec<&str> = all.iter().filter_map(Value::as_str).collect();
                *value = Value::String(joined.join(","));
            }
            if let Err(text) = self.check_value(name, property, value) {
                errors.insert(name.clone(), text);
            }
        }
        for name in params.0.keys() {
            let needed = Self::property(route, name).and_then(|it| it.requires.as_ref());
            if let Some(needed) = needed.filter(|needed| !params.0.contains_key(*needed)) {
                errors.insert(
                    needed.clone(),
                    format!("missing property required by '{name}'"),
                );
            }
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(Refusal::parameters(errors))
        }
    }

    fn check_value(&self, path: &str, property: &Property, value: &Value) -> Result<(), String> {
        match value {
            Value::Null => Ok(()),
            Value::String(text) => self.check_text(path, property, text),
            other => {
                let got = if other.is_array() { "ARRAY" } else { "HASH" };
                let kind = &property.kind;
                Err(format!("type check ('{kind}') failed - got {got}"))
            }
        }
    }

    /// Checks one text; the error has no newline of its own but those of its parts.
    fn check_text(&self, path: &str, property: &Property, text: &str) -> Result<(), String> {
        let kind = property.kind.as_str();
        let typed = match kind {
            "integer" => is_integer(text),
            "number" => text.parse::<f64>().is_ok_and(f64::is_finite),
            "boolean" => matches!(text, "0" | "1"),
            _ => true,
        };
        if !typed {
            return Err(format!("type check ('{kind}') failed - got '{text}'"));
        }
        if let Some(format) = &property.format {
            self.check_format(path, format, text)
                .map_err(|error| format!("invalid format - {error}"))?;
        }
        if let Some(pattern) = &property.pattern
            && !formats::fits(pattern, text)
        {
            return Err("value does not match the regex pattern".to_owned());
        }
        if let Some(most) = property.max_length
            && text.chars().count() > most
        {
            return Err(format!("value may only be {most} characters long"));
        }
        if let Ok(number) = text.parse::<f64>()
            && matches!(kind, "integer" | "number")
        {
            if let Some(least) = property.minimum.filter(|&least| number < least) {
                return Err(format!("value must have a minimum value of {least}"));
            }
            if let Some(most) = property.maximum.filter(|&most| number > most) {
                return Err(format!("value must have a maximum value of {most}"));
            }
        }
        if !property.choices.is_empty() && !property.choices.iter().any(|choice| choice == text) {
            let choices = property.choices.join(", ");
            return Err(format!(
                "value '{text}' does not have a value in the enumeration '{choices}'"
            ));
        }
        Ok(())
    }

    /// Checks a named format or a property string; the error ends in a newline.
    fn check_format(&self, path: &str, format: &str, text: &str) -> Result<(), String> {
        let own;
        let properties = match format {
            "pve-qm-ide" => self.formats.get("#ide"),
            "pve-qm-boot" => {
                own = formats::boot();
                Some(&own)
            }
            "pve-qm-smbios1" => {
                own = formats::smbios();
                Some(&own)
            }
            other => self.formats.get(other),
        };
        match properties {
            Some(properties) => self.check_property_string(path, properties, text),
            None => formats::check(format, text),
        }
    }

    fn check_property_string(
        &self,
        path: &str,
        properties: &BTreeMap<String, Property>,
        text: &str,
    ) -> Result<(), String> {
        let values = formats::parse_property_string(properties, text)?;
        let mut errors = BTreeMap::new();
        for (name, property) in properties {
            let needed = property.optional == 0 && property.alias.is_none();
            if needed && !values.contains_key(name) {
                errors.insert(
                    name,
                    "property is missing and it is not optional".to_owned(),
                );
            }
        }
        for (name, value) in &values {
            let inner = format!("{path}.{name}");
            if let Some((name, property)) = properties.get_key_value(name)
                && let Err(error) = self.check_text(&inner, property, value)
            {
                errors.insert(name, error);
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        let named: Vec<String> = errors
            .into_iter()
            .map(|(name, error)| format!("{path}.{name}: {error}\n"))
            .collect();
        Err(format!("format error\n{}", named.concat()))
    }
}

impl Route {
    /// Whether API tokens may use it.
    pub(super) fn takes_tokens(&self) -> bool {
        self.allowtoken == 1
    }

    /// Whether it needs no login at all.
    pub(super) fn is_public(&self) -> bool {
        self.permissions
            .as_ref()
            .is_some_and(|it| it.user.as_deref() == Some("world"))
    }

    /// The check it makes, in the form of the schema.
    pub(super) fn check(&self) -> Option<&Value> {
        self.permissions
            .as_ref()
            .filter(|it| it.user.is_none())
            .and_then(|it| it.check.as_ref())
    }
}

fn read(text: &str) -> Schema {
    serde_json::from_str(text).expect("the schema is part of the program")
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The variables of a path that fits the template; the last one takes all that is left where
/// it is a volume.
fn matches(template: &str, parts: &[&str]) -> Option<BTreeMap<String, String>> {
    let mut variables = BTreeMap::new();
    let wanted: Vec<&str> = template
        .split('/')
        .filter(|part| !part.is_empty())
        .collect();
    for (at, part) in wanted.iter().enumerate() {
        let given = parts.get(at)?;
        match part.strip_prefix('{').and_then(|it| it.strip_suffix('}')) {
            Some("volume") => {
                variables.insert("volume".to_owned(), parts[at..].join("/"));
                return Some(variables);
            }
            Some(name) => {
                variables.insert(name.to_owned(), (*given).to_owned());
            }
            None if part == given => {}
            None => return None,
        }
    }
    (wanted.len() == parts.len()).then_some(variables)
}
