//! Traces, behind `--otlp`: our spans, sent to a collector by OTLP over HTTP.
//!
//! What OpenTelemetry's specification leaves to the environment stays there: where to, headers,
//! sampler, sizes of batches (its pages "OpenTelemetry Protocol Exporter" and "Environment
//! Variable Specification"). A collector that does not answer costs spans, and a line in the log
//! now and then.

mod collector;

use crate::failure::Failure;
use collector::Collector;
use opentelemetry::{Key, KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use std::time::Duration;
use tokio::runtime::Handle;
use tracing::{Level, Subscriber};
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

/// What we are called, unless the environment says otherwise.
const SERVICE: &str = "egress-proxies";
const ENDPOINT_OF_TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const NOWHERE_ELSE: &str = "http://localhost:4318";
const PROTOCOLS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];
/// How long the last spans may take.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Sends spans.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Begins to send to the collector at this URL, or where the environment says when it is
    /// empty.
    pub fn start(url: &str, runtime: &Handle) -> Result<Self, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let endpoint = endpoint(url, variable).map_err(Failure::refused)?;
        let collector = Collector::new(&endpoint, variable, runtime.clone());
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(collector.map_err(Failure::refused)?)
            .with_endpoint(endpoint)
            .build()
            .map_err(|e| Failure::refused(format!("--otlp: {e}")))?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource())
            .with_batch_exporter(exporter)
            .build();
        Ok(Self(provider))
    }

    /// What takes our spans, and what is logged within them; those of libraries stay out.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let ours = filter_fn(|metadata| {
            let told = metadata.is_span() || *metadata.level() <= Level::INFO;
            metadata.target().starts_with("egress") && told
        });
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer(SERVICE))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(ours)
    }

    /// Sends what is left. The runtime must still be there.
    pub fn end(self) {
        if let Err(e) = self.0.shutdown_with_timeout(LAST_SPANS) {
            tracing::debug!("the last spans may be lost: {e}");
        }
    }
}

/// Who we are to the collector.
fn resource() -> Resource {
    let detected = Resource::builder().build();
    let name = detected.get(&Key::new("service.name"));
    let named = name.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let instance = uuid::Uuid::new_v4().to_string();
    let ours = Resource::builder().with_attributes([
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", instance),
    ]);
    if named {
        ours.build()
    } else {
        ours.with_service_name(SERVICE).build()
    }
}

/// The whole URL that spans are sent to; an error names whose fault it is.
fn endpoint(given: &str, variable: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    for name in PROTOCOLS {
        if let Some(protocol) = variable(name).filter(|value| value != "http/protobuf") {
            return Err(format!(
                "{name}: {protocol}: is not spoken: use http/protobuf, which collectors take at \
                 port 4318"
            ));
        }
    }
    if !given.is_empty() {
        return within(given).map_err(|why| format!("--otlp: {why}"));
    }
    if let Some(whole) = variable(ENDPOINT_OF_TRACES) {
        return checked(&whole).map_err(|why| format!("{ENDPOINT_OF_TRACES}: {why}"));
    }
    let base = variable(ENDPOINT).unwrap_or_else(|| NOWHERE_ELSE.to_owned());
    within(&base).map_err(|why| format!("{ENDPOINT}: {why}"))
}

/// Where traces go below this URL.
fn within(base: &str) -> Result<String, String> {
    let base = checked(base)?;
    Ok(format!("{}/v1/traces", base.trim_end_matches('/')))
}

fn checked(url: &str) -> Result<String, String> {
    let remedy = "write http://HOST:4318, or https://";
    let read: hyper::Uri = url
        .parse()
        .map_err(|e| format!("{url}: is no URL ({e}): {remedy}"))?;
    let authority = read.authority().map(ToString::to_string);
    if authority.is_some_and(|authority| authority.contains('@')) {
        return Err(
            "(hidden): holds credentials: send them as headers, by OTEL_EXPORTER_OTLP_HEADERS"
                .to_owned(),
        );
    }
    if !matches!(read.scheme_str(), Some("http" | "https")) || read.host().is_none() {
        return Err(format!("{url}: is no URL of http or https: {remedy}"));
    }
    if read.query().is_some() {
        return Err(format!("{url}: has a query: {remedy}"));
    }
    Ok(url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_comes_before_the_environment_and_what_is_of_traces_before_the_rest() {
        let both = [
            (ENDPOINT, "http://c:4318/otlp/"),
            (ENDPOINT_OF_TRACES, "http://t/x"),
        ];
        for (given, set, expected) in [
            ("", &both[..0], "http://localhost:4318/v1/traces"),
            ("", &both[..1], "http://c:4318/otlp/v1/traces"),
            ("", &both[..], "http://t/x"),
            ("https://a", &both[..], "https://a/v1/traces"),
        ] {
            let variable = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(endpoint(given, variable).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_cannot_be_sent_to_is_told_with_its_place_and_a_remedy() {
        for (url, told) in [
            (
                "collector:4318",
                "--otlp: collector:4318: is no URL of http",
            ),
            (
                "ftp://a",
                "is no URL of http or https: write http://HOST:4318",
            ),
            ("http://a b", "http://a b: is no URL ("),
            ("http://a?key=secret", "has a query"),
            ("http://me:secret@a", "--otlp: (hidden): holds credentials"),
        ] {
            let error = endpoint(url, |_| None).expect_err(url);
            assert!(error.contains(told), "{error}");
        }
        let grpc = |name: &str| (name == PROTOCOLS[1]).then(|| "grpc".to_owned());
        let error = endpoint("http://a", grpc).expect_err("grpc");
        assert!(
            error.starts_with("OTEL_EXPORTER_OTLP_PROTOCOL: grpc: "),
            "{error}"
        );
        let bad = |name: &str| (name == ENDPOINT).then(|| "nowhere".to_owned());
        let error = endpoint("", bad).expect_err("no URL");
        assert!(
            error.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT: nowhere: "),
            "{error}"
        );
    }
}
