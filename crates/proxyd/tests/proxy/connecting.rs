//! CONNECT: tunnels.

use crate::stage::{
    Process, Proxy, Target, Wire, ask, basic_config, echo_page, eventually, get, limited,
    open_config, soon, status, tunnel,
};
use egress_core::proxy_config::ProxydConfig;
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};

#[tokio::test]
async fn bytes_go_both_ways() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let (mut client, mut far_end) = tunnel(proxy.address, &target).await;
    client.say("ping").await;
    far_end.hear_until("ping").await;
    far_end.say("pong").await;
    client.hear_until("pong").await;
}

#[tokio::test]
async fn the_answer_to_connect_has_no_body_and_what_was_sent_early_arrives() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!(
            "CONNECT {} HTTP/1.1\r\nHost: x\r\n\r\nearly",
            target.address
        ))
        .await;
    let mut far_end = target.accept().await;
    far_end.hear_until("early").await;
    far_end.say("first bytes").await;
    let head = client.hear_head().await;
    assert_eq!(status(&head), 200);
    assert!(
        !head.contains("content-length") && !head.contains("transfer-encoding"),
        "{head}"
    );
    client.hear_until("first bytes").await;
}

#[tokio::test]
async fn an_http_1_0_client_can_connect() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!("CONNECT {} HTTP/1.0\r\n\r\n", target.address))
        .await;
    let mut far_end = target.accept().await;
    assert_eq!(status(&client.hear_head().await), 200);
    client.say("ping").await;
    far_end.hear_until("ping").await;
}

#[tokio::test]
async fn the_end_of_either_side_is_passed_on_and_the_other_goes_on() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    for client_first in [true, false] {
        let (client, far_end) = tunnel(proxy.address, &target).await;
        let (mut first, mut second) = if client_first {
            (client, far_end)
        } else {
            (far_end, client)
        };
        first.say("question").await;
        first.stream.shutdown().await.unwrap();
        assert_eq!(second.hear_end().await, ("question".to_owned(), true));
        second.say("answer").await;
        second.stream.shutdown().await.unwrap();
        assert_eq!(first.hear_end().await, ("answer".to_owned(), true));
    }
}

#[tokio::test]
async fn a_cut_tunnel_is_cut_on_the_other_side_too() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let (mut client, mut far_end) = tunnel(proxy.address, &target).await;
    far_end.say("half").await;
    client.hear_until("half").await;
    far_end.stream.set_zero_linger().unwrap();
    drop(far_end);
    assert_eq!(client.hear_end().await, (String::new(), false));
}

#[tokio::test]
async fn a_quiet_tunnel_ends_and_a_stream_in_one_direction_does_not() {
    let proxy = Proxy::start(limited(|limits| limits.idle_seconds = 2));
    let target = Target::start().await;
    let (mut client, mut far_end) = tunnel(proxy.address, &target).await;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(4500) {
        far_end.say("tick").await;
        client.hear_until("tick").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let quiet = Instant::now();
    assert_eq!(client.rest().await, "");
    assert_eq!(far_end.rest().await, "");
    assert!(
        quiet.elapsed() >= Duration::from_millis(1500),
        "{:?}",
        quiet.elapsed()
    );
}

#[tokio::test]
async fn the_tunnel_leaves_from_the_outgoing_address() {
    let page = echo_page("127.0.0.1:0").await;
    let egress = Some("127.0.0.2".parse().unwrap());
    let proxy = Proxy::start(ProxydConfig {
        egress,
        ..open_config()
    });
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!("CONNECT {page} HTTP/1.1\r\n\r\n"))
        .await;
    assert_eq!(status(&client.hear_head().await), 200);
    client.say(&get("/")).await;
    assert!(client.rest().await.ends_with("\r\n\r\n127.0.0.2\n"));
}

#[tokio::test]
async fn what_is_not_host_and_port_is_refused_and_the_reason_told() {
    let proxy = Proxy::start(open_config());
    for target in [
        "example.com",
        "example.com:",
        "user:pw@example.com:443",
        "127.1:443",
        "/x",
    ] {
        let request = format!("CONNECT {target} HTTP/1.1\r\nConnection: close\r\n\r\n");
        let answer = ask(proxy.address, &request).await;
        assert_eq!(status(&answer), 400, "{target}: {answer}");
    }
    let closed = Target::start().await.address;
    let request = format!("CONNECT {closed} HTTP/1.1\r\nConnection: close\r\n\r\n");
    let answer = ask(proxy.address, &request).await;
    assert_eq!(status(&answer), 502);
    assert!(answer.contains("error=connection_refused\r\n"), "{answer}");
}

#[tokio::test]
async fn a_client_can_try_again_on_the_same_connection_after_407() {
    let proxy = Proxy::start(basic_config());
    let target = Target::start().await;
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!("CONNECT {} HTTP/1.1\r\n\r\n", target.address))
        .await;
    assert_eq!(status(&client.hear_until("credentials\n").await), 407);
    let credentials = crate::stage::CREDENTIALS;
    client
        .say(&format!(
            "CONNECT {} HTTP/1.1\r\n{credentials}\r\n",
            target.address
        ))
        .await;
    let mut far_end = target.accept().await;
    assert_eq!(status(&client.hear_head().await), 200);
    client.say("ping").await;
    far_end.hear_until("ping").await;
}

/// A listener whose queue is full: further connections wait for ever.
struct BlackHole {
    address: SocketAddr,
    listener: std::net::TcpListener,
    fillers: Vec<TcpStream>,
}

impl BlackHole {
    async fn open() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut fillers = Vec::new();
        while let Ok(filler) =
            timeout(Duration::from_millis(300), TcpStream::connect(address)).await
        {
            fillers.push(filler.unwrap());
        }
        Self {
            address,
            listener,
            fillers,
        }
    }
}

#[tokio::test]
async fn b192_a_dial_is_given_up_at_its_deadline_with_one_answer_and_no_late_connection() {
    let proxy = Process::start(&limited(|limits| limits.connect_seconds = 1));
    let hole = BlackHole::open().await;
    let base = proxy.descriptors();
    let address = hole.address;
    for request in [
        format!("CONNECT {address} HTTP/1.1\r\nConnection: close\r\n\r\n"),
        get(&format!("http://{address}/")),
    ] {
        let start = Instant::now();
        let answer = ask(proxy.ready.listen, &request).await;
        assert_eq!(status(&answer), 504, "{answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1);
        assert!(answer.contains("error=connection_timeout\r\n"), "{answer}");
        let took = start.elapsed();
        assert!((1000..15_000).contains(&took.as_millis()), "{took:?}");
    }
    eventually("the dials are closed", || proxy.descriptors() <= base).await;
    // Room for late ones: none comes, beside those that filled the queue.
    hole.listener.set_nonblocking(true).unwrap();
    let accepted = std::iter::from_fn(|| hole.listener.accept().ok()).count();
    assert_eq!(accepted, hole.fillers.len());
}

#[tokio::test]
async fn a_client_that_goes_away_during_the_dial_cancels_it() {
    let proxy = Process::start(&limited(|limits| limits.connect_seconds = 600));
    let hole = BlackHole::open().await;
    let base = proxy.descriptors();
    let mut client = Wire::to(proxy.ready.listen).await;
    client
        .say(&format!("CONNECT {} HTTP/1.1\r\n\r\n", hole.address))
        .await;
    eventually("the dial is under way", || proxy.descriptors() >= base + 2).await;
    drop(client);
    eventually("the dial is closed", || proxy.descriptors() <= base).await;
}

#[tokio::test]
async fn b185_b190_a_thousand_tunnels_into_silence_leave_no_descriptor() {
    let proxy = Process::start(&limited(|limits| limits.idle_seconds = 1));
    let base = proxy.descriptors();
    // Accepted by the kernel alone: the target says nothing and never ends.
    let silence = tokio::net::TcpSocket::new_v4().unwrap();
    silence.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silence = silence.listen(2048).unwrap();
    let address = silence.local_addr().unwrap();
    for _ in 0..1000 {
        let mut client = Wire::to(proxy.ready.listen).await;
        client
            .say(&format!("CONNECT {address} HTTP/1.1\r\n\r\n"))
            .await;
        assert_eq!(status(&client.hear_head().await), 200);
    }
    eventually("all descriptors are given back", || {
        proxy.descriptors() <= base
    })
    .await;
}

#[tokio::test]
async fn many_tunnels_at_once_keep_their_bytes_apart() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut tunnels = Vec::new();
    for _ in 0..100 {
        tunnels.push(tunnel(proxy.address, &target).await);
    }
    for (number, (client, _)) in tunnels.iter_mut().enumerate() {
        client.say(&format!("<{number}>")).await;
    }
    for (number, (client, far_end)) in tunnels.iter_mut().enumerate() {
        assert_eq!(soon(far_end.hear_until(">")).await, format!("<{number}>"));
        far_end.say(&format!("[{number}]")).await;
        assert_eq!(soon(client.hear_until("]")).await, format!("[{number}]"));
    }
}
