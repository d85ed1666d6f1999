use super::*;
use egress_api::manifest::{Document, documents};
use egress_core::machine::CloudConfig;
use egress_engine::store::file::{FileStore, OpenMode};

/// The Secrets and ConfigMaps of these manifests.
fn scanned(text: &str) -> (Secrets, ConfigMaps) {
    let (mut secrets, mut maps) = (Secrets::new(), ConfigMaps::new());
    for entry in documents(text).entries {
        match entry.content.expect("what a test writes is sound") {
            Document::Secret(secret) => secrets
                .insert(name(&secret.metadata.name), secret)
                .is_some(),
            Document::ConfigMap(map) => maps.insert(name(&map.metadata.name), map).is_some(),
            Document::Proxy(_) => panic!("no Proxy is asked for here"),
        };
    }
    (secrets, maps)
}

fn object(kind: &str, name: &str, field: &str) -> String {
    format!("---\napiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}}}\n{field}\n")
}

fn name(name: &str) -> ObjectName {
    ("default".to_owned(), name.to_owned())
}

struct Bench {
    credentials: StandaloneCredentials,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let installation = "lab".parse().expect("a legal name");
        let mode = OpenMode { take_over: false };
        let store = FileStore::open(&dir.path().join("state"), &installation, "host", mode);
        let store = store.expect("a new state directory");
        Self {
            credentials: StandaloneCredentials::new(store.credentials()),
            _dir: dir,
        }
    }

    fn set(&self, text: &str, is_complete: bool) -> Changed {
        let (secrets, maps) = scanned(text);
        self.credentials.set_sources(secrets, maps, is_complete)
    }

    async fn find(&self, kind: SourceKind, name: &str) -> FoundText {
        let id = ProxyId::new("default", "a").expect("a legal name");
        let source = UserDataRef {
            kind,
            name: name.to_owned(),
            key: "k".to_owned(),
        };
        let found = self.credentials.cloud_config(&id, &source).await;
        found.expect("manifests are at hand")
    }
}

fn here(text: &str) -> FoundText {
    FoundText::Here(CloudConfig::new(text.to_owned()))
}

#[tokio::test]
async fn user_data_is_found_in_the_secret_or_config_map_of_the_kind_that_is_named() {
    let bench = Bench::new();
    let both = object("Secret", "extra", "stringData: {k: of-the-secret}")
        + &object("ConfigMap", "extra", "data: {k: of-the-map}");
    bench.set(&both, true);
    let secret = bench.find(SourceKind::Secret, "extra").await;
    assert_eq!(secret, here("of-the-secret"));
    let map = bench.find(SourceKind::ConfigMap, "extra").await;
    assert_eq!(map, here("of-the-map"));
}

#[tokio::test]
async fn user_data_that_is_missing_is_named_with_what_to_add() {
    let bench = Bench::new();
    for (kind, word) in [
        (SourceKind::Secret, "Secret"),
        (SourceKind::ConfigMap, "ConfigMap"),
    ] {
        bench.set("", true);
        let told =
            format!("{word} default/extra is not among the manifests: add it, with the key k");
        assert_eq!(bench.find(kind, "extra").await, FoundText::Missing(told));
        bench.set(&object(word, "extra", "data: {other: dGV4dA==}"), true);
        let told = format!("{word} default/extra lacks the key k: add it");
        assert_eq!(bench.find(kind, "extra").await, FoundText::Missing(told));
    }
}

#[test]
fn what_came_went_or_changed_is_told_and_what_stayed_is_not() {
    let bench = Bench::new();
    let map = |text: &str| object("ConfigMap", "extra", &format!("data: {{k: {text}}}"));
    let secret = object("Secret", "login", "stringData: {k: a}");
    let only_map = |changed: &Changed| {
        let map = changed.has(SourceKind::ConfigMap, &name("extra"));
        map && changed.secrets.is_empty() && !changed.has(SourceKind::Secret, &name("extra"))
    };
    assert!(only_map(&bench.set(&map("a"), true)));
    assert_eq!(bench.set(&map("a"), true), Changed::default());
    assert!(only_map(&bench.set(&map("b"), true)));
    let came = bench.set(&(map("b") + &secret), true);
    assert!(came.has(SourceKind::Secret, &name("login")) && came.config_maps.is_empty());
    // Not in an incomplete scan is not gone.
    assert_eq!(bench.set("", false), Changed::default());
    let went = bench.set(&secret, true);
    assert!(only_map(&went));
}
