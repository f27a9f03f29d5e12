//! Finds the frames in an encoded stream body, and writes the header a body must begin with when it
//! does not begin at its first frame.
//!
//! The body is scanned as it arrives, in whatever pieces; what passes is the image, byte for byte.
//! Class 1 is the one of lite-05 and lite-06: zigzag timestamp delta, size, payload (lite 10.2).

use crate::model::group::{Boundary, ClassId};
use crate::wire::DecodeError;
use crate::wire::code::Violation;
use crate::wire::lite::data::FrameHeader;

/// The class of lite-05 and lite-06.
pub const CLASS_LITE: ClassId = ClassId(1);
/// Longest frame header: two varints.
pub const FRAME_HEADER_MAX: usize = 16;

/// Timestamps stay below this, so that each can be written as a delta from 0 (zigzag in 62 bits).
const TIMESTAMP_MAX: u64 = 1 << 61;

/// Bounds on one group.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Payload bytes of a frame.
    pub frame_bytes: u64,
    /// Bytes of a group's image.
    pub group_bytes: u64,
    /// Frames of a group.
    pub group_frames: u64,
}

/// Where a scan of one body is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    held: [u8; FRAME_HEADER_MAX],
    held_len: u8,
    /// Payload bytes still to come.
    remaining: u64,
    /// Image offset of the next byte.
    at: u64,
    timestamp: i64,
    frames: u64,
}

impl Scan {
    /// Passes over `bytes`, which follow what was scanned before, and reports each frame whose
    /// header is complete. `object` and `ingress_us` of the boundaries are the caller's to fill.
    #[inline]
    pub fn feed<E: From<Violation>>(
        &mut self,
        bytes: &[u8],
        bounds: &Bounds,
        sink: &mut impl FnMut(Boundary) -> Result<(), E>,
    ) -> Result<(), E> {
        let base = self.at;
        self.at += bytes.len() as u64;
        let mut rest = bytes;
        loop {
            let skip = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(rest.len());
            rest = &rest[skip..];
            self.remaining -= skip as u64;
            if rest.is_empty() {
                return Ok(());
            }
            let offset = base + (bytes.len() - rest.len()) as u64;
            let Some((header, used, start)) = self.header(rest, offset)? else { return Ok(()) };
            rest = &rest[used..];
            let payload = base + (bytes.len() - rest.len()) as u64;
            sink(self.frame(&header, start, payload, bounds)?)?;
        }
    }

    /// Decodes the header that starts here or in the held bytes: (header, bytes used of `rest`,
    /// image offset of its first byte). `None` when it is not complete.
    #[inline]
    fn header(
        &mut self,
        rest: &[u8],
        offset: u64,
    ) -> Result<Option<(FrameHeader, usize, u64)>, Violation> {
        if self.held_len == 0 {
            match FrameHeader::decode(rest) {
                Ok((header, used)) => return Ok(Some((header, used, offset))),
                Err(DecodeError::Short) if rest.len() < FRAME_HEADER_MAX => {
                    self.held[..rest.len()].copy_from_slice(rest);
                    self.held_len = u8::try_from(rest.len()).expect("short");
                    return Ok(None);
                }
                Err(_) => return Err(Violation::GroupMalformed),
            }
        }
        let old = self.held_len as usize;
        let more = rest.len().min(FRAME_HEADER_MAX - old);
        self.held[old..old + more].copy_from_slice(&rest[..more]);
        match FrameHeader::decode(&self.held[..old + more]) {
            Ok((header, used)) => {
                self.held_len = 0;
                Ok(Some((header, used - old, offset - old as u64)))
            }
            Err(DecodeError::Short) if old + more < FRAME_HEADER_MAX => {
                self.held_len = u8::try_from(old + more).expect("short");
                Ok(None)
            }
            Err(_) => Err(Violation::GroupMalformed),
        }
    }

    #[inline]
    fn frame(
        &mut self,
        header: &FrameHeader,
        start: u64,
        payload: u64,
        bounds: &Bounds,
    ) -> Result<Boundary, Violation> {
        self.timestamp = self.timestamp.checked_add(header.delta).unwrap_or(-1);
        let timestamp = u64::try_from(self.timestamp).map_err(|_| Violation::GroupMalformed)?;
        if timestamp >= TIMESTAMP_MAX {
            return Err(Violation::GroupMalformed);
        }
        if header.size > bounds.frame_bytes {
            return Err(Violation::FrameTooLarge);
        }
        if payload + header.size > bounds.group_bytes {
            return Err(Violation::GroupTooLarge);
        }
        if self.frames >= bounds.group_frames {
            return Err(Violation::TooManyFrames);
        }
        self.remaining = header.size;
        let object = self.frames;
        self.frames += 1;
        let narrow = |value: u64| u32::try_from(value).map_err(|_| Violation::GroupTooLarge);
        Ok(Boundary {
            header: narrow(start)?,
            payload: narrow(payload)?,
            size: narrow(header.size)?,
            timestamp,
            ingress_us: 0,
            object,
        })
    }

    /// True between frames, where a body may end.
    pub fn is_whole(&self) -> bool {
        self.remaining == 0 && self.held_len == 0
    }

    /// Bytes that arrived of a group whose header is not complete yet count too.
    pub fn scanned(&self) -> u64 {
        self.at
    }
}

/// The header of `boundary`'s frame as the first of a stream: its timestamp counted from 0.
pub fn absolute_header(boundary: &Boundary, out: &mut [u8; FRAME_HEADER_MAX]) -> usize {
    let delta = i64::try_from(boundary.timestamp).unwrap_or(i64::MAX);
    FrameHeader { delta, size: u64::from(boundary.size) }.encode_into(out)
}
