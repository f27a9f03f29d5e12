//! Garbage on every kind of stream: it costs its stream or its session, leaves nothing behind, and
//! nobody else notices.

use corelay::config::Limits;
use corelay::model::Usage;
use corelay::name::{Cost, Hop, Hops, Role, TrackName};
use corelay::session::streams::{Dir, ReadEnd};
use corelay::wire::lite::announce::{Announce, AnnounceOk, AnnounceRequest};
use corelay::wire::lite::data::{FrameHeader, GroupHeader};
use corelay::wire::lite::subscribe::{Preferences, Response, Subscribe, Track, TrackInfo};
use corelay::wire::lite::{Setup, kind};
use corelay::wire::put_varint;
use corelay::wire::version::Version::{self, Lite05, Lite06};

use super::client::Spec;
use super::fake::{Sessions, announce, describe};
use super::publisher::Rate;
use super::random::Random;
use super::wire::End;
use super::world::World;
use super::{number, once, oracle};

/// Cases of each kind of stream unless `GARBAGE_CASES` says otherwise.
const CASES: u64 = 10_000;
/// Cases after which everything is compared.
const BATCH: u64 = 250;
/// Cases of each kind over real QUIC.
const QUIC_CASES: u64 = 200;
/// Longest case.
const BYTES_MAX: usize = 64 << 10;

/// A kind of stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Group,
    Setup,
    Announce,
    Subscribe,
    Track,
    Unknown,
}

impl Kind {
    fn dir(self, random: &mut Random) -> Dir {
        match self {
            Self::Group | Self::Setup => Dir::Uni,
            Self::Announce | Self::Subscribe | Self::Track => Dir::Bi,
            Self::Unknown => random.pick(&[Dir::Uni, Dir::Bi]),
        }
    }

    fn number(self, random: &mut Random) -> u64 {
        match self {
            Self::Group => kind::UNI_GROUP,
            Self::Setup => kind::UNI_SETUP,
            Self::Announce => kind::BI_ANNOUNCE,
            Self::Subscribe => kind::BI_SUBSCRIBE,
            Self::Track => kind::BI_TRACK,
            Self::Unknown => {
                let bits = random.below(50);
                7 + random.below(1 << bits)
            }
        }
    }
}

/// Makes cases.
struct Maker {
    random: Random,
    pool: Vec<u8>,
}

impl Maker {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6a5b);
        let mut pool = Vec::new();
        while pool.len() < 2 * BYTES_MAX {
            pool.extend_from_slice(&random.bytes());
        }
        Self { random, pool }
    }

    /// Random bytes, more often few.
    fn noise(&mut self, out: &mut Vec<u8>) {
        let most = 1 << self.random.below(17);
        let room = BYTES_MAX.saturating_sub(out.len());
        let len = usize::try_from(self.random.below(most)).expect("small").min(room);
        let at = usize::try_from(self.random.below(BYTES_MAX as u64)).expect("small");
        out.extend_from_slice(&self.pool[at..at + len]);
    }

    /// A whole stream that is right.
    fn right(&mut self, which: Kind, version: Version, out: &mut Vec<u8>) {
        let broadcast = Sessions::path(self.random.pick(&["room/a", "room", "junk/x", "", "no"]));
        let track = TrackName::new(self.random.pick(&["video", "t", "", "other"]));
        match which {
            Kind::Group => self.group(version, out),
            Kind::Setup => Setup { probe: 1, hop: Some(Hop(5)), ..Setup::default() }.encode(out),
            Kind::Announce => {
                let exclude_hop = Hop(self.random.below(100));
                AnnounceRequest { prefix: broadcast, exclude_hop }.encode(version, out);
            }
            Kind::Subscribe => {
                let prefs = Preferences {
                    max_age_ms: self.random.below(10_000),
                    start: Some(self.random.below(10)),
                    end: Some(self.random.below(20)),
                    frame_start: self.random.below(3),
                    ..Preferences::default()
                };
                let id = self.random.below(4);
                Subscribe { id, broadcast, track, prefs }.encode(version, out);
                prefs.encode_update(version, out);
            }
            Kind::Track => Track { broadcast, track }.encode(out),
            Kind::Unknown => self.noise(out),
        }
    }

    fn group(&mut self, version: Version, out: &mut Vec<u8>) {
        let mut head = [0; 26];
        let (subscribe, sequence) = (self.random.below(2), self.random.below(2000));
        let header = GroupHeader { subscribe, sequence, frame_start: 0 };
        let len = header.encode_into(version, &mut head);
        out.extend_from_slice(&head[1..len]);
        for _ in 0..self.random.below(20) {
            let size = self.random.below(300);
            let delta = i64::try_from(self.random.below(3000)).expect("small") - 500;
            let mut head = [0; 16];
            let len = FrameHeader { delta, size }.encode_into(&mut head);
            out.extend_from_slice(&head[..len]);
            out.resize(out.len() + usize::try_from(size).expect("small"), 7);
        }
    }

    /// The bytes of a stream, from its type on.
    fn case(&mut self, which: Kind, version: Version) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, which.number(&mut self.random));
        let mut right = Vec::new();
        self.right(which, version, &mut right);
        self.spoil(right, &mut out);
        out
    }

    /// The bytes of an answer.
    fn answer(&mut self, asked: u64, version: Version) -> Vec<u8> {
        let mut right = Vec::new();
        match asked {
            kind::BI_ANNOUNCE => self.announcements(version, &mut right),
            kind::BI_SUBSCRIBE => {
                let group = self.random.below(9);
                Response::Start { group }.encode(&mut right);
                Response::End { group: group + self.random.below(3) }.encode(&mut right);
            }
            _ => {
                let (max_age_ms, timescale) = (self.random.below(9999), self.random.below(1001));
                TrackInfo { priority: 3, max_age_ms, timescale }.encode(version, &mut right);
            }
        }
        let mut out = Vec::new();
        self.spoil(right, &mut out);
        out
    }

    fn announcements(&mut self, version: Version, out: &mut Vec<u8>) {
        AnnounceOk { hop: Hop(self.random.below(9)), active: 1 }.encode(out);
        for _ in 0..self.random.below(9) {
            let suffix = Sessions::path(self.random.pick(&["a", "b/c", "room/a/b", ".x", ""]));
            let hops: Hops = (0..self.random.below(4)).map(|_| self.random.below(90)).collect();
            let (id, cost) = (self.random.below(9), Cost::default());
            let announce = match (version, self.random.below(3)) {
                (Lite06, 0) => Announce::End { id },
                (Lite06, 1) => Announce::Update { id, hops, cost },
                (Lite06, _) => Announce::Start { suffix, hops, cost },
                (Lite05, 0) => Announce::Ended { suffix },
                (Lite05, _) => Announce::Active { suffix, hops },
            };
            announce.encode(version, out);
        }
    }

    /// Appends noise, or `right` and what makes it wrong.
    fn spoil(&mut self, mut right: Vec<u8>, out: &mut Vec<u8>) {
        match self.random.below(6) {
            0 => self.noise(out),
            1 => {
                let len = self.random.below(right.len() as u64 + 1);
                right.truncate(usize::try_from(len).expect("small"));
                out.append(&mut right);
            }
            2 if !right.is_empty() => {
                for _ in 0..1 + self.random.below(4) {
                    let at = usize::try_from(self.random.below(right.len() as u64));
                    right[at.expect("small")] ^= 1 << self.random.below(8);
                }
                out.append(&mut right);
            }
            3 => {
                out.append(&mut right);
                self.noise(out);
            }
            4 => {
                put_varint(out, 1 << self.random.below(62));
                self.noise(out);
            }
            _ => out.append(&mut right),
        }
    }
}

/// A publisher and a viewer beside the garbage, who go on all the while.
struct Bystanders {
    sessions: Sessions,
    publisher: usize,
    viewer: usize,
    next: u64,
}

fn subscribe(sessions: &mut Sessions, place: usize, id: u64, name: (&str, &str)) {
    let (broadcast, track) = (Sessions::path(name.0), TrackName::new(name.1));
    let prefs = Preferences { max_age_ms: 500, ..Preferences::default() };
    let mut bytes = Vec::new();
    put_varint(&mut bytes, kind::BI_SUBSCRIBE);
    Subscribe { id, broadcast, track, prefs }.encode(Lite06, &mut bytes);
    sessions.say(place, Dir::Bi, &bytes, ReadEnd::Blocked);
    sessions.settle();
}

impl Bystanders {
    fn new() -> Self {
        let mut sessions = Sessions::new(&Limits::default());
        let publisher = sessions.greet(Lite06);
        let viewer = sessions.greet(Lite06);
        announce(&mut sessions, publisher, Lite06, "room/a");
        subscribe(&mut sessions, viewer, 0, ("room/a", "video"));
        describe(&mut sessions, publisher, Lite06);
        Self { sessions, publisher, viewer, next: 0 }
    }

    /// Sends a group and sees that it comes, whole and alone.
    fn check(&mut self) {
        let mut head = [0; 26];
        let header = GroupHeader { subscribe: 0, sequence: self.next, frame_start: 0 };
        let len = header.encode_into(Lite06, &mut head);
        let mut bytes = head[..len].to_vec();
        let mut frame = [0; 16];
        let delta = i64::try_from(self.next * 10_000).expect("small");
        let len = FrameHeader { delta, size: 700 }.encode_into(&mut frame);
        bytes.extend_from_slice(&frame[..len]);
        bytes.resize(bytes.len() + 700, u8::try_from(self.next % 251).expect("small"));
        self.next += 1;
        let sessions = &mut self.sessions;
        let seen = |sessions: &Sessions, viewer: usize| {
            let written = &sessions.peers[&viewer].fake.written;
            written.values().filter(|held| **held == bytes).count()
        };
        let before = seen(sessions, self.viewer);
        sessions.say(self.publisher, Dir::Uni, &bytes, ReadEnd::Fin);
        sessions.settle();
        assert_eq!(seen(sessions, self.viewer), before + 1, "the bystander's group came");
        let fake = &mut sessions.peers.get_mut(&self.viewer).expect("it lives").fake;
        fake.written.clear();
        fake.resets.clear();
    }

    /// Slots and charges, without the blocks, whose filling depends on what else was in them.
    fn usage(&self) -> Usage {
        let usage = self.sessions.model.usage();
        assert!(usage.leased <= 256 << 10, "{} B are leased", usage.leased);
        Usage { leased: 0, ..usage }
    }

    /// A peer that sends garbage: one in its first stream, or one that publishes what the bystander
    /// watches, so that its groups go all the way.
    fn offender(&mut self, version: Version, fresh: bool) -> usize {
        if fresh {
            return self.sessions.open(version);
        }
        let place = self.sessions.greet(version);
        self.sessions.settle();
        announce(&mut self.sessions, place, version, "junk/x");
        subscribe(&mut self.sessions, self.viewer, 1, ("junk/x", "t"));
        describe(&mut self.sessions, place, version);
        place
    }
}

fn garbage(name: &'static str, which: Kind) {
    once(name, |seed| {
        let cases = number("GARBAGE_CASES").unwrap_or(CASES);
        let mut maker = Maker::new(seed ^ which as u64);
        let mut world = Bystanders::new();
        for _ in 0..3 {
            world.check();
        }
        world.sessions.pass(10_000);
        let before = world.usage();
        let mut violations = 0;
        for _ in 0..cases.div_ceil(BATCH) {
            batch(&mut world, &mut maker, which);
            violations += std::mem::take(&mut world.sessions.violations);
            world.sessions.pass(10_000);
            world.check();
            world.sessions.pass(10_000);
            assert_eq!(world.usage(), before);
            assert_eq!(world.sessions.model.arena.pinned(), 0);
        }
        assert!(violations > cases / 10, "{violations} of {cases} cases were noticed as wrong");
    });
}

fn batch(world: &mut Bystanders, maker: &mut Maker, which: Kind) {
    let version = maker.random.pick(&[Lite05, Lite06]);
    let first = which == Kind::Setup && maker.random.chance(500);
    let mut place = world.offender(version, first);
    for _ in 0..BATCH {
        if !world.sessions.peers.contains_key(&place) || first {
            world.sessions.close(place);
            place = world.offender(version, first || maker.random.chance(50));
        }
        let bytes = maker.case(which, version);
        let dir = which.dir(&mut maker.random);
        let cut = maker.random.below(bytes.len() as u64 + 1);
        let (head, tail) = bytes.split_at(usize::try_from(cut).expect("small"));
        let id = world.sessions.say(place, dir, head, ReadEnd::Blocked);
        if maker.random.chance(500) {
            world.sessions.settle();
        }
        let end =
            maker.random.pick(&[ReadEnd::Fin, ReadEnd::Fin, ReadEnd::Blocked, ReadEnd::Reset(1)]);
        world.sessions.more(place, id, tail, end);
        world.sessions.settle();
        if end == ReadEnd::Blocked {
            world.sessions.more(place, id, &[], ReadEnd::Reset(maker.random.below(100)));
            world.sessions.settle();
        }
    }
    world.sessions.close(place);
    world.sessions.settle();
}

#[test]
fn garbage_for_a_group_costs_only_its_stream() {
    garbage("garbage::garbage_for_a_group_costs_only_its_stream", Kind::Group);
}

#[test]
fn garbage_for_setup_costs_only_its_session() {
    garbage("garbage::garbage_for_setup_costs_only_its_session", Kind::Setup);
}

#[test]
fn garbage_for_an_announce_request_costs_only_its_stream() {
    garbage("garbage::garbage_for_an_announce_request_costs_only_its_stream", Kind::Announce);
}

#[test]
fn garbage_for_a_subscription_costs_only_its_stream() {
    garbage("garbage::garbage_for_a_subscription_costs_only_its_stream", Kind::Subscribe);
}

#[test]
fn garbage_for_a_track_request_costs_only_its_stream() {
    garbage("garbage::garbage_for_a_track_request_costs_only_its_stream", Kind::Track);
}

#[test]
fn garbage_on_streams_of_unknown_type_costs_only_its_stream() {
    garbage("garbage::garbage_on_streams_of_unknown_type_costs_only_its_stream", Kind::Unknown);
}

/// Garbage as an answer to what the relay asked: of a publisher that announced something, or in
/// place of its announcements. Each case has a session of its own.
fn garbage_answer(name: &'static str, asked: u64) {
    once(name, |seed| {
        let cases = number("GARBAGE_CASES").unwrap_or(CASES);
        let mut maker = Maker::new(seed ^ asked << 8);
        let mut world = Bystanders::new();
        for _ in 0..3 {
            world.check();
        }
        world.sessions.pass(10_000);
        let before = world.usage();
        for _ in 0..cases.div_ceil(BATCH) {
            for _ in 0..BATCH {
                answer(&mut world, &mut maker, asked);
            }
            world.sessions.pass(10_000);
            world.check();
            world.sessions.pass(10_000);
            assert_eq!(world.usage(), before);
        }
        let violations = world.sessions.violations;
        assert!(violations > cases / 10, "{violations} of {cases} cases were noticed as wrong");
    });
}

fn answer(world: &mut Bystanders, maker: &mut Maker, asked: u64) {
    let version = maker.random.pick(&[Lite05, Lite06]);
    let place = world.sessions.greet(version);
    world.sessions.settle();
    if asked != kind::BI_ANNOUNCE {
        announce(&mut world.sessions, place, version, "junk/x");
        subscribe(&mut world.sessions, world.viewer, 1, ("junk/x", "t"));
    }
    let stream = world.sessions.asked(place, asked).expect("the relay asks");
    let bytes = maker.answer(asked, version);
    let cut = maker.random.below(bytes.len() as u64 + 1);
    let (head, tail) = bytes.split_at(usize::try_from(cut).expect("small"));
    world.sessions.more(place, stream, head, ReadEnd::Blocked);
    world.sessions.settle();
    let end = maker.random.pick(&[ReadEnd::Fin, ReadEnd::Blocked, ReadEnd::Reset(9)]);
    world.sessions.more(place, stream, tail, end);
    world.sessions.settle();
    world.sessions.close(place);
    world.sessions.settle();
}

#[test]
fn garbage_for_announcements_costs_only_its_session() {
    let name = "garbage::garbage_for_announcements_costs_only_its_session";
    garbage_answer(name, kind::BI_ANNOUNCE);
}

#[test]
fn garbage_as_answer_to_a_subscription_costs_only_its_track() {
    let name = "garbage::garbage_as_answer_to_a_subscription_costs_only_its_track";
    garbage_answer(name, kind::BI_SUBSCRIBE);
}

#[test]
fn garbage_as_answer_to_a_track_request_costs_only_its_track() {
    let name = "garbage::garbage_as_answer_to_a_track_request_costs_only_its_track";
    garbage_answer(name, kind::BI_TRACK);
}

#[test]
fn garbage_over_quic_disturbs_no_bystander() {
    once("garbage::garbage_over_quic_disturbs_no_bystander", over_quic);
}

fn over_quic(seed: u64) {
    let mut world = World::new(seed);
    let mut maker = Maker::new(seed);
    let publisher = world.add(Spec::new(Lite06, Role::Publisher));
    let interval = std::time::Duration::from_millis(40);
    let rate = Rate { interval, frames: 5, bytes: 300, spread: 100 };
    world.at(publisher).publish(("room/a", "video"), 1000, Some(rate));
    let viewer = world.add(Spec::new(Lite06, Role::Subscriber));
    world.connect();
    world.known("room/a");
    let prefs = Preferences { max_age_ms: 1000, ..Preferences::default() };
    let sub = world.at(viewer).subscribe(("room/a", "video"), prefs);
    world.run(1000);
    let kinds =
        [Kind::Group, Kind::Announce, Kind::Subscribe, Kind::Track, Kind::Unknown, Kind::Setup];
    for which in kinds {
        let cases = if which == Kind::Setup { QUIC_CASES / 4 } else { QUIC_CASES };
        let mut place = None;
        for _ in 0..cases {
            let alive = place.filter(|place: &usize| world.clients[*place].lost.is_none());
            let at = alive.unwrap_or_else(|| greeted(&mut world));
            place = Some(at);
            let dir = match which.dir(&mut maker.random) {
                Dir::Uni => quinn_proto::Dir::Uni,
                Dir::Bi => quinn_proto::Dir::Bi,
            };
            let bytes = maker.case(which, Lite06);
            let client = world.at(at);
            if let Some(id) = client.wire.open(dir) {
                client.wire.say(id, &bytes, maker.random.chance(700));
                world.run(10);
                world.at(at).wire.reset(id, 1);
            }
            world.run(2);
        }
        let now = world.now;
        for place in 2..world.clients.len() {
            if world.clients[place].lost.is_none() {
                world.at(place).wire.close(now, 0);
            }
        }
        world.run(4000);
        let usage = world.shard.model().usage();
        let slots = (usage.peers, usage.readers, usage.tracks, usage.broadcasts);
        assert_eq!(slots, (2, 1, 1, 1), "after garbage as {which:?}");
    }
    let held = &world.clients[viewer].sub(sub).groups;
    let last = *held.keys().next_back().expect("groups came");
    let whole = (0..last).all(|seq| held.get(&seq).is_some_and(|group| group.end == End::Fin));
    assert!(whole && last > 100, "the bystander lacks none of {last} groups");
    oracle::content(&world);
    oracle::empty(&mut world);
}

/// A client that said SETUP and is a test's to write for.
fn greeted(world: &mut World) -> usize {
    let place = world.add(Spec::new(Lite06, Role::Subscriber));
    world.at(place).raw = true;
    world.until("connected", 5000, |world| world.clients[place].connected);
    let mut bytes = Vec::new();
    put_varint(&mut bytes, kind::UNI_SETUP);
    Setup::default().encode(&mut bytes);
    let client = world.at(place);
    let id = client.wire.open(quinn_proto::Dir::Uni).expect("streams are granted");
    client.wire.say(id, &bytes, true);
    world.run(50);
    place
}
