//! QUIC for one shard: quinn-proto's endpoint, its connections and their timers.
//!
//! Sans-IO: datagrams and the time come in, trains go into the caller's buffer. Knows no sessions
//! and no sockets beyond their index; ALPNs come as bytes. Invariant: a connection is in the list
//! of touched ones at most once, and has at most one timer entry that is not stale.

pub mod connection;
pub mod endpoint;

pub mod tls;
