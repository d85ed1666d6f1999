//! Bounds and rules of the custom resources: what the API server refuses by itself.
//!
//! They say what [`Proxy::validate`] says, in the same words, as far as the Common Expression
//! Language can tell; what only we can tell is told in the condition `Accepted`. The table in
//! `tests/admission.yaml` has a row for each of them, and says where the two differ.
//!
//! Everything that a rule walks over is bounded: the API server refuses a definition whose
//! rules might cost too much.

#[cfg(doc)]
use crate::v1alpha1::Proxy;

use super::{
    provider::MAX_PROVIDER_FINDINGS,
    schema::{MAX_FINDING_CHARS, MAX_MESSAGE_CHARS, Place, Rule},
};
use crate::v1alpha1::{duration::MAX_DURATION_CHARS, validate};
use egress_core::{ProviderName, ProxyId};
use serde_json::Value;
use std::{ops::RangeInclusive, time::Duration};

/// The most addresses that are told of one machine.
pub(super) const MAX_ADDRESSES: usize = 32;
/// The most conditions of one object.
const MAX_CONDITIONS: usize = 8;
/// The longest network in CIDR notation, with room to spare: the rules say what is wrong.
const MAX_NETWORK_CHARS: usize = 64;
/// The most entries of a list that has no function yet.
const MAX_LATER: usize = 64;
/// The longest text in such a list.
const MAX_LATER_CHARS: usize = 512;

const LABEL: &str = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$";
const NAME: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
const KEY: &str = "^[-._a-zA-Z0-9]+$";
const DURATION: &str = "^([0-9]+(h|ms|m|s))+$";

const FORBIDDEN: &str = "FieldValueForbidden";
const REQUIRED: &str = "FieldValueRequired";

/// Bounds and rules of the spec of a Proxy.
pub(super) fn of_a_spec(spec: &mut Value) {
    let mut spec = Place::root(spec);
    provider(spec.at("provider"));
    spec.at("machine.cpus").within(&validate::CPUS);
    spec.at("machine.memoryMiB").within(&validate::MEMORY_MIB);
    spec.at("machine.diskGiB").within(&validate::DISK_GIB);
    server(&mut spec);
    user_data(&mut spec);
    spec.at("egress")
        .rule(later("self == 'shared'", "write shared, or remove it"));
    probe(&mut spec);
}

fn provider(place: Place<'_>) {
    let rule = ""
        .parse::<ProviderName>()
        .map_or_else(|fault| fault.rule, |_| "");
    place
        .set("maxLength", 63)
        .rule(Rule::new(
            &format!("self.matches('{LABEL}')"),
            "is not a valid provider name",
            rule,
        ))
        .rule(
            Rule::new(
                "self == oldSelf",
                "cannot be changed",
                "delete the Proxy, and create it again at the other provider",
            )
            .because(FORBIDDEN),
        );
}

fn server(spec: &mut Place<'_>) {
    spec.at("proxy.port").within(&validate::PORT);
    spec.at("proxy.protocols")
        .set("maxItems", 8)
        .rule(Rule::new(
            "self.size() > 0",
            "leaves no protocol to speak",
            "write [http], or remove it",
        ))
        .rule(each_once());
    spec.at("proxy.protocols[]")
        .rule(later("self == 'http'", "write [http], or remove it"));
    spec.at("proxy.clients")
        .set("maxItems", validate::MAX_CLIENTS)
        .rule(each_once());
    network(spec.at("proxy.clients[]"));
    one_of(spec.at("proxy.auth"), &["generated", "secretRef", "none"]);
    object_name(spec.at("proxy.auth.secretRef.name"));
    for list in ["allow", "deny"] {
        spec.at(&format!("proxy.destinations.{list}"))
            .set("maxItems", MAX_LATER);
        spec.at(&format!("proxy.destinations.{list}[]"))
            .set("maxLength", MAX_LATER_CHARS);
    }
    spec.at("proxy")
        .rule(later("!has(self.destinations)", "remove it").on(".destinations"))
        .rule(
            Rule::new(
                "!has(self.auth) || !has(self.auth.none) || \
                 (has(self.clients) && self.clients.size() > 0)",
                "would make an open proxy, as spec.proxy.clients is empty",
                "list the networks of its clients, or use generated",
            )
            .on(".auth")
            .because(FORBIDDEN),
        )
        .rule(
            Rule::new(
                "!has(self.auth) || !has(self.auth.none) || !has(self.clients) || \
                 self.clients.all(c, !isCIDR(c) || cidr(c).prefixLength() > 0)",
                "would make an open proxy, as spec.proxy.auth is none",
                "list narrower networks, or use generated",
            )
            .on(".clients")
            .because(FORBIDDEN),
        );
}

fn user_data(spec: &mut Place<'_>) {
    one_of(spec.at("userData"), &["secretRef", "configMapRef"]);
    for source in ["secretRef", "configMapRef"] {
        object_name(spec.at(&format!("userData.{source}.name")));
        spec.at(&format!("userData.{source}.key"))
            .set("maxLength", 253)
            .rule(Rule::new(
                &format!("self.matches('{KEY}') && self != '.' && self != '..'"),
                "is not a valid key",
                "use 1 to 253 of a-z, A-Z, 0-9, '-', '_' and '.'",
            ));
    }
}

fn probe(spec: &mut Place<'_>) {
    for list in ["probe.echoURLs", "probe.expectEgress"] {
        spec.at(list)
            .set("maxItems", MAX_LATER)
            .rule(later("self.size() == 0", "remove it"));
        spec.at(&format!("{list}[]"))
            .set("maxLength", MAX_LATER_CHARS);
    }
    lasting(spec.at("probe.interval"), &validate::INTERVAL);
    lasting(spec.at("probe.timeout"), &validate::TIMEOUT);
    spec.at("probe.failureThreshold")
        .within(&validate::FAILURE_THRESHOLD);
    let both = ["timeout", "interval"]
        .map(|field| format!("!has(self.{field}) || !self.{field}.matches('{DURATION}')"))
        .join(" || ");
    spec.at("probe").rule(
        Rule::new(
            &format!("{both} || duration(self.timeout) <= duration(self.interval)"),
            "is longer than spec.probe.interval",
            "shorten it, or lengthen the interval",
        )
        .saying(
            "'is longer than spec.probe.interval, ' + self.interval + \
             ': shorten it, or lengthen the interval'",
        )
        .on(".timeout"),
    );
}

/// A field whose function comes with a later version.
fn later(rule: &str, remedy: &str) -> Rule {
    Rule::new(rule, "is not supported by this version", remedy).because(FORBIDDEN)
}

/// Not told as a duplicate value: for those, the API server leaves the message out.
fn each_once() -> Rule {
    Rule::new(
        "self.all(x, self.exists_one(y, x == y))",
        "is listed twice",
        "remove one of them",
    )
}

/// A union. Without a default and owned as a whole, so that whoever writes another choice
/// need not take away the one that is there.
fn one_of(place: Place<'_>, choices: &[&str]) {
    let has: Vec<String> = choices
        .iter()
        .map(|choice| format!("(has(self.{choice}) ? 1 : 0)"))
        .collect();
    let sum = has.join(" + ");
    let all: Vec<String> = choices.iter().map(|choice| format!("`{choice}`")).collect();
    let all = all.join(", ");
    place
        .without("oneOf")
        .set("x-kubernetes-map-type", "atomic")
        .rule(Rule::new(
            &format!("{sum} <= 1"),
            "names more than one choice",
            &format!("keep exactly one of {all}"),
        ))
        .rule(
            Rule::new(
                &format!("{sum} >= 1"),
                "names no choice",
                &format!("write one of {all}"),
            )
            .because(REQUIRED),
        );
}

fn object_name(place: Place<'_>) {
    let rule = ProxyId::new("x", "").map_or_else(|fault| fault.rule, |_| "");
    place.set("maxLength", 253).rule(Rule::new(
        &format!("self.matches('{NAME}')"),
        "is not a valid name",
        rule,
    ));
}

fn network(place: Place<'_>) {
    place
        .set("maxLength", MAX_NETWORK_CHARS)
        .rule(Rule::new(
            "isCIDR(self) || isIP(self)",
            "is not a network in CIDR notation",
            "write one such as 10.0.0.0/8",
        ))
        .rule(
            Rule::new(
                "!isIP(self)",
                "lacks a prefix length",
                "write one such as 10.0.0.1/32",
            )
            .saying(
                "'lacks a prefix length: write ' + self + \
                 (ip(self).family() == 4 ? '/32' : '/128')",
            ),
        )
        .rule(Rule::new(
            "!isCIDR(self) || cidr(self) == cidr(self).masked()",
            "names a host within a network",
            "write the network, its last bits all zero",
        ));
}

fn lasting(place: Place<'_>, bounds: &RangeInclusive<Duration>) {
    let (least, most) = (bounds.start(), bounds.end());
    place
        .set("maxLength", MAX_DURATION_CHARS)
        .rule(Rule::new(
            &format!("self.matches('{DURATION}')"),
            "is not a duration",
            "write whole numbers with the units h, m, s and ms, such as 30s",
        ))
        .rule(Rule::new(
            &format!(
                "!self.matches('{DURATION}') || (duration(self) >= duration('{least:?}') && \
                 duration(self) <= duration('{most:?}'))"
            ),
            "is out of bounds",
            &format!("write a duration of {least:?} to {most:?}"),
        ));
}

/// Bounds of the status of a Proxy.
pub(super) fn of_a_status(status: &mut Value) {
    let mut status = Place::root(status);
    status.at("addresses").set("maxItems", MAX_ADDRESSES);
    conditions(&mut status);
}

/// Bounds of the status of a provider.
pub(super) fn of_a_provider_status(status: &mut Value) {
    let mut status = Place::root(status);
    conditions(&mut status);
    status.at("findings").set("maxItems", MAX_PROVIDER_FINDINGS);
    for text in ["findings[].found", "findings[].remedy"] {
        status.at(text).set("maxLength", MAX_FINDING_CHARS);
    }
    status.at("counts.proxies").without("default");
    status.at("lastCompleteListing").set("format", "date-time");
}

/// Conditions as every kind of Kubernetes has them: a map by type.
fn conditions(status: &mut Place<'_>) {
    status
        .at("conditions")
        .set("maxItems", MAX_CONDITIONS)
        .set("x-kubernetes-list-type", "map")
        .set("x-kubernetes-list-map-keys", vec!["type"]);
    status
        .at("conditions[].status")
        .set("enum", vec!["True", "False", "Unknown"]);
    status
        .at("conditions[].message")
        .set("maxLength", MAX_MESSAGE_CHARS);
    status
        .at("conditions[].lastTransitionTime")
        .set("format", "date-time");
}
