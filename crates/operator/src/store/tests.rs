use super::*;
use crate::double::{Gate, Server, Target, Verb, Verdict};
use egress_core::{Installation, MachineUid};
use egress_engine::{
    Always,
    store::conformance::{self, CASES, Harness},
};
use serde_json::json;
use std::collections::VecDeque;

fn id(name: &str) -> ProxyId {
    ProxyId::new("shop", name).unwrap()
}

fn record(id: &ProxyId, number: u32) -> Record {
    let installation: Installation = "suite".parse().unwrap();
    let uid = MachineUid::standalone(&installation, id, 1);
    Record {
        last_attempt: number,
        ..Record::new(uid, installation, id.clone())
    }
}

/// A store of a process that has just listed all Proxies.
async fn open(server: &Server) -> (AnnotationStore, Arc<Cache>) {
    let cache = Arc::new(Cache::default());
    let proxies = Proxies::new(server.client());
    cache.begin();
    let (api, all) = (proxies.watched(None), kube::api::ListParams::default());
    for object in api.list(&all).await.unwrap() {
        cache.put(Held::of(object).unwrap());
    }
    cache.finish();
    let settle: Settle = Arc::new(|| Duration::from_mins(1));
    let store = AnnotationStore::new(proxies, cache.clone(), Arc::new(Always), settle);
    (store, cache)
}

/// Every Proxy that the suite names is there.
struct Suite(Mutex<Server>);

/// A store whose Proxies are made when they are first asked for.
struct OnDemand(AnnotationStore, Server);

impl OnDemand {
    async fn over(server: Server) -> Arc<dyn Store> {
        Arc::new(Self(open(&server).await.0, server))
    }
    fn make(&self, id: &ProxyId) {
        if self.1.proxy(id.namespace(), id.name()).is_none() {
            let made = self.1.create_proxy(id.namespace(), id.name(), &json!({}));
            let object = serde_json::from_value(made).unwrap();
            self.0.shared.cache.put(Held::of(object).unwrap());
        }
    }
}

#[async_trait]
impl Store for OnDemand {
    async fn load(&self, id: &ProxyId) -> Result<Option<Stored>, StoreError> {
        self.make(id);
        self.0.load(id).await
    }
    async fn save(
        &self,
        id: &ProxyId,
        record: &Record,
        expected: Option<&Version>,
    ) -> Result<Version, StoreError> {
        self.make(id);
        self.0.save(id, record, expected).await
    }
    async fn remove(&self, id: &ProxyId, expected: &Version) -> Result<(), StoreError> {
        self.make(id);
        self.0.remove(id, expected).await
    }
    async fn list(&self) -> Result<Vec<(ProxyId, Result<Stored, StoreError>)>, StoreError> {
        self.0.list().await
    }
}

#[async_trait]
impl Harness for Suite {
    async fn empty(&self) -> Arc<dyn Store> {
        let server = Server::new();
        *held(&self.0) = server.clone();
        OnDemand::over(server).await
    }
    async fn reopen(&self, _: Arc<dyn Store>) -> Arc<dyn Store> {
        let server = held(&self.0).clone();
        OnDemand::over(server).await
    }
    async fn corrupt(&self, store: Arc<dyn Store>, id: &ProxyId) -> Option<Arc<dyn Store>> {
        let _ = store.load(id).await;
        let patch = json!({"metadata": {"annotations": {RECORD_ANNOTATION: "no record"}}});
        let server = held(&self.0).clone();
        server.patch_proxy(id.namespace(), id.name(), &patch).ok()?;
        Some(OnDemand::over(server).await)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conformance_the_annotation_store_keeps_every_promise() {
    let report = conformance::run(&Suite(Mutex::default())).await;
    assert!(
        report.failures().is_empty() && report.not_run().is_empty(),
        "{report}"
    );
    assert_eq!(report.cases.len(), CASES.len());
}

#[tokio::test]
async fn the_first_record_and_the_finalizer_come_in_one_patch_and_go_in_one() {
    let server = Server::new();
    server.create_proxy("shop", "a", &json!({}));
    let (store, _) = open(&server).await;
    server.take_asked();
    let version = store
        .save(&id("a"), &record(&id("a"), 1), None)
        .await
        .unwrap();
    let asked = server.take_asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    let made = server.proxy("shop", "a").unwrap();
    assert_eq!(made["metadata"]["finalizers"], json!([FINALIZER]));
    assert!(made["metadata"]["annotations"][RECORD_ANNOTATION].is_string());

    server.delete_proxy("shop", "a");
    let version = store
        .save(&id("a"), &record(&id("a"), 2), Some(&version))
        .await
        .unwrap();
    store.remove(&id("a"), &version).await.unwrap();
    assert_eq!(server.proxy("shop", "a"), None);
    assert_eq!(store.load(&id("a")).await.unwrap(), None);
}

/// B164: and where the cache lags, the answer to one's own write does not.
#[tokio::test]
async fn a_replica_with_an_old_cache_changes_nothing() {
    let server = Server::new();
    server.create_proxy("shop", "a", &json!({}));
    let (old, _) = open(&server).await;
    let (new, _) = open(&server).await;
    let won = new
        .save(&id("a"), &record(&id("a"), 1), None)
        .await
        .unwrap();
    let lost = old.save(&id("a"), &record(&id("a"), 2), None).await;
    assert_eq!(lost.unwrap_err().kind, StoreErrorKind::Conflict);
    // It asks, and goes on from what is there.
    let seen = old.load(&id("a")).await.unwrap().unwrap();
    assert_eq!((seen.record.last_attempt, seen.version), (1, won));
}

/// B168: what others put on a Proxy or took off is theirs.
#[tokio::test]
async fn a_finalizer_of_somebody_else_that_goes_meanwhile_is_not_put_back() {
    let server = Server::new();
    server.create_proxy("shop", "a", &json!({}));
    let patch = Target::proxies(Verb::Patch, "shop", Some("a"));
    let theirs = json!({"metadata": {"finalizers": ["example.com/theirs"]}});
    server.ask(&patch, &theirs).unwrap();
    let (store, _) = open(&server).await;
    let version = store
        .save(&id("a"), &record(&id("a"), 1), None)
        .await
        .unwrap();
    server.delete_proxy("shop", "a");
    let only_ours = json!({"metadata": {"finalizers": [FINALIZER]}});
    server.ask(&patch, &only_ours).unwrap();
    store.remove(&id("a"), &version).await.unwrap();
    assert_eq!(server.proxy("shop", "a"), None, "nothing holds it any more");
}

#[tokio::test]
async fn a_status_or_label_written_in_between_is_no_conflict_of_the_record() {
    let server = Server::new();
    server.create_proxy("shop", "a", &json!({}));
    let (store, _) = open(&server).await;
    let version = store
        .save(&id("a"), &record(&id("a"), 1), None)
        .await
        .unwrap();
    let label = json!({"metadata": {"labels": {"team": "blue"}}});
    server.patch_proxy("shop", "a", &label).unwrap();
    let saved = store
        .save(&id("a"), &record(&id("a"), 2), Some(&version))
        .await;
    assert!(saved.is_ok(), "{saved:?}");
    assert_eq!(
        server.proxy("shop", "a").unwrap()["metadata"]["labels"]["team"],
        "blue"
    );
}

/// B151: nothing is asked for before it is held.
#[tokio::test]
async fn a_first_record_of_a_proxy_that_is_deleted_meanwhile_is_a_conflict() {
    let server = Server::new();
    server.create_proxy("shop", "a", &json!({}));
    let (store, _) = open(&server).await;
    server.delete_proxy("shop", "a");
    let saved = store.save(&id("a"), &record(&id("a"), 1), None).await;
    assert_eq!(saved.unwrap_err().kind, StoreErrorKind::Conflict);
    assert_eq!(store.load(&id("a")).await.unwrap(), None);
}

/// Plays these verdicts on the next writes of records, one each.
struct Script(Mutex<VecDeque<Verdict>>);

#[async_trait]
impl Gate for Script {
    async fn judge(&self, target: &Target) -> Verdict {
        if !target.is_record_write() {
            return Verdict::Pass;
        }
        held(&self.0).pop_front().unwrap_or(Verdict::Pass)
    }
}

#[tokio::test(start_paused = true)]
async fn every_failure_of_a_write_has_the_meaning_that_the_next_load_confirms() {
    use StoreErrorKind::{Conflict, OutcomeUnknown, Unavailable};
    for (verdict, kind, landed) in [
        (Verdict::Refuse(409), Conflict, false),
        (Verdict::Refuse(429), Unavailable, false),
        (Verdict::Refuse(403), Unavailable, false),
        (Verdict::Refuse(422), Unavailable, false),
        (Verdict::Refuse(500), OutcomeUnknown, false),
        (Verdict::FailAfter(500), OutcomeUnknown, true),
        (Verdict::FailAfter(504), OutcomeUnknown, true),
        (Verdict::CutBefore, OutcomeUnknown, false),
        (Verdict::CutAfter, OutcomeUnknown, true),
        (Verdict::HangBefore, OutcomeUnknown, false),
        (Verdict::HangAfter, OutcomeUnknown, true),
    ] {
        let server = Server::new();
        server.create_proxy("shop", "a", &json!({}));
        let (store, _) = open(&server).await;
        server.set_gate(Some(Arc::new(Script(Mutex::new([verdict].into())))));
        let saved = store.save(&id("a"), &record(&id("a"), 1), None).await;
        assert_eq!(saved.unwrap_err().kind, kind, "{verdict:?}");
        let seen = store.load(&id("a")).await.unwrap();
        assert_eq!(seen.is_some(), landed, "{verdict:?}");
        let version = seen.map(|stored| stored.version);
        let again = store
            .save(&id("a"), &record(&id("a"), 2), version.as_ref())
            .await;
        assert!(again.is_ok(), "{verdict:?}: {again:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn steady_loads_ask_the_api_server_nothing() {
    let server = Server::new();
    server.create_proxy("shop", "a", &json!({}));
    let (store, _) = open(&server).await;
    store
        .save(&id("a"), &record(&id("a"), 1), None)
        .await
        .unwrap();
    server.take_asked();
    for _ in 0..100 {
        assert!(store.load(&id("a")).await.unwrap().is_some());
    }
    assert_eq!(server.take_asked(), vec![]);
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_without_a_record_is_a_lost_record_until_nothing_can_come_any_more() {
    let server = Server::new();
    server.create_proxy("shop", "a", &json!({}));
    let held_by_us = json!({"metadata": {"finalizers": [FINALIZER, "else.io/x"]}});
    server.patch_proxy("shop", "a", &held_by_us).unwrap();
    let (store, _) = open(&server).await;
    let early = store.load(&id("a")).await.unwrap_err();
    assert_eq!(early.kind, StoreErrorKind::Settling(Duration::from_mins(1)));
    assert!(early.text.contains("searched by its mark"), "{early}");
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(store.load(&id("a")).await.unwrap(), None);
    // Nothing was found: it may go, and the finalizer of others stays.
    store.release_unrecorded(&id("a")).await.unwrap();
    assert!(
        store.shared.cache.get(&id("a")).unwrap().is_held(),
        "it is not being deleted"
    );
    server.delete_proxy("shop", "a");
    store.release_unrecorded(&id("a")).await.unwrap();
    let left = server.proxy("shop", "a").unwrap();
    assert_eq!(left["metadata"]["finalizers"], json!(["else.io/x"]));
}

#[tokio::test]
async fn a_finalizer_that_was_taken_away_comes_back_and_the_record_stays_as_it_is() {
    let server = Server::new();
    server.create_proxy("shop", "a", &json!({}));
    let (store, cache) = open(&server).await;
    let version = store.save(&id("a"), &record(&id("a"), 1), None).await;
    let taken = json!({"metadata": {"finalizers": ["else.io/x"]}});
    server.patch_proxy("shop", "a", &taken).unwrap();
    let (store, cache) = {
        drop((store, cache));
        open(&server).await
    };
    let found = cache.get(&id("a")).unwrap();
    assert!(found.lacks_hold());
    store.hold(&id("a"), &found.uid).await.unwrap();
    let object = server.proxy("shop", "a").unwrap();
    let both = json!(["else.io/x", FINALIZER]);
    assert_eq!(object["metadata"]["finalizers"], both);
    assert!(!cache.get(&id("a")).unwrap().lacks_hold());
    let kept = store.load(&id("a")).await.unwrap().unwrap();
    assert_eq!(kept.version, version.unwrap());
    // Another object of the name, or one that goes, is left alone.
    server.patch_proxy("shop", "a", &taken).unwrap();
    store.hold(&id("a"), "another").await.unwrap();
    server.delete_proxy("shop", "a");
    store.hold(&id("a"), &found.uid).await.unwrap();
    let object = server.proxy("shop", "a").unwrap();
    assert_eq!(object["metadata"]["finalizers"], json!(["else.io/x"]));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_was_replaced_while_its_machine_was_being_made_has_lost_its_record() {
    let server = Server::new();
    let tell = |name: &str, status: Value| {
        let mut target = Target::proxies(Verb::Patch, "shop", Some(name));
        target.subresource = Some("status".into());
        server.ask(&target, &json!({ "status": status })).unwrap();
    };
    for (name, phase) in [("making", "Provisioning"), ("runs", "Running")] {
        server.create_proxy("shop", name, &json!({}));
        let machine = json!({"id": "104", "name": "proxy-a", "attempt": 2});
        tell(name, json!({"phase": phase, "machine": machine}));
    }
    server.create_proxy("shop", "new", &json!({}));
    let (store, cache) = open(&server).await;
    // Who runs is found by its mark; who is being made may not be there yet.
    assert_eq!(store.load(&id("runs")).await.unwrap(), None);
    assert_eq!(store.load(&id("new")).await.unwrap(), None);
    let early = store.load(&id("making")).await.unwrap_err();
    assert_eq!(early.kind, StoreErrorKind::Settling(Duration::from_mins(1)));
    // Also once its status, which our own pass wrote anew, tells of no machine any more.
    tell("making", json!({"phase": "Pending"}));
    store.shared.fresh(&id("making")).await.unwrap();
    assert_eq!(cache.get(&id("making")).unwrap().memory, Memory::Nothing);
    assert!(store.load(&id("making")).await.is_err());
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(store.load(&id("making")).await.unwrap(), None);
}

#[tokio::test]
async fn a_copied_object_has_no_record_and_takes_one_of_its_own() {
    let server = Server::new();
    server.create_proxy("shop", "a", &json!({}));
    let (store, _) = open(&server).await;
    store
        .save(&id("a"), &record(&id("a"), 1), None)
        .await
        .unwrap();
    let original = server.proxy("shop", "a").unwrap();
    let body = json!({
        "apiVersion": original["apiVersion"], "kind": "Proxy", "spec": {},
        "metadata": {
            "name": "b", "annotations": original["metadata"]["annotations"],
            "finalizers": original["metadata"]["finalizers"],
        },
    });
    server
        .ask(&Target::proxies(Verb::Create, "shop", None), &body)
        .unwrap();
    let (store, _) = open(&server).await;
    assert_eq!(store.load(&id("b")).await.unwrap(), None);
    store
        .save(&id("b"), &record(&id("b"), 1), None)
        .await
        .unwrap();
    let own = store.load(&id("b")).await.unwrap().unwrap();
    assert_eq!(own.record.proxy, id("b"));
}

#[tokio::test]
async fn nothing_is_written_without_the_lease() {
    struct Never;
    impl PermitSource for Never {
        fn permit(&self, _: u32) -> Option<egress_provider::Permit> {
            None
        }
    }
    let server = Server::new();
    server.create_proxy("shop", "a", &json!({}));
    let (_, cache) = open(&server).await;
    let settle: Settle = Arc::new(|| Duration::ZERO);
    let proxies = Proxies::new(server.client());
    let store = AnnotationStore::new(proxies, cache, Arc::new(Never), settle);
    server.take_asked();
    let saved = store.save(&id("a"), &record(&id("a"), 1), None).await;
    assert_eq!(saved.unwrap_err().kind, StoreErrorKind::Unavailable);
    assert_eq!(server.take_asked(), vec![]);
}
