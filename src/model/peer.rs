//! What the model keeps for each session: lists of what it should look at, and its charge.
//!
//! The model never calls a session; it leaves work here and marks the peer dirty, and the shard
//! visits dirty peers once a turn. Invariant: a peer is in the model's dirty list exactly when its
//! `dirty` flag is set.

use std::collections::BTreeSet;

use super::arena::BlockId;
use super::track::Info;
use super::{BroadcastKey, CursorKey, Ended, Model, PeerKey, ReaderKey, TrackKey};
use crate::name::Hop;

/// Something to answer on a request stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The info that was asked for.
    Info {
        /// The request stream.
        stream: u64,
        /// The answer.
        info: Info,
    },
    /// The request fails.
    Refused {
        /// The request stream.
        stream: u64,
        /// Why.
        code: u64,
    },
}

/// Blocks behind the streams a peer was sent, each once.
#[derive(Default)]
pub struct Charge {
    blocks: Vec<(BlockId, u32)>,
    bytes: usize,
}

impl Charge {
    /// One more stream touches `block`; true when it was not charged before.
    #[inline]
    pub fn add(&mut self, block: BlockId, size: usize) -> bool {
        match self.blocks.last_mut() {
            Some((held, count)) if *held == block => {
                *count += 1;
                false
            }
            _ => self.add_other(block, size),
        }
    }

    #[inline(never)]
    fn add_other(&mut self, block: BlockId, size: usize) -> bool {
        if let Some((_, count)) = self.blocks.iter_mut().rev().find(|(held, _)| *held == block) {
            *count += 1;
            return false;
        }
        self.blocks.push((block, 1));
        self.bytes += size;
        true
    }

    /// One stream less; true when the block is not charged any more.
    #[inline]
    pub fn remove(&mut self, block: BlockId, size: usize) -> bool {
        match self.blocks.last_mut() {
            Some((held, count)) if *held == block && *count > 1 => {
                *count -= 1;
                false
            }
            _ => self.remove_other(block, size),
        }
    }

    #[inline(never)]
    fn remove_other(&mut self, block: BlockId, size: usize) -> bool {
        let at = self.blocks.iter().position(|(held, _)| *held == block);
        let at = at.expect("only what was charged is released");
        self.blocks[at].1 -= 1;
        if self.blocks[at].1 > 0 {
            return false;
        }
        self.blocks.swap_remove(at);
        self.bytes -= size;
        true
    }

    /// Bytes charged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A dirty peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    /// The peer.
    pub key: PeerKey,
    /// What it has to do.
    pub todo: Todo,
}

/// What a dirty peer has to do. A thing that is named is in none of its lists any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Todo {
    /// Only to deliver to this cursor.
    Cursor(u32),
    /// Only to open what this reader has.
    Reader(ReaderKey),
    /// What is in its lists.
    Lists,
}

/// One session as the model sees it.
#[derive(Default)]
pub struct Peer {
    /// Its origin id, 0 until declared.
    pub hop: Hop,
    /// Cursors with something to do: (priority, slot).
    pub ready: Vec<(i32, u32)>,
    /// Readers with something to do.
    pub readers: Vec<ReaderKey>,
    /// Streams to reset.
    pub resets: Vec<(CursorKey, Ended)>,
    /// Requests to answer.
    pub notices: Vec<Notice>,
    /// Tracks of this source whose demand changed.
    pub demand: Vec<TrackKey>,
    /// Tracks of this source that were freed.
    pub retired: Vec<TrackKey>,
    /// Broadcasts that changed, while the peer watches announcements.
    pub watched: Option<BTreeSet<BroadcastKey>>,
    /// Broadcasts it has a route to.
    pub(super) routes: BTreeSet<BroadcastKey>,
    /// Tracks it is the source of.
    pub(super) sources: BTreeSet<TrackKey>,
    /// What its streams hold.
    pub charge: Charge,
    /// Its flights are to be looked at: one may be past its age, or evicted.
    pub overdue: bool,
    /// There is more to do than media: one of the lists above, `ready` and `readers` apart.
    pub control: bool,
    /// In the model's dirty list.
    pub dirty: bool,
}

impl Model {
    /// A session begins.
    pub fn open_peer(&mut self) -> Option<PeerKey> {
        self.peers.insert(Peer::default()).ok()
    }

    /// A session is over: its routes go, its tracks fail with `code`. It must have closed its
    /// readers and detached its cursors.
    pub fn close_peer(&mut self, key: PeerKey, code: u64) {
        if self.peers.get(key).is_none() {
            return;
        }
        self.retract_peer(key);
        self.fail_source(key, code);
        let peer = self.peers.remove(key).expect("just used");
        assert!(peer.charge.bytes == 0, "a session detaches its cursors before it goes");
    }

    /// Each peer with the bytes it is charged, for metrics and for tests that look inside.
    pub fn charges(&self) -> impl Iterator<Item = (PeerKey, usize)> + '_ {
        self.peers.keys().map(|key| (key, self.peers[key.index()].charge.bytes()))
    }

    /// Marks a peer dirty.
    #[inline]
    pub(super) fn mark(&mut self, slot: u32) {
        let peer = &mut self.peers[slot];
        if !peer.dirty {
            peer.dirty = true;
            self.dirty.push(slot);
        }
    }

    /// Marks a peer dirty that has more to do than media.
    pub(super) fn mark_control(&mut self, slot: u32) {
        self.peers[slot].control = true;
        self.mark(slot);
    }

    /// Has the shard visit `key` this turn.
    pub fn touch(&mut self, key: PeerKey) {
        if self.peers.get(key).is_some() {
            self.mark(key.index());
        }
    }

    /// True when peers are dirty that this turn does not visit any more.
    pub fn has_dirty(&self) -> bool {
        !self.dirty.is_empty() || !self.visiting.is_empty() || !self.woken.is_empty()
    }

    /// The next peer that was dirty at `settle`, no longer dirty, and what it has to do. One marked
    /// again meanwhile has its turn after the next `settle`, so that none is visited twice in one.
    #[inline(always)]
    pub fn pop_dirty(&mut self) -> Option<Due> {
        if let Some(due) = self.sweep_lane() {
            return Some(due);
        }
        match self.sweep_track() {
            Some(due) => Some(due),
            None => self.pop_visiting(),
        }
    }

    #[inline(never)]
    fn pop_visiting(&mut self) -> Option<Due> {
        while let Some(slot) = self.visiting.pop() {
            let Some((key, peer)) = self.peers.entry_at(slot) else { continue };
            if !std::mem::take(&mut peer.dirty) {
                continue;
            }
            let todo = match (&peer.ready[..], &peer.readers[..]) {
                _ if peer.control => Todo::Lists,
                ([(_, slot)], []) => Todo::Cursor(*slot),
                ([], [reader]) => Todo::Reader(*reader),
                _ => Todo::Lists,
            };
            if todo != Todo::Lists {
                peer.ready.clear();
                peer.readers.clear();
            }
            return Some(Due { key, todo });
        }
        None
    }

    /// Leaves an answer for a peer.
    pub(super) fn notify(&mut self, key: PeerKey, notice: Notice) {
        if let Some(peer) = self.peers.get_mut(key) {
            peer.notices.push(notice);
            self.mark_control(key.index());
        }
    }
}
