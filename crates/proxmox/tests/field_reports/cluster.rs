//! Nodes that are away, and rights that are missing.

use crate::{
    bench::two_nodes,
    scene::{Scene, vmid},
};
use egress_core::{ErrorClass, machine::MachineState};
use egress_provider::{CheckReason, Severity};
use egress_proxmox_sim::world::{NodeSetup, Setup};
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

/// Three nodes, so that one may be away.
fn three_nodes() -> Setup {
    let mut setup = two_nodes();
    setup.nodes.push(NodeSetup {
        name: "pve3".to_owned(),
        address: "192.0.2.12".to_owned(),
        ..setup.nodes[0].clone()
    });
    setup
}

#[tokio::test(start_paused = true)]
async fn b127_b144_a_node_that_is_down_is_an_error_of_its_own_machines_alone() {
    let scene = Scene::new(three_nodes()).await;
    let mut here = scene.claim().await;
    scene.up(&mut here).await;
    let other = scene.of("uid-2");
    let mut there = other.claim().await;
    other.up(&mut there).await;
    let moved = json!({"do": "migrate", "vmid": vmid(&there), "to": "pve2"});
    scene.tell(moved);
    scene.tell(json!({"do": "node", "node": "pve2", "up": false}));
    sleep(Duration::from_secs(30)).await;
    let error = match other.provider.get(&other.key, &there).await {
        Err(error) => error,
        Ok(seen) => panic!("{seen:?}"),
    };
    assert_eq!(error.class(), ErrorClass::Transient, "{error}");
    assert!(error.said().contains("No route to host"), "{error}");
    let before = other.mutations();
    let refused = other.delete_once(&mut there).await.unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Transient, "{refused}");
    assert_eq!(other.mutations(), before);
    scene.reports(&here).await;
}

#[tokio::test(start_paused = true)]
async fn b129_b130_an_empty_node_that_is_away_is_a_warning_and_machines_are_made_elsewhere() {
    let scene = Scene::new(three_nodes()).await;
    scene.tell(json!({"do": "node", "node": "pve3", "up": false}));
    sleep(Duration::from_secs(30)).await;
    let report = scene.provider.check().await.unwrap();
    assert_eq!(report.reason(), CheckReason::Ready, "{report:#?}");
    let told = report
        .findings
        .iter()
        .find(|finding| finding.found.contains("pve3"));
    assert!(
        told.is_some_and(|finding| finding.severity == Severity::Warning),
        "{report:#?}"
    );
    let mut claim = scene.claim().await;
    scene.up(&mut claim).await;
    scene.reports(&claim).await;
}

#[tokio::test(start_paused = true)]
async fn b133_b140_what_the_token_may_not_see_any_more_is_not_gone() {
    for lost in ["VM.Audit", "everything"] {
        let scene = Scene::new(Setup::default()).await;
        let mut claim = scene.claim().await;
        scene.up(&mut claim).await;
        scene.reports(&claim).await;
        if lost == "everything" {
            scene.tell(json!({"do": "set-role", "role": "Operator", "privileges": []}));
        } else {
            scene.tell(json!({"do": "remove-privilege", "privilege": lost}));
        }
        sleep(Duration::from_secs(30)).await;
        let before = scene.mutations();
        let listing = scene.provider.list(&[]).await.unwrap_err();
        assert_eq!(listing.class(), ErrorClass::Unauthorized, "{listing}");
        match scene.provider.get(&scene.key, &claim).await {
            Err(error) => assert_eq!(error.class(), ErrorClass::Unauthorized, "{error}"),
            Ok(seen) => assert!(
                matches!(seen.state, MachineState::Unknown { .. }),
                "{seen:?}"
            ),
        }
        let kept = scene.delete_once(&mut claim).await.unwrap_err();
        assert_ne!(kept.class(), ErrorClass::Transient, "{kept}");
        let again = scene
            .provider
            .claim(&scene.key, &scene.wanted, 2, &[claim.slot.clone()])
            .await;
        if let Ok(mut again) = again {
            let refused = scene.create_once(&mut again).await.unwrap_err();
            assert_eq!(refused.class(), ErrorClass::Unauthorized, "{refused}");
        }
        assert_eq!(scene.mutations(), before);
        let report = scene.provider.check().await.unwrap();
        assert_ne!(report.reason(), CheckReason::Ready, "{report:#?}");
    }
}
