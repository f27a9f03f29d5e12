//! The net over a virtual world: datagrams are handed in and taken out by the test that owns it.
//!
//! Owns two bounded queues, what has arrived and what was sent, and the same slot pool the real
//! net has. It makes no decision and reads no clock; the world adds delay, loss and order.
//! Receiving trains is not simulated: every arrival is one datagram.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::pool::Pool;
use super::{Caps, Counters, Net, Rx, SEGMENTS_MAX, SLOT_BYTES, Send, Slot, addr, count};

/// Most datagrams that wait to be received, over all sockets; more are lost, as in the kernel.
pub const ARRIVALS_MAX: usize = 65_536;

/// One message that left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Index of the socket it left by.
    pub socket: u16,
    /// The receiver.
    pub to: SocketAddr,
    /// The address it was to be sent from.
    pub src: Option<std::net::IpAddr>,
    /// The two ECN bits.
    pub ecn: u8,
    /// Bytes of each datagram but the last, for a train.
    pub segment: Option<usize>,
    /// The bytes.
    pub data: Vec<u8>,
}

impl Sent {
    /// The datagrams of the message, in order.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        self.data.chunks(self.segment.unwrap_or(self.data.len()).max(1))
    }
}

struct Arrival {
    socket: u16,
    from: SocketAddr,
    ecn: u8,
    data: Vec<u8>,
}

/// Datagrams of one shard in a virtual world.
pub struct SimNet {
    addrs: Vec<SocketAddr>,
    arrivals: VecDeque<Arrival>,
    /// Sent, not flushed.
    queue: VecDeque<(Slot, Send)>,
    /// Flushed, not taken out.
    sent: VecDeque<Sent>,
    pool: Pool,
    gso_segments: usize,
    counters: Counters,
}

impl SimNet {
    /// A net with a socket at each of `addrs` and `slots` transmit slots.
    pub fn new(addrs: Vec<SocketAddr>, slots: usize) -> Self {
        assert!(u16::try_from(addrs.len()).is_ok(), "socket indices are 16 bits");
        Self {
            addrs,
            arrivals: VecDeque::new(),
            queue: VecDeque::with_capacity(slots),
            sent: VecDeque::new(),
            pool: Pool::new(slots),
            gso_segments: SEGMENTS_MAX,
            counters: Counters::default(),
        }
    }

    /// A datagram arrives at `socket`; false when it is lost because too many wait.
    pub fn deliver(&mut self, socket: u16, from: SocketAddr, ecn: u8, data: Vec<u8>) -> bool {
        assert!(usize::from(socket) < self.addrs.len(), "no socket {socket}");
        let room = self.arrivals.len() < ARRIVALS_MAX;
        if room {
            let from = addr::canonical(from);
            self.arrivals.push_back(Arrival { socket, from, ecn: ecn & 0b11, data });
        }
        room
    }

    /// Takes out the message that left first.
    pub fn pop(&mut self) -> Option<Sent> {
        self.sent.pop_front()
    }

    /// Takes out every message that left, in order.
    pub fn drain(&mut self) -> Vec<Sent> {
        self.sent.drain(..).collect()
    }

    /// Sets the most datagrams a train may have from now on; 1 for no trains.
    pub fn set_gso(&mut self, segments: usize) {
        self.gso_segments = segments.clamp(1, SEGMENTS_MAX);
    }
}

impl Net for SimNet {
    fn rx(&mut self, budget: usize, sink: &mut dyn FnMut(Rx<'_>)) -> bool {
        for _ in 0..budget {
            let Some(arrival) = self.arrivals.pop_front() else { break };
            let Arrival { socket, from, ecn, data } = &arrival;
            let ip = self.addrs[usize::from(*socket)].ip();
            let local_ip = Some(ip).filter(|ip| !ip.is_unspecified());
            self.counters.rx_messages += 1;
            self.counters.rx_datagrams += 1;
            self.counters.rx_bytes += count(data.len());
            let stride = data.len().max(1);
            sink(Rx { socket: *socket, from: *from, local_ip, ecn: *ecn, stride, data });
        }
        !self.arrivals.is_empty()
    }

    fn take(&mut self) -> Option<Slot> {
        let slot = self.pool.take();
        self.counters.tx_slots_exhausted += u64::from(slot.is_none());
        slot
    }

    fn buf(&mut self, slot: Slot) -> &mut Vec<u8> {
        self.pool.buf(slot)
    }

    fn put_back(&mut self, slot: Slot) {
        self.pool.put_back(slot);
    }

    fn send(&mut self, slot: Slot, send: Send) {
        assert!((1..=SLOT_BYTES).contains(&send.len), "a send of {} bytes", send.len);
        assert!(usize::from(send.socket) < self.addrs.len(), "no socket {}", send.socket);
        let datagrams = send.segment.map_or(1, |segment| send.len.div_ceil(segment));
        assert!(datagrams <= self.gso_segments, "a train of {datagrams} datagrams");
        self.pool.queue(slot, send.len);
        self.queue.push_back((slot, send));
    }

    fn flush(&mut self) -> bool {
        for (slot, send) in self.queue.drain(..) {
            let Send { socket, to, src, ecn, segment, len } = send;
            let data = self.pool.bytes(slot)[..len].to_vec();
            self.pool.release(slot);
            self.counters.tx_sends += 1;
            self.counters.tx_datagrams += count(segment.map_or(1, |bytes| len.div_ceil(bytes)));
            self.counters.tx_bytes += count(len);
            self.sent.push_back(Sent { socket, to, src, ecn, segment, data });
        }
        true
    }

    fn caps(&self, _socket: u16) -> Caps {
        Caps { gso_segments: self.gso_segments, gro: false, ecn: true, pktinfo: true }
    }

    fn local_addr(&self, socket: u16) -> SocketAddr {
        self.addrs[usize::from(socket)]
    }

    fn sockets(&self) -> usize {
        self.addrs.len()
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_comes_out_and_what_is_delivered_comes_in() {
        let addr = "10.0.0.1:4443".parse().expect("an address");
        let to = "10.0.0.2:9".parse().expect("an address");
        let mut net = SimNet::new(vec![addr], 1);
        let slot = net.take().expect("a slot");
        assert_eq!(net.take(), None);
        net.buf(slot).extend_from_slice(&[1, 2, 3, 4, 5]);
        net.send(slot, Send { socket: 0, to, src: None, ecn: 1, segment: Some(2), len: 5 });
        assert_eq!(net.pop(), None, "nothing leaves before the flush");
        assert!(net.flush());
        let sent = net.pop().expect("one message");
        assert_eq!(sent.datagrams().collect::<Vec<_>>(), [&[1, 2][..], &[3, 4], &[5]]);
        assert!(net.take().is_some(), "the slot is free again");

        for byte in 0..3 {
            assert!(net.deliver(0, to, 2, vec![byte]));
        }
        let mut got = Vec::new();
        assert!(net.rx(2, &mut |rx| got.push((rx.from, rx.local_ip, rx.ecn, rx.data[0]))));
        assert_eq!(got, [(to, Some(addr.ip()), 2, 0), (to, Some(addr.ip()), 2, 1)]);
        assert!(!net.rx(2, &mut |rx| assert_eq!(rx.data, [2])));
        assert_eq!(net.counters().rx_datagrams, 3);
    }
}
