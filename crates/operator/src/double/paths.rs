//! What a request asks for, by its method and path.

use http::{Method, Uri};

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one.
    Get,
    /// Read all.
    List,
    /// Follow all.
    Watch,
    /// Make one.
    Create,
    /// Replace one.
    Replace,
    /// Change one.
    Patch,
    /// Delete one.
    Delete,
}

impl Verb {
    /// Whether it changes something.
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::Create | Self::Replace | Self::Patch | Self::Delete
        )
    }
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// What is to be done.
    pub verb: Verb,
    /// Group and version, `v1` or `egress-proxies.io/v1alpha1`.
    pub group: String,
    /// The resource, `proxies`.
    pub resource: String,
    /// The namespace, where one is named.
    pub namespace: Option<String>,
    /// The object, where one is named.
    pub name: Option<String>,
    /// The subresource, `status`.
    pub subresource: Option<String>,
    /// Where a watch begins.
    pub version: Option<u64>,
}

impl Target {
    /// A request for Proxies.
    pub fn proxies(verb: Verb, namespace: &str, name: Option<&str>) -> Self {
        Self {
            verb,
            group: "egress-proxies.io/v1alpha1".into(),
            resource: "proxies".into(),
            namespace: Some(namespace.into()),
            name: name.map(Into::into),
            subresource: None,
            version: None,
        }
    }

    /// Whether it writes a Proxy itself: its record, not its status.
    pub fn is_record_write(&self) -> bool {
        self.verb == Verb::Patch && self.resource == "proxies" && self.subresource.is_none()
    }

    pub(super) fn of(method: &Method, uri: &Uri) -> Option<Self> {
        let mut parts = uri.path().trim_matches('/').split('/');
        let group = match parts.next()? {
            "api" => parts.next()?.to_owned(),
            "apis" => format!("{}/{}", parts.next()?, parts.next()?),
            _ => return None,
        };
        let mut resource = parts.next()?;
        let mut namespace = None;
        let mut name = parts.next();
        let mut subresource = parts.next();
        if resource == "namespaces"
            && let (Some(of), Some(inner)) = (name, subresource)
        {
            namespace = Some(of.to_owned());
            resource = inner;
            name = parts.next();
            subresource = parts.next();
        }
        let query = |key: &str| {
            let pairs = uri.query().unwrap_or_default().split('&');
            pairs
                .filter_map(|pair| pair.split_once('='))
                .find(|(name, _)| *name == key)
                .map(|(_, value)| value)
        };
        let watches = matches!(query("watch"), Some("true" | "1"));
        let verb = match (method.as_str(), name) {
            ("GET", _) if watches => Verb::Watch,
            ("GET", Some(_)) => Verb::Get,
            ("GET", None) => Verb::List,
            ("POST", _) => Verb::Create,
            ("PUT", _) => Verb::Replace,
            ("PATCH", _) => Verb::Patch,
            ("DELETE", _) => Verb::Delete,
            _ => return None,
        };
        Some(Self {
            verb,
            group,
            resource: resource.to_owned(),
            namespace,
            name: name.map(ToOwned::to_owned),
            subresource: subresource.map(ToOwned::to_owned),
            version: query("resourceVersion").and_then(|text| text.parse().ok()),
        })
    }
}
