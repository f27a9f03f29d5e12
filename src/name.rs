//! Names that every layer shares: broadcast paths, track names, origins and their hop chains,
//! ids, roles and grants. Level 0: imports nothing of the crate. A `Path` is always normalised,
//! so equality of paths is equality of strings.

use std::fmt;
use std::sync::Arc;

/// Most segments a path may have (moq-net limit, lite 3.4).
pub const SEGMENTS_MAX: usize = 32;
/// Most hops a chain may carry (lite 6.3).
pub const HOPS_MAX: usize = 32;
/// Largest value a QUIC varint carries.
pub const VARINT_MAX: u64 = (1 << 62) - 1;

/// Why a string is no path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManySegments;

/// A normalised path: segments joined by `/`, no leading, trailing or doubled slash. May be empty.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Path(Arc<str>);

impl Path {
    /// Normalises `raw`. Fails when it has more than [`SEGMENTS_MAX`] segments.
    pub fn parse(raw: &str) -> Result<Self, TooManySegments> {
        if raw.split('/').filter(|s| !s.is_empty()).count() > SEGMENTS_MAX {
            return Err(TooManySegments);
        }
        let clean = !raw.starts_with('/') && !raw.ends_with('/') && !raw.contains("//");
        if clean {
            return Ok(Self(Arc::from(raw)));
        }
        let parts: Vec<&str> = raw.split('/').filter(|s| !s.is_empty()).collect();
        Ok(Self(Arc::from(parts.join("/"))))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for the root.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `self` followed by `rest`. Fails when the whole has too many segments.
    pub fn join(&self, rest: &Self) -> Result<Self, TooManySegments> {
        match (self.is_empty(), rest.is_empty()) {
            (true, _) => Ok(rest.clone()),
            (_, true) => Ok(self.clone()),
            _ => Self::parse(&format!("{self}/{rest}")),
        }
    }

    /// What follows `prefix`, segment-wise; `None` when `prefix` does not cover `self`.
    pub fn strip(&self, prefix: &Self) -> Option<&str> {
        if prefix.is_empty() {
            return Some(&self.0);
        }
        let rest = self.0.strip_prefix(&*prefix.0)?;
        if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
    }

    /// The path without its last segment; `None` at the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_empty() {
            return None;
        }
        let head = self.0.rfind('/').map_or("", |at| &self.0[..at]);
        Some(Self(Arc::from(head)))
    }
}

/// True when a segment of `suffix` starts with a dot (lite 6.6).
pub fn is_hidden(suffix: &str) -> bool {
    suffix.split('/').any(|segment| segment.starts_with('.'))
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// A track's name: any UTF-8, not normalised.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrackName(pub Arc<str>);

impl TrackName {
    /// Takes a copy of `name`.
    pub fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for TrackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// An origin's id; 0 = anonymous.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Hop(pub u64);

/// The origins that a route passed, oldest first; at most [`HOPS_MAX`], no identified one twice.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hops(Vec<Hop>);

/// Why a hop chain is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HopsError {
    /// More than [`HOPS_MAX`].
    TooMany,
    /// An identified origin twice.
    Repeated,
}

impl Hops {
    /// Appends `hop`.
    pub fn push(&mut self, hop: Hop) -> Result<(), HopsError> {
        if self.0.len() >= HOPS_MAX {
            return Err(HopsError::TooMany);
        }
        if hop.0 != 0 && self.contains(hop) {
            return Err(HopsError::Repeated);
        }
        self.0.push(hop);
        Ok(())
    }

    /// True when the identified `hop` is in the chain.
    pub fn contains(&self, hop: Hop) -> bool {
        hop.0 != 0 && self.0.contains(&hop)
    }

    /// The chain.
    pub fn as_slice(&self) -> &[Hop] {
        &self.0
    }

    /// The publisher's identity: the first hop, unless anonymous.
    pub fn first(&self) -> Option<Hop> {
        self.0.first().copied().filter(|hop| hop.0 != 0)
    }
}

impl FromIterator<u64> for Hops {
    /// For tests and tables; takes the chain as it is.
    fn from_iter<I: IntoIterator<Item = u64>>(ids: I) -> Self {
        Self(ids.into_iter().map(Hop).collect())
    }
}

/// What a route costs: `warm` where its content already flows, `cold` otherwise. Compared in that
/// order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Cost {
    /// Price where the content already flows.
    pub warm: u64,
    /// Price where it does not.
    pub cold: u64,
}

impl Cost {
    /// What routes of a draining peer, and of versions without prices when cold, cost.
    pub const MAX: Self = Self { warm: VARINT_MAX, cold: VARINT_MAX };

    /// Both prices plus `link`, clamped to [`VARINT_MAX`].
    pub fn plus(self, link: u64) -> Self {
        let add = |price: u64| price.saturating_add(link).min(VARINT_MAX);
        Self { warm: add(self.warm), cold: add(self.cold) }
    }
}

/// A group's number within its track.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct GroupSeq(pub u64);

/// A shard of this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ShardId(pub u16);

/// The half of a session a peer says it will use (lite SETUP 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Only publishes.
    Publisher,
    /// Only subscribes.
    Subscriber,
}

/// What a session may do; decided by control, enforced by session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Everything the peer names is below this path.
    pub root: Path,
    /// May announce and be asked for tracks.
    pub publish: bool,
    /// May ask for announcements and tracks.
    pub subscribe: bool,
}

/// What is known of a peer when its grant is asked for. Never holds the query of its URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Which shard holds the session.
    pub shard: ShardId,
    /// The session on that shard, as the shard names it.
    pub session: u64,
    /// Path of the URL, without the query.
    pub path: Path,
    /// The declared role.
    pub role: Option<Role>,
}
