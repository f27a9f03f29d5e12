//! The common cases of delivery, each in one step.
//!
//! What `cursor` does in parts for every case, done at once for the two that nearly all of fan-out
//! consists of: a cursor that keeps up gets the newest bytes, and a reader that keeps up opens the
//! newest group. Anything out of the ordinary is left to the parts, untouched. Invariant: both
//! leave exactly what the parts would have left.

use bytes::Bytes;

use super::arena::{Arena, BlockId};
use super::cursor::{Cursor, CursorFlags, NIL};
use super::group::{Group, Image, Lane, LaneEnd, Page, Recent};
use super::slots::Slots;
use super::track::Track;
use super::{CursorKey, GroupKey, Model, ReaderKey};
use crate::name::GroupSeq;

/// What `feed` did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fed {
    /// Not the common case; nothing was done.
    Special,
    /// The stream took only so much; the cursor is where it was.
    Short(usize),
    /// Everything there is was taken, and the cursor is not queued any more.
    All {
        /// Bytes taken.
        bytes: u32,
        /// Ingress time of the first boundary that was passed, 0 when none was.
        ingress_us: u64,
        /// Nothing more will come: the stream to finish.
        done: Option<u64>,
    },
}

/// The newest group of a reader, about to be opened.
#[derive(Clone, Copy, Debug)]
pub struct Newest {
    /// The subscriber's name for the subscription.
    pub name: u64,
    /// The group's number.
    pub seq: GroupSeq,
    /// The subscriber's priority.
    pub urgency: u8,
    /// Arrival of its first byte, microseconds.
    pub opened_us: u64,
}

/// What the stream for a newest group did with header and body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// The stream.
    pub stream: u64,
    /// Its priority.
    pub priority: i32,
}

/// What `deliver` made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivered {
    /// The cursor.
    pub cursor: CursorKey,
    /// Its stream.
    pub stream: u64,
    /// Body bytes taken.
    pub bytes: u32,
    /// Ingress time of the group's first boundary.
    pub ingress_us: u64,
    /// Nothing more will come; the cursor counts as finished.
    pub done: bool,
    /// Bytes charged to its peer now.
    pub charged: usize,
}

/// The newest group of a track as every reader that keeps up gets it: found out once in a turn.
pub(super) struct Offer {
    track: u32,
    /// Its arrival number.
    arrival: u64,
    group: GroupKey,
    seq: GroupSeq,
    opened_us: u64,
    /// All there is of it, in one block.
    body: Bytes,
    block: BlockId,
    block_bytes: usize,
    frames: u32,
    ingress_us: u64,
    done: bool,
}

/// Where short headers are written.
pub struct Headers<'a> {
    pub(super) arena: &'a mut Arena,
    pub(super) block: &'a mut Option<BlockId>,
}

/// A short header: how many of the bytes count.
pub type Header = ([u8; HEADER_MAX], usize);

/// Longest header: a transport's prefix of ten bytes, and a group's of 26.
pub const HEADER_MAX: usize = 40;

impl Headers<'_> {
    /// A header in shared memory: a slice of the shard's header block.
    #[inline(always)]
    pub fn put(&mut self, (bytes, len): &Header) -> Bytes {
        let fits = |block: &BlockId| self.arena.room(*block) >= HEADER_MAX;
        match self.block.filter(fits) {
            Some(block) => self.arena.put(block, bytes, *len),
            None => self.put_elsewhere(&bytes[..*len]),
        }
    }

    #[cold]
    fn put_elsewhere(&mut self, bytes: &[u8]) -> Bytes {
        let Some(fresh) = self.arena.lease(super::HEADER_CLASS) else {
            return Bytes::copy_from_slice(bytes);
        };
        if let Some(full) = self.block.replace(fresh) {
            self.arena.release(full);
        }
        let start = self.arena.append(fresh, bytes);
        self.arena.slice(fresh, start, u32::try_from(bytes.len()).expect("short"))
    }
}

/// What is offered of the group that arrived as number `arrival`, if it is the newest one, and is
/// whole so far in one span.
#[inline(never)]
fn offer(
    (track_slot, track): (u32, &Track),
    arrival: u64,
    (groups, lanes, pages): (&Slots<Group>, &Slots<Lane>, &Slots<Page>),
    arena: &Arena,
) -> Option<Offer> {
    let place = usize::try_from(arrival.checked_sub(track.arrival_base)?).ok()?;
    if place + 1 != track.arrivals.len() {
        return None;
    }
    let key = track.arrivals[place];
    let group = groups.get(key)?;
    if group.dead || group.first_frame != 0 || key.index() != track.edge {
        return None;
    }
    let lane = &lanes[group.lane];
    let [span] = lane.image.spans[..] else { return None };
    if matches!(lane.end, LaneEnd::Reset(_)) {
        return None;
    }
    Some(Offer {
        track: track_slot,
        arrival,
        group: key,
        seq: group.seq,
        opened_us: group.opened_us,
        body: arena.slice(span.block, span.start, span.len),
        block: span.block,
        block_bytes: arena.size(span.block),
        frames: lane.image.frames,
        ingress_us: lane.image.ingress_us(0, pages),
        done: lane.end == LaneEnd::Fin,
    })
}

/// Cuts what a cursor in the last span has to write.
#[inline(never)]
fn recent(image: &Image, cursor: &Cursor, pages: &Slots<Page>, arena: &Arena) -> Recent {
    let span = &image.spans[cursor.span as usize];
    let start = span.start + (cursor.offset - span.at);
    let bytes = arena.slice(span.block, start, image.len - cursor.offset);
    let ingress_us = image.ingress_us(cursor.frame, pages);
    Recent { at: cursor.offset, span: cursor.span, bytes, ingress_us }
}

impl Model {
    /// Delivers to a cursor that stands in its lane's last span, which it is charged for, and is
    /// nothing but queued. `write` answers how many bytes the stream took.
    #[inline(always)]
    pub fn feed(&mut self, slot: u32, write: impl FnOnce(u64, &mut Bytes) -> usize) -> Fed {
        let cursor = &mut self.cursors[slot];
        let lane = &mut self.lanes[cursor.lane];
        let image = &mut lane.image;
        if cursor.flags != CursorFlags::QUEUED || cursor.span != cursor.span_charged {
            return Fed::Special;
        }
        if image.recent.at != cursor.offset || image.recent.span != cursor.span {
            let last = cursor.span as usize + 1 == image.spans.len();
            if !last || matches!(lane.end, LaneEnd::Reset(_)) {
                return Fed::Special;
            }
            image.recent = recent(image, cursor, &self.pages, &self.arena);
        }
        let len = image.len - cursor.offset;
        let mut ingress_us = 0;
        if len > 0 {
            let mut chunk = image.recent.bytes.clone();
            let taken = write(cursor.stream, &mut chunk);
            if taken != len as usize {
                return Fed::Short(taken);
            }
            ingress_us = image.recent.ingress_us;
        }
        cursor.frame = image.frames;
        cursor.offset = image.len;
        cursor.flags = CursorFlags::default();
        let done = (lane.end == LaneEnd::Fin).then_some(cursor.stream);
        Fed::All { bytes: len, ingress_us, done }
    }

    /// Opens the newest group for a reader that has passed every other, if the group's image is one
    /// span. `send` gets the group and its bytes and answers with the stream that took them all, or
    /// with `None` if it could not, which leaves the reader as it was.
    #[inline(always)]
    pub fn deliver(
        &mut self,
        key: ReaderKey,
        send: impl FnOnce(&mut Headers<'_>, &Newest, Bytes) -> Option<Sent>,
    ) -> Option<Delivered> {
        let reader = self.readers.get_mut(key)?;
        if !reader.easy || self.cursors.is_full() {
            return None;
        }
        let same = |held: &Offer| held.track == reader.track && held.arrival == reader.next;
        if !self.offer.as_ref().is_some_and(same) {
            let track = (reader.track, &self.tracks[reader.track]);
            let kept = (&self.groups, &self.lanes, &self.pages);
            self.offer = offer(track, reader.next, kept, &self.arena);
        }
        let offer = self.offer.as_ref()?;
        let group = self.groups.get_mut(offer.group)?;
        if group.dead || offer.seq <= reader.range.start {
            return None;
        }
        let (seq, opened_us) = (offer.seq, offer.opened_us);
        let newest = Newest { name: reader.id, seq, urgency: reader.priority, opened_us };
        let mut headers = Headers { arena: &mut self.arena, block: &mut self.headers };
        let sent = send(&mut headers, &newest, offer.body.clone())?;
        let lane = &mut self.lanes[group.lane];
        let bytes = lane.image.len;
        debug_assert_eq!(bytes as usize, offer.body.len(), "nothing arrives after `settle`");
        let cursor = Cursor {
            next: lane.cursors,
            prev: NIL,
            lane: group.lane,
            reader: key.index(),
            peer: reader.peer,
            priority: sent.priority,
            offset: bytes,
            span: 0,
            span_first: 0,
            span_charged: 0,
            frame: offer.frames,
            frame_last: NIL,
            stream: sent.stream,
            flags: if offer.done { CursorFlags::FINISHED } else { CursorFlags::default() },
        };
        let cursor = self.cursors.put(cursor);
        if lane.cursors != NIL {
            self.cursors[lane.cursors].prev = cursor.index();
        }
        lane.cursors = cursor.index();
        reader.next += 1;
        reader.queued = false;
        reader.cursors += 1;
        reader.writing += u32::from(!offer.done);
        group.cursors += 1;
        if group.cursors == 1 {
            self.tracks[offer.track].active.push(offer.group.index());
        }
        self.counters.groups_out += 1;
        let charge = &mut self.peers[reader.peer].charge;
        if charge.add(offer.block, offer.block_bytes) {
            self.charged += offer.block_bytes;
        }
        Some(Delivered {
            cursor,
            stream: sent.stream,
            bytes,
            ingress_us: offer.ingress_us,
            done: offer.done,
            charged: charge.bytes(),
        })
    }
}
