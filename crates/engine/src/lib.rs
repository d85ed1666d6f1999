//! The loops around the decisions of `egress-core`: look, decide, act, for one Proxy
//! ([`pass`]) and for all ([`run`]); and where records are kept ([`store`]).

pub mod store;
