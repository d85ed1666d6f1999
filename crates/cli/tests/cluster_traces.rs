//! The traces of a Proxy's life in a cluster, as a collector of OpenTelemetry takes them.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use rustix::process::Signal;
use serde_json::Value;
use support::{
    Running,
    cluster::Cluster,
    collector::{Collector, Span},
    field::Field,
};

#[test]
fn the_spans_of_a_life_are_passes_calls_of_the_provider_and_writes_to_the_api_server() {
    let cluster = Cluster::shared();
    let field = Field::on_this_host(cluster, "traced", 30_100);
    let collector = Collector::start();
    let mut command = field.operator(&field.kubeconfig);
    command.arg("--otlp");
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url());
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-team=a%20team");
    command.env("OTEL_BSP_SCHEDULE_DELAY", "500");
    let mut operator = Running::spawn(&mut command, field.path("operator.log"));
    field.declare(&["a"]);
    field.wait_serving(&["a"]);
    let secret = ["get", "secret", "a-credentials", "-n", &field.namespace];
    let password = cluster.json(&secret)["data"]["password"].clone();
    field.delete(&["a"]);
    field.wait_gone();
    // What is left is sent at the end.
    assert!(operator.stop(Signal::TERM).success());

    let spans = collector.spans();
    let of = |what: &str, like: &dyn Fn(&Span) -> bool| -> Vec<Span> {
        let found: Vec<Span> = spans.iter().filter(|s| like(s)).cloned().collect();
        assert!(!found.is_empty(), "no {what} in {spans:#?}");
        found
    };
    let within = |span: &Span, name: &str| {
        let parent = spans.iter().find(|s| s.id == span.parent);
        let parent = parent.unwrap_or_else(|| panic!("no parent: {span:?}"));
        assert_eq!((&*parent.name, &parent.trace), (name, &span.trace));
        parent.clone()
    };
    for operation in ["claim", "create", "get", "delete"] {
        let calls = of(operation, &|s| {
            s.name == "provider_call" && s.attribute("operation") == operation
        });
        for call in calls {
            let pass = within(&call, "pass");
            assert_eq!(pass.attribute("proxy"), format!("{}/a", field.namespace));
            let said = ["provider", "class"].map(|name| call.attribute(name));
            assert_eq!((said, call.failed), (["here", "ok"], false));
        }
    }
    for record in of("write of the record", &|s| s.name == "PATCH proxies") {
        within(&record, "pass");
        assert!(record.is_client);
        assert_eq!(record.attribute("http.request.method"), "PATCH");
        assert_eq!(record.attribute("k8s.namespace.name"), field.namespace);
    }
    within(
        &of("made password", &|s| s.name == "POST secrets")[0],
        "pass",
    );
    of("status", &|s| s.name == "PATCH proxies/status");
    of("event", &|s| s.name == "POST events");
    assert!(
        of("phase", &|s| s.name == "pass")
            .iter()
            .any(|s| s.attribute("phase") == "Running")
    );
    for span in &spans {
        assert_eq!(span.attribute("resource/service.name"), "egress-proxies");
        assert!(!span.attribute("resource/service.instance.id").is_empty());
    }

    let heads = collector.heads();
    let asked = |head: &String| {
        head.starts_with("POST /v1/traces HTTP/1.1\r\n") && head.contains("x-team: a team")
    };
    assert!(heads.iter().all(asked), "{heads:?}");
    for secret in [password, token(&field)] {
        let encoded = secret.as_str().expect("a text");
        let decoded = data_encoding::BASE64
            .decode(encoded.as_bytes())
            .expect("base64");
        let decoded = String::from_utf8(decoded).expect("a text");
        assert!(!collector.was_sent(encoded) && !collector.was_sent(&decoded));
    }
}

/// What the operator asks the API server with, in base64.
fn token(field: &Field<'_>) -> Value {
    let token = field.kubeconfig.with_extension("token");
    let text = std::fs::read_to_string(token).expect("a token");
    data_encoding::BASE64.encode(text.as_bytes()).into()
}
