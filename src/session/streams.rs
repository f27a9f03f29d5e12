//! What a session needs of a transport, declared here and implemented above.
//!
//! QUIC implements it in the shard, tests fake it, and a stream transport without datagrams can.
//! Codes are plain MoQ codes; an implementation maps them to its transport's. Invariant: nothing
//! here waits; a refusal is a short count, and the transport says later that it is writable again.

use bytes::Bytes;

/// A stream's number, shaped as in QUIC: bit 0 set when the server opened it, bit 1 when it is
/// unidirectional (RFC 9000 2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(pub u64);

impl StreamId {
    /// Unidirectional.
    pub fn is_uni(self) -> bool {
        self.0 & 2 != 0
    }
}

/// Kind of stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dir {
    /// Both sides write.
    Bi,
    /// Only the opener writes.
    Uni,
}

/// Why reading stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadEnd {
    /// Everything that arrived was fed; more may come.
    Blocked,
    /// The sink wanted no more.
    Paused,
    /// The stream is complete.
    Fin,
    /// The peer broke it off.
    Reset(u64),
}

/// Priority of control streams: before all media.
pub const CONTROL_PRIORITY: i32 = i32::MAX;

/// One peer's streams.
pub trait Streams {
    /// Opens a stream; `None` while the peer grants no more.
    fn open(&mut self, dir: Dir) -> Option<StreamId>;
    /// The next stream the peer opened.
    fn accept(&mut self, dir: Dir) -> Option<StreamId>;
    /// Feeds what arrived to `sink` until it answers false, in order.
    fn read(&mut self, id: StreamId, sink: &mut dyn FnMut(&[u8]) -> bool) -> ReadEnd;
    /// Writes media within the write budget; returns the bytes taken from the front of `chunks`.
    fn write(&mut self, id: StreamId, chunks: &mut [Bytes]) -> usize;
    /// Writes a control message within the budget and its reserve; returns the bytes taken.
    fn write_control(&mut self, id: StreamId, bytes: &[u8]) -> usize;
    /// Ends our half.
    fn finish(&mut self, id: StreamId);
    /// Breaks our half off.
    fn reset(&mut self, id: StreamId, code: u64);
    /// Asks the peer to stop its half.
    fn stop(&mut self, id: StreamId, code: u64);
    /// Sets when our half is sent among others; larger first.
    fn prioritize(&mut self, id: StreamId, priority: i32);
    /// What a new stream must begin with, before everything else.
    fn prefix(&self, dir: Dir) -> &[u8];
    /// Largest datagram, 0 where there are none.
    fn datagram_max(&self) -> usize;
    /// The peer publishes: open its receive window wide.
    fn expect_media(&mut self);
    /// The peer has `open` streams of a kind open: let it have more before it runs out.
    fn accommodate(&mut self, dir: Dir, open: usize);
}
