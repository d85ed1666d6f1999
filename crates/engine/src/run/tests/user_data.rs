//! The cloud-config that a Proxy refers to: on its way to the machine, and missing.

use super::*;
use egress_core::{
    machine::CloudConfig,
    proxy::{SourceKind, UserDataRef},
};
use egress_provider::memory::Power;

const TEXT: &str = "#cloud-config\npackages: [htop]\n";

/// The Proxy `a`, made from the key of this name.
fn referring(key: &str) -> Desired {
    let user_data = UserDataRef {
        kind: SourceKind::ConfigMap,
        name: "extra".into(),
        key: key.into(),
    };
    let spec = ProxySpec {
        user_data: Some(user_data),
        config_hash: ConfigHash::of(key.as_bytes()),
        ..spec()
    };
    desired("a", Intent::Run(spec))
}

/// What the machine of `a` read at its first boot.
fn read_by_guest(site: &Site, engine: &Running) -> Option<CloudConfig> {
    let view = engine.handle.view(&id("a")).expect("it is shown");
    let endpoint = view.status.endpoint.expect("it runs");
    let guest = site.world.guest_at(endpoint.ip());
    guest.expect("it answers").user_data
}

fn text(written: &str) -> CloudConfig {
    CloudConfig::new(written.to_owned())
}

#[tokio::test(start_paused = true)]
async fn the_text_that_a_proxy_refers_to_reaches_its_machine() {
    let site = Site::new();
    site.doorman.set_text(Some(TEXT));
    let engine = site.start().await;
    engine.handle.want(referring("k"));
    engine.handle.want(wanted("plain"));
    engine.wait_serving(&["a", "plain"]).await;
    assert_eq!(read_by_guest(&site, &engine), Some(text(TEXT)));
}

#[tokio::test(start_paused = true)]
async fn a_missing_text_is_waited_for_with_its_name_and_nothing_is_claimed() {
    let site = Site::new();
    let engine = site.start().await;
    engine.handle.want(referring("k"));
    let waits = || engine.reason("a", PROVISIONED) == Some(Reason::UserDataMissing);
    wait_for("the missing text to be told", secs(5), waits).await;
    assert_eq!(
        engine.message("a", PROVISIONED),
        "ConfigMap shop/extra lacks the key k: add it"
    );
    let kept = site.shelf.load(&id("a")).await.expect("it can be read");
    assert_eq!(kept, None);
    let requests = site.world.request_count();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(site.world.request_count(), requests, "nobody is asked");

    site.doorman.set_text(Some(TEXT));
    engine.handle.renew(id("a"));
    engine.wait_serving(&["a"]).await;
    assert_eq!(read_by_guest(&site, &engine), Some(text(TEXT)));
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_runs_is_left_alone_while_its_text_is_missing_or_another_one() {
    let site = Site::new();
    site.doorman.set_text(Some(TEXT));
    let engine = site.start().await;
    engine.handle.want(referring("k"));
    engine.wait_serving(&["a"]).await;
    let machines = site.machines("a");
    let reads = || site.doorman.text_reads.load(Ordering::Relaxed);
    let before = reads();
    for now in [None, Some("#cloud-config\n")] {
        site.doorman.set_text(now);
        engine.handle.renew(id("a"));
        tokio::time::sleep(secs(120)).await;
        engine.wait_serving(&["a"]).await;
        assert_eq!(site.machines("a"), machines);
    }
    assert_eq!(reads(), before, "it is of no use to a machine that runs");
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_replaced_only_once_the_next_one_has_its_text() {
    let site = Site::new();
    site.doorman.set_text(Some(TEXT));
    let engine = site.start().await;
    engine.handle.want(referring("k"));
    engine.wait_serving(&["a"]).await;
    let first = read_by_guest(&site, &engine);

    site.doorman.set_text(None);
    engine.handle.want(referring("other"));
    let told = || {
        engine.message("a", PROVISIONED).contains(
            "not replaced before this is mended: ConfigMap shop/extra lacks the key other",
        )
    };
    wait_for("the missing text to be told", secs(5), told).await;
    tokio::time::sleep(secs(120)).await;
    engine.wait_serving(&["a"]).await;
    assert_eq!(read_by_guest(&site, &engine), first);

    site.doorman.set_text(Some("#cloud-config\n"));
    engine.handle.renew(id("a"));
    let leaves = || engine.reason("a", PROVISIONED) == Some(Reason::SpecChanged);
    wait_for("the replacement", secs(5), leaves).await;
    engine.wait_serving(&["a"]).await;
    assert_eq!(read_by_guest(&site, &engine), Some(text("#cloud-config\n")));
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_off_starts_again_without_its_text() {
    let site = Site::new();
    site.doorman.set_text(Some(TEXT));
    let engine = site.start().await;
    engine.handle.want(referring("k"));
    engine.wait_serving(&["a"]).await;
    let machines = site.machines("a");
    site.doorman.set_text(None);
    assert!(site.world.set_power(machines[0], Power::Stopped));
    let off = || engine.reason("a", PROVISIONED) == Some(Reason::PoweredOff);
    wait_for("the stop to be seen", secs(60), off).await;
    engine.wait_serving(&["a"]).await;
    assert_eq!(site.machines("a"), machines);
}

#[tokio::test(start_paused = true)]
async fn what_failed_for_good_is_tried_at_once_when_a_text_is_another_one() {
    let (site, engine) = failed_for_good().await;
    site.world.set_template(true);
    engine.handle.renew(id("a"));
    soon_provisioned(&engine).await;
}
