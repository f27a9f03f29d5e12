//! Codes that close sessions and reset streams, and the table from a peer's violation to one.
//!
//! Codes inside the crate are plain. On the wire stream codes travel in the HTTP/3 range, which
//! [`map`] and [`unmap`] translate: peers that read a plain code lose the reason (lite 2.2).

/// Codes of RESET_STREAM and STOP_SENDING (lite 15.2).
pub mod stream {
    /// Our own failure, or a stream dropped without a reason.
    pub const INTERNAL: u64 = 0x0;
    /// Not wanted any more.
    pub const CANCELLED: u64 = 0x1;
    /// Not delivered in time.
    pub const DELIVERY_TIMEOUT: u64 = 0x2;
    /// The session it came from is gone.
    pub const SESSION_CLOSED: u64 = 0x3;
    /// Outside the grant; shares its number with [`SESSION_CLOSED`].
    pub const UNAUTHORIZED: u64 = 0x3;
    /// The session drains.
    pub const GOING_AWAY: u64 = 0x4;
    /// The reader fell too far behind.
    pub const TOO_FAR_BEHIND: u64 = 0x5;
    /// Bytes that are no message.
    pub const MALFORMED: u64 = 0x12;
    /// No answer in time.
    pub const CONTROL_TIMEOUT: u64 = 0x31;
    /// A group of too many bytes or frames.
    pub const GROUP_TOO_LARGE: u64 = 0x32;
    /// No such track or group.
    pub const NOT_FOUND: u64 = 0x33;
    /// Past its max age.
    pub const OLD: u64 = 0x34;
    /// Not cached any more.
    pub const EVICTED: u64 = 0x35;
    /// No route to the broadcast.
    pub const UNROUTABLE: u64 = 0x36;
    /// A group that ended inside a frame.
    pub const WRONG_SIZE: u64 = 0x37;
    /// A frame of too many bytes.
    pub const FRAME_TOO_LARGE: u64 = 0x38;
    /// A timestamp that does not fit its timescale.
    pub const TIMESTAMP: u64 = 0x39;
    /// First code of the application; relayed as it is.
    pub const APP: u64 = 0x40;
}

/// Codes of CONNECTION_CLOSE (lite 15.1).
pub mod session {
    /// No error.
    pub const NONE: u64 = 0x0;
    /// Our own failure, or an announcement stream that broke.
    pub const INTERNAL: u64 = 0x1;
    /// The grant was refused.
    pub const UNAUTHORIZED: u64 = 0x2;
    /// The peer broke the protocol.
    pub const PROTOCOL_VIOLATION: u64 = 0x3;
    /// Malformed parameters.
    pub const KEY_VALUE: u64 = 0x6;
    /// The peer outstayed a GOAWAY.
    pub const GOAWAY_TIMEOUT: u64 = 0x10;
    /// The peer owes or holds up control messages for too long.
    pub const CONTROL_TIMEOUT: u64 = 0x11;
    /// No common version.
    pub const VERSION: u64 = 0x15;
    /// First code of the application.
    pub const APP: u64 = 0x40;
}

/// The HTTP/3 code of plain code 0.
const MAPPED_FIRST: u64 = 0x52e4_a40f_a8db;
/// The HTTP/3 code of the largest plain code, `u32::MAX`.
const MAPPED_LAST: u64 = 0x52e5_ac98_3162;

/// The HTTP/3 code for a plain stream code. Plain codes end at `u32::MAX`; a larger one is sent as
/// that.
pub fn map(plain: u64) -> u64 {
    let plain = plain.min(u64::from(u32::MAX));
    MAPPED_FIRST + plain + plain / 0x1e
}

/// The plain code for what came off the wire: mapped codes are translated, all others stand for
/// themselves. Every 31st code of the range is reserved by HTTP/3 and carries no reason.
pub fn unmap(wire: u64) -> u64 {
    if !(MAPPED_FIRST..=MAPPED_LAST).contains(&wire) {
        return wire;
    }
    let offset = wire - MAPPED_FIRST;
    if offset % 0x1f == 0x1e { stream::INTERNAL } else { offset - offset / 0x1f }
}

/// How much a violation ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The stream it came on.
    Stream,
    /// The whole session.
    Session,
}

/// What a peer did wrong.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A second SETUP.
    SecondSetup,
    /// A SETUP that cannot be read, or another stream in its place.
    SetupMalformed,
    /// No SETUP in time.
    SetupTimeout,
    /// A second GOAWAY.
    SecondGoaway,
    /// An announcement that cannot be read.
    AnnounceMalformed,
    /// A start for a path that is announced already.
    AnnounceDuplicate,
    /// An end or update for an id that is not announced.
    AnnounceUnknown,
    /// Announcements broken off by a reset.
    AnnounceReset,
    /// More announcements than allowed.
    TooManyAnnounces,
    /// A request that cannot be read.
    RequestMalformed,
    /// Bytes behind a request that has no more to say.
    RequestTrailing,
    /// A subscription update that cannot be read.
    UpdateMalformed,
    /// More requests than allowed.
    TooManyRequests,
    /// A stream of unknown type.
    UnknownStream,
    /// A response that cannot be read.
    ResponseMalformed,
    /// A track that ended twice.
    EndTwice,
    /// A group past the end of its track.
    GroupPastEnd,
    /// A group header or frame header that cannot be read, or a timestamp below zero.
    GroupMalformed,
    /// A group that ended inside a frame.
    GroupTruncated,
    /// A group for a subscription that does not exist.
    GroupUnknown,
    /// A group of too many bytes.
    GroupTooLarge,
    /// A frame of too many bytes.
    FrameTooLarge,
    /// A group of too many frames.
    TooManyFrames,
    /// Control messages that the peer does not take.
    ControlBacklog,
}

impl Violation {
    /// How much it ends.
    pub fn scope(self) -> Scope {
        self.row().0
    }

    /// The plain code that says so: a stream or a session code, by its scope.
    pub fn code(self) -> u64 {
        self.row().1
    }

    /// Its name, as reason phrase and metric label.
    pub fn as_str(self) -> &'static str {
        self.row().2
    }

    // lite 4.1, 6.7, 7.2, 7.4, 7.6, 10.3 and 21 name the code for each. A malformed request gets
    // the code that an abandoned one gets, since peers answer so.
    fn row(self) -> (Scope, u64, &'static str) {
        use Scope::{Session, Stream};
        match self {
            Self::SecondSetup => (Session, session::PROTOCOL_VIOLATION, "second_setup"),
            Self::SetupMalformed => (Session, session::PROTOCOL_VIOLATION, "setup_malformed"),
            Self::SetupTimeout => (Session, session::CONTROL_TIMEOUT, "setup_timeout"),
            Self::SecondGoaway => (Session, session::PROTOCOL_VIOLATION, "second_goaway"),
            Self::AnnounceMalformed => (Session, session::PROTOCOL_VIOLATION, "announce_malformed"),
            Self::AnnounceDuplicate => (Session, session::PROTOCOL_VIOLATION, "announce_duplicate"),
            Self::AnnounceUnknown => (Session, session::PROTOCOL_VIOLATION, "announce_unknown"),
            Self::AnnounceReset => (Session, session::INTERNAL, "announce_reset"),
            Self::TooManyAnnounces => (Session, session::PROTOCOL_VIOLATION, "too_many_announces"),
            Self::RequestMalformed => (Stream, stream::CANCELLED, "request_malformed"),
            Self::RequestTrailing => (Stream, stream::MALFORMED, "request_trailing"),
            Self::UpdateMalformed => (Stream, stream::MALFORMED, "update_malformed"),
            Self::TooManyRequests => (Stream, stream::CANCELLED, "too_many_requests"),
            Self::UnknownStream => (Stream, stream::CANCELLED, "unknown_stream"),
            Self::ResponseMalformed => (Stream, stream::MALFORMED, "response_malformed"),
            Self::EndTwice => (Stream, stream::SESSION_CLOSED, "end_twice"),
            Self::GroupPastEnd => (Stream, stream::SESSION_CLOSED, "group_past_end"),
            Self::GroupMalformed => (Stream, stream::MALFORMED, "group_malformed"),
            Self::GroupTruncated => (Stream, stream::WRONG_SIZE, "group_truncated"),
            Self::GroupUnknown => (Stream, stream::CANCELLED, "group_unknown"),
            Self::GroupTooLarge => (Stream, stream::GROUP_TOO_LARGE, "group_too_large"),
            Self::FrameTooLarge => (Stream, stream::FRAME_TOO_LARGE, "frame_too_large"),
            Self::TooManyFrames => (Stream, stream::GROUP_TOO_LARGE, "too_many_frames"),
            Self::ControlBacklog => (Session, session::CONTROL_TIMEOUT, "control_backlog"),
        }
    }
}
