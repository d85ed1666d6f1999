//! Who may use the proxy, and who it says it is.

use crate::stage::{
    CREDENTIALS, Proxy, Wire, ask, basic_config, echo_page, get, open_config, status,
};
use egress_core::proxy_config::{Auth, IDENTITY_PATH, IdentityAnswer, ProxydConfig};
use egress_proxyd::{ErrorKind, Server};

fn with_credentials(request: &str, credentials: &str) -> String {
    let (line, rest) = request.split_once("\r\n").unwrap();
    format!("{line}\r\n{credentials}{rest}")
}

#[tokio::test]
async fn the_right_password_is_let_through() {
    let page = echo_page("127.0.0.1:0").await;
    let proxy = Proxy::start(basic_config());
    let request = with_credentials(&get(&format!("http://{page}/")), CREDENTIALS);
    let answer = ask(proxy.address, &request).await;
    assert_eq!(status(&answer), 200);
    assert!(answer.ends_with("\r\n\r\n127.0.0.1\n"), "{answer}");
}

#[tokio::test]
async fn a_missing_or_wrong_password_is_asked_for_without_detail() {
    let page = echo_page("127.0.0.1:0").await;
    let proxy = Proxy::start(basic_config());
    let wrong = "Proxy-Authorization: Basic ZWdyZXNzOndyb25n\r\n";
    let mut answers = Vec::new();
    for credentials in ["", wrong] {
        for request in [
            get(&format!("http://{page}/")),
            get("/"),
            get(IDENTITY_PATH),
            format!("CONNECT {page} HTTP/1.1\r\nConnection: close\r\n\r\n"),
        ] {
            let request = with_credentials(&request, credentials);
            let answer = ask(proxy.address, &request).await;
            assert_eq!(status(&answer), 407, "{request}");
            let challenge = "\r\nproxy-authenticate: Basic realm=\"egress-proxies\"\r\n";
            assert!(answer.contains(challenge), "{answer}");
            let (_, body) = answer.split_once("\r\n\r\n").unwrap();
            answers.push(body.to_owned());
        }
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "every refusal reads the same");
}

#[tokio::test]
async fn a_listed_client_needs_no_password() {
    let page = echo_page("127.0.0.1:0").await;
    let proxy = Proxy::start(open_config());
    let answer = ask(proxy.address, &get(&format!("http://{page}/"))).await;
    assert_eq!(status(&answer), 200);
}

#[tokio::test]
async fn a_client_outside_the_list_is_cut_off_before_it_is_asked_anything() {
    let clients = vec!["192.0.2.0/24".parse().unwrap()];
    let management = Some("127.0.0.1:0".parse().unwrap());
    let config = ProxydConfig {
        clients,
        management,
        ..basic_config()
    };
    let proxy = Proxy::start(config);
    let mut wire = Wire::to(proxy.address).await;
    assert_eq!(wire.rest().await, "");
    let page = ask(proxy.management.unwrap(), &get("/metrics")).await;
    let counted =
        "egress_proxies_proxyd_accepted_connections_total{admission=\"OutsideClients\"} 1\n";
    assert!(page.contains(counted), "{page}");
}

#[tokio::test]
async fn an_ipv4_client_of_a_dual_stack_listener_is_compared_as_ipv4() {
    let page = echo_page("127.0.0.1:0").await;
    let config = ProxydConfig {
        listen: "[::]:0".parse().unwrap(),
        ..open_config()
    };
    let proxy = Proxy::start(config);
    let address = format!("127.0.0.1:{}", proxy.address.port());
    let answer = ask(address.parse().unwrap(), &get(&format!("http://{page}/"))).await;
    assert_eq!(status(&answer), 200);
}

#[tokio::test]
async fn a_proxy_for_everyone_is_not_started() {
    let config = ProxydConfig {
        clients: vec![],
        ..open_config()
    };
    let error = Server::bind(config).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().starts_with("auth: none: "), "{error}");

    let auth = Auth::Basic {
        verifiers: vec![],
        generation: 1,
    };
    let error = Server::bind(ProxydConfig {
        auth,
        ..open_config()
    })
    .err()
    .unwrap();
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[tokio::test]
async fn the_identity_answer_says_key_attempt_and_generation() {
    for (config, credentials, generation) in
        [(basic_config(), CREDENTIALS, 5), (open_config(), "", 0)]
    {
        let proxy = Proxy::start(config);
        let request = with_credentials(&get(IDENTITY_PATH), credentials);
        let answer = ask(proxy.address, &request).await;
        assert_eq!(status(&answer), 200);
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let identity: IdentityAnswer = serde_json::from_str(body).unwrap();
        assert_eq!((identity.key.as_str(), identity.attempt), ("proxy-test", 2));
        assert_eq!(identity.credential_generation, generation);
        assert!(!identity.draining);
    }
}

#[tokio::test]
async fn nothing_else_is_served_in_origin_form() {
    let proxy = Proxy::start(open_config());
    let post = format!("POST {IDENTITY_PATH} HTTP/1.1\r\nConnection: close\r\n\r\n");
    for request in [
        get("/"),
        get("/metrics"),
        post,
        get("/.well-known/egress-proxies/x"),
    ] {
        assert_eq!(
            status(&ask(proxy.address, &request).await),
            404,
            "{request}"
        );
    }
}

#[tokio::test]
async fn the_management_page_is_on_its_own_address_only() {
    let management = Some("127.0.0.1:0".parse().unwrap());
    let proxy = Proxy::start(ProxydConfig {
        management,
        ..basic_config()
    });
    let management = proxy.management.unwrap();
    for (path, code) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/", 404),
    ] {
        assert_eq!(status(&ask(management, &get(path)).await), code, "{path}");
    }
    let post = "POST /healthz HTTP/1.1\r\nConnection: close\r\n\r\n";
    assert_eq!(status(&ask(management, post).await), 405);
    let absolute = get(&format!("http://{}/", proxy.address));
    assert_eq!(status(&ask(management, &absolute).await), 404);
}
