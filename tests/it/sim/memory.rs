//! Frame memory under pressure.

use std::time::Duration;

use corelay::config::Limits;
use corelay::name::{Role, TrackName};
use corelay::session::streams::{Dir, ReadEnd};
use corelay::wire::lite::kind;
use corelay::wire::lite::subscribe::{Preferences, Subscribe, Track};
use corelay::wire::put_varint;
use corelay::wire::version::Version::Lite06;

use super::client::Spec;
use super::fake::{Sessions, announce};
use super::link::Terms;
use super::publisher::Rate;
use super::wire::End;
use super::world::World;
use super::{once, oracle};

const NAME: (&str, &str) = ("room/a", "video");

#[test]
fn a_full_arena_gives_up_the_oldest_and_serves_the_edge() {
    once("memory::a_full_arena_gives_up_the_oldest_and_serves_the_edge", |seed| {
        let mut world = World::with(seed, |config| {
            config.limits.arena_bytes = 2 << 20;
            config.limits.group_bytes = 1 << 20;
            config.limits.frame_bytes = 1 << 20;
        });
        let publisher = world.add(Spec::new(Lite06, Role::Publisher));
        let interval = Duration::from_millis(40);
        // A second is 500 kB, of which the arena holds four; the track's age would keep sixty.
        let rate = Rate { interval, frames: 10, bytes: 20_000, spread: 0 };
        world.at(publisher).publish(NAME, 60_000, Some(rate));
        let spec = Spec::new(Lite06, Role::Subscriber);
        let (live, late) = (world.add(spec.clone()), world.add(spec));
        world.connect();
        world.known(NAME.0);
        let prefs = Preferences { max_age_ms: 60_000, ..Preferences::default() };
        let sub = world.at(live).subscribe(NAME, prefs);
        world.run(20_000);
        let before = world.clients[live].sub(sub).newest();
        let cached = world.at(late).subscribe(NAME, prefs);
        world.run(5000);
        assert_eq!(world.clients[live].sub(sub).lacks(0), [0; 0], "who keeps up lacks nothing");
        let held = world.clients[late].sub(cached);
        let first = *held.groups.keys().next().expect("groups came");
        // What is cached goes out behind what is new, and may be given up meanwhile.
        assert!(first + 15 >= before && first <= before, "{first} of {before} came first");
        assert_eq!(held.lacks(before), [0; 0]);
        assert!(world.shard.snapshot().counters.groups_evicted_budget > 20);
        oracle::content(&world);
        oracle::empty(&mut world);
    });
}

#[test]
fn a_viewer_that_holds_too_much_loses_its_oldest_streams() {
    once("memory::a_viewer_that_holds_too_much_loses_its_oldest_streams", |seed| {
        let mut world = World::with(seed, |config| {
            config.limits.session_charge_bytes = 64 << 10;
        });
        let publisher = world.add(Spec::new(Lite06, Role::Publisher));
        let interval = Duration::from_millis(40);
        let rate = Rate { interval, frames: 5, bytes: 5000, spread: 0 };
        world.at(publisher).publish(NAME, 60_000, Some(rate));
        let mut spec = Spec::new(Lite06, Role::Subscriber);
        spec.down = Terms { rate: Some(40_000), queue: 32 << 10, ..Terms::clean(20) };
        let slow = world.add(spec);
        let quick = world.add(Spec::new(Lite06, Role::Subscriber));
        world.connect();
        world.known(NAME.0);
        let prefs = Preferences { max_age_ms: 60_000, ..Preferences::default() };
        let sub = world.at(slow).subscribe(NAME, prefs);
        let beside = world.at(quick).subscribe(NAME, prefs);
        // The bound itself is looked at all the while.
        world.run(20_000);
        let ends = |end| {
            let groups = world.clients[slow].sub(sub).groups.values();
            groups.filter(|group| group.end == end).count()
        };
        assert!(ends(End::Reset(5)) > 10, "streams were reset as too far behind");
        assert_eq!(world.clients[quick].sub(beside).lacks(0), [0; 0]);
        assert!(world.shard.snapshot().counters.groups_out_reset_charge > 10);
        oracle::content(&world);
        oracle::empty(&mut world);
    });
}

#[test]
fn a_large_group_reaches_who_takes_it_as_it_comes() {
    once("memory::a_large_group_reaches_who_takes_it_as_it_comes", |seed| {
        // A stream is charged for its whole group until it ends, acknowledged or not.
        let mut world = World::with(seed, |config| {
            config.limits.session_charge_bytes = 32 << 20;
        });
        let publisher = world.add(Spec::new(Lite06, Role::Publisher));
        let interval = Duration::from_millis(100);
        let rate = Rate { interval, frames: 24, bytes: 1 << 20, spread: 0 };
        world.at(publisher).publish(NAME, 60_000, Some(rate));
        let viewer = world.add(Spec::new(Lite06, Role::Subscriber));
        world.connect();
        world.known(NAME.0);
        let prefs = Preferences { max_age_ms: 60_000, ..Preferences::default() };
        let sub = world.at(viewer).subscribe(NAME, prefs);
        world.run(2600);
        let group = &world.clients[viewer].sub(sub).groups[&0];
        assert_eq!((group.end, group.frames), (End::Fin, 24));
        oracle::empty(&mut world);
    });
}

#[test]
fn requests_for_made_up_names_keep_no_track() {
    let limits = Limits { tracks: 16, ..Limits::default() };
    let mut sessions = Sessions::new(&limits);
    let publisher = sessions.greet(Lite06);
    let viewer = sessions.greet(Lite06);
    announce(&mut sessions, publisher, Lite06, NAME.0);
    for number in 0..200_u64 {
        let (broadcast, track) = (Sessions::path(NAME.0), TrackName::new(&format!("x{number}")));
        let mut bytes = Vec::new();
        if number % 2 == 0 {
            put_varint(&mut bytes, kind::BI_TRACK);
            Track { broadcast, track }.encode(&mut bytes);
        } else {
            put_varint(&mut bytes, kind::BI_SUBSCRIBE);
            let prefs = Preferences::default();
            Subscribe { id: number, broadcast, track, prefs }.encode(Lite06, &mut bytes);
        }
        let stream = sessions.say(viewer, Dir::Bi, &bytes, ReadEnd::Blocked);
        sessions.settle();
        assert!(sessions.peers[&viewer].fake.resets.is_empty(), "{number} found no room");
        sessions.more(viewer, stream, &[], ReadEnd::Reset(0));
        sessions.peers.get_mut(&viewer).expect("it did nothing wrong").fake.resets.clear();
        sessions.pass(1);
    }
    assert_eq!(sessions.model.usage().tracks, 0);
    assert_eq!(sessions.model.limit_hits.get("tracks"), 0);
}
