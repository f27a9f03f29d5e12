//! The transmit slots: a fixed set of buffers and who has each.
//!
//! Owns every buffer for good: they are reserved once, handed out as handles and never grow, so a
//! pointer to one stays valid. The state of a slot is checked at every step, in release too.
//!
//! ```text
//! Free -take-> Filling -queue-> Queued -release-> Free
//!                 '---put_back---> Free
//! ```

use super::{SLOT_BYTES, Slot};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Filling,
    Queued,
}

struct Entry {
    buf: Vec<u8>,
    /// Where the buffer lives, to prove that it never moved.
    home: *const u8,
    state: State,
}

/// The slots of one net.
pub(super) struct Pool {
    entries: Vec<Entry>,
    /// Last in, first out: the slot used last is warm.
    free: Vec<Slot>,
}

impl Pool {
    /// Reserves `slots` buffers. The kernel backs them with memory when they are first used.
    pub(super) fn new(slots: usize) -> Self {
        let slots = u32::try_from(slots).expect("slot handles are 32 bits");
        let entry = |_| {
            let buf = Vec::with_capacity(SLOT_BYTES);
            Entry { home: buf.as_ptr(), buf, state: State::Free }
        };
        Self {
            entries: (0..slots).map(entry).collect(),
            free: (0..slots).rev().map(Slot).collect(),
        }
    }

    /// A free slot with an empty buffer.
    pub(super) fn take(&mut self) -> Option<Slot> {
        let slot = self.free.pop()?;
        let entry = self.step(slot, State::Free, State::Filling);
        entry.buf.clear();
        assert!(entry.buf.capacity() >= SLOT_BYTES, "slot {slot:?} lost its buffer");
        Some(slot)
    }

    /// The buffer of a slot being filled.
    pub(super) fn buf(&mut self, slot: Slot) -> &mut Vec<u8> {
        &mut self.step(slot, State::Filling, State::Filling).buf
    }

    /// Takes back a slot that was not used.
    pub(super) fn put_back(&mut self, slot: Slot) {
        self.step(slot, State::Filling, State::Free);
        self.free.push(slot);
    }

    /// Marks a filled slot as queued; its first `len` bytes are what counts.
    pub(super) fn queue(&mut self, slot: Slot, len: usize) {
        let entry = self.step(slot, State::Filling, State::Queued);
        assert!(entry.buf.len() >= len, "slot {slot:?} holds fewer than {len} bytes");
        assert!(entry.buf.as_ptr() == entry.home, "slot {slot:?} outgrew its buffer");
    }

    /// The bytes of a queued slot.
    pub(super) fn bytes(&self, slot: Slot) -> &[u8] {
        let entry = &self.entries[slot.0 as usize];
        assert_eq!(entry.state, State::Queued, "slot {slot:?}");
        &entry.buf
    }

    /// Frees a queued slot.
    pub(super) fn release(&mut self, slot: Slot) {
        self.step(slot, State::Queued, State::Free);
        self.free.push(slot);
    }

    fn step(&mut self, slot: Slot, from: State, to: State) -> &mut Entry {
        let entry = &mut self.entries[slot.0 as usize];
        assert_eq!(entry.state, from, "slot {slot:?}");
        entry.state = to;
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_go_round_and_run_out() {
        let mut pool = Pool::new(2);
        let (a, b) = (pool.take().expect("free"), pool.take().expect("free"));
        assert_eq!(pool.take(), None);
        pool.buf(a).extend_from_slice(b"abc");
        pool.queue(a, 3);
        assert_eq!(pool.bytes(a), b"abc");
        pool.release(a);
        pool.put_back(b);
        assert_eq!(pool.take(), Some(b));
        assert_eq!(pool.take(), Some(a));
        assert!(pool.buf(a).is_empty());
    }

    #[test]
    #[should_panic(expected = "outgrew")]
    fn a_buffer_that_grew_is_noticed() {
        let mut pool = Pool::new(1);
        let slot = pool.take().expect("free");
        pool.buf(slot).resize(4 * SLOT_BYTES, 0);
        // The allocator may grow a buffer in place; only a moved one is refused here.
        let moved = pool.buf(slot).clone();
        *pool.buf(slot) = moved;
        pool.queue(slot, 1);
    }

    #[test]
    #[should_panic(expected = "slot Slot(0)")]
    fn a_slot_cannot_be_sent_twice() {
        let mut pool = Pool::new(1);
        let slot = pool.take().expect("free");
        pool.buf(slot).push(1);
        pool.queue(slot, 1);
        pool.queue(slot, 1);
    }
}
