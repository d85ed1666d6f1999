//! Proxies that are no longer there to be asked about.

use super::*;
use crate::support::legal;

#[tokio::test(start_paused = true)]
async fn who_is_forgotten_is_shown_no_more_and_keeps_its_machine() {
    let site = Site::new();
    let engine = site.start().await;
    engine.handle.want(wanted("a"));
    engine.wait_serving(&["a"]).await;
    engine.handle.forget(id("a"));
    let gone = || engine.handle.view(&id("a")).is_none();
    wait_for("it to be forgotten", secs(1), gone).await;
    let asked = site.world.request_count();
    tokio::time::sleep(secs(600)).await;
    assert_eq!(site.machines("a").len(), 1);
    assert_eq!(site.world.request_count(), asked, "nobody asks about it");
    assert!(engine.handle.view(&id("a")).is_none());
}

#[tokio::test(start_paused = true)]
async fn who_is_forgotten_in_the_midst_of_a_pass_leaves_the_name_to_the_next_one() {
    let site = Site::new();
    let engine = site.start().await;
    site.doorman.shut();
    engine.handle.want(wanted("a"));
    let waits = || site.doorman.waiting() > 0;
    wait_for("a pass that takes long", secs(5), waits).await;
    engine.handle.forget(id("a"));
    let next = Desired {
        uid: legal("uid-another"),
        ..wanted("a")
    };
    engine.handle.want(next);
    site.doorman.open();
    engine.wait_serving(&["a"]).await;
    // The pass in flight wrote its record, and this store keeps it: the machine is its.
    let all = site.world.inventory().machines;
    assert_eq!((all.len(), site.machines("a").len()), (1, 1));
}
