//! Readers and cursors: what one subscription wants, and where each of its streams is.
//!
//! A `Reader` decides which group is opened next, skipped or expired; a `Cursor` is (lane, class,
//! offset) of one open stream. Session's egress and fanout's mirrors only carry out what `step`,
//! `pull` and `advance` say. Invariant: a lane lives as long as a cursor is attached to it, and the
//! charge of a cursor is exactly the blocks of the spans `span_first..=span_charged`.

use bytes::Bytes;

use super::group::{ClassId, LaneEnd};
use super::track::{State, Track};
use super::{CursorKey, Ended, GroupKey, LaneKey, Model, PeerKey, ReaderKey, TrackKey};
use crate::name::GroupSeq;

/// No slot.
pub const NIL: u32 = u32::MAX;
/// Updates of a subscription's range that are remembered one by one.
const SEEN_MAX: usize = 4;
/// A finished stream is only waiting for acknowledgements; it is not reset for age sooner than this
/// past its successor, so that a budget of 0 does not reset what is already on its way.
pub(super) const FINISHED_GRACE_MS: u64 = 500;

/// What a subscription asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Lowest group.
    pub start: GroupSeq,
    /// Highest group, inclusive.
    pub end: Option<GroupSeq>,
    /// First frame of group `start`.
    pub frame_start: u64,
    /// Last frame of group `end`, inclusive.
    pub frame_end: Option<u64>,
}

impl Range {
    /// Everything.
    pub const ALL: Self = Self { start: GroupSeq(0), end: None, frame_start: 0, frame_end: None };

    fn contains(&self, seq: GroupSeq) -> bool {
        let one = self.end == Some(self.start);
        let empty = one && self.frame_end.is_some_and(|end| end < self.frame_start);
        seq >= self.start && self.end.is_none_or(|end| seq <= end) && !empty
    }

    /// The groups from the first of both to the last of both.
    fn hull(&self, other: &Self) -> Self {
        let end = self.end.zip(other.end).map(|(a, b)| a.max(b));
        Self { start: self.start.min(other.start), end, frame_start: 0, frame_end: None }
    }
}

/// One subscription of one peer.
pub struct Reader {
    /// Slot of the track.
    pub track: u32,
    /// Slot of the peer.
    pub peer: u32,
    /// The subscriber's name for it on the wire.
    pub id: u64,
    /// The session's request stream.
    pub stream: u64,
    /// The class of its images.
    pub class: ClassId,
    /// What it wants.
    pub range: Range,
    /// Its own age budget.
    pub max_age_ms: u64,
    /// Larger is more urgent.
    pub priority: u8,
    /// Waits in its peer's list.
    pub queued: bool,
    /// Its track came to an end or broke since its peer was told.
    pub news: bool,
    /// All it will do is open each new group behind its range's start, whole.
    pub(super) easy: bool,
    /// Its peer left it; it lives on for streams that await acknowledgement.
    pub gone: bool,
    /// The first group was told (START).
    pub started: bool,
    /// The end was told (END).
    pub ended: bool,
    /// Attached cursors, and those of them that are not finished.
    pub cursors: u32,
    /// See `cursors`.
    pub writing: u32,
    /// Place in the track's list.
    pub place: u32,
    /// Arrival number of the next group to look at.
    pub next: u64,
    /// What it asked for before an update: every group that arrived below the number was looked at
    /// with that range, and is not opened again if the range contains it.
    pub(super) seen: Vec<(u64, Range)>,
}

/// What a new reader is made of.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// The subscriber's name for it on the wire.
    pub id: u64,
    /// The session's request stream.
    pub stream: u64,
    /// The class of its images.
    pub class: ClassId,
    /// What it wants; `None` pins the start to the live edge.
    pub range: Option<Range>,
    /// Its own age budget.
    pub max_age_ms: u64,
    /// Larger is more urgent.
    pub priority: u8,
}

/// What a reader should do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Open a stream for this group, then call `attach`.
    Open {
        /// The group.
        group: GroupKey,
        /// Its number.
        seq: GroupSeq,
        /// The first frame that the stream will carry.
        frame: u64,
        /// Arrival of its first byte, microseconds.
        opened_us: u64,
    },
    /// Nothing until more arrives.
    Wait,
}

/// Bits of a cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CursorFlags(u8);

impl CursorFlags {
    /// Waits in its peer's list.
    pub const QUEUED: Self = Self(1);
    /// Everything was written and the stream ended; acknowledgements are due.
    pub const FINISHED: Self = Self(2);
    /// The next frame's header must be sent absolute before its payload.
    pub const PROLOGUE: Self = Self(4);
    /// Bytes of a header wait in the session.
    pub const LEFTOVER: Self = Self(8);
    /// Ends after a frame, not with the lane.
    pub const BOUNDED: Self = Self(16);
    /// A reset is due.
    pub const DOOMED: Self = Self(32);

    /// True when all bits of `other` are set.
    #[inline]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Neither queued nor finished.
    #[inline]
    pub fn is_idle(self) -> bool {
        self.0 & (Self::QUEUED.0 | Self::FINISHED.0) == 0
    }

    /// Sets the bits of `other`.
    #[inline]
    pub fn set(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Clears the bits of `other`.
    #[inline]
    pub fn clear(&mut self, other: Self) {
        self.0 &= !other.0;
    }
}

/// One open stream of a reader.
pub struct Cursor {
    /// Next cursor of the same lane.
    pub next: u32,
    pub(super) prev: u32,
    /// Slot of the lane.
    pub lane: u32,
    /// Slot of the reader.
    pub reader: u32,
    /// Slot of the peer.
    pub peer: u32,
    /// Priority of its stream, larger first.
    pub priority: i32,
    /// Image offset of the next byte.
    pub offset: u32,
    pub(super) span: u32,
    pub(super) span_first: u32,
    pub(super) span_charged: u32,
    /// Next boundary not yet passed.
    pub frame: u32,
    /// Last frame in the image it may carry, with `BOUNDED`.
    pub(super) frame_last: u32,
    /// The session's stream.
    pub stream: u64,
    /// Bits.
    pub flags: CursorFlags,
}

const _: () = assert!(size_of::<Cursor>() <= 64);

/// What `advance` found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advanced {
    /// Everything that will ever be in it was written.
    pub done: bool,
    /// Ingress time of the first boundary that was passed.
    pub ingress_us: Option<u64>,
}

impl Model {
    /// Subscribes `peer` to `track`.
    pub fn open_reader(&mut self, peer: PeerKey, track: TrackKey, want: Want) -> Option<ReaderKey> {
        let held = self.tracks.get(track)?;
        let edge = match held.edge {
            NIL => GroupSeq(0),
            edge => self.groups[edge].seq,
        };
        let range = want.range.unwrap_or(Range { start: edge, ..Range::ALL });
        let reader = Reader {
            track: track.index(),
            peer: peer.index(),
            id: want.id,
            stream: want.stream,
            class: want.class,
            range,
            max_age_ms: want.max_age_ms,
            priority: want.priority,
            queued: false,
            easy: false,
            news: held.end.is_some() || held.state != State::Live,
            gone: false,
            started: false,
            ended: false,
            cursors: 0,
            writing: 0,
            place: u32::try_from(held.readers.len()).expect("bounded"),
            next: held.arrival_base,
            seen: Vec::new(),
        };
        let Ok(key) = self.readers.insert(reader) else {
            self.limit_hits.hit("readers");
            return None;
        };
        self.tracks[track.index()].readers.push(key);
        self.queue_reader(key);
        self.want(track.index());
        self.counters.subscriptions_opened += 1;
        Some(key)
    }

    /// Replaces what a reader asks for.
    pub fn update_reader(&mut self, key: ReaderKey, range: Range, max_age_ms: u64, priority: u8) {
        let Some(reader) = self.readers.get_mut(key) else { return };
        reader.max_age_ms = max_age_ms;
        reader.priority = priority;
        reader.easy = false;
        if reader.range != range {
            let base = self.tracks[reader.track].arrival_base;
            reader.seen.retain(|(below, _)| *below > base);
            if reader.next > base {
                reader.seen.push((reader.next, reader.range));
            }
            if reader.seen.len() > SEEN_MAX {
                // Rather a group that is never opened than one that is opened twice.
                let (below, oldest) = reader.seen.remove(0);
                let (last, next) = &mut reader.seen[0];
                (*last, *next) = (below.max(*last), oldest.hull(next));
            }
            reader.next = 0;
            reader.range = range;
        }
        let track = reader.track;
        self.review_flights(track);
        self.queue_reader(key);
        self.want(track);
    }

    /// What the reader should do next. Skips, and counts, what it must not open.
    pub fn step(&mut self, key: ReaderKey) -> Step {
        let Some(reader) = self.readers.get(key) else { return Step::Wait };
        let track = &self.tracks[reader.track];
        let mut next = reader.next.max(track.arrival_base);
        if next >= track.arrival_base + track.arrivals.len() as u64 {
            return Step::Wait;
        }
        let mut found = Step::Wait;
        let mut old = 0;
        while let Some(group) = track.arrivals.get(place(next - track.arrival_base)) {
            match self.look(reader, track, *group, next) {
                Look::Open(step) => {
                    found = step;
                    break;
                }
                Look::Old => old += 1,
                Look::Skip => {}
            }
            next += 1;
        }
        if next != reader.next {
            self.counters.groups_skipped_old += old;
            self.readers[key.index()].next = next;
        }
        found
    }

    fn look(&self, reader: &Reader, track: &Track, key: GroupKey, arrival: u64) -> Look {
        let Some(group) = self.groups.get(key) else { return Look::Skip };
        let range = &reader.range;
        if group.dead || !range.contains(group.seq) {
            return Look::Skip;
        }
        let before = |(below, range): &(u64, Range)| arrival < *below && range.contains(group.seq);
        if reader.seen.iter().any(before) {
            return Look::Skip;
        }
        let frame = if group.seq == range.start { range.frame_start } else { 0 };
        if group.first_frame > frame {
            return Look::Skip;
        }
        if key.index() != track.edge
            && self.is_stale(track, key.index(), self.budget_ms(track, reader))
        {
            return Look::Old;
        }
        let opened_us = group.opened_us;
        Look::Open(Step::Open { group: key, seq: group.seq, frame, opened_us })
    }

    fn budget_ms(&self, track: &Track, reader: &Reader) -> u64 {
        track.max_age_ms().map_or(reader.max_age_ms, |own| own.min(reader.max_age_ms))
    }

    /// Attaches a stream of the reader to the group that `step` named and moves the reader on.
    /// `None` when no cursor is left; the group is then passed over.
    pub fn attach(
        &mut self,
        key: ReaderKey,
        group: GroupKey,
        stream: u64,
        priority: i32,
    ) -> Option<CursorKey> {
        let reader = self.readers.get_mut(key)?;
        reader.next += 1;
        let range = reader.range;
        let endless = range.end.is_none() && range.frame_end.is_none();
        let told = reader.started && !reader.ended && !reader.news;
        let caught_up = reader.seen.iter().all(|(below, _)| reader.next >= *below);
        reader.easy = endless && told && caught_up;
        let held = self.groups.get(group)?;
        let lane = held.lane;
        let from = if held.seq == range.start { range.frame_start } else { 0 };
        let skip = from.saturating_sub(held.first_frame);
        let last = match range.frame_end {
            Some(last) if Some(held.seq) == range.end => last.checked_sub(held.first_frame),
            _ => None,
        };
        let mut flags = CursorFlags::default();
        if skip > 0 {
            flags.set(CursorFlags::PROLOGUE);
        }
        if last.is_some() {
            flags.set(CursorFlags::BOUNDED);
        }
        let cursor = Cursor {
            next: self.lanes[lane].cursors,
            prev: NIL,
            lane,
            reader: key.index(),
            peer: reader.peer,
            priority,
            offset: 0,
            span: 0,
            span_first: 0,
            span_charged: NIL,
            frame: u32::try_from(skip).unwrap_or(NIL),
            frame_last: last.map_or(NIL, |last| u32::try_from(last).unwrap_or(NIL)),
            stream,
            flags,
        };
        if self.no_cursor_left() {
            self.limit_hits.hit("cursors");
            return None;
        }
        let cursor = self.cursors.put(cursor);
        self.enlist(key.index(), group.index(), cursor.index());
        Some(cursor)
    }

    /// Cursors and flights are bounded together.
    #[inline]
    pub(super) fn no_cursor_left(&self) -> bool {
        self.cursors.len() + self.flights >= self.limits.cursors
    }

    fn enlist(&mut self, reader: u32, group: u32, cursor: u32) {
        let lane = self.groups[group].lane;
        match self.lanes[lane].cursors {
            NIL => {}
            head => self.cursors[head].prev = cursor,
        }
        self.lanes[lane].cursors = cursor;
        self.readers[reader].cursors += 1;
        self.readers[reader].writing += 1;
        self.groups[group].cursors += 1;
        if self.groups[group].cursors == 1 {
            let track = self.groups[group].track;
            self.tracks[track].active.push(group);
        }
        self.counters.groups_out += 1;
    }

    /// The slice from the cursor to the end of its span, empty at the image's end, and whether more
    /// follows it.
    #[inline]
    pub fn pull(&self, cursor: u32) -> (Bytes, bool) {
        let cursor = &self.cursors[cursor];
        let image = &self.lanes[cursor.lane].image;
        let end = match cursor.flags.has(CursorFlags::BOUNDED) {
            true => self.bound(cursor),
            false => image.len,
        };
        let at = cursor.offset;
        if at >= end {
            return (Bytes::new(), false);
        }
        // The cursor stays in its last span while that may grow, so it may be at that span's end.
        let held = &image.spans[cursor.span as usize];
        let span = match at == held.at + held.len {
            true => &image.spans[cursor.span as usize + 1],
            false => held,
        };
        let skip = at - span.at;
        let len = (span.len - skip).min(end - at);
        (self.arena.slice(span.block, span.start + skip, len), at + len < end)
    }

    /// Image offset behind the last frame a bounded cursor may carry, as far as it is there.
    fn bound(&self, cursor: &Cursor) -> u32 {
        let image = &self.lanes[cursor.lane].image;
        if cursor.frame_last >= image.frames {
            return image.len;
        }
        let last = self.boundary(image, cursor.frame_last);
        image.len.min(last.payload + last.size)
    }

    /// The boundary a cursor with `PROLOGUE` must start at, once that frame is there.
    pub fn prologue(&self, cursor: u32) -> Option<super::group::Boundary> {
        let cursor = &self.cursors[cursor];
        let image = &self.lanes[cursor.lane].image;
        (cursor.frame < image.frames).then(|| self.boundary(image, cursor.frame))
    }

    /// The prologue was written: the cursor goes on from that frame's payload.
    pub fn begin_at_payload(&mut self, slot: u32) {
        let Some(boundary) = self.prologue(slot) else { return };
        let spans = &self.lanes[self.cursors[slot].lane].image.spans;
        let span = spans.partition_point(|span| span.at + span.len <= boundary.payload);
        let cursor = &mut self.cursors[slot];
        cursor.flags.clear(CursorFlags::PROLOGUE);
        cursor.offset = boundary.payload;
        cursor.span = u32::try_from(span).expect("bounded");
        cursor.span_first = cursor.span;
        cursor.frame += 1;
    }

    /// Moves the cursor over `bytes` that its stream took.
    #[inline]
    pub fn advance(&mut self, slot: u32, bytes: usize) -> Advanced {
        let cursor = &self.cursors[slot];
        let lane = &self.lanes[cursor.lane];
        let image = &lane.image;
        let offset = cursor.offset + u32::try_from(bytes).expect("no more than was pulled");
        let mut frame = cursor.frame;
        let mut ingress_us = None;
        if bytes > 0 && frame < image.frames {
            let first = self.boundary(image, frame);
            if first.header < offset {
                ingress_us = Some(first.ingress_us);
                frame = if offset == image.len { image.frames } else { frame + 1 };
                while frame < image.frames && self.boundary(image, frame).header < offset {
                    frame += 1;
                }
            }
        }
        let mut span = cursor.span as usize;
        while span < image.spans.len() && image.spans[span].at + image.spans[span].len <= offset {
            span += 1;
        }
        let end = if cursor.flags.has(CursorFlags::BOUNDED) {
            let whole = cursor.frame_last < image.frames && {
                let last = self.boundary(image, cursor.frame_last);
                last.payload + last.size <= image.len
            };
            if whole { self.bound(cursor) } else { NIL }
        } else {
            NIL
        };
        let open = lane.end == LaneEnd::Open && offset < end;
        let done = !open && !matches!(lane.end, LaneEnd::Reset(_)) && offset >= image.len.min(end);
        // Spans up to the one the last byte came from are behind the stream now.
        let touched = if span < image.spans.len() && image.spans[span].at < offset {
            span
        } else {
            span.wrapping_sub(1)
        };
        let from = cursor.span_charged;
        let first = cursor.span_first;
        let cursor = &mut self.cursors[slot];
        cursor.offset = offset;
        cursor.frame = frame;
        // The last span may still grow, so the cursor stays in it.
        cursor.span =
            u32::try_from(span.min(image.spans.len().saturating_sub(1))).expect("bounded");
        if bytes > 0 {
            let touched = u32::try_from(touched).expect("bounded");
            if from == NIL || touched > from {
                self.charge(slot, if from == NIL { first } else { from + 1 }, touched);
            }
        }
        Advanced { done, ingress_us }
    }

    /// Charges the cursor's peer the blocks of spans `from..=to`.
    fn charge(&mut self, slot: u32, from: u32, to: u32) {
        let cursor = &mut self.cursors[slot];
        cursor.span_charged = to;
        let peer = &mut self.peers[cursor.peer];
        for span in &self.lanes[cursor.lane].image.spans[from as usize..=to as usize] {
            if peer.charge.add(span.block, self.arena.size(span.block)) {
                self.charged += self.arena.size(span.block);
            }
        }
    }

    /// The session ended the cursor's stream with FIN.
    pub fn finish(&mut self, slot: u32) {
        let cursor = &mut self.cursors[slot];
        cursor.flags.set(CursorFlags::FINISHED);
        let reader = cursor.reader;
        self.readers[reader].writing -= 1;
        if self.readers[reader].ended {
            self.requeue_reader(reader);
        }
    }

    /// The stream is over, acknowledged or reset: its charge ends.
    pub fn detach(&mut self, key: CursorKey) {
        let Some(cursor) = self.cursors.remove(key) else { return };
        if self.sweep_at == key.index() {
            self.sweep_at = cursor.next;
        }
        match cursor.prev {
            NIL => self.lanes[cursor.lane].cursors = cursor.next,
            prev => self.cursors[prev].next = cursor.next,
        }
        if cursor.next != NIL {
            self.cursors[cursor.next].prev = cursor.prev;
        }
        let lane = &self.lanes[cursor.lane];
        let group = lane.group;
        if cursor.span_charged != NIL {
            let peer = &mut self.peers[cursor.peer];
            let spans = cursor.span_first as usize..=cursor.span_charged as usize;
            for span in &lane.image.spans[spans] {
                let size = self.arena.size(span.block);
                if peer.charge.remove(span.block, size) {
                    self.charged -= size;
                }
            }
        }
        if cursor.flags.has(CursorFlags::QUEUED) {
            self.peers[cursor.peer].ready.retain(|(_, at)| *at != key.index());
        }
        self.leave_reader(cursor.reader, cursor.flags.has(CursorFlags::FINISHED));
        self.leave_group(group);
    }

    #[inline]
    fn leave_reader(&mut self, slot: u32, finished: bool) {
        let reader = &mut self.readers[slot];
        reader.cursors -= 1;
        if !finished {
            reader.writing -= 1;
        }
        if reader.gone && reader.cursors == 0 {
            let key = self.readers.key_at(slot).expect("just used");
            self.readers.remove(key);
        } else if reader.ended && !reader.gone {
            self.requeue_reader(slot);
        }
    }

    /// A reader whose track is over has written or lost a stream: it may be done now.
    fn requeue_reader(&mut self, slot: u32) {
        let key = self.readers.key_at(slot).expect("just used");
        self.queue_reader(key);
    }

    #[inline]
    pub(super) fn leave_group(&mut self, slot: u32) {
        let group = &mut self.groups[slot];
        group.cursors -= 1;
        if group.cursors > 0 {
            return;
        }
        let (track, dead) = (group.track, group.dead);
        let lane = group.lane;
        let active = &mut self.tracks[track].active;
        if let Some(at) = active.iter().position(|held| *held == slot) {
            active.swap_remove(at);
        }
        if dead && self.lanes[lane].end != LaneEnd::Open {
            self.drop_group(slot);
        }
    }

    /// Ends a subscription. Cursors that are not finished must have been detached by the session;
    /// finished ones keep the slot until they are acknowledged.
    pub fn close_reader(&mut self, key: ReaderKey) {
        let Some(reader) = self.readers.get_mut(key) else { return };
        if reader.gone {
            return;
        }
        reader.gone = true;
        let (track, place, peer, queued, left) =
            (reader.track, reader.place, reader.peer, reader.queued, reader.cursors);
        if queued {
            self.peers[peer].readers.retain(|held| *held != key);
        }
        let list = &mut self.tracks[track].readers;
        list.swap_remove(place as usize);
        if let Some(moved) = list.get(place as usize) {
            self.readers[moved.index()].place = place;
        }
        if left == 0 {
            self.readers.remove(key);
        }
        self.want(track);
    }

    /// Resets what the edge has left behind: every open stream whose group is stale for its reader.
    pub(super) fn expire(&mut self, track: u32) {
        let mut index = 0;
        while let Some(group) = self.tracks[track].active.get(index).copied() {
            index += 1;
            let held = &self.tracks[track];
            if self.is_edge(held, group) {
                continue;
            }
            let age_ms = self.age_of_successor(held, self.groups[group].newer);
            let own = held.max_age_ms().unwrap_or(u64::MAX);
            let mut at = self.lanes[self.groups[group].lane].cursors;
            let mut linked = 0;
            while at != NIL {
                linked += 1;
                let cursor = &self.cursors[at];
                let next = cursor.next;
                let budget = own.min(self.readers[cursor.reader].max_age_ms);
                let finished = cursor.flags.has(CursorFlags::FINISHED);
                let due = if finished { budget.max(FINISHED_GRACE_MS) } else { budget };
                if age_ms >= due {
                    self.doom(at, Ended::Old);
                }
                at = next;
            }
            if self.groups[group].cursors > linked {
                self.expire_flights(track, group, age_ms);
            }
        }
    }

    /// Asks every cursor of a group's lane to be reset; says how many there are.
    pub(super) fn reset_cursors(&mut self, group: u32, ended: Ended) -> u32 {
        let mut at = self.lanes[self.groups[group].lane].cursors;
        let mut count = 0;
        while at != NIL {
            let next = self.cursors[at].next;
            self.doom(at, ended);
            count += 1;
            at = next;
        }
        count
    }

    /// Queues the reset of one cursor at its peer, once.
    pub fn doom(&mut self, slot: u32, ended: Ended) {
        let cursor = &mut self.cursors[slot];
        if cursor.flags.has(CursorFlags::DOOMED) {
            return;
        }
        cursor.flags.set(CursorFlags::DOOMED);
        let peer = cursor.peer;
        let key = self.cursors.key_at(slot).expect("just used");
        self.peers[peer].resets.push((key, ended));
        self.mark_control(peer);
    }

    /// The lane of a cursor.
    pub fn lane_of(&self, slot: u32) -> LaneKey {
        self.lanes.key_at(self.cursors[slot].lane).expect("a cursor keeps its lane")
    }
}

enum Look {
    Open(Step),
    Old,
    Skip,
}

fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
