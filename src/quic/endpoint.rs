//! The endpoint of a shard: who a datagram belongs to, who is let in, and whose timer is due.
//!
//! Admission (hardening D1, D2): half-open handshakes are counted; from `handshakes_retry` on an
//! address must prove itself with Retry, at `handshakes_max` Initials are dropped without an
//! answer, at `connections_max` they are refused. Timers are a heap of (deadline, slot) with lazy
//! entries: a connection is pushed only when its deadline moved earlier, so packets cost no heap
//! work.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::{
    AckFrequencyConfig, ConnectionHandle, ConnectionId, ConnectionIdGenerator, DatagramEvent,
    EcnCodepoint, EndpointConfig, Event, IdleTimeout, Incoming, InvalidCid, ServerConfig, Transmit,
    TransportConfig, VarInt,
};
use sha2::{Digest, Sha256};

use super::connection::{Connection, Grants};
use crate::name::ShardId;
use crate::steer;

/// Streams of each kind that a peer is granted before it showed what it needs.
const STREAMS_FIRST: u32 = 64;
/// Receive window of a peer that has not announced anything, bytes.
const WINDOW_FIRST: u32 = 1 << 20;
/// Longest delay asked of peers for an acknowledgement.
const ACK_DELAY: Duration = Duration::from_millis(25);

/// How the endpoint behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which shard this is.
    pub shard: ShardId,
    /// Randomness for connection ids and quinn-proto; fixed in simulations.
    pub seed: [u8; 32],
    /// A peer that is silent for longer is gone; `None` waits for ever.
    pub idle_timeout: Option<Duration>,
    /// Interval of keep-alives; `None` sends none.
    pub keep_alive: Option<Duration>,
    /// Look for a larger MTU than 1200.
    pub mtu_discovery: bool,
    /// BBR instead of CUBIC.
    pub bbr: bool,
    /// Segment trains for the kernel.
    pub gso: bool,
    /// Window of one stream, bytes.
    pub stream_receive_window: u32,
    /// What peers may have.
    pub grants: Grants,
    /// Packets a peer may leave unacknowledged; 0 asks for nothing.
    pub ack_frequency: u32,
    /// Connections at most.
    pub connections_max: usize,
    /// Half-open handshakes at most.
    pub handshakes_max: usize,
    /// Half-open handshakes from which addresses must prove themselves.
    pub handshakes_retry: usize,
    /// Bytes kept for handshakes that are not accepted yet.
    pub incoming_buffer_bytes: u64,
}

/// What the endpoint counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Handshakes that were asked to prove their address.
    pub retried: u64,
    /// Handshakes refused for want of room.
    pub refused: u64,
    /// Initials dropped without an answer.
    pub dropped: u64,
    /// Handshakes that failed.
    pub failed: u64,
    /// Datagrams that belong to nobody here.
    pub unroutable: u64,
    /// Timers that fired.
    pub timers: u64,
}

/// One received datagram's address data.
#[derive(Clone, Copy, Debug)]
pub struct From {
    /// Index of the socket.
    pub socket: u16,
    /// The peer.
    pub remote: SocketAddr,
    /// The address it asked.
    pub local_ip: Option<IpAddr>,
    /// ECN bits.
    pub ecn: u8,
}

/// The endpoint and its connections.
pub struct Endpoint {
    inner: quinn_proto::Endpoint,
    connections: Vec<Option<Box<Connection>>>,
    timers: BinaryHeap<Reverse<(Instant, u32)>>,
    touched: Vec<u32>,
    half_open: usize,
    open: usize,
    settings: Settings,
    /// What happened.
    pub counted: Counted,
}

/// Ids from a keyed hash of a counter: unpredictable without the seed, repeatable with it.
struct CidGenerator {
    shard: ShardId,
    seed: [u8; 32],
    count: u64,
}

impl ConnectionIdGenerator for CidGenerator {
    fn generate_cid(&mut self) -> ConnectionId {
        self.count += 1;
        let digest = Sha256::new().chain_update(self.seed).chain_update(self.count.to_be_bytes());
        let mut random = [0; 5];
        random.copy_from_slice(&digest.finalize()[..5]);
        ConnectionId::new(&steer::encode(self.shard, 0, random))
    }

    fn validate(&self, cid: &ConnectionId) -> Result<(), InvalidCid> {
        if steer::shard(cid) == Some(self.shard) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        steer::CID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

fn transport(settings: &Settings) -> TransportConfig {
    let mut transport = TransportConfig::default();
    let idle = settings.idle_timeout.map(|idle| {
        let ms = u32::try_from(idle.as_millis()).unwrap_or(u32::MAX);
        IdleTimeout::from(VarInt::from_u32(ms))
    });
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_FIRST))
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS_FIRST))
        .max_idle_timeout(idle)
        .keep_alive_interval(settings.keep_alive)
        .stream_receive_window(VarInt::from_u32(settings.stream_receive_window))
        .receive_window(VarInt::from_u32(WINDOW_FIRST))
        .send_window(settings.grants.send_window)
        .send_fairness(true)
        .allow_spin(false)
        .datagram_receive_buffer_size(None)
        .enable_segmentation_offload(settings.gso);
    if !settings.mtu_discovery {
        transport.mtu_discovery_config(None);
    }
    if settings.bbr {
        transport
            .congestion_controller_factory(Arc::new(quinn_proto::congestion::BbrConfig::default()));
    }
    if settings.ack_frequency > 0 {
        let mut frequency = AckFrequencyConfig::default();
        frequency
            .ack_eliciting_threshold(VarInt::from_u32(settings.ack_frequency))
            .max_ack_delay(Some(ACK_DELAY));
        transport.ack_frequency_config(Some(frequency));
    }
    transport
}

impl Endpoint {
    /// An endpoint that serves with `tls`.
    pub fn new(
        settings: Settings,
        tls: Arc<rustls::ServerConfig>,
    ) -> Result<Self, quinn_proto::crypto::rustls::NoInitialCipherSuite> {
        let crypto = quinn_proto::crypto::rustls::QuicServerConfig::try_from(tls)?;
        let mut server = ServerConfig::with_crypto(Arc::new(crypto));
        server
            .transport_config(Arc::new(transport(&settings)))
            .max_incoming(settings.handshakes_max)
            .incoming_buffer_size_total(settings.incoming_buffer_bytes);
        let mut config = EndpointConfig::default();
        let (shard, seed) = (settings.shard, settings.seed);
        config
            .cid_generator(move || Box::new(CidGenerator { shard, seed, count: 0 }))
            .rng_seed(Some(seed));
        let inner =
            quinn_proto::Endpoint::new(Arc::new(config), Some(Arc::new(server)), true, None);
        Ok(Self {
            inner,
            connections: Vec::new(),
            timers: BinaryHeap::new(),
            touched: Vec::new(),
            half_open: 0,
            open: 0,
            settings,
            counted: Counted::default(),
        })
    }

    /// Takes one datagram. A reply is written to `reply` and described by what is returned.
    pub fn handle(
        &mut self,
        now: Instant,
        from: &From,
        data: BytesMut,
        reply: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let ecn = EcnCodepoint::from_bits(from.ecn);
        let event = self.inner.handle(now, from.remote, from.local_ip, ecn, data, reply);
        match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let slot = handle.0;
                if let Some(Some(connection)) = self.connections.get_mut(slot) {
                    connection.inner.handle_event(event);
                    self.touch(slot);
                }
                None
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.admit(now, from.socket, incoming, reply)
            }
            Some(DatagramEvent::Response(transmit)) => Some(transmit),
            None => {
                self.counted.unroutable += 1;
                None
            }
        }
    }

    fn admit(
        &mut self,
        now: Instant,
        socket: u16,
        incoming: Incoming,
        reply: &mut Vec<u8>,
    ) -> Option<Transmit> {
        if self.half_open >= self.settings.handshakes_max {
            self.counted.dropped += 1;
            self.inner.ignore(incoming);
            return None;
        }
        if self.open >= self.settings.connections_max {
            self.counted.refused += 1;
            return Some(self.inner.refuse(incoming, reply));
        }
        let prove = self.half_open >= self.settings.handshakes_retry;
        if prove && !incoming.remote_address_validated() && incoming.may_retry() {
            self.counted.retried += 1;
            return self.inner.retry(incoming, reply).ok();
        }
        match self.inner.accept(incoming, now, reply, None) {
            Ok((handle, inner)) => {
                let slot = handle.0;
                if self.connections.len() <= slot {
                    self.connections.resize_with(slot + 1, || None);
                }
                let grants = self.settings.grants;
                let connection = Connection::new(inner, socket, STREAMS_FIRST, grants);
                self.connections[slot] = Some(Box::new(connection));
                self.half_open += 1;
                self.open += 1;
                self.touch(slot);
                None
            }
            Err(error) => {
                self.counted.failed += 1;
                error.response
            }
        }
    }

    /// A connection.
    #[inline]
    pub fn connection(&mut self, slot: usize) -> Option<&mut Connection> {
        self.connections.get_mut(slot)?.as_deref_mut()
    }

    /// Puts a connection in the list of those to look at and to send for.
    #[inline]
    pub fn touch(&mut self, slot: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(slot)
            && !connection.queued
        {
            connection.queued = true;
            self.touched.push(u32::try_from(slot).expect("bounded by connections_max"));
        }
    }

    /// Swaps the list of touched connections out into `list`, which should be empty. They stay
    /// marked until `settle`.
    pub fn take_touched(&mut self, list: &mut Vec<u32>) {
        std::mem::swap(&mut self.touched, list);
    }

    /// The next event of a connection. Notes handshakes that end.
    pub fn poll(&mut self, slot: usize) -> Option<Event> {
        let connection = self.connections.get_mut(slot)?.as_mut()?;
        let event = connection.inner.poll()?;
        let ended = match &event {
            Event::Connected => true,
            Event::ConnectionLost { .. } => {
                connection.lost = true;
                if connection.handshaking {
                    self.counted.failed += 1;
                }
                true
            }
            _ => false,
        };
        if ended && std::mem::replace(&mut connection.handshaking, false) {
            self.half_open -= 1;
        }
        Some(event)
    }

    /// True when connections wait in the list.
    pub fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Fires the timers due at `now`; their connections are touched and listed in `fired`.
    pub fn fire(&mut self, now: Instant, fired: &mut Vec<usize>) {
        while let Some(Reverse((at, slot))) = self.timers.peek().copied() {
            if at > now {
                return;
            }
            self.timers.pop();
            let slot = slot as usize;
            let Some(Some(connection)) = self.connections.get_mut(slot) else { continue };
            if connection.armed != Some(at) {
                continue;
            }
            connection.armed = None;
            match connection.inner.poll_timeout() {
                Some(due) if due <= now => {
                    self.counted.timers += 1;
                    connection.inner.handle_timeout(now);
                    self.touch(slot);
                    fired.push(slot);
                }
                Some(due) => self.arm(slot, due),
                None => {}
            }
        }
    }

    fn arm(&mut self, slot: usize, due: Instant) {
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return };
        if connection.armed.is_none_or(|armed| armed > due) {
            connection.armed = Some(due);
            let slot = u32::try_from(slot).expect("bounded by connections_max");
            self.timers.push(Reverse((due, slot)));
        }
    }

    /// When `fire` must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// The connection was looked at and sent for: it leaves the list, its events go to the
    /// endpoint, its timer is set. True when it is gone for good.
    pub fn settle(&mut self, slot: usize) -> bool {
        let mut drained = false;
        loop {
            let Some(Some(connection)) = self.connections.get_mut(slot) else { return true };
            connection.queued = false;
            let Some(event) = connection.inner.poll_endpoint_events() else { break };
            drained |= event.is_drained();
            let back = self.inner.handle_event(ConnectionHandle(slot), event);
            if let (Some(back), Some(Some(connection))) = (back, self.connections.get_mut(slot)) {
                connection.inner.handle_event(back);
            }
        }
        if drained {
            self.forget(slot);
            return true;
        }
        let due = self.connection(slot).and_then(|connection| connection.inner.poll_timeout());
        if let Some(due) = due {
            self.arm(slot, due);
        }
        false
    }

    fn forget(&mut self, slot: usize) {
        if let Some(connection) = self.connections[slot].take() {
            self.open -= 1;
            if connection.handshaking {
                self.half_open -= 1;
            }
        }
    }

    /// Closes a connection with an application code.
    pub fn close(&mut self, now: Instant, slot: usize, code: u64, reason: &'static str) {
        if let Some(connection) = self.connection(slot) {
            let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
            connection.inner.close(now, code, Bytes::from_static(reason.as_bytes()));
            self.touch(slot);
        }
    }

    /// Slots of all connections.
    pub fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.connections.iter().enumerate().filter(|(_, held)| held.is_some()).map(|(at, _)| at)
    }

    /// Connections that exist, and those of them whose handshake is not done.
    pub fn counts(&self) -> (usize, usize) {
        (self.open, self.half_open)
    }
}
