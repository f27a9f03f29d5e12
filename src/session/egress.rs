//! What a session writes in a turn: model -> stream.
//!
//! ```text
//! resets -> answers -> demand -> announcements -> control bytes -> readers and cursors by priority
//! ```
//! Expired streams are reset first, since that frees the write budget at once. Media is walked in
//! our own order of priority, never in the order of events; the first refusal ends the walk, and
//! what was refused waits for its stream to become writable. Invariant: a cursor that waits keeps
//! its `QUEUED` bit, so nothing else puts it in the list a second time.

use bytes::Bytes;

use super::image::{FRAME_HEADER_MAX, absolute_header};
use super::lite;
use super::request::Asked;
use super::streams::{Dir, StreamId, Streams};
use super::{Inbound, Io, Session};
use crate::model::cursor::{CursorFlags, Step};
use crate::model::group::LaneEnd;
use crate::model::peer::Notice;
use crate::model::track::State;
use crate::model::{CursorKey, Ended, GroupKey, Model, PeerKey, ReaderKey};
use crate::name::GroupSeq;
use crate::wire::code::stream as code;

/// Slices handed to a stream in one write.
const SLICES: usize = 8;
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
    /// Ingress time of the oldest boundary written.
    pub oldest_us: Option<u64>,
    /// Media bytes written.
    pub bytes: usize,
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

impl Session {
    /// Writes everything that is due, within the turn's bound for one session.
    pub fn flush<S: Streams>(&mut self, io: &mut Io<'_, S>) -> Flushed {
        if self.state == super::State::Closing {
            return Flushed::default();
        }
        let Some(peer) = io.model.peer(self.key) else { return Flushed::default() };
        let quiet = peer.resets.is_empty()
            && peer.notices.is_empty()
            && peer.demand.is_empty()
            && peer.retired.is_empty()
            && peer.watched.as_ref().is_none_or(|watched| watched.is_empty())
            && self.outboxes.is_empty();
        if !quiet
            || !self.stalled_demand.is_empty()
            || self.heard.wanted
            || !self.telling.is_empty()
        {
            self.flush_control(io);
        }
        let flushed = self.flush_media(io);
        self.shed(io);
        flushed
    }

    fn flush_control<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        self.flush_resets(io);
        let notices = io.model.peer(self.key).map(|peer| std::mem::take(&mut peer.notices));
        for notice in notices.unwrap_or_default() {
            self.answer(io, notice);
        }
        self.retry_announcements(io);
        self.flush_demand(io);
        self.flush_outboxes(io);
        self.flush_announcements(io);
    }

    fn flush_resets<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        let resets = io.model.peer(self.key).map(|peer| std::mem::take(&mut peer.resets));
        for (cursor, ended) in resets.unwrap_or_default() {
            let Some(held) = io.model.cursor(cursor) else { continue };
            let stream = StreamId(held.stream);
            io.streams.reset(stream, ended_code(ended));
            match ended {
                Ended::Old => io.model.counters.groups_out_reset_old += 1,
                Ended::Behind => io.model.counters.groups_out_reset_charge += 1,
                Ended::Evicted | Ended::Code(_) => {
                    io.model.counters.groups_out_reset_other += 1;
                }
            }
            self.drop_flow(io.model, stream, cursor);
        }
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

    fn flush_media<S: Streams>(&mut self, io: &mut Io<'_, S>) -> Flushed {
        let mut flushed = Flushed::default();
        let Some(peer) = io.model.peer(self.key) else { return flushed };
        if peer.readers.is_empty() && peer.ready.len() == 1 {
            let (_, slot) = peer.ready.pop().expect("just counted");
            self.push(io, slot, &mut flushed);
            self.requeue_rest(io.model);
            return flushed;
        }
        let mut ready = std::mem::take(&mut peer.ready);
        let readers = std::mem::take(&mut peer.readers);
        for (priority, slot) in ready.drain(..) {
            self.work.push((priority, Work::Cursor(io.model.cursor_key(slot))));
        }
        if let Some(peer) = io.model.peer(self.key) {
            peer.ready = ready;
        }
        for reader in &readers {
            self.queue_reader(io, *reader);
        }
        if let Some(peer) = io.model.peer(self.key) {
            let fresh = std::mem::replace(&mut peer.readers, readers);
            peer.readers.clear();
            peer.readers.extend(fresh);
        }
        let budget = self.terms.limits.session_turn_bytes;
        while flushed.bytes < budget {
            let Some((_, work)) = self.work.pop() else { return flushed };
            let taken = match work {
                Work::Cursor(key) if io.model.cursor(key).is_none() => true,
                Work::Cursor(key) => self.push(io, key.index(), &mut flushed),
                Work::Reader(reader) => self.open(io, reader, &mut flushed),
            };
            if !taken {
                break;
            }
        }
        self.requeue_rest(io.model);
        flushed
    }

    /// Puts what the walk did not reach back, for the next turn.
    fn requeue_rest(&mut self, model: &mut Model) {
        if self.work.is_empty() {
            return;
        }
        while let Some((priority, work)) = self.work.pop() {
            let alive = match work {
                Work::Cursor(key) => model.cursor(key).is_some(),
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

    /// Puts a reader's next group, if it has one, in the order of work.
    fn queue_reader<S: Streams>(&mut self, io: &mut Io<'_, S>, reader: ReaderKey) {
        if !self.speak(io, reader) {
            return;
        }
        let Some(held) = io.model.reader(reader) else { return };
        let urgency = held.priority;
        match io.model.step(reader) {
            Step::Open { opened_us, .. } => {
                self.work.push((priority(urgency, opened_us), Work::Reader(reader)));
            }
            Step::Wait => {
                if let Some(held) = io.model.reader_mut(reader) {
                    held.queued = false;
                }
            }
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
            io.model.break_reader(reader, code);
            self.flush_resets(io);
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
        let Some(held) = io.model.reader(reader) else { return false };
        let idle = held.writing == 0;
        if state == State::Drained && idle && io.model.step(reader) == Step::Wait {
            if let Some(held) = io.model.reader_mut(reader) {
                held.queued = false;
            }
            self.say(io, stream, &[], true);
            io.streams.stop(stream, code::INTERNAL);
            io.model.close_reader(reader);
            self.inbound.remove(&stream);
            return false;
        }
        true
    }

    /// Opens the next group of a reader and writes its beginning. False ends the walk.
    fn open<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        reader: ReaderKey,
        flushed: &mut Flushed,
    ) -> bool {
        let Step::Open { group, seq, frame, opened_us } = io.model.step(reader) else {
            if let Some(held) = io.model.reader_mut(reader) {
                held.queued = false;
            }
            return true;
        };
        let Some(held) = io.model.reader(reader) else { return true };
        let (name, request, urgency) = (held.id, StreamId(held.stream), held.priority);
        let full = self.flows.len() >= self.terms.limits.session_groups_out;
        let stream =
            if full { None } else { self.spare.take().or_else(|| io.streams.open(Dir::Uni)) };
        let Some(stream) = stream else {
            self.parked.push(reader);
            return true;
        };
        let priority = priority(urgency, opened_us);
        io.streams.prioritize(stream, priority);
        let header = self.group_header(io, name, seq, frame);
        let mut chunks = [header];
        let length = chunks[0].len();
        let taken = io.streams.write(stream, &mut chunks);
        if taken == 0 {
            self.spare = Some(stream);
            self.parked.push(reader);
            return false;
        }
        self.start(io, reader, request, seq);
        let Some(cursor) = self.attach(io.model, reader, group, (stream, priority)) else {
            io.streams.reset(stream, code::EVICTED);
            return true;
        };
        self.flows.insert(stream, cursor);
        flushed.bytes += taken;
        let slot = cursor.index();
        io.model.cursor_at(slot).flags.set(CursorFlags::QUEUED);
        if taken < length {
            let [rest] = chunks;
            self.leave_over(io.model, slot, rest);
            return false;
        }
        let going = self.push(io, slot, flushed);
        self.queue_reader(io, reader);
        going
    }

    fn attach(
        &self,
        model: &mut Model,
        reader: ReaderKey,
        group: GroupKey,
        (stream, priority): (StreamId, i32),
    ) -> Option<CursorKey> {
        model.attach(reader, group, stream.0, priority)
    }

    /// START, before the first group of a subscription.
    fn start<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        reader: ReaderKey,
        request: StreamId,
        seq: GroupSeq,
    ) {
        let Some(held) = io.model.reader_mut(reader) else { return };
        if std::mem::replace(&mut held.started, true) {
            return;
        }
        let mut bytes = Vec::new();
        lite::put_start(seq, &mut bytes);
        self.say(io, request, &bytes, false);
    }

    fn group_header<S: Streams>(
        &mut self,
        io: &mut Io<'_, S>,
        name: u64,
        seq: GroupSeq,
        frame: u64,
    ) -> Bytes {
        let mut bytes = [0; lite::GROUP_HEAD_MAX];
        let len = lite::write_group_head(self.version, (name, seq, frame), &mut bytes);
        let prefix = io.streams.prefix(Dir::Uni);
        if prefix.is_empty() {
            return io.model.header(&bytes[..len]);
        }
        let mut whole = prefix.to_vec();
        whole.extend_from_slice(&bytes[..len]);
        io.model.header(&whole)
    }

    /// Writes what a cursor has. False ends the walk.
    fn push<S: Streams>(&mut self, io: &mut Io<'_, S>, slot: u32, flushed: &mut Flushed) -> bool {
        let cursor = io.model.cursor_at(slot);
        let stream = StreamId(cursor.stream);
        let flags = cursor.flags;
        if flags.has(CursorFlags::DOOMED) {
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
        let mut chunks: [Bytes; SLICES] = Default::default();
        let count = io.model.pull(slot, &mut chunks);
        let offered: usize = chunks[..count].iter().map(Bytes::len).sum();
        let taken = if offered == 0 { 0 } else { io.streams.write(stream, &mut chunks[..count]) };
        let advanced = io.model.advance(slot, taken);
        flushed.bytes += taken;
        flushed.oldest_us = match (flushed.oldest_us, advanced.ingress_us) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if taken < offered {
            return false;
        }
        if count == SLICES {
            let priority = io.model.cursor_at(slot).priority;
            self.work.push((priority, Work::Cursor(io.model.cursor_key(slot))));
            return true;
        }
        io.model.cursor_at(slot).flags.clear(CursorFlags::QUEUED);
        if advanced.done {
            io.streams.finish(stream);
            io.model.finish(slot);
        }
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
        let header = io.model.header(&bytes[..len]);
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

    /// Over its limit, a session's oldest stream gives up what it holds.
    fn shed<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        let max = self.terms.limits.session_charge_bytes;
        while io.model.peer(self.key).is_some_and(|peer| peer.charge.bytes() > max) {
            let Some(oldest) = self.flows.keys().min().copied() else { return };
            let cursor = self.flows[&oldest];
            io.model.limit_hits.hit("session_charge_bytes");
            io.model.doom(cursor.index(), Ended::Behind);
            self.flush_resets(io);
        }
    }

    /// New priority for the streams of a reader that are still being written.
    pub(super) fn reprioritize<S: Streams>(&mut self, io: &mut Io<'_, S>, reader: ReaderKey) {
        let Some(urgency) = io.model.reader(reader).map(|reader| reader.priority) else { return };
        for (stream, cursor) in self.sorted_flows() {
            let Some(held) = io.model.cursor(cursor) else { continue };
            if held.reader != reader.index() {
                continue;
            }
            let fresh = i32::from(urgency) << AGE_BITS | held.priority & ((1 << AGE_BITS) - 1);
            io.model.cursor_at(cursor.index()).priority = fresh;
            io.streams.prioritize(stream, fresh);
        }
    }

    /// This session's streams in order of opening.
    pub(super) fn sorted_flows(&self) -> Vec<(StreamId, CursorKey)> {
        let mut flows: Vec<_> = self.flows.iter().map(|(id, cursor)| (*id, *cursor)).collect();
        flows.sort_unstable();
        flows
    }

    /// Forgets a stream that was reset.
    pub(super) fn drop_flow(&mut self, model: &mut Model, stream: StreamId, cursor: CursorKey) {
        self.flows.remove(&stream);
        self.leftovers.retain(|(held, _)| *held != cursor.index());
        model.detach(cursor);
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
        if !peer.ready.contains(&item) {
            peer.ready.push(item);
            model.touch(key);
        }
    }
}

impl<S> Io<'_, S> {
    /// Slot of the lane that the cursor in `slot` reads.
    fn model_lane(&self, slot: u32) -> u32 {
        self.model.lane_slot(slot)
    }
}
