//! The media of a session's flush: which streams are opened, and what each is given.
//!
//! ```text
//! keeps up: deliver (a new group), feed (newer bytes)      anything else: the walk by priority
//! ```
//! The common cases take one step each (`model/deliver.rs`); the walk orders everything else. A
//! refusal ends it: a cursor waits for its stream, a reader without a stream is parked, and a
//! stream whose header was refused is the spare for the next group. Invariant: a reader is in
//! exactly one of its peer's list, `parked` and the walk's work while it is `queued`.

use bytes::Bytes;

use super::egress::{Flushed, Work, priority};
use super::image::{FRAME_HEADER_MAX, absolute_header};
use super::lite;
use super::streams::{Dir, StreamId, Streams};
use super::{Io, Session};
use crate::model::cursor::{CursorFlags, Step};
use crate::model::deliver::{Fed, HEADER_MAX, Newest};
use crate::model::flight::Hold;
use crate::model::group::LaneEnd;
use crate::model::track::State;
use crate::model::{Ended, GroupKey, Model, ReaderKey};
use crate::name::GroupSeq;
use crate::wire::code::stream as code;

/// Slices handed to a stream before others have their turn.
const SLICES: usize = 8;
/// How many stream numbers, ended ones included, a session may span for each it may have open.
const SPAN_RATIO: usize = 8;

/// A group that a reader is about to open.
struct Opening {
    group: GroupKey,
    seq: GroupSeq,
    /// First frame its stream carries.
    frame: u64,
    priority: i32,
    /// The subscriber's name for the subscription.
    name: u64,
    /// Its request stream.
    request: StreamId,
}

/// A stream that took the beginning of a group.
struct Begun {
    reader: ReaderKey,
    stream: StreamId,
    /// Header bytes it did not take.
    rest: Bytes,
    /// Bytes it took behind the header.
    body: usize,
}

/// How opening a group went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Went {
    /// Everything was taken.
    On,
    /// Something was refused behind the header: no more media in this turn.
    Blocked,
    /// There was no stream, or it refused its header: the reader waits.
    Parked,
}

impl Session {
    /// The common case of a new group: a reader that keeps up gets it whole. `None` if it is not
    /// that, and nothing was done.
    #[inline]
    pub(super) fn deliver<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        reader: ReaderKey,
    ) -> Option<Flushed> {
        let most = self.terms.limits.session_groups_out;
        if self.spare.is_some() || self.flows.span() >= most {
            return None;
        }
        if !io.streams.prefix(Dir::Uni).is_empty() {
            return None;
        }
        let Newest { name, urgency, opened_us, body } = io.model.newest(reader)?;
        let stream = io.streams.open(Dir::Uni)?;
        let priority = priority(urgency, opened_us);
        io.streams.prioritize(stream, priority);
        let version = self.version;
        let tail = io.model.note(1 + version as u8, |seq| lite::group_tail(version, seq));
        let header = io.model.header(|out| lite::put_group_head_of(name, &tail, out));
        let (body_len, offered) = (body.len(), header.len() + body.len());
        let mut chunks = [header, body];
        let taken = io.streams.write(stream, &mut chunks);
        if taken < offered {
            if taken == 0 {
                self.spare = Some(stream);
                return None;
            }
            let [rest, left] = chunks;
            let body = body_len - left.len();
            let begun = Begun { reader, stream, rest, body };
            return Some(self.deliver_rest(io, begun, taken));
        }
        let delivered = io.model.delivered(reader, stream.0, priority);
        self.flows.insert(stream, delivered.hold);
        if matches!(delivered.hold, Hold::Flight(_)) {
            io.streams.finish(stream);
        }
        if delivered.charged > self.terms.limits.session_charge_bytes {
            self.shed(io);
        }
        Some(Flushed { oldest_us: delivered.ingress_us, bytes: delivered.bytes })
    }

    /// A new group's stream took only a part.
    #[cold]
    fn deliver_rest<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        begun: Begun,
        taken: usize,
    ) -> Flushed {
        let mut flushed = Flushed { oldest_us: 0, bytes: taken };
        let reader = begun.reader;
        if let Some(opening) = self.next(io, reader) {
            self.begun(io, &opening, begun, &mut flushed);
            self.work.push((opening.priority, Work::Reader(reader)));
            self.requeue_rest(io.model);
        }
        flushed
    }

    /// Opens what one reader has, newest arrival last, when nothing competes with it.
    pub(super) fn serve<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        reader: ReaderKey,
        flushed: &mut Flushed,
    ) {
        while let Some(opening) = self.next(io, reader) {
            if flushed.bytes >= self.terms.limits.session_turn_bytes {
                self.work.push((0, Work::Reader(reader)));
                return;
            }
            match self.open(io, reader, &opening, flushed) {
                Went::On => {}
                Went::Parked => return,
                Went::Blocked => {
                    self.work.push((opening.priority, Work::Reader(reader)));
                    return;
                }
            }
        }
    }

    /// Writes in order of priority for everything that has something.
    pub(super) fn walk<S: Streams>(&mut self, io: &mut Io<'_, S>, flushed: &mut Flushed) {
        let Some(peer) = io.model.peer(self.key) else { return };
        let mut ready = std::mem::take(&mut peer.ready);
        let mut readers = std::mem::take(&mut peer.readers);
        for (priority, slot) in ready.drain(..) {
            self.work.push((priority, Work::Cursor(io.model.cursor_key(slot))));
        }
        for reader in readers.drain(..) {
            self.queue(io, reader);
        }
        // The lists keep their memory; what came in meanwhile is moved over.
        if let Some(peer) = io.model.peer(self.key) {
            ready.append(&mut peer.ready);
            readers.append(&mut peer.readers);
            peer.ready = ready;
            peer.readers = readers;
        }
        while flushed.bytes < self.terms.limits.session_turn_bytes {
            let Some((_, work)) = self.work.pop() else { return };
            let going = match work {
                Work::Cursor(key) if io.model.cursor(key).is_none() => true,
                Work::Cursor(key) => self.push(io, key.index(), flushed),
                Work::Reader(reader) => self.open_next(io, reader, flushed),
            };
            if !going {
                return;
            }
        }
    }

    /// Opens a reader's next group in its turn of the walk, and puts the one after it in the order.
    fn open_next<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        reader: ReaderKey,
        flushed: &mut Flushed,
    ) -> bool {
        let Some(opening) = self.next(io, reader) else { return true };
        let went = self.open(io, reader, &opening, flushed);
        if went != Went::Parked {
            self.queue(io, reader);
        }
        went == Went::On
    }

    /// Puts a reader's next group, if it has one, in the order of work.
    fn queue<S: Streams>(&mut self, io: &mut Io<'_, S>, reader: ReaderKey) {
        if let Some(opening) = self.next(io, reader) {
            self.work.push((opening.priority, Work::Reader(reader)));
        }
    }

    /// The group a reader should open next; without one the reader rests.
    fn next<S: Streams>(&mut self, io: &mut Io<'_, S>, reader: ReaderKey) -> Option<Opening> {
        let held = io.model.reader_mut(reader)?;
        if held.gone {
            return None;
        }
        if std::mem::take(&mut held.news) && !self.speak(io, reader) {
            return None;
        }
        match io.model.step(reader) {
            Step::Open { group, seq, frame, opened_us } => {
                let held = io.model.reader(reader)?;
                let priority = priority(held.priority, opened_us);
                let request = StreamId(held.stream);
                Some(Opening { group, seq, frame, priority, name: held.id, request })
            }
            Step::Wait => {
                self.rest(io, reader);
                None
            }
        }
    }

    /// A reader has nothing to open. If its track is over and its last stream is written, so is it.
    fn rest<S: Streams>(&mut self, io: &mut Io<'_, S>, reader: ReaderKey) {
        let Some(held) = io.model.reader_mut(reader) else { return };
        held.queued = false;
        if !held.ended || held.writing > 0 {
            return;
        }
        let stream = StreamId(held.stream);
        if io.model.track_of(reader).is_some_and(|track| track.state == State::Drained) {
            self.say(io, stream, &[], true);
            io.streams.stop(stream, code::INTERNAL);
            self.moor(io.model, reader);
            io.model.close_reader(reader);
            self.inbound.remove(&stream);
        }
    }

    /// Tells a reader's peer what its track came to; false when the subscription is over.
    fn speak<S: Streams>(&mut self, io: &mut Io<'_, S>, reader: ReaderKey) -> bool {
        let Some(track) = io.model.track_of(reader) else { return false };
        let (state, end) = (track.state, track.end);
        let Some(held) = io.model.reader_mut(reader) else { return false };
        let stream = StreamId(held.stream);
        if let State::Failed(code) = state {
            held.queued = false;
            self.end_flows(io, reader, code);
            self.refuse(io, stream, code);
            return false;
        }
        if let Some(end) = end
            && !std::mem::replace(&mut held.ended, true)
        {
            let mut bytes = Vec::new();
            lite::put_end(end, &mut bytes);
            self.say(io, stream, &bytes, false);
        }
        true
    }

    /// Opens a group of a reader and writes its beginning.
    fn open<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        reader: ReaderKey,
        opening: &Opening,
        flushed: &mut Flushed,
    ) -> Went {
        let Some(stream) = self.next_stream(io) else {
            self.parked.push(reader);
            return Went::Parked;
        };
        io.streams.prioritize(stream, opening.priority);
        let mut header = self.group_header(io, opening);
        let offered = header.len();
        let taken = io.streams.write(stream, std::slice::from_mut(&mut header));
        if taken == 0 {
            self.spare = Some(stream);
            self.parked.push(reader);
            return Went::Parked;
        }
        flushed.bytes += taken;
        let rest = if taken < offered { header } else { Bytes::new() };
        self.begun(io, opening, Begun { reader, stream, rest, body: 0 }, flushed)
    }

    /// A stream for a group took some bytes.
    fn begun<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        opening: &Opening,
        begun: Begun,
        flushed: &mut Flushed,
    ) -> Went {
        let Begun { reader, stream, rest, body } = begun;
        self.start(io, reader, opening);
        let attached = io.model.attach(reader, opening.group, stream.0, opening.priority);
        let Some(cursor) = attached else {
            io.streams.reset(stream, code::EVICTED);
            return Went::On;
        };
        self.flows.insert(stream, Hold::Cursor(cursor));
        let slot = cursor.index();
        io.model.cursor_at(slot).flags.set(CursorFlags::QUEUED);
        if !rest.is_empty() {
            self.leave_over(io.model, slot, rest);
            return Went::Blocked;
        }
        if body > 0 {
            flushed.note(io.model.advance(slot, body).ingress_us.unwrap_or(0));
        }
        if self.push(io, slot, flushed) { Went::On } else { Went::Blocked }
    }

    /// The stream for the next group: the spare, or a fresh one while the peer and our limit allow.
    fn next_stream<S: Streams>(&mut self, io: &mut Io<'_, S>) -> Option<StreamId> {
        let most = self.terms.limits.session_groups_out;
        if self.flows.len() >= most {
            io.model.limit_hits.hit("session_groups_out");
            return None;
        }
        if self.flows.span() >= most * SPAN_RATIO
            && let Some((stream, oldest)) = self.flows.oldest()
        {
            io.model.limit_hits.hit("session_groups_out");
            self.break_off(io, stream, oldest, Ended::Behind);
        }
        self.spare.take().or_else(|| io.streams.open(Dir::Uni))
    }

    /// START, before the first group of a subscription.
    fn start<S: Streams>(&mut self, io: &mut Io<'_, S>, reader: ReaderKey, opening: &Opening) {
        let Some(held) = io.model.reader_mut(reader) else { return };
        if std::mem::replace(&mut held.started, true) {
            return;
        }
        let mut bytes = Vec::new();
        lite::put_start(opening.seq, &mut bytes);
        self.say(io, opening.request, &bytes, false);
    }

    #[inline]
    fn group_header<S: Streams>(&self, io: &mut Io<'_, S>, opening: &Opening) -> Bytes {
        let head = (opening.name, opening.seq, opening.frame);
        let mut bytes = [0; HEADER_MAX];
        let len = lite::put_group_head(self.version, head, &mut bytes);
        let Io { model, streams, .. } = io;
        let prefix = streams.prefix(Dir::Uni);
        model.header(|out| {
            let total = prefix.len() + len;
            out[..prefix.len()].copy_from_slice(prefix);
            out[prefix.len()..total].copy_from_slice(&bytes[..len]);
            total
        })
    }

    /// Writes what a cursor has. False ends the walk.
    pub(super) fn push<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        slot: u32,
        flushed: &mut Flushed,
    ) -> bool {
        let Io { model, streams, .. } = io;
        let fed = model.feed(slot, |stream, chunk| {
            streams.write(StreamId(stream), std::slice::from_mut(chunk))
        });
        self.push_fed(io, slot, fed, flushed)
    }

    /// What follows from feeding a cursor. False ends the walk.
    pub(super) fn push_fed<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        slot: u32,
        fed: Fed,
        flushed: &mut Flushed,
    ) -> bool {
        match fed {
            Fed::All { bytes, ingress_us, done } => {
                flushed.bytes += bytes as usize;
                flushed.note(ingress_us);
                if let Some(stream) = done {
                    io.streams.finish(StreamId(stream));
                    io.model.finish(slot);
                }
                true
            }
            Fed::Short(taken) => {
                flushed.bytes += taken;
                flushed.note(io.model.advance(slot, taken).ingress_us.unwrap_or(0));
                false
            }
            Fed::Special => {
                let going = self.push_special(io, slot, flushed);
                self.shed(io);
                going
            }
        }
    }

    /// As `push`, for cursors that are in any way out of the ordinary.
    fn push_special<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        slot: u32,
        flushed: &mut Flushed,
    ) -> bool {
        let cursor = io.model.cursor_at(slot);
        let stream = StreamId(cursor.stream);
        let flags = cursor.flags;
        if flags.has(CursorFlags::DOOMED) || flags.has(CursorFlags::FINISHED) {
            return true;
        }
        if let LaneEnd::Reset(code) = io.model.lane_at(io.model_lane(slot)).end {
            io.model.doom(slot, Ended::Code(code));
            self.flush_resets(io);
            return true;
        }
        if flags.has(CursorFlags::LEFTOVER) && !self.push_leftover(io, slot, stream) {
            return false;
        }
        if flags.has(CursorFlags::PROLOGUE) && !self.push_prologue(io, slot) {
            return true;
        }
        for _ in 0..SLICES {
            let (mut chunk, more) = io.model.pull(slot);
            let offered = chunk.len();
            let taken = match offered {
                0 => 0,
                _ => io.streams.write(stream, std::slice::from_mut(&mut chunk)),
            };
            let advanced = io.model.advance(slot, taken);
            flushed.bytes += taken;
            flushed.note(advanced.ingress_us.unwrap_or(0));
            if taken < offered {
                return false;
            }
            if !more {
                io.model.cursor_at(slot).flags.clear(CursorFlags::QUEUED);
                if advanced.done {
                    io.streams.finish(stream);
                    io.model.finish(slot);
                }
                return true;
            }
        }
        let priority = io.model.cursor_at(slot).priority;
        self.work.push((priority, Work::Cursor(io.model.cursor_key(slot))));
        true
    }

    /// Writes the absolute header a stream must begin with when it begins inside an image. False
    /// while the frame is not there.
    fn push_prologue<S: Streams>(&mut self, io: &mut Io<'_, S>, slot: u32) -> bool {
        let Some(boundary) = io.model.prologue(slot) else {
            // Its lane may have ended before that frame: then the stream ends empty.
            let whole = io.model.lane_at(io.model_lane(slot)).end == LaneEnd::Fin;
            let cursor = io.model.cursor_at(slot);
            cursor.flags.clear(CursorFlags::QUEUED);
            let stream = StreamId(cursor.stream);
            if whole {
                io.streams.finish(stream);
                io.model.finish(slot);
            }
            return false;
        };
        let mut bytes = [0; FRAME_HEADER_MAX];
        let len = absolute_header(&boundary, &mut bytes);
        let header = io.model.header(|out| {
            out[..len].copy_from_slice(&bytes[..len]);
            len
        });
        self.leave_over(io.model, slot, header);
        io.model.begin_at_payload(slot);
        let stream = StreamId(io.model.cursor_at(slot).stream);
        self.push_leftover(io, slot, stream)
    }

    /// Keeps header bytes that a stream did not take.
    fn leave_over(&mut self, model: &mut Model, slot: u32, rest: Bytes) {
        model.cursor_at(slot).flags.set(CursorFlags::LEFTOVER);
        self.leftovers.push((slot, rest));
    }

    fn push_leftover<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        slot: u32,
        stream: StreamId,
    ) -> bool {
        while let Some(at) = self.leftovers.iter().position(|(held, _)| *held == slot) {
            let mut chunks = [std::mem::take(&mut self.leftovers[at].1)];
            let offered = chunks[0].len();
            let taken = io.streams.write(stream, &mut chunks);
            if taken < offered {
                let [rest] = chunks;
                self.leftovers[at].1 = rest;
                return false;
            }
            self.leftovers.remove(at);
        }
        io.model.cursor_at(slot).flags.clear(CursorFlags::LEFTOVER);
        true
    }
}

impl<S> Io<'_, S> {
    /// Slot of the lane that the cursor in `slot` reads.
    fn model_lane(&self, slot: u32) -> u32 {
        self.model.lane_slot(slot)
    }
}
