//! The group streams of one session, by stream number.
//!
//! Our streams are numbered in the order they open, so the table is a ring indexed by number,
//! without hashing. Streams that ended leave holes until the oldest goes; the session bounds that
//! span. Request streams have the same numbers and are never in it. Invariant: the front of the
//! ring is a stream that lives, or the ring is empty.

use std::collections::VecDeque;

use super::streams::StreamId;
use crate::model::CursorKey;

/// Open group streams and their cursors.
#[derive(Default)]
pub(super) struct Flows {
    base: u64,
    ring: VecDeque<Option<CursorKey>>,
    len: usize,
}

fn number(id: StreamId) -> u64 {
    id.0 >> 2
}

impl Flows {
    #[inline]
    fn place(&self, id: StreamId) -> Option<usize> {
        // Requests share the numbers: only streams of ours that go one way are groups.
        if id.0 & 3 != 3 {
            return None;
        }
        let offset = number(id).checked_sub(self.base)?;
        usize::try_from(offset).ok().filter(|offset| *offset < self.ring.len())
    }

    /// The cursor of a stream.
    #[inline]
    pub(super) fn get(&self, id: StreamId) -> Option<CursorKey> {
        self.ring[self.place(id)?]
    }

    /// Enters a stream newer than every other.
    #[inline(always)]
    pub(super) fn insert(&mut self, id: StreamId, cursor: CursorKey) {
        let number = number(id);
        if self.ring.is_empty() {
            self.base = number;
        }
        let end = self.base + self.ring.len() as u64;
        assert!(number >= end, "streams open in order");
        if number > end {
            self.ring.extend((end..number).map(|_| None));
        }
        self.ring.push_back(Some(cursor));
        self.len += 1;
    }

    /// Takes a stream out.
    #[inline]
    pub(super) fn remove(&mut self, id: StreamId) -> Option<CursorKey> {
        let place = self.place(id)?;
        let cursor = self.ring[place].take()?;
        self.len -= 1;
        while let Some(None) = self.ring.front() {
            self.ring.pop_front();
            self.base += 1;
        }
        Some(cursor)
    }

    /// Streams that live.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Numbers between the oldest and the newest, holes included.
    pub(super) fn span(&self) -> usize {
        self.ring.len()
    }

    /// The oldest stream's cursor.
    pub(super) fn oldest(&self) -> Option<CursorKey> {
        self.ring.front().copied().flatten()
    }

    /// Every cursor, oldest stream first.
    pub(super) fn cursors(&self) -> impl Iterator<Item = CursorKey> + '_ {
        self.ring.iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_stream_of_the_same_number_is_another_stream() {
        let (group, request) = (StreamId(7), StreamId(4));
        let cursor = CursorKey::from_bits(1 << 32);
        let mut flows = Flows::default();
        flows.insert(group, cursor);
        assert_eq!((flows.get(request), flows.remove(request)), (None, None));
        assert_eq!(flows.remove(group), Some(cursor));
    }
}
