//! One connection: quinn-proto's state and what the shard keeps beside it.
//!
//! The write budget is observed, never read: quinn-proto shows no limits, only refusals, so egress
//! offers what it has and stops at the first short write. Invariant: media never takes the last
//! `CONTROL_RESERVE` bytes of the budget.

use std::time::Instant;

use quinn_proto::{Connection as Inner, Dir, VarInt};

/// Part of the write budget that only control writes may use, bytes.
pub const CONTROL_RESERVE: u64 = 32 << 10;
/// Smallest write budget, bytes.
const BUDGET_MIN: u64 = 128 << 10;
/// Data kept behind the congestion window, bytes.
const BUDGET_AHEAD: u64 = 64 << 10;

/// How much a peer may have open and in flight.
#[derive(Clone, Copy, Debug)]
pub struct Grants {
    /// Streams of each kind, at most.
    pub streams_max: u32,
    /// Receive window of a peer that publishes, bytes.
    pub receive_window: u32,
    /// Largest write budget, bytes.
    pub send_window: u64,
}

/// One connection.
pub struct Connection {
    /// quinn-proto's connection.
    pub inner: Inner,
    /// Index of the socket it came on.
    pub socket: u16,
    /// What the shard knows it by; 0 until it has a session.
    pub session: u64,
    /// Ingress time of the oldest boundary written since its last train, microseconds.
    pub oldest_us: Option<u64>,
    /// Until when its data may wait for more.
    pub hold_until: Option<Instant>,
    /// When it last sent.
    pub sent_at: Option<Instant>,
    pub(super) queued: bool,
    pub(super) armed: Option<Instant>,
    pub(super) handshaking: bool,
    pub(super) lost: bool,
    grants: Grants,
    streams: [u32; 2],
    wide: bool,
    budget: u64,
}

impl Connection {
    pub(super) fn new(inner: Inner, socket: u16, streams: u32, grants: Grants) -> Self {
        Self {
            inner,
            socket,
            session: 0,
            oldest_us: None,
            hold_until: None,
            sent_at: None,
            queued: false,
            armed: None,
            handshaking: true,
            lost: false,
            grants,
            streams: [streams; 2],
            wide: false,
            budget: 0,
        }
    }

    /// Refreshes the write budget from the congestion window.
    #[inline]
    pub fn refresh_budget(&mut self) {
        let window = self.inner.congestion_state().window();
        let most = self.grants.send_window.max(BUDGET_MIN);
        let budget = (window + BUDGET_AHEAD).clamp(BUDGET_MIN, most);
        if budget != self.budget {
            self.budget = budget;
            self.inner.set_send_window(budget - CONTROL_RESERVE);
        }
    }

    /// The write budget, control reserve included.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Opens the control reserve for the duration of `write`.
    pub fn with_reserve<T>(&mut self, write: impl FnOnce(&mut Inner) -> T) -> T {
        self.refresh_budget();
        self.inner.set_send_window(self.budget);
        let out = write(&mut self.inner);
        self.inner.set_send_window(self.budget - CONTROL_RESERVE);
        out
    }

    /// Opens the receive window for a peer that publishes, once.
    pub fn widen(&mut self) {
        if !std::mem::replace(&mut self.wide, true) {
            self.inner.set_receive_window(VarInt::from_u32(self.grants.receive_window));
        }
    }

    /// Lets the peer have more streams of a kind before `open` reach what it was granted.
    pub fn accommodate(&mut self, dir: Dir, open: usize) {
        let granted = &mut self.streams[dir as usize];
        if open * 2 > *granted as usize && *granted < self.grants.streams_max {
            *granted = granted.saturating_mul(2).min(self.grants.streams_max);
            self.inner.set_max_concurrent_streams(dir, VarInt::from_u32(*granted));
        }
    }

    /// The ALPN that was agreed on.
    pub fn alpn(&self) -> Option<Vec<u8>> {
        let data = self.inner.crypto_session().handshake_data()?;
        data.downcast::<quinn_proto::crypto::rustls::HandshakeData>().ok()?.protocol
    }
}
