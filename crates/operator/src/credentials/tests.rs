use super::*;
use crate::{
    double::{Server, Target, Verb},
    objects::Held,
};
use serde_json::{Value, json};

fn id() -> ProxyId {
    ProxyId::new("shop", "a").unwrap()
}

fn object(verb: Verb, resource: &str, name: Option<&str>) -> Target {
    Target {
        group: "v1".into(),
        resource: resource.into(),
        ..Target::proxies(verb, "shop", name)
    }
}

/// A server with the Proxy `shop/a`, and its credentials as the operator sees them.
fn open() -> (Server, KubeCredentials) {
    let server = Server::new();
    let proxy = server.create_proxy("shop", "a", &json!({}));
    let cache = Arc::new(Cache::default());
    cache.put(Held::of(serde_json::from_value(proxy).unwrap()).unwrap());
    let credentials = KubeCredentials::new(server.client(), cache);
    (server, credentials)
}

/// A person makes a Secret with these texts.
fn make_secret(server: &Server, name: &str, texts: &[(&str, &str)]) {
    let body = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": "shop"}, "data": encoded(texts),
    });
    let create = object(Verb::Create, "secrets", None);
    server.ask(&create, &body).unwrap();
}

fn change_secret(server: &Server, name: &str, texts: &[(&str, &str)]) {
    let patch = object(Verb::Patch, "secrets", Some(name));
    let body = json!({"data": encoded(texts)});
    server.ask(&patch, &body).unwrap();
}

fn encoded(texts: &[(&str, &str)]) -> Value {
    let encode = |(key, text): &(&str, &str)| {
        let text = data_encoding::BASE64.encode(text.as_bytes());
        ((*key).to_owned(), Value::String(text))
    };
    Value::Object(texts.iter().map(encode).collect())
}

fn password(found: &Found) -> &str {
    match found {
        Found::Known(credential) => credential.password.expose_secret(),
        other => panic!("no password: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_password_is_made_once_is_owned_by_its_proxy_and_is_not_read_at_every_pass() {
    let (server, credentials) = open();
    let (a, source) = (id(), AuthSource::Generated);
    let find = || credentials.find(&a, &source);
    assert!(matches!(find().await.unwrap(), Found::Nothing));
    let made = credentials
        .ensure(&id(), &AuthSource::Generated)
        .await
        .unwrap();
    server.take_asked();
    for _ in 0..100 {
        assert_eq!(password(&find().await.unwrap()), password(&made));
    }
    assert_eq!(server.take_asked(), vec![]);
    tokio::time::sleep(OWN_BELIEF).await;
    assert_eq!(password(&find().await.unwrap()), password(&made));
    assert_eq!(server.take_asked().len(), 1);

    let read = object(Verb::Get, "secrets", Some("a-credentials"));
    let secret = server.ask(&read, &Value::Null).unwrap();
    let owner = &secret["metadata"]["ownerReferences"][0];
    let proxy = server.proxy("shop", "a").unwrap();
    assert_eq!(owner["uid"], proxy["metadata"]["uid"]);
    assert_eq!(owner["controller"], true);
}

#[tokio::test(start_paused = true)]
async fn a_removed_password_comes_back_as_it_was_where_it_is_known_and_is_never_made_in_secret() {
    let (server, credentials) = open();
    let (a, source) = (id(), AuthSource::Generated);
    let made = credentials.ensure(&a, &source).await.unwrap();
    let delete = object(Verb::Delete, "secrets", Some("a-credentials"));
    server.ask(&delete, &Value::Null).unwrap();
    tokio::time::sleep(OWN_BELIEF).await;
    let found = credentials.find(&a, &source).await.unwrap();
    assert_eq!(password(&found), password(&made));

    // A process that never read it reads the same, and does not know it once it is removed.
    let other = KubeCredentials::new(server.client(), credentials.cache.clone());
    let found = other.find(&a, &source).await.unwrap();
    assert_eq!(password(&found), password(&made));
    server.ask(&delete, &Value::Null).unwrap();
    let fresh = KubeCredentials::new(server.client(), credentials.cache.clone());
    let found = fresh.find(&a, &source).await.unwrap();
    assert!(matches!(found, Found::Nothing), "the engine decides");
}

#[tokio::test(start_paused = true)]
async fn a_password_restored_from_a_backup_is_taken_on_where_nobody_owns_it() {
    let (server, credentials) = open();
    let source = AuthSource::Generated;
    let made = credentials.ensure(&id(), &source).await.unwrap();
    let name = Some("a-credentials");
    let read = object(Verb::Get, "secrets", name);
    let saved = server.ask(&read, &Value::Null).unwrap();
    let delete = object(Verb::Delete, "secrets", name);
    let create = object(Verb::Create, "secrets", None);
    for (owners, is_taken) in [
        (json!([]), true),
        (
            json!([{"kind": "Proxy", "uid": "of-another-cluster"}]),
            false,
        ),
    ] {
        server.ask(&delete, &Value::Null).unwrap();
        let mut restored = saved.clone();
        restored["metadata"]["ownerReferences"] = owners;
        server.ask(&create, &restored).unwrap();
        let fresh = KubeCredentials::new(server.client(), credentials.cache.clone());
        match fresh.find(&id(), &source).await.unwrap() {
            found @ Found::Known(_) => {
                assert!(is_taken);
                assert_eq!(password(&found), password(&made));
            }
            other => assert!(!is_taken, "{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_secret_of_the_name_that_is_not_ours_is_never_taken_and_never_changed() {
    let (server, credentials) = open();
    let texts = [("username", "u"), ("password", "theirs")];
    make_secret(&server, "a-credentials", &texts);
    let found = credentials.ensure(&id(), &AuthSource::Generated).await;
    let Found::Missing(why) = found.unwrap() else {
        panic!("it was taken");
    };
    assert!(why.contains("belongs to something else"), "{why}");
    let asked = server.take_asked();
    assert!(asked.iter().all(|t| !t.verb.is_write()), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_changed_password_of_the_users_is_noticed_within_half_a_minute() {
    let (server, credentials) = open();
    let source = AuthSource::Secret("login".into());
    let a = id();
    let find = || credentials.find(&a, &source);
    let Found::Missing(why) = find().await.unwrap() else {
        panic!("there is none");
    };
    assert!(
        why.contains("Secret shop/login does not exist: create it"),
        "{why}"
    );
    make_secret(&server, "login", &[("username", "u"), ("password", "one")]);
    assert_eq!(password(&find().await.unwrap()), "one");
    change_secret(&server, "login", &[("password", "two")]);
    assert_eq!(password(&find().await.unwrap()), "one");
    tokio::time::sleep(BELIEF).await;
    assert_eq!(password(&find().await.unwrap()), "two");
    change_secret(&server, "login", &[("password", "")]);
    tokio::time::sleep(BELIEF).await;
    let Found::Missing(why) = find().await.unwrap() else {
        panic!("it was taken");
    };
    assert!(
        why.contains("Secret shop/login") && why.contains("password"),
        "{why}"
    );
}

#[tokio::test(start_paused = true)]
async fn cloud_config_is_the_text_of_a_key_and_what_is_missing_is_named() {
    let (server, credentials) = open();
    make_secret(&server, "extra", &[("user-data", "#cloud-config\n")]);
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "extra", "namespace": "shop"}, "data": {"more": "#cloud-config\n{}"},
    });
    let create = object(Verb::Create, "configmaps", None);
    server.ask(&create, &map).unwrap();
    let of = |kind, name: &str, key: &str| UserDataRef {
        kind,
        name: name.into(),
        key: key.into(),
    };
    let credentials = &credentials;
    let told = |source: UserDataRef| async move {
        match credentials.cloud_config(&id(), &source).await.unwrap() {
            FoundText::Here(_) => "here".to_owned(),
            FoundText::Missing(why) => why,
        }
    };
    assert_eq!(
        told(of(SourceKind::Secret, "extra", "user-data")).await,
        "here"
    );
    assert_eq!(
        told(of(SourceKind::ConfigMap, "extra", "more")).await,
        "here"
    );
    assert_eq!(
        told(of(SourceKind::ConfigMap, "extra", "other")).await,
        "ConfigMap shop/extra lacks the key other: add it"
    );
    assert_eq!(
        told(of(SourceKind::ConfigMap, "none", "more")).await,
        "ConfigMap shop/none does not exist: create it, with the key more"
    );
}

#[test]
fn two_long_names_have_secrets_of_their_own() {
    let name = |end: &str| {
        let part = "a".repeat(63);
        let long = format!("{part}.{part}.{part}.{}{end}", "a".repeat(60));
        secret_name(&ProxyId::new("shop", &long).unwrap())
    };
    assert_eq!(secret_name(&id()), "a-credentials");
    assert_ne!(name("x"), name("y"));
    assert!(name("x").len() <= MAX_NAME);
}
