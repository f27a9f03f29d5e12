//! The protocol versions that are spoken, and in what they differ.
//!
//! A codec asks for a feature, never for a version, so that another version is a variant here and
//! an answer to each question. Variants are in the order of their age.

/// A version of the protocol.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Version {
    /// moq-lite-05, what browsers speak.
    Lite05,
    /// moq-lite-06.
    Lite06,
}

/// Every version spoken, the server's favourite first.
pub const SUPPORTED: &[Version] = &[Version::Lite06, Version::Lite05];

impl Version {
    /// What TLS negotiates for it.
    pub fn alpn(self) -> &'static [u8] {
        self.name().as_bytes()
    }

    /// The version that `alpn` stands for.
    pub fn from_alpn(alpn: &[u8]) -> Option<Self> {
        SUPPORTED.iter().copied().find(|version| version.alpn() == alpn)
    }

    /// Its name, as in configuration and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lite05 => "moq-lite-05",
            Self::Lite06 => "moq-lite-06",
        }
    }

    /// The version called `name`.
    pub fn parse(name: &str) -> Option<Self> {
        SUPPORTED.iter().copied().find(|version| version.name() == name)
    }

    /// ANNOUNCE_REQUEST names the hop whose routes are not wanted; later versions take it from
    /// SETUP.
    pub fn has_exclude_hop(self) -> bool {
        self == Self::Lite05
    }

    /// SUBSCRIBE and TRACK_INFO carry a byte for the group order.
    pub fn has_order_byte(self) -> bool {
        self == Self::Lite05
    }

    /// Subscriptions, fetches and group headers can name frames inside a group.
    pub fn has_frame_bounds(self) -> bool {
        self >= Self::Lite06
    }

    /// Announcements are typed messages that name each other by id.
    pub fn has_typed_announce(self) -> bool {
        self >= Self::Lite06
    }

    /// Announcements carry a price.
    pub fn has_cost(self) -> bool {
        self >= Self::Lite06
    }

    /// A subscription's start is a plain floor that `max_age` resolves; before, it is optional and
    /// its absence means the latest group.
    pub fn start_is_floor(self) -> bool {
        self >= Self::Lite06
    }

    /// A second SUBSCRIBE_END, or a group at or past the end, is a violation.
    pub fn strict_end(self) -> bool {
        self >= Self::Lite06
    }

    /// Versions of one class encode the body of a group stream alike, so that one image serves
    /// them all. Class 0 is kept for bodies without timestamps, 2 for other varints.
    pub fn class(self) -> u8 {
        match self {
            Self::Lite05 | Self::Lite06 => 1,
        }
    }
}
