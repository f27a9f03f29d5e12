//! Streams that take and drop every slice, grant everything, and allocate nothing once warm.

use std::collections::VecDeque;

use bytes::Bytes;
use corelay::session::streams::{Dir, ReadEnd, StreamId, Streams};

/// One peer's streams.
#[derive(Default)]
pub(super) struct Fake {
    opened: [u64; 2],
    accepts: [VecDeque<StreamId>; 2],
    reading: Option<Reading>,
    /// Ended and not acknowledged.
    pub(super) finished: Vec<StreamId>,
    /// Media bytes taken.
    pub(super) taken: u64,
    /// Streams that ended, and that were broken off.
    pub(super) ends: u64,
    /// See `ends`.
    pub(super) breaks: u64,
}

/// What arrived on a stream of the peer.
struct Reading {
    id: StreamId,
    bytes: Vec<u8>,
    fin: bool,
}

impl Fake {
    /// The peer's bytes on `id`, which it opens now if `fresh`; read when the session is told.
    pub(super) fn arrive(&mut self, id: StreamId, fresh: bool, bytes: Vec<u8>, fin: bool) {
        self.reading = Some(Reading { id, bytes, fin });
        if fresh {
            self.accepts[usize::from(id.is_uni())].push_back(id);
        }
    }

    /// Takes back what `arrive` was given.
    pub(super) fn arrived(&mut self) -> Vec<u8> {
        self.reading.take().map(|reading| reading.bytes).unwrap_or_default()
    }
}

impl Streams for Fake {
    fn open(&mut self, dir: Dir) -> Option<StreamId> {
        let uni = u64::from(dir == Dir::Uni);
        let number = &mut self.opened[dir as usize];
        *number += 1;
        Some(StreamId((*number - 1) << 2 | uni << 1 | 1))
    }

    fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        self.accepts[usize::from(dir == Dir::Uni)].pop_front()
    }

    fn read(&mut self, id: StreamId, sink: &mut dyn FnMut(&[u8]) -> bool) -> ReadEnd {
        match &self.reading {
            Some(reading) if reading.id == id => {
                if !sink(&reading.bytes) {
                    return ReadEnd::Paused;
                }
                if reading.fin { ReadEnd::Fin } else { ReadEnd::Blocked }
            }
            _ => ReadEnd::Blocked,
        }
    }

    fn write(&mut self, _: StreamId, chunks: &mut [Bytes]) -> usize {
        let mut taken = 0;
        for chunk in chunks {
            taken += chunk.len();
            drop(std::mem::take(chunk));
        }
        self.taken += taken as u64;
        taken
    }

    fn write_control(&mut self, _: StreamId, bytes: &[u8]) -> usize {
        bytes.len()
    }

    fn finish(&mut self, id: StreamId) {
        self.ends += 1;
        self.finished.push(id);
    }

    fn reset(&mut self, _: StreamId, _: u64) {
        self.breaks += 1;
    }

    fn stop(&mut self, _: StreamId, _: u64) {}

    fn prioritize(&mut self, _: StreamId, _: i32) {}

    fn prefix(&self, _: Dir) -> &[u8] {
        &[]
    }

    fn datagram_max(&self) -> usize {
        0
    }

    fn expect_media(&mut self) {}

    fn accommodate(&mut self, _: Dir, _: usize) {}
}
