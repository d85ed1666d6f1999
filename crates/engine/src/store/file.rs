//! Records in files.
