use super::*;

fn block(extra: &str) -> Config {
    let mut value = serde_json::json!({
        "hosts": [{"uri": "qemu:///system"}],
        "baseImage": "debian-13.qcow2",
    });
    let extra: serde_json::Value = serde_json::from_str(extra).unwrap();
    for (key, field) in extra.as_object().unwrap() {
        value[key] = field.clone();
    }
    serde_json::from_value(value).unwrap()
}

#[test]
fn the_smallest_block_is_whole_and_has_the_documented_defaults() {
    let config = block("{}");
    assert_eq!(config.validate("p"), []);
    assert_eq!(config.pool, "default");
    assert_eq!(config.domain_type, DomainType::Kvm);
    assert_eq!(config.machine_type, "q35");
    assert_eq!(config.seed_bus, SeedBus::Scsi);
    assert_eq!(config.guest_agent, GuestAgent::Builtin);
    assert_eq!(config.reserve, Reserve::default());
    let plug = Plug::Network {
        name: "default",
        portgroup: None,
    };
    assert_eq!(config.plug(), plug);
    assert_eq!(block(r#"{"bridge": "br0"}"#).plug(), Plug::Bridge("br0"));
}

#[test]
fn every_fault_is_told_with_its_path() {
    for (extra, path, problem) in [
        (r#"{"hosts": []}"#, "hosts", "names no host"),
        (
            r#"{"hosts": [{"uri": "qemu:///system"}, {"uri": "qemu:///system"}]}"#,
            "hosts[1].uri",
            "listed twice",
        ),
        (
            r#"{"hosts": [{"uri": "qemu+tls://a/system"}], "caFile": "ca.pem", "certFile": "c.pem"}"#,
            "keyFile",
            "reached by qemu+tls",
        ),
        (
            r#"{"caFile": "ca.pem"}"#,
            "caFile",
            "no host is reached by TLS",
        ),
        (r#"{"pool": ""}"#, "pool", "not the name of a pool"),
        (
            r#"{"baseImage": "/var/lib/x.qcow2"}"#,
            "baseImage",
            "not the name of a volume",
        ),
        (
            r#"{"baseImage": "px-1-proxy.qcow2"}"#,
            "baseImage",
            "looks like a volume of a machine of ours",
        ),
        (
            r#"{"network": "a", "bridge": "br0"}"#,
            "network",
            "named next to `bridge`",
        ),
        (
            r#"{"portgroup": "a", "bridge": "br0"}"#,
            "portgroup",
            "named next to `bridge`",
        ),
        (
            r#"{"bridge": "br 0"}"#,
            "bridge",
            "not the name of a bridge",
        ),
        (
            r#"{"machineType": "q 35"}"#,
            "machineType",
            "not a machine type",
        ),
        (r#"{"seedBus": "ide"}"#, "seedBus", "has no IDE"),
        (
            r#"{"reserve": {"storagePercent": 95}}"#,
            "reserve.storagePercent",
            "leaves no room",
        ),
    ] {
        let findings = block(extra).validate("p");
        assert_eq!(findings.len(), 1, "{extra}: {findings:?}");
        assert_eq!(findings[0].path, format!("p.{path}"), "{extra}");
        assert!(
            findings[0].problem.contains(problem),
            "{extra}: {findings:?}"
        );
    }
    assert_eq!(
        block(r#"{"seedBus": "ide", "machineType": "pc"}"#).validate("p"),
        []
    );
}

#[test]
fn a_password_in_a_uri_is_refused_and_not_shown() {
    for uri in [
        "qemu+ssh://root:sw@rdfish@kvm-1/system",
        "qemu+tls://root:swordfish@kvm-1/system",
        "root:swordfish@kvm-1",
    ] {
        let extra = serde_json::json!({"hosts": [{"uri": uri}]}).to_string();
        let told = format!("{:?}", block(&extra).validate("p"));
        assert!(told.contains("p.hosts[0].uri"), "{told}");
        assert!(!told.contains("fish"), "{told}");
    }
}
