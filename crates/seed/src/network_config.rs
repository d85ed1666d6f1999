//! How the machine gets its addresses: network configuration version 2 (netplan's).
//!
//! The DHCP client is told apart by its MAC, not by an id made from `/etc/machine-id`, which
//! machines of a carelessly made image share. Temporary IPv6 addresses would let the egress
//! address wander.

use egress_core::finding::Finding;

/// The file `network-config`. Without a MAC every Ethernet card is meant. The card's name,
/// `eth0`, is a name only to renderers that know no patterns (ifupdown, sysconfig); netplan
/// takes it as a label.
pub(crate) fn render(mac: Option<&str>) -> String {
    let matched = mac.map_or_else(
        || "name: \"e*\"".to_owned(),
        |mac| format!("macaddress: \"{mac}\""),
    );
    format!(
        "version: 2
ethernets:
  eth0:
    match:
      {matched}
    dhcp4: true
    dhcp6: true
    dhcp-identifier: mac
    ipv6-privacy: false
"
    )
}

/// The MAC in lower case with colons, as the kernel writes it; multicast addresses belong to no
/// card.
pub(crate) fn canonical_mac(text: &str) -> Result<String, Finding> {
    let parts: Vec<_> = text
        .split(':')
        .map(|part| (part.len() == 2).then(|| u8::from_str_radix(part, 16)))
        .collect();
    let sound = parts.len() == 6
        && parts.iter().all(|part| matches!(part, Some(Ok(_))))
        && !text.contains('+')
        && matches!(parts[0], Some(Ok(first)) if first & 1 == 0);
    if sound {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(Finding::new(
            "mac",
            text,
            "is no address of a network card",
            "write six pairs of hex digits, as `52:54:00:12:34:56`",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b110_a_known_card_is_matched_by_its_mac_and_an_unknown_one_by_its_kind() {
        assert!(render(Some("52:54:00:12:34:56")).contains("macaddress: \"52:54:00:12:34:56\"\n"));
        assert!(render(None).contains("      name: \"e*\"\n"));
        for text in [render(None), render(Some("52:54:00:12:34:56"))] {
            assert!(text.contains("    dhcp-identifier: mac\n"));
            assert!(text.contains("    ipv6-privacy: false\n"));
        }
    }

    #[test]
    fn a_mac_is_written_as_the_kernel_writes_it_or_refused() {
        assert_eq!(
            canonical_mac("BC:24:11:EE:48:83").as_deref(),
            Ok("bc:24:11:ee:48:83")
        );
        for bad in [
            "",
            "BC:24:11:EE:48",
            "BC:24:11:EE:48:83:00",
            "BC-24-11-EE-48-83",
            "BC:24:11:EE:48:8g",
            "BC:24:11:EE:48:+3",
            "01:24:11:EE:48:83",
            "bc:24:11:ee:48:83\"",
        ] {
            assert!(canonical_mac(bad).is_err(), "{bad}");
        }
    }
}
