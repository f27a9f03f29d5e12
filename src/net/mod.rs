//! Datagrams in and out of one shard.
//!
//! *Owns* the shard's UDP sockets, their buffers and control messages; turns kernel calls into
//! batches of datagrams and queued datagrams into kernel calls. *Used by* shard only. *Never*
//! knows QUIC or MoQ, never allocates once built ([`sim`] excepted), never blocks, never reads
//! the clock.
//!
//! Invariant: a transmit slot is in exactly one place: free, being filled by whoever took it, or
//! queued here until the kernel has copied it or it is dropped and counted.

use std::net::{IpAddr, SocketAddr};

mod addr;
mod bind;
pub mod cmsg;
pub mod mmsg;
mod pool;
mod queue;
pub mod sim;
pub mod sys;

/// Capacity of a transmit slot: the largest multiple of 256 that, with its headers, is still a
/// datagram (65,507 bytes over IPv4).
pub const SLOT_BYTES: usize = 65_280;

/// Most segments one train may have; older kernels refuse more.
pub const SEGMENTS_MAX: usize = 64;

/// One received message: a datagram, or a train of equal datagrams the kernel joined (GRO).
#[derive(Clone, Copy, Debug)]
pub struct Rx<'a> {
    /// Index of the socket it came in by.
    pub socket: u16,
    /// The sender; never an IPv4 address mapped to IPv6.
    pub from: SocketAddr,
    /// The address of ours it was sent to, where the kernel says so.
    pub local_ip: Option<IpAddr>,
    /// The two ECN bits of the IP header.
    pub ecn: u8,
    /// Bytes of each datagram of the train but the last, at least 1; `>= data.len()` means that
    /// there is one datagram.
    pub stride: usize,
    /// The bytes, borrowed from the receive buffer.
    pub data: &'a [u8],
}

impl<'a> Rx<'a> {
    /// The datagrams of the train, in order. An empty datagram yields nothing.
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.data.chunks(self.stride.max(1))
    }
}

/// Handle of a transmit buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u32);

/// Where and how the bytes of a slot go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    /// Index of the socket to send from.
    pub socket: u16,
    /// The receiver.
    pub to: SocketAddr,
    /// The address of ours to send from; `None` lets the kernel choose.
    pub src: Option<IpAddr>,
    /// The two ECN bits of the IP header.
    pub ecn: u8,
    /// Bytes of each datagram of a train but the last (GSO); `None` for a single datagram.
    pub segment: Option<usize>,
    /// Bytes of the slot's buffer to send, at least 1.
    pub len: usize,
}

/// What a socket can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Most datagrams in one train; 1 when the kernel does not split trains.
    pub gso_segments: usize,
    /// The kernel joins datagrams of one sender.
    pub gro: bool,
    /// ECN bits are read and written.
    pub ecn: bool,
    /// The local address is read and written.
    pub pktinfo: bool,
}

/// What happened so far; each field only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages handed over; a train counts as one.
    pub rx_messages: u64,
    /// Datagrams handed over.
    pub rx_datagrams: u64,
    /// Bytes handed over.
    pub rx_bytes: u64,
    /// Receive calls that returned something.
    pub rx_batches: u64,
    /// Receive calls that failed for another reason than an empty socket.
    pub rx_errors: u64,
    /// Messages dropped because they or their control messages were cut short or unreadable.
    pub rx_truncated: u64,
    /// Messages the kernel took; a train counts as one.
    pub tx_sends: u64,
    /// Datagrams the kernel took.
    pub tx_datagrams: u64,
    /// Bytes the kernel took.
    pub tx_bytes: u64,
    /// Send calls that took something.
    pub tx_batches: u64,
    /// Times a socket's queue had to wait for the kernel.
    pub tx_blocked: u64,
    /// Times no slot was free.
    pub tx_slots_exhausted: u64,
    /// Sockets that turned out not to split trains.
    pub tx_gso_refused: u64,
    /// Datagrams dropped as larger than the path allows (MTU probes).
    pub tx_too_big: u64,
    /// Sends dropped because the receiver cannot be reached or a firewall forbids it.
    pub tx_unreachable: u64,
    /// Sends dropped for any other reason.
    pub tx_errors: u64,
}

/// Datagrams in and out, without waiting. Implemented over the kernel and over a virtual world.
pub trait Net {
    /// Hands over at most `budget` received messages (a train counts as one); true when more may
    /// be waiting.
    fn rx(&mut self, budget: usize, sink: &mut dyn FnMut(Rx<'_>)) -> bool;
    /// A free transmit slot, `None` when all are in flight. Its buffer is empty and has capacity
    /// [`SLOT_BYTES`]. It must be given to [`Net::send`] or [`Net::put_back`].
    fn take(&mut self) -> Option<Slot>;
    /// The buffer of a slot that was taken. It must not grow beyond its capacity.
    fn buf(&mut self, slot: Slot) -> &mut Vec<u8>;
    /// Returns a taken slot unsent.
    fn put_back(&mut self, slot: Slot);
    /// Queues a taken slot; it leaves at the next [`Net::flush`]. Order is kept per socket.
    fn send(&mut self, slot: Slot, send: Send);
    /// Submits what was sent; true when everything left, false when the kernel refused some
    /// (they stay queued and are retried).
    fn flush(&mut self) -> bool;
    /// What the socket can do now; the kernel's refusals narrow it.
    fn caps(&self, socket: u16) -> Caps;
    /// The address the socket is bound to.
    fn local_addr(&self, socket: u16) -> SocketAddr;
    /// Number of sockets; their indices count from 0.
    fn sockets(&self) -> usize;
    /// What happened so far.
    fn counters(&self) -> Counters;
}

/// A `usize` as a counter's increment.
fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
