//! The test bench that the integration tests share.

use egress_provider::{
    conformance::Harness,
    memory::{Bench, Physics, Settings},
};
use std::sync::Arc;

/// A new hypervisor with these times.
pub fn bench(physics: Physics) -> Arc<dyn Harness> {
    Arc::new(Bench::new(physics, Settings::default()))
}
