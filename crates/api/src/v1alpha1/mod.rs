//! The group `egress-proxies.io`, version `v1alpha1`.

mod accept;
#[cfg(feature = "kube")]
pub mod cluster;
mod duration;
mod metadata;
mod proxy;
mod status;
mod validate;

pub use accept::{AcceptedProxy, config_hash};
pub use duration::{DurationText, InvalidDuration, parse_duration};
pub use metadata::{ABANDON_ANNOTATION, Metadata};
pub use proxy::{
    ApiVersion, AuthSpec, DestinationsSpec, Egress, MachineSpec, ProbeSpec, Protocol, Proxy,
    ProxyKind, ProxySpec, ServerSpec, UserDataSource,
};
pub use status::{Condition, MachineStatus, Phase, ProxyStatus};
pub use validate::ProviderAbilities;

pub(crate) use metadata::without_server_fields;
pub(crate) use validate::is_data_key;

/// The API group.
pub const GROUP: &str = "egress-proxies.io";

/// What stands in a manifest's `apiVersion`.
pub const API_VERSION: &str = "egress-proxies.io/v1alpha1";

/// The version within the group.
pub const VERSION: &str = "v1alpha1";

/// The kind of a [`Proxy`].
pub const PROXY_KIND: &str = "Proxy";

/// The kind of what a configured provider last said of itself.
pub const PROXY_PROVIDER_KIND: &str = "ProxyProvider";
