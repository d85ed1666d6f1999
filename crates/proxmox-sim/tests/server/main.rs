//! The simulator as a server, seen from outside.

mod client;
mod guests;
mod habits;
