//! One peer's protocol machine: what it asked of us, what we asked of it, and the streams between.
//!
//! ```text
//! Setup --SETUP--> Pending --grant--> Open --violation, refusal, close--> Closing
//! ```
//! Inputs are the `on_*` functions and `flush`; outputs are bytes through [`Streams`], changes in
//! the [`Model`], and [`Event`]s for the shard. Messages of any version become the same
//! [`Request`]s at the dialect's edge (`lite`). Invariant: everything a peer makes us keep is in a
//! table of this struct with a bound in `Limits`, and goes with the session.

pub mod announce;
pub mod egress;
mod flows;
pub mod image;
pub mod ingress;
pub mod lite;
mod media;
pub mod request;
pub mod setup;
pub mod streams;
pub mod upstream;

use std::collections::{BTreeMap, BinaryHeap};

use bytes::Bytes;
use rustc_hash::FxHashMap;

use self::announce::{Heard, Telling};
use self::egress::Work;
use self::flows::Flows;
use self::ingress::GroupIn;
use self::request::Asked;
use self::streams::{Dir, StreamId, Streams};
use self::upstream::Upstream;
use crate::config::Limits;
use crate::model::cursor::Range;
use crate::model::flight::Hold;
use crate::model::{Ended, Model, PeerKey, ReaderKey, TrackKey};
use crate::name::{Facts, Grant, Hop, Path, Role, TrackName};
use crate::wire::code::{Scope, Violation, session as close, stream as code};
use crate::wire::version::Version;

/// What a peer asks on a bidirectional stream, in no version's shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Tell me what is published below a path.
    Announce {
        /// Relative to the session's root.
        prefix: Path,
        /// Not what passed this origin; from SETUP where the request carries none.
        exclude: Option<Hop>,
    },
    /// Send me a track.
    Subscribe {
        /// The peer's name for it.
        id: u64,
        /// Relative to the session's root.
        broadcast: Path,
        /// The track.
        track: TrackName,
        /// Which groups, how old, how urgent.
        prefs: Prefs,
    },
    /// Tell me what a track is.
    Track {
        /// Relative to the session's root.
        broadcast: Path,
        /// The track.
        track: TrackName,
    },
    /// Tell me how fast you can send. Read and left unanswered.
    Probe,
    /// I am leaving.
    Goaway,
}

/// Which groups, how old, how urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefs {
    /// `None` starts at the live edge of the moment.
    pub range: Option<Range>,
    /// Budget of age.
    pub max_age_ms: u64,
    /// Larger is more urgent.
    pub priority: u8,
}

/// For the shard.
#[derive(Debug)]
pub enum Event {
    /// Decide what this session may do.
    Ask(Facts),
    /// The peer did wrong; already answered on its stream unless the session closes.
    Violation(Violation),
    /// Close the connection.
    Close {
        /// Session code.
        code: u64,
        /// Short reason phrase.
        reason: &'static str,
    },
}

/// What a session works with during a call.
pub struct Io<'a, S> {
    /// The shard's model.
    pub model: &'a mut Model,
    /// The peer's streams.
    pub streams: &'a mut S,
    /// Filled for the shard.
    pub events: &'a mut Vec<Event>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Setup,
    Pending,
    Open,
    Closing,
}

/// A stream the peer opened.
enum Inbound {
    /// A request is arriving, from its type on.
    Fresh(Vec<u8>),
    /// SETUP is arriving, behind its type.
    Setup(Vec<u8>),
    /// A unidirectional stream, a group unless its type says otherwise.
    Group(GroupIn),
    /// A request was accepted and lives on its stream.
    Asked(Asked),
    /// Nothing on it matters any more.
    Done,
}

/// A bidirectional stream we opened.
enum Outbound {
    /// What the peer publishes.
    Announce,
    /// A track's content.
    Subscribe { track: TrackKey, buffer: Vec<u8> },
    /// A track's info.
    Track { track: TrackKey, buffer: Vec<u8> },
}

/// Control bytes a stream did not take yet.
#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    fin: bool,
}

/// What does not change during a session, and its limits.
pub struct Terms {
    /// This relay's origin id.
    pub hop: Hop,
    /// Bounds.
    pub limits: Limits,
}

/// One peer's session.
pub struct Session {
    key: PeerKey,
    version: Version,
    terms: std::rc::Rc<Terms>,
    state: State,
    grant: Option<Grant>,
    role: Option<Role>,
    link_cost: u64,
    peer_hop: Hop,
    setup_seen: bool,
    goaway: bool,
    inbound: FxHashMap<StreamId, Inbound>,
    groups_in: usize,
    held: Vec<StreamId>,
    outbound: FxHashMap<StreamId, Outbound>,
    outboxes: BTreeMap<StreamId, Outbox>,
    telling: BTreeMap<StreamId, Telling>,
    /// Some of what `telling` should say waits for a later turn.
    untold: bool,
    /// Nothing of its own waits for a turn; cleared by whatever leaves something.
    calm: bool,
    heard: Heard,
    upstreams: FxHashMap<TrackKey, Upstream>,
    subs: FxHashMap<u64, TrackKey>,
    next_sub: u64,
    stalled_demand: Vec<TrackKey>,
    flows: Flows,
    leftovers: Vec<(u32, Bytes)>,
    spare: Option<StreamId>,
    parked: Vec<ReaderKey>,
    work: BinaryHeap<(i32, Work)>,
    scratch: Vec<u8>,
}

impl Session {
    /// A session whose handshake is done and whose SETUP is awaited.
    pub fn new(key: PeerKey, version: Version, terms: std::rc::Rc<Terms>) -> Self {
        Self {
            key,
            version,
            terms,
            state: State::Setup,
            grant: None,
            role: None,
            link_cost: 1,
            peer_hop: Hop(0),
            setup_seen: false,
            goaway: false,
            inbound: FxHashMap::default(),
            groups_in: 0,
            held: Vec::new(),
            outbound: FxHashMap::default(),
            outboxes: BTreeMap::new(),
            telling: BTreeMap::new(),
            untold: false,
            calm: false,
            heard: Heard::default(),
            upstreams: FxHashMap::default(),
            subs: FxHashMap::default(),
            next_sub: 0,
            stalled_demand: Vec::new(),
            flows: Flows::default(),
            leftovers: Vec::new(),
            spare: None,
            parked: Vec::new(),
            work: BinaryHeap::new(),
            scratch: Vec::new(),
        }
    }

    /// The model's name for this peer.
    pub fn key(&self) -> PeerKey {
        self.key
    }

    /// True once the peer's SETUP came and a grant answered it.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// The peer opened streams of a kind.
    pub fn on_opened<S: Streams>(&mut self, io: &mut Io<'_, S>, dir: Dir) {
        while self.state != State::Closing
            && let Some(id) = io.streams.accept(dir)
        {
            io.streams.accommodate(dir, self.inbound.len() + 1);
            let full = self.inbound.len() - self.groups_in >= self.terms.limits.session_requests;
            if dir == Dir::Bi && full {
                io.model.limit_hits.hit("session_requests");
                self.violate(io, id, Violation::TooManyRequests);
                continue;
            }
            if dir == Dir::Bi {
                io.streams.prioritize(id, streams::CONTROL_PRIORITY);
            }
            let fresh = match dir {
                Dir::Bi => Inbound::Fresh(Vec::new()),
                Dir::Uni => Inbound::Group(GroupIn::default()),
            };
            if dir == Dir::Uni && self.groups_in >= self.terms.limits.session_groups_in {
                io.model.limit_hits.hit("session_groups_in");
                io.streams.stop(id, code::TOO_FAR_BEHIND);
                continue;
            }
            self.groups_in += usize::from(dir == Dir::Uni);
            self.inbound.insert(id, fresh);
            self.on_readable(io, id);
        }
    }

    /// A stream has something to read.
    pub fn on_readable<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        if self.state == State::Closing {
            return;
        }
        if id.is_uni() {
            self.read_group(io, id);
            return;
        }
        if self.outbound.contains_key(&id) {
            self.read_answer(io, id);
            return;
        }
        match self.inbound.get(&id) {
            Some(Inbound::Fresh(_)) if self.state != State::Open => self.hold(io, id),
            Some(_) => self.read_request(io, id),
            None => {}
        }
    }

    /// Keeps a request unread until the grant comes.
    fn hold<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        if self.held.contains(&id) {
            return;
        }
        if self.held.len() >= self.terms.limits.session_pending {
            io.model.limit_hits.hit("session_pending");
            self.violate(io, id, Violation::TooManyRequests);
            return;
        }
        self.held.push(id);
    }

    /// A stream takes bytes again.
    pub fn on_writable<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        if self.outboxes.contains_key(&id) {
            io.model.touch(self.key);
        } else if self.spare == Some(id) {
            self.unpark(io.model);
        } else if let Some(Hold::Cursor(cursor)) = self.flows.get(id) {
            Self::requeue(io.model, self.key, cursor);
        }
    }

    /// The peer grants more streams.
    pub fn on_available<S: Streams>(&mut self, io: &mut Io<'_, S>, dir: Dir) {
        match dir {
            Dir::Uni => self.unpark(io.model),
            Dir::Bi => io.model.touch(self.key),
        }
    }

    /// Everything on a stream of ours was acknowledged.
    pub fn on_finished<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        if let Some(hold) = self.flows.remove(id) {
            match hold {
                Hold::Flight(flight) => io.model.land(self.key, flight),
                Hold::Cursor(cursor) => io.model.detach(cursor),
            }
            if !self.parked.is_empty() {
                self.unpark(io.model);
            }
        }
    }

    /// The peer does not want a stream of ours any more.
    pub fn on_stopped<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId) {
        if let Some(hold) = self.flows.get(id) {
            self.break_off(io, id, hold, Ended::Code(code::CANCELLED));
        } else if self.spare == Some(id) {
            io.streams.reset(id, code::CANCELLED);
            self.spare = None;
            self.unpark(io.model);
        } else if let Some(Outbound::Announce) = self.outbound.get(&id) {
            // Our request half is only asked to be quiet; the answer goes on.
        } else if self.inbound.contains_key(&id) {
            io.streams.stop(id, code::INTERNAL);
            self.leave_request(io, id, Some(code::CANCELLED));
        }
    }

    /// The connection is gone. `code` is what the peer's own tracks end with for their viewers.
    pub fn on_closed(&mut self, model: &mut Model, code: u64) {
        self.state = State::Closing;
        for (_, hold) in std::mem::take(&mut self.flows).iter() {
            match hold {
                Hold::Flight(flight) => model.land(self.key, flight),
                Hold::Cursor(cursor) => model.detach(cursor),
            }
        }
        let mut inbound: Vec<(StreamId, Inbound)> = self.inbound.drain().collect();
        inbound.sort_unstable_by_key(|(id, _)| *id);
        for (_, inbound) in inbound {
            if let Inbound::Asked(asked) = inbound {
                asked.release(model, self.key);
            }
        }
        model.unwatch(self.key);
        model.close_peer(self.key, code);
    }

    /// Answers a violation on its stream, or has the session closed.
    fn violate<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId, violation: Violation) {
        io.events.push(Event::Violation(violation));
        match violation.scope() {
            Scope::Session => self.close(io, violation.code(), violation.as_str()),
            Scope::Stream if id.is_uni() => {
                let unknown = violation == Violation::UnknownStream;
                let code = if unknown { code::INTERNAL } else { violation.code() };
                io.streams.stop(id, code);
                self.forget_uni(id);
            }
            Scope::Stream => self.refuse(io, id, violation.code()),
        }
    }

    /// Takes a unidirectional stream of the peer out of the tables.
    fn forget_uni(&mut self, id: StreamId) {
        if self.inbound.remove(&id).is_some() {
            self.groups_in -= 1;
        }
    }

    /// Refuses a request: our half is reset with `code`, the peer's half stopped.
    fn refuse<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId, code: u64) {
        io.streams.reset(id, code);
        io.streams.stop(id, code::INTERNAL);
        self.outboxes.remove(&id);
        if self.telling.contains_key(&id) {
            self.stop_telling(io.model, id);
        }
        if let Some(Inbound::Asked(asked)) = self.inbound.remove(&id) {
            asked.release(io.model, self.key);
        }
    }

    fn close<S: Streams>(&mut self, io: &mut Io<'_, S>, code: u64, reason: &'static str) {
        if self.state != State::Closing {
            self.state = State::Closing;
            self.calm = false;
            io.events.push(Event::Close { code, reason });
        }
    }

    /// Sends control bytes on a stream, keeping what it does not take.
    fn say<S: Streams>(&mut self, io: &mut Io<'_, S>, id: StreamId, bytes: &[u8], fin: bool) {
        if let Some(outbox) = self.outboxes.get_mut(&id) {
            outbox.bytes.extend_from_slice(bytes);
            outbox.fin |= fin;
            if outbox.bytes.len() > self.terms.limits.session_control_bytes {
                io.model.limit_hits.hit("session_control_bytes");
                io.events.push(Event::Violation(Violation::ControlBacklog));
                self.close(io, close::CONTROL_TIMEOUT, Violation::ControlBacklog.as_str());
            }
            return;
        }
        let taken = io.streams.write_control(id, bytes);
        if taken < bytes.len() {
            self.calm = false;
            self.outboxes.insert(id, Outbox { bytes: bytes[taken..].to_vec(), fin });
        } else if fin {
            io.streams.finish(id);
        }
    }

    /// Retries control bytes that were refused.
    fn flush_outboxes<S: Streams>(&mut self, io: &mut Io<'_, S>) {
        self.outboxes.retain(|id, outbox| {
            let taken = io.streams.write_control(*id, &outbox.bytes);
            outbox.bytes.drain(..taken);
            if outbox.bytes.is_empty() && outbox.fin {
                io.streams.finish(*id);
            }
            !outbox.bytes.is_empty()
        });
    }
}
