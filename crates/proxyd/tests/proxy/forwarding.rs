//! Plain HTTP through the proxy.

use crate::stage::{Proxy, Target, Wire, ask, echo_page, get, limited, open_config, soon, status};
use egress_core::proxy_config::ProxydConfig;
use std::time::{Duration, Instant};

const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[tokio::test]
async fn the_target_gets_origin_form_and_the_host_of_the_request_target() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    let url = format!("{}a/b?c=d%20e", target.url());
    client
        .say(&format!(
            "GET {url} HTTP/1.1\r\nHost: wrong.example\r\nCookie: a=1\r\n\r\n"
        ))
        .await;
    let head = target.accept().await.hear_head().await;
    assert!(head.starts_with("GET /a/b?c=d%20e HTTP/1.1\r\n"), "{head}");
    assert!(
        head.contains(&format!("\r\nhost: {}\r\n", target.address)),
        "{head}"
    );
    assert!(head.contains("\r\ncookie: a=1\r\n"), "{head}");
    assert!(!head.contains("wrong.example"), "{head}");
}

#[tokio::test]
async fn the_proxy_leaves_no_trace_of_itself_or_the_client() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    client.say(&get(&target.url())).await;
    let mut far_end = target.accept().await;
    let head = far_end.hear_head().await.to_lowercase();
    for name in [
        "via:",
        "forwarded",
        "x-forwarded-for",
        "proxy-",
        "user-agent",
    ] {
        assert!(!head.contains(name), "{head}");
    }
    far_end.say(EMPTY).await;
    let answer = client.rest().await.to_lowercase();
    assert!(
        !answer.contains("via:") && !answer.contains("proxy-status"),
        "{answer}"
    );
}

#[tokio::test]
async fn fields_of_one_hop_are_stripped_in_both_directions() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!(
            "GET {} HTTP/1.1\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-End: 1\r\n\
             Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\n\
             Upgrade: websocket\r\nProxy-Authorization: Basic eDp5\r\n\r\n",
            target.url()
        ))
        .await;
    let mut far_end = target.accept().await;
    let head = far_end.hear_head().await;
    assert!(head.contains("\r\nx-end: 1\r\n"), "{head}");
    for name in [
        "x-hop",
        "connection",
        "keep-alive",
        "te:",
        "upgrade",
        "authorization",
    ] {
        assert!(!head.contains(name), "{name} in {head}");
    }
    far_end
        .say(
            "HTTP/1.1 200 OK\r\nConnection: X-Back\r\nX-Back: 1\r\nX-End: 2\r\n\
             Keep-Alive: timeout=5\r\nProxy-Authenticate: Basic realm=x\r\n\
             Upgrade: h2c\r\nContent-Length: 2\r\n\r\nok",
        )
        .await;
    let answer = client.hear_until("ok").await;
    assert!(answer.contains("\r\nx-end: 2\r\n"), "{answer}");
    for name in ["x-back", "keep-alive", "authenticate", "upgrade"] {
        assert!(!answer.contains(name), "{name} in {answer}");
    }
}

#[tokio::test]
async fn bodies_stream_both_ways_without_waiting_for_their_end() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!(
            "POST {} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            target.url()
        ))
        .await;
    let mut far_end = target.accept().await;
    let head = far_end.hear_head().await;
    assert!(
        head.contains("\r\ntransfer-encoding: chunked\r\n"),
        "{head}"
    );
    client.say("5\r\nfirst\r\n").await;
    far_end.hear_until("5\r\nfirst\r\n").await;
    // An answer may begin before the question has ended.
    far_end
        .say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nback\r\n")
        .await;
    client.hear_until("4\r\nback\r\n").await;
    client.say("6\r\nsecond\r\n0\r\n\r\n").await;
    far_end.hear_until("6\r\nsecond\r\n").await;
    far_end.hear_until("0\r\n\r\n").await;
    far_end.say("3\r\nend\r\n0\r\n\r\n").await;
    client.hear_until("3\r\nend\r\n0\r\n\r\n").await;
}

#[tokio::test]
async fn a_large_body_arrives_whole_in_both_directions() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let body: String = (0..300_000)
        .map(|n| char::from(b'a' + (n % 26) as u8))
        .chain("END".chars())
        .collect();
    let length = body.len();
    let mut client = Wire::to(proxy.address).await;
    let far_end = async {
        let mut far_end = target.accept().await;
        far_end.hear_head().await;
        let got = far_end.hear_until("END").await;
        far_end
            .say(&format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
            ))
            .await;
        far_end.say(&got).await;
    };
    let near_end = async {
        let head = format!(
            "POST {} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n",
            target.url()
        );
        client.say(&head).await;
        client.say(&body).await;
        client.hear_head().await;
        client.hear_until("END").await
    };
    let ((), got) = tokio::join!(far_end, near_end);
    assert!(got == body);
}

#[tokio::test]
async fn the_target_decides_about_a_body_that_asks_first() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let request = format!(
        "PUT {} HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
        target.url()
    );

    let mut client = Wire::to(proxy.address).await;
    client.say(&request).await;
    let mut far_end = target.accept().await;
    assert!(
        far_end
            .hear_head()
            .await
            .contains("\r\nexpect: 100-continue\r\n")
    );
    far_end.say("HTTP/1.1 100 Continue\r\n\r\n").await;
    assert_eq!(client.hear_head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.say("body").await;
    far_end.hear_until("body").await;
    far_end.say(EMPTY).await;
    assert_eq!(status(&client.hear_head().await), 200);

    // A target that says no is heard before the body is sent.
    let mut client = Wire::to(proxy.address).await;
    client.say(&request).await;
    let mut far_end = match target_again(&target, &mut far_end).await {
        Some(kept) => kept,
        None => far_end,
    };
    far_end
        .say("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
        .await;
    assert_eq!(status(&client.hear_head().await), 417);
}

/// The second request may come over the kept connection; reads its head there or on a new
/// one.
async fn target_again(target: &Target, kept: &mut Wire) -> Option<Wire> {
    tokio::select! {
        head = kept.hear_head() => {
            assert!(head.contains("expect"));
            None
        }
        mut fresh = target.accept() => {
            fresh.hear_head().await;
            Some(fresh)
        }
    }
}

#[tokio::test]
async fn a_body_is_sent_in_the_end_to_a_target_that_never_says_continue() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!(
            "PUT {} HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
            target.url()
        ))
        .await;
    let mut far_end = target.accept().await;
    far_end.hear_head().await;
    assert_eq!(client.hear_head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.say("body").await;
    far_end.hear_until("body").await;
}

#[tokio::test]
async fn answers_without_a_body_keep_their_length_field() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!("HEAD {} HTTP/1.1\r\n\r\n", target.url()))
        .await;
    let mut far_end = target.accept().await;
    far_end.hear_head().await;
    far_end
        .say("HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n")
        .await;
    assert!(
        client
            .hear_head()
            .await
            .contains("\r\ncontent-length: 1234\r\n")
    );
    // The connection is in order after it.
    client
        .say(&format!("GET {} HTTP/1.1\r\n\r\n", target.url()))
        .await;
    far_end.hear_head().await;
    far_end
        .say("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n")
        .await;
    assert_eq!(status(&client.hear_head().await), 304);
}

#[tokio::test]
async fn an_http_1_0_client_gets_a_plain_body_and_the_end() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!("GET {} HTTP/1.0\r\n\r\n", target.url()))
        .await;
    let mut far_end = target.accept().await;
    assert!(far_end.hear_head().await.starts_with("GET / HTTP/1.1\r\n"));
    far_end
        .say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n")
        .await;
    let (answer, orderly) = client.hear_end().await;
    assert!(orderly);
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nbody"), "{answer}");
}

#[tokio::test]
async fn connections_to_targets_are_kept_and_shared_between_clients() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut first = Wire::to(proxy.address).await;
    first
        .say(&format!("GET {} HTTP/1.1\r\n\r\n", target.url()))
        .await;
    let mut far_end = target.accept().await;
    far_end.hear_head().await;
    far_end
        .say("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1")
        .await;
    first.hear_until("\r\n\r\n1").await;
    for wire in [&mut first, &mut Wire::to(proxy.address).await] {
        wire.say(&format!("GET {} HTTP/1.1\r\n\r\n", target.url()))
            .await;
        far_end.hear_head().await;
        far_end
            .say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n2\r\n0\r\n\r\n")
            .await;
        wire.hear_until("0\r\n\r\n").await;
    }
    assert!(!target.has_another().await);
}

#[tokio::test]
async fn a_connection_that_one_client_authenticated_is_not_shared_with_another() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    for scheme in ["NTLM TlRMTVNTUAAD", "negotiate YIIG"] {
        let mut first = Wire::to(proxy.address).await;
        let url = target.url();
        first
            .say(&format!(
                "GET {url} HTTP/1.1\r\nAuthorization: {scheme}\r\n\r\n"
            ))
            .await;
        let mut theirs = target.accept().await;
        theirs.hear_head().await;
        theirs.say(EMPTY).await;
        first.hear_head().await;
        let mut second = Wire::to(proxy.address).await;
        second.say(&get(&target.url())).await;
        let mut fresh = target.accept().await;
        let head = fresh.hear_head().await;
        assert!(!head.contains("authorization"), "{head}");
        fresh
            .say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .await;
        second.rest().await;
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_target_closed_is_not_used() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    for _ in 0..3 {
        client
            .say(&format!(
                "POST {} HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
                target.url()
            ))
            .await;
        let mut far_end = target.accept().await;
        far_end.hear_until("\r\n\r\nx").await;
        far_end.say(EMPTY).await;
        assert_eq!(status(&client.hear_head().await), 200);
    }
}

#[tokio::test]
async fn a_request_that_met_the_closing_connection_is_sent_again_only_when_that_is_safe() {
    for (method, body, expected) in [("GET", "", 200), ("POST", "x", 502), ("DELETE", "", 502)] {
        let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
        let mut client = Wire::to(proxy.address).await;
        client
            .say(&format!("GET {} HTTP/1.1\r\n\r\n", target.url()))
            .await;
        let mut kept = target.accept().await;
        kept.hear_head().await;
        kept.say(EMPTY).await;
        client.hear_head().await;

        let length = body.len();
        let url = target.url();
        client
            .say(&format!(
                "{method} {url} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}"
            ))
            .await;
        kept.hear_until(&format!("\r\n\r\n{body}")).await;
        drop(kept);
        if expected == 200 {
            let mut fresh = target.accept().await;
            fresh.hear_head().await;
            fresh.say(EMPTY).await;
        }
        let head = client.hear_head().await;
        assert_eq!(status(&head), expected, "{method}");
        if expected == 502 {
            assert!(head.contains("proxy-status: egress-proxies; error=connection_terminated"));
            assert!(!target.has_another().await, "{method} was sent twice");
        }
    }
}

#[tokio::test]
async fn a_client_that_goes_away_takes_its_target_connection_along() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!("GET {} HTTP/1.1\r\n\r\n", target.url()))
        .await;
    let mut far_end = target.accept().await;
    far_end.hear_head().await;
    drop(client);
    far_end.rest().await;
}

#[tokio::test]
async fn a_broken_answer_is_told_and_a_cut_one_is_not_made_whole() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    client.say(&get(&target.url())).await;
    let mut far_end = target.accept().await;
    far_end.hear_head().await;
    far_end.say("SSH-2.0-not-http\r\n\r\n").await;
    let answer = client.rest().await;
    assert_eq!(status(&answer), 502);
    assert!(answer.contains("error=http_protocol_error\r\n"), "{answer}");

    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!("GET {} HTTP/1.1\r\n\r\n", target.url()))
        .await;
    let mut far_end = target.accept().await;
    far_end.hear_head().await;
    far_end
        .say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        .await;
    client.hear_until("half\r\n").await;
    drop(far_end);
    assert_eq!(client.rest().await, "", "no last chunk is invented");
}

#[tokio::test]
async fn nobody_asked_for_another_protocol() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!(
            "GET {} HTTP/1.1\r\nConnection: close, Upgrade\r\nUpgrade: websocket\r\n\r\n",
            target.url()
        ))
        .await;
    let mut far_end = target.accept().await;
    far_end.hear_head().await;
    far_end
        .say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n")
        .await;
    assert_eq!(status(&client.rest().await), 502);
}

#[tokio::test]
async fn b192_a_target_that_never_answers_is_answered_for_once() {
    let proxy = Proxy::start(limited(|limits| limits.idle_seconds = 1));
    let target = Target::start().await;
    let start = Instant::now();
    let mut client = Wire::to(proxy.address).await;
    client.say(&get(&target.url())).await;
    let mut far_end = target.accept().await;
    far_end.hear_head().await;
    let answer = client.rest().await;
    assert_eq!(status(&answer), 504);
    assert_eq!(answer.matches("HTTP/1.1").count(), 1);
    assert!(
        answer.contains("error=http_response_timeout\r\n"),
        "{answer}"
    );
    assert!(start.elapsed().as_millis() >= 1000);
    // The late answer finds nobody.
    soon(far_end.rest()).await;
}

#[tokio::test]
async fn a_body_that_stops_coming_ends_after_the_idle_time() {
    let proxy = Proxy::start(limited(|limits| limits.idle_seconds = 1));
    let target = Target::start().await;
    let mut client = Wire::to(proxy.address).await;
    client.say(&get(&target.url())).await;
    let mut far_end = target.accept().await;
    far_end.hear_head().await;
    far_end
        .say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nstart")
        .await;
    assert!(client.rest().await.ends_with("start"));
    far_end.rest().await;
}

#[tokio::test]
async fn the_target_sees_the_outgoing_address() {
    let page = echo_page("127.0.0.1:0").await;
    let egress = Some("127.0.0.2".parse().unwrap());
    let proxy = Proxy::start(ProxydConfig {
        egress,
        ..open_config()
    });
    let answer = ask(proxy.address, &get(&format!("http://{page}/json"))).await;
    assert!(answer.ends_with("{\"ip\":\"127.0.0.2\"}\n"), "{answer}");
    let answer = ask(proxy.address, &get("http://[::1]:9/")).await;
    assert_eq!(status(&answer), 502);
    assert!(
        answer.contains("error=destination_ip_unroutable\r\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn names_of_the_hosts_file_and_ipv6_targets_are_reached() {
    let page = echo_page("127.0.0.1:0").await;
    let proxy = Proxy::start(open_config());
    let answer = ask(
        proxy.address,
        &get(&format!("http://localhost:{}/", page.port())),
    )
    .await;
    assert!(answer.ends_with("\r\n\r\n127.0.0.1\n"), "{answer}");
    let page = echo_page("[::1]:0").await;
    let answer = ask(proxy.address, &get(&format!("http://{page}/"))).await;
    assert!(answer.ends_with("\r\n\r\n::1\n"), "{answer}");
}

#[tokio::test]
async fn failures_say_why_in_proxy_status() {
    let proxy = Proxy::start(open_config());
    let closed = Target::start().await.address;
    for (url, code, error) in [
        (format!("http://{closed}/"), 502, "connection_refused"),
        ("http://name.invalid/".to_owned(), 502, "dns_error"),
        ("https://example.com/".to_owned(), 400, "http_request_error"),
        (
            "http://user:password@example.com/".to_owned(),
            400,
            "http_request_error",
        ),
        ("http://127.1/".to_owned(), 400, "http_request_error"),
    ] {
        let answer = ask(proxy.address, &get(&url)).await;
        assert_eq!(status(&answer), code, "{url}: {answer}");
        let line = format!("\r\nproxy-status: egress-proxies; error={error}\r\n");
        assert!(answer.contains(&line), "{url}: {answer}");
    }
}

#[tokio::test]
async fn kept_connections_go_when_the_proxy_does() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    client.say(&get(&target.url())).await;
    let mut far_end = target.accept().await;
    far_end.hear_head().await;
    far_end.say(EMPTY).await;
    client.rest().await;
    proxy.drain();
    proxy.ended().await;
    assert_eq!(far_end.rest().await, "");
}

#[tokio::test]
async fn a_kept_connection_closed_by_its_target_does_not_linger() {
    let management = Some("127.0.0.1:0".parse().unwrap());
    let proxy = Proxy::start(ProxydConfig {
        management,
        ..open_config()
    });
    let target = Target::start().await;
    let mut client = Wire::to(proxy.address).await;
    client.say(&get(&target.url())).await;
    let mut far_end = target.accept().await;
    far_end.hear_head().await;
    far_end.say(EMPTY).await;
    client.rest().await;
    drop(far_end);
    let start = Instant::now();
    let line = "\negress_proxies_proxyd_kept_connections 0\n";
    loop {
        let page = ask(proxy.management.unwrap(), &get("/metrics")).await;
        if page.contains(line) {
            break;
        }
        assert!(start.elapsed() < crate::stage::PATIENCE, "{page}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
