//! The objects, and what requests do to them.

use super::paths::{Target, Verb};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, fmt::Write};

/// Where an object is: group, resource, namespace, name.
type Key = (String, String, String, String);

/// Something that happened.
struct Happened {
    version: u64,
    what: &'static str,
    key: Key,
    object: Value,
}

#[derive(Default)]
pub(super) struct Objects {
    held: BTreeMap<Key, Value>,
    version: u64,
    made: u64,
    history: Vec<Happened>,
    /// What is older was forgotten.
    oldest: u64,
}

type Answer = Result<Value, (u16, String)>;

fn no(code: u16, said: impl Into<String>) -> Answer {
    Err((code, said.into()))
}

impl Objects {
    pub(super) const fn newest(&self) -> u64 {
        self.version
    }

    pub(super) fn compact(&mut self) {
        self.version += 1;
        self.oldest = self.version;
        self.history.clear();
    }

    pub(super) const fn is_too_old(&self, version: u64) -> bool {
        version < self.oldest
    }

    /// What happened to what a watch follows after a version, and up to which.
    pub(super) fn since(&self, target: &Target, version: u64) -> (String, u64) {
        let mut lines = String::new();
        let mut newest = version;
        for event in self.history.iter().filter(|e| e.version > version) {
            newest = event.version;
            if covers(target, &event.key) {
                let line = json!({"type": event.what, "object": event.object});
                let _ = writeln!(lines, "{line}");
            }
        }
        (lines, newest)
    }

    pub(super) fn answer(&mut self, target: &Target, body: &Value) -> Answer {
        match target.verb {
            Verb::List | Verb::Watch => Ok(self.list(target)),
            Verb::Create => self.create(target, body),
            Verb::Get => match self.held.get(&key(target, None)) {
                Some(object) => Ok(object.clone()),
                None => no(404, "not found"),
            },
            Verb::Delete => self.delete(target),
            Verb::Patch | Verb::Replace => self.change(target, body),
        }
    }

    fn list(&self, target: &Target) -> Value {
        let items: Vec<&Value> = self
            .held
            .iter()
            .filter(|(key, _)| covers(target, key))
            .map(|(_, object)| object)
            .collect();
        json!({
            "apiVersion": target.group, "kind": "List",
            "metadata": {"resourceVersion": self.version.to_string()}, "items": items,
        })
    }

    fn create(&mut self, target: &Target, body: &Value) -> Answer {
        let name = body["metadata"]["name"].as_str().map(ToOwned::to_owned);
        let name = name.unwrap_or_else(|| format!("generated-{}", self.made + 1));
        let key = key(target, Some(&name));
        if self.held.contains_key(&key) {
            return no(409, "already exists");
        }
        self.made += 1;
        let mut object = body.clone();
        let metadata = &mut object["metadata"];
        metadata["name"] = name.into();
        metadata["uid"] = format!("00000000-0000-4000-8000-{:012}", self.made).into();
        metadata["generation"] = 1.into();
        if let Some(namespace) = &target.namespace {
            metadata["namespace"] = namespace.clone().into();
        }
        Ok(self.keep(&key, object, "ADDED"))
    }

    fn delete(&mut self, target: &Target) -> Answer {
        let key = key(target, None);
        let Some(object) = self.held.get(&key) else {
            return no(404, "not found");
        };
        let mut object = object.clone();
        if has_finalizers(&object) {
            if object["metadata"]["deletionTimestamp"].is_null() {
                object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                return Ok(self.keep(&key, object, "MODIFIED"));
            }
            return Ok(object);
        }
        Ok(self.take(&key, object))
    }

    fn change(&mut self, target: &Target, body: &Value) -> Answer {
        let key = key(target, None);
        let Some(before) = self.held.get(&key).cloned() else {
            if target.verb == Verb::Patch && body["apiVersion"].is_string() {
                let made = Target {
                    verb: Verb::Create,
                    ..target.clone()
                };
                return self.create(&made, body); // applied
            }
            return no(404, "not found");
        };
        for field in ["resourceVersion", "uid"] {
            let named = &body["metadata"][field];
            if named.is_string() && *named != before["metadata"][field] {
                return no(409, format!("metadata.{field} is another one"));
            }
        }
        let mut after = before.clone();
        if target.subresource.as_deref() == Some("status") {
            after["status"] = body["status"].clone();
        } else if target.verb == Verb::Replace {
            after = body.clone();
            after["status"] = before["status"].clone();
        } else {
            let mut patch = body.clone();
            if let Some(fields) = patch.as_object_mut() {
                fields.remove("status");
            }
            merge(&mut after, &patch);
        }
        if after["spec"] != before["spec"] {
            let generation = before["metadata"]["generation"].as_i64().unwrap_or(0);
            after["metadata"]["generation"] = (generation + 1).into();
        }
        let deleting = !before["metadata"]["deletionTimestamp"].is_null();
        if deleting && adds_finalizer(&before, &after) {
            return no(
                422,
                "no new finalizers can be added while it is being deleted",
            );
        }
        if after == before {
            return Ok(before);
        }
        if deleting && !has_finalizers(&after) {
            return Ok(self.take(&key, after));
        }
        Ok(self.keep(&key, after, "MODIFIED"))
    }

    fn keep(&mut self, key: &Key, mut object: Value, what: &'static str) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.held.insert(key.clone(), object.clone());
        self.tell(key, &object, what);
        object
    }

    fn take(&mut self, key: &Key, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.held.remove(key);
        self.tell(key, &object, "DELETED");
        self.collect(&object["metadata"]["uid"]);
        object
    }

    /// What an object owned goes with it.
    fn collect(&mut self, owner: &Value) {
        let owned = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.is_some_and(|all| all.iter().any(|o| o["uid"] == *owner))
        };
        let all: Vec<Key> = self
            .held
            .iter()
            .filter(|(_, object)| owned(object))
            .map(|(key, _)| key.clone())
            .collect();
        for key in all {
            if let Some(object) = self.held.get(&key).cloned() {
                self.take(&key, object);
            }
        }
    }

    fn tell(&mut self, key: &Key, object: &Value, what: &'static str) {
        self.history.push(Happened {
            version: self.version,
            what,
            key: key.clone(),
            object: object.clone(),
        });
    }
}

fn key(target: &Target, name: Option<&str>) -> Key {
    let name = name.or(target.name.as_deref()).unwrap_or_default();
    let namespace = target.namespace.clone().unwrap_or_default();
    (
        target.group.clone(),
        target.resource.clone(),
        namespace,
        name.to_owned(),
    )
}

fn covers(target: &Target, (group, resource, namespace, _): &Key) -> bool {
    *group == target.group
        && *resource == target.resource
        && target.namespace.as_ref().is_none_or(|n| n == namespace)
}

fn finalizers(object: &Value) -> &[Value] {
    object["metadata"]["finalizers"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

fn has_finalizers(object: &Value) -> bool {
    !finalizers(object).is_empty()
}

fn adds_finalizer(before: &Value, after: &Value) -> bool {
    let had = finalizers(before);
    finalizers(after).iter().any(|name| !had.contains(name))
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Value::Object(target) = target {
        for (key, value) in patch {
            if value.is_null() {
                target.remove(key);
            } else {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
    }
}
