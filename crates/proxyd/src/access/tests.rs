use super::*;
use http::HeaderValue;

fn headers(values: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(PROXY_AUTHORIZATION, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn basic(pair: &str) -> String {
    format!("Basic {}", data_encoding::BASE64.encode(pair.as_bytes()))
}

fn two_generations() -> Access {
    let verifiers = vec![
        Verifier::new("egress", "old"),
        Verifier::new("egress", "new"),
    ];
    Access::new(
        &[],
        &Auth::Basic {
            verifiers,
            generation: 7,
        },
    )
}

#[test]
fn both_generations_are_accepted_while_a_credential_is_exchanged() {
    let access = two_generations();
    assert!(access.accepts(&headers(&[&basic("egress:old")])));
    assert!(access.accepts(&headers(&[&basic("egress:new")])));
    assert_eq!(access.generation(), 7);
}

#[test]
fn the_scheme_has_no_case() {
    let lower = basic("egress:new").replace("Basic", "bAsIc");
    assert!(two_generations().accepts(&headers(&[&lower])));
}

#[test]
fn a_missing_wrong_broken_or_doubled_credential_is_refused() {
    let good = basic("egress:new");
    let encoded = good.strip_prefix("Basic ").unwrap();
    for refused in [
        vec![],
        vec![basic("egress:newer")],
        vec![basic("egress")],
        vec![basic("")],
        vec!["Basic".to_owned()],
        vec!["Basic !!!".to_owned()],
        vec![format!("Bearer {encoded}")],
        vec![encoded.to_owned()],
        vec![good.clone(), good.clone()],
    ] {
        let values: Vec<&str> = refused.iter().map(String::as_str).collect();
        assert!(!two_generations().accepts(&headers(&values)), "{refused:?}");
    }
}

#[test]
fn mapped_ipv4_networks_mean_the_ipv4_network() {
    let networks = [
        "::ffff:10.1.0.0/112".parse().unwrap(),
        "2001:db8::/32".parse().unwrap(),
    ];
    let access = Access::new(&networks, &Auth::None {});
    assert!(access.admits("10.1.2.3".parse().unwrap()));
    assert!(!access.admits("10.2.2.3".parse().unwrap()));
    assert!(access.admits("2001:db8::1".parse().unwrap()));
    assert!(!access.admits("2001:db9::1".parse().unwrap()));
}

#[test]
fn an_empty_list_admits_everyone() {
    assert!(Access::new(&[], &Auth::None {}).admits("192.0.2.1".parse().unwrap()));
}
