//! Every bound of the process, each one row: name, default, least and most. Field, TOML key
//! (`limits.NAME`), environment name (`CORELAY_LIMITS_NAME`), flag (`--limits-NAME`), help and the
//! README's table are made from the row.

use super::error::ConfigError;

/// What is known of a limit beside its value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) default: u64,
    pub(super) min: u64,
    pub(super) max: u64,
    pub(super) doc: &'static str,
}

impl Row {
    pub(super) fn flag(&self) -> String {
        format!("limits-{}", self.name.replace('_', "-"))
    }

    /// Bytes are written with binary units where that is exact.
    pub(super) fn is_bytes(&self) -> bool {
        self.name.ends_with("_bytes")
    }

    pub(super) fn default_text(&self) -> String {
        if self.is_bytes() { bytes_text(self.default) } else { self.default.to_string() }
    }
}

fn bytes_text(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

macro_rules! limits {
    ($(#[doc = $doc:literal] $name:ident: $type:ty = $default:expr, $min:expr => $max:expr;)*) => {
        /// Every bound of the process; a bound that is hit is counted under its name.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Limits {
            $(#[doc = $doc] pub $name: $type,)*
        }

        pub(super) const ROWS: &[Row] = &[$(Row {
            name: stringify!($name),
            default: $default,
            min: $min,
            max: $max,
            doc: $doc,
        },)*];

        impl Limits {
            /// Builds the table from what `value` says of each row, in the order of [`ROWS`].
            pub(super) fn build<E>(
                mut value: impl FnMut(&Row) -> Result<u64, E>,
            ) -> Result<Self, E> {
                let mut rows = ROWS.iter();
                $(
                    let row = rows.next().expect("one row per field");
                    let $name = <$type>::try_from(value(row)?);
                    let $name = $name.expect("a row's maximum fits its type");
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}

limits! {
    /// Connections, half-open ones included.
    connections: usize = 20_000, 1 => 1_000_000;
    /// Handshakes not finished; more are dropped without an answer.
    handshakes: usize = 1024, 1 => 1_000_000;
    /// Handshakes not finished from which new ones must prove their address (Retry).
    handshakes_retry: usize = 256, 1 => 1_000_000;
    /// Bytes buffered for connections not yet accepted.
    incoming_buffer_bytes: usize = 10 << 20, 1 << 16 => 1 << 30;
    /// Subscriptions of one session.
    session_subscriptions: usize = 1024, 1 => 1_000_000;
    /// Open request streams of one session.
    session_requests: usize = 1024, 1 => 1_000_000;
    /// Requests held while a session waits for its grant.
    session_pending: usize = 64, 1 => 65_536;
    /// Live announcements taken from one peer.
    session_announces: usize = 4096, 1 => 1_000_000;
    /// Announcement requests that one peer may have open.
    session_announce_streams: usize = 16, 1 => 65_536;
    /// Open group streams taken from one publisher.
    session_groups_in: usize = 1024, 1 => 1_000_000;
    /// Group streams to one viewer that it has not acknowledged.
    session_groups_out: usize = 512, 1 => 1_000_000;
    /// Bytes of arena blocks behind what one viewer was sent and has not acknowledged.
    session_charge_bytes: usize = 48 << 20, 1 << 16 => 1 << 36;
    /// Bytes of one control message.
    message_bytes: usize = 65_536, 1024 => 64 << 20;
    /// Bytes of control messages kept for one stream that its peer does not read.
    session_control_bytes: usize = 1 << 20, 4096 => 1 << 30;
    /// Bytes of a broadcast's path.
    path_bytes: usize = 1024, 1 => 65_536;
    /// Bytes of a track's name.
    track_name_bytes: usize = 1024, 1 => 65_536;
    /// Bytes of one frame.
    frame_bytes: usize = 32 << 20, 1 => 1 << 30;
    /// Bytes of one group.
    group_bytes: usize = 32 << 20, 1 => 1 << 30;
    /// Frames of one group.
    group_frames: usize = 8192, 1 => 1 << 24;
    /// Broadcasts.
    broadcasts: usize = 65_536, 1 => 1 << 24;
    /// Tracks.
    tracks: usize = 65_536, 1 => 1 << 24;
    /// Groups kept of one track.
    track_groups: usize = 8192, 1 => 1 << 24;
    /// Groups kept.
    groups: usize = 262_144, 1 => 1 << 24;
    /// Cursors: groups being delivered, each to one viewer.
    cursors: usize = 262_144, 1 => 1 << 24;
    /// Subscriptions of all sessions.
    readers: usize = 65_536, 1 => 1 << 24;
    /// Pages of 8 frame boundaries.
    index_pages: usize = 262_144, 1 => 1 << 24;
    /// Bytes of arena blocks, all groups together.
    arena_bytes: usize = 1 << 30, 1 << 20 => 1 << 40;
    /// Milliseconds that a track is kept after its last viewer left.
    track_idle_ms: u64 = 2000, 1 => 3_600_000;
    /// Received messages (datagrams or trains) per turn.
    turn_messages: usize = 256, 1 => 65_536;
    /// Trains sent per turn.
    turn_sends: usize = 256, 1 => 65_536;
    /// Mail taken per turn.
    turn_mail: usize = 64, 1 => 65_536;
    /// Bytes that one session may write per turn.
    session_turn_bytes: usize = 262_144, 2048 => 1 << 30;
    /// Messages received by one system call.
    rx_batch: usize = 32, 1 => 1024;
    /// Bytes of one receive buffer: a train's size at most.
    rx_buffer_bytes: usize = 65_536, 2048 => 65_536;
    /// Trains that may wait for the kernel.
    tx_slots: usize = 128, 1 => 65_536;
    /// Messages in one mailbox.
    mailbox_slots: usize = 256, 4 => 65_536;
    /// Bytes asked of the kernel for each socket's buffers.
    socket_buffer_bytes: usize = 8 << 20, 4096 => 1 << 30;
    /// Log lines per second and reason.
    log_lines_per_s: usize = 10, 1 => 1_000_000;
}

impl Limits {
    /// Name, default and meaning of each limit, for the README's table. A default is written as
    /// the setting takes it.
    pub fn rows() -> Vec<(&'static str, String, &'static str)> {
        ROWS.iter().map(|row| (row.name, row.default_text(), row.doc.trim())).collect()
    }

    /// Refuses limits of which one makes another meaningless.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let pairs = [
            ("handshakes_retry", self.handshakes_retry, "handshakes", self.handshakes),
            ("frame_bytes", self.frame_bytes, "group_bytes", self.group_bytes),
            ("group_bytes", self.group_bytes, "arena_bytes", self.arena_bytes),
            ("group_bytes", self.group_bytes, "session_charge_bytes", self.session_charge_bytes),
            ("session_subscriptions", self.session_subscriptions, "readers", self.readers),
            ("track_groups", self.track_groups, "groups", self.groups),
        ];
        for (low_name, low, high_name, high) in pairs {
            if low > high {
                return Err(ConfigError::Conflict(format!(
                    "limits.{low_name} is {low}, above limits.{high_name}, which is {high}: lower \
                     the first or raise the second"
                )));
            }
        }
        Ok(())
    }
}

impl Default for Limits {
    fn default() -> Self {
        let Ok(limits) = Self::build(|row| Ok::<u64, std::convert::Infallible>(row.default));
        limits
    }
}
