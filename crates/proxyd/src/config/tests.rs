use super::*;
use crate::ErrorKind;
use egress_core::proxy_config::{Limits, Verifier};
use std::io::Write;

fn sound() -> ProxydConfig {
    ProxydConfig {
        key: "proxy-a".to_owned(),
        attempt: 1,
        listen: "127.0.0.1:0".parse().unwrap(),
        management: None,
        egress: None,
        clients: vec![],
        auth: Auth::Basic {
            verifiers: vec![Verifier::new("egress", "secret")],
            generation: 1,
        },
        limits: Limits::default(),
    }
}

fn told(config: &ProxydConfig) -> Vec<String> {
    validate(config).iter().map(ToString::to_string).collect()
}

fn load(text: &str) -> Result<ProxydConfig, Error> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    load_config(file.path())
}

#[test]
fn a_sound_configuration_has_no_findings() {
    assert_eq!(told(&sound()), Vec::<String>::new());
}

#[test]
fn neither_credentials_nor_clients_is_an_open_proxy() {
    let config = ProxydConfig {
        auth: Auth::None {},
        ..sound()
    };
    assert_eq!(
        told(&config),
        [
            "auth: none: an open proxy: neither credentials nor a list of clients: \
          set auth.basic, or list the allowed networks in clients"
        ]
    );
}

#[test]
fn a_list_that_names_everyone_is_no_list() {
    let clients = vec!["10.0.0.0/8".parse().unwrap(), "0.0.0.0/0".parse().unwrap()];
    let config = ProxydConfig {
        auth: Auth::None {},
        clients,
        ..sound()
    };
    let findings = told(&config);
    assert_eq!(findings.len(), 1);
    assert!(
        findings[0].starts_with("clients[1]: 0.0.0.0/0: "),
        "{findings:?}"
    );
}

#[test]
fn basic_without_a_verifier_is_refused() {
    let auth = Auth::Basic {
        verifiers: vec![],
        generation: 1,
    };
    let findings = told(&ProxydConfig { auth, ..sound() });
    assert!(
        findings[0].starts_with("auth.basic.verifiers: []: "),
        "{findings:?}"
    );
}

#[test]
fn all_faults_are_told_at_once() {
    let limits = Limits {
        connections: 0,
        connections_per_client: 0,
        header_bytes: 10,
        header_seconds: 0,
        connect_seconds: 0,
        idle_seconds: 0,
        drain_seconds: 0,
    };
    let listen = "127.0.0.1:4000".parse().unwrap();
    let config = ProxydConfig {
        key: String::new(),
        listen,
        management: Some(listen),
        egress: Some("0.0.0.0".parse().unwrap()),
        auth: Auth::None {},
        limits,
        ..sound()
    };
    let paths: Vec<_> = validate(&config)
        .into_iter()
        .map(|finding| finding.path)
        .collect();
    assert_eq!(
        paths,
        [
            "auth",
            "key",
            "egress",
            "management",
            "limits.connections",
            "limits.connectionsPerClient",
            "limits.headerBytes",
            "limits.headerSeconds",
            "limits.connectSeconds",
            "limits.idleSeconds",
        ]
    );
}

#[test]
fn a_written_configuration_is_read_back() {
    let text = serde_json::to_string(&sound()).unwrap();
    assert_eq!(load(&text).unwrap(), sound());
}

#[test]
fn an_unknown_field_a_wrong_type_and_a_missing_file_are_bad_input() {
    let unknown = r#"{"key":"a","attempt":1,"listen":"127.0.0.1:1","auth":{"none":{}},"port":1}"#;
    for (text, needle) in [
        (unknown, "unknown field `port`"),
        ("{", "line 1 column 1"),
        ("[]", ""),
    ] {
        let error = load(text).unwrap_err();
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::Config, 2));
        assert!(error.to_string().contains(needle), "{error}");
    }
    let error = load_config(Path::new("/nonexistent/proxyd.json")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(
        error.to_string().starts_with("/nonexistent/proxyd.json: "),
        "{error}"
    );
}
