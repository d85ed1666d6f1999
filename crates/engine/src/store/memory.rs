//! Records in memory.
