//! The end of a proxy: nothing new, what is open may finish, and not for ever.

use crate::stage::{
    Proxy, Target, Wire, ask, eventually, get, limited, open_config, status, tunnel,
};
use egress_core::proxy_config::{IDENTITY_PATH, IdentityAnswer, ProxydConfig};
use std::time::Instant;
use tokio::net::TcpStream;

#[tokio::test]
async fn with_nothing_open_the_drain_is_over_at_once() {
    let proxy = Proxy::start(open_config());
    let start = Instant::now();
    proxy.drain();
    proxy.ended().await;
    assert!(start.elapsed().as_millis() < 5000, "{:?}", start.elapsed());
}

#[tokio::test]
async fn unused_connections_are_closed_at_once() {
    let proxy = Proxy::start(open_config());
    let mut fresh = Wire::to(proxy.address).await;
    let mut used = Wire::to(proxy.address).await;
    used.say(&format!("GET {IDENTITY_PATH} HTTP/1.1\r\n\r\n"))
        .await;
    used.hear_until("}").await;
    let start = Instant::now();
    proxy.drain();
    assert_eq!(used.rest().await, "");
    assert_eq!(fresh.rest().await, "");
    proxy.ended().await;
    assert!(start.elapsed().as_millis() < 5000, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_request_under_way_finishes_and_new_connections_are_refused() {
    let management = Some("127.0.0.1:0".parse().unwrap());
    let proxy = Proxy::start(ProxydConfig {
        management,
        ..open_config()
    });
    let target = Target::start().await;
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!("GET {} HTTP/1.1\r\n\r\n", target.url()))
        .await;
    let mut far_end = target.accept().await;
    far_end.hear_head().await;
    proxy.drain();
    let address = proxy.address;
    eventually("the listener is closed", || {
        std::net::TcpStream::connect(address).is_err()
    })
    .await;
    let management = proxy.management.unwrap();
    assert_eq!(status(&ask(management, &get("/readyz")).await), 503);
    assert_eq!(status(&ask(management, &get("/healthz")).await), 200);

    far_end
        .say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")
        .await;
    let answer = client.rest().await;
    assert_eq!(status(&answer), 200);
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    assert!(answer.ends_with("done"), "{answer}");
    proxy.ended().await;
    assert!(TcpStream::connect(management).await.is_err());
}

#[tokio::test]
async fn a_tunnel_may_finish() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let (mut client, mut far_end) = tunnel(proxy.address, &target).await;
    proxy.drain();
    client.say("still").await;
    far_end.hear_until("still").await;
    drop((client, far_end));
    proxy.ended().await;
}

#[tokio::test]
async fn what_is_open_at_the_end_of_the_drain_is_cut_off() {
    let proxy = Proxy::start(limited(|limits| limits.drain_seconds = 1));
    let target = Target::start().await;
    let (mut client, mut far_end) = tunnel(proxy.address, &target).await;
    let mut waiting = Wire::to(proxy.address).await;
    waiting
        .say(&format!("GET {} HTTP/1.1\r\n\r\n", target.url()))
        .await;
    target.accept().await.hear_head().await;
    let start = Instant::now();
    proxy.drain();
    assert_eq!(client.rest().await, "");
    assert_eq!(far_end.rest().await, "");
    proxy.ended().await;
    assert!(
        (1000..10_000).contains(&start.elapsed().as_millis()),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn the_identity_answer_says_that_it_is_draining() {
    let proxy = Proxy::start(open_config());
    // Half a head: the connection is in use when the drain begins.
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!("GET {IDENTITY_PATH} HTTP/1.1\r\n"))
        .await;
    // A whole request after it: by its answer the half head has been read, too.
    assert_eq!(status(&ask(proxy.address, &get(IDENTITY_PATH)).await), 200);
    proxy.drain();
    let address = proxy.address;
    eventually("the listener is closed", || {
        std::net::TcpStream::connect(address).is_err()
    })
    .await;
    client.say("\r\n").await;
    let answer = client.rest().await;
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let identity: IdentityAnswer = serde_json::from_str(body).unwrap();
    assert!(identity.draining);
    proxy.ended().await;
}
