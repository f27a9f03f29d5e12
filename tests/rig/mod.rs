//! Two arrangements to measure with: `Rig`, our own layers over fake streams and nothing below
//! them, and `Whole`, a shard with quinn-proto on both sides. Used by `tests/allocs.rs` and
//! `benches/icount.rs`.
//!
//! One publisher, some viewers of one track. In a rig the sessions are driven as `shard/turn.rs`
//! drives them: what arrived is handed to its session, the model settles, every dirty session
//! flushes. A viewer acknowledges a stream in the round after it ended.

mod fake;
mod script;
#[path = "../it/sim/tls.rs"]
mod tls;
mod whole;

use std::rc::Rc;

use corelay::config::Limits;
use corelay::model::Model;
use corelay::name::{Grant, Hop, Path, Role};
use corelay::session::streams::{Dir, StreamId};
use corelay::session::{Event, Io, Session, Terms};

use self::fake::Fake;
pub(crate) use self::script::Shape;
use self::script::{Arrival, NEVER, Script, VERSION};
pub(crate) use self::whole::Whole;

/// Streams of the relay to its publisher, in the order it opens them: announcements, TRACK.
const ANNOUNCEMENTS: StreamId = StreamId(1);
const INFO: StreamId = StreamId(5);

/// One peer and its session.
struct Seat {
    session: Session,
    streams: Fake,
}

impl Seat {
    fn tell<T>(
        &mut self,
        (model, events): (&mut Model, &mut Vec<Event>),
        act: impl FnOnce(&mut Session, &mut Io<'_, Fake>) -> T,
    ) -> T {
        let mut io = Io { model, streams: &mut self.streams, events };
        act(&mut self.session, &mut io)
    }

    /// The peer sends on `id`, which it opened if `fresh`.
    fn hear(
        &mut self,
        shard: (&mut Model, &mut Vec<Event>),
        (id, fresh, fin): (StreamId, bool, bool),
        bytes: Vec<u8>,
    ) -> Vec<u8> {
        self.streams.arrive(id, fresh, bytes, fin);
        self.tell(shard, |session, io| match fresh {
            true => session.on_opened(io, if id.is_uni() { Dir::Uni } else { Dir::Bi }),
            false => session.on_readable(io, id),
        });
        self.streams.arrived()
    }

    fn join(&mut self, (model, events): (&mut Model, &mut Vec<Event>), role: Role) {
        self.hear((&mut *model, &mut *events), (StreamId(2), true, true), script::setup(role));
        assert!(matches!(events.pop(), Some(Event::Ask(_))), "SETUP asks for a grant");
        let publish = role == Role::Publisher;
        let grant = Grant { root: Path::default(), publish, subscribe: !publish };
        self.tell((model, events), |session, io| session.on_grant(io, grant));
    }
}

/// Sessions, a model, and nothing else.
pub(crate) struct Rig {
    model: Model,
    publisher: Seat,
    viewers: Vec<Seat>,
    events: Vec<Event>,
    /// Places of those whose streams ended in this round.
    ended: Vec<usize>,
    shape: Shape,
    script: Script,
    arrivals: Vec<Arrival>,
    now_us: u64,
}

impl Rig {
    /// Everybody joined and subscribed; nothing was sent yet.
    pub(crate) fn new(shape: Shape) -> Self {
        let limits = Limits::default();
        let mut model = Model::new(&limits);
        let terms = Rc::new(Terms { hop: Hop(7), limits });
        let seat = |model: &mut Model, slot: usize| {
            let key = model.open_peer().expect("room for a peer");
            assert_eq!(key.index() as usize, slot, "slots are given in order");
            let session = Session::new(key, VERSION, Rc::clone(&terms));
            Seat { session, streams: Fake::default() }
        };
        let publisher = seat(&mut model, 0);
        let viewers = (1..=shape.viewers.max(1)).map(|slot| seat(&mut model, slot)).collect();
        let mut rig = Self {
            model,
            publisher,
            viewers,
            events: Vec::new(),
            ended: Vec::new(),
            shape,
            script: Script::new(shape),
            arrivals: Vec::new(),
            now_us: 1_000_000,
        };
        rig.meet();
        rig
    }

    fn meet(&mut self) {
        let Self { model, events, .. } = self;
        self.publisher.join((&mut *model, &mut *events), Role::Publisher);
        let answer = (ANNOUNCEMENTS, false, false);
        self.publisher.hear((&mut *model, &mut *events), answer, script::announcement());
        let start = if self.shape.viewers == 0 { NEVER } else { 0 };
        for (id, viewer) in self.viewers.iter_mut().enumerate() {
            viewer.join((&mut *model, &mut *events), Role::Subscriber);
            let request = (StreamId(0), true, false);
            let subscribe = script::subscribe(id as u64, start);
            viewer.hear((&mut *model, &mut *events), request, subscribe);
        }
        self.rest();
        let Self { model, events, .. } = self;
        self.publisher.hear((model, events), (INFO, false, false), script::info());
        self.rest();
        assert!(self.events.is_empty(), "nobody did wrong: {:?}", self.events);
        // SETUP went out on a stream of its own, which is not media.
        self.viewers.iter_mut().for_each(|viewer| viewer.streams.ends = 0);
    }

    /// Turns until nobody is dirty.
    fn rest(&mut self) {
        while self.model.has_dirty() {
            self.flush();
        }
    }

    /// Writes the next `groups` groups down, to be sent by `play`.
    pub(crate) fn write(&mut self, groups: u64) {
        self.arrivals = self.script.write(groups);
    }

    /// Sends what was written, an arrival a round.
    pub(crate) fn play(&mut self) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for arrival in &mut arrivals {
            self.round(arrival);
        }
        self.arrivals = arrivals;
    }

    fn round(&mut self, arrival: &mut Arrival) {
        self.now_us += arrival.after_us;
        self.model.tick(self.now_us);
        self.acknowledge();
        let Self { model, events, .. } = self;
        // The publisher's first stream was its SETUP.
        let id = StreamId((arrival.group + 1) << 2 | 2);
        let bytes = std::mem::take(&mut arrival.bytes);
        let way = (id, arrival.first, arrival.last);
        arrival.bytes = self.publisher.hear((model, events), way, bytes);
        self.flush();
    }

    /// What follows in a turn when everything was read.
    fn flush(&mut self) {
        self.model.settle();
        while let Some(due) = self.model.pop_dirty() {
            // The publisher has the first slot, and each viewer the one behind its place.
            let place = (due.key.index() as usize).wrapping_sub(1);
            let seat = match self.viewers.get_mut(place) {
                Some(viewer) => viewer,
                None => &mut self.publisher,
            };
            let shard = (&mut self.model, &mut self.events);
            let flushed = seat.tell(shard, |session, io| session.flush(io, due));
            self.model.counters.bytes_out += flushed.bytes as u64;
            if !seat.streams.finished.is_empty() {
                self.ended.push(place);
            }
        }
    }

    /// Viewers acknowledge what ended in the round before.
    fn acknowledge(&mut self) {
        while let Some(place) = self.ended.pop() {
            let Some(seat) = self.viewers.get_mut(place) else { continue };
            while let Some(id) = seat.streams.finished.pop() {
                let shard = (&mut self.model, &mut self.events);
                seat.tell(shard, |session, io| session.on_finished(io, id));
            }
        }
    }

    /// Checks that everybody got all of it, ended and unbroken, and that the cache cycles.
    pub(crate) fn check(self) {
        assert!(self.events.is_empty(), "nobody did wrong: {:?}", self.events);
        let Script { frames, groups, bytes, .. } = self.script;
        let counters = &self.model.counters;
        assert_eq!((counters.frames_in, counters.groups_in), (frames, groups));
        let served = u64::from(self.shape.viewers > 0);
        for (id, seat) in self.viewers.iter().enumerate() {
            let bytes = bytes + groups * script::longer(id as u64);
            assert_eq!(seat.streams.taken, bytes * served, "bytes that a viewer got");
            assert_eq!((seat.streams.ends, seat.streams.breaks), (groups * served, 0));
        }
        let kept = self.model.usage().groups as u64;
        assert_eq!(kept + counters.groups_evicted_age, groups, "groups go by age alone");
        assert!(kept * 2 < groups, "the cache cycles");
        assert!(self.model.arena.stats.reused > 0, "blocks are used again");
    }
}
