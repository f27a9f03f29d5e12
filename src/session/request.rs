//! Requests that a peer makes of us, from the first byte of their stream to its end.
//!
//! One stream, one request; a malformed one costs its stream. Invariant: a request that was
//! accepted owns what it opened in the model (`Asked`), and gives it back whatever way the stream
//! ends.

use super::lite;
use super::streams::{ReadEnd, StreamId, Streams};
use super::{Inbound, Io, Prefs, Request, Session, State};
use crate::model::cursor::{CursorFlags, Want};
use crate::model::flight::Hold;
use crate::model::{CursorKey, Ended, Model, PeerKey, ReaderKey, TrackKey};
use crate::name::{Path, TrackName};
use crate::session::image::CLASS_LITE;
use crate::wire::code::{Violation, stream as code};

/// What an accepted request holds.
pub(super) enum Asked {
    /// Announcements; their state is in `Session::telling`.
    Announcements,
    /// A subscription, and the bytes of an update that is arriving.
    Subscription { reader: ReaderKey, buffer: Vec<u8> },
    /// The info of a track, not known yet.
    Info { track: TrackKey, stream: u64 },
    /// Nothing: answered, or never to be.
    Nothing,
}

impl Asked {
    /// Gives back what the request held in the model.
    pub(super) fn release(self, model: &mut Model, peer: PeerKey) {
        match self {
            Self::Subscription { reader, .. } => model.close_reader(reader),
            Self::Info { track, stream } => model.unask_info(peer, track, stream),
            Self::Announcements | Self::Nothing => {}
        }
    }
}

impl Session {
    /// Reads SETUP or a request stream of the peer.
    pub(super) fn read_request<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        let mut bytes = std::mem::take(&mut self.scratch);
        let limit = self.terms.limits.message_bytes + 16;
        loop {
            bytes.clear();
            let end = io.streams.read(id, &mut |chunk| {
                bytes.extend_from_slice(chunk);
                bytes.len() < limit
            });
            self.feed_request(io, id, &bytes);
            if end != ReadEnd::Paused || !self.inbound.contains_key(&id) {
                self.end_request(io, id, end);
                break;
            }
        }
        self.scratch = bytes;
    }

    fn feed_request<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let Some(state) = self.inbound.get_mut(&id) else { return };
        match state {
            Inbound::Setup(buffer) => {
                buffer.extend_from_slice(bytes);
                self.feed_setup(io, id);
            }
            Inbound::Fresh(buffer) => {
                buffer.extend_from_slice(bytes);
                self.feed_fresh(io, id);
            }
            Inbound::Asked(Asked::Subscription { buffer, .. }) => {
                buffer.extend_from_slice(bytes);
                self.feed_update(io, id);
            }
            Inbound::Asked(_) => self.violate(io, id, Violation::RequestTrailing),
            Inbound::Group(_) | Inbound::Done => {}
        }
    }

    pub(super) fn feed_setup<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        let Some(Inbound::Setup(buffer)) = self.inbound.get(&id) else { return };
        if self.state != State::Setup {
            self.violate(io, id, Violation::SecondSetup);
            return;
        }
        match lite::setup(buffer) {
            Ok(None) => {}
            Ok(Some(declared)) => {
                self.inbound.insert(id, Inbound::Done);
                self.on_setup(io, declared);
            }
            Err(violation) => self.violate(io, id, violation),
        }
    }

    fn feed_fresh<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        let Some(Inbound::Fresh(buffer)) = self.inbound.get(&id) else { return };
        let limits = &self.terms.limits;
        match lite::request(self.version, buffer, limits) {
            Ok(None) => {}
            Ok(Some((request, used))) => {
                let rest = buffer[used..].to_vec();
                self.inbound.insert(id, Inbound::Asked(Asked::Nothing));
                self.on_request(io, id, request);
                self.feed_request(io, id, &rest);
            }
            Err(violation) => self.violate(io, id, violation),
        }
    }

    fn feed_update<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        let max = self.terms.limits.message_bytes;
        let state = self.inbound.get_mut(&id);
        let Some(Inbound::Asked(Asked::Subscription { reader, buffer })) = state else { return };
        let reader = *reader;
        let (mut used, mut last) = (0, None);
        let fault = loop {
            match lite::update(self.version, &buffer[used..], max) {
                Ok(None) => break None,
                Ok(Some((prefs, len))) => {
                    used += len;
                    last = Some(prefs);
                }
                Err(violation) => break Some(violation),
            }
        };
        buffer.drain(..used);
        if let Some(violation) = fault {
            self.end_flows(io, reader, code::CANCELLED);
            self.violate(io, id, violation);
        } else if let Some(prefs) = last {
            // Each replaces the one before, so only the last of a burst is carried out.
            self.on_update(io, reader, &prefs);
        }
    }

    fn on_request<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId, request: Request) {
        match request {
            Request::Announce { prefix, exclude } => self.tell(io, id, &prefix, exclude),
            Request::Subscribe { id: name, broadcast, track, prefs } => {
                let want = Want {
                    id: name,
                    stream: id.0,
                    class: CLASS_LITE,
                    range: prefs.range,
                    max_age_ms: prefs.max_age_ms,
                    priority: prefs.priority,
                };
                self.on_subscribe(io, id, (&broadcast, &track), want);
            }
            Request::Track { broadcast, track } => self.on_track(io, id, &broadcast, &track),
            Request::Probe => {}
            Request::Goaway => self.on_goaway(io, id),
        }
    }

    /// The track a request names, or the code to refuse it with.
    fn find_track<S: Streams>(
        &self,
        io: &mut Io<'_, S>,
        broadcast: &Path,
        track: &TrackName,
    ) -> Result<TrackKey, u64> {
        let grant = self.grant.as_ref().filter(|grant| grant.subscribe);
        let root = &grant.ok_or(code::UNAUTHORIZED)?.root;
        let path = root.join(broadcast).map_err(|_| code::UNROUTABLE)?;
        let (_, source) = io.model.route(self.key, &path).ok_or(code::UNROUTABLE)?;
        io.model.open_track(source, &path, track).ok_or(code::INTERNAL)
    }

    fn on_subscribe<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        id: StreamId,
        (broadcast, track): (&Path, &TrackName),
        want: Want,
    ) {
        if self.subscriptions() >= self.terms.limits.session_subscriptions {
            io.model.limit_hits.hit("session_subscriptions");
            io.model.counters.subscriptions_refused += 1;
            self.violate(io, id, Violation::TooManyRequests);
            return;
        }
        let opened = self
            .find_track(io, broadcast, track)
            .and_then(|track| io.model.open_reader(self.key, track, want).ok_or(code::INTERNAL));
        match opened {
            Ok(reader) => {
                let asked = Asked::Subscription { reader, buffer: Vec::new() };
                self.inbound.insert(id, Inbound::Asked(asked));
            }
            Err(code) => {
                io.model.counters.subscriptions_refused += 1;
                self.refuse(io, id, code);
            }
        }
    }

    fn subscriptions(&self) -> usize {
        let is = |held: &&Inbound| matches!(held, Inbound::Asked(Asked::Subscription { .. }));
        self.inbound.values().filter(is).count()
    }

    fn on_update<S: Streams>(&mut self, io: &mut Io<'_, S>, reader: ReaderKey, prefs: &Prefs) {
        let Some(held) = io.model.reader(reader) else { return };
        let range = prefs
            .range
            .unwrap_or(crate::model::cursor::Range { start: held.range.start, ..held.range });
        let changed = held.priority != prefs.priority;
        io.model.update_reader(reader, range, prefs.max_age_ms, prefs.priority);
        if changed {
            self.reprioritize(io, reader);
        }
    }

    fn on_track<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        id: StreamId,
        broadcast: &Path,
        track: &TrackName,
    ) {
        match self.find_track(io, broadcast, track) {
            Ok(track) => {
                let asked = Asked::Info { track, stream: id.0 };
                self.inbound.insert(id, Inbound::Asked(asked));
                io.model.ask_info(self.key, track, id.0);
            }
            Err(code) => self.refuse(io, id, code),
        }
    }

    fn end_request<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId, end: ReadEnd) {
        match end {
            ReadEnd::Blocked | ReadEnd::Paused => {}
            ReadEnd::Fin => match self.inbound.get(&id) {
                Some(Inbound::Setup(_)) => self.violate(io, id, Violation::SetupMalformed),
                Some(Inbound::Fresh(buffer)) if !buffer.is_empty() => {
                    self.violate(io, id, Violation::RequestMalformed);
                }
                Some(_) => self.leave_request(io, id, None),
                None => {}
            },
            ReadEnd::Reset(code) => match self.inbound.get(&id) {
                Some(Inbound::Setup(_)) => self.violate(io, id, Violation::SetupMalformed),
                Some(_) => self.leave_request(io, id, Some(code)),
                None => {}
            },
        }
    }

    /// The requester left: with FIN (`None`) or a reset code. FIN and code 1 mean the same.
    pub(super) fn leave_request<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        id: StreamId,
        left: Option<u64>,
    ) {
        if id.is_uni() {
            self.forget_uni(id);
            return;
        }
        let Some(state) = self.inbound.remove(&id) else { return };
        self.held.retain(|held| *held != id);
        self.outboxes.remove(&id);
        match state {
            Inbound::Asked(Asked::Subscription { reader, .. }) => {
                self.end_flows(io, reader, code::CANCELLED);
                io.model.close_reader(reader);
                match left {
                    None => io.streams.finish(id),
                    Some(code) => io.streams.reset(id, code),
                }
            }
            Inbound::Asked(Asked::Announcements) => {
                self.stop_telling(io.model, id);
                io.streams.reset(id, code::CANCELLED);
            }
            Inbound::Asked(asked @ Asked::Info { .. }) => {
                asked.release(io.model, self.key);
                io.streams.reset(id, code::CANCELLED);
            }
            Inbound::Asked(Asked::Nothing) | Inbound::Fresh(_) => {
                io.streams.reset(id, code::CANCELLED);
            }
            Inbound::Done | Inbound::Setup(_) | Inbound::Group(_) => {}
        }
    }

    /// Resets the streams of a subscription that is over before they were.
    pub(super) fn end_flows<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        reader: ReaderKey,
        code: u64,
    ) {
        let ends = |model: &Model, cursor: CursorKey| {
            let held = model.cursor(cursor)?;
            let finished = held.flags.has(CursorFlags::FINISHED);
            (held.reader == reader.index() && !finished).then_some(())
        };
        let ended: Vec<(StreamId, Hold)> = self
            .flows
            .iter()
            .filter(|(_, hold)| matches!(*hold, Hold::Cursor(key) if ends(io.model, key).is_some()))
            .collect();
        for (stream, hold) in ended {
            self.break_off(io, stream, hold, Ended::Code(code));
        }
        self.moor(io.model, reader);
    }
}
