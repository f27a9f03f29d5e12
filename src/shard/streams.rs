//! A connection's streams as sessions see them: QUIC on one side, plain MoQ codes on the other.
//!
//! Codes go out in their HTTP/3 mapping, which most peers keep on raw QUIC too, and come in in
//! either form (lite 2.2). A STOP_SENDING without a reason is a plain 0, as peers send it.

use bytes::Bytes;
use quinn_proto::{FinishError, ReadError, Side, VarInt, WriteError};

use crate::quic::connection::Connection;
use crate::session::streams::{Dir, ReadEnd, StreamId, Streams};
use crate::wire::code;

/// The streams of one raw QUIC connection.
pub struct Raw<'a> {
    /// The connection.
    pub connection: &'a mut Connection,
}

/// Our number of a quinn stream.
pub fn number(id: quinn_proto::StreamId) -> StreamId {
    StreamId(VarInt::from(id).into_inner())
}

fn stream(id: StreamId) -> quinn_proto::StreamId {
    let side = if id.0 & 1 == 0 { Side::Client } else { Side::Server };
    let dir = if id.is_uni() { quinn_proto::Dir::Uni } else { quinn_proto::Dir::Bi };
    quinn_proto::StreamId::new(side, dir, id.0 >> 2)
}

fn direction(dir: Dir) -> quinn_proto::Dir {
    match dir {
        Dir::Bi => quinn_proto::Dir::Bi,
        Dir::Uni => quinn_proto::Dir::Uni,
    }
}

fn mapped(plain: u64) -> VarInt {
    VarInt::from_u64(code::map(plain)).unwrap_or(VarInt::MAX)
}

impl Streams for Raw<'_> {
    fn open(&mut self, dir: Dir) -> Option<StreamId> {
        self.connection.inner.streams().open(direction(dir)).map(number)
    }

    fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        self.connection.inner.streams().accept(direction(dir)).map(number)
    }

    fn read(&mut self, id: StreamId, sink: &mut dyn FnMut(&[u8]) -> bool) -> ReadEnd {
        let mut recv = self.connection.inner.recv_stream(stream(id));
        let Ok(mut chunks) = recv.read(true) else { return ReadEnd::Blocked };
        let end = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => {
                    if !sink(&chunk.bytes) {
                        break ReadEnd::Paused;
                    }
                }
                Ok(None) => break ReadEnd::Fin,
                Err(ReadError::Blocked) => break ReadEnd::Blocked,
                Err(ReadError::Reset(error)) => {
                    break ReadEnd::Reset(code::unmap(error.into_inner()));
                }
            }
        };
        // Window updates that reading made due leave with this turn's train.
        let _ = chunks.finalize();
        end
    }

    #[inline]
    fn write(&mut self, id: StreamId, chunks: &mut [Bytes]) -> usize {
        let mut send = self.connection.inner.send_stream(stream(id));
        let (mut taken, mut at) = (0, 0);
        // Only a refused write makes quinn-proto announce room later, a short one does not.
        while at < chunks.len() {
            match send.write_chunks(&mut chunks[at..]) {
                Ok(written) => {
                    taken += written.bytes;
                    at += written.chunks;
                }
                // A stopped or closed stream takes nothing more; its event ends it.
                Err(WriteError::Blocked | WriteError::Stopped(_) | WriteError::ClosedStream) => {
                    break;
                }
            }
        }
        taken
    }

    fn write_control(&mut self, id: StreamId, bytes: &[u8]) -> usize {
        self.connection.with_reserve(|inner| {
            let mut taken = 0;
            while taken < bytes.len() {
                match inner.send_stream(stream(id)).write(&bytes[taken..]) {
                    Ok(count) => taken += count,
                    Err(WriteError::Blocked) => break,
                    Err(WriteError::Stopped(_) | WriteError::ClosedStream) => return bytes.len(),
                }
            }
            taken
        })
    }

    fn finish(&mut self, id: StreamId) {
        let mut send = self.connection.inner.send_stream(stream(id));
        if let Err(FinishError::Stopped(_)) = send.finish() {
            // Nobody wants its end, but it must end.
            let _ = send.reset(mapped(code::stream::CANCELLED));
        }
    }

    fn reset(&mut self, id: StreamId, code: u64) {
        // Fails only on a stream that is closed already.
        let _ = self.connection.inner.send_stream(stream(id)).reset(mapped(code));
    }

    fn stop(&mut self, id: StreamId, code: u64) {
        let code = if code == 0 { VarInt::from_u32(0) } else { mapped(code) };
        // Fails only on a stream that is closed already.
        let _ = self.connection.inner.recv_stream(stream(id)).stop(code);
    }

    fn prioritize(&mut self, id: StreamId, priority: i32) {
        // Fails only on a stream that is closed already.
        let _ = self.connection.inner.send_stream(stream(id)).set_priority(priority);
    }

    fn prefix(&self, _dir: Dir) -> &[u8] {
        &[]
    }

    fn datagram_max(&self) -> usize {
        0
    }

    fn expect_media(&mut self) {
        self.connection.widen();
    }

    fn accommodate(&mut self, dir: Dir, open: usize) {
        self.connection.accommodate(direction(dir), open);
    }
}
