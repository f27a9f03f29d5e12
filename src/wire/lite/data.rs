//! Media: the head of a group stream, the head of a frame, the datagram (lite 10, 11).
//!
//! ```text
//! group stream  | type 0 | length | subscribe | sequence | [frame_start] | frame | frame | ... FIN
//! frame         | timestamp delta, zigzag | size | payload |
//! datagram      | subscribe | sequence | timestamp | payload to the end |
//! ```
//!
//! The hot path: nothing here allocates, but for a datagram that outgrows the caller's buffer.

use super::kind;
use crate::wire::version::Version;
use crate::wire::{
    DecodeError, Reader, VARINT_LEN_MAX, What, message, put_varint, write_varint, zigzag,
};

/// Longest body of a group header: three varints.
const GROUP_BODY_MAX: usize = 3 * VARINT_LEN_MAX;
/// Longest group header with the stream's type and the body's length, one byte each.
pub const GROUP_HEADER_MAX: usize = 2 + GROUP_BODY_MAX;
/// Longest frame header: two varints.
pub const FRAME_HEADER_MAX: usize = 2 * VARINT_LEN_MAX;
/// Largest payload of a datagram.
pub const DATAGRAM_MAX: usize = 65_535;

const _: () = assert!(kind::UNI_GROUP == 0 && GROUP_BODY_MAX < 0x40);

/// Head of a group stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct GroupHeader {
    /// The subscription it belongs to.
    pub subscribe: u64,
    /// The group's number.
    pub sequence: u64,
    /// How many frames are missing at its front. Zero before frame bounds.
    pub frame_start: u64,
}

impl GroupHeader {
    /// Reads it off a stream's buffer from behind the type, and how many bytes it takes. Short when
    /// incomplete.
    #[inline]
    pub fn decode(buf: &[u8], version: Version) -> Result<(Self, usize), DecodeError> {
        let (body, used) = message(buf, GROUP_BODY_MAX)?;
        let mut reader = Reader::of_message(body);
        let subscribe = reader.varint()?;
        let sequence = reader.varint()?;
        let frame_start = if version.has_frame_bounds() { reader.varint()? } else { 0 };
        reader.finish()?;
        Ok((Self { subscribe, sequence, frame_start }, used))
    }

    /// Writes it with the stream's type and returns how many bytes it takes. A header that does not
    /// fit the version must not be sent, for its frames would be taken for others.
    #[inline]
    pub fn encode_into(&self, version: Version, out: &mut [u8; GROUP_HEADER_MAX]) -> usize {
        debug_assert!(self.fits(version), "{} cannot skip frames", version.name());
        let (head, body) = out.split_at_mut(2);
        let mut len = write_varint(body, self.subscribe);
        len += write_varint(&mut body[len..], self.sequence);
        if version.has_frame_bounds() {
            len += write_varint(&mut body[len..], self.frame_start);
        }
        write_varint(head, kind::UNI_GROUP);
        write_varint(&mut head[1..], len as u64);
        2 + len
    }

    /// True when the version can say all of it.
    #[inline]
    pub fn fits(&self, version: Version) -> bool {
        version.has_frame_bounds() || self.frame_start == 0
    }
}

/// Head of a frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Ticks since the frame before it on the stream, or since zero for the first. Within 2^61.
    pub delta: i64,
    /// Bytes of payload that follow.
    pub size: u64,
}

impl FrameHeader {
    /// Reads it off a stream's buffer, and how many bytes it takes. Short when incomplete.
    #[inline]
    pub fn decode(buf: &[u8]) -> Result<(Self, usize), DecodeError> {
        let mut reader = Reader::new(buf);
        let delta = reader.zigzag()?;
        let size = reader.varint()?;
        Ok((Self { delta, size }, reader.position()))
    }

    /// Writes it and returns how many bytes it takes.
    #[inline]
    pub fn encode_into(&self, out: &mut [u8; FRAME_HEADER_MAX]) -> usize {
        let len = write_varint(out, zigzag(self.delta));
        len + write_varint(&mut out[len..], self.size)
    }
}

/// A group of one frame that travels in a datagram.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The subscription it belongs to.
    pub subscribe: u64,
    /// The group's number.
    pub sequence: u64,
    /// Ticks since zero.
    pub timestamp: u64,
    /// The frame; at most [`DATAGRAM_MAX`] bytes.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Reads a whole datagram. Never short: no more bytes of it will come.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::of_message(bytes);
        let subscribe = reader.varint()?;
        let sequence = reader.varint()?;
        let timestamp = reader.varint()?;
        let payload = reader.rest();
        if payload.len() > DATAGRAM_MAX {
            return Err(DecodeError::Invalid(What::TooLarge));
        }
        Ok(Self { subscribe, sequence, timestamp, payload })
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.subscribe);
        put_varint(out, self.sequence);
        put_varint(out, self.timestamp);
        out.extend_from_slice(self.payload);
    }
}
