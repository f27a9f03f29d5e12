//! Who is visited in a turn: what woke since the last one, and how each is told.
//!
//! ```text
//! wake, queue_readers -> woken --settle--> one list: swept as it is, peer by peer
//!                                          several:  noted at their peers first
//! ```
//! Nearly always one lane grew or one track has a new group, and most of its viewers have nothing
//! else to do: they are visited straight from the lane's or track's own list, without noting
//! anything at their peers. Invariant: a peer is visited once a turn, with all it has to do; one
//! that is dirty has what woke it put into its lists instead.

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

impl Model {
    /// Takes up what woke since the last turn.
    pub(super) fn take_woken(&mut self) {
        let several = self.woken.len() > 1;
        while let Some(woken) = self.woken.pop() {
            match woken {
                Woken::Lane(key) => {
                    self.sweep_at = self.lanes.get(key).map_or(NIL, |lane| lane.cursors);
                }
                Woken::Track(key) => {
                    if let Some(track) = self.tracks.get(key) {
                        self.sweep_readers.extend_from_slice(&track.readers);
                    }
                }
            }
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
    fn sweep(&mut self) -> Option<Due> {
        self.sweep_lane().or_else(|| self.sweep_track())
    }

    /// As `sweep`, of a lane.
    #[inline(always)]
    pub(super) fn sweep_lane(&mut self) -> Option<Due> {
        while self.sweep_at != NIL {
            let slot = self.sweep_at;
            let cursor = &mut self.cursors[slot];
            self.sweep_at = cursor.next;
            if !cursor.flags.is_idle() {
                continue;
            }
            cursor.flags.set(CursorFlags::QUEUED);
            let (key, peer) = self.peers.entry_at(cursor.peer).expect("a cursor keeps its peer");
            if peer.dirty {
                peer.ready.push((cursor.priority, slot));
                continue;
            }
            return Some(Due { key, todo: Todo::Cursor(slot) });
        }
        None
    }

    /// As `sweep`, of a track.
    #[inline(always)]
    pub(super) fn sweep_track(&mut self) -> Option<Due> {
        while let Some(key) = self.sweep_readers.pop() {
            let Some(reader) = self.readers.get_mut(key) else { continue };
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
            return Some(Due { key: peer_key, todo: Todo::Reader(key) });
        }
        None
    }
}
