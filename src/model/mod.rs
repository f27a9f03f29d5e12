//! What this shard knows: broadcasts, tracks, groups, their frames in arena blocks, and a cursor
//! for each stream on its way out.
//!
//! Single-threaded and synchronous; knows no bytes of the wire, no streams but by number, no
//! sessions but as peers with lists of work. Time comes in through `tick`. Invariant: everything is
//! in bounded slots, and what the model is charged is exactly what those slots and the leased
//! blocks amount to.

pub mod arena;
pub mod cursor;
pub mod deliver;
pub mod flight;
pub mod group;
pub mod origin;
pub mod peer;
pub mod slots;
mod sweep;
pub mod track;

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use self::arena::{Arena, BlockId};
use self::cursor::{Cursor, NIL, Reader};
use self::deliver::Offer;
use self::group::{Group, Image, Lane, Page};
use self::origin::Broadcast;
use self::peer::Peer;
use self::slots::{Key, Slots};
use self::sweep::Woken;
use self::track::Track;
use crate::config::Limits;
use crate::metrics::{Counters, ReasonCounts};
use crate::name::{GroupSeq, Path, TrackName};

/// Names a broadcast.
pub type BroadcastKey = Key<Broadcast>;
/// Names a track.
pub type TrackKey = Key<Track>;
/// Names a group.
pub type GroupKey = Key<Group>;
/// Names a lane.
pub type LaneKey = Key<Lane>;
/// Names a reader.
pub type ReaderKey = Key<Reader>;
/// Names a cursor.
pub type CursorKey = Key<Cursor>;
/// Names a peer.
pub type PeerKey = Key<Peer>;

/// Emptied images kept for their vectors.
const SPARE_IMAGES: usize = 1024;
/// Size class of header blocks.
const HEADER_CLASS: usize = 0;

/// Why the model ends a stream before its content did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Past its age.
    Old,
    /// Its memory was needed.
    Evicted,
    /// The viewer holds too much.
    Behind,
    /// With this stream code.
    Code(u64),
}

/// One shard's model.
pub struct Model {
    /// Frame memory.
    pub arena: Arena,
    /// Everything that happened here.
    pub counters: Counters,
    /// Limits that were reached, by name.
    pub limit_hits: ReasonCounts,
    /// Microseconds of the shard's clock.
    pub now_us: u64,
    limits: Limits,
    broadcasts: Slots<Broadcast>,
    paths: FxHashMap<Path, BroadcastKey>,
    tracks: Slots<Track>,
    track_index: FxHashMap<(PeerKey, Path, TrackName), TrackKey>,
    groups: Slots<Group>,
    lanes: Slots<Lane>,
    pages: Slots<Page>,
    readers: Slots<Reader>,
    cursors: Slots<Cursor>,
    /// Streams that hold no cursor; bounded with the cursors.
    flights: usize,
    peers: Slots<Peer>,
    spare_images: Vec<Image>,
    watchers: Vec<PeerKey>,
    dirty: Vec<u32>,
    visiting: Vec<u32>,
    moved: Vec<TrackKey>,
    idle: VecDeque<(u64, TrackKey)>,
    drains: Vec<(u64, TrackKey)>,
    routes_made: u64,
    charged: usize,
    headers: Option<BlockId>,
    offer: Option<Offer>,
    woken: Vec<Woken>,
    /// Where the sweep of a lane is, `NIL` at its end.
    sweep_at: u32,
    /// The readers of a track that are left of its sweep.
    sweep_readers: Vec<ReaderKey>,
}

/// Slots in use, for metrics and for tests that look for leaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// See the model's slots.
    pub broadcasts: usize,
    /// See the model's slots.
    pub tracks: usize,
    /// See the model's slots.
    pub groups: usize,
    /// See the model's slots.
    pub lanes: usize,
    /// See the model's slots.
    pub pages: usize,
    /// See the model's slots.
    pub readers: usize,
    /// See the model's slots.
    pub cursors: usize,
    /// Streams written whole and ended at once, not acknowledged.
    pub flights: usize,
    /// See the model's slots.
    pub peers: usize,
    /// Bytes of all slots in use.
    pub slot_bytes: usize,
    /// Bytes of leased blocks.
    pub leased: usize,
    /// Bytes charged to viewers, summed over viewers.
    pub charged: usize,
}

impl Model {
    /// An empty model within `limits`.
    pub fn new(limits: &Limits) -> Self {
        Self {
            arena: Arena::new(limits.arena_bytes),
            counters: Counters::default(),
            limit_hits: ReasonCounts::default(),
            now_us: 0,
            broadcasts: Slots::new(limits.broadcasts),
            paths: FxHashMap::default(),
            tracks: Slots::new(limits.tracks),
            track_index: FxHashMap::default(),
            groups: Slots::new(limits.groups),
            lanes: Slots::new(limits.groups),
            pages: Slots::new(limits.index_pages),
            readers: Slots::new(limits.readers),
            cursors: Slots::new(limits.cursors),
            flights: 0,
            peers: Slots::new(limits.connections),
            spare_images: Vec::new(),
            watchers: Vec::new(),
            dirty: Vec::new(),
            visiting: Vec::new(),
            moved: Vec::new(),
            idle: VecDeque::new(),
            drains: Vec::new(),
            routes_made: 0,
            charged: 0,
            headers: None,
            offer: None,
            woken: Vec::new(),
            sweep_at: NIL,
            sweep_readers: Vec::new(),
            limits: limits.clone(),
        }
    }

    /// Slots and bytes in use.
    pub fn usage(&self) -> Usage {
        let slot_bytes = self.broadcasts.bytes()
            + self.tracks.bytes()
            + self.groups.bytes()
            + self.lanes.bytes()
            + self.pages.bytes()
            + self.readers.bytes()
            + self.cursors.bytes()
            + self.peers.bytes();
        Usage {
            broadcasts: self.broadcasts.len(),
            tracks: self.tracks.len(),
            groups: self.groups.len(),
            lanes: self.lanes.len(),
            pages: self.pages.len(),
            readers: self.readers.len(),
            cursors: self.cursors.len(),
            flights: self.flights,
            peers: self.peers.len(),
            slot_bytes,
            leased: self.arena.leased(),
            charged: self.charged,
        }
    }

    /// A track.
    pub fn track(&self, key: TrackKey) -> Option<&Track> {
        self.tracks.get(key)
    }

    /// A reader.
    pub fn reader(&self, key: ReaderKey) -> Option<&Reader> {
        self.readers.get(key)
    }

    /// A reader, to note what its session told its peer.
    pub fn reader_mut(&mut self, key: ReaderKey) -> Option<&mut Reader> {
        self.readers.get_mut(key)
    }

    /// The track of a reader.
    pub fn track_of(&self, key: ReaderKey) -> Option<&Track> {
        Some(&self.tracks[self.readers.get(key)?.track])
    }

    /// A lane.
    pub fn lane(&self, key: LaneKey) -> Option<&Lane> {
        self.lanes.get(key)
    }

    /// The lane in a slot that a cursor names.
    #[inline]
    pub fn lane_at(&self, slot: u32) -> &Lane {
        &self.lanes[slot]
    }

    /// Slot of the lane that the cursor in `slot` reads.
    #[inline]
    pub fn lane_slot(&self, slot: u32) -> u32 {
        self.cursors[slot].lane
    }

    /// The cursor in a slot that a peer's list names.
    #[inline]
    pub fn cursor_at(&mut self, slot: u32) -> &mut Cursor {
        &mut self.cursors[slot]
    }

    /// A cursor.
    pub fn cursor(&self, key: CursorKey) -> Option<&Cursor> {
        self.cursors.get(key)
    }

    /// The cursor in a slot, if there is one.
    pub fn cursor_in(&self, slot: u32) -> Option<&Cursor> {
        self.cursors.get(self.cursors.key_at(slot)?)
    }

    /// The key of the cursor in a slot.
    pub fn cursor_key(&self, slot: u32) -> CursorKey {
        self.cursors.key_at(slot).expect("a list names only cursors that exist")
    }

    /// Streams on their way out, each with its track and group, for tests that look inside.
    pub fn deliveries(&self) -> impl Iterator<Item = (u64, &TrackName, GroupSeq)> + '_ {
        self.cursors.keys().map(|key| {
            let cursor = &self.cursors[key.index()];
            let lane = &self.lanes[cursor.lane];
            (cursor.stream, &self.tracks[lane.track].name, self.groups[lane.group].seq)
        })
    }

    /// A peer's lists.
    #[inline]
    pub fn peer(&mut self, key: PeerKey) -> Option<&mut Peer> {
        self.peers.get_mut(key)
    }
}
