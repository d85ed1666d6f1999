use super::*;
use http::HeaderValue;

fn stripped(lines: &[(&'static str, &'static str)]) -> Vec<String> {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    strip_hop_by_hop(&mut headers);
    headers
        .iter()
        .map(|(n, v)| format!("{n}: {}", v.to_str().unwrap()))
        .collect()
}

#[test]
fn fields_of_one_hop_go_and_the_others_stay() {
    let mut left = stripped(&[
        ("connection", "keep-alive"),
        ("keep-alive", "timeout=5"),
        ("proxy-authenticate", "Basic realm=\"x\""),
        ("proxy-authorization", "Basic eDp5"),
        ("proxy-connection", "keep-alive"),
        ("te", "trailers"),
        ("trailer", "x-sum"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("via", "1.1 someone"),
    ]);
    left.sort();
    assert_eq!(left, ["cookie: a=1", "cookie: b=2", "via: 1.1 someone"]);
}

#[test]
fn fields_that_connection_names_go_too() {
    let left = stripped(&[
        ("connection", "close, X-Secret ,x-other"),
        ("connection", "x-third,, "),
        ("x-secret", "1"),
        ("x-secret", "2"),
        ("x-other", "3"),
        ("x-third", "4"),
        ("x-fourth", "5"),
    ]);
    assert_eq!(left, ["x-fourth: 5"]);
}

#[test]
fn an_unreadable_connection_field_goes_and_harms_nothing() {
    let mut headers = HeaderMap::new();
    headers.insert(
        CONNECTION,
        HeaderValue::from_bytes(b"x-\xff, close").unwrap(),
    );
    headers.insert("x-kept", HeaderValue::from_static("1"));
    strip_hop_by_hop(&mut headers);
    assert_eq!(headers.len(), 1);
}
