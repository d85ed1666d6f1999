//! The habits of the HTTPS server.

use crate::client::{Bench, LONG, address, answer, exchange};
use egress_proxmox_sim::{
    http::{GuestKind, Options, serve},
    world::{NodeSetup, Setup},
};
use std::{
    fs,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

#[tokio::test]
async fn a_client_that_trusts_the_authority_and_has_the_token_is_answered() {
    let bench = Bench::start().await;
    let head = format!(
        "GET /api2/json/version HTTP/1.1\nHost: pve1\n{}",
        bench.authorization()
    );
    let answer = bench.ask(&head, b"").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains("\r\nConnection: Keep-Alive\r\n"),
        "{answer}"
    );
    assert!(
        answer.contains("\r\nContent-Type: application/json;charset=UTF-8\r\n"),
        "{answer}"
    );
    assert!(answer.contains("\"version\":\"9."), "{answer}");
}

#[tokio::test]
async fn a_second_simulator_keeps_out_of_the_folder_of_a_running_one() {
    let bench = Bench::start().await;
    let second = serve(Options {
        listen: ([127, 0, 0, 1], 0).into(),
        guests: GuestKind::None,
        state_dir: bench.folder().to_path_buf(),
        speed: 1.0,
        setup: Setup::default(),
    });
    let Err(error) = second.await else {
        panic!("it is not refused");
    };
    let pid = std::process::id().to_string();
    assert!(error.to_string().contains(&pid), "{error}");
    let folder = bench.folder().to_path_buf();
    bench.running.stop().await;
    fs::remove_file(folder.join("lock")).expect("the lock was a file");
}

#[tokio::test]
async fn a_reason_phrase_is_the_worlds_own_and_errors_end_the_connection() {
    let bench = Bench::start().await;
    let mut stream = bench.connect().await;
    let head = format!(
        "GET /api2/json/nodes/nope/network HTTP/1.1\nHost: pve1\n{}",
        bench.authorization()
    );
    let first = exchange(&mut stream, &head, b"").await;
    assert!(
        first.starts_with("HTTP/1.1 500 hostname lookup 'nope' failed - "),
        "{first}"
    );
    assert!(first.contains("\r\nConnection: close\r\n"), "{first}");
    assert_eq!(answer(&mut stream).await, "", "the server has closed");
}

#[tokio::test]
async fn a_connection_is_closed_after_a_hundred_requests() {
    let bench = Bench::start().await;
    let mut stream = bench.connect().await;
    let head = format!(
        "GET /api2/json/version HTTP/1.1\nHost: pve1\n{}",
        bench.authorization()
    );
    for _ in 0..99 {
        let answer = exchange(&mut stream, &head, b"").await;
        assert!(
            answer.contains("\r\nConnection: Keep-Alive\r\n"),
            "{answer}"
        );
    }
    let last = exchange(&mut stream, &head, b"").await;
    assert!(last.contains("\r\nConnection: close\r\n"), "{last}");
    assert_eq!(answer(&mut stream).await, "");
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_five_seconds() {
    let bench = Bench::start().await;
    let mut stream = bench.connect().await;
    let head = format!(
        "GET /api2/json/version HTTP/1.1\nHost: pve1\n{}",
        bench.authorization()
    );
    let first = exchange(&mut stream, &head, b"").await;
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    let began = Instant::now();
    assert_eq!(answer(&mut stream).await, "");
    let idle = began.elapsed();
    assert!(
        idle > Duration::from_millis(4500) && idle < Duration::from_secs(8),
        "{idle:?}"
    );
}

#[tokio::test]
async fn what_the_server_refuses_never_reaches_the_world() {
    let bench = Bench::start().await;
    let to = |method: &str, headers: &str| {
        format!(
            "{method} /api2/json/version HTTP/1.1\nHost: pve1\n{}{headers}",
            bench.authorization()
        )
    };
    let long = "x".repeat(600_000);
    for (head, body, expected) in [
        (to("HEAD", ""), "", "501 method 'HEAD' not available"),
        (to("PATCH", ""), "", "501 method 'PATCH' not available"),
        (
            to("DELETE", "\nContent-Length: 7"),
            "purge=1",
            "501 Unexpected content for method 'DELETE'",
        ),
        (
            to("POST", "\nTransfer-Encoding: chunked"),
            "0\r\n\r\n",
            "501 chunked transfer encoding not supported",
        ),
        (
            to("PUT", "\nContent-Type: text/plain\nContent-Length: 3"),
            "a=1",
            "506 upload 'Content-Type 'text/plain' not implemented",
        ),
        (
            to("PUT", "\nContent-Length: 600000"),
            long.as_str(),
            "501 for data too large",
        ),
        (
            "PRI * HTTP/2.0".to_owned(),
            "SM\r\n\r\n",
            "506 http protocol version 2.0 not supported",
        ),
    ] {
        let answer = bench.ask(&head, body.as_bytes()).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {expected}\r\n")),
            "{head}: {answer}"
        );
        assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn a_request_without_tls_is_sent_to_https() {
    let bench = Bench::start().await;
    let mut stream = TcpStream::connect(bench.address())
        .await
        .expect("a connection");
    let request = b"GET /api2/json/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.expect("sent");
    let mut answer = String::new();
    timeout(LONG, stream.read_to_string(&mut answer))
        .await
        .expect("in time")
        .expect("text");
    assert!(
        answer.starts_with("HTTP/1.1 301 Moved Permanently\r\n"),
        "{answer}"
    );
    assert!(
        answer.contains("\r\nLocation: https://x/api2/json/version\r\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_network_that_is_down_refuses_before_tls_and_comes_back() {
    let bench = Bench::start().await;
    let told = bench.control(r#"{"do":"network","state":"down"}"#).await;
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    assert!(
        bench.try_connect(bench.address()).await.is_err(),
        "no connection is made"
    );
    bench.control(r#"{"do":"network","state":"hanging"}"#).await;
    let hanging = timeout(
        Duration::from_millis(300),
        bench.try_connect(bench.address()),
    )
    .await;
    assert!(hanging.is_err(), "the handshake is never answered");
    bench.control(r#"{"do":"network","state":"up"}"#).await;
    assert!(bench.try_connect(bench.address()).await.is_ok());
}

#[tokio::test]
async fn a_control_that_nobody_knows_is_refused_with_its_reason() {
    let bench = Bench::start().await;
    let told = bench.control(r#"{"do":"dance"}"#).await;
    assert!(told.starts_with("HTTP/1.1 400"), "{told}");
    assert!(told.contains("dance"), "{told}");
}

#[tokio::test]
async fn the_facts_name_files_that_only_the_owner_reads() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::start().await;
    let mode = fs::metadata(&bench.facts().token_file)
        .expect("the token")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let json = serde_json::to_value(bench.facts()).expect("JSON");
    for key in [
        "url",
        "caFile",
        "tokenFile",
        "node",
        "template",
        "storage",
        "isoStorage",
        "controlUrl",
    ] {
        assert!(!json[key].is_null(), "{key}");
    }
}

#[tokio::test]
async fn a_stopped_simulator_listens_no_more() {
    let bench = Bench::start().await;
    let address = bench.address();
    bench.running.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn every_node_has_a_port_of_its_own_and_answers_for_the_others() {
    let mut setup = Setup {
        cluster: Some("lab".to_owned()),
        ..Setup::default()
    };
    setup.nodes.push(NodeSetup {
        name: "pve2".to_owned(),
        address: "192.0.2.11".to_owned(),
        ..NodeSetup::default()
    });
    let bench = Bench::of(GuestKind::None, Some(setup)).await;
    assert_eq!(bench.facts().urls.len(), 2);
    assert_eq!(bench.facts().urls[0], bench.facts().url);
    bench
        .control(r#"{"do":"network","state":"down","node":"pve1"}"#)
        .await;
    assert!(bench.try_connect(bench.address()).await.is_err());
    let second = address(&bench.facts().urls[1]);
    let mut stream = bench.try_connect(second).await.expect("the other node");
    let head = format!(
        "GET /api2/json/nodes/pve2/qemu HTTP/1.1\nHost: pve2\n{}",
        bench.authorization()
    );
    let answer = exchange(&mut stream, &head, b"").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}
