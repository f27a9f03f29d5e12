//! What the peers of a rig say: the messages that set a subscription up, and groups of frames.
//!
//! Made before anything is measured. Timestamps advance with the frames and the track's age is
//! short, so that groups are evicted and their memory is used again while the rig runs.

use corelay::name::{Cost, Hop, Hops, Path, Role, TrackName};
use corelay::wire::lite::announce::{Announce, AnnounceOk};
use corelay::wire::lite::data::{FRAME_HEADER_MAX, FrameHeader, GROUP_HEADER_MAX, GroupHeader};
use corelay::wire::lite::subscribe::{Preferences, Subscribe, TrackInfo};
use corelay::wire::lite::{Setup, kind};
use corelay::wire::version::Version;
use corelay::wire::{put_varint, varint_len};

/// What everybody speaks.
pub(super) const VERSION: Version = Version::Lite06;
/// Milliseconds that groups are kept.
const MAX_AGE_MS: u64 = 400;
/// Milliseconds of media between frames.
const FRAME_MS: u64 = 16;
/// A group that never comes, for who subscribes and is never served.
pub(super) const NEVER: u64 = 1 << 40;

/// What is sent, to how many, and in which pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Who is served. With none, one subscriber waits for a group that never comes.
    pub(crate) viewers: usize,
    /// Payload bytes of a frame.
    pub(crate) size: usize,
    /// Frames of a group.
    pub(crate) group: u64,
    /// Arrivals of a group, each in a turn of its own: whole frames if there are as many, else
    /// pieces of one length, cut anywhere.
    pub(crate) arrivals: u64,
}

/// What the publisher sends in one turn.
pub(super) struct Arrival {
    /// The group's number.
    pub(super) group: u64,
    /// Opens the group's stream.
    pub(super) first: bool,
    /// Ends it.
    pub(super) last: bool,
    /// Bytes of the stream.
    pub(super) bytes: Vec<u8>,
    /// Time since the arrival before it, microseconds.
    pub(super) after_us: u64,
}

/// Writes groups, one after the other.
pub(super) struct Script {
    shape: Shape,
    payload: Vec<u8>,
    /// Frames and groups written.
    pub(super) frames: u64,
    /// See `frames`.
    pub(super) groups: u64,
    /// Bytes of their streams.
    pub(super) bytes: u64,
}

impl Script {
    pub(super) fn new(shape: Shape) -> Self {
        Self { shape, payload: vec![0x5a; shape.size], frames: 0, groups: 0, bytes: 0 }
    }

    /// The next `count` groups.
    pub(super) fn write(&mut self, count: u64) -> Vec<Arrival> {
        (0..count).flat_map(|_| self.group()).collect()
    }

    fn group(&mut self) -> Vec<Arrival> {
        let mut head = [0; GROUP_HEADER_MAX];
        let header = GroupHeader { subscribe: 0, sequence: self.groups, frame_start: 0 };
        let len = header.encode_into(VERSION, &mut head);
        let mut bytes = head[..len].to_vec();
        let mut ends = Vec::new();
        for index in 0..self.shape.group {
            let since = if index == 0 { self.frames } else { 1 };
            let delta = i64::try_from(since * FRAME_MS).expect("short runs");
            let mut head = [0; FRAME_HEADER_MAX];
            let header = FrameHeader { delta, size: self.shape.size as u64 };
            let len = header.encode_into(&mut head);
            bytes.extend_from_slice(&head[..len]);
            bytes.extend_from_slice(&self.payload);
            ends.push(bytes.len());
            self.frames += 1;
        }
        self.bytes += bytes.len() as u64;
        self.groups += 1;
        let arrivals = usize::try_from(self.shape.arrivals).expect("few arrivals");
        let cuts = match arrivals == ends.len() {
            true => ends,
            false => (1..=arrivals).map(|at| bytes.len() * at / arrivals).collect(),
        };
        self.cut(&bytes, &cuts)
    }

    fn cut(&self, bytes: &[u8], cuts: &[usize]) -> Vec<Arrival> {
        let starts = std::iter::once(0).chain(cuts.iter().copied());
        starts
            .zip(cuts)
            .map(|(start, end)| Arrival {
                group: self.groups - 1,
                first: start == 0,
                last: *end == bytes.len(),
                bytes: bytes[start..*end].to_vec(),
                after_us: FRAME_MS * 1000 * self.shape.group / self.shape.arrivals,
            })
            .collect()
    }
}

fn path() -> Path {
    Path::parse("room/camera").expect("few segments")
}

fn track() -> TrackName {
    TrackName::new("video")
}

/// SETUP, with the stream's type.
pub(super) fn setup(role: Role) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_varint(&mut bytes, kind::UNI_SETUP);
    let setup = Setup { path: Some("/".to_owned()), role: Some(role), ..Setup::default() };
    setup.encode(&mut bytes);
    bytes
}

/// The publisher's answer on the announcement stream: one broadcast.
pub(super) fn announcement() -> Vec<u8> {
    let mut bytes = Vec::new();
    AnnounceOk { hop: Hop(9), active: 1 }.encode(&mut bytes);
    let start = Announce::Start { suffix: path(), hops: Hops::default(), cost: Cost::default() };
    start.encode(VERSION, &mut bytes);
    bytes
}

/// The publisher's answer to TRACK.
pub(super) fn info() -> Vec<u8> {
    let mut bytes = Vec::new();
    let info = TrackInfo { priority: 100, max_age_ms: MAX_AGE_MS, timescale: 1000 };
    info.encode(VERSION, &mut bytes);
    bytes
}

/// A viewer's SUBSCRIBE, with the stream's type. Each viewer chooses another id, so that no two
/// stream headers are alike.
pub(super) fn subscribe(id: u64, start: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_varint(&mut bytes, kind::BI_SUBSCRIBE);
    let prefs = Preferences {
        priority: 100,
        max_age_ms: MAX_AGE_MS,
        start: Some(start),
        end: None,
        frame_start: 0,
        frame_end: None,
    };
    Subscribe { id, broadcast: path(), track: track(), prefs }.encode(VERSION, &mut bytes);
    bytes
}

/// By how many bytes a viewer's stream header is longer than the publisher's, whose id is 0.
pub(super) fn longer(id: u64) -> u64 {
    (varint_len(id) - varint_len(0)) as u64
}
