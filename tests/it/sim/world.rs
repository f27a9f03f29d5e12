//! One shard with real QUIC, its clients and the links between them, on virtual time, in one
//! thread. The same seed gives the same run: see `determinism`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corelay::config::Config;
use corelay::fanout::mailbox::{Doorbell, Inbox, Outbox, mailbox};
use corelay::fanout::message::{ToControl, ToShard};
use corelay::net::sim::SimNet;
use corelay::shard::edge::Edge;
use corelay::shard::{Make, Shard};
use corelay::wire::version::SUPPORTED;

use super::client::{Client, Spec};
use super::oracle;
use super::random::Random;
use super::tls;

/// Turns of the shard at one instant before it is taken to spin.
const TURNS_MAX: u32 = 20_000;

/// A datagram on its way.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    at: Instant,
    order: u64,
    client: usize,
    to_relay: bool,
    ordinal: u64,
    ecn: u8,
    data: Vec<u8>,
}

/// Everything.
pub(super) struct World {
    pub(super) shard: Shard<SimNet>,
    pub(super) clients: Vec<Client>,
    pub(super) random: Random,
    pub(super) epoch: Instant,
    pub(super) now: Instant,
    /// Filled after each turn of the shard.
    pub(super) noted: Option<Noted>,
    /// Over everything that was carried: when, whose, how long.
    pub(super) transcript: u64,
    pub(super) turns: u64,
    pub(super) limits: corelay::config::Limits,
    /// The other ends of the shard's mailboxes.
    control: (Outbox<ToShard, Doorbell>, Inbox<ToControl>),
    /// The shard closed everything as it was told to.
    pub(super) ended: bool,
    addr: SocketAddr,
    flights: BinaryHeap<Reverse<Flight>>,
    order: u64,
    before: Option<u64>,
    shard_due: Option<Instant>,
    shard_dirty: bool,
}

/// When the shard began the streams of a track: how many datagrams had gone to the client before
/// the turn in which a stream took its first bytes.
pub(super) struct Noted {
    pub(super) client: usize,
    pub(super) track: &'static str,
    pub(super) streams: BTreeMap<u64, u64>,
}

#[expect(clippy::disallowed_methods, reason = "virtual time needs one instant to count from")]
fn anchor() -> Instant {
    Instant::now()
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self::with(seed, |_| {})
    }

    pub(super) fn with(seed: u64, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        change(&mut config);
        let mut random = Random::new(seed);
        let epoch = anchor();
        let addr: SocketAddr = "10.0.0.1:4443".parse().expect("an address");
        let slots = config.limits.mailbox_slots;
        let (to_shard, inbox) = mailbox(slots, Doorbell::new().expect("a descriptor"));
        let (outbox, from_shard) = mailbox(slots, Doorbell::new().expect("a descriptor"));
        let limits = config.limits.clone();
        let net = SimNet::new(vec![addr], limits.tx_slots);
        let make = Make {
            config: Arc::new(config),
            tls: tls::server(),
            versions: SUPPORTED.to_vec(),
            seed: random.bytes(),
            edge: Edge::new(inbox, outbox),
        };
        Self {
            shard: Shard::new(net, make, epoch).expect("ring has the initial suite"),
            clients: Vec::new(),
            random,
            epoch,
            now: epoch,
            noted: None,
            transcript: 0,
            turns: 0,
            limits,
            control: (to_shard, from_shard),
            ended: false,
            addr,
            flights: BinaryHeap::new(),
            order: 0,
            before: None,
            shard_due: None,
            shard_dirty: true,
        }
    }

    /// A new peer, which begins its handshake now.
    pub(super) fn add(&mut self, spec: Spec) -> usize {
        let place = self.clients.len();
        let number = u8::try_from(place + 1).expect("few clients");
        let addr = SocketAddr::from(([10, 0, 1, number], 5000));
        let mut random = Random::new(self.random.next());
        let times = (self.epoch, self.now);
        self.clients.push(Client::new((addr, self.addr), number, spec, &mut random, times));
        place
    }

    /// A peer, to do something to it.
    pub(super) fn at(&mut self, place: usize) -> &mut Client {
        let client = &mut self.clients[place];
        client.dirty = true;
        client
    }

    pub(super) fn ms(&self) -> u64 {
        u64::try_from(self.now.duration_since(self.epoch).as_millis()).expect("short runs")
    }

    /// Lets `ms` milliseconds pass.
    pub(super) fn run(&mut self, ms: u64) {
        let until = self.now + Duration::from_millis(ms);
        while self.step(until) {}
        self.now = until;
    }

    /// Runs until `done`, at most `ms` milliseconds; panics when that was not enough.
    pub(super) fn until(&mut self, what: &str, ms: u64, mut done: impl FnMut(&Self) -> bool) {
        let until = self.now + Duration::from_millis(ms);
        while !done(self) {
            assert!(self.step(until), "not within {ms} ms: {what}");
        }
    }

    /// Does what is due now, then moves to the next instant at which something is. False when
    /// that lies behind `until`.
    pub(super) fn step(&mut self, until: Instant) -> bool {
        self.deliver();
        self.turn_clients();
        self.turn_shard();
        let flight = self.flights.peek().map(|Reverse(flight)| flight.at);
        let clients = self.clients.iter().filter_map(|client| client.due).min();
        let dirty = self.clients.iter().any(|client| client.dirty);
        let dirty = (dirty || self.shard_dirty).then_some(self.now);
        let next = [flight, clients, self.shard_due, dirty].into_iter().flatten().min();
        match next {
            Some(next) if next <= until => {
                self.now = self.now.max(next);
                true
            }
            _ => false,
        }
    }

    fn deliver(&mut self) {
        while let Some(Reverse(flight)) = self.flights.peek()
            && flight.at <= self.now
        {
            let Some(Reverse(flight)) = self.flights.pop() else { return };
            let client = &mut self.clients[flight.client];
            if flight.to_relay {
                self.shard.net.deliver(0, client.addr, flight.ecn, flight.data);
                self.shard_dirty = true;
            } else if !client.gone {
                client.viewer.ordinal = flight.ordinal;
                client.wire.receive(self.now, flight.ecn, &flight.data);
                // One by one, so that each stream is known by the datagram that brought it.
                self.turn_client(flight.client);
            }
        }
    }

    fn turn_clients(&mut self) {
        for place in 0..self.clients.len() {
            let client = &self.clients[place];
            if client.dirty || client.due.is_some_and(|due| due <= self.now) {
                self.turn_client(place);
            }
        }
    }

    fn turn_client(&mut self, place: usize) {
        let mut left = Vec::new();
        self.clients[place].turn(self.now, |ecn, data| left.push((ecn, data)));
        for (ecn, data) in left {
            self.send(place, true, ecn, &data);
        }
    }

    fn send(&mut self, place: usize, to_relay: bool, ecn: u8, data: &[u8]) {
        let client = &mut self.clients[place];
        let link = if to_relay { &mut client.up } else { &mut client.down };
        let ordinal = link.entered;
        let at = self.now.duration_since(self.epoch).as_nanos();
        for part in [u64::try_from(at).expect("short"), place as u64, data.len() as u64] {
            self.transcript =
                (self.transcript ^ part).wrapping_mul(0x0100_0000_01b3).rotate_left(5);
        }
        for at in link.carry(self.now, data.len()) {
            self.order += 1;
            let (order, client, data) = (self.order, place, data.to_vec());
            self.flights.push(Reverse(Flight { at, order, client, to_relay, ordinal, ecn, data }));
        }
    }

    fn turn_shard(&mut self) {
        if !self.shard_dirty && self.shard_due.is_none_or(|due| due > self.now) {
            return;
        }
        self.shard_dirty = false;
        for turn in 0.. {
            assert!(turn < TURNS_MAX, "the shard is busy without an end");
            self.before = self.noted.as_ref().map(|held| self.clients[held.client].down.entered);
            let now = self.now;
            let outcome = self.shard.turn(&mut || now);
            self.turns += 1;
            self.collect();
            self.note();
            if self.turns.is_multiple_of(64) {
                oracle::bounds(self);
            }
            self.shard_due = outcome.deadline;
            self.ended |= outcome.ended;
            let due = outcome.deadline.is_some_and(|due| due <= now);
            if !outcome.busy && !due {
                return;
            }
        }
    }

    /// Puts mail in the shard's box, which its bell would wake it for.
    pub(super) fn tell(&mut self, mail: ToShard) {
        assert!(self.control.0.push(mail).is_ok(), "the mailbox is full");
        self.control.0.flush();
        self.shard_dirty = true;
    }

    /// What the shard told control.
    pub(super) fn told(&mut self) -> Option<ToControl> {
        self.control.1.pop()
    }

    fn collect(&mut self) {
        for message in self.shard.net.drain() {
            let SocketAddr::V4(to) = message.to else { panic!("no IPv6 here") };
            let place = usize::from(to.ip().octets()[3]) - 1;
            for datagram in message.datagrams() {
                self.send(place, false, message.ecn, datagram);
            }
        }
    }

    fn note(&mut self) {
        let (Some(noted), Some(before)) = (&mut self.noted, self.before) else { return };
        for (stream, track, _) in self.shard.model().deliveries() {
            if track.as_str() == noted.track {
                noted.streams.entry(stream).or_insert(before);
            }
        }
    }

    /// The links treat everything well from now on.
    pub(super) fn heal(&mut self) {
        for client in &mut self.clients {
            for link in [&mut client.up, &mut client.down] {
                let delay = link.terms.delay;
                link.terms = super::link::Terms { delay, ..super::link::Terms::clean(0) };
            }
        }
    }

    /// Runs until every client that is not gone is connected.
    pub(super) fn connect(&mut self) {
        self.until("connected", 20_000, |world| {
            world.clients.iter().all(|client| client.connected || client.gone)
        });
    }

    /// Runs until the relay knows of a broadcast, and every viewer that listens with it.
    pub(super) fn known(&mut self, broadcast: &str) {
        self.until("announced", 20_000, |world| {
            let deaf = |client: &Client| client.gone || !client.listens();
            let knows = |client: &Client| client.viewer.announced.contains(broadcast);
            world.clients.iter().all(|client| deaf(client) || knows(client))
        });
    }
}
