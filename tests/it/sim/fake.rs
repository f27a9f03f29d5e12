//! Sessions over streams in memory, without QUIC: what makes many small cases cheap.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use corelay::config::Limits;
use corelay::model::peer::Due;
use corelay::model::{Model, PeerKey};
use corelay::name::{Cost, Grant, Hop, Hops, Path};
use corelay::session::streams::{Dir, ReadEnd, StreamId, Streams};
use corelay::session::{Event, Io, Session, Terms};
use corelay::wire::lite::announce::{Announce, AnnounceOk};
use corelay::wire::lite::subscribe::TrackInfo;
use corelay::wire::lite::{Setup, kind};
use corelay::wire::put_varint;
use corelay::wire::version::Version::{self, Lite05, Lite06};

struct Inbound {
    bytes: VecDeque<Vec<u8>>,
    end: ReadEnd,
}

/// The relay's end of one peer's streams.
#[derive(Default)]
pub(super) struct Fake {
    arrived: [VecDeque<StreamId>; 2],
    inbound: BTreeMap<StreamId, Inbound>,
    /// Streams of the peer, and of the relay, of each kind.
    theirs: [u64; 2],
    ours: [u64; 2],
    pub(super) written: BTreeMap<StreamId, Vec<u8>>,
    pub(super) finished: Vec<StreamId>,
    pub(super) resets: BTreeMap<StreamId, u64>,
    pub(super) stops: BTreeMap<StreamId, u64>,
    /// Media bytes that are taken before one is refused; any number when `None`.
    pub(super) room: Option<usize>,
    refused: BTreeSet<StreamId>,
    /// What ended is not acknowledged.
    pub(super) silent: bool,
}

fn kind_bit(dir: Dir) -> u64 {
    match dir {
        Dir::Bi => 0,
        Dir::Uni => 2,
    }
}

impl Streams for Fake {
    fn open(&mut self, dir: Dir) -> Option<StreamId> {
        let count = &mut self.ours[dir as usize];
        let id = StreamId((*count << 2) | kind_bit(dir) | 1);
        *count += 1;
        self.inbound.insert(id, Inbound { bytes: VecDeque::new(), end: ReadEnd::Blocked });
        Some(id)
    }

    fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        self.arrived[dir as usize].pop_front()
    }

    fn read(&mut self, id: StreamId, sink: &mut dyn FnMut(&[u8]) -> bool) -> ReadEnd {
        let Some(inbound) = self.inbound.get_mut(&id) else { return ReadEnd::Blocked };
        if let ReadEnd::Reset(_) = inbound.end {
            return inbound.end;
        }
        while let Some(bytes) = inbound.bytes.pop_front() {
            if !sink(&bytes) {
                return ReadEnd::Paused;
            }
        }
        inbound.end
    }

    fn write(&mut self, id: StreamId, chunks: &mut [Bytes]) -> usize {
        let mut count = 0;
        for chunk in chunks {
            let take = chunk.len().min(self.room.unwrap_or(usize::MAX));
            if let Some(room) = &mut self.room {
                *room -= take;
            }
            self.written.entry(id).or_default().extend_from_slice(&chunk.split_to(take));
            count += take;
            if !chunk.is_empty() {
                self.refused.insert(id);
                break;
            }
        }
        count
    }

    fn write_control(&mut self, id: StreamId, bytes: &[u8]) -> usize {
        self.written.entry(id).or_default().extend_from_slice(bytes);
        bytes.len()
    }

    fn finish(&mut self, id: StreamId) {
        self.finished.push(id);
    }

    fn reset(&mut self, id: StreamId, code: u64) {
        self.resets.insert(id, code);
    }

    fn stop(&mut self, id: StreamId, code: u64) {
        self.stops.insert(id, code);
        self.inbound.remove(&id);
    }

    fn prioritize(&mut self, _id: StreamId, _priority: i32) {}

    fn prefix(&self, _dir: Dir) -> &[u8] {
        &[]
    }

    fn datagram_max(&self) -> usize {
        0
    }

    fn expect_media(&mut self) {}

    fn accommodate(&mut self, _dir: Dir, _open: usize) {}
}

/// One peer.
pub(super) struct Peer {
    pub(super) fake: Fake,
    session: Session,
    key: PeerKey,
}

/// Sessions around one model.
pub(super) struct Sessions {
    pub(super) model: Model,
    pub(super) peers: BTreeMap<usize, Peer>,
    pub(super) violations: u64,
    terms: Rc<Terms>,
    now_us: u64,
    next: usize,
}

impl Sessions {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            model: Model::new(limits),
            peers: BTreeMap::new(),
            violations: 0,
            terms: Rc::new(Terms { hop: Hop(77), limits: limits.clone() }),
            now_us: 0,
            next: 0,
        }
    }

    /// A peer that has not said anything.
    pub(super) fn open(&mut self, version: Version) -> usize {
        let key = self.model.open_peer().expect("within the limit");
        let session = Session::new(key, version, Rc::clone(&self.terms));
        let place = self.next;
        self.next += 1;
        self.peers.insert(place, Peer { fake: Fake::default(), session, key });
        place
    }

    /// A peer that has said SETUP and may do everything.
    pub(super) fn greet(&mut self, version: Version) -> usize {
        let place = self.open(version);
        let mut bytes = Vec::new();
        put_varint(&mut bytes, kind::UNI_SETUP);
        Setup::default().encode(&mut bytes);
        self.say(place, Dir::Uni, &bytes, ReadEnd::Fin);
        place
    }

    /// The peer opens a stream with these bytes on it.
    pub(super) fn say(&mut self, place: usize, dir: Dir, bytes: &[u8], end: ReadEnd) -> StreamId {
        let Some(peer) = self.peers.get_mut(&place) else { return StreamId(0) };
        let count = &mut peer.fake.theirs[dir as usize];
        let id = StreamId((*count << 2) | kind_bit(dir));
        *count += 1;
        let inbound = Inbound { bytes: VecDeque::from([bytes.to_vec()]), end };
        peer.fake.inbound.insert(id, inbound);
        peer.fake.arrived[dir as usize].push_back(id);
        self.with(place, |session, io| session.on_opened(io, dir));
        id
    }

    /// The peer goes on on a stream.
    pub(super) fn more(&mut self, place: usize, id: StreamId, bytes: &[u8], end: ReadEnd) {
        let Some(peer) = self.peers.get_mut(&place) else { return };
        let Some(inbound) = peer.fake.inbound.get_mut(&id) else { return };
        inbound.bytes.push_back(bytes.to_vec());
        inbound.end = end;
        self.with(place, |session, io| session.on_readable(io, id));
    }

    fn with(&mut self, place: usize, act: impl FnOnce(&mut Session, &mut Io<'_, Fake>)) {
        let Some(peer) = self.peers.get_mut(&place) else { return };
        let Peer { fake, session, .. } = peer;
        let mut events = Vec::new();
        act(session, &mut Io { model: &mut self.model, streams: fake, events: &mut events });
        while !events.is_empty() {
            match events.remove(0) {
                Event::Ask(facts) => {
                    let grant = Grant { root: facts.path, publish: true, subscribe: true };
                    let (model, streams) = (&mut self.model, &mut *fake);
                    session.on_grant(&mut Io { model, streams, events: &mut events }, grant);
                }
                Event::Violation(_) => self.violations += 1,
                Event::Close { .. } => {
                    self.close(place);
                    return;
                }
            }
        }
    }

    pub(super) fn close(&mut self, place: usize) {
        if let Some(mut peer) = self.peers.remove(&place) {
            peer.session.on_closed(&mut self.model, 3);
        }
    }

    /// The next peer to visit, over as many turns as it takes.
    fn next_due(&mut self) -> Option<Due> {
        let due = self.model.pop_dirty();
        if due.is_some() || !self.model.has_dirty() {
            return due;
        }
        self.model.settle();
        self.model.pop_dirty()
    }

    /// Lets everything be written and acknowledged.
    pub(super) fn settle(&mut self) {
        self.model.settle();
        while let Some(due) = self.next_due() {
            let found = self.peers.iter().find(|(_, peer)| peer.key == due.key);
            let Some((place, _)) = found else { continue };
            let place = *place;
            self.with(place, |session, io| {
                session.flush(io, due);
            });
            self.acknowledge(place);
        }
    }

    /// The peer acknowledges what ended, unless it is silent.
    pub(super) fn acknowledge(&mut self, place: usize) {
        let Some(peer) = self.peers.get_mut(&place).filter(|peer| !peer.fake.silent) else {
            return;
        };
        for id in std::mem::take(&mut peer.fake.finished) {
            self.with(place, |session, io| session.on_finished(io, id));
        }
    }

    /// The peer's streams take so many more bytes: those that were refused are told, and all is
    /// written that fits.
    pub(super) fn grant(&mut self, place: usize, bytes: usize) {
        let Some(peer) = self.peers.get_mut(&place) else { return };
        peer.fake.room = Some(bytes);
        for id in std::mem::take(&mut peer.fake.refused) {
            self.with(place, |session, io| session.on_writable(io, id));
        }
        self.settle();
    }

    /// Lets time pass.
    pub(super) fn pass(&mut self, ms: u64) {
        self.now_us += ms * 1000;
        self.model.tick(self.now_us);
        self.settle();
    }

    /// The stream on which the relay asked `place` with a request of this type, the latest.
    pub(super) fn asked(&self, place: usize, kind: u64) -> Option<StreamId> {
        let written = &self.peers.get(&place)?.fake.written;
        let is = |id: &StreamId, bytes: &[u8]| {
            !id.is_uni() && id.0 & 1 == 1 && u64::from(bytes[0]) == kind
        };
        written.iter().rev().find(|(id, bytes)| is(id, bytes)).map(|(id, _)| *id)
    }

    pub(super) fn path(text: &str) -> Path {
        Path::parse(text).expect("short")
    }
}

/// A publisher announces a path.
pub(super) fn announce(sessions: &mut Sessions, place: usize, version: Version, path: &str) {
    let mut bytes = Vec::new();
    AnnounceOk { hop: Hop(9), active: 1 }.encode(&mut bytes);
    let (suffix, hops) = (Sessions::path(path), Hops::default());
    let announce = match version {
        Lite06 => Announce::Start { suffix, hops, cost: Cost::default() },
        Lite05 => Announce::Active { suffix, hops },
    };
    announce.encode(version, &mut bytes);
    let stream = sessions.asked(place, kind::BI_ANNOUNCE).expect("the relay asks at once");
    sessions.more(place, stream, &bytes, ReadEnd::Blocked);
    sessions.settle();
}

/// A publisher says what its track is, if it was asked.
pub(super) fn describe(sessions: &mut Sessions, place: usize, version: Version) {
    let Some(stream) = sessions.asked(place, kind::BI_TRACK) else { return };
    let mut bytes = Vec::new();
    TrackInfo { priority: 1, max_age_ms: 500, timescale: 1000 }.encode(version, &mut bytes);
    sessions.more(place, stream, &bytes, ReadEnd::Fin);
    sessions.settle();
}
