//! One simulated peer: its QUIC, its publishing and its viewing half, and the link between them
//! and the relay.

use std::net::SocketAddr;
use std::time::Instant;

use corelay::name::{Hop, Role};
use corelay::wire::lite::subscribe::Preferences;
use corelay::wire::lite::{Setup, kind};
use corelay::wire::put_varint;
use corelay::wire::version::Version;
use quinn_proto::{ConnectionError, Dir, Event, StreamEvent, StreamId, VarInt};

use super::link::{Link, Terms};
use super::publisher::{Publication, Publisher, Rate};
use super::random::Random;
use super::viewer::{Subscription, Viewer};
use super::wire::{Allowance, Wire};

/// What a client is made of.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) version: Version,
    pub(super) role: Option<Role>,
    pub(super) hop: Option<Hop>,
    pub(super) allow: Allowance,
    pub(super) up: Terms,
    pub(super) down: Terms,
}

impl Spec {
    pub(super) fn new(version: Version, role: Role) -> Self {
        Self {
            version,
            role: Some(role),
            hop: None,
            allow: Allowance::default(),
            up: Terms::clean(10),
            down: Terms::clean(10),
        }
    }
}

/// One peer.
pub(super) struct Client {
    pub(super) addr: SocketAddr,
    pub(super) wire: Wire,
    pub(super) publisher: Publisher,
    pub(super) viewer: Viewer,
    pub(super) up: Link,
    pub(super) down: Link,
    pub(super) connected: bool,
    pub(super) lost: Option<ConnectionError>,
    /// The process is gone: it neither hears nor says anything.
    pub(super) gone: bool,
    /// Something was done to it since its last turn.
    pub(super) dirty: bool,
    /// Says nothing of its own accord: a test writes the streams.
    pub(super) raw: bool,
    pub(super) due: Option<Instant>,
    spec: Spec,
}

impl Client {
    pub(super) fn new(
        (addr, relay): (SocketAddr, SocketAddr),
        source: u8,
        spec: Spec,
        random: &mut Random,
        (epoch, now): (Instant, Instant),
    ) -> Self {
        let wire = Wire::new(now, relay, spec.version, spec.allow, random);
        let mut publisher = Publisher::new(source, spec.version, epoch);
        let mut viewer = Viewer::new(spec.version);
        if let Some(hop) = spec.hop {
            publisher.hop = hop;
            viewer.hop = hop;
        }
        let up = Link::new(spec.up.clone(), Random::new(random.next()), now);
        let down = Link::new(spec.down.clone(), Random::new(random.next()), now);
        Self {
            addr,
            wire,
            publisher,
            viewer,
            up,
            down,
            connected: false,
            lost: None,
            gone: false,
            dirty: true,
            raw: false,
            due: None,
            spec,
        }
    }

    /// Does everything that is due, and hands over what leaves.
    pub(super) fn turn(&mut self, now: Instant, send: impl FnMut(u8, Vec<u8>)) {
        self.dirty = false;
        if self.gone {
            self.due = None;
            return;
        }
        if self.wire.conn.poll_timeout().is_some_and(|due| due <= now) {
            self.wire.conn.handle_timeout(now);
        }
        while let Some(event) = self.wire.conn.poll() {
            self.on_event(event, now);
        }
        if self.lost.is_none() && !self.raw {
            self.publisher.produce(&mut self.wire, now);
        }
        self.wire.transmit(now, send);
        let media = self.publisher.deadline().filter(|_| self.lost.is_none());
        self.due = [self.wire.conn.poll_timeout(), media].into_iter().flatten().min();
    }

    fn on_event(&mut self, event: Event, now: Instant) {
        match event {
            Event::Connected => self.on_connected(),
            Event::ConnectionLost { reason } => self.lost = Some(reason),
            Event::Stream(event) => self.on_stream(&event, now),
            Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {}
        }
    }

    fn on_connected(&mut self) {
        self.connected = true;
        if self.raw {
            return;
        }
        let setup = Setup {
            path: Some("/".to_owned()),
            role: self.spec.role,
            hop: self.spec.hop,
            ..Setup::default()
        };
        let mut bytes = Vec::new();
        put_varint(&mut bytes, kind::UNI_SETUP);
        setup.encode(&mut bytes);
        let id = self.wire.open(Dir::Uni).expect("streams are granted");
        self.wire.say(id, &bytes, true);
        if self.spec.role != Some(Role::Publisher) {
            self.viewer.listen(&mut self.wire);
        }
    }

    fn on_stream(&mut self, event: &StreamEvent, now: Instant) {
        match *event {
            StreamEvent::Opened { dir } => {
                while let Some(id) = self.wire.conn.streams().accept(dir) {
                    match dir {
                        Dir::Uni => self.viewer.on_opened(id),
                        Dir::Bi => self.publisher.on_opened(id),
                    }
                    self.on_readable(id, now);
                }
            }
            StreamEvent::Readable { id } => self.on_readable(id, now),
            StreamEvent::Stopped { id, error_code } => {
                let code = Viewer::plain(error_code.into_inner());
                self.publisher.on_stopped(&mut self.wire, id, code);
            }
            StreamEvent::Writable { .. }
            | StreamEvent::Finished { .. }
            | StreamEvent::Available { .. } => {}
        }
    }

    fn on_readable(&mut self, id: StreamId, now: Instant) {
        if self.raw {
            return;
        }
        let ours = id.initiator() == quinn_proto::Side::Client;
        if id.dir() == Dir::Bi && !ours {
            self.publisher.on_readable(&mut self.wire, id, now);
        } else {
            self.viewer.on_readable(&mut self.wire, id, now);
        }
    }

    /// Reads again, all that waited.
    pub(super) fn resume(&mut self, now: Instant) {
        self.viewer.reading = true;
        for id in self.viewer.unread() {
            self.viewer.on_readable(&mut self.wire, id, now);
        }
    }

    /// From now on the relay gets `bytes` of connection credit beyond what it has.
    pub(super) fn set_credit(&mut self, bytes: u32) {
        self.wire.conn.set_receive_window(VarInt::from_u32(bytes));
    }

    /// Announces a broadcast with one track, made by `rate`.
    pub(super) fn publish(
        &mut self,
        name: (&str, &str),
        max_age_ms: u64,
        rate: Option<Rate>,
    ) -> usize {
        let (broadcast, track) = name;
        let place = self.publisher.offer(broadcast, track, max_age_ms);
        self.publisher.tracks[place].rate = rate;
        if !self.publisher.announced.iter().any(|held| held == broadcast) {
            self.publisher.announce(&mut self.wire, broadcast);
        }
        place
    }

    pub(super) fn track(&self, place: usize) -> &Publication {
        &self.publisher.tracks[place]
    }

    pub(super) fn subscribe(&mut self, name: (&str, &str), prefs: Preferences) -> usize {
        self.viewer.subscribe(&mut self.wire, name, prefs)
    }

    pub(super) fn sub(&self, place: usize) -> &Subscription {
        &self.viewer.subs[place]
    }
}

impl Client {
    /// True when it hears announcements.
    pub(super) fn listens(&self) -> bool {
        self.spec.role != Some(Role::Publisher) && !self.raw && self.lost.is_none()
    }
}
