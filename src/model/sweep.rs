//! Who is visited in a turn: what woke since the last one, and how each is told.
//!
//! ```text
//! wake, queue_readers -> woken --settle--> one list: swept as it is, peer by peer
//!                                          several:  noted at their peers first
//! ```
//! Nearly always one lane grew or one track has a new group, and most of its viewers have nothing
//! else to do: they are visited straight from the lane's or track's own list, without noting
//! anything at their peers. Invariant: a peer is visited once a turn, with all it has to do; one that
//! is dirty has what woke it put into its lists instead.

use super::cursor::{CursorFlags, NIL};
use super::peer::{Due, Todo};
use super::{LaneKey, Model, TrackKey};

/// Something whose readers have something to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Woken {
    /// A lane grew or ended.
    Lane(LaneKey),
    /// A track has a new group.
    Track(TrackKey),
}

/// Where the sweep of a list is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sweep {
    /// Nothing is left.
    Idle,
    /// At this cursor of a lane.
    Lane(u32),
    /// At the last of so many readers of a track, backwards, since one that closes is replaced by
    /// the last.
    Track(TrackKey, usize),
}

impl Model {
    /// Takes up what woke since the last turn.
    pub(super) fn take_woken(&mut self) {
        let several = self.woken.len() > 1;
        while let Some(woken) = self.woken.pop() {
            self.sweep = match woken {
                Woken::Lane(key) => {
                    self.lanes.get(key).map_or(Sweep::Idle, |lane| Sweep::Lane(lane.cursors))
                }
                Woken::Track(key) => self
                    .tracks
                    .get(key)
                    .map_or(Sweep::Idle, |track| Sweep::Track(key, track.readers.len())),
            };
            while several && let Some(due) = self.sweep() {
                let slot = due.key.index();
                let peer = &mut self.peers[slot];
                match due.todo {
                    Todo::Cursor(at) => peer.ready.push((self.cursors[at].priority, at)),
                    Todo::Reader(reader) => peer.readers.push(reader),
                    Todo::Lists => {}
                }
                self.mark(slot);
            }
        }
    }

    /// The next of the sweep that has nothing else to do.
    #[inline]
    pub(super) fn sweep(&mut self) -> Option<Due> {
        match self.sweep {
            Sweep::Idle => None,
            Sweep::Lane(at) => self.sweep_lane(at),
            Sweep::Track(track, left) => self.sweep_track(track, left),
        }
    }

    #[inline(always)]
    pub(super) fn sweep_lane(&mut self, mut at: u32) -> Option<Due> {
        while at != NIL {
            let slot = at;
            let cursor = &mut self.cursors[slot];
            at = cursor.next;
            if !cursor.flags.is_idle() {
                continue;
            }
            cursor.flags.set(CursorFlags::QUEUED);
            let (key, peer) = self.peers.entry_at(cursor.peer).expect("a cursor keeps its peer");
            if peer.dirty {
                peer.ready.push((cursor.priority, slot));
                continue;
            }
            self.sweep = Sweep::Lane(at);
            return Some(Due { key, todo: Todo::Cursor(slot) });
        }
        self.sweep = Sweep::Idle;
        None
    }

    #[inline]
    fn sweep_track(&mut self, track: TrackKey, mut left: usize) -> Option<Due> {
        while left > 0 {
            left -= 1;
            let Some(held) = self.tracks.get(track) else { break };
            let Some(key) = held.readers.get(left).copied() else { continue };
            let reader = &mut self.readers[key.index()];
            if reader.queued || reader.gone {
                continue;
            }
            reader.queued = true;
            let (peer_key, peer) =
                self.peers.entry_at(reader.peer).expect("a reader keeps its peer");
            if peer.dirty {
                peer.readers.push(key);
                continue;
            }
            self.sweep = Sweep::Track(track, left);
            return Some(Due { key: peer_key, todo: Todo::Reader(key) });
        }
        self.sweep = Sweep::Idle;
        None
    }
}
