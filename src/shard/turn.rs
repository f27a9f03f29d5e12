//! One turn of a shard, in order:
//!
//! ```text
//! receive -> converse -> take mail -> fire timers -> settle model -> flush sessions -> transmit ->
//! flush net
//! ```
//! Each step is bounded and drains what the step before marked; what is left stays marked and makes
//! the next turn follow at once. A connection is sent for once a turn, with one train.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::{ConnectionError, Event as QuicEvent, StreamEvent, Transmit};

use super::Shard;
use super::streams::{Raw, number};
use crate::fanout::message::ToShard;
use crate::model::PeerKey;
use crate::name::{Facts, Grant, Role};
use crate::net::{Counters, Net, Rx, SLOT_BYTES, Send};
use crate::quic::endpoint::From;
use crate::session::streams::Dir;
use crate::session::{Event, Io, Session};
use crate::wire::code::{session as close, stream as code};

/// A train whose last packet leaves this much room ended because there was no more to send.
const SLACK: usize = 64;

/// What a turn leaves behind.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// There is work that waits for nothing: turn again.
    pub busy: bool,
    /// Something arrived or left.
    pub active: bool,
    /// When to turn again if nothing arrives.
    pub deadline: Option<Instant>,
    /// Closed as asked; everything was sent.
    pub ended: bool,
}

impl<N: Net> Shard<N> {
    /// One turn. `clock` is read at its start, and once more when its trains are on their way.
    pub fn turn(&mut self, clock: &mut dyn FnMut() -> Instant) -> Outcome {
        self.turns += 1;
        self.now = clock();
        self.model.tick(self.now_us());
        let before = self.net.counters();
        let more = self.receive();
        self.converse();
        self.take_mail();
        self.fire_timers();
        self.model.settle();
        self.flush_sessions();
        let left = self.transmit();
        let sent = self.net.flush();
        self.edge.flush();
        self.sample(clock);
        let after = self.net.counters();
        let moved = |counters: &Counters| counters.rx_messages + counters.tx_sends;
        Outcome {
            busy: (more || left || self.model.has_dirty()) && sent,
            active: moved(&after) > moved(&before),
            deadline: self.deadline(),
            ended: self.closing && !left && sent,
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.now.duration_since(self.epoch).as_micros()).unwrap_or(u64::MAX)
    }

    fn deadline(&self) -> Option<Instant> {
        let at = |us: u64| self.epoch + Duration::from_micros(us);
        let setup = self.setup_due.front().map(|(due, _)| at(*due));
        let model = self.model.deadline_us().map(at);
        [self.quic.deadline(), setup, model].into_iter().flatten().min()
    }

    /// Steps 1 and 2: datagrams to their connections.
    fn receive(&mut self) -> bool {
        let Self { net, quic, reply, now, .. } = self;
        let mut replies: Vec<(u16, Transmit, Vec<u8>)> = Vec::new();
        let more = net.rx(self.config.limits.turn_messages, &mut |rx: Rx<'_>| {
            let from =
                From { socket: rx.socket, remote: rx.from, local_ip: rx.local_ip, ecn: rx.ecn };
            for data in rx.data.chunks(rx.stride.max(1)) {
                reply.clear();
                if let Some(transmit) = quic.handle(*now, &from, BytesMut::from(data), reply) {
                    replies.push((rx.socket, transmit, reply.clone()));
                }
            }
        });
        for (socket, transmit, data) in replies {
            // Without a slot the answer is lost, as a datagram may be.
            let Some(slot) = self.net.take() else { break };
            self.net.buf(slot).extend_from_slice(&data[..transmit.size]);
            self.net.send(slot, sending(socket, &transmit));
        }
        more
    }

    /// Steps 2 and 3: what connections have to say, to their sessions.
    fn converse(&mut self) {
        // Who still waits to be sent for since the last turn is not touched again, and may have
        // heard something meanwhile.
        for at in 0..self.sending.len() {
            self.converse_one(self.sending[at] as usize);
        }
        let mut touched = std::mem::take(&mut self.touched);
        self.quic.take_touched(&mut touched);
        for slot in touched.drain(..) {
            self.converse_one(slot as usize);
            self.sending.push_back(slot);
        }
        self.touched = touched;
    }

    fn converse_one(&mut self, slot: usize) {
        while let Some(event) = self.quic.poll(slot) {
            match event {
                QuicEvent::Connected => self.on_connected(slot),
                QuicEvent::ConnectionLost { reason } => self.on_lost(slot, &reason),
                QuicEvent::Stream(event) => self.on_stream(slot, &event),
                QuicEvent::HandshakeDataReady
                | QuicEvent::DatagramReceived
                | QuicEvent::DatagramsUnblocked => {}
            }
        }
    }

    fn on_stream(&mut self, slot: usize, event: &StreamEvent) {
        self.with_session(slot, |session, io| match *event {
            StreamEvent::Opened { dir } => session.on_opened(io, direction(dir)),
            StreamEvent::Readable { id } => session.on_readable(io, number(id)),
            StreamEvent::Writable { id } => session.on_writable(io, number(id)),
            StreamEvent::Finished { id } => session.on_finished(io, number(id)),
            StreamEvent::Stopped { id, .. } => session.on_stopped(io, number(id)),
            StreamEvent::Available { dir } => session.on_available(io, direction(dir)),
        });
    }

    /// Runs `act` on the session of a connection, then deals with what it asks for.
    fn with_session<T>(
        &mut self,
        slot: usize,
        act: impl FnOnce(&mut Session, &mut Io<'_, Raw<'_>>) -> T,
    ) -> Option<T> {
        let connection = self.quic.connection(slot)?;
        if connection.session == 0 {
            return None;
        }
        let key = PeerKey::from_bits(connection.session);
        let session = self.sessions.get_mut(key.index() as usize)?.as_mut()?;
        let mut streams = Raw { connection };
        let mut io = Io { model: &mut self.model, streams: &mut streams, events: &mut self.events };
        let out = act(session, &mut io);
        if !self.events.is_empty() {
            self.handle_events(slot, key);
        }
        Some(out)
    }

    fn handle_events(&mut self, slot: usize, key: PeerKey) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                Event::Ask(facts) => self.ask(slot, key, facts),
                Event::Violation(violation) => {
                    self.violations.hit(violation.as_str());
                    let second = self.now_us() / 1_000_000;
                    if self.throttle.admit(violation.as_str(), second) {
                        let remote =
                            self.quic.connection(slot).map(|held| held.inner.remote_address());
                        tracing::info!(?remote, reason = violation.as_str(), "peer did wrong");
                    }
                }
                Event::Close { code, reason } => {
                    self.quic.close(self.now, slot, code, reason);
                    self.end_session(slot, code::SESSION_CLOSED);
                }
            }
        }
        if self.events.is_empty() {
            self.events = events;
        }
    }

    /// Anonymous access is answered here and now; everything else is control's to decide.
    fn ask(&mut self, slot: usize, key: PeerKey, facts: Facts) {
        if self.open_access {
            let grant = Grant {
                root: facts.path,
                publish: facts.role != Some(Role::Subscriber),
                subscribe: facts.role != Some(Role::Publisher),
            };
            self.with_session(slot, |session, io| session.on_grant(io, grant));
        } else if !self.edge.ask(facts) {
            self.with_session(slot, |session, io| session.on_refused(io, close::INTERNAL));
        }
        let _ = key;
    }

    fn on_connected(&mut self, slot: usize) {
        let versions = &self.versions;
        let Some(connection) = self.quic.connection(slot) else { return };
        let alpn = connection.alpn();
        let version = alpn.and_then(|alpn| versions.iter().find(|held| held.alpn() == alpn));
        let Some(version) = version.copied() else {
            self.quic.close(self.now, slot, close::VERSION, "no common version");
            return;
        };
        let Some(key) = self.model.open_peer() else {
            self.model.limit_hits.hit("connections");
            self.quic.close(self.now, slot, close::INTERNAL, "too many sessions");
            return;
        };
        connection.session = key.to_bits();
        let place = key.index() as usize;
        if self.sessions.len() <= place {
            self.sessions.resize_with(place + 1, || None);
            self.connections.resize(place + 1, 0);
        }
        let session = Session::new(key, version, std::rc::Rc::clone(&self.terms));
        self.sessions[place] = Some(Box::new(session));
        self.connections[place] = u32::try_from(slot).expect("bounded by connections");
        self.model.counters.sessions_opened += 1;
        let wait = u64::try_from(self.config.listen.timeout.as_micros()).unwrap_or(u64::MAX);
        if wait > 0 {
            self.setup_due.push_back((self.now_us().saturating_add(wait), key));
        }
        tracing::debug!(version = version.name(), "session began");
    }

    fn on_lost(&mut self, slot: usize, reason: &ConnectionError) {
        let code = match reason {
            ConnectionError::ApplicationClosed(closed) => {
                let plain = closed.error_code.into_inner();
                if plain >= code::APP { plain } else { code::SESSION_CLOSED }
            }
            _ => code::SESSION_CLOSED,
        };
        tracing::debug!(%reason, "connection ended");
        self.end_session(slot, code);
    }

    /// Takes a session out of everything; `code` is what its tracks end with for their viewers.
    fn end_session(&mut self, slot: usize, code: u64) {
        let Some(connection) = self.quic.connection(slot) else { return };
        let bits = std::mem::take(&mut connection.session);
        if bits == 0 {
            return;
        }
        let key = PeerKey::from_bits(bits);
        if let Some(mut session) = self.sessions[key.index() as usize].take() {
            session.on_closed(&mut self.model, code);
            self.model.counters.sessions_closed += 1;
        }
    }

    /// Step 4: what control has to say.
    fn take_mail(&mut self) {
        for _ in 0..self.config.limits.turn_mail {
            let Some(mail) = self.edge.pop() else { return };
            match mail {
                ToShard::Granted { session, grant } => {
                    self.with_asker(session, |session, io| session.on_grant(io, *grant));
                }
                ToShard::Refused { session, code } => {
                    self.with_asker(session, |session, io| session.on_refused(io, code));
                }
                ToShard::Snapshot { ticket } => {
                    let snapshot = self.snapshot();
                    self.edge.report(ticket, snapshot);
                }
                ToShard::Ping => self.edge.pong(),
                ToShard::Close => self.close_all(),
            }
        }
    }

    fn with_asker(&mut self, bits: u64, act: impl FnOnce(&mut Session, &mut Io<'_, Raw<'_>>)) {
        let key = PeerKey::from_bits(bits);
        let Some(slot) = self.connections.get(key.index() as usize).copied() else { return };
        let slot = slot as usize;
        if self.quic.connection(slot).is_some_and(|held| held.session == bits) {
            self.with_session(slot, act);
            self.quic.touch(slot);
        }
    }

    fn close_all(&mut self) {
        self.closing = true;
        let slots: Vec<usize> = self.quic.slots().collect();
        for slot in slots {
            self.quic.close(self.now, slot, close::NONE, "shutting down");
            self.end_session(slot, code::SESSION_CLOSED);
        }
    }

    /// Step 5: due deadlines of connections and sessions.
    fn fire_timers(&mut self) {
        let mut fired = std::mem::take(&mut self.fired);
        self.quic.fire(self.now, &mut fired);
        for slot in fired.drain(..) {
            self.converse_one(slot);
        }
        self.fired = fired;
        let now_us = self.now_us();
        while let Some((due, key)) = self.setup_due.front().copied() {
            if due > now_us {
                return;
            }
            self.setup_due.pop_front();
            self.with_asker(key.to_bits(), |session, io| session.on_setup_timeout(io));
        }
    }

    /// Step 6: every dirty session writes what it has.
    fn flush_sessions(&mut self) {
        while let Some(due) = self.model.pop_dirty() {
            let key = due.key;
            let Some(slot) = self.connections.get(key.index() as usize).copied() else { continue };
            let slot = slot as usize;
            let Some(connection) = self.quic.connection(slot) else { continue };
            if connection.session != key.to_bits() {
                continue;
            }
            connection.refresh_budget();
            let flushed = self.with_session(slot, |session, io| session.flush(io, due));
            self.quic.touch(slot);
            if let Some(flushed) = flushed {
                self.model.counters.bytes_out += flushed.bytes as u64;
                let Some(connection) = self.quic.connection(slot) else { continue };
                if flushed.oldest_us != 0 {
                    let oldest = connection.oldest_us.unwrap_or(u64::MAX);
                    connection.oldest_us = Some(oldest.min(flushed.oldest_us));
                }
            }
        }
        let mut touched = std::mem::take(&mut self.touched);
        self.quic.take_touched(&mut touched);
        self.sending.extend(touched.drain(..));
        self.touched = touched;
    }

    /// Step 7: one train for each connection that has something to send. True when some are left.
    fn transmit(&mut self) -> bool {
        let count = self.sending.len().min(self.config.limits.turn_sends);
        for _ in 0..count {
            let Some(slot) = self.sending.pop_front() else { break };
            let place = slot as usize;
            let Some(full) = self.train(place) else {
                self.sending.push_front(slot);
                break;
            };
            if !self.quic.settle(place) && full {
                self.quic.touch(place);
            }
        }
        !self.sending.is_empty() || self.quic.has_touched()
    }

    /// Sends one train, and what cannot ride in it (probes, handshake packets). `None` without a
    /// slot; true when there may be more.
    fn train(&mut self, place: usize) -> Option<bool> {
        // Without GSO a train is as many single datagrams.
        let mut left = SLOT_BYTES;
        loop {
            let Some(connection) = self.quic.connection(place) else { return Some(false) };
            let socket = connection.socket;
            let mtu = usize::from(connection.inner.current_mtu());
            let segments = self.net.caps(socket).gso_segments.min(SLOT_BYTES / mtu.max(1)).max(1);
            let slot = self.net.take()?;
            let buffer = self.net.buf(slot);
            let Some(transmit) = connection.inner.poll_transmit(self.now, segments, buffer) else {
                self.net.put_back(slot);
                return Some(false);
            };
            if let Some(oldest_us) = connection.oldest_us.take() {
                match self.samples.last_mut() {
                    Some((held, count)) if *held == oldest_us => *count += 1,
                    _ => self.samples.push((oldest_us, 1)),
                }
            }
            let handshaking = connection.inner.is_handshaking();
            self.net.send(slot, sending(socket, &transmit));
            let segment = transmit.segment_size.unwrap_or(mtu);
            let last = match transmit.size % segment {
                0 => segment,
                rest => rest,
            };
            let whole = transmit.size >= segment * segments;
            left = left.saturating_sub(transmit.size);
            if whole && segments > 1 || left < mtu {
                return Some(true);
            }
            let alone = transmit.segment_size.is_none() && transmit.size > mtu;
            let ended = last + SLACK < segment && !alone && !handshaking;
            if ended {
                return Some(false);
            }
        }
    }

    /// Records how old the oldest boundary of each train was when it was submitted.
    fn sample(&mut self, clock: &mut dyn FnMut() -> Instant) {
        if self.samples.is_empty() {
            return;
        }
        let now = clock().duration_since(self.epoch).as_micros();
        let now_us = u64::try_from(now).unwrap_or(u64::MAX);
        for (ingress_us, count) in self.samples.drain(..) {
            let age = now_us.saturating_sub(ingress_us).max(1);
            self.delivery_us.saturating_record(age);
            if count > 1 {
                // The bounds saturate, so recording cannot fail.
                let high = self.delivery_us.high();
                let _ = self.delivery_us.record_n(age.min(high), count - 1);
            }
        }
    }
}

fn direction(dir: quinn_proto::Dir) -> Dir {
    match dir {
        quinn_proto::Dir::Bi => Dir::Bi,
        quinn_proto::Dir::Uni => Dir::Uni,
    }
}

fn sending(socket: u16, transmit: &Transmit) -> Send {
    Send {
        socket,
        to: transmit.destination,
        src: transmit.src_ip,
        ecn: transmit.ecn.map_or(0, |ecn| ecn as u8),
        segment: transmit.segment_size,
        len: transmit.size,
    }
}
