//! Groups, their lanes and the wire images that lanes keep.
//!
//! ```text
//! track -> group -> lane -> image: spans of arena blocks   [====|=======|===]
//!                                  boundaries (one a frame)  ^   ^  ^     ^
//! ```
//! An image is opaque here: bytes under a `ClassId`, plus where each frame's header and payload
//! begin. A lane starts in its track's tail block, which small groups share, and gets blocks of its
//! own beyond `LANE_TAIL` bytes. Invariant: every span retains its block once, so a block rests
//! only when the last lane that has bytes in it is gone.

use bytes::Bytes;

use super::arena::{BlockId, SIZES, class_for};
use super::cursor::{FINISHED_GRACE_MS, NIL};
use super::slots::{Key, Slots};
use super::sweep::Woken;
use super::track::Track;
use super::{Ended, GroupKey, LaneKey, Model, TrackKey};
use crate::name::GroupSeq;

/// Bytes a lane keeps in its track's tail block before it leases blocks of its own.
const LANE_TAIL: u32 = 4 << 10;
/// A group's first bytes, up to so many, are not split over two tail blocks.
const TAIL_WHOLE: usize = 1536;
/// Groups given up for one block, at most.
const EVICTIONS: usize = 8;
/// What a publisher's open group that had to go ends with.
const EVICTED: u64 = 0x35;
/// Size class of tail blocks.
const TAIL_CLASS: usize = 1;
/// Boundaries in one page of an image's index.
pub const PAGE_FRAMES: usize = 8;

/// An encoding class: all versions of one class share their images byte for byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassId(pub u8);

/// Where one frame lies in an image, and when it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boundary {
    /// Image offset of the frame's header.
    pub header: u32,
    /// Image offset of its payload.
    pub payload: u32,
    /// Payload bytes.
    pub size: u32,
    /// Absolute timestamp in the track's timescale.
    pub timestamp: u64,
    /// Microseconds of the shard's clock at which the datagram with its header was read.
    pub ingress_us: u64,
    /// Object id within the group; for moq-lite the frame's number.
    pub object: u64,
}

const _: () = assert!(size_of::<Boundary>() <= 40);

/// A page of the index of an image.
pub struct Page(pub(super) [Boundary; PAGE_FRAMES]);

/// A run of image bytes in one block.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Image offset of the first byte.
    pub at: u32,
    /// The block.
    pub block: BlockId,
    /// Offset in the block.
    pub start: u32,
    /// Bytes.
    pub len: u32,
}

/// One encoded stream body, as spans, with its index.
#[derive(Default)]
pub struct Image {
    /// In image order, without gaps.
    pub spans: Vec<Span>,
    pub(super) pages: Vec<u32>,
    /// Boundaries in the index.
    pub frames: u32,
    /// Bytes in the image.
    pub len: u32,
    pub(super) recent: Recent,
}

/// What a cursor that keeps up has to write, cut once for all of them.
pub(super) struct Recent {
    /// Where it begins in the image; `NIL` when there is nothing.
    pub(super) at: u32,
    /// The last span, in which it lies.
    pub(super) span: u32,
    /// From there to the image's end.
    pub(super) bytes: Bytes,
    /// Ingress time of its first boundary, 0 when it has none.
    pub(super) ingress_us: u64,
}

impl Default for Recent {
    fn default() -> Self {
        Self { at: NIL, span: NIL, bytes: Bytes::new(), ingress_us: 0 }
    }
}

impl Image {
    /// Ingress time of the frame at `index`, 0 when there is none.
    #[inline]
    pub(super) fn ingress_us(&self, index: u32, pages: &Slots<Page>) -> u64 {
        let index = index as usize;
        let page = self.pages.get(index / PAGE_FRAMES).filter(|_| index < self.frames as usize);
        page.map_or(0, |page| pages[*page].0[index % PAGE_FRAMES].ingress_us)
    }
}

/// How a lane stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneEnd {
    /// More may come.
    Open,
    /// Complete.
    Fin,
    /// Broken off with a stream code; never shown as complete.
    Reset(u64),
}

/// One subgroup's content; moq-lite groups have exactly one.
pub struct Lane {
    /// Slot of the group.
    pub group: u32,
    /// Slot of the track.
    pub track: u32,
    /// First cursor reading this lane.
    pub cursors: u32,
    /// The class the publisher speaks.
    pub class: ClassId,
    /// How it stands.
    pub end: LaneEnd,
    /// The image of `class`.
    pub image: Image,
    own: Option<BlockId>,
}

/// One group of a track.
pub struct Group {
    /// Slot of the track.
    pub track: u32,
    /// Neighbours by sequence, as slots.
    pub newer: u32,
    /// See `newer`.
    pub older: u32,
    /// Slot of its lane.
    pub lane: u32,
    /// Cursors in its lanes.
    pub cursors: u32,
    /// Number of its first frame; frames before it were never seen here.
    pub first_frame: u64,
    /// Its number.
    pub seq: GroupSeq,
    /// Timestamp and arrival of its first frame; meaningless until `has_frames`.
    pub first_ts: u64,
    /// See `first_ts`.
    pub first_us: u64,
    /// Arrival of its first byte, microseconds.
    pub opened_us: u64,
    /// A frame header was seen.
    pub has_frames: bool,
    /// Not handed to new readers any more: broken off or being evicted.
    pub dead: bool,
    /// Given up for its memory while it was read.
    pub evicted: bool,
    /// Its flights need not be looked at before it is so old.
    pub(super) flights_due_ms: u64,
}

/// Why a group is not taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// A stream for this group came before.
    Duplicate,
    /// The track declared an end at or below it.
    PastEnd,
    /// Behind what the cache keeps by age: nobody would be served it.
    Old,
    /// A limit is reached.
    Full,
    /// The track is gone.
    Gone,
}

impl Model {
    /// Takes in a new group of `track` whose first frame will be number `first_frame`.
    pub fn open_group(
        &mut self,
        track: TrackKey,
        seq: GroupSeq,
        first_frame: u64,
        class: ClassId,
    ) -> Result<LaneKey, Refused> {
        let held = self.tracks.get(track).ok_or(Refused::Gone)?;
        if held.end.is_some_and(|end| seq >= end) {
            return Err(Refused::PastEnd);
        }
        let older = self.older_than(held, seq)?;
        if self.would_be_stale(held, older) {
            return Err(Refused::Old);
        }
        if held.arrivals.len() >= self.limits.track_groups {
            self.limit_hits.hit("track_groups");
            self.evict_oldest(track.index());
            if self.tracks[track.index()].arrivals.len() >= self.limits.track_groups {
                return Err(Refused::Full);
            }
        }
        while self.groups.is_full() {
            self.limit_hits.hit("groups");
            if !self.evict_for(track.index()) {
                return Err(Refused::Full);
            }
        }
        let older = self.older_than(&self.tracks[track.index()], seq)?;
        let image = self.spare_images.pop().unwrap_or_default();
        let group = Group {
            track: track.index(),
            newer: NIL,
            older,
            lane: NIL,
            cursors: 0,
            first_frame,
            seq,
            first_ts: 0,
            first_us: 0,
            opened_us: self.now_us,
            has_frames: false,
            dead: false,
            evicted: false,
            flights_due_ms: FINISHED_GRACE_MS,
        };
        let group = self.groups.insert(group).map_err(|_| Refused::Full)?;
        let lane = Lane {
            group: group.index(),
            track: track.index(),
            cursors: NIL,
            class,
            end: LaneEnd::Open,
            image,
            own: None,
        };
        let Ok(lane) = self.lanes.insert(lane) else {
            self.groups.remove(group);
            return Err(Refused::Full);
        };
        self.groups[group.index()].lane = lane.index();
        self.link(track.index(), group);
        self.queue_readers(track);
        self.counters.groups_in += 1;
        Ok(lane)
    }

    /// Slot of the newest group below `seq`, `NIL` when there is none.
    fn older_than(&self, track: &Track, seq: GroupSeq) -> Result<u32, Refused> {
        let mut at = track.newest;
        while at != NIL && self.groups[at].seq > seq {
            at = self.groups[at].older;
        }
        // What an earlier upstream subscription left behind may come again.
        if at != NIL && self.groups[at].seq == seq && !self.groups[at].dead {
            return Err(Refused::Duplicate);
        }
        Ok(at)
    }

    /// True when a group right behind slot `older` would be past the track's own age at once.
    fn would_be_stale(&self, track: &Track, older: u32) -> bool {
        let next = if older == NIL { track.oldest } else { self.groups[older].newer };
        let budget = track.max_age_ms();
        next != NIL && budget.is_some_and(|budget| self.age_of_successor(track, next) >= budget)
    }

    fn link(&mut self, track: u32, key: GroupKey) {
        let slot = key.index();
        let older = self.groups[slot].older;
        let held = &mut self.tracks[track];
        let newer = if older == NIL { held.oldest } else { self.groups[older].newer };
        self.groups[slot].newer = newer;
        match older {
            NIL => held.oldest = slot,
            older => self.groups[older].newer = slot,
        }
        match newer {
            NIL => held.newest = slot,
            newer => self.groups[newer].older = slot,
        }
        held.arrivals.push_back(key);
        held.received += 1;
    }

    /// Copies `bytes` behind the lane's image. `Err` when the arena has no block even after
    /// evicting what may go; nothing is taken then beyond what the image's length says.
    pub fn append(&mut self, lane: LaneKey, mut bytes: &[u8]) -> Result<(), Refused> {
        let slot = lane.index();
        let group = self.lanes.get(lane).ok_or(Refused::Gone)?.group;
        if self.groups[group].dead {
            return Err(Refused::Full);
        }
        if bytes.is_empty() || self.append_behind(slot, bytes) {
            return Ok(());
        }
        loop {
            let block = self.writable(slot, bytes.len())?;
            let (head, rest) = bytes.split_at(bytes.len().min(self.arena.room(block)));
            let start = self.arena.append(block, head);
            self.extend(slot, block, start, u32::try_from(head.len()).expect("block sizes"));
            if rest.is_empty() {
                return Ok(());
            }
            bytes = rest;
        }
    }

    /// The common case of `append`: all of it fits right behind the lane's last bytes. False when
    /// it does not, and nothing was done.
    #[inline]
    fn append_behind(&mut self, slot: u32, bytes: &[u8]) -> bool {
        let lane = &mut self.lanes[slot];
        let image = &mut lane.image;
        let Some(last) = image.spans.last_mut() else { return false };
        // A lane with a block of its own is behind its part of the track's.
        let stays = lane.own.is_some_and(|own| own == last.block)
            || (lane.own.is_none() && image.len < LANE_TAIL);
        if !stays || !self.arena.follows(last.block, last.start + last.len, bytes.len()) {
            return false;
        }
        self.arena.append(last.block, bytes);
        let len = u32::try_from(bytes.len()).expect("fits a block");
        last.len += len;
        image.len += len;
        image.recent.at = NIL;
        true
    }

    #[inline]
    fn extend(&mut self, slot: u32, block: BlockId, start: u32, len: u32) {
        let image = &mut self.lanes[slot].image;
        let at = image.len;
        image.len += len;
        image.recent.at = NIL;
        if let Some(last) = image.spans.last_mut()
            && last.block == block
            && last.start + last.len == start
        {
            last.len += len;
            return;
        }
        image.spans.push(Span { at, block, start, len });
        self.arena.retain(block);
    }

    /// A block with room for this lane.
    #[inline]
    fn writable(&mut self, slot: u32, wanted: usize) -> Result<BlockId, Refused> {
        let lane = &self.lanes[slot];
        if let Some(own) = lane.own {
            if self.arena.room(own) > 0 {
                return Ok(own);
            }
        } else if lane.image.len < LANE_TAIL {
            let wanted = if lane.image.len == 0 { wanted.min(TAIL_WHOLE) } else { 1 };
            return self.tail(lane.track, wanted);
        }
        let hint = self.tracks[lane.track].group_hint.saturating_sub(lane.image.len) as usize;
        let class = class_for(hint.max(SIZES[0]));
        let fresh = self.lease(class, slot)?;
        if let Some(full) = self.lanes[slot].own.replace(fresh) {
            self.arena.release(full);
        }
        Ok(fresh)
    }

    /// The track's tail block, a fresh one if the last is full.
    fn tail(&mut self, track: u32, wanted: usize) -> Result<BlockId, Refused> {
        if let Some(tail) = self.tracks[track].tail
            && self.arena.room(tail) >= wanted
        {
            return Ok(tail);
        }
        let fresh = match self.arena.lease(TAIL_CLASS) {
            Some(block) => block,
            None => self.lease_hard(TAIL_CLASS, track)?,
        };
        if let Some(full) = self.tracks[track].tail.replace(fresh) {
            self.arena.release(full);
        }
        Ok(fresh)
    }

    fn lease(&mut self, class: usize, lane: u32) -> Result<BlockId, Refused> {
        match self.arena.lease(class) {
            Some(block) => Ok(block),
            None => self.lease_hard(class, self.lanes[lane].track),
        }
    }

    /// The arena is full: the track that asks gives up its own oldest group first, then whoever
    /// holds the oldest of all.
    fn lease_hard(&mut self, class: usize, track: u32) -> Result<BlockId, Refused> {
        for _ in 0..EVICTIONS {
            if !self.evict_for(track) {
                break;
            }
            if let Some(block) = self.arena.lease(class) {
                return Ok(block);
            }
        }
        self.limit_hits.hit("arena_bytes");
        Err(Refused::Full)
    }

    /// Adds a frame's boundary to the lane's index and moves the live edge. `Err` when the index
    /// pages of this shard are used up.
    #[inline]
    pub fn push_boundary(&mut self, lane: LaneKey, boundary: Boundary) -> Result<(), Refused> {
        let mut held = self.lanes.get_mut(lane).ok_or(Refused::Gone)?;
        if (held.image.frames as usize).is_multiple_of(PAGE_FRAMES) {
            self.add_page(lane)?;
            held = &mut self.lanes[lane.index()];
        }
        let frames = held.image.frames as usize;
        let page = held.image.pages[frames / PAGE_FRAMES];
        self.pages[page].0[frames % PAGE_FRAMES] = boundary;
        held.image.frames += 1;
        let (group, track) = (held.group, held.track);
        self.counters.frames_in += 1;
        self.edge(track, group, &boundary);
        Ok(())
    }

    fn add_page(&mut self, lane: LaneKey) -> Result<(), Refused> {
        let track = self.lanes.get(lane).ok_or(Refused::Gone)?.track;
        while self.pages.is_full() {
            self.limit_hits.hit("index_pages");
            if !self.evict_for(track) {
                return Err(Refused::Full);
            }
        }
        self.lanes.get(lane).ok_or(Refused::Gone)?;
        let page = Page([Boundary::default(); PAGE_FRAMES]);
        let page = self.pages.insert(page).map_err(|_| Refused::Full)?;
        self.lanes[lane.index()].image.pages.push(page.index());
        Ok(())
    }

    #[inline]
    fn edge(&mut self, track: u32, slot: u32, boundary: &Boundary) {
        let group = &mut self.groups[slot];
        if !group.has_frames {
            group.has_frames = true;
            group.first_ts = boundary.timestamp;
            group.first_us = boundary.ingress_us;
        }
        let seq = group.seq;
        let held = &mut self.tracks[track];
        if held.edge != slot {
            if held.edge != NIL && seq < self.groups[held.edge].seq {
                return;
            }
            held.edge = slot;
            held.edge_ts = boundary.timestamp;
        }
        held.edge_ts = held.edge_ts.max(boundary.timestamp);
        held.edge_us = boundary.ingress_us;
        if !held.moved {
            held.moved = true;
            let key = self.tracks.key_at(track).expect("a lane keeps its track");
            self.moved.push(key);
        }
    }

    /// The boundary of frame `index`, counted from the first frame in this image.
    #[inline]
    pub fn boundary(&self, image: &Image, index: u32) -> Boundary {
        let index = index as usize;
        self.pages[image.pages[index / PAGE_FRAMES]].0[index % PAGE_FRAMES]
    }

    /// Ends a lane and wakes its readers.
    pub fn end_lane(&mut self, key: LaneKey, end: LaneEnd) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if lane.end != LaneEnd::Open {
            return;
        }
        lane.end = end;
        lane.image.recent.at = NIL;
        let (group, track, len) = (lane.group, lane.track, lane.image.len);
        if let Some(own) = lane.own.take() {
            self.arena.release(own);
        }
        match end {
            LaneEnd::Fin => {
                self.tracks[track].group_hint = len;
                self.tracks[track].complete += 1;
                self.settle_end(track);
            }
            LaneEnd::Reset(_) => {
                self.groups[group].dead = true;
                self.counters.groups_in_reset += 1;
            }
            LaneEnd::Open => {}
        }
        self.wake(key);
        if self.groups[group].dead && self.groups[group].cursors == 0 {
            self.drop_group(group);
        }
    }

    /// Has every cursor of the lane look at what is new in this turn.
    #[inline]
    pub fn wake(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get(key) else { return };
        if lane.cursors != NIL && self.woken.last() != Some(&Woken::Lane(key)) {
            self.woken.push(Woken::Lane(key));
        }
    }

    /// Age in milliseconds that a group has when `next` is its successor: how far the edge is past
    /// the successor's first frame. Media time where the timescale is known, arrival time else.
    pub(super) fn age_of_successor(&self, track: &Track, mut next: u32) -> u64 {
        while next != NIL && !self.groups[next].has_frames {
            next = self.groups[next].newer;
        }
        if next == NIL {
            return 0;
        }
        let group = &self.groups[next];
        match &track.info {
            Some(info) => {
                let ticks = track.edge_ts.saturating_sub(group.first_ts);
                ticks.saturating_mul(1000) / info.timescale.max(1)
            }
            None => track.edge_us.saturating_sub(group.first_us) / 1000,
        }
    }

    /// True when `group` is the live edge or ahead of it: never stale.
    pub(super) fn is_edge(&self, track: &Track, slot: u32) -> bool {
        track.edge == NIL || self.groups[slot].seq >= self.groups[track.edge].seq
    }

    /// The stale test (lite 18.6): not the edge, and its successor began at least `budget_ms`
    /// before the edge.
    pub(super) fn is_stale(&self, track: &Track, slot: u32, budget_ms: u64) -> bool {
        !self.is_edge(track, slot)
            && self.age_of_successor(track, self.groups[slot].newer) >= budget_ms
    }

    /// Drops groups past the track's own age from its old end; a group with cursors stops the walk.
    pub(super) fn evict_aged(&mut self, track: u32) {
        let Some(budget) = self.tracks[track].max_age_ms() else { return };
        loop {
            let held = &self.tracks[track];
            let slot = held.oldest;
            if slot == NIL || self.groups[slot].cursors > 0 || !self.is_stale(held, slot, budget) {
                return;
            }
            self.counters.groups_evicted_age += 1;
            self.drop_group(slot);
        }
    }

    /// Makes room at the cost of `track` if it can, else of whoever holds the oldest group. False
    /// when nothing can be freed at once; a group that is read is then on its way out.
    fn evict_for(&mut self, track: u32) -> bool {
        self.evict_oldest(track) || self.evict_anywhere()
    }

    /// The oldest group of a track that may go for its memory: behind the edge, not going already.
    fn evictable(&self, track: &Track) -> Option<u32> {
        let mut slot = track.oldest;
        while slot != NIL && !self.is_edge(track, slot) {
            if self.groups[slot].cursors == 0 || !self.groups[slot].dead {
                return Some(slot);
            }
            slot = self.groups[slot].newer;
        }
        None
    }

    /// Gives up the oldest group behind the edge for its memory: at once if nobody reads it, else
    /// by ending its cursors. True when memory was freed now.
    fn evict_oldest(&mut self, track: u32) -> bool {
        let Some(slot) = self.evictable(&self.tracks[track]) else { return false };
        self.counters.groups_evicted_budget += 1;
        self.groups[slot].dead = true;
        if self.groups[slot].cursors > 0 {
            self.groups[slot].evicted = true;
            if self.reset_cursors(slot, Ended::Evicted) < self.groups[slot].cursors {
                self.reset_flights(track);
            }
            return false;
        }
        let lane = self.groups[slot].lane;
        if self.lanes[lane].end == LaneEnd::Open {
            let lane = self.lanes.key_at(lane).expect("a group keeps its lane");
            self.end_lane(lane, LaneEnd::Reset(EVICTED));
        } else {
            self.drop_group(slot);
        }
        true
    }

    fn evict_anywhere(&mut self) -> bool {
        let oldest = self
            .tracks
            .keys()
            .filter_map(|key| {
                let slot = self.evictable(&self.tracks[key.index()])?;
                Some((self.groups[slot].opened_us, key.index()))
            })
            .min();
        oldest.is_some_and(|(_, track)| self.evict_oldest(track))
    }

    /// Takes a group without cursors out of everything.
    pub(super) fn drop_group(&mut self, slot: u32) {
        let key: GroupKey = self.groups.key_at(slot).expect("the caller found it");
        let group = self.groups.remove(key).expect("the caller found it");
        assert!(group.cursors == 0, "a group with cursors is never dropped");
        let track = &mut self.tracks[group.track];
        match group.older {
            NIL => track.oldest = group.newer,
            older => self.groups[older].newer = group.newer,
        }
        match group.newer {
            NIL => track.newest = group.older,
            newer => self.groups[newer].older = group.older,
        }
        if track.edge == slot {
            track.edge = NIL;
        }
        let groups = &self.groups;
        while track.arrivals.front().is_some_and(|front| groups.get(*front).is_none()) {
            track.arrivals.pop_front();
            track.arrival_base += 1;
        }
        let lane: LaneKey = self.lanes.key_at(group.lane).expect("a group keeps its lane");
        let lane = self.lanes.remove(lane).expect("a group keeps its lane");
        if let Some(own) = lane.own {
            self.arena.release(own);
        }
        self.drop_image(lane.image);
    }

    fn drop_image(&mut self, mut image: Image) {
        for span in image.spans.drain(..) {
            self.arena.release(span.block);
        }
        for page in image.pages.drain(..) {
            let page: Key<Page> = self.pages.key_at(page).expect("an image keeps its pages");
            self.pages.remove(page);
        }
        image.recent = Recent::default();
        image.frames = 0;
        image.len = 0;
        if self.spare_images.len() < super::SPARE_IMAGES {
            self.spare_images.push(image);
        }
    }
}
