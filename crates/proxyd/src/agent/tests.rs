use super::*;

fn answers(bytes: &[u8]) -> Vec<Vec<u8>> {
    let frames = Frames::default().take(bytes);
    frames.iter().filter_map(reply).collect()
}

/// The only answer, as JSON.
fn answer(request: &str) -> Value {
    let mut all = answers(request.as_bytes());
    assert_eq!(all.len(), 1, "{request}");
    let line = all.remove(0);
    assert_eq!(line.last(), Some(&b'\n'));
    serde_json::from_slice(&line).expect("JSON")
}

/// What running Proxmox VE code passed on from QEMU's own agent.
const INTERFACES: &str = include_str!("recorded-interfaces.json");

#[test]
fn the_conversation_of_a_client_is_answered() {
    assert_eq!(
        answer(r#"{"execute":"guest-sync","arguments":{"id":1234567890123}}"#),
        json!({"return": 1_234_567_890_123_i64})
    );
    assert_eq!(answer(r#"{"execute":"guest-ping"}"#), json!({"return": {}}));
    assert_eq!(
        answer(r#"{"execute":"guest-ping","arguments":{},"id":"a"}"#),
        json!({"return": {}, "id": "a"})
    );
}

#[test]
fn a_delimited_answer_begins_with_the_byte_that_no_json_holds() {
    let told = answers(b"\xff{\"execute\":\"guest-sync-delimited\",\"arguments\":{\"id\":7}}");
    assert_eq!(told, [b"\xff{\"return\":7}\n".to_vec()]);
}

#[test]
fn requests_need_nothing_between_them_and_may_come_in_pieces() {
    let text = br#"{"execute":"guest-ping"}{"execute":"guest-sync","arguments":{"id":1}}
        {"execute":"guest-ping"}"#;
    assert_eq!(answers(text).len(), 3);
    let mut frames = Frames::default();
    let found: Vec<Frame> = text.iter().flat_map(|byte| frames.take(&[*byte])).collect();
    assert_eq!(found, Frames::default().take(text));
}

#[test]
fn brackets_and_quotes_within_a_text_end_nothing() {
    let told = answer(r#"{"execute":"}\"{[\\"}"#);
    assert_eq!(told["error"]["class"], "CommandNotFound");
    assert_eq!(
        told["error"]["desc"],
        "The command }\"{[\\ has not been found"
    );
}

#[test]
fn what_a_host_began_to_say_ends_with_the_delimiter() {
    let told = answers(b"{\"execute\":\"guest-\xff{\"execute\":\"guest-ping\"}");
    assert_eq!(told, [b"{\"return\":{}}\n".to_vec()]);
}

#[test]
fn every_other_request_gets_an_honest_error() {
    for (request, class, text) in [
        (
            r#"{"execute":"guest-exec","arguments":{"path":"/bin/sh"}}"#,
            "CommandNotFound",
            "The command guest-exec has not been found",
        ),
        (
            r#"{"execute":"guest-file-open"}"#,
            "CommandNotFound",
            "The command guest-file-open has not been found",
        ),
        (r"{}", "GenericError", "lacks member 'execute'"),
        (r"[]", "GenericError", "must be a JSON object"),
        (r#"{"execute":7}"#, "GenericError", "'execute', expected"),
        (r#"{"execute"}"#, "GenericError", "JSON parse error"),
        ("hello", "GenericError", "JSON parse error"),
        (
            r#"{"execute":"guest-sync"}"#,
            "GenericError",
            "Parameter 'id' is missing",
        ),
        (
            r#"{"execute":"guest-sync","arguments":{"id":"x"}}"#,
            "GenericError",
            "Invalid parameter type for 'id', expected: integer",
        ),
        (
            r#"{"execute":"guest-ping","arguments":{"x":1}}"#,
            "GenericError",
            "Parameter 'x' is unexpected",
        ),
        (
            r#"{"execute":"guest-shutdown","arguments":{"mode":"explode"}}"#,
            "GenericError",
            "does not accept value 'explode'",
        ),
    ] {
        let told = answer(request);
        assert_eq!(told["error"]["class"], class, "{request}");
        let desc = told["error"]["desc"].as_str().expect("text");
        assert!(desc.contains(text), "{request}: {desc}");
    }
}

#[test]
fn a_request_without_end_is_given_up_and_the_next_line_is_answered() {
    let mut bytes = b"{\"execute\":\"".to_vec();
    bytes.resize(200_000, b'a');
    bytes.extend(b"\"}\n{\"execute\":\"guest-ping\"}");
    let told = answers(&bytes);
    assert_eq!(told.len(), 2);
    let first: Value = serde_json::from_slice(&told[0]).expect("JSON");
    assert_eq!(first["error"]["desc"], "the request is too long");
    assert_eq!(told[1], b"{\"return\":{}}\n");
}

#[test]
fn each_command_that_is_told_is_known() {
    let told = answer(r#"{"execute":"guest-info"}"#);
    let commands = told["return"]["supported_commands"]
        .as_array()
        .expect("list");
    assert!(commands.len() > 5);
    for command in commands {
        assert_eq!(command["enabled"], true);
        let name = command["name"].as_str().expect("a name");
        let request = format!(r#"{{"execute":"{name}","arguments":{{"no":0}}}}"#);
        let refused = answer(&request);
        assert_eq!(refused["error"]["class"], "GenericError", "{name}");
    }
}

/// The keys of every object in it, by where it stands.
fn shape(value: &Value, at: &str, into: &mut std::collections::BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                shape(value, &format!("{at}.{key}"), into);
            }
        }
        Value::Array(list) => {
            for value in list {
                shape(value, &format!("{at}[]"), into);
            }
        }
        Value::String(_) => drop(into.insert(format!("{at}: text"))),
        Value::Number(_) => drop(into.insert(format!("{at}: number"))),
        _ => drop(into.insert(format!("{at}: other"))),
    }
}

#[test]
fn the_interfaces_have_the_shape_that_qemus_agent_gives_them() {
    let told = answer(r#"{"execute":"guest-network-get-interfaces"}"#);
    let recorded: Value = serde_json::from_str(INTERFACES).expect("JSON");
    let (mut ours, mut theirs) = Default::default();
    shape(&told["return"], "", &mut ours);
    shape(&recorded, "", &mut theirs);
    assert_eq!(ours, theirs);
    let loopback = told["return"]
        .as_array()
        .expect("list")
        .iter()
        .find(|card| card["name"] == "lo")
        .expect("loopback");
    assert_eq!(loopback["hardware-address"], "00:00:00:00:00:00");
    assert_eq!(
        loopback["ip-addresses"][0],
        json!({"ip-address": "127.0.0.1", "ip-address-type": "ipv4", "prefix": 8})
    );
}

#[test]
fn the_system_is_told_as_os_release_has_it() {
    let root = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(root.path().join("etc")).expect("a folder");
    let text = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\nVERSION_ID='12'\n\
                HOME_URL=\"https://www.debian.org/\"\nNAME=\"A \\\"B\\\"\"\n";
    std::fs::write(root.path().join("etc/os-release"), text).expect("written");
    let told = os::info(root.path());
    assert_eq!(told["pretty-name"], "Debian GNU/Linux 12 (bookworm)");
    assert_eq!(told["id"], "debian");
    assert_eq!(told["version-id"], "12");
    assert_eq!(told["name"], "A \"B\"");
    assert_eq!(told["machine"], std::env::consts::ARCH);
    assert!(told["kernel-release"].is_string() && told["kernel-version"].is_string());
    assert_eq!(told.get("HOME_URL"), None);
    let bare = os::info(Path::new("/nonexistent"));
    assert_eq!(bare.as_object().expect("an object").len(), 3);
}

#[test]
fn time_and_name_are_the_machines_own() {
    let told = answer(r#"{"execute":"guest-get-time"}"#);
    let year_2020 = 1_577_836_800_000_000_000;
    assert!(told["return"].as_i64().expect("a number") > year_2020);
    let told = answer(r#"{"execute":"guest-get-host-name"}"#);
    assert_eq!(told["return"]["host-name"], os::host_name().as_str());
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_a_host_sends_a_ping_after_the_delimiter_is_answered(
            noise in prop::collection::vec(any::<u8>(), 0..300),
            cut in 0_usize..300,
        ) {
            // The commands that would act are no noise.
            let mut frames = Frames::default();
            let cut = cut.min(noise.len());
            let mut found = frames.take(&noise[..cut]);
            found.extend(frames.take(&noise[cut..]));
            prop_assert_eq!(&found, &Frames::default().take(&noise));
            let found = frames.take(b"\xff{\"execute\":\"guest-ping\"}");
            prop_assert_eq!(found, vec![Frame::Request(b"{\"execute\":\"guest-ping\"}".to_vec())]);
        }
    }
}
