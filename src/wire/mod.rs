//! The byte formats of the dialects: borrowed bytes are decoded, messages are encoded into a
//! caller's buffer.
//!
//! Owns the layouts, the varint and the codes. Used by session. Never keeps state, never allocates
//! for a length it has not received, never decides policy; a version difference is a method of
//! [`version::Version`] and a branch in one codec.
//!
//! [`DecodeError::Short`] always means "wait for more bytes of this stream": a field that runs off
//! the end of a complete message is [`What::Truncated`] instead, which [`Reader::of_message`] sees
//! to.

pub mod code;
pub mod lite;
pub mod version;

use crate::name::{Cost, Hop, Hops, HopsError, Path, VARINT_MAX};

/// Largest message body (lite 3.3).
pub const MESSAGE_MAX: usize = 64 << 20;
/// Longest varint.
pub const VARINT_LEN_MAX: usize = 8;

/// Why bytes are no value.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end too early; more of the stream may complete them.
    Short,
    /// No further byte can help.
    Invalid(What),
}

const _: () = assert!(size_of::<DecodeError>() <= 8);

/// What is invalid.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A number that its field cannot hold.
    Varint,
    /// A boolean that is neither 0 nor 1.
    Bool,
    /// Text that is not UTF-8.
    Utf8,
    /// A path of more than [`crate::name::SEGMENTS_MAX`] segments.
    TooManySegments,
    /// A chain of more than [`crate::name::HOPS_MAX`] hops.
    TooManyHops,
    /// An identified hop twice in one chain.
    RepeatedHop,
    /// A parameter twice.
    Duplicate,
    /// More elements than allowed.
    TooMany,
    /// A length above its limit.
    TooLarge,
    /// Bytes left over after the last field.
    Trailing,
    /// A complete message that ends inside a field.
    Truncated,
    /// A timescale of zero.
    Timescale,
    /// A frame range that no group can satisfy.
    FrameBounds,
    /// An unknown announcement status.
    Status,
    /// An unknown message type.
    Kind,
    /// A timestamp below zero.
    Timestamp,
    /// Nothing where something is required.
    Empty,
}

/// Reads fields off borrowed bytes, front to back. After an error its position is unspecified.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    len: usize,
    /// What running off the end means.
    end: DecodeError,
}

impl<'a> Reader<'a> {
    /// Over bytes of a stream, which may go on: the end is [`DecodeError::Short`].
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, len: bytes.len(), end: DecodeError::Short }
    }

    /// Over a complete message: the end is [`What::Truncated`].
    #[inline]
    pub fn of_message(body: &'a [u8]) -> Self {
        Self { rest: body, len: body.len(), end: DecodeError::Invalid(What::Truncated) }
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        let (&byte, rest) = self.rest.split_first().ok_or(self.end)?;
        self.rest = rest;
        Ok(byte)
    }

    /// A varint of any length, minimal or not.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        let (value, rest) = split_varint(self.rest).ok_or(self.end)?;
        self.rest = rest;
        Ok(value)
    }

    /// A signed varint.
    #[inline]
    pub fn zigzag(&mut self) -> Result<i64, DecodeError> {
        self.varint().map(unzigzag)
    }

    /// The next `n` bytes.
    #[inline]
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.rest.split_at_checked(n).ok_or(self.end)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Bytes behind their length.
    pub fn prefixed(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.varint()?;
        self.bytes(usize::try_from(len).map_err(|_| self.end)?)
    }

    /// UTF-8 text behind its length.
    pub fn string(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.prefixed()?).map_err(|_| DecodeError::Invalid(What::Utf8))
    }

    /// A path, normalised.
    pub fn path(&mut self) -> Result<Path, DecodeError> {
        Path::parse(self.string()?).map_err(|_| DecodeError::Invalid(What::TooManySegments))
    }

    /// A hop chain behind its count, which is judged before any hop is read.
    pub fn hops(&mut self) -> Result<Hops, DecodeError> {
        let count = self.varint()?;
        if count > crate::name::HOPS_MAX as u64 {
            return Err(DecodeError::Invalid(What::TooManyHops));
        }
        let mut hops = Hops::default();
        for _ in 0..count {
            hops.push(Hop(self.varint()?)).map_err(|error| match error {
                HopsError::TooMany => DecodeError::Invalid(What::TooManyHops),
                HopsError::Repeated => DecodeError::Invalid(What::RepeatedHop),
            })?;
        }
        Ok(hops)
    }

    /// A price: warm, then cold.
    pub fn cost(&mut self) -> Result<Cost, DecodeError> {
        Ok(Cost { warm: self.varint()?, cold: self.varint()? })
    }

    /// An optional number: 0 is none, anything else is one more than the value.
    pub fn option(&mut self) -> Result<Option<u64>, DecodeError> {
        Ok(self.varint()?.checked_sub(1))
    }

    /// How many bytes were read.
    #[inline]
    pub fn position(&self) -> usize {
        self.len - self.rest.len()
    }

    /// The bytes not read yet.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// True when every byte was read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Fails with [`What::Trailing`] when bytes are left.
    #[inline]
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Invalid(What::Trailing)) }
    }
}

/// Splits a varint off `bytes`; `None` when they end too early. The two short forms, which nearly
/// every field of a frame has, stay inline.
#[inline]
fn split_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    match bytes {
        [a, rest @ ..] if *a < 0x40 => Some((u64::from(*a), rest)),
        [a, b, rest @ ..] if *a < 0x80 => {
            Some((u64::from(u16::from_be_bytes([*a & 0x3f, *b])), rest))
        }
        _ => split_long(bytes),
    }
}

fn split_long(bytes: &[u8]) -> Option<(u64, &[u8])> {
    match bytes.first()? >> 6 {
        2 => {
            let (bytes, rest) = bytes.split_first_chunk::<4>()?;
            Some((u64::from(u32::from_be_bytes(*bytes) & (u32::MAX >> 2)), rest))
        }
        3 => {
            let (bytes, rest) = bytes.split_first_chunk::<8>()?;
            Some((u64::from_be_bytes(*bytes) & VARINT_MAX, rest))
        }
        _ => None,
    }
}

/// Length of the minimal varint for `v`.
#[inline]
pub fn varint_len(v: u64) -> usize {
    match v {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

/// Writes the minimal varint for `v`, which is at most [`VARINT_MAX`], to the front of `out` and
/// returns its length. Panics when `out` is shorter than [`varint_len`] of `v`.
#[inline]
pub fn write_varint(out: &mut [u8], v: u64) -> usize {
    debug_assert!(v <= VARINT_MAX, "{v} does not fit a varint");
    match varint_len(v) {
        1 => fill::<1>(out, v),
        2 => fill::<2>(out, v | 1 << 14),
        4 => fill::<4>(out, v | 2 << 30),
        _ => fill::<8>(out, v.min(VARINT_MAX) | 3 << 62),
    }
}

#[inline]
fn fill<const N: usize>(out: &mut [u8], v: u64) -> usize {
    let bytes = v.to_be_bytes();
    let tail = bytes.last_chunk::<N>().expect("at most eight bytes");
    *out.first_chunk_mut::<N>().expect("the caller leaves room for a varint") = *tail;
    N
}

/// Appends the minimal varint for `v`.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, v: u64) {
    let mut bytes = [0; VARINT_LEN_MAX];
    let len = write_varint(&mut bytes, v);
    out.extend_from_slice(&bytes[..len]);
}

/// Maps a signed number to an unsigned one, small for small magnitudes.
#[inline]
pub fn zigzag(v: i64) -> u64 {
    (v.cast_unsigned() << 1) ^ (v >> 63).cast_unsigned()
}

/// The inverse of [`zigzag`].
#[inline]
pub fn unzigzag(v: u64) -> i64 {
    (v >> 1).cast_signed() ^ -(v & 1).cast_signed()
}

/// Splits a length-prefixed message off `buf`: its body and the bytes it takes with its prefix.
/// Short when incomplete; refused from the prefix alone when the body exceeds `max` bytes.
#[inline]
pub fn message(buf: &[u8], max: usize) -> Result<(&[u8], usize), DecodeError> {
    let mut reader = Reader::new(buf);
    let len = usize::try_from(reader.varint()?)
        .ok()
        .filter(|len| *len <= max)
        .ok_or(DecodeError::Invalid(What::TooLarge))?;
    let body = reader.bytes(len)?;
    Ok((body, reader.position()))
}

/// Appends what `body` writes, behind its length.
pub(crate) fn put_message(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    body(out);
    let len = out.len() - start;
    put_varint(out, len as u64);
    let prefix = out.len() - start - len;
    out[start..].rotate_right(prefix);
}

/// Appends bytes behind their length.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a hop chain behind its count.
pub(crate) fn put_hops(out: &mut Vec<u8>, hops: &Hops) {
    put_varint(out, hops.as_slice().len() as u64);
    for hop in hops.as_slice() {
        put_varint(out, hop.0);
    }
}

/// Appends a price.
pub(crate) fn put_cost(out: &mut Vec<u8>, cost: Cost) {
    put_varint(out, cost.warm.min(VARINT_MAX));
    put_varint(out, cost.cold.min(VARINT_MAX));
}

/// Appends an optional number. The largest varint has no room for the one that is added and goes
/// out as its neighbour.
pub(crate) fn put_option(out: &mut Vec<u8>, value: Option<u64>) {
    put_varint(out, value.map_or(0, |value| value.saturating_add(1).min(VARINT_MAX)));
}
