//! One call over the servers of a cluster: order, repeats, deadlines, token.

use crate::scripted::{CANARY, Turn, answer, bench, cut_off, not_sent, ok};
use egress_core::ErrorClass;
use egress_proxmox::client::{
    CertificateTrouble, Client, Kind, NodeName, Prepared, Reuse, Upid, Vmid, VmidState, WireError,
};
use std::{fs, os::unix::fs::PermissionsExt, time::Duration};
use tokio::time::Instant;

const UPID: &str = "\"UPID:pve1:00000ACD:00006AE8:679A423B:qmstart:101:op@pve!t1:\"";
const VERSION: &str = r#"{"version":"9.2.11","release":"9.2","repoid":"x"}"#;

fn start(client: &Client) -> Prepared<Upid> {
    let node: NodeName = "pve1".parse().unwrap();
    client.start(&node, Vmid::new(101).unwrap()).unwrap()
}

fn hosts(bench: &crate::scripted::Bench) -> Vec<String> {
    let seen = bench.script.seen.lock().unwrap();
    seen.iter().map(|r| r.base.host().to_owned()).collect()
}

#[tokio::test]
async fn a_read_goes_to_the_next_server_and_stays_there() {
    let bench = bench(3, [not_sent(), cut_off(), ok(VERSION), ok(VERSION)]);
    assert_eq!(bench.client.version().await.unwrap().major, 9);
    bench.client.version().await.unwrap();
    assert_eq!(hosts(&bench), ["pve1", "pve2", "pve3", "pve3"]);
}

#[tokio::test]
async fn a_mutation_goes_to_the_next_server_only_when_nothing_was_sent() {
    let refused = bench(2, [not_sent(), ok(UPID)]);
    let upid = start(&refused.client).send().await.unwrap();
    assert_eq!(upid.kind(), "qmstart");
    assert_eq!(hosts(&refused), ["pve1", "pve2"]);

    let lost = bench(2, [cut_off()]);
    let failure = start(&lost.client).send().await.unwrap_err();
    assert_eq!(failure.kind, Kind::CutOff);
    assert_eq!(failure.class, ErrorClass::OutcomeUnknown);
    assert!(failure.sent);
    assert_eq!(hosts(&lost), ["pve1"]);
}

#[tokio::test]
async fn an_answer_of_one_server_is_not_doubted_at_the_next() {
    let bench = bench(2, [answer(595, "No route to host", "")]);
    let failure = bench.client.version().await.unwrap_err();
    assert_eq!(failure.kind, Kind::NodeUnreachable);
    assert_eq!(hosts(&bench), ["pve1"]);
}

#[tokio::test]
async fn when_no_server_was_reached_nothing_was_sent() {
    let bench = bench(2, [not_sent(), not_sent()]);
    let failure = start(&bench.client).send().await.unwrap_err();
    assert_eq!(failure.class, ErrorClass::Transient);
    assert!(!failure.sent);
    assert_eq!(
        failure.to_string(),
        "POST /nodes/pve1/qemu/101/status/start: https://pve2:8006: connection refused"
    );
}

#[tokio::test(start_paused = true)]
async fn t1_a_silent_server_costs_a_read_its_share_of_the_deadline_and_no_more() {
    let bench = bench(2, [Turn::Hang, ok(VERSION)]);
    let begun = Instant::now();
    let client = bench.client.within(Duration::from_secs(8));
    client.version().await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(4));
}

#[tokio::test(start_paused = true)]
async fn t1_every_call_ends_by_its_deadline() {
    let bench = bench(2, [Turn::Hang, Turn::Hang, Turn::Hang, Turn::Hang]);
    let begun = Instant::now();
    let read = bench.client.version().await.unwrap_err();
    assert_eq!(read.class, ErrorClass::Transient);
    assert_eq!(begun.elapsed(), egress_proxmox::client::READ_DEADLINE);

    let begun = Instant::now();
    let client = bench.client.within(Duration::from_secs(3));
    let written = start(&client).send().await.unwrap_err();
    assert_eq!(written.class, ErrorClass::OutcomeUnknown);
    assert_eq!(written.said, "https://pve1:8006: no answer within 3.0 s");
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
}

#[tokio::test]
async fn only_a_mutation_asks_for_a_connection_of_its_own() {
    let bench = bench(1, [ok(VERSION), ok(UPID)]);
    bench.client.version().await.unwrap();
    start(&bench.client).send().await.unwrap();
    let seen = bench.script.seen.lock().unwrap();
    assert_eq!(seen[0].reuse, Reuse::KeepAlive);
    assert_eq!(seen[1].reuse, Reuse::Fresh);
    assert_eq!(seen[0].target, "/api2/json/version");
    assert!(seen[0].body.is_empty() && !seen[0].headers.contains_key("content-type"));
    assert_eq!(
        seen[1].headers["content-type"],
        "application/x-www-form-urlencoded"
    );
}

#[tokio::test]
async fn existence_is_taken_free_or_an_error() {
    let taken = r#"{"message":"Parameter verification failed.\n","errors":{"vmid":"VM 900 already exists"},"data":null}"#;
    let bad = r#"{"message":"Parameter verification failed.\n","errors":{"vmid":"invalid format - value does not look like a valid VM ID\n"},"data":null}"#;
    let bench = bench(
        1,
        [
            answer(400, "Parameter verification failed.", taken),
            ok("\"900\""),
            ok("900"),
            ok("\"901\""),
            answer(400, "Parameter verification failed.", bad),
            answer(400, "Bad Request", ""),
            answer(401, "Authentication failed!", ""),
        ],
    );
    let vmid = Vmid::new(900).unwrap();
    let ask = || bench.client.vmid_state(vmid);
    assert_eq!(ask().await.unwrap(), VmidState::Taken);
    assert_eq!(ask().await.unwrap(), VmidState::Free);
    assert_eq!(ask().await.unwrap(), VmidState::Free);
    assert_eq!(ask().await.unwrap_err().class, ErrorClass::Internal);
    assert_eq!(ask().await.unwrap_err().class, ErrorClass::Permanent);
    assert_eq!(ask().await.unwrap_err().class, ErrorClass::Internal);
    assert_eq!(ask().await.unwrap_err().class, ErrorClass::Unauthorized);
}

#[tokio::test]
async fn x4_b117_a_refusal_of_the_agent_is_known_though_the_status_is_200() {
    let refused = r#"{"result":{"error":{"class":"CommandNotFound","desc":"The command guest-network-get-interfaces has not been found"}}}"#;
    let bench = bench(1, [ok(refused)]);
    let node = "pve1".parse().unwrap();
    let failure = bench
        .client
        .agent_interfaces(&node, Vmid::new(101).unwrap())
        .await
        .unwrap_err();
    assert_eq!(failure.class, ErrorClass::Permanent);
    assert!(matches!(failure.kind, Kind::AgentRefused { class } if class == "CommandNotFound"));
}

#[tokio::test]
async fn b138_the_token_is_read_again_for_each_request_and_sent_in_the_one_right_header() {
    let bench = bench(1, [ok(VERSION), ok(VERSION)]);
    bench.client.version().await.unwrap();
    let other = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee";
    fs::write(
        bench.dir.path().join("token"),
        format!("\u{feff}  o;p%@pve!t-2={other}\r\n\n"),
    )
    .unwrap();
    bench.client.version().await.unwrap();
    let seen = bench.script.seen.lock().unwrap();
    assert_eq!(
        seen[0].headers["authorization"],
        format!("PVEAPIToken=op@pve!t1={CANARY}")
    );
    assert_eq!(
        seen[1].headers["authorization"],
        format!("PVEAPIToken=o%3Bp%25@pve!t-2={other}")
    );
    assert!(seen[0].headers["authorization"].is_sensitive());
}

#[tokio::test]
async fn b136_a_token_file_of_the_wrong_shape_is_named_and_not_shown() {
    let bench = bench(1, []);
    let path = bench.dir.path().join("token");
    for (text, told) in [
        (String::new(), "is empty"),
        (
            format!("op@pve!t1={CANARY}\nop@pve!t2={CANARY}"),
            "more than one line",
        ),
        (format!("PVEAPIToken=op@pve!t1={CANARY}"), "whole header"),
        (CANARY.to_owned(), "no `=`"),
        (format!("op!t1={CANARY}"), "no `@`"),
        (format!("op@pve={CANARY}"), "no `!`"),
        (format!("o p@pve!t1={CANARY}"), "user name"),
        (format!("op@p ve!t1={CANARY}"), "realm"),
        (format!("op@pve!1t={CANARY}"), "token id"),
        (format!("op@pve!t1={CANARY}~"), "secret"),
        ("op@pve!t1=".to_owned(), "secret"),
        (format!("op@pve!a!b={CANARY}"), "token id"),
        (format!("\"op@pve!t1={CANARY}\""), "secret"),
    ] {
        fs::write(&path, &text).unwrap();
        let failure = bench.client.version().await.unwrap_err();
        assert_eq!(failure.kind, Kind::TokenUnusable, "{text}");
        assert_eq!(failure.class, ErrorClass::Unauthorized, "{text}");
        assert!(failure.said.contains(told), "{text}: {failure}");
        assert!(failure.said.contains(path.to_str().unwrap()), "{failure}");
        assert!(!format!("{failure} {failure:?}").contains(CANARY));
        assert!(!failure.sent);
    }
    fs::remove_file(&path).unwrap();
    let failure = bench.client.version().await.unwrap_err();
    assert_eq!(failure.kind, Kind::TokenUnusable);
    assert!(failure.said.contains("cannot be read"), "{failure}");
    // The mutation fails before the permit is asked.
    let node = "pve1".parse().unwrap();
    let prepared = bench.client.start(&node, Vmid::new(101).unwrap());
    assert_eq!(prepared.unwrap_err().kind, Kind::TokenUnusable);
    assert!(bench.script.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn no_text_ever_holds_the_token() {
    let echo = format!("{{\"data\":null,\"message\":\"bad header op@pve!t1={CANARY}\"}}");
    let turns = || {
        vec![
            answer(500, &format!("reason {CANARY}"), ""),
            answer(500, "x", &echo),
            answer(404, CANARY, CANARY),
            answer(200, "OK", &format!("{{\"data\":\"{CANARY}\"}}")),
            answer(
                400,
                "Parameter verification failed.",
                &format!("{{\"errors\":{{\"a\":\"{CANARY}\"}},\"data\":null}}"),
            ),
            Turn::Fail(WireError::CutOff {
                why: format!("after PVEAPIToken=op@pve!t1={CANARY}"),
            }),
            Turn::Fail(WireError::Certificate(CertificateTrouble::Other(
                "odd".to_owned(),
            ))),
            Turn::Fail(WireError::BadCa {
                why: "no file".to_owned(),
            }),
        ]
    };
    let count = turns().len();
    let reads = bench(1, turns());
    let writes = bench(1, turns());
    for turn in 0..count {
        let read = reads.client.version().await.unwrap_err();
        let prepared = start(&writes.client);
        let shown = format!("{prepared:?} {:?}", writes.client);
        let written = prepared.send().await.unwrap_err();
        for text in [
            read.to_string(),
            read.said.clone(),
            format!("{read:?}"),
            format!("{written:?}"),
            written.to_string(),
            shown,
        ] {
            assert!(!text.contains(CANARY), "turn {turn}: {text}");
        }
    }
    for request in writes.script.seen.lock().unwrap().iter() {
        assert!(!format!("{request:?}").contains(CANARY));
    }
}

#[tokio::test]
async fn a_token_file_that_others_can_read_still_works() {
    let bench = bench(1, [ok(VERSION)]);
    let path = bench.dir.path().join("token");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    bench.client.version().await.unwrap();
}

#[tokio::test]
async fn b61_a_task_is_asked_for_on_the_node_that_its_upid_names() {
    let running = r#"{"status":"running"}"#;
    let missing = r#"{"errors":{"upid":"no such task"},"data":null}"#;
    let bench = bench(
        1,
        [
            ok(running),
            answer(400, "Parameter verification failed.", missing),
        ],
    );
    let upid: Upid = "UPID:pve2:00000ACD:00006AE8:679A423B:imgcopy::op@pve!t1:"
        .parse()
        .unwrap();
    bench.client.task_status(&upid).await.unwrap();
    let failure = bench.client.task_log(&upid, 0).await.unwrap_err();
    assert_eq!(failure.kind, Kind::NoSuchTask);
    assert_eq!(failure.class, ErrorClass::Transient);
    let seen = bench.script.seen.lock().unwrap();
    assert_eq!(
        seen[0].target,
        "/api2/json/nodes/pve2/tasks/\
         UPID%3Apve2%3A00000ACD%3A00006AE8%3A679A423B%3Aimgcopy%3A%3Aop%40pve%21t1%3A/status"
    );
}
