//! The viewing half of a client: it hears announcements, asks for tracks, subscribes, and checks
//! every byte of every group as it comes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use corelay::name::{Hop, Path, TrackName};
use corelay::wire::code;
use corelay::wire::lite::announce::{Announce, AnnounceOk, AnnounceRequest};
use corelay::wire::lite::data::{FrameHeader, GroupHeader};
use corelay::wire::lite::kind;
use corelay::wire::lite::subscribe::{Preferences, Response, Subscribe, Track, TrackInfo};
use corelay::wire::version::Version;
use corelay::wire::{DecodeError, MESSAGE_MAX, Reader, message, put_varint};
use quinn_proto::{Dir, StreamId};

use super::pattern::{Frame, tag};
use super::wire::{End, Wire};

/// A group as it came.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) frame_start: u64,
    /// Complete frames, and bytes of the one after them.
    pub(super) frames: u64,
    pub(super) rest: usize,
    /// Who made it, once a frame with content told.
    pub(super) source: Option<u8>,
    pub(super) first: Option<u64>,
    pub(super) last: u64,
    pub(super) end: End,
    pub(super) opened: Instant,
    /// When its latest bytes came.
    pub(super) at: Instant,
}

/// What came on a subscription's own stream, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Said {
    Start(u64),
    End(u64),
    Fin,
    Reset(u64),
}

/// One subscription.
pub(super) struct Subscription {
    pub(super) stream: StreamId,
    pub(super) broadcast: String,
    pub(super) track: String,
    pub(super) groups: BTreeMap<u64, Received>,
    /// Groups in the order in which their streams appeared.
    pub(super) order: Vec<u64>,
    pub(super) said: Vec<(Said, Instant)>,
    /// The viewer left it.
    pub(super) left: bool,
    buffer: Vec<u8>,
}

impl Subscription {
    pub(super) fn said(&self) -> Vec<Said> {
        self.said.iter().map(|(said, _)| *said).collect()
    }

    /// The newest group that came.
    pub(super) fn newest(&self) -> u64 {
        *self.groups.keys().next_back().expect("groups came")
    }

    /// Groups before the newest that did not come whole, from `first` on.
    pub(super) fn lacks(&self, first: u64) -> Vec<u64> {
        let lacking = |seq: &u64| self.groups.get(seq).is_none_or(|group| group.end != End::Fin);
        (first..self.newest()).filter(lacking).collect()
    }

    /// Latest timestamp that came.
    pub(super) fn edge(&self) -> Option<u64> {
        self.groups.values().filter(|held| held.frames > 0).map(|held| held.last).max()
    }

    pub(super) fn whole(&self) -> Vec<u64> {
        self.groups.iter().filter(|(_, held)| held.end == End::Fin).map(|(seq, _)| *seq).collect()
    }
}

/// A TRACK request.
pub(super) struct Asked {
    pub(super) info: Option<TrackInfo>,
    pub(super) end: End,
    /// Which datagram of the relay brought the answer.
    pub(super) ordinal: u64,
    buffer: Vec<u8>,
}

struct Incoming {
    buffer: Vec<u8>,
    /// Subscription and group, once the header came.
    group: Option<(usize, u64)>,
    ordinal: u64,
}

/// The viewing half.
pub(super) struct Viewer {
    pub(super) version: Version,
    pub(super) hop: Hop,
    pub(super) subs: Vec<Subscription>,
    pub(super) asked: BTreeMap<StreamId, Asked>,
    pub(super) announced: BTreeSet<String>,
    /// Group streams are read.
    pub(super) reading: bool,
    /// Streams that were reset before their header came.
    pub(super) headless: u64,
    pub(super) setup_seen: bool,
    /// Which datagram of the relay is being handled, and which brought each stream.
    pub(super) ordinal: u64,
    pub(super) first_seen: BTreeMap<StreamId, u64>,
    announce: Option<(StreamId, Vec<u8>, bool)>,
    by_id: BTreeMap<u64, String>,
    next_id: u64,
    incoming: BTreeMap<StreamId, Incoming>,
    scratch: Vec<u8>,
}

impl Viewer {
    pub(super) fn new(version: Version) -> Self {
        Self {
            version,
            hop: Hop(0),
            subs: Vec::new(),
            asked: BTreeMap::new(),
            announced: BTreeSet::new(),
            reading: true,
            headless: 0,
            setup_seen: false,
            ordinal: 0,
            first_seen: BTreeMap::new(),
            announce: None,
            by_id: BTreeMap::new(),
            next_id: 0,
            incoming: BTreeMap::new(),
            scratch: Vec::new(),
        }
    }

    /// Asks for everything that is published.
    pub(super) fn listen(&mut self, wire: &mut Wire) {
        let id = wire.open(Dir::Bi).expect("streams are granted");
        let mut bytes = Vec::new();
        put_varint(&mut bytes, kind::BI_ANNOUNCE);
        let prefix = Path::default();
        AnnounceRequest { prefix, exclude_hop: self.hop }.encode(self.version, &mut bytes);
        wire.say(id, &bytes, false);
        self.announce = Some((id, Vec::new(), false));
    }

    /// Subscribes; answers the subscription's place.
    pub(super) fn subscribe(
        &mut self,
        wire: &mut Wire,
        (broadcast, track): (&str, &str),
        prefs: Preferences,
    ) -> usize {
        let stream = wire.open(Dir::Bi).expect("streams are granted");
        let id = self.subs.len();
        let asked = Subscribe {
            id: id as u64,
            broadcast: Path::parse(broadcast).expect("short"),
            track: TrackName::new(track),
            prefs,
        };
        let mut bytes = Vec::new();
        put_varint(&mut bytes, kind::BI_SUBSCRIBE);
        asked.encode(self.version, &mut bytes);
        wire.say(stream, &bytes, false);
        self.subs.push(Subscription {
            stream,
            broadcast: broadcast.to_owned(),
            track: track.to_owned(),
            groups: BTreeMap::new(),
            order: Vec::new(),
            said: Vec::new(),
            left: false,
            buffer: Vec::new(),
        });
        id
    }

    pub(super) fn update(&mut self, wire: &mut Wire, sub: usize, prefs: Preferences) {
        let mut bytes = Vec::new();
        prefs.encode_update(self.version, &mut bytes);
        wire.say(self.subs[sub].stream, &bytes, false);
    }

    /// Leaves with FIN, or with a reset.
    pub(super) fn unsubscribe(&mut self, wire: &mut Wire, sub: usize, code: Option<u64>) {
        self.subs[sub].left = true;
        match code {
            None => wire.say(self.subs[sub].stream, &[], true),
            Some(code) => wire.reset(self.subs[sub].stream, code),
        }
    }

    pub(super) fn ask(&mut self, wire: &mut Wire, (broadcast, track): (&str, &str)) -> StreamId {
        let stream = wire.open(Dir::Bi).expect("streams are granted");
        let broadcast = Path::parse(broadcast).expect("short");
        let mut bytes = Vec::new();
        put_varint(&mut bytes, kind::BI_TRACK);
        Track { broadcast, track: TrackName::new(track) }.encode(&mut bytes);
        wire.say(stream, &bytes, false);
        let asked = Asked { info: None, end: End::Open, ordinal: 0, buffer: Vec::new() };
        self.asked.insert(stream, asked);
        stream
    }

    /// The relay opened a unidirectional stream.
    pub(super) fn on_opened(&mut self, id: StreamId) {
        let ordinal = self.ordinal;
        self.incoming.insert(id, Incoming { buffer: Vec::new(), group: None, ordinal });
    }

    /// Streams that may hold something that was not read.
    pub(super) fn unread(&self) -> Vec<StreamId> {
        self.incoming.keys().copied().collect()
    }

    pub(super) fn on_readable(&mut self, wire: &mut Wire, id: StreamId, now: Instant) {
        if self.incoming.contains_key(&id) {
            if self.reading {
                self.read_uni(wire, id, now);
            }
        } else if let Some(asked) = self.asked.get_mut(&id) {
            asked.end = wire.read(id, &mut asked.buffer);
            if asked.info.is_none() {
                asked.ordinal = self.ordinal;
            }
            if let Ok((body, _)) = message(&asked.buffer, MESSAGE_MAX) {
                let info = TrackInfo::decode(body, self.version);
                asked.info = Some(info.expect("the relay's answer is well formed"));
            }
        } else if self.announce.as_ref().is_some_and(|(held, ..)| *held == id) {
            self.read_announcements(wire, id);
        } else if let Some(place) = self.subs.iter().position(|sub| sub.stream == id) {
            self.read_responses(wire, place, now);
        }
    }

    fn read_responses(&mut self, wire: &mut Wire, place: usize, now: Instant) {
        let sub = &mut self.subs[place];
        let end = wire.read(sub.stream, &mut sub.buffer);
        loop {
            match Response::decode(&sub.buffer, self.version, MESSAGE_MAX) {
                Ok((response, used)) => {
                    sub.buffer.drain(..used);
                    let said = match response {
                        Response::Start { group } => Said::Start(group),
                        Response::End { group } => Said::End(group),
                        Response::Drop { .. } => panic!("DROP is never sent"),
                    };
                    sub.said.push((said, now));
                }
                Err(DecodeError::Short) => break,
                Err(error) => panic!("a response that cannot be read: {error:?}"),
            }
        }
        match end {
            End::Open => {}
            End::Fin => {
                assert!(sub.buffer.is_empty(), "an answer ended inside a message");
                sub.said.push((Said::Fin, now));
            }
            End::Reset(code) => sub.said.push((Said::Reset(code), now)),
        }
    }

    fn read_announcements(&mut self, wire: &mut Wire, id: StreamId) {
        let Some((_, buffer, ready)) = &mut self.announce else { return };
        wire.read(id, buffer);
        if !*ready {
            let Ok((body, used)) = message(buffer, MESSAGE_MAX) else { return };
            AnnounceOk::decode(body).expect("the relay's answer is well formed");
            buffer.drain(..used);
            *ready = true;
        }
        while let Ok((announce, used)) = Announce::decode(buffer, self.version, MESSAGE_MAX) {
            buffer.drain(..used);
            match announce {
                Announce::Start { suffix, .. } => {
                    let path = suffix.as_str().to_owned();
                    assert!(self.announced.insert(path.clone()), "{path} was announced twice");
                    self.by_id.insert(self.next_id, path);
                    self.next_id += 1;
                }
                Announce::End { id } => {
                    let path = self.by_id.remove(&id).expect("an id that was announced");
                    assert!(self.announced.remove(&path), "{path} ended twice");
                }
                Announce::Update { id, .. } => {
                    assert!(self.by_id.contains_key(&id), "an update of an unknown id");
                }
                Announce::Active { suffix, .. } => {
                    self.announced.insert(suffix.as_str().to_owned());
                }
                Announce::Ended { suffix } => {
                    let known = self.announced.remove(suffix.as_str());
                    assert!(known, "{suffix} ended without a beginning");
                }
                Announce::Unknown => panic!("an announcement of unknown type"),
            }
        }
    }

    fn read_uni(&mut self, wire: &mut Wire, id: StreamId, now: Instant) {
        let Some(mut stream) = self.incoming.remove(&id) else { return };
        let end = wire.read(id, &mut stream.buffer);
        if stream.group.is_none() && !self.read_head(&mut stream, id, now) {
            match end {
                End::Open => {
                    self.incoming.insert(id, stream);
                }
                End::Reset(_) => self.headless += 1,
                // SETUP leaves the table this way.
                End::Fin => assert!(self.setup_seen, "a stream ended inside its header"),
            }
            return;
        }
        let (sub, seq) = stream.group.expect("just read");
        self.read_frames(&mut stream, (sub, seq), now);
        let group = self.subs[sub].groups.get_mut(&seq).expect("entered with its header");
        group.end = end;
        match end {
            End::Open => {
                self.incoming.insert(id, stream);
            }
            // The relay must never end a stream inside a frame.
            End::Fin => assert!(stream.buffer.is_empty(), "group {seq} ended inside a frame"),
            End::Reset(_) => {}
        }
    }

    /// Reads type and header; false while they are not there, or when it is SETUP.
    fn read_head(&mut self, stream: &mut Incoming, id: StreamId, now: Instant) -> bool {
        let mut reader = Reader::new(&stream.buffer);
        let Ok(kind) = reader.varint() else { return false };
        let after = reader.position();
        if kind == kind::UNI_SETUP {
            self.setup_seen = true;
            return false;
        }
        assert_eq!(kind, kind::UNI_GROUP, "a stream of unknown type");
        let (head, used) = match GroupHeader::decode(&stream.buffer[after..], self.version) {
            Ok(found) => found,
            Err(DecodeError::Short) => return false,
            Err(error) => panic!("a group header that cannot be read: {error:?}"),
        };
        stream.buffer.drain(..after + used);
        let sub = usize::try_from(head.subscribe).expect("small");
        let seq = head.sequence;
        self.first_seen.insert(id, stream.ordinal);
        let held = &mut self.subs[sub];
        held.order.push(seq);
        let received = Received {
            frame_start: head.frame_start,
            frames: 0,
            rest: 0,
            source: None,
            first: None,
            last: 0,
            end: End::Open,
            opened: now,
            at: now,
        };
        let twice = held.groups.insert(seq, received);
        assert!(twice.is_none(), "group {seq} came twice on one subscription");
        stream.group = Some((sub, seq));
        true
    }

    fn read_frames(&mut self, stream: &mut Incoming, (sub, seq): (usize, u64), now: Instant) {
        let held = &mut self.subs[sub];
        let tag = tag(&held.broadcast, &held.track);
        let group = held.groups.get_mut(&seq).expect("entered with its header");
        let mut used = 0;
        loop {
            let rest = &stream.buffer[used..];
            let (head, len) = match FrameHeader::decode(rest) {
                Ok(found) => found,
                Err(DecodeError::Short) => break,
                Err(error) => panic!("a frame header that cannot be read: {error:?}"),
            };
            let before = i64::try_from(group.last).expect("small");
            let before = if group.frames == 0 { 0 } else { before };
            let timestamp = u64::try_from(before + head.delta).expect("no time before zero");
            let size = usize::try_from(head.size).expect("small");
            let content = &rest[len..rest.len().min(len + size)];
            if let Some(source) = content.first() {
                let source = *group.source.get_or_insert(*source);
                let number = group.frame_start + group.frames;
                let frame = Frame { source, tag, seq, number, timestamp };
                let right = frame.begins(content, &mut self.scratch);
                assert!(right, "group {seq} frame {number} has other bytes than were sent");
            }
            group.at = now;
            if content.len() < size {
                break;
            }
            used += len + size;
            group.frames += 1;
            group.first.get_or_insert(timestamp);
            group.last = timestamp;
        }
        stream.buffer.drain(..used);
        group.rest = stream.buffer.len();
    }

    /// A code as it is on the wire, plain.
    pub(super) fn plain(wire: u64) -> u64 {
        code::unmap(wire)
    }
}
