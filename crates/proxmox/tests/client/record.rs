//! Captures of a live host: reads only, whole, and never with a secret.

use crate::scripted::{Bench, CANARY, Turn, answer, bench, ok};
use egress_proxmox::client::record::{FILE, NotCaptured, capture};
use std::fs;

const LIST: &str = r#"[
    {"type":"node","node":"pve1","id":"node/pve1"},
    {"type":"storage","node":"pve1","storage":"isos","id":"storage/pve1/isos"},
    {"type":"pool","pool":"pool1","id":"/pool/pool1"},
    {"type":"qemu","node":"pve1","vmid":9000,"template":1,"id":"qemu/9000"},
    {"type":"qemu","node":"pve1","vmid":101,"tags":"proxy_operator","id":"qemu/101"},
    {"type":"qemu","node":"pve1","vmid":555,"name":"somebodys","id":"qemu/555"}]"#;

fn turns(last: Turn) -> Vec<Turn> {
    let mut turns = vec![ok(LIST)];
    turns.extend(std::iter::repeat_n(
        answer(500, "some error", "{\"data\":null}"),
        20,
    ));
    turns.push(last);
    turns.extend(std::iter::repeat_n(ok("null"), 40));
    turns
}

async fn captured(bench: &Bench) -> Result<String, NotCaptured> {
    let dir = bench.dir.path().join("fixtures");
    let captured = capture(&bench.client, &dir).await?;
    let text = fs::read_to_string(dir.join(FILE)).unwrap();
    assert_eq!(text.lines().count(), captured.exchanges);
    Ok(text)
}

#[tokio::test]
async fn a_capture_holds_every_answer_errors_included_and_asks_reads_only() {
    let bench = bench(1, turns(ok("{}")));
    let text = captured(&bench).await.unwrap();
    assert!(text.lines().count() > 25, "{}", text.lines().count());
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["request"]["method"], "GET");
        assert!(
            line["response"]["status"].as_u64() == Some(200)
                || line["response"]["reason"] == "some error"
        );
    }
    assert!(text.contains("/qemu/101/config") && text.contains("/qemu/9000/status/current"));
    assert!(text.contains("/pools?poolid=pool1") && text.contains("/storage/isos/status"));
    assert!(
        !text.contains("/qemu/555/"),
        "a stranger's machine was asked for"
    );
    let seen = bench.script.seen.lock().unwrap();
    assert!(seen.iter().all(|r| r.method == http::Method::GET));
}

#[tokio::test]
async fn a_capture_with_a_secret_is_refused_as_a_whole() {
    for (last, told) in [
        (ok(&format!("{{\"a\":\"{CANARY}\"}}")), "the token in use"),
        (
            answer(500, &format!("odd {CANARY}"), ""),
            "the token in use",
        ),
        (ok("{\"a\":\"PVEAPIToken=x@pve!y=z\"}"), "\"PVEAPIToken\""),
        (
            ok("{\"pem\":\"-----BEGIN PRIVATE KEY-----\"}"),
            "PRIVATE KEY",
        ),
        (
            ok("{\"CSRFPreventionToken\":\"abc\"}"),
            "CSRFPreventionToken",
        ),
    ] {
        let bench = bench(1, turns(last));
        let refused = captured(&bench).await.unwrap_err();
        let text = refused.to_string();
        assert!(matches!(refused, NotCaptured::Secret { .. }), "{text}");
        assert!(
            text.contains(told) && text.ends_with("nothing was saved"),
            "{text}"
        );
        assert!(!text.contains(CANARY));
        assert!(!bench.dir.path().join("fixtures").exists());
    }
}
