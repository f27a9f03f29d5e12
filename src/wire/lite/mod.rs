//! Messages of moq-lite: the stream types, and what concerns the session as a whole (SETUP, GOAWAY,
//! PROBE). Announcements, subscriptions and media are in the files beside this one.
//!
//! `decode` takes a complete message body and must consume it exactly, unless it says that it takes
//! a stream's buffer. `encode` appends the whole message with its length, without the stream's
//! type.

pub mod announce;
pub mod data;
pub mod subscribe;

use std::fmt;

use crate::name::{Hop, Role};
use crate::wire::{
    DecodeError, Reader, What, message, put_bytes, put_message, put_varint, varint_len,
};

/// Largest SETUP body (lite 5.2).
pub const SETUP_MAX: usize = 64 << 10;
/// Most parameters of a SETUP.
pub const PARAMS_MAX: usize = 64;
/// Longest uri of a GOAWAY, in bytes (lite 13).
pub const URI_MAX: usize = 8192;

/// Stream types: the first varint on every stream (lite 4.1).
pub mod kind {
    /// Asks for announcements.
    pub const BI_ANNOUNCE: u64 = 1;
    /// Asks for a track, live.
    pub const BI_SUBSCRIBE: u64 = 2;
    /// Asks for one group.
    pub const BI_FETCH: u64 = 3;
    /// Asks for bandwidth reports.
    pub const BI_PROBE: u64 = 4;
    /// Says that the sender leaves.
    pub const BI_GOAWAY: u64 = 5;
    /// Asks for what is known of a track.
    pub const BI_TRACK: u64 = 6;
    /// Carries a group.
    pub const UNI_GROUP: u64 = 0;
    /// Carries the SETUP.
    pub const UNI_SETUP: u64 = 1;
}

/// Splits a typed message off a stream's buffer: type, body, bytes taken.
fn typed(buf: &[u8], max: usize) -> Result<(u64, &[u8], usize), DecodeError> {
    let mut reader = Reader::new(buf);
    let kind = reader.varint()?;
    let (body, used) = message(reader.rest(), max)?;
    Ok((kind, body, reader.position() + used))
}

/// Parameter ids of SETUP (lite 5.2).
mod param {
    pub(super) const PROBE: u64 = 1;
    pub(super) const PATH: u64 = 2;
    pub(super) const ROLE: u64 = 3;
    pub(super) const COST: u64 = 4;
    pub(super) const HOP: u64 = 5;
}

/// What a peer declares once, before anything else. Absent parameters are `None` or zero.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Setup {
    /// What the sender can answer on PROBE: 0 nothing, 1 reports, 2 reports and increases.
    pub probe: u8,
    /// `path[?query]` of the URL, as sent. The query may hold credentials.
    pub path: Option<String>,
    /// The half of the session that the sender will use; `None` is both.
    pub role: Option<Role>,
    /// Price of the sender's egress.
    pub cost: Option<u64>,
    /// The sender's origin; never zero.
    pub hop: Option<Hop>,
}

impl Setup {
    /// Reads a body. Unknown parameters are passed over; any parameter twice is refused.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        if body.len() > SETUP_MAX {
            return Err(DecodeError::Invalid(What::TooLarge));
        }
        let mut reader = Reader::of_message(body);
        let count = reader.varint()?;
        if count > PARAMS_MAX as u64 {
            return Err(DecodeError::Invalid(What::TooMany));
        }
        let mut setup = Self::default();
        let mut seen = Vec::new();
        for _ in 0..count {
            let id = reader.varint()?;
            if seen.contains(&id) {
                return Err(DecodeError::Invalid(What::Duplicate));
            }
            seen.push(id);
            setup.take(id, reader.prefixed()?)?;
        }
        reader.finish()?;
        Ok(setup)
    }

    fn take(&mut self, id: u64, value: &[u8]) -> Result<(), DecodeError> {
        match id {
            param::PROBE => self.probe = number(value)?.min(2).to_le_bytes()[0],
            param::PATH => {
                let path = std::str::from_utf8(value);
                self.path = Some(path.map_err(|_| DecodeError::Invalid(What::Utf8))?.to_owned());
            }
            param::ROLE => {
                self.role = match number(value)? {
                    1 => Some(Role::Publisher),
                    2 => Some(Role::Subscriber),
                    _ => None,
                }
            }
            param::COST => self.cost = Some(number(value)?),
            param::HOP => self.hop = Some(Hop(number(value)?)).filter(|hop| hop.0 != 0),
            _ => {}
        }
        Ok(())
    }

    /// Appends the message, parameters in ascending order.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let probe = Some(u64::from(self.probe)).filter(|level| *level != 0);
        let role = self.role.map(|role| match role {
            Role::Publisher => 1,
            Role::Subscriber => 2,
        });
        let hop = self.hop.map(|hop| hop.0).filter(|hop| *hop != 0);
        let numbers = [
            (param::PROBE, probe),
            (param::ROLE, role),
            (param::COST, self.cost),
            (param::HOP, hop),
        ];
        let count = numbers.iter().filter(|(_, value)| value.is_some()).count();
        put_message(out, |out| {
            put_varint(out, count as u64 + u64::from(self.path.is_some()));
            for (id, value) in numbers {
                if id == param::ROLE
                    && let Some(path) = &self.path
                {
                    put_varint(out, param::PATH);
                    put_bytes(out, path.as_bytes());
                }
                if let Some(value) = value {
                    put_varint(out, id);
                    put_varint(out, varint_len(value) as u64);
                    put_varint(out, value);
                }
            }
        });
    }
}

/// Leaves the query out, where credentials travel.
impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.as_deref().map(|path| path.split('?').next().unwrap_or_default());
        f.debug_struct("Setup")
            .field("probe", &self.probe)
            .field("path", &path)
            .field("role", &self.role)
            .field("cost", &self.cost)
            .field("hop", &self.hop)
            .finish()
    }
}

/// A parameter that is one varint and nothing else.
fn number(value: &[u8]) -> Result<u64, DecodeError> {
    let mut reader = Reader::of_message(value);
    let number = reader.varint()?;
    reader.finish()?;
    Ok(number)
}

/// The sender leaves. An empty uri asks to reconnect anywhere.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Goaway<'a> {
    /// Where to reconnect; at most [`URI_MAX`] bytes.
    pub uri: &'a str,
}

impl<'a> Goaway<'a> {
    /// Reads a body.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::of_message(body);
        let uri = reader.string()?;
        if uri.len() > URI_MAX {
            return Err(DecodeError::Invalid(What::TooLarge));
        }
        reader.finish()?;
        Ok(Self { uri })
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_message(out, |out| put_bytes(out, self.uri.as_bytes()));
    }
}

/// What the sender estimates towards the stream's opener; `None` is unknown.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Probe {
    /// Bits per second that can be sent.
    pub bitrate: Option<u64>,
    /// Round trip in milliseconds.
    pub rtt_ms: Option<u64>,
}

impl Probe {
    /// Reads a body.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::of_message(body);
        let bitrate = Some(reader.varint()?).filter(|bits| *bits != 0);
        let rtt_ms = Some(reader.varint()?).filter(|millis| *millis != 0);
        reader.finish()?;
        Ok(Self { bitrate, rtt_ms })
    }

    /// Appends the message. A measured zero goes out as one, since zero means unknown.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_message(out, |out| {
            put_varint(out, self.bitrate.map_or(0, |bits| bits.max(1)));
            put_varint(out, self.rtt_ms.map_or(0, |millis| millis.max(1)));
        });
    }
}
