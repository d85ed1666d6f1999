//! What libvirt's descriptions say, as far as it matters here. What does not read is an error,
//! never a guess.

use super::domain_xml::NAMESPACE;
use roxmltree::{Document, Node};
use uuid::Uuid;

/// A description that does not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("libvirt's description of {what} does not read: {why}")]
pub(crate) struct Unreadable {
    what: &'static str,
    why: String,
}

/// A drive of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Drive {
    /// `disk`, `cdrom`, ...
    pub(crate) device: String,
    /// The file or device of the host in it.
    pub(crate) source: Option<String>,
    pub(crate) target: String,
    pub(crate) bus: String,
}

/// A domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DomainView {
    pub(crate) name: String,
    pub(crate) uuid: Uuid,
    /// The text of our element, which holds the mark.
    pub(crate) mark: Option<String>,
    pub(crate) title: Option<String>,
    pub(crate) drives: Vec<Drive>,
    /// The MACs of its cards.
    pub(crate) macs: Vec<String>,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumeView {
    /// In bytes.
    pub(super) capacity: u64,
    /// Where it is on the host.
    pub(super) path: String,
    pub(super) format: Option<String>,
    /// The volume it stands on.
    pub(super) backing: Option<String>,
}

fn parse<'a>(what: &'static str, root: &str, text: &'a str) -> Result<Document<'a>, Unreadable> {
    let unreadable = |why: String| Unreadable { what, why };
    let document = Document::parse(text).map_err(|e| unreadable(e.to_string()))?;
    let found = document.root_element().tag_name().name().to_owned();
    if found == root {
        Ok(document)
    } else {
        Err(unreadable(format!("it is a {found}, not a {root}")))
    }
}

fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|c| c.has_tag_name(name))
}

fn text(node: Node<'_, '_>, name: &str) -> Option<String> {
    let text = child(node, name)?.text()?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn attribute(node: Node<'_, '_>, name: &str, attribute: &str) -> Option<String> {
    child(node, name)?.attribute(attribute).map(str::to_owned)
}

impl DomainView {
    pub(crate) fn read(xml: &str) -> Result<Self, Unreadable> {
        const WHAT: &str = "a domain";
        let document = parse(WHAT, "domain", xml)?;
        let root = document.root_element();
        let missing = |field: &str| Unreadable {
            what: WHAT,
            why: format!("no {field}"),
        };
        let uuid = text(root, "uuid").and_then(|text| text.parse().ok());
        let mark = child(root, "metadata").and_then(|metadata| {
            metadata
                .children()
                .find(|c| c.is_element() && c.tag_name().namespace() == Some(NAMESPACE))
        });
        let devices = child(root, "devices");
        let device = |name: &'static str| {
            devices
                .into_iter()
                .flat_map(|devices| devices.children())
                .filter(move |c| c.has_tag_name(name))
        };
        let drives = device("disk").map(|disk| Drive {
            device: disk.attribute("device").unwrap_or("disk").to_owned(),
            source: child(disk, "source")
                .and_then(|source| source.attribute("file").or_else(|| source.attribute("dev")))
                .map(str::to_owned),
            target: attribute(disk, "target", "dev").unwrap_or_default(),
            bus: attribute(disk, "target", "bus").unwrap_or_default(),
        });
        Ok(Self {
            name: text(root, "name").ok_or_else(|| missing("name"))?,
            uuid: uuid.ok_or_else(|| missing("UUID"))?,
            mark: mark.and_then(|mark| mark.text().map(str::to_owned)),
            title: text(root, "title"),
            drives: drives.collect(),
            macs: device("interface")
                .filter_map(|card| attribute(card, "mac", "address"))
                .collect(),
        })
    }
}

/// The text of our element, as libvirt gives the element alone.
pub(super) fn mark_text(element: &str) -> Result<Option<String>, Unreadable> {
    let document = Document::parse(element).map_err(|e| Unreadable {
        what: "a domain's metadata",
        why: e.to_string(),
    })?;
    Ok(document.root_element().text().map(str::to_owned))
}

impl VolumeView {
    pub(super) fn read(xml: &str) -> Result<Self, Unreadable> {
        const WHAT: &str = "a volume";
        let document = parse(WHAT, "volume", xml)?;
        let root = document.root_element();
        let missing = |field: &str| Unreadable {
            what: WHAT,
            why: format!("no {field}"),
        };
        // libvirt always tells it in bytes.
        let capacity = text(root, "capacity").and_then(|text| text.parse().ok());
        let target = child(root, "target").ok_or_else(|| missing("target"))?;
        Ok(Self {
            capacity: capacity.ok_or_else(|| missing("capacity in bytes"))?,
            path: text(target, "path").ok_or_else(|| missing("path"))?,
            format: attribute(target, "format", "type"),
            backing: child(root, "backingStore").and_then(|store| text(store, "path")),
        })
    }
}

/// The host's UUID, from its capabilities.
pub(crate) fn host_uuid(xml: &str) -> Result<Uuid, Unreadable> {
    const WHAT: &str = "the host";
    let document = parse(WHAT, "capabilities", xml)?;
    let host = child(document.root_element(), "host");
    let uuid = host.and_then(|host| text(host, "uuid"));
    uuid.and_then(|text| text.parse().ok())
        .ok_or_else(|| Unreadable {
            what: WHAT,
            why: "no UUID".to_owned(),
        })
}

/// The type of a storage pool.
pub(super) fn pool_type(xml: &str) -> Result<String, Unreadable> {
    let document = parse("a pool", "pool", xml)?;
    let kind = document.root_element().attribute("type");
    Ok(kind.unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests;
