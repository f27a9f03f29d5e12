//! Streams that were written whole and ended at once: nearly all there are where a group is a
//! frame.
//!
//! Nothing more is written to them, so no cursor stands in their lane; what they hold until they
//! are acknowledged fits the session's own table. They count among the cursors of their group,
//! which keeps it, and their block is charged like a cursor's. Invariant: a flight's reader is not
//! closed before it; one that closes has its flights turned into finished cursors.

use super::arena::BlockId;
use super::cursor::{Cursor, CursorFlags, FINISHED_GRACE_MS, NIL};
use super::{CursorKey, Ended, Model, PeerKey, ReaderKey};

/// What an open stream holds of the model, for as long as it is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// A cursor: there is, or was, more to write.
    Cursor(CursorKey),
    /// Everything was written at once.
    Flight(Flight),
}

/// A stream on its way to a viewer, with nothing left to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flight {
    /// Slot of the group.
    pub(super) group: u32,
    /// Slot of the reader.
    pub(super) reader: u32,
    /// All it was sent lies in this block.
    pub(super) block: BlockId,
}

const _: () = assert!(size_of::<Option<Hold>>() <= 16);

impl Model {
    /// The stream is over, acknowledged or reset: its charge ends.
    #[inline]
    pub fn land(&mut self, peer: PeerKey, flight: Flight) {
        self.flights -= 1;
        let size = self.arena.size(flight.block);
        if self.peers[peer.index()].charge.remove(flight.block, size) {
            self.charged -= size;
        }
        self.leave_group(flight.group);
    }

    /// True when it is a stream of this reader.
    pub fn is_flight_of(&self, flight: Flight, reader: ReaderKey) -> bool {
        flight.reader == reader.index()
    }

    /// Microseconds of arrival of its group's first byte.
    pub fn flight_opened_us(&self, flight: Flight) -> u64 {
        self.groups[flight.group].opened_us
    }

    /// Why it must be reset now, if it must.
    pub fn flight_ended(&self, flight: Flight) -> Option<Ended> {
        let group = &self.groups[flight.group];
        if group.evicted {
            return Some(Ended::Evicted);
        }
        let track = &self.tracks[group.track];
        let own = track.max_age_ms().unwrap_or(u64::MAX);
        let due = own.min(self.readers[flight.reader].max_age_ms).max(FINISHED_GRACE_MS);
        self.is_stale(track, flight.group, due).then_some(Ended::Old)
    }

    /// Turns a flight into a finished cursor, which outlives its reader's subscription.
    pub fn moor(&mut self, peer: PeerKey, flight: Flight, stream: u64) -> CursorKey {
        self.flights -= 1;
        let group = &self.groups[flight.group];
        let opened_ms = group.opened_us / 1000;
        let slot = group.lane;
        let lane = &mut self.lanes[slot];
        let cursor = Cursor {
            next: lane.cursors,
            prev: NIL,
            lane: slot,
            reader: flight.reader,
            peer: peer.index(),
            priority: i32::try_from(opened_ms & 0x3f_ffff).expect("masked to 22 bits"),
            offset: lane.image.len,
            span: 0,
            span_first: 0,
            span_charged: 0,
            frame: lane.image.frames,
            frame_last: NIL,
            stream,
            flags: CursorFlags::FINISHED,
        };
        // Cursors and flights are bounded together, so there is room.
        let cursor = self.cursors.put(cursor);
        if lane.cursors != NIL {
            self.cursors[lane.cursors].prev = cursor.index();
        }
        lane.cursors = cursor.index();
        self.readers[flight.reader].cursors += 1;
        cursor
    }

    /// Has the readers of the track that are past their age look at their flights. A group is
    /// looked at once for each age that its readers have, not once a turn.
    pub(super) fn expire_flights(&mut self, track: u32, group: u32, age_ms: u64) {
        if age_ms < self.groups[group].flights_due_ms {
            return;
        }
        let own = self.tracks[track].max_age_ms().unwrap_or(u64::MAX);
        let mut next_ms = u64::MAX;
        for index in 0..self.tracks[track].readers.len() {
            let reader = &self.readers[self.tracks[track].readers[index].index()];
            let due_ms = own.min(reader.max_age_ms).max(FINISHED_GRACE_MS);
            if age_ms >= due_ms {
                let peer = reader.peer;
                self.call_overdue(peer);
            } else {
                next_ms = next_ms.min(due_ms);
            }
        }
        self.groups[group].flights_due_ms = next_ms;
    }

    /// A reader's age changed: its track's groups are looked at again.
    pub(super) fn review_flights(&mut self, track: u32) {
        for group in &self.tracks[track].active {
            self.groups[*group].flights_due_ms = FINISHED_GRACE_MS;
        }
    }

    /// Has every reader of the track look at its flights.
    pub(super) fn reset_flights(&mut self, track: u32) {
        for index in 0..self.tracks[track].readers.len() {
            let reader = self.tracks[track].readers[index];
            let peer = self.readers[reader.index()].peer;
            self.call_overdue(peer);
        }
    }

    fn call_overdue(&mut self, peer: u32) {
        self.peers[peer].overdue = true;
        self.mark_control(peer);
    }
}
