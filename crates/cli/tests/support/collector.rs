//! A collector of OpenTelemetry that keeps what it is sent, by OTLP over HTTP.

use super::wait_for;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest, common::v1::KeyValue, trace::v1 as otlp,
};
use prost::Message as _;
use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

/// A span as it came.
#[derive(Clone, Debug)]
pub struct Span {
    pub name: String,
    pub trace: Vec<u8>,
    pub id: Vec<u8>,
    pub parent: Vec<u8>,
    /// Its own attributes, and those of its resource behind `resource/`.
    pub attributes: BTreeMap<String, String>,
    pub failed: bool,
    pub is_client: bool,
}

impl Span {
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

#[derive(Default)]
struct Taken {
    spans: Vec<Span>,
    bytes: Vec<u8>,
    heads: Vec<String>,
}

/// See the module.
pub struct Collector {
    address: SocketAddr,
    taken: Arc<Mutex<Taken>>,
}

impl Collector {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let taken = Arc::new(Mutex::new(Taken::default()));
        let into = taken.clone();
        // It ends with the test program.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = take(stream, &into);
            }
        });
        Self { address, taken }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn taken(&self) -> std::sync::MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn spans(&self) -> Vec<Span> {
        self.taken().spans.clone()
    }

    /// Whether a text was among what was sent, in any place.
    pub fn was_sent(&self, text: &str) -> bool {
        let taken = self.taken();
        let mut windows = taken.bytes.windows(text.len());
        windows.any(|at| at == text.as_bytes())
    }

    /// The heads of the requests.
    pub fn heads(&self) -> Vec<String> {
        self.taken().heads.clone()
    }

    /// Waits for a span like this.
    pub fn wait_span(&self, what: &str, like: impl Fn(&Span) -> bool) -> Span {
        wait_for(what, || {
            let spans = self.spans();
            let names = || spans.iter().map(|span| &span.name).collect::<Vec<_>>();
            let found = spans.iter().find(|span| like(span)).cloned();
            found.ok_or_else(|| format!("{:?}", names()))
        })
    }
}

fn take(stream: TcpStream, into: &Mutex<Taken>) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let request = ExportTraceServiceRequest::decode(body.as_slice()).expect("OTLP");
    let mut taken = into.lock().unwrap_or_else(PoisonError::into_inner);
    for resource in request.resource_spans {
        let of_resource = resource.resource.map(|r| r.attributes).unwrap_or_default();
        let spans = resource.scope_spans.into_iter().flat_map(|s| s.spans);
        taken.spans.extend(spans.map(|s| span(s, &of_resource)));
    }
    taken.bytes.extend(body);
    taken.heads.push(head);
    drop(taken);
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\n\
                  content-length: 0\r\nconnection: close\r\n\r\n";
    reader.get_mut().write_all(answer.as_bytes())
}

fn span(span: otlp::Span, resource: &[KeyValue]) -> Span {
    let named = |all: &[KeyValue], prefix: &str| -> BTreeMap<String, String> {
        let one = |kv: &KeyValue| (format!("{prefix}{}", kv.key), text(kv));
        all.iter().map(one).collect()
    };
    let mut attributes = named(resource, "resource/");
    attributes.extend(named(&span.attributes, ""));
    Span {
        is_client: span.kind() == otlp::span::SpanKind::Client,
        failed: span
            .status
            .as_ref()
            .is_some_and(|s| s.code() == otlp::status::StatusCode::Error),
        name: span.name,
        trace: span.trace_id,
        id: span.span_id,
        parent: span.parent_span_id,
        attributes,
    }
}

fn text(kv: &KeyValue) -> String {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    match kv.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        other => format!("{other:?}"),
    }
}
