//! What travels in mailboxes. A message is at most a cache line: what is larger goes in a box,
//! and only on paths that are rare.

use crate::metrics;
use crate::name::{Facts, Grant};

/// Largest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 64;

/// From control to a shard.
#[derive(Debug)]
pub enum ToShard {
    /// A session may go on.
    Granted {
        /// The session, as the shard named it in its facts.
        session: u64,
        /// What it may do.
        grant: Box<Grant>,
    },
    /// A session must end.
    Refused {
        /// The session, as the shard named it in its facts.
        session: u64,
        /// The code to close it with.
        code: u64,
    },
    /// The shard's numbers are wanted.
    Snapshot {
        /// Comes back with them.
        ticket: u64,
    },
    /// Does the shard still turn?
    Ping,
    /// Close every session with 0x0 "shutting down", then end.
    Close,
}

/// From a shard to control.
#[derive(Debug)]
pub enum ToControl {
    /// May this session go on?
    Ask(Box<Facts>),
    /// The shard's numbers.
    Snapshot {
        /// As asked.
        ticket: u64,
        /// The numbers.
        snapshot: Box<metrics::Snapshot>,
    },
    /// It does.
    Pong,
    /// The shard has closed everything; its last message.
    Ended,
}

const _: () = assert!(size_of::<ToShard>() <= MESSAGE_BYTES_MAX);
const _: () = assert!(size_of::<ToControl>() <= MESSAGE_BYTES_MAX);
