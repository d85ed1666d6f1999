//! O1: at the level that people run with, each call has a span that says which call it is and
//! how it ended. A file of its own, since the subscriber is the process's.

use egress_core::{ErrorClass, Identity, MachineKey, MachineUid};
use egress_provider::{
    Provider,
    layer::observed::{CallMetrics, Observed},
    memory::{Memory, Network, Physics, Settings, World},
};
use std::{
    fmt,
    sync::{Arc, Mutex},
};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// What each span was given, in order, as `name=value`.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Vec<String>>>>);

struct Fields<'a>(&'a mut Vec<String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push(format!("{field}={value:?}").replace('"', ""));
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut spans = self.0.lock().expect("nobody panics");
        let mut fields = vec![attributes.metadata().name().to_owned()];
        attributes.record(&mut Fields(&mut fields));
        spans.push(fields);
        span::Id::from_u64(spans.len() as u64)
    }
    fn record(&self, span: &span::Id, values: &span::Record<'_>) {
        let mut spans = self.0.lock().expect("nobody panics");
        let at = usize::try_from(span.into_u64() - 1).expect("it is an index");
        values.record(&mut Fields(&mut spans[at]));
    }
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn each_call_has_a_span_with_its_operation_key_and_class() {
    let spans = Spans::default();
    tracing::subscriber::set_global_default(spans.clone()).expect("it is the only one");
    let world = World::new(Physics::default());
    let identity = Identity {
        installation: "lab".parse().expect("legal"),
        writer: None,
    };
    let name = "mem".parse().expect("legal");
    let memory = Memory::new(name, identity, world.clone(), Settings::default());
    let provider = Observed::new(Arc::new(memory), &CallMetrics::default());
    let uid: MachineUid = "uid-1".parse().expect("legal");
    let key = MachineKey::new(uid);

    provider.list(&[]).await.expect("the world answers");
    world.set_network(Network::Down);
    let machine = egress_core::Claim {
        provider: provider.name().clone(),
        cluster: egress_core::ClusterId::new("cluster"),
        slot: egress_core::Slot::new("101"),
        host: None,
        attempt: 1,
        standing: egress_core::Standing::Sent,
        handles: Vec::new(),
        mac: None,
        seed: None,
        unsettled: false,
        retiring: None,
    };
    let error = provider.get(&key, &machine).await.expect_err("it is away");
    assert_eq!(error.class(), ErrorClass::Transient);

    let seen: Vec<String> = spans
        .0
        .lock()
        .expect("nobody panics")
        .iter()
        .map(|fields| fields.join(" "))
        .collect();
    let get = format!(
        "provider_call provider=mem operation=get key={} slot=101 class=Transient \
         otel.status_code=ERROR error.type=Transient",
        key.name()
    );
    assert_eq!(
        seen,
        [
            "provider_call provider=mem operation=list class=ok".to_owned(),
            get
        ]
    );
}
