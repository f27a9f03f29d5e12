//! The whole relay on virtual time: a shard with quinn-proto, and quinn-proto clients.
//!
//! Links are clean and take a millisecond. Only turns of the shard are measured, and of those the
//! ones after `measure`; what the clients do is not.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use corelay::config::Config;
use corelay::fanout::mailbox::{Doorbell, Inbox, Outbox, mailbox};
use corelay::fanout::message::{ToControl, ToShard};
use corelay::name::Role;
use corelay::net::sim::SimNet;
use corelay::shard::edge::Edge;
use corelay::shard::turn::Outcome;
use corelay::shard::{Make, Shard};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, Endpoint,
    EndpointConfig, Event, Side, StreamEvent, StreamId, TransportConfig, VarInt,
};

use super::script::{self, Script, Shape, VERSION};
use super::tls;

const RELAY: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 4443));
const DELAY: Duration = Duration::from_millis(1);

/// One client.
struct Peer {
    addr: SocketAddr,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    conn: Connection,
    connected: bool,
    /// Bytes and ends of the relay's unidirectional streams.
    got: u64,
    ends: u64,
    chosen: Option<StreamId>,
}

/// A datagram on its way.
struct Flight {
    at: Instant,
    peer: usize,
    ecn: u8,
    data: Vec<u8>,
}

/// A shard, its publisher (the first peer) and its viewers.
pub(crate) struct Whole {
    shard: Shard<SimNet>,
    peers: Vec<Peer>,
    script: Script,
    now: Instant,
    due: Option<Instant>,
    up: VecDeque<Flight>,
    down: VecDeque<Flight>,
    /// What is read before and after each measured turn, and the sum of the differences.
    meter: Option<fn() -> u64>,
    counted: u64,
    sent: u64,
    _control: (Outbox<ToShard, Doorbell>, Inbox<ToControl>),
}

#[expect(clippy::disallowed_methods, reason = "virtual time needs one instant to count from")]
fn anchor() -> Instant {
    Instant::now()
}

/// A turn that is measured. Callgrind is told this name.
#[inline(never)]
fn measured_turn(shard: &mut Shard<SimNet>, now: Instant) -> Outcome {
    shard.turn(&mut || now)
}

impl Peer {
    fn new(number: u8, now: Instant) -> Self {
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_uni_streams(VarInt::from_u32(10_000))
            .enable_segmentation_offload(false)
            .allow_spin(false);
        let crypto = QuicClientConfig::try_from(tls::client(VERSION.alpn())).expect("suites");
        let mut client = ClientConfig::new(Arc::new(crypto));
        client.transport_config(Arc::new(transport));
        let mut config = EndpointConfig::default();
        config.rng_seed(Some([number; 32]));
        let mut endpoint = Endpoint::new(Arc::new(config), None, true, None);
        let (handle, conn) =
            endpoint.connect(now, client, RELAY, "localhost").expect("a valid remote");
        let addr = SocketAddr::from(([10, 0, 1, number], 5000));
        Self { addr, endpoint, handle, conn, connected: false, got: 0, ends: 0, chosen: None }
    }

    fn hear(&mut self, now: Instant, flight: &Flight) {
        let (ecn, data) = (EcnCodepoint::from_bits(flight.ecn), BytesMut::from(&flight.data[..]));
        let event = self.endpoint.handle(now, RELAY, None, ecn, data, &mut Vec::new());
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            self.conn.handle_event(event);
        }
    }

    /// Does what is due; what leaves goes to `send`.
    fn turn(&mut self, now: Instant, mut send: impl FnMut(u8, Vec<u8>)) {
        if self.conn.poll_timeout().is_some_and(|due| due <= now) {
            self.conn.handle_timeout(now);
        }
        while let Some(event) = self.conn.poll() {
            match event {
                Event::Connected => self.connected = true,
                Event::ConnectionLost { reason } => panic!("lost a connection: {reason}"),
                Event::Stream(StreamEvent::Readable { id }) => self.read(id),
                Event::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(id) = self.conn.streams().accept(dir) {
                        self.read(id);
                    }
                }
                _ => {}
            }
        }
        let mut data = Vec::new();
        while let Some(transmit) = self.conn.poll_transmit(now, 1, &mut data) {
            data.truncate(transmit.size);
            send(transmit.ecn.map_or(0, |ecn| ecn as u8), std::mem::take(&mut data));
        }
        while let Some(event) = self.conn.poll_endpoint_events() {
            if let Some(back) = self.endpoint.handle_event(self.handle, event) {
                self.conn.handle_event(back);
            }
        }
    }

    fn read(&mut self, id: StreamId) {
        let mut stream = self.conn.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return };
        let ended = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) if id.dir() == Dir::Uni => self.got += chunk.bytes.len() as u64,
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        // New credit leaves with the next transmit.
        let _ = chunks.finalize();
        self.ends += u64::from(ended && id.dir() == Dir::Uni);
    }

    fn say(&mut self, id: StreamId, bytes: &[u8], fin: bool) {
        let mut stream = self.conn.send_stream(id);
        let taken = stream.write(bytes).expect("the relay's window is wide");
        assert_eq!(taken, bytes.len(), "the relay's window is wide");
        if fin {
            stream.finish().expect("open until now");
        }
    }

    fn open(&mut self, dir: Dir) -> StreamId {
        self.conn.streams().open(dir).expect("streams are granted")
    }
}

impl Whole {
    /// Everybody joined and subscribed; nothing was sent yet.
    pub(crate) fn new(shape: Shape) -> Self {
        let config = Config::default();
        let now = anchor();
        let slots = config.limits.mailbox_slots;
        let (to_shard, inbox) = mailbox(slots, Doorbell::new().expect("a descriptor"));
        let (outbox, from_shard) = mailbox(slots, Doorbell::new().expect("a descriptor"));
        let net = SimNet::new(vec![RELAY], config.limits.tx_slots);
        let make = Make {
            config: Arc::new(config),
            tls: tls::server(),
            versions: vec![VERSION],
            seed: [7; 32],
            edge: Edge::new(inbox, outbox),
        };
        let count = u8::try_from(shape.viewers + 1).expect("few viewers");
        let mut whole = Self {
            shard: Shard::new(net, make, now).expect("ring has the initial suite"),
            peers: (1..=count).map(|number| Peer::new(number, now)).collect(),
            script: Script::new(shape),
            now,
            due: Some(now),
            up: VecDeque::new(),
            down: VecDeque::new(),
            meter: None,
            counted: 0,
            sent: 0,
            _control: (to_shard, from_shard),
        };
        whole.meet();
        whole
    }

    fn meet(&mut self) {
        let pause = Duration::from_millis(200);
        self.run(pause);
        assert!(self.peers.iter().all(|peer| peer.connected), "everybody is connected");
        for (place, peer) in self.peers.iter_mut().enumerate() {
            let role = if place == 0 { Role::Publisher } else { Role::Subscriber };
            let id = peer.open(Dir::Uni);
            peer.say(id, &script::setup(role), true);
        }
        self.run(pause);
        let theirs = |index| StreamId::new(Side::Server, Dir::Bi, index);
        self.peers[0].say(theirs(0), &script::announcement(), false);
        self.run(pause);
        for (name, peer) in self.peers[1..].iter_mut().enumerate() {
            let id = peer.open(Dir::Bi);
            peer.say(id, &script::subscribe(name as u64, 0), false);
        }
        self.run(pause);
        self.peers[0].say(theirs(1), &script::info(), false);
        self.run(pause);
        // What setting up brought is not media.
        for peer in &mut self.peers {
            (peer.got, peer.ends) = (0, 0);
        }
    }

    /// From now on turns are measured by what `meter` reads.
    pub(crate) fn measure(&mut self, meter: fn() -> u64) {
        self.meter = Some(meter);
        self.sent = self.shard.snapshot().counters.tx_sends;
    }

    /// Sends `groups` groups.
    pub(crate) fn play(&mut self, groups: u64) {
        for arrival in self.script.write(groups) {
            let peer = &mut self.peers[0];
            if arrival.first {
                peer.chosen = Some(peer.open(Dir::Uni));
            }
            let id = peer.chosen.expect("a group begins with its stream");
            peer.say(id, &arrival.bytes, arrival.last);
            self.run(Duration::from_micros(arrival.after_us));
        }
    }

    /// Lets time pass.
    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.deliver();
            for place in 0..self.peers.len() {
                let (at, up) = (self.now + DELAY, &mut self.up);
                self.peers[place].turn(self.now, |ecn, data| {
                    up.push_back(Flight { at, peer: place, ecn, data });
                });
            }
            self.turn();
            let flights = [self.up.front(), self.down.front()].into_iter().flatten();
            let peers = self.peers.iter_mut().filter_map(|peer| peer.conn.poll_timeout());
            let next = flights.map(|flight| flight.at).chain(peers).chain(self.due).min();
            match next {
                Some(next) if next <= until => self.now = self.now.max(next),
                _ => break,
            }
        }
        self.now = until;
    }

    fn deliver(&mut self) {
        while self.up.front().is_some_and(|flight| flight.at <= self.now) {
            let Some(flight) = self.up.pop_front() else { return };
            let from = self.peers[flight.peer].addr;
            self.shard.net.deliver(0, from, flight.ecn, flight.data);
            self.due = Some(self.now);
        }
        while self.down.front().is_some_and(|flight| flight.at <= self.now) {
            let Some(flight) = self.down.pop_front() else { return };
            self.peers[flight.peer].hear(self.now, &flight);
        }
    }

    fn turn(&mut self) {
        while self.due.is_some_and(|due| due <= self.now) {
            let outcome = match self.meter {
                Some(meter) => {
                    let before = meter();
                    let outcome = measured_turn(&mut self.shard, self.now);
                    self.counted += meter() - before;
                    outcome
                }
                None => {
                    let now = self.now;
                    self.shard.turn(&mut || now)
                }
            };
            for message in self.shard.net.drain() {
                let SocketAddr::V4(to) = message.to else { panic!("no IPv6 here") };
                let peer = usize::from(to.ip().octets()[3]) - 1;
                let (at, ecn) = (self.now + DELAY, message.ecn);
                for data in message.datagrams().map(<[u8]>::to_vec) {
                    self.down.push_back(Flight { at, peer, ecn, data });
                }
            }
            self.due = if outcome.busy { Some(self.now) } else { outcome.deadline };
        }
    }

    /// Checks that everybody got all of it. What the measured turns came to, and the messages that
    /// left in them: the simulated net copies each, which a real one does not.
    pub(crate) fn check(mut self) -> (u64, u64) {
        let sent = self.shard.snapshot().counters.tx_sends - self.sent;
        self.meter = None;
        self.run(Duration::from_millis(100));
        let Script { groups, bytes, .. } = self.script;
        for (id, peer) in self.peers[1..].iter().enumerate() {
            let bytes = bytes + groups * script::longer(id as u64);
            assert_eq!((peer.got, peer.ends), (bytes, groups), "what a viewer got");
        }
        (self.counted, sent)
    }
}
