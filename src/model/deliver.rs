//! The common cases of delivery, each in one step.
//!
//! What `cursor` does in parts for every case, done at once for the two that nearly all of fan-out
//! consists of: a cursor that keeps up gets the newest bytes, and a reader that keeps up opens the
//! newest group. Anything out of the ordinary is left to the parts, untouched. Invariant: both
//! leave exactly what the parts would have left.

use bytes::Bytes;

use super::arena::{Arena, BlockId};
use super::cursor::{Cursor, CursorFlags, NIL};
use super::flight::{Flight, Hold};
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
#[derive(Debug)]
pub struct Newest {
    /// The subscriber's name for the subscription.
    pub name: u64,
    /// The subscriber's priority.
    pub urgency: u8,
    /// Arrival of its first byte, microseconds.
    pub opened_us: u64,
    /// All there is of it.
    pub body: Bytes,
}

/// Something about an offered group that one session works out for all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Note {
    /// Whom it suits; 0 while there is none.
    pub by: u8,
    /// Bytes of it that count.
    pub len: u8,
    /// Opaque here.
    pub bytes: [u8; 16],
}

/// What `delivered` made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivered {
    /// What its stream holds: a flight when nothing more will come, and the stream is to be ended.
    pub hold: Hold,
    /// Body bytes taken.
    pub bytes: usize,
    /// Ingress time of the group's first boundary.
    pub ingress_us: u64,
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
    note: Note,
}

/// Longest header: a transport's prefix of ten bytes, and a group's of 26.
pub const HEADER_MAX: usize = 40;

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
        note: Note::default(),
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
        if cursor.flags != CursorFlags::QUEUED {
            return Fed::Special;
        }
        // Charged for the last span means in it.
        if image.recent.at != cursor.offset || image.recent.span != cursor.span_charged {
            let last = cursor.span as usize + 1 == image.spans.len();
            let charged = cursor.span == cursor.span_charged;
            if !last || !charged || matches!(lane.end, LaneEnd::Reset(_)) {
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

    /// A short header in shared memory: a slice of the shard's header block.
    #[inline(always)]
    pub fn header(&mut self, write: impl Fn(&mut [u8; HEADER_MAX]) -> usize) -> Bytes {
        match self.headers.and_then(|block| self.arena.put(block, &write)) {
            Some(bytes) => bytes,
            None => {
                let mut bytes = [0; HEADER_MAX];
                let len = write(&mut bytes);
                self.header_elsewhere(&bytes[..len])
            }
        }
    }

    #[cold]
    fn header_elsewhere(&mut self, bytes: &[u8]) -> Bytes {
        let Some(fresh) = self.arena.lease(super::HEADER_CLASS) else {
            return Bytes::copy_from_slice(bytes);
        };
        if let Some(full) = self.headers.replace(fresh) {
            self.arena.release(full);
        }
        let start = self.arena.append(fresh, bytes);
        self.arena.slice(fresh, start, u32::try_from(bytes.len()).expect("short"))
    }

    /// The newest group of a track for a reader that has passed every other, if the group's image
    /// is one span. Nothing is changed: call `delivered` when a stream took all of it.
    #[inline(always)]
    pub fn newest(&mut self, key: ReaderKey) -> Option<Newest> {
        if self.no_cursor_left() {
            return None;
        }
        let reader = self.readers.get(key).filter(|reader| reader.easy)?;
        let same = |held: &Offer| held.track == reader.track && held.arrival == reader.next;
        if !self.offer.as_ref().is_some_and(same) {
            let track = (reader.track, &self.tracks[reader.track]);
            let kept = (&self.groups, &self.lanes, &self.pages);
            self.offer = offer(track, reader.next, kept, &self.arena);
        }
        let offer = self.offer.as_ref()?;
        let (name, urgency, opened_us) = (reader.id, reader.priority, offer.opened_us);
        let fresh = offer.seq > reader.range.start && !self.groups.get(offer.group)?.dead;
        fresh.then(|| Newest { name, urgency, opened_us, body: offer.body.clone() })
    }

    /// What a session noted of the group that `newest` named; made by the first that asks.
    #[inline(always)]
    pub fn note(&mut self, by: u8, make: impl FnOnce(GroupSeq) -> Note) -> Note {
        let offer = self.offer.as_mut().expect("`newest` named it");
        if offer.note.by != by {
            offer.note = Note { by, ..make(offer.seq) };
        }
        offer.note
    }

    /// A stream took all of what `newest` named.
    #[inline(always)]
    pub fn delivered(&mut self, key: ReaderKey, stream: u64, priority: i32) -> Delivered {
        let reader = &mut self.readers[key.index()];
        let offer = self.offer.as_ref().expect("`newest` named it");
        reader.next += 1;
        reader.queued = false;
        let group = &mut self.groups[offer.group.index()];
        group.cursors += 1;
        if group.cursors == 1 {
            self.tracks[offer.track].active.push(offer.group.index());
        }
        self.counters.groups_out += 1;
        let charge = &mut self.peers[reader.peer].charge;
        if charge.add(offer.block, offer.block_bytes) {
            self.charged += offer.block_bytes;
        }
        let charged = charge.bytes();
        let (bytes, ingress_us) = (offer.body.len(), offer.ingress_us);
        let hold = if offer.done {
            self.flights += 1;
            let (group, reader) = (offer.group.index(), key.index());
            Hold::Flight(Flight { group, reader, block: offer.block })
        } else {
            Hold::Cursor(self.stay(key, stream, priority))
        };
        Delivered { hold, bytes, ingress_us, charged }
    }

    /// A cursor for a reader that was given all there is of the offered group, which goes on.
    fn stay(&mut self, key: ReaderKey, stream: u64, priority: i32) -> CursorKey {
        let offer = self.offer.as_ref().expect("just used");
        let slot = self.groups[offer.group.index()].lane;
        let reader = &mut self.readers[key.index()];
        let lane = &mut self.lanes[slot];
        debug_assert_eq!(lane.image.len as usize, offer.body.len(), "nothing came since `settle`");
        let cursor = Cursor {
            next: lane.cursors,
            prev: NIL,
            lane: slot,
            reader: key.index(),
            peer: reader.peer,
            priority,
            offset: lane.image.len,
            span: 0,
            span_first: 0,
            span_charged: 0,
            frame: offer.frames,
            frame_last: NIL,
            stream,
            flags: CursorFlags::default(),
        };
        let cursor = self.cursors.put(cursor);
        if lane.cursors != NIL {
            self.cursors[lane.cursors].prev = cursor.index();
        }
        lane.cursors = cursor.index();
        reader.cursors += 1;
        reader.writing += 1;
        cursor
    }
}
