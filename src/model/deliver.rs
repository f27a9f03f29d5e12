//! The common cases of delivery, each in one step.
//!
//! What `cursor` does in parts for every case, done at once for the two that nearly all of fan-out
//! consists of: a cursor that keeps up gets the newest bytes, and a reader that keeps up opens the
//! newest group. Anything out of the ordinary is left to the parts, untouched. Invariant: both
//! leave exactly what the parts would have left.

use bytes::Bytes;

use super::cursor::{Cursor, CursorFlags, NIL};
use super::group::{LaneEnd, PAGE_FRAMES, Span};
use super::{CursorKey, Model, ReaderKey};
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

impl Model {
    /// Delivers to a cursor that stands in its lane's last span, which it is charged for, and is
    /// nothing but queued. `write` answers how many bytes the stream took.
    #[inline(always)]
    pub fn feed(&mut self, slot: u32, write: impl FnOnce(u64, &mut Bytes) -> usize) -> Fed {
        let cursor = &mut self.cursors[slot];
        let lane = &mut self.lanes[cursor.lane];
        let image = &mut lane.image;
        let last = cursor.span as usize + 1 == image.spans.len();
        let plain = cursor.flags == CursorFlags::QUEUED && cursor.span == cursor.span_charged;
        if !plain || !last || matches!(lane.end, LaneEnd::Reset(_)) {
            return Fed::Special;
        }
        let len = image.len - cursor.offset;
        if len > 0 {
            if image.recent_at != cursor.offset || image.recent.len() != len as usize {
                let span = &image.spans[cursor.span as usize];
                let start = span.start + (cursor.offset - span.at);
                image.recent = self.arena.slice(span.block, start, len);
                image.recent_at = cursor.offset;
            }
            let mut chunk = image.recent.clone();
            let taken = write(cursor.stream, &mut chunk);
            if taken != len as usize {
                return Fed::Short(taken);
            }
        }
        let mut ingress_us = 0;
        if cursor.frame < image.frames {
            let index = cursor.frame as usize;
            ingress_us = match cursor.frame == image.fresh {
                true => image.fresh_us,
                false => {
                    let page = &self.pages[image.pages[index / PAGE_FRAMES]];
                    page.0[index % PAGE_FRAMES].ingress_us
                }
            };
            cursor.frame = image.frames;
        }
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
        send: impl FnOnce(&mut HeaderCache<'_>, &Newest, Bytes) -> Option<Sent>,
    ) -> Option<Delivered> {
        let (slot, span) = self.newest(key)?;
        let reader = &self.readers[key.index()];
        let group = &self.groups[slot];
        let newest = Newest {
            name: reader.id,
            seq: group.seq,
            urgency: reader.priority,
            opened_us: group.opened_us,
        };
        let body = self.lanes[group.lane].image.recent.clone();
        let mut headers = HeaderCache {
            last: &mut self.last_header,
            arena: &mut self.arena,
            block: &mut self.headers,
        };
        let sent = send(&mut headers, &newest, body)?;
        Some(self.delivered(key, slot, &span, sent))
    }

    /// The group that `deliver` opens, by slot, and its only span, which is its lane's `recent`
    /// now.
    #[inline(always)]
    fn newest(&mut self, key: ReaderKey) -> Option<(u32, Span)> {
        let reader = self.readers.get(key)?;
        let range = &reader.range;
        if reader.news || reader.ended || !reader.started || range.frame_end.is_some() {
            return None;
        }
        let track = &self.tracks[reader.track];
        let place = usize::try_from(reader.next.checked_sub(track.arrival_base)?).ok()?;
        let full = self.cursors.is_full();
        if full || reader.next < reader.fresh || place + 1 != track.arrivals.len() {
            return None;
        }
        let group_key = track.arrivals[place];
        let group = self.groups.get(group_key)?;
        let capped = range.end.is_some_and(|end| group.seq > end);
        let slot = group_key.index();
        let partial = group.dead || group.first_frame != 0 || group.seq <= range.start || capped;
        if slot != track.edge || partial {
            return None;
        }
        let lane = &mut self.lanes[group.lane];
        let image = &mut lane.image;
        let [span] = image.spans[..] else { return None };
        if image.fresh != 0 || matches!(lane.end, LaneEnd::Reset(_)) {
            return None;
        }
        if image.recent_at != 0 || image.recent.len() != span.len as usize {
            image.recent = self.arena.slice(span.block, span.start, span.len);
            image.recent_at = 0;
        }
        Some((slot, span))
    }

    /// Attaches the cursor of a stream that took all of a group's only span.
    #[inline(always)]
    fn delivered(&mut self, key: ReaderKey, slot: u32, span: &Span, sent: Sent) -> Delivered {
        let group = &mut self.groups[slot];
        let lane = &mut self.lanes[group.lane];
        let reader = &mut self.readers[key.index()];
        let done = lane.end == LaneEnd::Fin;
        let cursor = Cursor {
            next: lane.cursors,
            prev: NIL,
            lane: group.lane,
            reader: key.index(),
            peer: reader.peer,
            priority: sent.priority,
            offset: lane.image.len,
            span: 0,
            span_first: 0,
            span_charged: 0,
            frame: lane.image.frames,
            frame_last: NIL,
            stream: sent.stream,
            flags: if done { CursorFlags::FINISHED } else { CursorFlags::default() },
        };
        let cursor = self.cursors.insert(cursor).ok().expect("`newest` found room");
        if lane.cursors != NIL {
            self.cursors[lane.cursors].prev = cursor.index();
        }
        lane.cursors = cursor.index();
        reader.next += 1;
        reader.queued = false;
        reader.cursors += 1;
        reader.writing += u32::from(!done);
        group.cursors += 1;
        if group.cursors == 1 {
            self.tracks[reader.track].active.push(slot);
        }
        self.counters.groups_out += 1;
        let size = self.arena.size(span.block);
        let charge = &mut self.peers[reader.peer].charge;
        if charge.add(span.block, size) {
            self.charged += size;
        }
        Delivered {
            cursor,
            stream: sent.stream,
            bytes: span.len,
            ingress_us: lane.image.fresh_us,
            done,
            charged: charge.bytes(),
        }
    }
}

/// The header of the last group stream that was opened: viewers of a group mostly name it alike, so
/// it is handed out again while the name stays the same.
pub struct HeaderCache<'a> {
    pub(super) last: &'a mut ([u64; 5], Bytes),
    pub(super) arena: &'a mut super::arena::Arena,
    pub(super) block: &'a mut Option<super::arena::BlockId>,
}

impl HeaderCache<'_> {
    /// The header called `name`, encoded if it is not the last one.
    #[inline]
    pub fn get(&mut self, name: [u64; 5], encode: impl FnOnce(&mut [u8; 64]) -> usize) -> Bytes {
        if self.last.0 != name {
            let mut bytes = [0; 64];
            let len = encode(&mut bytes);
            *self.last = (name, self.write(&bytes[..len]));
        }
        self.last.1.clone()
    }

    /// Short bytes in shared memory: a slice of the shard's header block.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Bytes {
        let block = match *self.block {
            Some(block) if self.arena.room(block) >= bytes.len() => block,
            full => {
                let Some(fresh) = self.arena.lease(super::HEADER_CLASS) else {
                    return Bytes::copy_from_slice(bytes);
                };
                if let Some(full) = full {
                    self.arena.release(full);
                }
                *self.block = Some(fresh);
                fresh
            }
        };
        let start = self.arena.append(block, bytes);
        self.arena.slice(block, start, u32::try_from(bytes.len()).expect("short"))
    }
}
