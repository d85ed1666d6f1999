//! Listens to the spans and events of a call.

use std::{
    fmt::{self, Write as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    instrument::WithSubscriber as _,
    span,
};

/// All that was said in spans and events, names and fields, one line each.
#[derive(Clone, Default)]
pub(super) struct Transcript(Arc<Mutex<String>>);

impl Transcript {
    /// What was said so far.
    pub(super) fn text(&self) -> String {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
    /// Adds a line of one's own.
    pub(super) fn say(&self, line: impl fmt::Display) {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{line}");
    }
    /// Runs a call and listens.
    pub(super) async fn listen<F: Future>(&self, call: F) -> F::Output {
        let recorder = Recorder {
            transcript: self.clone(),
            spans: AtomicU64::new(1),
        };
        call.with_subscriber(recorder).await
    }
}

struct Recorder {
    transcript: Transcript,
    spans: AtomicU64,
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        let mut line = Line(format!("span {}", span.metadata().name()));
        span.record(&mut line);
        self.transcript.say(line.0);
        span::Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }
    fn record(&self, _span: &span::Id, values: &span::Record<'_>) {
        let mut line = Line("record".to_owned());
        values.record(&mut line);
        self.transcript.say(line.0);
    }
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("event {}", event.metadata().target()));
        event.record(&mut line);
        self.transcript.say(line.0);
    }
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}
