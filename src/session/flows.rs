//! The group streams of one session, by stream number.
//!
//! Our streams are numbered in the order they open, so the table is a ring indexed by number,
//! without hashing. Streams that ended leave holes until the oldest goes; the session bounds that
//! span. Request streams have the same numbers and are never in it. Invariant: the oldest place in
//! use is a stream that lives, and every place outside `base..end` is empty.

use super::streams::StreamId;
use crate::model::flight::Hold;

/// Places of a ring at first.
const RING_MIN: usize = 8;

/// Open group streams and what each holds of the model.
#[derive(Default)]
pub(super) struct Flows {
    /// Number of the oldest stream.
    base: u64,
    /// Past the number of the newest.
    end: u64,
    /// Stream `n` at `n` modulo its length, a power of two, or none.
    ring: Vec<Option<Hold>>,
    len: usize,
}

fn number(id: StreamId) -> u64 {
    id.0 >> 2
}

impl Flows {
    #[inline(always)]
    fn place(&self, number: u64) -> usize {
        // The cast keeps the low bits, which are all that count.
        #[expect(clippy::cast_possible_truncation, reason = "masked below the ring's length")]
        let low = number as usize;
        low & self.ring.len().wrapping_sub(1)
    }

    #[inline(always)]
    fn known(&self, id: StreamId) -> Option<u64> {
        // Requests share the numbers: only streams of ours that go one way are groups.
        let number = number(id);
        (id.0 & 3 == 3 && self.base <= number && number < self.end).then_some(number)
    }

    /// What a stream holds.
    #[inline]
    pub(super) fn get(&self, id: StreamId) -> Option<Hold> {
        self.ring[self.place(self.known(id)?)]
    }

    /// Enters a stream newer than every other.
    #[inline(always)]
    pub(super) fn insert(&mut self, id: StreamId, hold: Hold) {
        let number = number(id);
        assert!(number >= self.end, "streams open in order");
        if self.len == 0 {
            self.base = number;
        }
        if number - self.base >= self.ring.len() as u64 {
            self.grow(number);
        }
        let place = self.place(number);
        self.ring[place] = Some(hold);
        self.end = number + 1;
        self.len += 1;
    }

    /// Makes room for a stream that far from the oldest.
    #[cold]
    fn grow(&mut self, number: u64) {
        let span = usize::try_from(number - self.base + 1).expect("the session bounds the span");
        let wider = vec![None; span.next_power_of_two().max(RING_MIN)];
        let narrow = Self { ring: std::mem::replace(&mut self.ring, wider), ..*self };
        for (id, hold) in narrow.iter() {
            let place = self.place(self::number(id));
            self.ring[place] = Some(hold);
        }
    }

    /// Takes a stream out.
    #[inline(always)]
    pub(super) fn remove(&mut self, id: StreamId) -> Option<Hold> {
        let place = self.place(self.known(id)?);
        let hold = self.ring[place].take()?;
        self.len -= 1;
        self.trim();
        Some(hold)
    }

    #[inline(always)]
    fn trim(&mut self) {
        while self.base < self.end && self.ring[self.place(self.base)].is_none() {
            self.base += 1;
        }
    }

    /// Takes out every stream that `ends` names.
    pub(super) fn take_each(&mut self, mut ends: impl FnMut(StreamId, &mut Hold) -> bool) {
        for number in self.base..self.end {
            let place = self.place(number);
            let held = &mut self.ring[place];
            if held.as_mut().is_some_and(|hold| ends(StreamId(number << 2 | 3), hold)) {
                *held = None;
                self.len -= 1;
            }
        }
        self.trim();
    }

    /// Streams that live.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Numbers between the oldest and the newest, holes included.
    #[inline]
    pub(super) fn span(&self) -> usize {
        usize::try_from(self.end - self.base).expect("the session bounds the span")
    }

    /// The oldest stream.
    pub(super) fn oldest(&self) -> Option<(StreamId, Hold)> {
        self.iter().next()
    }

    /// Every stream, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (StreamId, Hold)> + '_ {
        let held = |number| self.ring[self.place(number)];
        (self.base..self.end)
            .filter_map(move |number| Some((StreamId(number << 2 | 3), held(number)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::CursorKey;

    #[test]
    fn a_request_stream_of_the_same_number_is_another_stream() {
        let (group, request) = (StreamId(7), StreamId(4));
        let cursor = Hold::Cursor(CursorKey::from_bits(1 << 32));
        let mut flows = Flows::default();
        flows.insert(group, cursor);
        assert_eq!((flows.get(request), flows.remove(request)), (None, None));
        assert_eq!(flows.remove(group), Some(cursor));
    }
    #[test]
    fn streams_keep_their_holds_while_the_ring_grows_wraps_and_has_holes() {
        let hold = |number: u64| Hold::Cursor(CursorKey::from_bits(1 << 32 | number));
        let id = |number: u64| StreamId(number << 2 | 3);
        let mut flows = Flows::default();
        let mut live = std::collections::BTreeSet::new();
        let mut dice = 1_u64;
        for number in (5..2000).filter(|number| number % 7 != 0) {
            flows.insert(id(number), hold(number));
            live.insert(number);
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(number);
            let most = 1 + (number / 300) * 20;
            while live.len() as u64 > most {
                let nth = usize::try_from(dice >> 33).expect("31 bits") % live.len();
                let gone = *live.iter().nth(nth).expect("below its length");
                assert_eq!(flows.remove(id(gone)), Some(hold(gone)));
                assert_eq!(flows.remove(id(gone)), None);
                live.remove(&gone);
            }
            let first = live.first().expect("the newest may go, but not all");
            assert_eq!((flows.len(), flows.span() as u64), (live.len(), number + 1 - first));
        }
        let held: Vec<_> = flows.iter().collect();
        let expected: Vec<_> = live.iter().map(|number| (id(*number), hold(*number))).collect();
        assert_eq!(held, expected);
        flows.take_each(|id, _| number(id).is_multiple_of(2));
        live.retain(|number| !number.is_multiple_of(2));
        assert_eq!(
            flows.iter().map(|(id, _)| number(id)).collect::<Vec<_>>(),
            Vec::from_iter(live)
        );
    }
}
