//! The suite for stores.
