//! Tests over real sockets of this host. What the host lacks is skipped with a message.

#![expect(clippy::disallowed_methods, reason = "these tests meet the world")]

mod client;
mod interop;
mod killed;
mod net;
mod process;
mod relay;
