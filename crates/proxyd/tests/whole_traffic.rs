//! Real traffic through a real proxy on loopback.

use egress_core::proxy_config::{Auth, IDENTITY_PATH, IdentityAnswer, ProxydConfig, Verifier};
use egress_proxyd::{Server, echo};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(10);
/// `egress:secret` in base64.
const LOGIN: &str = "Proxy-Authorization: Basic ZWdyZXNzOnNlY3JldA==\r\n";

fn config() -> ProxydConfig {
    ProxydConfig {
        key: "proxy-test".into(),
        attempt: 3,
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        management: None,
        egress: None,
        clients: Vec::new(),
        auth: Auth::Basic {
            verifiers: vec![Verifier::new("egress", "secret")],
            generation: 2,
        },
        limits: egress_core::proxy_config::Limits::default(),
    }
}

/// A proxy, and what stops it.
fn start(config: ProxydConfig) -> (SocketAddr, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let server = Server::bind(config).expect("a free port");
    let address = server.local_addr();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(server.serve(async {
        let _ = stopped.await;
    }));
    (address, stop, served)
}

async fn page() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(echo::serve(listener, std::future::pending()));
    address
}

/// Sends raw bytes and reads until the other side closes.
async fn exchange(proxy: SocketAddr, request: String) -> String {
    let talk = async {
        let mut stream = TcpStream::connect(proxy).await.expect("the proxy listens");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        // A reset after the answer is as good as an end.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    timeout(PATIENCE, talk).await.expect("answered in time")
}

fn get(page: SocketAddr, login: &str) -> String {
    format!("GET http://{page}/ HTTP/1.1\r\nHost: {page}\r\n{login}Connection: close\r\n\r\n")
}

#[tokio::test]
async fn a_request_with_the_password_is_forwarded() {
    let (proxy, _stop, _) = start(config());
    let answer = exchange(proxy, get(page().await, LOGIN)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("127.0.0.1"), "{answer}");
}

#[tokio::test]
async fn a_request_without_or_with_a_wrong_password_is_refused() {
    let (proxy, _stop, _) = start(config());
    let page = page().await;
    let wrong = "Proxy-Authorization: Basic ZWdyZXNzOndyb25n\r\n";
    for login in ["", wrong, "Proxy-Authorization: Bearer x\r\n"] {
        let answer = exchange(proxy, get(page, login)).await;
        assert!(answer.starts_with("HTTP/1.1 407"), "{login}: {answer}");
    }
    let tunnel = format!("CONNECT {page} HTTP/1.1\r\nHost: {page}\r\nConnection: close\r\n\r\n");
    let answer = exchange(proxy, tunnel).await;
    assert!(answer.starts_with("HTTP/1.1 407"), "{answer}");
}

#[tokio::test]
async fn the_credentials_and_other_hop_by_hop_headers_stay_here() {
    let (proxy, _stop, _) = start(config());
    let target = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let at = target.local_addr().expect("bound");
    let seen = tokio::spawn(async move {
        let (mut stream, _) = target.accept().await.expect("a connection");
        let mut head = Vec::new();
        while !head.windows(4).any(|w| w == b"\r\n\r\n") {
            let mut buffer = [0; 1024];
            let n = stream.read(&mut buffer).await.expect("read");
            assert!(n > 0, "ended early");
            head.extend_from_slice(&buffer[..n]);
        }
        let answer = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        stream.write_all(answer).await.expect("sent");
        String::from_utf8_lossy(&head).to_ascii_lowercase()
    });
    let request = format!(
        "GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n{LOGIN}X-Private: 1\r\nX-Public: 2\r\n\
         Connection: close, X-Private\r\n\r\n"
    );
    let answer = exchange(proxy, request).await;
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    let head = seen.await.expect("seen");
    assert!(head.contains("x-public: 2"), "{head}");
    for gone in [
        "proxy-authorization",
        "x-private",
        "via:",
        "x-forwarded-for",
    ] {
        assert!(!head.contains(gone), "{gone} in {head}");
    }
}

#[tokio::test]
async fn a_tunnel_carries_bytes_both_ways_and_passes_a_half_close_on() {
    let (proxy, _stop, _) = start(config());
    let target = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let at = target.local_addr().expect("bound");
    tokio::spawn(async move {
        let (mut stream, _) = target.accept().await.expect("a connection");
        let mut all = Vec::new();
        // Ends only when the client's half-close came through.
        stream.read_to_end(&mut all).await.expect("read");
        all.reverse();
        stream.write_all(&all).await.expect("sent");
    });
    let talk = async {
        let mut stream = TcpStream::connect(proxy).await.expect("the proxy listens");
        let open = format!("CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n{LOGIN}\r\n");
        stream.write_all(open.as_bytes()).await.expect("sent");
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.expect("answered");
        assert_eq!(&head, b"HTTP/1.1 200");
        let mut rest = Vec::new();
        while !rest.ends_with(b"\r\n\r\n") {
            rest.push(stream.read_u8().await.expect("answered"));
        }
        stream.write_all(b"abc").await.expect("sent");
        stream.shutdown().await.expect("half-closed");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        answer
    };
    assert_eq!(timeout(PATIENCE, talk).await.expect("in time"), "cba");
}

#[tokio::test]
async fn outgoing_connections_come_from_the_egress_address() {
    let egress = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let (proxy, _stop, _) = start(ProxydConfig {
        egress: Some(egress),
        ..config()
    });
    let answer = exchange(proxy, get(page().await, LOGIN)).await;
    assert!(answer.contains("127.0.0.2"), "{answer}");
}

#[tokio::test]
async fn the_identity_names_the_key_and_needs_the_password() {
    let (proxy, _stop, _) = start(config());
    let ask = |login: &str| {
        format!("GET {IDENTITY_PATH} HTTP/1.1\r\nHost: x\r\n{login}Connection: close\r\n\r\n")
    };
    let refused = exchange(proxy, ask("")).await;
    assert!(refused.starts_with("HTTP/1.1 407"), "{refused}");
    assert!(!refused.contains("proxy-test"), "{refused}");
    let answer = exchange(proxy, ask(LOGIN)).await;
    let body = answer.split("\r\n\r\n").nth(1).expect("a body");
    let start = body.find('{').expect("JSON");
    let end = body.rfind('}').expect("JSON");
    let identity: IdentityAnswer = serde_json::from_str(&body[start..=end]).expect("an identity");
    assert_eq!((identity.key.as_str(), identity.attempt), ("proxy-test", 3));
    assert_eq!(identity.credential_generation, 2);
}

#[tokio::test]
async fn a_client_outside_the_list_gets_nothing() {
    let clients = vec!["203.0.113.0/24".parse().expect("a network")];
    let (proxy, _stop, _) = start(ProxydConfig {
        clients,
        ..config()
    });
    let answer = exchange(proxy, get(page().await, LOGIN)).await;
    assert!(!answer.contains("200"), "{answer}");
}

#[test]
fn an_open_proxy_is_refused() {
    let open = ProxydConfig {
        auth: Auth::None {},
        ..config()
    };
    assert!(Server::bind(open).is_err());
    let nobody = Auth::Basic {
        verifiers: Vec::new(),
        generation: 1,
    };
    assert!(
        Server::bind(ProxydConfig {
            auth: nobody,
            ..config()
        })
        .is_err()
    );
}

#[tokio::test]
async fn a_target_that_refuses_is_told_as_a_bad_gateway() {
    let (proxy, _stop, _) = start(config());
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        listener.local_addr().expect("bound")
    };
    let answer = exchange(proxy, get(closed, LOGIN)).await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert!(
        answer.to_ascii_lowercase().contains("proxy-status"),
        "{answer}"
    );
}

#[tokio::test]
async fn both_lengths_at_once_are_refused() {
    let (proxy, _stop, _) = start(config());
    let at = page().await;
    let request = format!(
        "POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\n{LOGIN}Content-Length: 5\r\n\
         Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"
    );
    let answer = exchange(proxy, request).await;
    // One answer, whichever: nothing of the body is taken for a second request.
    assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{answer}");
}

#[tokio::test]
async fn with_nothing_open_it_ends_at_once() {
    let (_, stop, served) = start(config());
    stop.send(()).expect("it runs");
    timeout(Duration::from_secs(2), served)
        .await
        .expect("no drain is waited for")
        .expect("no panic");
}
