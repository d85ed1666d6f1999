//! The client against recorded answers, the official schema, a scripted wire and real TLS.

mod answers;
mod errors;
mod exchange;
mod https;
mod record;
mod schema;
mod scripted;
mod values;
