//! The publishing half of a client: it announces, answers TRACK and SUBSCRIBE, and sends groups,
//! by a rate on virtual time or when a test says so. It keeps what it sent, for the oracles.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use corelay::name::{Cost, Hop, Hops, Path};
use corelay::wire::lite::announce::{Announce, AnnounceOk, AnnounceRequest};
use corelay::wire::lite::data::{FRAME_HEADER_MAX, FrameHeader, GROUP_HEADER_MAX, GroupHeader};
use corelay::wire::lite::kind;
use corelay::wire::lite::subscribe::{Preferences, Response, Subscribe, Track, TrackInfo};
use corelay::wire::version::Version;
use corelay::wire::{MESSAGE_MAX, Reader, message};
use quinn_proto::{Dir, StreamId};

use super::pattern::{Frame, tag};
use super::wire::{End, Wire};

/// How fast a track makes frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) interval: Duration,
    pub(super) frames: u64,
    /// Least bytes of a frame, and by how many it varies.
    pub(super) bytes: usize,
    pub(super) spread: usize,
}

/// A group as it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) frames: u64,
    pub(super) whole: bool,
    /// Code with which the relay stopped it.
    pub(super) stopped: Option<u64>,
}

/// The relay's subscription to a track.
pub(super) struct Upstream {
    pub(super) id: u64,
    pub(super) stream: StreamId,
    pub(super) prefs: Preferences,
    started: bool,
}

struct Going {
    stream: StreamId,
    seq: u64,
    last: u64,
    number: u64,
}

/// One track.
pub(super) struct Publication {
    pub(super) broadcast: String,
    pub(super) name: String,
    pub(super) info: TrackInfo,
    pub(super) rate: Option<Rate>,
    pub(super) upstream: Option<Upstream>,
    /// Number of the next group.
    pub(super) next: u64,
    /// When the next frame is due, by the rate.
    pub(super) due: Instant,
    pub(super) sent: BTreeMap<u64, Sent>,
    pub(super) asked: u64,
    pub(super) subscribed: u64,
    /// Latest timestamp sent.
    pub(super) edge: u64,
    going: Option<Going>,
    streams: BTreeMap<StreamId, u64>,
}

enum Asked {
    Fresh,
    Announce,
    Subscribe(usize),
    Done,
}

/// The publishing half.
pub(super) struct Publisher {
    pub(super) source: u8,
    pub(super) version: Version,
    pub(super) hop: Hop,
    pub(super) tracks: Vec<Publication>,
    pub(super) announced: Vec<String>,
    pub(super) epoch: Instant,
    listeners: Vec<(StreamId, Vec<String>)>,
    requests: BTreeMap<StreamId, (Asked, Vec<u8>)>,
    ids: BTreeMap<String, u64>,
    next_id: u64,
}

impl Publisher {
    pub(super) fn new(source: u8, version: Version, epoch: Instant) -> Self {
        Self {
            source,
            version,
            hop: Hop(1000 + u64::from(source)),
            tracks: Vec::new(),
            announced: Vec::new(),
            epoch,
            listeners: Vec::new(),
            requests: BTreeMap::new(),
            ids: BTreeMap::new(),
            next_id: 0,
        }
    }

    /// Offers a track; its broadcast must be announced too. Answers its place.
    pub(super) fn offer(&mut self, broadcast: &str, name: &str, max_age_ms: u64) -> usize {
        self.tracks.push(Publication {
            broadcast: broadcast.to_owned(),
            name: name.to_owned(),
            info: TrackInfo { priority: 100, max_age_ms, timescale: 1000 },
            rate: None,
            upstream: None,
            next: 0,
            due: self.epoch,
            sent: BTreeMap::new(),
            asked: 0,
            subscribed: 0,
            edge: 0,
            going: None,
            streams: BTreeMap::new(),
        });
        self.tracks.len() - 1
    }

    pub(super) fn announce(&mut self, wire: &mut Wire, broadcast: &str) {
        self.announced.push(broadcast.to_owned());
        self.tell(wire);
    }

    pub(super) fn unannounce(&mut self, wire: &mut Wire, broadcast: &str) {
        self.announced.retain(|held| held != broadcast);
        self.tell(wire);
    }

    /// Brings every listener to what is announced.
    fn tell(&mut self, wire: &mut Wire) {
        for (stream, told) in &mut self.listeners {
            let mut bytes = Vec::new();
            for gone in told.iter().filter(|held| !self.announced.contains(held)) {
                let id = self.ids[gone];
                let suffix = Path::parse(gone).expect("short");
                let typed = self.version.has_typed_announce();
                let end = if typed { Announce::End { id } } else { Announce::Ended { suffix } };
                end.encode(self.version, &mut bytes);
            }
            for fresh in self.announced.iter().filter(|held| !told.contains(held)) {
                let (suffix, hops) = (Path::parse(fresh).expect("short"), Hops::default());
                let typed = self.version.has_typed_announce();
                let start = if typed {
                    Announce::Start { suffix, hops, cost: Cost::default() }
                } else {
                    Announce::Active { suffix, hops }
                };
                start.encode(self.version, &mut bytes);
                self.ids.insert(fresh.clone(), self.next_id);
                self.next_id += 1;
            }
            told.clone_from(&self.announced);
            wire.say(*stream, &bytes, false);
        }
    }

    /// The relay opened a request.
    pub(super) fn on_opened(&mut self, id: StreamId) {
        self.requests.insert(id, (Asked::Fresh, Vec::new()));
    }

    pub(super) fn on_readable(&mut self, wire: &mut Wire, id: StreamId, now: Instant) {
        let Some((asked, buffer)) = self.requests.get_mut(&id) else { return };
        let end = wire.read(id, buffer);
        match *asked {
            Asked::Fresh => self.feed(wire, id, now),
            Asked::Subscribe(track) => {
                while let Ok((body, used)) = message(buffer, MESSAGE_MAX) {
                    let prefs = Preferences::decode_update(body, self.version);
                    let prefs = prefs.expect("the relay's update is well formed");
                    if let Some(upstream) = &mut self.tracks[track].upstream {
                        upstream.prefs = prefs;
                    }
                    buffer.drain(..used);
                }
            }
            Asked::Announce | Asked::Done => {}
        }
        if end != End::Open {
            self.left(wire, id);
        }
    }

    fn left(&mut self, wire: &mut Wire, id: StreamId) {
        let Some((Asked::Subscribe(track), _)) = self.requests.remove(&id) else { return };
        let track = &mut self.tracks[track];
        if track.upstream.as_ref().is_some_and(|upstream| upstream.stream == id) {
            track.upstream = None;
            if let Some(going) = track.going.take() {
                wire.reset(going.stream, 1);
            }
            wire.reset(id, 1);
        }
    }

    fn feed(&mut self, wire: &mut Wire, id: StreamId, now: Instant) {
        let (_, buffer) = &self.requests[&id];
        let mut reader = Reader::new(buffer);
        let Ok(kind) = reader.varint() else { return };
        let Ok((body, used)) = message(reader.rest(), MESSAGE_MAX) else { return };
        let rest = reader.rest()[used..].to_vec();
        let asked = match kind {
            kind::BI_ANNOUNCE => {
                let asked = AnnounceRequest::decode(body, self.version).expect("well formed");
                assert!(asked.prefix.is_empty(), "an open session asks for everything");
                self.listen(wire, id);
                Asked::Announce
            }
            kind::BI_TRACK => {
                let asked = Track::decode(body).expect("well formed");
                self.describe(wire, id, &asked);
                Asked::Done
            }
            kind::BI_SUBSCRIBE => {
                let asked = Subscribe::decode(body, self.version).expect("well formed");
                self.serve(wire, id, &asked, now)
            }
            other => panic!("the relay opened a stream of type {other}"),
        };
        self.requests.insert(id, (asked, rest));
    }

    fn listen(&mut self, wire: &mut Wire, id: StreamId) {
        let mut bytes = Vec::new();
        let active = self.announced.len() as u64;
        AnnounceOk { hop: self.hop, active }.encode(&mut bytes);
        wire.say(id, &bytes, false);
        self.listeners.push((id, Vec::new()));
        self.tell(wire);
    }

    fn find(&self, broadcast: &Path, name: &str) -> Option<usize> {
        let is = |track: &Publication| track.broadcast == broadcast.as_str() && track.name == name;
        self.tracks.iter().position(is)
    }

    fn describe(&mut self, wire: &mut Wire, id: StreamId, asked: &Track) {
        let Some(track) = self.find(&asked.broadcast, asked.track.as_str()) else {
            wire.reset(id, 0x33);
            return;
        };
        self.tracks[track].asked += 1;
        let mut bytes = Vec::new();
        self.tracks[track].info.encode(self.version, &mut bytes);
        wire.say(id, &bytes, true);
    }

    fn serve(&mut self, wire: &mut Wire, id: StreamId, asked: &Subscribe, now: Instant) -> Asked {
        let Some(place) = self.find(&asked.broadcast, asked.track.as_str()) else {
            wire.reset(id, 0x33);
            return Asked::Done;
        };
        let track = &mut self.tracks[place];
        track.subscribed += 1;
        track.due = now;
        let (id, stream) = (asked.id, id);
        track.upstream = Some(Upstream { id, stream, prefs: asked.prefs, started: false });
        Asked::Subscribe(place)
    }

    /// The relay stopped one of our streams.
    pub(super) fn on_stopped(&mut self, wire: &mut Wire, id: StreamId, code: u64) {
        for track in &mut self.tracks {
            if let Some(seq) = track.streams.get(&id) {
                track.sent.entry(*seq).or_default().stopped = Some(code);
                if track.going.as_ref().is_some_and(|going| going.stream == id) {
                    track.going = None;
                }
                wire.reset(id, 1);
            }
        }
    }

    /// Opens group `seq` of a track; false while nobody subscribes or no stream is granted.
    pub(super) fn begin(&mut self, wire: &mut Wire, place: usize, seq: u64) -> bool {
        let track = &mut self.tracks[place];
        let Some(upstream) = &mut track.upstream else { return false };
        let Some(stream) = wire.open(Dir::Uni) else { return false };
        if !std::mem::replace(&mut upstream.started, true) {
            let mut bytes = Vec::new();
            Response::Start { group: seq }.encode(&mut bytes);
            wire.say(upstream.stream, &bytes, false);
        }
        let mut head = [0; GROUP_HEADER_MAX];
        let header = GroupHeader { subscribe: upstream.id, sequence: seq, frame_start: 0 };
        let len = header.encode_into(self.version, &mut head);
        wire.say(stream, &head[..len], false);
        track.streams.insert(stream, seq);
        track.sent.insert(seq, Sent::default());
        track.going = Some(Going { stream, seq, last: 0, number: 0 });
        track.next = seq + 1;
        true
    }

    /// Sends a frame of `len` bytes in the open group.
    pub(super) fn frame(&mut self, wire: &mut Wire, place: usize, len: usize, timestamp: u64) {
        let (head, body) = self.encode(place, len, timestamp);
        let Some(going) = &self.tracks[place].going else { return };
        wire.say(going.stream, &head, false);
        wire.say(going.stream, &body, false);
    }

    /// Sends a frame's header and only `sent` of its `len` bytes.
    pub(super) fn part(
        &mut self,
        wire: &mut Wire,
        place: usize,
        (len, sent): (usize, usize),
        at: u64,
    ) {
        let (head, body) = self.encode(place, len, at);
        let track = &mut self.tracks[place];
        let Some(going) = &track.going else { return };
        wire.say(going.stream, &head, false);
        wire.say(going.stream, &body[..sent], false);
        track.sent.get_mut(&going.seq).expect("begun").frames -= 1;
    }

    fn encode(&mut self, place: usize, len: usize, timestamp: u64) -> (Vec<u8>, Vec<u8>) {
        let source = self.source;
        let track = &mut self.tracks[place];
        let Some(going) = &mut track.going else { return Default::default() };
        let before = i64::try_from(going.last).expect("small");
        let delta = i64::try_from(timestamp).expect("small") - before;
        let mut head = [0; FRAME_HEADER_MAX];
        let used = FrameHeader { delta, size: len as u64 }.encode_into(&mut head);
        let tag = tag(&track.broadcast, &track.name);
        let frame = Frame { source, tag, seq: going.seq, number: going.number, timestamp };
        let mut body = Vec::new();
        frame.fill(len, &mut body);
        going.last = timestamp;
        going.number += 1;
        track.edge = track.edge.max(timestamp);
        track.sent.get_mut(&going.seq).expect("begun").frames += 1;
        (head[..used].to_vec(), body)
    }

    /// Ends the open group.
    pub(super) fn finish(&mut self, wire: &mut Wire, place: usize) {
        let track = &mut self.tracks[place];
        let Some(going) = track.going.take() else { return };
        wire.say(going.stream, &[], true);
        track.sent.get_mut(&going.seq).expect("begun").whole = true;
    }

    /// Leaves the open group open, so that another can be begun.
    pub(super) fn leave_open(&mut self, place: usize) -> Option<StreamId> {
        self.tracks[place].going.take().map(|going| going.stream)
    }

    /// A whole group at once.
    pub(super) fn group(
        &mut self,
        wire: &mut Wire,
        place: usize,
        seq: u64,
        frames: &[(usize, u64)],
    ) {
        assert!(self.begin(wire, place, seq), "somebody subscribes, and streams are granted");
        for (len, timestamp) in frames {
            self.frame(wire, place, *len, *timestamp);
        }
        self.finish(wire, place);
    }

    /// Declares the track's end behind what was sent, and finishes the answer.
    pub(super) fn end_track(&mut self, wire: &mut Wire, place: usize) {
        self.finish(wire, place);
        let track = &mut self.tracks[place];
        track.rate = None;
        let Some(upstream) = track.upstream.take() else { return };
        let mut bytes = Vec::new();
        Response::End { group: track.next }.encode(&mut bytes);
        wire.say(upstream.stream, &bytes, true);
    }

    /// When the next frame is due by a rate.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let live = |track: &&Publication| track.rate.is_some() && track.upstream.is_some();
        self.tracks.iter().filter(live).map(|track| track.due).min()
    }

    /// Sends what is due by the rates.
    pub(super) fn produce(&mut self, wire: &mut Wire, now: Instant) {
        for place in 0..self.tracks.len() {
            while let Some(rate) = self.tracks[place].rate
                && self.tracks[place].upstream.is_some()
                && self.tracks[place].due <= now
            {
                self.tick(wire, place, rate);
                self.tracks[place].due += rate.interval;
            }
        }
    }

    fn tick(&mut self, wire: &mut Wire, place: usize, rate: Rate) {
        let track = &mut self.tracks[place];
        let at = track.due.duration_since(self.epoch).as_millis();
        let timestamp = u64::try_from(at).expect("short runs");
        if track.going.is_none() {
            let next = track.next;
            if !self.begin(wire, place, next) {
                return;
            }
        }
        let Some(going) = &self.tracks[place].going else { return };
        let vary = going.seq.wrapping_mul(31).wrapping_add(going.number.wrapping_mul(17));
        let vary = usize::try_from(vary % (rate.spread as u64 + 1)).expect("small");
        self.frame(wire, place, rate.bytes + vary, timestamp);
        let number = self.tracks[place].going.as_ref().map_or(0, |going| going.number);
        if number >= rate.frames {
            self.finish(wire, place);
        }
    }
}
