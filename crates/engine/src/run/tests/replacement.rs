//! A machine that runs and should be another one.

use super::*;

/// The Proxy `a` with another spec than [`wanted`] has.
fn changed() -> Desired {
    let spec = ProxySpec {
        config_hash: ConfigHash::of(b"two"),
        ..spec()
    };
    desired("a", Intent::Run(spec))
}

#[tokio::test(start_paused = true)]
async fn a_machine_serves_on_while_the_next_one_could_not_be_made_and_says_why() {
    let site = Site::new();
    let engine = site.start().await;
    engine.handle.want(wanted("a"));
    engine.wait_serving(&["a"]).await;
    let machines = site.machines("a");

    site.world.set_template(false);
    engine.handle.want(changed());
    let told = || engine.reason("a", PROVISIONED) == Some(Reason::ReplacementRefused);
    wait_for("the refusal to be told", secs(10), told).await;
    let message = engine.message("a", PROVISIONED);
    assert!(message.contains("template"), "{message}");
    let requests = site.world.request_count();
    tokio::time::sleep(secs(120)).await;
    engine.wait_serving(&["a"]).await;
    assert_eq!(site.machines("a"), machines);
    assert_eq!(site.world.request_count(), requests, "nothing is changed");

    site.world.set_template(true);
    // The next one may get the same slot.
    let gone = || site.machines("a").is_empty();
    wait_for("the old machine to go", secs(120), gone).await;
    let made = || site.machines("a").len() == 1;
    wait_for("the next machine", secs(120), made).await;
    engine.wait_serving(&["a"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_cannot_be_made_is_failed_at_once_and_not_in_the_next_pass() {
    let site = Site::new();
    site.world.set_template(false);
    let engine = site.start().await;
    engine.handle.want(wanted("a"));
    let told = || engine.reason("a", PROVISIONED) == Some(Reason::Permanent);
    wait_for("the refusal to be told", secs(10), told).await;
    let view = engine.handle.view(&id("a")).expect("it is shown");
    assert_eq!(view.status.phase, egress_core::plan::Phase::Failed);
}
