//! What a session writes in a turn: model -> stream.
//!
//! ```text
//! resets -> answers -> demand -> announcements -> control bytes -> readers and cursors by priority
//! ```
//! Expired streams are reset first, since that frees the write budget at once. Media is walked in
//! our own order of priority, never in the order of events; the first refusal ends the walk, and
//! what was refused waits for its stream to become writable. Invariant: a cursor that waits keeps
//! its `QUEUED` bit, so nothing else puts it in the list a second time. `media` holds the walk
//! itself.

use super::lite;
use super::request::Asked;
use super::streams::{StreamId, Streams};
use super::{Inbound, Io, Session};
use crate::model::cursor::CursorFlags;
use crate::model::deliver::Fed;
use crate::model::flight::Hold;
use crate::model::peer::{Due, Notice, Todo};
use crate::model::{CursorKey, Ended, Model, PeerKey, ReaderKey};
use crate::wire::code::stream as code;

/// Bits of the arrival time in a priority.
const AGE_BITS: u32 = 22;

/// One thing to write media for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Work {
    /// A cursor.
    Cursor(CursorKey),
    /// A reader that may open a group.
    Reader(ReaderKey),
}

/// What a flush did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flushed {
    /// Ingress time of the oldest boundary written, microseconds; 0 when none was.
    pub oldest_us: u64,
    /// Media bytes written.
    pub bytes: usize,
}

impl Flushed {
    /// A boundary of this ingress time was written; 0 when none was.
    #[inline]
    pub(super) fn note(&mut self, ingress_us: u64) {
        let later = self.oldest_us != 0 && self.oldest_us <= ingress_us;
        if ingress_us != 0 && !later {
            self.oldest_us = ingress_us;
        }
    }
}

/// Priority of a group's stream: the subscriber's first, then the newest first, by arrival. The
/// time wraps every 70 minutes, when the groups of one moment sort behind those just before it.
pub fn priority(subscriber: u8, opened_us: u64) -> i32 {
    let age = (opened_us / 1000) & ((1 << AGE_BITS) - 1);
    let age = i32::try_from(age).expect("masked to 22 bits");
    i32::from(subscriber) << AGE_BITS | age
}

fn ended_code(ended: Ended) -> u64 {
    match ended {
        Ended::Old => code::OLD,
        Ended::Evicted => code::EVICTED,
        Ended::Behind => code::TOO_FAR_BEHIND,
        Ended::Code(code) => code,
    }
}

fn count(model: &mut Model, ended: Ended) {
    match ended {
        Ended::Old => model.counters.groups_out_reset_old += 1,
        Ended::Behind => model.counters.groups_out_reset_charge += 1,
        Ended::Evicted | Ended::Code(_) => model.counters.groups_out_reset_other += 1,
    }
}

impl Session {
    /// Writes everything that is due, within the turn's bound for one session.
    pub fn flush<S: Streams>(&mut self, io: &mut Io<'_, S>, due: Due) -> Flushed {
        let mut flushed = Flushed::default();
        debug_assert!(!self.calm || self.is_calm(), "what waits clears `calm`");
        match due.todo {
            Todo::Cursor(slot) if self.calm => {
                let Io { model, streams, .. } = io;
                let fed = model.feed(slot, |stream, chunk| {
                    streams.write(StreamId(stream), std::slice::from_mut(chunk))
                });
                if let Fed::All { bytes, ingress_us, done } = fed {
                    if let Some(stream) = done {
                        io.streams.finish(StreamId(stream));
                        io.model.finish(slot);
                    }
                    return Flushed { oldest_us: ingress_us, bytes: bytes as usize };
                }
                self.push_fed(io, slot, fed, &mut flushed);
            }
            Todo::Reader(reader) if self.calm => {
                if let Some(delivered) = self.deliver(io, reader) {
                    return delivered;
                }
                self.serve(io, reader, &mut flushed);
            }
            _ => self.flush_all(io, due, &mut flushed),
        }
        if !self.work.is_empty() {
            self.requeue_rest(io.model);
        }
        flushed
    }

    #[inline(never)]
    fn flush_all<S: Streams>(&mut self, io: &mut Io<'_, S>, due: Due, flushed: &mut Flushed) {
        if self.state == super::State::Closing {
            return;
        }
        let Some(peer) = io.model.peer(self.key) else { return };
        if std::mem::take(&mut peer.control) || !self.calm {
            self.flush_control(io);
            self.calm = self.is_calm();
        }
        match due.todo {
            // Control may have ended it.
            Todo::Cursor(slot) => {
                let priority = io.model.cursor_in(slot).map(|cursor| cursor.priority);
                if let (Some(priority), Some(peer)) = (priority, io.model.peer(self.key)) {
                    peer.ready.push((priority, slot));
                }
            }
            Todo::Reader(reader) if io.model.reader(reader).is_some() => {
                if let Some(peer) = io.model.peer(self.key) {
                    peer.readers.push(reader);
                }
            }
            Todo::Reader(_) | Todo::Lists => {}
        }
        self.walk(io, flushed);
    }

    /// What `calm` says.
    fn is_calm(&self) -> bool {
        let waits = self.untold || self.heard.wanted || self.state == super::State::Closing;
        !waits && self.outboxes.is_empty() && self.stalled_demand.is_empty()
    }

    fn flush_control<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        self.flush_resets(io);
        self.unpark(io.model);
        let notices = io.model.peer(self.key).map(|peer| std::mem::take(&mut peer.notices));
        for notice in notices.unwrap_or_default() {
            self.answer(io, notice);
        }
        self.retry_announcements(io);
        self.flush_demand(io);
        self.flush_outboxes(io);
        self.flush_announcements(io);
    }

    pub(super) fn flush_resets<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        let resets = io.model.peer(self.key).map(|peer| std::mem::take(&mut peer.resets));
        for (cursor, ended) in resets.unwrap_or_default() {
            let Some(held) = io.model.cursor(cursor) else { continue };
            let stream = StreamId(held.stream);
            self.break_off(io, stream, Hold::Cursor(cursor), ended);
        }
        self.flush_overdue(io);
    }

    /// Resets a stream of ours before it was acknowledged.
    pub(super) fn break_off<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        stream: StreamId,
        hold: Hold,
        ended: Ended,
    ) {
        io.streams.reset(stream, ended_code(ended));
        count(io.model, ended);
        self.drop_flow(io.model, stream, hold);
    }

    /// Resets the flights that are past their age, or evicted.
    fn flush_overdue<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        let Some(peer) = io.model.peer(self.key) else { return };
        if !std::mem::take(&mut peer.overdue) {
            return;
        }
        self.flows.take_each(|stream, hold| {
            let Hold::Flight(flight) = *hold else { return false };
            let Some(ended) = io.model.flight_ended(flight) else { return false };
            io.streams.reset(stream, ended_code(ended));
            count(io.model, ended);
            io.model.land(self.key, flight);
            true
        });
        self.unpark(io.model);
    }

    /// Keeps the streams of a reader that closes and has nothing left to write.
    pub(super) fn moor(&mut self, model: &mut Model, reader: ReaderKey) {
        self.flows.take_each(|stream, hold| {
            if let Hold::Flight(flight) = *hold
                && model.is_flight_of(flight, reader)
            {
                *hold = Hold::Cursor(model.moor(self.key, flight, stream.0));
            }
            false
        });
    }

    fn answer<S: Streams>(&mut self, io: &mut Io<'_, S>, notice: Notice) {
        let stream = match notice {
            Notice::Info { stream, .. } | Notice::Refused { stream, .. } => StreamId(stream),
        };
        if !matches!(self.inbound.get(&stream), Some(Inbound::Asked(Asked::Info { .. }))) {
            return;
        }
        self.inbound.remove(&stream);
        match notice {
            Notice::Info { info, .. } => {
                let mut bytes = Vec::new();
                lite::put_info(self.version, &info, &mut bytes);
                self.say(io, stream, &bytes, true);
                io.streams.stop(stream, code::INTERNAL);
            }
            Notice::Refused { code, .. } => self.refuse(io, stream, code),
        }
    }

    /// Puts what the walk did not reach back, for the next turn.
    pub(super) fn requeue_rest(&mut self, model: &mut Model) {
        if self.work.is_empty() {
            return;
        }
        while let Some((priority, work)) = self.work.pop() {
            let alive = match work {
                Work::Cursor(key) => {
                    model.cursor(key).is_some_and(|cursor| cursor.flags.has(CursorFlags::QUEUED))
                }
                Work::Reader(_) => true,
            };
            let Some(peer) = model.peer(self.key) else { return };
            match work {
                Work::Cursor(key) if alive => peer.ready.push((priority, key.index())),
                Work::Cursor(_) => {}
                Work::Reader(reader) => peer.readers.push(reader),
            }
        }
        model.touch(self.key);
    }

    /// Over its limit, a session's oldest stream gives up what it holds.
    pub(super) fn shed<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        let max = self.terms.limits.session_charge_bytes;
        while io.model.peer(self.key).is_some_and(|peer| peer.charge.bytes() > max) {
            let Some((stream, oldest)) = self.flows.oldest() else { return };
            io.model.limit_hits.hit("session_charge_bytes");
            self.break_off(io, stream, oldest, Ended::Behind);
        }
    }

    /// New priority for the streams of a reader that are still being written.
    pub(super) fn reprioritize<S: Streams>(&mut self, io: &mut Io<'_, S>, reader: ReaderKey) {
        let Some(urgency) = io.model.reader(reader).map(|reader| reader.priority) else { return };
        for (stream, hold) in self.flows.iter() {
            let fresh = match hold {
                Hold::Cursor(key) => {
                    let Some(held) = io.model.cursor(key) else { continue };
                    if held.reader != reader.index() {
                        continue;
                    }
                    let age = held.priority & ((1 << AGE_BITS) - 1);
                    let fresh = i32::from(urgency) << AGE_BITS | age;
                    io.model.cursor_at(key.index()).priority = fresh;
                    fresh
                }
                Hold::Flight(flight) if io.model.is_flight_of(flight, reader) => {
                    priority(urgency, io.model.flight_opened_us(flight))
                }
                Hold::Flight(_) => continue,
            };
            io.streams.prioritize(stream, fresh);
        }
    }

    /// Forgets a stream that was reset.
    pub(super) fn drop_flow(&mut self, model: &mut Model, stream: StreamId, hold: Hold) {
        self.flows.remove(stream);
        match hold {
            Hold::Cursor(cursor) => {
                self.leftovers.retain(|(held, _)| *held != cursor.index());
                model.detach(cursor);
            }
            Hold::Flight(flight) => model.land(self.key, flight),
        }
        if !self.parked.is_empty() {
            self.unpark(model);
        }
    }

    /// Readers that waited for a stream try again.
    pub(super) fn unpark(&mut self, model: &mut Model) {
        if self.parked.is_empty() {
            return;
        }
        let Some(peer) = model.peer(self.key) else { return };
        peer.readers.append(&mut self.parked);
        model.touch(self.key);
    }

    /// A cursor whose stream refused bytes tries again.
    pub(super) fn requeue(model: &mut Model, key: PeerKey, cursor: CursorKey) {
        let Some(held) = model.cursor(cursor) else { return };
        let item = (held.priority, cursor.index());
        if held.flags.has(CursorFlags::FINISHED) || !held.flags.has(CursorFlags::QUEUED) {
            return;
        }
        let Some(peer) = model.peer(key) else { return };
        if !peer.ready.iter().any(|(_, slot)| *slot == item.1) {
            peer.ready.push(item);
            model.touch(key);
        }
    }
}
