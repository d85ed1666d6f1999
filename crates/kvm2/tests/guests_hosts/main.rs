//! Hosts elsewhere, by TLS and by ssh, and several of them at once: each a real libvirtd.

#[allow(dead_code, reason = "each test program uses a part of it")]
#[path = "../support/mod.rs"]
mod support;

mod several;
mod ssh;
mod tls;
