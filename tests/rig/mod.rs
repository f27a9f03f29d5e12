//! A publisher and its viewers over fake streams: our own layers and nothing below them.
//!
//! The fakes take and drop every `Bytes` they are offered, grant everything and acknowledge when
//! told, and allocate nothing once warm. The sessions are driven as `shard/turn.rs` drives them.
//! Used by `tests/allocs.rs` and `benches/icount.rs`.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use corelay::config::Limits;
use corelay::model::Model;
use corelay::name::{Cost, Grant, Hop, Hops, Path, TrackName};
use corelay::session::streams::{Dir, ReadEnd, StreamId, Streams};
use corelay::session::{Event, Io, Session, Terms};
use corelay::wire::lite::announce::{Announce, AnnounceOk};
use corelay::wire::lite::data::{FrameHeader, GROUP_HEADER_MAX, GroupHeader};
use corelay::wire::lite::subscribe::{Preferences, Subscribe, Track, TrackInfo};
use corelay::wire::lite::{Setup, kind};
use corelay::wire::put_varint;
use corelay::wire::version::Version;

const VERSION: Version = Version::Lite06;
/// Milliseconds that groups are kept; with timestamps that advance, the cache cycles.
const MAX_AGE_MS: u64 = 400;
/// Milliseconds of media between frames.
const FRAME_MS: u64 = 16;

/// One peer's streams.
#[derive(Default)]
pub(crate) struct Fake {
    opened: [u64; 2],
    accepts: [VecDeque<StreamId>; 2],
    reading: Option<(StreamId, Vec<u8>, bool)>,
    finished: Vec<StreamId>,
    /// Media bytes taken.
    pub(crate) taken: u64,
}

impl Streams for Fake {
    fn open(&mut self, dir: Dir) -> Option<StreamId> {
        let number = self.opened[dir as usize];
        self.opened[dir as usize] += 1;
        Some(StreamId(number << 2 | u64::from(dir == Dir::Uni) << 1 | 1))
    }

    fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        self.accepts[dir as usize].pop_front()
    }

    fn read(&mut self, id: StreamId, sink: &mut dyn FnMut(&[u8]) -> bool) -> ReadEnd {
        match &mut self.reading {
            Some((held, bytes, fin)) if *held == id => {
                if !bytes.is_empty() && !sink(bytes) {
                    bytes.clear();
                    return ReadEnd::Paused;
                }
                bytes.clear();
                if *fin { ReadEnd::Fin } else { ReadEnd::Blocked }
            }
            _ => ReadEnd::Blocked,
        }
    }

    fn write(&mut self, _: StreamId, chunks: &mut [Bytes]) -> usize {
        let mut taken = 0;
        for chunk in chunks {
            taken += chunk.len();
            drop(std::mem::take(chunk));
        }
        self.taken += taken as u64;
        taken
    }

    fn write_control(&mut self, _: StreamId, bytes: &[u8]) -> usize {
        bytes.len()
    }

    fn finish(&mut self, id: StreamId) {
        self.finished.push(id);
    }

    fn reset(&mut self, _: StreamId, _: u64) {}
    fn stop(&mut self, _: StreamId, _: u64) {}
    fn prioritize(&mut self, _: StreamId, _: i32) {}

    fn prefix(&self, _: Dir) -> &[u8] {
        &[]
    }

    fn datagram_max(&self) -> usize {
        0
    }

    fn expect_media(&mut self) {}
    fn accommodate(&mut self, _: Dir, _: usize) {}
}

struct Seat {
    session: Session,
    streams: Fake,
    /// Where its next own streams begin.
    next: [u64; 2],
}

/// What is sent: frame size, frames a group, frames in one arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Viewers.
    pub(crate) viewers: usize,
    /// Payload bytes of a frame.
    pub(crate) size: usize,
    /// Frames of a group.
    pub(crate) group: u64,
    /// Arrivals (turns) of a group.
    pub(crate) arrivals: u64,
}

/// The whole arrangement.
pub(crate) struct Rig {
    model: Model,
    publisher: Seat,
    viewers: Vec<Seat>,
    events: Vec<Event>,
    seats: Vec<usize>,
    shape: Shape,
    now_us: u64,
    frame: u64,
    group: u64,
    payload: Vec<u8>,
    encoded: u64,
    arrivals: VecDeque<Vec<u8>>,
    spares: Vec<Vec<u8>>,
}

impl Seat {
    /// The peer opens a stream and sends `bytes` on it.
    fn send(&mut self, model: &mut Model, events: &mut Vec<Event>, dir: Dir, bytes: Vec<u8>) {
        let number = self.next[dir as usize];
        self.next[dir as usize] += 1;
        let id = StreamId(number << 2 | u64::from(dir == Dir::Uni) << 1);
        self.streams.reading = Some((id, bytes, dir == Dir::Uni));
        self.streams.accepts[dir as usize].push_back(id);
        let mut io = Io { model, streams: &mut self.streams, events };
        self.session.on_opened(&mut io, dir);
    }

    /// The peer answers on a stream that we opened.
    fn answer(&mut self, model: &mut Model, events: &mut Vec<Event>, id: StreamId, bytes: Vec<u8>) {
        self.streams.reading = Some((id, bytes, false));
        let mut io = Io { model, streams: &mut self.streams, events };
        self.session.on_readable(&mut io, id);
    }

    fn join(&mut self, model: &mut Model, events: &mut Vec<Event>) {
        let mut setup = Vec::new();
        put_varint(&mut setup, kind::UNI_SETUP);
        Setup { probe: 0, path: None, role: None, cost: None, hop: None }.encode(&mut setup);
        self.send(model, events, Dir::Uni, setup);
        assert!(matches!(events.pop(), Some(Event::Ask(_))), "SETUP asks for a grant");
        let grant = Grant { root: Path::default(), publish: true, subscribe: true };
        let mut io = Io { model, streams: &mut self.streams, events };
        self.session.on_grant(&mut io, grant);
    }
}

impl Rig {
    /// Everybody joined and subscribed; nothing was sent yet.
    pub(crate) fn new(shape: Shape) -> Self {
        let limits = Limits::default();
        let mut model = Model::new(&limits);
        let terms = Rc::new(Terms { hop: Hop(7), limits });
        let mut events = Vec::new();
        let mut seats = Vec::new();
        let mut seat = |model: &mut Model, place: usize| {
            let key = model.open_peer().expect("room for a peer");
            let index = key.index() as usize;
            if seats.len() <= index {
                seats.resize(index + 1, usize::MAX);
            }
            seats[index] = place;
            let session = Session::new(key, VERSION, Rc::clone(&terms));
            Seat { session, streams: Fake::default(), next: [0; 2] }
        };
        let mut publisher = seat(&mut model, usize::MAX);
        publisher.join(&mut model, &mut events);
        let mut viewers: Vec<Seat> =
            (0..shape.viewers).map(|place| seat(&mut model, place)).collect();
        let path = Path::parse("room/cam").expect("short");
        let mut hello = Vec::new();
        AnnounceOk { hop: Hop(9), active: 1 }.encode(&mut hello);
        Announce::Start { suffix: path.clone(), hops: Hops::default(), cost: Cost::default() }
            .encode(VERSION, &mut hello);
        publisher.answer(&mut model, &mut events, StreamId(1), hello);
        for viewer in &mut viewers {
            viewer.join(&mut model, &mut events);
            viewer.send(&mut model, &mut events, Dir::Bi, vec![1, 1, 0]);
            let mut subscribe = Vec::new();
            put_varint(&mut subscribe, kind::BI_SUBSCRIBE);
            let prefs = Preferences {
                priority: 100,
                max_age_ms: MAX_AGE_MS,
                start: Some(0),
                end: None,
                frame_start: 0,
                frame_end: None,
            };
            let track = TrackName::new("video");
            Subscribe { id: 0, broadcast: path.clone(), track, prefs }
                .encode(VERSION, &mut subscribe);
            viewer.send(&mut model, &mut events, Dir::Bi, subscribe);
        }
        assert!(events.is_empty(), "nobody did wrong: {events:?}");
        let mut rig = Self {
            model,
            publisher,
            viewers,
            events,
            seats,
            shape,
            now_us: 1_000_000,
            frame: 0,
            group: 0,
            payload: vec![0x5a; shape.size],
            encoded: 0,
            arrivals: VecDeque::new(),
            spares: Vec::new(),
        };
        rig.turns();
        let mut info = Vec::new();
        TrackInfo { priority: 100, max_age_ms: MAX_AGE_MS, timescale: 1000 }
            .encode(VERSION, &mut info);
        let Self { model, publisher, events, .. } = &mut rig;
        publisher.answer(model, events, StreamId(5), info);
        rig.turns();
        let _ = Track { broadcast: path, track: TrackName::new("video") };
        rig
    }

    /// Turns until nobody is dirty.
    fn turns(&mut self) {
        while self.model.has_dirty() {
            self.turn();
        }
    }

    /// The part of a turn behind the datagrams.
    fn turn(&mut self) {
        self.model.settle();
        while let Some(due) = self.model.pop_dirty() {
            let place = self.seats[due.key.index() as usize];
            let seat = match place {
                usize::MAX => &mut self.publisher,
                place => &mut self.viewers[place],
            };
            let mut io =
                Io { model: &mut self.model, streams: &mut seat.streams, events: &mut self.events };
            seat.session.flush(&mut io, due);
        }
    }

    /// Viewers acknowledge everything that ended.
    fn acknowledge(&mut self) {
        for seat in &mut self.viewers {
            while let Some(id) = seat.streams.finished.pop() {
                let mut io = Io {
                    model: &mut self.model,
                    streams: &mut seat.streams,
                    events: &mut self.events,
                };
                seat.session.on_finished(&mut io, id);
            }
        }
    }

    /// Encodes the arrivals of `groups` groups ahead, so that sending them is all that is left.
    pub(crate) fn prepare(&mut self, groups: u64) {
        for _ in 0..groups {
            let mut sent = 0;
            for arrival in 0..self.shape.arrivals {
                let upto = self.shape.group * (arrival + 1) / self.shape.arrivals;
                let mut body = self.spares.pop().unwrap_or_default();
                body.clear();
                if arrival == 0 {
                    let mut head = [0; GROUP_HEADER_MAX];
                    let sequence = self.encoded;
                    let header = GroupHeader { subscribe: 0, sequence, frame_start: 0 };
                    let len = header.encode_into(VERSION, &mut head);
                    body.extend_from_slice(&head[..len]);
                }
                for index in sent..upto {
                    self.put_frame(index == 0, &mut body);
                }
                sent = upto;
                self.arrivals.push_back(body);
            }
            self.encoded += 1;
        }
    }

    fn put_frame(&mut self, first: bool, body: &mut Vec<u8>) {
        let at = i64::try_from(self.frame * FRAME_MS).expect("short run");
        let delta = if first { at } else { FRAME_MS.cast_signed() };
        let mut head = [0; 16];
        let header = FrameHeader { delta, size: self.shape.size as u64 };
        let len = header.encode_into(&mut head);
        body.extend_from_slice(&head[..len]);
        body.extend_from_slice(&self.payload);
        self.frame += 1;
    }

    /// Sends one whole group in the shape's arrivals.
    pub(crate) fn group(&mut self) {
        if self.arrivals.is_empty() {
            self.prepare(1);
        }
        let id = StreamId(self.publisher.next[1] << 2 | 2);
        self.publisher.next[1] += 1;
        for arrival in 0..self.shape.arrivals {
            let last = arrival + 1 == self.shape.arrivals;
            self.arrive(id, arrival == 0, last);
        }
        self.group += 1;
    }

    fn arrive(&mut self, id: StreamId, first: bool, last: bool) {
        self.now_us += 1000;
        self.model.tick(self.now_us);
        let body = self.arrivals.pop_front().expect("prepared");
        self.publisher.streams.reading = Some((id, body, last));
        let mut io = Io {
            model: &mut self.model,
            streams: &mut self.publisher.streams,
            events: &mut self.events,
        };
        if first {
            io.streams.accepts[Dir::Uni as usize].push_back(id);
            self.publisher.session.on_opened(&mut io, Dir::Uni);
        } else {
            self.publisher.session.on_readable(&mut io, id);
        }
        if let Some((_, body, _)) = self.publisher.streams.reading.take() {
            self.spares.push(body);
        }
        self.turn();
        self.acknowledge();
    }

    /// Checks that everybody got everything so far: media bytes are those of whole groups.
    pub(crate) fn check(&self) {
        assert!(self.events.is_empty(), "nobody did wrong: {:?}", self.events);
        let counters = &self.model.counters;
        assert_eq!(counters.frames_in, self.frame, "every frame came in");
        assert_eq!(counters.groups_out, self.group * self.shape.viewers as u64);
        assert_eq!(counters.groups_out_reset_old + counters.groups_skipped_old, 0);
        let least = self.frame * self.shape.size as u64;
        for seat in &self.viewers {
            assert!(seat.streams.taken >= least, "a viewer got less than was sent");
        }
        assert!(counters.groups_evicted_age > 0, "the cache cycles");
    }
}
