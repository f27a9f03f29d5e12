//! Announcements: the request for them, and the two forms in which they come (lite 6).
//!
//! Typed versions number every START and name it by that id afterwards; before, a message has a
//! status and the path itself. A hop chain comes without the announcer's own hop, which the
//! receiver takes from ANNOUNCE_OK and appends.

use super::typed;
use crate::name::{Cost, Hop, Hops, Path};
use crate::wire::version::Version;
use crate::wire::{
    DecodeError, Reader, What, message, put_bytes, put_cost, put_hops, put_message, put_varint,
};

const START: u64 = 0;
const END: u64 = 1;
const UPDATE: u64 = 2;

const STATUS_ENDED: u8 = 0;
const STATUS_ACTIVE: u8 = 1;
const STATUS_RESTART: u8 = 2;

/// Asks for what is announced below a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnounceRequest {
    /// Everything below this path, itself included.
    pub prefix: Path,
    /// Routes through this hop are not wanted; zero excludes none. Only some versions carry it.
    pub exclude_hop: Hop,
}

impl AnnounceRequest {
    /// Reads a body.
    pub fn decode(body: &[u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::of_message(body);
        let prefix = reader.path()?;
        let exclude_hop = if version.has_exclude_hop() { Hop(reader.varint()?) } else { Hop(0) };
        reader.finish()?;
        Ok(Self { prefix, exclude_hop })
    }

    /// Appends the message; the hop only where the version carries it.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        put_message(out, |out| {
            put_bytes(out, self.prefix.as_str().as_bytes());
            if version.has_exclude_hop() {
                put_varint(out, self.exclude_hop.0);
            }
        });
    }
}

/// First message of the answer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AnnounceOk {
    /// The announcer's own hop, to be appended to every chain that follows; zero is anonymous.
    pub hop: Hop,
    /// How many starts follow at once.
    pub active: u64,
}

impl AnnounceOk {
    /// Reads a body.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::of_message(body);
        let ok = Self { hop: Hop(reader.varint()?), active: reader.varint()? };
        reader.finish()?;
        Ok(ok)
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_message(out, |out| {
            put_varint(out, self.hop.0);
            put_varint(out, self.active);
        });
    }
}

/// One announcement. The first three are of typed versions, `Active` and `Ended` of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announce {
    /// A route; takes the stream's next id.
    Start {
        /// Path below the requested prefix.
        suffix: Path,
        /// Origins it passed, without the announcer.
        hops: Hops,
        /// What it costs, without the link.
        cost: Cost,
    },
    /// A route is gone.
    End {
        /// Which start it ends.
        id: u64,
    },
    /// A route changed.
    Update {
        /// Which start it changes.
        id: u64,
        /// The new chain.
        hops: Hops,
        /// The new price.
        cost: Cost,
    },
    /// A route, new or changed.
    Active {
        /// Path below the requested prefix.
        suffix: Path,
        /// Origins it passed, without the announcer.
        hops: Hops,
    },
    /// A route is gone.
    Ended {
        /// Path below the requested prefix.
        suffix: Path,
    },
    /// A message of a type that is not known: it was passed over and takes no id.
    Unknown,
}

impl Announce {
    /// Reads a whole message of at most `max` body bytes off a stream's buffer, and how many bytes
    /// it takes. Short when incomplete.
    pub fn decode(buf: &[u8], version: Version, max: usize) -> Result<(Self, usize), DecodeError> {
        if !version.has_typed_announce() {
            let (body, used) = message(buf, max)?;
            return Ok((Self::decode_status(body)?, used));
        }
        let (kind, body, used) = typed(buf, max)?;
        Ok((Self::decode_typed(kind, body)?, used))
    }

    fn decode_typed(kind: u64, body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::of_message(body);
        let announce = match kind {
            START => {
                Self::Start { suffix: reader.path()?, hops: reader.hops()?, cost: reader.cost()? }
            }
            END => Self::End { id: reader.varint()? },
            UPDATE => {
                Self::Update { id: reader.varint()?, hops: reader.hops()?, cost: reader.cost()? }
            }
            _ => return Ok(Self::Unknown),
        };
        reader.finish()?;
        Ok(announce)
    }

    fn decode_status(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::of_message(body);
        let status = reader.u8()?;
        if status > STATUS_RESTART {
            return Err(DecodeError::Invalid(What::Status));
        }
        let suffix = reader.path()?;
        let hops = reader.hops()?;
        reader.finish()?;
        Ok(match status {
            STATUS_ENDED => Self::Ended { suffix },
            _ => Self::Active { suffix, hops },
        })
    }

    /// Appends the message. The variant must be one that the version has; nothing is written for
    /// another, nor for [`Announce::Unknown`].
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        debug_assert!(self.fits(version), "{self:?} is no message of {}", version.name());
        if !self.fits(version) {
            return;
        }
        match self {
            Self::Start { .. } => put_varint(out, START),
            Self::End { .. } => put_varint(out, END),
            Self::Update { .. } => put_varint(out, UPDATE),
            Self::Active { .. } | Self::Ended { .. } | Self::Unknown => {}
        }
        put_message(out, |out| self.put_body(out));
    }

    /// True when the version has this message.
    pub fn fits(&self, version: Version) -> bool {
        match self {
            Self::Start { .. } | Self::End { .. } | Self::Update { .. } => {
                version.has_typed_announce()
            }
            Self::Active { .. } | Self::Ended { .. } => !version.has_typed_announce(),
            Self::Unknown => false,
        }
    }

    fn put_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Start { suffix, hops, cost } => {
                put_bytes(out, suffix.as_str().as_bytes());
                put_hops(out, hops);
                put_cost(out, *cost);
            }
            Self::End { id } => put_varint(out, *id),
            Self::Update { id, hops, cost } => {
                put_varint(out, *id);
                put_hops(out, hops);
                put_cost(out, *cost);
            }
            Self::Active { suffix, hops } => {
                out.push(STATUS_ACTIVE);
                put_bytes(out, suffix.as_str().as_bytes());
                put_hops(out, hops);
            }
            Self::Ended { suffix } => {
                out.push(STATUS_ENDED);
                put_bytes(out, suffix.as_str().as_bytes());
                put_hops(out, &Hops::default());
            }
            Self::Unknown => {}
        }
    }
}
