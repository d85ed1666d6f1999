//! What the checker warns of: what nobody may have meant, and what it cannot look at.

mod bench;
#[path = "bench/scene.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod scene;

use egress_provider::{CheckFinding, CheckReason, Provider, Severity};
use egress_proxmox::Config;
use egress_proxmox_sim::world::{AclSetup, Setup};
use scene::Scene;
use serde_json::{Value, json};

/// The findings about a world, changed in these ways.
async fn findings(setup: Setup, change: impl FnOnce(&mut Config), orders: &[Value]) -> Findings {
    let scene = Scene::with(setup, change).await;
    for order in orders {
        scene.tell(order.clone());
    }
    let mut found = scene.provider.check().await.unwrap().findings;
    // The simulated world has a time of its own.
    found.retain(|finding| finding.reason != CheckReason::ClockSkewed);
    Findings(found)
}

#[derive(Debug)]
struct Findings(Vec<CheckFinding>);

impl Findings {
    fn find(&self, reason: CheckReason, word: &str) -> Option<&CheckFinding> {
        let mut all = self.0.iter();
        all.find(|finding| finding.reason == reason && finding.found.contains(word))
    }
    #[track_caller]
    fn assert_only_warns(&self, reason: CheckReason, word: &str) {
        let warned = self.find(reason, word);
        let severity = warned.map(|finding| finding.severity);
        assert_eq!(severity, Some(Severity::Warning), "{self:#?}");
        assert_eq!(self.0.len(), 1, "{self:#?}");
    }
}

fn set(key: &str, value: &str) -> Value {
    json!({"do": "set-key", "vmid": 9000, "key": key, "value": value})
}

#[tokio::test(start_paused = true)]
async fn a_firewall_on_the_templates_network_card_is_told_since_clones_inherit_its_rules() {
    let card = "virtio=BC:24:11:DF:E6:EF,bridge=vmbr0,firewall=1";
    let found = findings(Setup::default(), |_| {}, &[set("net0", card)]).await;
    found.assert_only_warns(CheckReason::NetworkInvalid, "firewall=1 on net0");

    let off = "virtio=BC:24:11:DF:E6:EF,bridge=vmbr0,firewall=0";
    let found = findings(Setup::default(), |_| {}, &[set("net0", off)]).await;
    assert!(found.0.is_empty(), "{found:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_template_that_ha_manages_is_told() {
    let managed = json!({"do": "ha", "vmid": 9000, "managed": true});
    let found = findings(bench::two_nodes(), |_| {}, &[managed]).await;
    found.assert_only_warns(CheckReason::TemplateInvalid, "managed by HA");
}

#[tokio::test(start_paused = true)]
async fn another_network_card_of_the_template_is_told() {
    let card = "virtio=BC:24:11:DF:E6:F0,bridge=vmbr0";
    let found = findings(Setup::default(), |_| {}, &[set("net1", card)]).await;
    found.assert_only_warns(CheckReason::NetworkInvalid, "another network card, net1");
}

fn answer(path: &str, data: &Value) -> Value {
    let body = json!({ "data": data }).to_string();
    json!({"do": "answer-with", "status": 200, "reason": "OK", "path": path, "body": body,
        "contentType": "application/json;charset=UTF-8"})
}

/// A node with a vnet beside its bridge, whose zone is told or not.
fn with_vnet(zone: Option<&str>) -> [Value; 2] {
    let bridges = json!([
        {"iface": "vmbr0", "type": "bridge", "bridge_vlan_aware": 1, "active": 1},
        {"iface": "vnet1", "type": "vnet", "active": 1},
    ]);
    let told = zone.map(|zone| json!({"vnet": "vnet1", "zone": zone, "type": "vnet"}));
    [
        answer("/nodes/pve1/network", &bridges),
        answer("/cluster/sdn/vnets", &json!(told.as_slice())),
    ]
}

fn on_vnet(config: &mut Config) {
    config.bridge = Some("vnet1".to_owned());
    config.vlan_tag = Some(4);
}

/// A token that may use the plain bridge and no zone of SDN.
fn without_zones() -> Setup {
    let paths = ["/vms", "/storage", "/sdn/zones/localnetwork"];
    Setup {
        acl: paths
            .map(|path| AclSetup {
                path: path.to_owned(),
                who: "op@pve".to_owned(),
                role: "Operator".to_owned(),
                propagate: true,
            })
            .into(),
        ..Setup::default()
    }
}

#[tokio::test(start_paused = true)]
async fn the_privilege_on_a_vnet_is_looked_up_in_the_zone_that_the_api_tells() {
    let told = with_vnet(Some("lab"));
    let found = findings(Setup::default(), on_vnet, &told).await;
    assert!(found.0.is_empty(), "{found:#?}");

    let found = findings(without_zones(), on_vnet, &told).await;
    let missing = found.find(CheckReason::MissingPrivileges, "SDN.Use");
    let named = missing.is_some_and(|f| f.found.contains("/sdn/zones/lab/vnet1/4"));
    assert!(named, "{found:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_vnet_whose_zone_is_not_told_is_said_to_be_unchecked() {
    let found = findings(Setup::default(), on_vnet, &with_vnet(None)).await;
    found.assert_only_warns(CheckReason::VisibilityLimited, "vnet1");
    assert!(
        found.0[0].remedy.contains("/sdn/zones/ZONE/vnet1/4"),
        "{found:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_single_node_that_lacks_quorum_is_not_ready() {
    let status = json!([
        {"type": "cluster", "id": "cluster", "name": "lab", "quorate": 0, "nodes": 2, "version": 3},
        {"type": "node", "id": "node/pve1", "name": "pve1", "online": 1, "local": 1, "nodeid": 1},
    ]);
    let told = [answer("/cluster/status", &status)];
    let found = findings(Setup::default(), |_| {}, &told).await;
    let missing = found.find(CheckReason::NoQuorum, "no quorum");
    let severity = missing.map(|finding| finding.severity);
    assert_eq!(severity, Some(Severity::Error), "{found:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_reserve_that_no_node_can_keep_is_told_with_its_field() {
    let greedy = |config: &mut Config| config.reserve.memory_mib = 1 << 30;
    let found = findings(Setup::default(), greedy, &[]).await;
    let told = found.find(CheckReason::ConfigInvalid, "no node has more than");
    let field = told.and_then(|finding| finding.field.as_deref());
    assert_eq!(field, Some("reserve.memoryMiB"), "{found:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_finding_names_the_field_that_mends_it() {
    let gone = |config: &mut Config| {
        config.storage = "nowhere".to_owned();
        config.bridge = Some("vmbr9".to_owned());
    };
    let plain =
        json!({"do": "set-key", "vmid": 9000, "key": "hookscript", "value": "local:snippets/x"});
    let found = findings(Setup::default(), gone, &[plain]).await;
    for (reason, field) in [
        (CheckReason::StorageUnavailable, "storage"),
        (CheckReason::NetworkInvalid, "bridge"),
        (CheckReason::TemplateInvalid, "template"),
    ] {
        let told = found.find(reason, "").and_then(|f| f.field.as_deref());
        assert_eq!(told, Some(field), "{found:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_token_and_a_missing_authority_are_told_together_and_in_plain_words() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        token_file: directory.path().join("no-token"),
        ca_file: directory.path().join("no-ca.pem"),
        ..bench::config(directory.path())
    };
    let payload = egress_proxmox::Payload::new(None);
    let provider = egress_proxmox::Proxmox::new(bench::name(), bench::identity(), config, payload);
    let found = provider.check().await.unwrap().findings;
    let told: Vec<_> = found
        .iter()
        .map(|finding| (finding.reason, finding.field.as_deref()))
        .collect();
    assert_eq!(
        told,
        [
            (CheckReason::Unauthorized, Some("tokenFile")),
            (CheckReason::CertificateInvalid, Some("caFile")),
        ]
    );
    for finding in &found {
        assert!(!finding.found.contains("GET "), "{finding:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_smaller_than_the_templates_is_refused_before_anything_is_made() {
    let scene = Scene::new(Setup::default()).await;
    let mut small = scene.of("small");
    small.wanted.size.disk_gib = 1;
    let mut claim = small.claim().await;
    let survey = small
        .provider
        .survey(&small.key, &claim, &small.wanted)
        .await;
    let create = small.create_once(&mut claim).await;
    for refused in [survey.unwrap_err(), create.unwrap_err()] {
        assert_eq!(refused.class(), egress_core::ErrorClass::Permanent);
        let said = "spec.machine.diskGiB: 1: the disk of template 9000 has";
        assert!(refused.chain().contains(said), "{}", refused.chain());
    }
    assert_eq!(scene.mutations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_not_given_up_for_one_that_does_not_fit() {
    let scene = Scene::new(Setup::default()).await;
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    let survey = async |change: &dyn Fn(&mut egress_core::machine::MachineSize)| {
        let mut wanted = scene.wanted.clone();
        change(&mut wanted.size);
        // Another process: what was surveyed before is not kept.
        let provider = scene.restarted().await.provider;
        provider.survey(&scene.key, &claim, &wanted).await
    };
    survey(&|_| {}).await.expect("its own room comes free");
    for (change, class, said) in [
        (
            (|size| size.memory_mib = 1_000_000) as fn(&mut egress_core::machine::MachineSize),
            egress_core::ErrorClass::Capacity,
            "of memory free, ",
        ),
        (
            |size| size.disk_gib = 900_000,
            egress_core::ErrorClass::Capacity,
            "GiB are needed with the reserve",
        ),
        (
            |size| size.cpus = 4_000,
            egress_core::ErrorClass::Permanent,
            "spec.machine.cpus: 4000: node pve1 has ",
        ),
    ] {
        let refused = survey(&change).await.unwrap_err();
        assert_eq!(refused.class(), class, "{}", refused.chain());
        assert!(refused.chain().contains(said), "{}", refused.chain());
    }
    scene.tell(json!({"do": "fill-storage"}));
    let refused = survey(&|_| {}).await.unwrap_err();
    assert_eq!(refused.class(), egress_core::ErrorClass::Capacity);
}
