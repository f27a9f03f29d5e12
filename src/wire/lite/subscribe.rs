//! Requests for content and what answers them.
//! SUBSCRIBE, TRACK and FETCH (lite 7, 8, 9).

use super::typed;
use crate::name::{Path, TrackName};
use crate::wire::version::Version;
use crate::wire::{DecodeError, Reader, What, put_bytes, put_message, put_option, put_varint};

const START: u64 = 0;
const END: u64 = 1;
const DROP: u64 = 2;

/// What the order byte says: newest group first, as it always is.
const ORDER: u8 = 0;

/// Asks for a track, live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// The subscriber's name for it, which group headers repeat.
    pub id: u64,
    /// The broadcast, below the session's root.
    pub broadcast: Path,
    /// The track in it.
    pub track: TrackName,
    /// What of it is wanted.
    pub prefs: Preferences,
}

impl Subscribe {
    /// Reads a body.
    pub fn decode(body: &[u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::of_message(body);
        let id = reader.varint()?;
        let Track { broadcast, track } = Track::read(&mut reader)?;
        let prefs = Preferences::read(&mut reader, version)?;
        reader.finish()?;
        Ok(Self { id, broadcast, track, prefs })
    }

    /// Appends the message.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        put_message(out, |out| {
            put_varint(out, self.id);
            put_name(out, &self.broadcast, &self.track);
            self.prefs.put(version, out);
        });
    }
}

/// What of a track is wanted. Also all that SUBSCRIBE_UPDATE says: it replaces the whole set.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Preferences {
    /// Larger is more urgent.
    pub priority: u8,
    /// How far behind the live edge a group may be, in milliseconds.
    pub max_age_ms: u64,
    /// First group. Where the start is a floor it is always present, and zero is no floor;
    /// elsewhere `None` is the latest group.
    pub start: Option<u64>,
    /// Last group; `None` is unbounded.
    pub end: Option<u64>,
    /// First frame, inside the first group. Zero before frame bounds.
    pub frame_start: u64,
    /// Last frame, inside the last group. `None` before frame bounds.
    pub frame_end: Option<u64>,
}

impl Preferences {
    /// Reads the body of a SUBSCRIBE_UPDATE.
    pub fn decode_update(body: &[u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::of_message(body);
        let prefs = Self::read(&mut reader, version)?;
        reader.finish()?;
        Ok(prefs)
    }

    /// Appends a SUBSCRIBE_UPDATE.
    pub fn encode_update(&self, version: Version, out: &mut Vec<u8>) {
        put_message(out, |out| self.put(version, out));
    }

    /// True when the version can say all of it. Otherwise the frame bounds stay unsaid and whole
    /// groups are asked for.
    pub fn fits(&self, version: Version) -> bool {
        version.has_frame_bounds() || (self.frame_start == 0 && self.frame_end.is_none())
    }

    fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        let priority = reader.u8()?;
        if version.has_order_byte() {
            reader.u8()?;
        }
        let max_age_ms = reader.varint()?;
        let start =
            if version.start_is_floor() { Some(reader.varint()?) } else { reader.option()? };
        let end = reader.option()?;
        let (frame_start, frame_end) = read_frame_bounds(reader, version)?;
        if frame_end.is_some() && end.is_none() {
            return Err(DecodeError::Invalid(What::FrameBounds));
        }
        Ok(Self { priority, max_age_ms, start, end, frame_start, frame_end })
    }

    fn put(&self, version: Version, out: &mut Vec<u8>) {
        out.push(self.priority);
        if version.has_order_byte() {
            out.push(ORDER);
        }
        put_varint(out, self.max_age_ms);
        if version.start_is_floor() {
            put_varint(out, self.start.unwrap_or(0));
        } else {
            put_option(out, self.start);
        }
        put_option(out, self.end);
        put_frame_bounds(out, version, self.frame_start, self.frame_end);
    }
}

/// What a publisher says of a subscription, besides its groups.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The first group is known.
    Start {
        /// The first group.
        group: u64,
    },
    /// The track's end is known.
    End {
        /// The first group that will not exist.
        group: u64,
    },
    /// Groups will not come.
    Drop {
        /// First of them.
        start: u64,
        /// Last of them.
        end: u64,
        /// Why: a stream code.
        error: u64,
    },
}

impl Response {
    /// Reads a whole message of at most `max` body bytes off a stream's buffer, and how many bytes
    /// it takes. Short when incomplete. The versions so far answer alike.
    pub fn decode(buf: &[u8], _version: Version, max: usize) -> Result<(Self, usize), DecodeError> {
        let (kind, body, used) = typed(buf, max)?;
        let mut reader = Reader::of_message(body);
        let response = match kind {
            START => Self::Start { group: reader.varint()? },
            END => Self::End { group: reader.varint()? },
            DROP => Self::Drop {
                start: reader.varint()?,
                end: reader.varint()?,
                error: reader.varint()?,
            },
            _ => return Err(DecodeError::Invalid(What::Kind)),
        };
        reader.finish()?;
        Ok((response, used))
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Start { group } => {
                put_varint(out, START);
                put_message(out, |out| put_varint(out, group));
            }
            Self::End { group } => {
                put_varint(out, END);
                put_message(out, |out| put_varint(out, group));
            }
            Self::Drop { start, end, error } => {
                put_varint(out, DROP);
                put_message(out, |out| {
                    put_varint(out, start);
                    put_varint(out, end);
                    put_varint(out, error);
                });
            }
        }
    }
}

/// Asks for what is known of a track.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// The broadcast, below the session's root.
    pub broadcast: Path,
    /// The track in it.
    pub track: TrackName,
}

impl Track {
    /// Reads a body.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::of_message(body);
        let track = Self::read(&mut reader)?;
        reader.finish()?;
        Ok(track)
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_message(out, |out| put_name(out, &self.broadcast, &self.track));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { broadcast: reader.path()?, track: TrackName::new(reader.string()?) })
    }
}

/// What is known of a track; fixed for its life.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TrackInfo {
    /// The publisher's advice to subscribers.
    pub priority: u8,
    /// Upper bound of any subscriber's max age, in milliseconds.
    pub max_age_ms: u64,
    /// Ticks of its timestamps per second; never zero.
    pub timescale: u64,
}

impl TrackInfo {
    /// Reads a body.
    pub fn decode(body: &[u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::of_message(body);
        let priority = reader.u8()?;
        if version.has_order_byte() {
            reader.u8()?;
        }
        let max_age_ms = reader.varint()?;
        let timescale = reader.varint()?;
        if timescale == 0 {
            return Err(DecodeError::Invalid(What::Timescale));
        }
        reader.finish()?;
        Ok(Self { priority, max_age_ms, timescale })
    }

    /// Appends the message.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        put_message(out, |out| {
            out.push(self.priority);
            if version.has_order_byte() {
                out.push(ORDER);
            }
            put_varint(out, self.max_age_ms);
            put_varint(out, self.timescale);
        });
    }
}

/// Asks for one group. Its answer is bare frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The broadcast, below the session's root.
    pub broadcast: Path,
    /// The track in it.
    pub track: TrackName,
    /// Larger is more urgent.
    pub priority: u8,
    /// The group.
    pub group: u64,
    /// First frame. Zero before frame bounds.
    pub frame_start: u64,
    /// Last frame; `None` is the group's last, and always so before frame bounds.
    pub frame_end: Option<u64>,
}

impl Fetch {
    /// Reads a body.
    pub fn decode(body: &[u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::of_message(body);
        let Track { broadcast, track } = Track::read(&mut reader)?;
        let priority = reader.u8()?;
        let group = reader.varint()?;
        let (frame_start, frame_end) = read_frame_bounds(&mut reader, version)?;
        if frame_end.is_some_and(|end| end < frame_start) {
            return Err(DecodeError::Invalid(What::FrameBounds));
        }
        reader.finish()?;
        Ok(Self { broadcast, track, priority, group, frame_start, frame_end })
    }

    /// Appends the message; frame bounds only where the version has them.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        put_message(out, |out| {
            put_name(out, &self.broadcast, &self.track);
            out.push(self.priority);
            put_varint(out, self.group);
            put_frame_bounds(out, version, self.frame_start, self.frame_end);
        });
    }
}

fn put_name(out: &mut Vec<u8>, broadcast: &Path, track: &TrackName) {
    put_bytes(out, broadcast.as_str().as_bytes());
    put_bytes(out, track.as_str().as_bytes());
}

fn read_frame_bounds(
    reader: &mut Reader<'_>,
    version: Version,
) -> Result<(u64, Option<u64>), DecodeError> {
    if version.has_frame_bounds() {
        Ok((reader.varint()?, reader.option()?))
    } else {
        Ok((0, None))
    }
}

fn put_frame_bounds(out: &mut Vec<u8>, version: Version, start: u64, end: Option<u64>) {
    if version.has_frame_bounds() {
        put_varint(out, start);
        put_option(out, end);
    }
}
