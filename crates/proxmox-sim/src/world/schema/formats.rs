//! Named formats, patterns and property strings (`a,b=1,c=2`).

use super::Property;
use std::collections::BTreeMap;

fn property(kind: &str, format: Option<&str>, pattern: Option<&str>) -> Property {
    Property {
        kind: kind.to_owned(),
        optional: 1,
        format: format.map(str::to_owned),
        pattern: pattern.map(str::to_owned),
        ..Property::default()
    }
}

/// The keys of `boot`.
pub(super) fn boot() -> BTreeMap<String, Property> {
    let mut legacy = property("string", None, Some("[acdn]{1,4}"));
    legacy.default_key = 1;
    [
        ("legacy".to_owned(), legacy),
        (
            "order".to_owned(),
            property("string", Some("pve-qm-bootdev-list"), None),
        ),
    ]
    .into()
}

/// The keys of `smbios1`.
pub(super) fn smbios() -> BTreeMap<String, Property> {
    let mut keys: BTreeMap<String, Property> = [
        "version",
        "serial",
        "manufacturer",
        "product",
        "sku",
        "family",
    ]
    .map(|name| (name.to_owned(), property("string", None, None)))
    .into();
    keys.insert("uuid".to_owned(), property("string", None, Some("uuid")));
    keys.insert("base64".to_owned(), property("boolean", None, None));
    keys
}

/// Takes a property string apart. Errors end in a newline.
pub(super) fn parse_property_string(
    properties: &BTreeMap<String, Property>,
    text: &str,
) -> Result<BTreeMap<String, String>, String> {
    let mut values = BTreeMap::new();
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let (key, value) = match part.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() => (key, value),
            None => {
                let key = properties
                    .iter()
                    .find(|(_, property)| property.default_key == 1)
                    .map(|(name, _)| name.as_str())
                    .ok_or("value without key, but schema does not define a default key\n")?;
                if values.insert(key.to_owned(), part.to_owned()).is_some() {
                    return Err(format!(
                        "duplicate key in comma-separated list property: {key}\n"
                    ));
                }
                continue;
            }
            Some(_) => return Err("missing key in comma-separated list property\n".to_owned()),
        };
        let mut name = key;
        let mut wanted = properties.get(key);
        if let Some(alias) = wanted.and_then(|property| property.alias.as_deref()) {
            if let Some(holder) = wanted.and_then(|property| property.key_alias.as_deref())
                && values.insert(holder.to_owned(), key.to_owned()).is_some()
            {
                return Err(format!("key alias '{holder}' is already defined\n"));
            }
            name = alias;
            wanted = properties.get(alias);
        }
        let Some(wanted) = wanted else {
            return Err(format!(
                "invalid key in comma-separated list property: {name}\n"
            ));
        };
        let value = match (wanted.kind.as_str(), value) {
            ("boolean", "yes" | "on" | "true") => "1",
            ("boolean", "no" | "off" | "false") => "0",
            (_, value) => value,
        };
        if values.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(format!(
                "duplicate key in comma-separated list property: {name}\n"
            ));
        }
    }
    Ok(values)
}

/// A property string as pairs in their order; a part without `=` has an empty key.
pub(crate) fn property_list(text: &str) -> Vec<(&str, &str)> {
    text.split(',')
        .filter(|part| !part.trim().is_empty())
        .map(|part| part.split_once('=').unwrap_or(("", part)))
        .collect()
}

/// A list with any of the separators there are.
pub(crate) fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ';', ' ', '\t', '\n', '\r', '\0'])
        .filter(|item| !item.is_empty())
}

/// Tags as they are stored: folded, without repeats, in the order given, joined by `;`.
pub(crate) fn normalised_tags(text: &str, case_sensitive: bool) -> String {
    let mut tags: Vec<String> = Vec::new();
    for tag in split_list(text) {
        let tag = if case_sensitive {
            tag.to_owned()
        } else {
            tag.to_lowercase()
        };
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    tags.join(";")
}

/// Checks a named format. Errors end in a newline; formats that no client of this simulator
/// gets wrong are taken as they are.
pub(super) fn check(format: &str, text: &str) -> Result<(), String> {
    if let Some(single) = format.strip_suffix("-list")
        && format != "storage-pair-list"
    {
        return split_list(text).try_for_each(|item| check(single, item));
    }
    let refuse = |yes: bool, text: String| if yes { Ok(()) } else { Err(text) };
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match format {
        "pve-vmid" => refuse(
            text.len() >= 3
                && text.len() <= 9
                && !text.starts_with('0')
                && text.bytes().all(|byte| byte.is_ascii_digit()),
            "value does not look like a valid VM ID\n".to_owned(),
        ),
        "dns-name" => refuse(
            is_dns_name(text),
            "value does not look like a valid DNS name\n".to_owned(),
        ),
        "pve-node" => refuse(
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
                && !text.ends_with('-'),
            "value does not look like a valid node name\n".to_owned(),
        ),
        "pve-storage-id" => refuse(
            text.len() >= 2
                && text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text.ends_with(|c: char| c.is_ascii_alphanumeric())
                && text.chars().all(word),
            format!("storage ID '{text}' contains illegal characters\n"),
        ),
        "pve-poolid" => refuse(
            !text.is_empty()
                && text.split('/').count() <= 3
                && text.split('/').all(|part| {
                    part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                        && part.chars().all(word)
                }),
            format!("value '{text}' does not look like a valid pool name\n"),
        ),
        "pve-configid" => refuse(
            text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(word),
            format!("invalid configuration ID '{text}'\n"),
        ),
        "pve-bridge-id" => refuse(
            !text.is_empty() && text.chars().all(word),
            format!("invalid bridge ID '{text}'\n"),
        ),
        "mac-addr" => refuse(
            is_unicast_mac(text),
            "value does not look like a valid unicast MAC address\n".to_owned(),
        ),
        "pve-tag" => refuse(is_tag(text), "invalid characters in tag\n".to_owned()),
        "pve-qm-bootdev" => refuse(
            is_boot_device(text),
            format!("invalid boot device '{text}'\n"),
        ),
        "pve-vm-cpu-conf" => check_cpu(text),
        "pve-volume-id" => refuse(
            text.split_once(':').is_some_and(|(storage, name)| {
                check("pve-storage-id", storage).is_ok() && !name.is_empty()
            }),
            format!("unable to parse volume ID '{text}'\n"),
        ),
        "pve-volume-id-or-qm-path" => {
            if matches!(text, "none" | "cdrom") || text.starts_with('/') {
                Ok(())
            } else {
                check("pve-volume-id", text)
            }
        }
        _ => Ok(()),
    }
}

fn is_dns_name(text: &str) -> bool {
    !text.is_empty()
        && text.split('.').all(|label| {
            !label.is_empty()
                && label.starts_with(|c: char| c.is_ascii_alphanumeric())
                && label.ends_with(|c: char| c.is_ascii_alphanumeric())
                && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        })
}

fn is_unicast_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    parts.len() == 6
        && parts
            .iter()
            .all(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
        && u8::from_str_radix(parts[0], 16).is_ok_and(|first| first & 1 == 0)
}

fn is_tag(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '.'))
}

fn is_boot_device(text: &str) -> bool {
    let stem = text.trim_end_matches(|c: char| c.is_ascii_digit());
    stem.len() < text.len()
        && matches!(
            stem,
            "ide" | "sata" | "scsi" | "virtio" | "net" | "usb" | "hostpci"
        )
}

fn check_cpu(text: &str) -> Result<(), String> {
    const FIRST_LETTERS: [&str; 19] = [
        "host",
        "kvm",
        "qemu",
        "max",
        "x86-64-",
        "486",
        "athlon",
        "pentium",
        "core",
        "Conroe",
        "Penryn",
        "Nehalem",
        "Westmere",
        "SandyBridge",
        "IvyBridge",
        "Haswell",
        "Broadwell",
        "Skylake",
        "EPYC",
    ];
    const MORE: [&str; 8] = [
        "Opteron",
        "phenom",
        "Cascadelake",
        "Cooperlake",
        "Icelake",
        "Sapphire",
        "Knights",
        "GraniteRapids",
    ];
    let kind = property_list(text)
        .into_iter()
        .find(|(key, _)| matches!(*key, "" | "cputype"))
        .map_or("kvm64", |(_, value)| value);
    let known = kind.starts_with("custom-")
        || FIRST_LETTERS
            .iter()
            .chain(&MORE)
            .any(|start| kind.starts_with(start));
    if known {
        Ok(())
    } else {
        Err(format!(
            "Built-in cputype '{kind}' is not defined (missing 'custom-' prefix?)\n"
        ))
    }
}

/// Whether a text fits one of the schema's patterns. Each is written out here; one that is
/// not is taken as fitting.
pub(super) fn fits(pattern: &str, text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let uuid = |text: &str| {
        let parts: Vec<&str> = text.split('-').collect();
        parts.len() == 5
            && parts
                .iter()
                .zip([8, 4, 4, 4, 12])
                .all(|(part, length)| hex(part, length))
    };
    match pattern {
        r"\+?\d+(\.\d+)?[KMGT]?" => {
            let rest = text.strip_prefix('+').unwrap_or(text);
            let rest = rest.strip_suffix(['K', 'M', 'G', 'T']).unwrap_or(rest);
            match rest.split_once('.') {
                Some((whole, part)) => digits(whole) && digits(part),
                None => digits(rest),
            }
        }
        "(/dev/[^,]+|socket)" | "(/dev/.+|socket)" => text == "socket" || text.starts_with("/dev/"),
        "uuid" => uuid(text),
        r"(ide|sata|scsi|virtio)\d+" => is_boot_device(text) && !text.starts_with("net"),
        "[acdn]{1,4}" => {
            (1..=4).contains(&text.len())
                && text.chars().all(|c| matches!(c, 'a' | 'c' | 'd' | 'n'))
        }
        _ if pattern.starts_with("(?:[a-fA-F0-9]{8}") => matches!(text, "0" | "1") || uuid(text),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_separates_tags_and_they_are_folded_in_their_order() {
        assert_eq!(normalised_tags("Karpenter,B;a a", false), "karpenter;b;a");
        assert_eq!(normalised_tags(" b , A ", true), "b;A");
    }

    #[test]
    fn sizes_have_one_letter_at_most() {
        let pattern = r"\+?\d+(\.\d+)?[KMGT]?";
        for (text, fit) in [
            ("2G", true),
            ("+512M", true),
            ("1.5T", true),
            ("2GiB", false),
            ("-1G", false),
        ] {
            assert_eq!(fits(pattern, text), fit, "{text}");
        }
    }
}
