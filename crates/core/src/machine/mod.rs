//! The words of the provider contract: what is promised, remembered and recognised.

mod claim;
mod class;
mod key;
mod mark;
mod name;
mod observed;
mod record;
mod wanted;

pub use claim::{Claim, Handle, Retirement, SeedVolume, Standing};
pub use class::ErrorClass;
pub use key::{MachineKey, MachineUid};
pub use mark::{Identity, MARK_PREFIX, Mark, Sighting, Whose, whose};
pub use name::{ClusterId, Host, Installation, InvalidName, ProviderName, ProxyId, Slot, WriterId};
pub use observed::{Addresses, MachineState, ObservedMachine, StopReason};
pub use record::{Proven, Record, Spent, SpentWhy};
pub use wanted::{CloudConfig, ConfigHash, MachineSize, WantedMachine};
