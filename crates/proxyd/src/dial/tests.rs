use super::*;
use tokio::net::TcpListener;

fn dialer(egress: Option<&str>) -> Dialer {
    let egress = egress.map(|text| text.parse().unwrap());
    Dialer::new(egress, Duration::from_secs(5), Arc::new(Metrics::new(0)))
}

fn target(host: &str, port: u16) -> Target {
    let uri = format!("{host}:{port}").parse().unwrap();
    Target::of_connect(&uri).unwrap()
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_refuses() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let addresses = ["127.0.0.9".parse().unwrap(), "127.0.0.1".parse().unwrap()];
    let stream = dialer(None).connect_any(&addresses, port).await.unwrap();
    assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
}

#[tokio::test]
async fn the_first_refusal_is_told_when_no_address_accepts() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let addresses = ["127.0.0.8".parse().unwrap(), "127.0.0.9".parse().unwrap()];
    let refused = dialer(None).connect_any(&addresses, port).await;
    assert_eq!(refused.err(), Some(Refusal::ConnectionRefused));
}

#[tokio::test]
async fn a_target_of_the_other_family_is_never_tried_from_another_source() {
    let refused = dialer(Some("127.0.0.2")).dial(&target("[::1]", 1)).await;
    assert_eq!(refused.err(), Some(Refusal::Unroutable));
}

#[tokio::test]
async fn an_outgoing_address_that_is_gone_fails_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // TEST-NET-1: on no host.
    let refused = dialer(Some("192.0.2.1"))
        .dial(&target("127.0.0.1", port))
        .await;
    assert_eq!(refused.err(), Some(Refusal::EgressUnavailable));
}

#[tokio::test]
async fn the_source_port_is_chosen_at_connect() {
    let dialer = dialer(Some("127.0.0.2"));
    let socket = dialer.socket("127.0.0.1:9".parse().unwrap()).unwrap();
    assert_eq!(socket.local_addr().unwrap().to_string(), "127.0.0.2:0");
}
