//! Requests that two readers could cut in different places (request smuggling): refused, or
//! sent on in one clear form with the connection closed after it.

use crate::stage::{Proxy, Target, Wire, ask, open_config, status};

#[tokio::test]
async fn ambiguous_heads_are_refused() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let url = target.url();
    for fields in [
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: 4, 5\r\n",
        "Content-Length: +4\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x4\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding\r\n",
        "X: a\r\n Transfer-Encoding: chunked\r\n",
        "X: a\0b\r\n",
        "X\tY: a\r\n",
        ": empty\r\n",
    ] {
        let request = format!("POST {url} HTTP/1.1\r\n{fields}\r\nbody");
        let answer = ask(proxy.address, &request).await;
        assert_eq!(status(&answer), 400, "{fields:?}: {answer}");
        assert_eq!(
            answer.matches("HTTP/1.1").count(),
            1,
            "{fields:?}: {answer}"
        );
    }
    for line in [
        format!("POST {url} HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("POST {url}\r\n\r\n"),
        format!("POST {url} HTTP/3.0\r\n\r\n"),
        format!("PO ST {url} HTTP/1.1\r\n\r\n"),
        format!("GET {url} x HTTP/1.1\r\n\r\n"),
    ] {
        assert_eq!(status(&ask(proxy.address, &line).await), 400, "{line:?}");
    }
    assert!(!target.has_another().await, "nothing reached the target");
}

/// RFC 9112, 6.3: the length is dropped, the chunks count, and the connection closes, so that
/// what follows them is never read as a request.
#[tokio::test]
async fn a_length_beside_chunks_is_dropped_and_the_connection_closed() {
    let proxy = Proxy::start(open_config());
    for fields in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    ] {
        let target = Target::start().await;
        let url = target.url();
        let mut client = Wire::to(proxy.address).await;
        let smuggled = format!("GET {url}smuggled HTTP/1.1\r\n\r\n");
        client
            .say(&format!(
                "POST {url} HTTP/1.1\r\n{fields}\r\n0\r\n\r\n{smuggled}"
            ))
            .await;
        let mut far_end = target.accept().await;
        let head = far_end.hear_head().await;
        assert!(head.contains("transfer-encoding: chunked"), "{head}");
        assert!(!head.contains("content-length"), "{head}");
        assert_eq!(far_end.hear_head().await, "0\r\n\r\n");
        far_end
            .say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .await;
        let answer = client.rest().await;
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
        assert!(!target.has_another().await);
    }
}

#[tokio::test]
async fn a_broken_chunk_never_completes_a_request() {
    let proxy = Proxy::start(open_config());
    for chunk in [
        "z\r\n",
        "-1\r\n",
        "4\r\nbodyX\r\n",
        "ffffffffffffffffff\r\n",
        "4 4\r\n",
    ] {
        let target = Target::start().await;
        let mut client = Wire::to(proxy.address).await;
        client
            .say(&format!(
                "POST {} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n{chunk}",
                target.url()
            ))
            .await;
        let mut far_end = target.accept().await;
        far_end.hear_head().await;
        let body = far_end.rest().await;
        assert!(
            !body.contains("0\r\n\r\n"),
            "{chunk:?} became a whole body: {body:?}"
        );
        // The client hears a refusal or just the end, never a success.
        let answer = client.rest().await;
        assert!(
            answer.is_empty() || status(&answer) >= 400,
            "{chunk:?}: {answer}"
        );
    }
}

#[tokio::test]
async fn a_body_that_is_cut_off_never_completes_a_request() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!(
            "POST {} HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf",
            target.url()
        ))
        .await;
    let mut far_end = target.accept().await;
    far_end.hear_until("half").await;
    drop(client);
    assert_eq!(far_end.rest().await, "");
}

#[tokio::test]
async fn requests_sent_in_one_go_are_answered_in_order() {
    let (proxy, target) = (Proxy::start(open_config()), Target::start().await);
    let url = target.url();
    let mut client = Wire::to(proxy.address).await;
    client
        .say(&format!(
            "GET {url}1 HTTP/1.1\r\n\r\nGET {url}2 HTTP/1.1\r\nConnection: close\r\n\r\n"
        ))
        .await;
    let mut far_end = target.accept().await;
    for number in 1..=2 {
        let head = far_end.hear_head().await;
        assert!(head.starts_with(&format!("GET /{number} ")), "{head}");
        far_end
            .say(&format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}"
            ))
            .await;
    }
    let answers = client.rest().await;
    let (first, second) = (answers.find("\r\n\r\n1"), answers.find("\r\n\r\n2"));
    assert!(first.is_some() && first < second, "{answers}");
}
