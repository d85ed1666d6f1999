//! Who may do and see what.

use super::*;

#[test]
fn a_pool_scoped_token_sees_its_machine_only_as_a_member() {
    let entry = |path: &str| AclSetup {
        path: path.to_owned(),
        who: "op@pve".to_owned(),
        role: "Operator".to_owned(),
        propagate: true,
    };
    let mut setup = Setup {
        acl: ["/pool/egress", "/storage", "/sdn"].map(entry).into(),
        ..Setup::default()
    };
    setup.pools[0].members = vec![9000];
    let mut client = Client::new(setup);
    let path = "/nodes/pve1/qemu/9000/clone";
    let outside = client.send("POST", path, &[("newid", "101"), ("full", "1")]);
    assert_eq!(
        (outside.status, outside.reason.as_str()),
        (403, "Permission check failed")
    );
    let form = [("newid", "101"), ("full", "1"), ("pool", "egress")];
    let posted = client.send("POST", path, &form);
    client.pass(0.1);
    let during = client.get("/nodes/pve1/qemu/101/config");
    assert_eq!(
        during.reason,
        "Permission check failed (/vms/101, VM.Audit)"
    );
    let upid = posted.body["data"].as_str().unwrap().to_owned();
    assert_eq!(client.end_of(&upid), "OK");
    assert_eq!(client.get("/nodes/pve1/qemu/101/config").status, 200);
}

#[test]
fn both_versions_ask_for_their_own_agent_privilege() {
    for (version, privilege) in [
        (8, "VM.Monitor"),
        (9, "VM.GuestAgent.Audit|VM.GuestAgent.Unrestricted"),
    ] {
        let setup = Setup {
            version,
            roles: [("Operator".to_owned(), vec!["VM.Audit".to_owned()])].into(),
            ..Setup::default()
        };
        let mut client = Client::new(setup);
        let got = client.get("/nodes/pve1/qemu/9000/agent/network-get-interfaces");
        assert_eq!(
            got.reason,
            format!("Permission check failed (/vms/9000, {privilege})")
        );
    }
}

#[test]
fn a_deeper_entry_replaces_the_inherited_role() {
    let role = |name: &str, privileges: &[&str]| {
        let privileges = privileges.iter().map(|&it| it.to_owned()).collect();
        (name.to_owned(), privileges)
    };
    let entry = |path: &str, role: &str| AclSetup {
        path: path.to_owned(),
        who: "op@pve".to_owned(),
        role: role.to_owned(),
        propagate: true,
    };
    let mut client = Client::new(Setup {
        roles: [
            role("All", &["Datastore.Audit", "Datastore.AllocateTemplate"]),
            role("Seeds", &["Datastore.Allocate"]),
        ]
        .into(),
        acl: vec![entry("/", "All"), entry("/storage/proxy-seeds", "Seeds")],
        ..Setup::default()
    });
    let seeds = client.data("/access/permissions?path=/storage/proxy-seeds");
    assert_eq!(
        seeds,
        json!({"/storage/proxy-seeds": {"Datastore.Allocate": 1}})
    );
    let other = client.data("/access/permissions?path=/storage/local-lvm");
    assert_eq!(
        other["/storage/local-lvm"]
            .as_object()
            .map(serde_json::Map::len),
        Some(2)
    );
}

#[test]
fn a_separated_token_has_only_what_both_it_and_its_user_have() {
    let mut setup = Setup::default();
    setup.tokens[0].separated = true;
    let mut client = Client::new(setup);
    let path = "/access/permissions?path=/vms/9000";
    assert_eq!(client.data(path), json!({}));
    client.control(json!({"do": "grant", "acl": [
        {"path": "/vms", "who": "op@pve!t1", "role": "PVEVMAdmin"},
    ]}));
    let got = client.data(path)["/vms/9000"].clone();
    assert_eq!(got["VM.Clone"], 1);
    assert!(got.get("VM.Snapshot").is_none());
}

#[test]
fn the_clusters_list_shows_a_storage_only_to_who_may_audit_it() {
    for (privilege, listed, status) in [
        ("Datastore.AllocateSpace", 0, 200),
        ("Datastore.Audit", 2, 200),
        ("Datastore.AllocateTemplate", 0, 403),
    ] {
        let mut client = Client::new(Setup {
            roles: [("Operator".to_owned(), vec![privilege.to_owned()])].into(),
            ..Setup::default()
        });
        let rows = client.data("/cluster/resources?type=storage");
        let rows = rows.as_array().map(Vec::len);
        assert_eq!(rows, Some(listed), "{privilege}");
        let own = client.get("/nodes/pve1/storage/local-lvm/status");
        assert_eq!(own.status, status, "{privilege}");
    }
}
