//! Requests we make of a peer that publishes: one TRACK and one SUBSCRIBE for each track that
//! somebody here reads, whatever their number.
//!
//! The model says which tracks to look at; what is open is compared with what is wanted, so demand
//! that comes and goes within a turn costs nothing. TRACK and SUBSCRIBE go out together (lite
//! 22.3).

use super::lite::{self, Answer};
use super::streams::{CONTROL_PRIORITY, Dir, ReadEnd, StreamId, Streams};
use super::{Event, Io, Outbound, Session};
use crate::model::TrackKey;
use crate::model::track::{Demand, State};
use crate::name::{GroupSeq, Path};
use crate::wire::code::{Violation, stream as code};

/// What is open at the peer for one track.
#[derive(Default)]
pub(super) struct Upstream {
    info: Option<StreamId>,
    content: Option<Content>,
}

struct Content {
    stream: StreamId,
    id: u64,
    sent: Demand,
}

impl Session {
    /// Brings what is open at the peer to what is wanted of its tracks.
    pub(super) fn flush_demand<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        let mut tracks = std::mem::take(&mut self.stalled_demand);
        tracks.extend(io.model.take_demand(self.key));
        for track in tracks {
            self.serve_demand(io, track);
        }
        let retired = io.model.peer(self.key).map(|peer| std::mem::take(&mut peer.retired));
        for track in retired.unwrap_or_default() {
            self.drop_upstream(io, track);
        }
    }

    fn serve_demand<S: Streams>(&mut self, io: &mut Io<'_, S>, track: TrackKey) {
        let Some(held) = io.model.track(track) else {
            self.drop_upstream(io, track);
            return;
        };
        let live = held.state == State::Live;
        let demand = io.model.demand(track);
        let ask = held.info.is_none() && (demand.is_some() || held.is_asked());
        let upstream = self.upstreams.entry(track).or_default();
        let subscribe = demand.is_some() && upstream.content.is_none() && live;
        let ask = ask && upstream.info.is_none() && !matches!(held.state, State::Failed(_));
        if (subscribe || ask) && self.goaway {
            io.model.fail_track(track, code::GOING_AWAY);
            return;
        }
        if ask && !self.open_info(io, track)
            || demand.is_some_and(|demand| subscribe && !self.open_content(io, track, demand))
        {
            if !self.stalled_demand.contains(&track) {
                self.stalled_demand.push(track);
            }
            return;
        }
        match demand {
            Some(demand) => self.update_content(io, track, demand),
            None => {
                self.close_content(io, track);
                io.model.pause_track(track);
            }
        }
    }

    /// The path the peer knows a track by: below its own root.
    fn relative<S: Streams>(&self, io: &Io<'_, S>, track: TrackKey) -> Option<Path> {
        let held = io.model.track(track)?;
        let root = &self.grant.as_ref()?.root;
        Path::parse(held.path.strip(root)?).ok()
    }

    fn open_info<S: Streams>(&mut self, io: &mut Io<'_, S>, track: TrackKey) -> bool {
        let Some(path) = self.relative(io, track) else { return true };
        let Some(id) = io.streams.open(Dir::Bi) else { return false };
        let mut bytes = io.streams.prefix(Dir::Bi).to_vec();
        let Some(held) = io.model.track(track) else { return true };
        lite::put_track(&path, &held.name, &mut bytes);
        io.streams.prioritize(id, CONTROL_PRIORITY);
        self.outbound.insert(id, Outbound::Track { track, buffer: Vec::new() });
        self.upstreams.entry(track).or_default().info = Some(id);
        self.say(io, id, &bytes, false);
        true
    }

    fn open_content<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        track: TrackKey,
        demand: Demand,
    ) -> bool {
        let Some(path) = self.relative(io, track) else { return true };
        let Some(stream) = io.streams.open(Dir::Bi) else { return false };
        let id = self.next_sub;
        self.next_sub += 1;
        let mut bytes = io.streams.prefix(Dir::Bi).to_vec();
        let Some(held) = io.model.track(track) else { return true };
        lite::put_subscribe(self.version, id, (&path, &held.name), &demand, &mut bytes);
        io.streams.prioritize(stream, CONTROL_PRIORITY);
        self.outbound.insert(stream, Outbound::Subscribe { track, buffer: Vec::new() });
        self.subs.insert(id, track);
        let content = Content { stream, id, sent: demand };
        self.upstreams.entry(track).or_default().content = Some(content);
        io.model.counters.upstream_subscribes += 1;
        self.say(io, stream, &bytes, false);
        true
    }

    fn update_content<S: Streams>(&mut self, io: &mut Io<'_, S>, track: TrackKey, demand: Demand) {
        let upstream = self.upstreams.get_mut(&track);
        let Some(content) = upstream.and_then(|upstream| upstream.content.as_mut()) else { return };
        if content.sent == demand {
            return;
        }
        content.sent = demand;
        let stream = content.stream;
        let mut bytes = Vec::new();
        lite::put_update(self.version, &demand, &mut bytes);
        self.say(io, stream, &bytes, false);
    }

    /// Unsubscribes: the request half is reset, the answer half stopped (lite 2.3).
    fn close_content<S: Streams>(&mut self, io: &mut Io<'_, S>, track: TrackKey) {
        let upstream = self.upstreams.get_mut(&track);
        let Some(content) = upstream.and_then(|upstream| upstream.content.take()) else { return };
        self.subs.remove(&content.id);
        self.drop_outbound(io, content.stream);
    }

    fn drop_outbound<S: Streams>(&mut self, io: &mut Io<'_, S>, stream: StreamId) {
        if self.outbound.remove(&stream).is_some() {
            self.outboxes.remove(&stream);
            io.streams.reset(stream, code::CANCELLED);
            io.streams.stop(stream, code::INTERNAL);
        }
    }

    fn drop_upstream<S: Streams>(&mut self, io: &mut Io<'_, S>, track: TrackKey) {
        self.close_content(io, track);
        if let Some(upstream) = self.upstreams.remove(&track)
            && let Some(info) = upstream.info
        {
            self.drop_outbound(io, info);
        }
    }

    /// Something arrived on a stream we opened.
    pub(super) fn read_answer<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        let max = self.terms.limits.message_bytes;
        let (track, info, mut buffer) = match self.outbound.get_mut(&id) {
            Some(Outbound::Announce) => return self.read_announcements(io, id),
            Some(Outbound::Subscribe { track, buffer }) => (*track, false, std::mem::take(buffer)),
            Some(Outbound::Track { track, buffer }) => (*track, true, std::mem::take(buffer)),
            None => return,
        };
        let end = io.streams.read(id, &mut |chunk| {
            buffer.extend_from_slice(chunk);
            buffer.len() <= max
        });
        let parsed = match info {
            true => self.feed_info(io, id, track, &buffer),
            false => self.feed_content(io, track, &mut buffer),
        };
        if let Err(violation) = parsed {
            io.events.push(Event::Violation(violation));
            io.model.fail_track(track, violation.code());
            self.drop_upstream(io, track);
            return;
        }
        match self.outbound.get_mut(&id) {
            Some(
                Outbound::Subscribe { buffer: held, .. } | Outbound::Track { buffer: held, .. },
            ) => {
                *held = buffer;
            }
            _ => return,
        }
        self.end_answer(io, id, track, end);
    }

    fn feed_info<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        id: StreamId,
        track: TrackKey,
        buffer: &[u8],
    ) -> Result<(), Violation> {
        if let Some(info) = lite::info(self.version, buffer, self.terms.limits.message_bytes)? {
            io.model.set_info(track, info);
            self.outbound.remove(&id);
            if let Some(upstream) = self.upstreams.get_mut(&track) {
                upstream.info = None;
            }
            io.streams.reset(id, code::CANCELLED);
            io.streams.stop(id, code::INTERNAL);
        }
        Ok(())
    }

    fn feed_content<S: Streams>(
        &self,
        io: &mut Io<'_, S>,
        track: TrackKey,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        let max = self.terms.limits.message_bytes;
        let mut used = 0;
        while let Some((answer, len)) = lite::answer(self.version, &buffer[used..], max)? {
            used += len;
            let had_end = io.model.track(track).is_some_and(|track| track.end.is_some());
            match answer {
                Answer::Start(group) => io.model.set_start(track, GroupSeq(group)),
                Answer::End(_) if had_end && self.version.strict_end() => {
                    return Err(Violation::EndTwice);
                }
                Answer::End(group) => {
                    let strict = self.version.strict_end();
                    if io.model.set_end(track, GroupSeq(group), strict).is_err() {
                        return Err(Violation::GroupPastEnd);
                    }
                }
                Answer::Drop => {}
            }
        }
        buffer.drain(..used);
        Ok(())
    }

    fn end_answer<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        id: StreamId,
        track: TrackKey,
        end: ReadEnd,
    ) {
        let code = match end {
            ReadEnd::Blocked | ReadEnd::Paused => return,
            ReadEnd::Reset(code) => code,
            ReadEnd::Fin => {
                let content = matches!(self.outbound.get(&id), Some(Outbound::Subscribe { .. }));
                if content && io.model.finish_track(track).is_ok() {
                    io.streams.finish(id);
                    self.outbound.remove(&id);
                    // The subscription's id stays known: groups may still be on their way.
                    return;
                }
                io.events.push(Event::Violation(Violation::ResponseMalformed));
                code::SESSION_CLOSED
            }
        };
        io.model.fail_track(track, code);
        self.drop_upstream(io, track);
    }
}
