//! A mailbox: a bounded ring with one writer and one reader, and a bell that wakes the reader.
//!
//! ```text
//!   Outbox --push--> [ ring of `slots` ] --pop--> Inbox
//!      \----flush--> Bell (eventfd) ~~~~ readable ~~> whoever sleeps
//! ```
//!
//! Pushing does not ring: a writer pushes all it has and then flushes, which rings at most once.
//! A reader that wakes silences the bell *before* it pops, so that a push which it misses rings
//! again.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

/// What wakes a mailbox's reader.
pub trait Bell {
    /// Wakes the reader, or makes its next sleep end at once.
    fn ring(&self);
}

/// A bell that a reader can sleep on: an eventfd. Clones are the same bell.
#[derive(Debug, Clone)]
pub struct Doorbell(Arc<OwnedFd>);

impl Doorbell {
    /// Makes a silent bell. Fails when the process may open no more files.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Makes the descriptor unreadable until the next ring. True when it had rung.
    pub fn silence(&self) -> bool {
        loop {
            match read(&*self.0, &mut [0; 8]) {
                Err(Errno::INTR) => {}
                outcome => return outcome.is_ok(),
            }
        }
    }
}

impl Bell for Doorbell {
    fn ring(&self) {
        // The one refusal beside a signal is a full counter, and that bell has rung.
        while write(&*self.0, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Doorbell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The writing end. Dropping it wakes the reader, which then finds the mailbox closed.
#[derive(Debug)]
pub struct Outbox<M, B: Bell> {
    // Fields drop in this order: the last ring comes when the mailbox is closed, not before.
    ring: rtrb::Producer<M>,
    bell: LastRing<B>,
    is_dirty: bool,
}

/// A bell that rings when it is dropped.
#[derive(Debug)]
struct LastRing<B: Bell>(B);

impl<B: Bell> Drop for LastRing<B> {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Inbox<M> {
    ring: rtrb::Consumer<M>,
}

/// A mailbox with room for `slots` messages.
pub fn mailbox<M, B: Bell>(slots: usize, bell: B) -> (Outbox<M, B>, Inbox<M>) {
    let (writer, reader) = rtrb::RingBuffer::new(slots);
    (Outbox { ring: writer, bell: LastRing(bell), is_dirty: false }, Inbox { ring: reader })
}

impl<M, B: Bell> Outbox<M, B> {
    /// Puts a message in, for [`Self::flush`] to tell. Gives it back when the mailbox is full.
    pub fn push(&mut self, message: M) -> Result<(), M> {
        match self.ring.push(message) {
            Ok(()) => {
                self.is_dirty = true;
                Ok(())
            }
            Err(rtrb::PushError::Full(message)) => Err(message),
        }
    }

    /// Rings the bell if anything was pushed since the last time.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.is_dirty) {
            self.bell.0.ring();
        }
    }

    /// Messages that fit now.
    pub fn room(&self) -> usize {
        self.ring.slots()
    }

    /// True when nobody will read any more.
    pub fn is_closed(&self) -> bool {
        self.ring.is_abandoned()
    }
}

impl<M> Inbox<M> {
    /// Takes the oldest message.
    pub fn pop(&mut self) -> Option<M> {
        self.ring.pop().ok()
    }

    /// True when it is empty now.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// True when nobody will write any more; what was written can still be taken.
    pub fn is_closed(&self) -> bool {
        self.ring.is_abandoned()
    }
}
