//! The custom resource definitions.

use super::{
    ProxyObject, ProxyProvider, ProxyProviderStatus, rules,
    schema::{structural, whole},
};
use crate::v1alpha1::{ProxySpec, ProxyStatus, VERSION};
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
        CustomResourceDefinitionSpec, CustomResourceDefinitionVersion,
        CustomResourceSubresourceStatus, CustomResourceSubresources, CustomResourceValidation,
        JSONSchemaProps, SelectableField,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube_core::Resource;
use serde_json::Value;

/// All definitions, in the order in which people read them.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![proxy_crd(), proxy_provider_crd()]
}

/// The definition of [`ProxyObject`].
pub fn proxy_crd() -> CustomResourceDefinition {
    let (mut spec, mut status) = (structural::<ProxySpec>(), structural::<ProxyStatus>());
    rules::of_a_spec(&mut spec);
    rules::of_a_status(&mut status);
    let parts = [("spec", spec), ("status", status)];
    Definition {
        scope: "Namespaced",
        short_name: "px",
        schema: whole("One machine running one proxy.", &parts, &["spec"]),
        columns: vec![
            column("PROVIDER", ".spec.provider", 0),
            column("PHASE", ".status.phase", 0),
            column("READY", &status_of("Ready"), 0),
            column("SERVING", &status_of("Serving"), 0),
            column("ENDPOINT", ".status.endpoint", 0),
            column("AGE", ".metadata.creationTimestamp", 0),
            column("MACHINE", ".status.machine.id", 1),
            column("HOST", ".status.machine.host", 1),
            column("EGRESS IP", ".status.egressIP", 1),
            column("REASON", FIRST_TROUBLE, 1),
        ],
        selectable: &[".spec.provider"],
    }
    .of::<ProxyObject>()
}

/// The definition of [`ProxyProvider`].
pub fn proxy_provider_crd() -> CustomResourceDefinition {
    let mut status = structural::<ProxyProviderStatus>();
    rules::of_a_provider_status(&mut status);
    let parts = [("status", status)];
    let says = "What a configured provider last said of itself. Written by the operator.";
    Definition {
        scope: "Cluster",
        short_name: "pxprov",
        schema: whole(says, &parts, &[]),
        columns: vec![
            column("KIND", ".status.kind", 0),
            column("READY", &status_of("Ready"), 0),
            column("REASON", &reason_of("Ready"), 0),
            column("VERSION", ".status.version", 0),
            count("PROXIES", ".status.counts.proxies", 0),
            count("FREE SLOTS", ".status.counts.freeSlots", 0),
            column("AGE", ".metadata.creationTimestamp", 0),
            count("MACHINES", ".status.counts.machines", 1),
            count("UNACCOUNTED", ".status.counts.unaccounted", 1),
            column("LISTED", ".status.lastCompleteListing", 1),
        ],
        selectable: &[],
    }
    .of::<ProxyProvider>()
}

/// What differs from one definition to the next.
struct Definition {
    scope: &'static str,
    short_name: &'static str,
    schema: Value,
    columns: Vec<CustomResourceColumnDefinition>,
    selectable: &'static [&'static str],
}

impl Definition {
    fn of<K: Resource<DynamicType = ()>>(self) -> CustomResourceDefinition {
        let (kind, plural) = (K::kind(&()), K::plural(&()));
        let schema: JSONSchemaProps =
            serde_json::from_value(self.schema).expect("our own schema is one");
        let selectable: Vec<_> = self
            .selectable
            .iter()
            .map(|path| SelectableField {
                json_path: (*path).to_owned(),
            })
            .collect();
        CustomResourceDefinition {
            metadata: ObjectMeta {
                name: Some(format!("{plural}.{}", K::group(&()))),
                ..ObjectMeta::default()
            },
            spec: CustomResourceDefinitionSpec {
                group: K::group(&()).into_owned(),
                names: CustomResourceDefinitionNames {
                    categories: Some(vec!["egress".to_owned()]),
                    kind: kind.to_string(),
                    list_kind: Some(format!("{kind}List")),
                    plural: plural.into_owned(),
                    short_names: Some(vec![self.short_name.to_owned()]),
                    singular: Some(kind.to_lowercase()),
                },
                scope: self.scope.to_owned(),
                versions: vec![CustomResourceDefinitionVersion {
                    additional_printer_columns: Some(self.columns),
                    name: VERSION.to_owned(),
                    schema: Some(CustomResourceValidation {
                        open_api_v3_schema: Some(schema),
                    }),
                    selectable_fields: (!selectable.is_empty()).then_some(selectable),
                    served: true,
                    storage: true,
                    subresources: Some(CustomResourceSubresources {
                        status: Some(CustomResourceSubresourceStatus(Value::Object(
                            serde_json::Map::new(),
                        ))),
                        scale: None,
                    }),
                    ..CustomResourceDefinitionVersion::default()
                }],
                ..CustomResourceDefinitionSpec::default()
            },
            ..CustomResourceDefinition::default()
        }
    }
}

/// The reason of the first condition that does not hold: of what a path finds, a column shows the
/// first. The conditions stand in the order in which one follows from another.
const FIRST_TROUBLE: &str = ".status.conditions[?(@.status!=\"True\")].reason";

fn status_of(condition: &str) -> String {
    format!(".status.conditions[?(@.type==\"{condition}\")].status")
}

fn reason_of(condition: &str) -> String {
    format!(".status.conditions[?(@.type==\"{condition}\")].reason")
}

/// A column of `kubectl get`; from priority 1 on with `-o wide` only.
fn column(name: &str, path: &str, priority: i32) -> CustomResourceColumnDefinition {
    let is_time = path == ".metadata.creationTimestamp" || path.ends_with("Listing");
    CustomResourceColumnDefinition {
        name: name.to_owned(),
        json_path: path.to_owned(),
        type_: if is_time { "date" } else { "string" }.to_owned(),
        priority: (priority > 0).then_some(priority),
        ..CustomResourceColumnDefinition::default()
    }
}

fn count(name: &str, path: &str, priority: i32) -> CustomResourceColumnDefinition {
    CustomResourceColumnDefinition {
        type_: "integer".to_owned(),
        ..column(name, path, priority)
    }
}
