//! The process: arguments, ready line, signals, exit codes, logs.

use crate::stage::{
    CREDENTIALS, Process, Target, Wire, ask, basic_config, config_file, echo_page, get, limited,
    open_config, proxyd, status, tunnel,
};
use egress_core::proxy_config::ProxydConfig;
use rustix::process::{Pid, Signal, getsid};
use std::{process::Output, time::Instant};

fn fails(arguments: &[&str]) -> (i32, String) {
    let Output {
        status,
        stderr,
        stdout,
        ..
    } = proxyd().args(arguments).output().unwrap();
    assert_eq!(stdout, b"", "nothing was ready");
    (status.code().unwrap(), String::from_utf8(stderr).unwrap())
}

fn refuses(config: &ProxydConfig) -> (i32, String) {
    let file = config_file(config);
    fails(&["--config", file.path().to_str().unwrap()])
}

#[tokio::test]
async fn it_says_where_it_listens_serves_and_leaves_quickly_on_either_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let page = echo_page("127.0.0.1:0").await;
        let management = Some("127.0.0.1:0".parse().unwrap());
        let proxy = Process::start(&ProxydConfig {
            management,
            ..open_config()
        });
        assert_ne!(proxy.ready.listen.port(), 0);
        assert_eq!(
            status(&ask(proxy.ready.management.unwrap(), &get("/readyz")).await),
            200
        );
        let answer = ask(proxy.ready.listen, &get(&format!("http://{page}/"))).await;
        assert_eq!(status(&answer), 200);
        let start = Instant::now();
        proxy.signal(signal);
        assert_eq!(proxy.exited().await.0, Some(0));
        assert!(start.elapsed().as_millis() < 5000, "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_second_signal_ends_the_drain() {
    let proxy = Process::start(&limited(|limits| limits.drain_seconds = 600));
    let target = Target::start().await;
    let (mut client, mut far_end) = tunnel(proxy.ready.listen, &target).await;
    proxy.signal(Signal::TERM);
    let address = proxy.ready.listen;
    crate::stage::eventually("the first signal is seen", || {
        std::net::TcpStream::connect(address).is_err()
    })
    .await;
    client.say("still").await;
    far_end.hear_until("still").await;
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.exited().await.0, Some(0));
}

#[test]
fn a_bad_configuration_is_told_with_exit_code_2() {
    let open = ProxydConfig {
        clients: vec![],
        ..open_config()
    };
    let (code, text) = refuses(&open);
    assert_eq!(code, 2);
    let told = "auth: none: an open proxy: neither credentials nor a list of clients: set";
    assert!(text.contains(told), "{text}");

    let (code, text) = fails(&["--config", "/nonexistent.json"]);
    assert_eq!(code, 2);
    assert!(text.contains("/nonexistent.json"), "{text}");
}

#[test]
fn a_bad_argument_is_told_with_exit_code_2() {
    for arguments in [&["--what"][..], &["--config"], &[], &["file.json"]] {
        let (code, text) = fails(arguments);
        assert_eq!(code, 2, "{arguments:?}");
        assert!(text.contains("--help"), "{text}");
    }
}

#[test]
fn an_agent_that_may_not_open_its_port_ends_and_says_so() {
    // Nobody may write to it, not even the superuser.
    let (code, text) = fails(&["--agent", "/sys/kernel/uevent_seqnum"]);
    assert_eq!(code, 1);
    assert!(text.contains("uevent_seqnum: Permission denied"), "{text}");
    let (code, text) = fails(&["--agent", "port", "more"]);
    assert_eq!(code, 2);
    assert!(text.contains("more: not an argument"), "{text}");
}

#[test]
fn an_address_that_cannot_be_had_is_named_with_its_field() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let here = open_config();
    for (field, config) in [
        (
            "listen",
            ProxydConfig {
                listen: address,
                ..here.clone()
            },
        ),
        (
            "management",
            ProxydConfig {
                management: Some(address),
                ..here.clone()
            },
        ),
    ] {
        let (code, text) = refuses(&config);
        assert_eq!(code, 1);
        let told = format!("{field}: {address}: cannot be bound: ");
        assert!(text.contains(&told) && text.contains("in use"), "{text}");
    }
    let egress = Some("192.0.2.1".parse().unwrap());
    let (code, text) = refuses(&ProxydConfig { egress, ..here });
    assert_eq!(code, 1);
    assert!(
        text.contains("egress: 192.0.2.1:0: cannot be bound: "),
        "{text}"
    );
}

#[tokio::test]
async fn detached_it_leads_a_session_of_its_own() {
    let file = config_file(&open_config());
    let mut child = proxyd()
        .args(["--detach", "--config"])
        .arg(file.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    let pid = Pid::from_child(&child);
    let session = getsid(Some(pid)).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(session, pid);
}

#[tokio::test]
async fn the_log_holds_no_credential_and_no_path() {
    let page = echo_page("127.0.0.1:0").await;
    let proxy = Process::start(&basic_config());
    for credentials in [
        CREDENTIALS,
        "Proxy-Authorization: Basic ZWdyZXNzOndyb25n\r\n",
    ] {
        for url in [
            format!("http://{page}/private"),
            "http://user:hidden@x/".to_owned(),
        ] {
            let request = format!("GET {url} HTTP/1.1\r\n{credentials}Connection: close\r\n\r\n");
            ask(proxy.ready.listen, &request).await;
        }
    }
    Wire::to(proxy.ready.listen)
        .await
        .say("nonsense\r\n\r\n")
        .await;
    proxy.signal(Signal::TERM);
    let (_, log) = proxy.exited().await;
    assert!(log.contains("serving"), "{log}");
    for secret in ["secret", "ZWdyZXNz", "hidden", "private", "wrong"] {
        assert!(!log.contains(secret), "{log}");
    }
}
