use super::*;
use proptest::prelude::*;

fn absolute(text: &str) -> Result<String, TargetError> {
    Target::of_absolute(&text.parse().unwrap()).map(|(target, _)| target.to_string())
}

fn connect(text: &str) -> Result<String, TargetError> {
    Target::of_connect(&text.parse().unwrap()).map(|target| target.to_string())
}

#[test]
fn targets_in_absolute_form() {
    for (text, target) in [
        ("http://example.com/a?b", "example.com:80"),
        ("http://EXAMPLE.com.:8080", "example.com:8080"),
        ("http://example.com:/", "example.com:80"),
        ("http://192.0.2.1:81/", "192.0.2.1:81"),
        ("http://192.0.2.1./", "192.0.2.1:80"),
        ("http://[2001:DB8::1]/", "[2001:db8::1]:80"),
        ("http://[2001:db8::1]:8080/", "[2001:db8::1]:8080"),
        ("http://[::ffff:192.0.2.1]/", "192.0.2.1:80"),
        ("http://a_b.example/", "a_b.example:80"),
        ("http://localhost:1/", "localhost:1"),
    ] {
        assert_eq!(absolute(text), Ok(target.to_owned()), "{text}");
    }
}

#[test]
fn targets_of_connect() {
    for (text, target) in [
        ("example.com:443", "example.com:443"),
        ("Example.Com.:443", "example.com:443"),
        ("[::1]:65535", "[::1]:65535"),
        ("192.0.2.1:1", "192.0.2.1:1"),
    ] {
        assert_eq!(connect(text), Ok(target.to_owned()), "{text}");
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    for (text, error) in [
        ("https://example.com/", TargetError::Scheme),
        ("ftp://example.com/", TargetError::Scheme),
        ("/path", TargetError::NotAbsolute),
        ("http://user:pass@example.com/", TargetError::Credentials),
        ("http://user@example.com:80/", TargetError::Credentials),
        ("http://example.com:0/", TargetError::Port),
        ("http://example.com:65536/", TargetError::Port),
        ("http://example.com:99999999999/", TargetError::Port),
        ("http://127.1/", TargetError::Host),
        ("http://2130706433/", TargetError::Host),
        ("http://0x7f000001/", TargetError::Host),
        ("http://0x7f.0x0.0x0.0x1/", TargetError::Host),
        ("http://0177.0.0.1/", TargetError::Host),
        ("http://192.0.2.256/", TargetError::Host),
        ("http://example.0x/", TargetError::Host),
        ("http://a..b/", TargetError::Host),
        ("http://.a/", TargetError::Host),
        ("http://a!b/", TargetError::Host),
    ] {
        assert_eq!(absolute(text), Err(error), "{text}");
    }
    for (text, error) in [
        ("example.com", TargetError::NoPort),
        ("example.com:", TargetError::NoPort),
        ("/path", TargetError::NoPort),
        ("http://example.com:80/", TargetError::NoPort),
        ("user:pass@example.com:443", TargetError::Credentials),
        ("example.com:0", TargetError::Port),
        ("example.com:70000", TargetError::Port),
        ("127.1:443", TargetError::Host),
    ] {
        assert_eq!(connect(text), Err(error), "{text}");
    }
}

#[test]
fn names_have_the_lengths_of_dns() {
    let label = "a".repeat(63);
    let name = [label.as_str(); 4].join(".");
    assert!(absolute(&format!("http://{}/", &name[..253])).is_ok());
    assert_eq!(
        absolute(&format!("http://{}/", &name[..254])),
        Err(TargetError::Host)
    );
    assert_eq!(
        absolute(&format!("http://{label}a.example/")),
        Err(TargetError::Host)
    );
}

#[test]
fn the_host_field_is_the_authority_as_it_was_written() {
    for (text, field) in [
        ("http://Example.com:8080/x", "Example.com:8080"),
        ("http://example.com/", "example.com"),
        ("http://example.com:/", "example.com"),
        ("http://[::1]:8080/", "[::1]:8080"),
    ] {
        let (_, host) = Target::of_absolute(&text.parse().unwrap()).unwrap();
        assert_eq!(host, field);
    }
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused_and_what_is_parsed_is_canonical(text in "\\PC{0,40}") {
        if let Ok((host, port)) = parse_authority(&text) {
            prop_assert_ne!(port, Some(0));
            let written = host.to_string();
            prop_assert_eq!(parse_authority(&written), Ok((host, None)));
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:[]".contains(c);
            prop_assert!(written.chars().all(plain), "{}", written);
        }
    }

    #[test]
    fn near_misses_are_canonical_too(text in "[0-9a-fxX.:\\[\\]@%-]{0,24}(:[0-9]{0,6})?") {
        if let Ok((host, _)) = parse_authority(&text) {
            prop_assert_eq!(parse_authority(&host.to_string()), Ok((host, None)));
        }
    }

    #[test]
    fn every_ipv6_address_survives(address in any::<u128>(), port in 1u16..) {
        let address = Ipv6Addr::from(address);
        let text = format!("[{address}]:{port}");
        let expected = Host::Ip(IpAddr::V6(address).to_canonical());
        prop_assert_eq!(parse_authority(&text), Ok((expected, Some(port))));
    }
}
