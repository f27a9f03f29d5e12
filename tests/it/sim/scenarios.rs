//! One behaviour each, on clean links, in every pairing of versions.

use std::time::Duration;

use corelay::name::Role;
use corelay::wire::lite::subscribe::Preferences;
use corelay::wire::version::Version::{self, Lite05, Lite06};

use super::client::Spec;
use super::link::Terms;
use super::once;
use super::oracle;
use super::publisher::Rate;
use super::viewer::{Received, Said, Subscription};
use super::wire::End;
use super::world::World;

const PAIRS: [(Version, Version); 4] =
    [(Lite05, Lite05), (Lite05, Lite06), (Lite06, Lite05), (Lite06, Lite06)];
const NAME: (&str, &str) = ("room/a", "video");

/// A publisher of one track, and viewers that heard of it.
struct Stage {
    world: World,
    publisher: usize,
    viewers: Vec<usize>,
}

impl Stage {
    fn new(seed: u64, versions: (Version, Version), viewers: usize, rate: Option<Rate>) -> Self {
        let mut world = World::new(seed);
        let publisher = world.add(Spec::new(versions.0, Role::Publisher));
        world.at(publisher).publish(NAME, 5000, rate);
        let spec = Spec::new(versions.1, Role::Subscriber);
        let viewers = (0..viewers).map(|_| world.add(spec.clone())).collect();
        world.connect();
        world.known(NAME.0);
        Self { world, publisher, viewers }
    }

    /// Whole groups of one frame each, `100` ms of media apart, sent at once.
    fn groups(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for seq in numbers {
            let client = self.world.at(self.publisher);
            client.publisher.group(&mut client.wire, 0, seq, &[(500, seq * 100)]);
        }
    }

    fn subscribe(&mut self, viewer: usize, prefs: Preferences) -> usize {
        self.world.at(self.viewers[viewer]).subscribe(NAME, prefs)
    }

    fn sub(&self, viewer: usize, place: usize) -> &Subscription {
        self.world.clients[self.viewers[viewer]].sub(place)
    }

    fn wanted(&mut self) {
        let publisher = self.publisher;
        self.world.until("subscribed upstream", 5000, |world| {
            world.clients[publisher].track(0).upstream.is_some()
        });
    }

    fn end(mut self) {
        oracle::content(&self.world);
        oracle::empty(&mut self.world);
    }
}

fn max_age(max_age_ms: u64) -> Preferences {
    Preferences { max_age_ms, priority: 100, ..Preferences::default() }
}

fn video() -> Rate {
    Rate { interval: Duration::from_millis(40), frames: 25, bytes: 900, spread: 600 }
}

/// Runs a scenario for every pairing of publisher's and viewer's version.
fn pairs(name: &'static str, run: impl Fn(u64, (Version, Version))) {
    once(name, |seed| PAIRS.into_iter().for_each(|versions| run(seed, versions)));
}

#[test]
fn start_comes_before_end_and_end_before_fin() {
    pairs("scenarios::start_comes_before_end_and_end_before_fin", |seed, versions| {
        let mut stage = Stage::new(seed, versions, 1, None);
        let sub = stage.subscribe(0, max_age(60_000));
        stage.wanted();
        stage.groups(3..6);
        stage.world.run(500);
        let client = stage.world.at(stage.publisher);
        client.publisher.end_track(&mut client.wire, 0);
        stage.world.run(3000);
        let held = stage.sub(0, sub);
        assert_eq!(held.said(), [Said::Start(3), Said::End(6), Said::Fin]);
        assert_eq!(held.whole(), [3, 4, 5]);
        stage.end();
    });
}

#[test]
fn a_track_request_is_answered_with_what_the_publisher_said() {
    pairs(
        "scenarios::a_track_request_is_answered_with_what_the_publisher_said",
        |seed, versions| {
            let mut stage = Stage::new(seed, versions, 2, None);
            let mut asked = Vec::new();
            for viewer in stage.viewers.clone() {
                let client = stage.world.at(viewer);
                asked.push((viewer, client.viewer.ask(&mut client.wire, NAME)));
            }
            stage.world.run(300);
            let info = stage.world.clients[stage.publisher].track(0).info;
            for (viewer, stream) in asked {
                let asked = &stage.world.clients[viewer].viewer.asked[&stream];
                assert_eq!((asked.info, asked.end), (Some(info), End::Fin));
            }
            assert_eq!(stage.world.clients[stage.publisher].track(0).asked, 1, "asked once");
            stage.end();
        },
    );
}

#[test]
fn what_has_no_route_is_refused_within_a_round_trip() {
    pairs("scenarios::what_has_no_route_is_refused_within_a_round_trip", |seed, versions| {
        let mut stage = Stage::new(seed, versions, 1, None);
        let viewer = stage.viewers[0];
        let client = stage.world.at(viewer);
        let sub = client.subscribe(("room/b", "video"), max_age(0));
        let track = client.viewer.ask(&mut client.wire, ("room/b", "video"));
        // Links of 10 ms each way, plus what the client may hold an acknowledgement back.
        stage.world.run(25);
        assert_eq!(stage.sub(0, sub).said(), [Said::Reset(0x36)]);
        let asked = &stage.world.clients[viewer].viewer.asked[&track];
        assert_eq!((asked.info, asked.end), (None, End::Reset(0x36)));
        stage.end();
    });
}

#[test]
fn an_unknown_track_is_refused_as_the_publisher_refused_it() {
    pairs(
        "scenarios::an_unknown_track_is_refused_as_the_publisher_refused_it",
        |seed, versions| {
            let mut stage = Stage::new(seed, versions, 1, None);
            let viewer = stage.viewers[0];
            let sub = stage.world.at(viewer).subscribe((NAME.0, "nothing"), max_age(0));
            stage.world.run(300);
            assert_eq!(stage.sub(0, sub).said(), [Said::Reset(0x33)]);
            stage.end();
        },
    );
}

#[test]
fn a_late_viewer_gets_what_its_age_allows() {
    pairs("scenarios::a_late_viewer_gets_what_its_age_allows", |seed, versions| {
        let mut stage = Stage::new(seed, versions, 4, None);
        stage.subscribe(0, max_age(60_000));
        stage.wanted();
        stage.groups(0..10);
        stage.world.run(300);
        // Group g is stale at the edge 900 once 900 - (g + 1) * 100 reaches the budget.
        let from_floor = |budget| match versions.1 {
            Lite05 => Preferences { start: Some(0), ..max_age(budget) },
            Lite06 => max_age(budget),
        };
        let edge = stage.subscribe(1, from_floor(0));
        let some = stage.subscribe(2, from_floor(250));
        let all = stage.subscribe(3, from_floor(60_000));
        stage.world.run(300);
        assert_eq!(stage.sub(1, edge).whole(), [9]);
        assert_eq!(stage.sub(2, some).whole(), [6, 7, 8, 9]);
        assert_eq!(stage.sub(3, all).whole(), (0..10).collect::<Vec<_>>());
        assert_eq!(stage.sub(2, some).said(), [Said::Start(6)]);
        let track = stage.world.clients[stage.publisher].track(0);
        assert_eq!(track.subscribed, 1, "one subscription upstream for all");
        stage.end();
    });
}

#[test]
fn lite_05_without_a_start_begins_at_the_edge() {
    once("scenarios::lite_05_without_a_start_begins_at_the_edge", |seed| {
        let mut stage = Stage::new(seed, (Lite06, Lite05), 2, None);
        stage.subscribe(0, max_age(60_000));
        stage.wanted();
        stage.groups(0..10);
        stage.world.run(300);
        let sub = stage.subscribe(1, max_age(60_000));
        stage.world.run(300);
        stage.groups(10..12);
        stage.world.run(300);
        assert_eq!(stage.sub(1, sub).whole(), [9, 10, 11]);
        stage.end();
    });
}

#[test]
fn an_update_narrows_and_widens_what_is_sent() {
    pairs("scenarios::an_update_narrows_and_widens_what_is_sent", |seed, versions| {
        let mut stage = Stage::new(seed, versions, 1, None);
        let floor = Preferences { start: Some(0), ..max_age(60_000) };
        let sub = stage.subscribe(0, Preferences { end: Some(2), ..floor });
        stage.wanted();
        stage.groups(0..5);
        stage.world.run(300);
        assert_eq!(stage.sub(0, sub).whole(), [0, 1, 2]);
        let update = |stage: &mut Stage, prefs| {
            let client = stage.world.at(stage.viewers[0]);
            client.viewer.update(&mut client.wire, sub, prefs);
            stage.world.run(300);
        };
        update(&mut stage, Preferences { end: Some(3), priority: 9, ..floor });
        assert_eq!(stage.sub(0, sub).whole(), [0, 1, 2, 3]);
        let upstream = stage.world.clients[stage.publisher].track(0).upstream.as_ref();
        let prefs = upstream.expect("still subscribed").prefs;
        assert_eq!((prefs.end, prefs.priority), (Some(3), 9), "told upstream");
        update(&mut stage, floor);
        assert_eq!(stage.sub(0, sub).whole(), [0, 1, 2, 3, 4]);
        update(&mut stage, Preferences { start: Some(7), ..floor });
        stage.groups(5..9);
        stage.world.run(300);
        assert_eq!(stage.sub(0, sub).whole(), [0, 1, 2, 3, 4, 7, 8]);
        stage.end();
    });
}

#[test]
fn who_unsubscribes_is_sent_no_more_and_the_last_ends_the_upstream() {
    pairs(
        "scenarios::who_unsubscribes_is_sent_no_more_and_the_last_ends_the_upstream",
        |seed, versions| {
            let mut stage = Stage::new(seed, versions, 2, Some(video()));
            let subs = [stage.subscribe(0, max_age(0)), stage.subscribe(1, max_age(0))];
            stage.world.run(1500);
            let leave = |stage: &mut Stage, viewer: usize, code| {
                let client = stage.world.at(stage.viewers[viewer]);
                client.viewer.unsubscribe(&mut client.wire, subs[viewer], code);
                stage.world.run(100);
            };
            leave(&mut stage, 0, None);
            let held = stage.sub(0, subs[0]);
            assert_eq!(held.said().last(), Some(&Said::Fin));
            let open = held.groups.values().last().expect("groups came");
            assert_eq!(open.end, End::Reset(1), "the open group is broken off");
            let count = held.groups.len();
            stage.world.run(2500);
            assert_eq!(stage.sub(0, subs[0]).groups.len(), count, "no group after leaving");
            assert!(stage.sub(1, subs[1]).groups.len() > count, "the other goes on");
            assert!(stage.world.clients[stage.publisher].track(0).upstream.is_some());
            leave(&mut stage, 1, Some(7));
            assert_eq!(stage.sub(1, subs[1]).said().last(), Some(&Said::Reset(7)));
            assert!(stage.world.clients[stage.publisher].track(0).upstream.is_none());
            stage.end();
        },
    );
}

#[test]
fn a_publisher_that_closes_mid_group_ends_its_viewers_with_its_code() {
    pairs(
        "scenarios::a_publisher_that_closes_mid_group_ends_its_viewers_with_its_code",
        |seed, versions| {
            let mut stage = Stage::new(seed, versions, 2, Some(video()));
            let subs = [stage.subscribe(0, max_age(1000)), stage.subscribe(1, max_age(1000))];
            stage.world.run(1500);
            let now = stage.world.now;
            stage.world.at(stage.publisher).wire.close(now, 0x47);
            stage.world.run(200);
            for (viewer, sub) in subs.into_iter().enumerate() {
                let held = stage.sub(viewer, sub);
                assert_eq!(held.said(), [Said::Start(0), Said::Reset(0x47)]);
                let open = held.groups.values().last().expect("groups came");
                assert_eq!(open.end, End::Reset(0x47));
                assert!(open.frames > 0, "it was broken off in its middle");
                assert!(stage.world.clients[stage.viewers[viewer]].viewer.announced.is_empty());
            }
            stage.end();
        },
    );
}

#[test]
fn a_publisher_that_falls_silent_is_given_up_and_a_new_one_taken() {
    pairs(
        "scenarios::a_publisher_that_falls_silent_is_given_up_and_a_new_one_taken",
        |seed, versions| {
            let mut stage = Stage::new(seed, versions, 1, Some(video()));
            let first = stage.subscribe(0, max_age(1000));
            stage.world.run(1500);
            stage.world.at(stage.publisher).gone = true;
            stage.world.run(9000);
            assert_eq!(stage.sub(0, first).said(), [Said::Start(0)], "not given up too soon");
            // The first keep-alive, after 3 s, begins the 10 s of silence anew (RFC 9000 10.1).
            stage.world.run(4500);
            assert_eq!(stage.sub(0, first).said(), [Said::Start(0), Said::Reset(3)]);
            let open = stage.sub(0, first).groups.values().last().expect("groups came");
            assert_eq!(open.end, End::Reset(3));
            let viewer = stage.viewers[0];
            assert!(stage.world.clients[viewer].viewer.announced.is_empty());

            let next = stage.world.add(Spec::new(versions.0, Role::Publisher));
            stage.world.at(next).publish(NAME, 5000, Some(video()));
            stage.world.known(NAME.0);
            let second = stage.subscribe(0, max_age(1000));
            stage.world.run(2500);
            assert!(!stage.sub(0, second).whole().is_empty(), "the new one's groups come");
            oracle::current(&stage.world, 200);
            stage.end();
        },
    );
}

#[test]
fn a_better_publisher_of_a_name_takes_over_new_subscriptions_only() {
    pairs(
        "scenarios::a_better_publisher_of_a_name_takes_over_new_subscriptions_only",
        |seed, versions| {
            let mut stage = Stage::new(seed, versions, 1, Some(video()));
            let first = stage.subscribe(0, max_age(1000));
            stage.world.run(1500);
            let next = stage.world.add(Spec::new(versions.0, Role::Publisher));
            stage.world.at(next).publish(NAME, 5000, Some(video()));
            stage.world.run(1000);
            let second = stage.subscribe(0, max_age(1000));
            stage.world.run(2000);
            let source = |stage: &Stage, sub: usize| {
                let held = stage.sub(0, sub).groups.values().last().expect("groups came");
                held.source.expect("frames with content")
            };
            let old = stage.world.clients[stage.publisher].publisher.source;
            assert_eq!(source(&stage, first), old, "a running subscription stays");
            let now = stage.world.now;
            stage.world.at(stage.publisher).wire.close(now, 0);
            stage.world.run(300);
            let third = stage.subscribe(0, max_age(1000));
            stage.world.run(2000);
            let new = stage.world.clients[next].publisher.source;
            assert_eq!(source(&stage, third), new);
            assert_eq!(stage.sub(0, first).said().last(), Some(&Said::Reset(3)));
            if source(&stage, second) == old {
                assert_eq!(stage.sub(0, second).said().last(), Some(&Said::Reset(3)));
            }
            stage.end();
        },
    );
}

#[test]
fn a_group_that_comes_twice_is_taken_once() {
    pairs("scenarios::a_group_that_comes_twice_is_taken_once", |seed, versions| {
        let mut stage = Stage::new(seed, versions, 1, None);
        let sub = stage.subscribe(0, max_age(60_000));
        stage.wanted();
        stage.groups([0, 1]);
        stage.world.run(100);
        stage.groups([1, 0, 2]);
        stage.world.run(300);
        // The viewer panics when a group comes twice.
        assert_eq!(stage.sub(0, sub).whole(), [0, 1, 2]);
        stage.end();
    });
}

#[test]
fn a_subscription_may_begin_and_end_at_a_frame() {
    once("scenarios::a_subscription_may_begin_and_end_at_a_frame", |seed| {
        for publisher in [Lite05, Lite06] {
            let mut stage = Stage::new(seed, (publisher, Lite06), 3, None);
            stage.subscribe(0, max_age(60_000));
            stage.wanted();
            for seq in 0..3 {
                let frames: Vec<(usize, u64)> =
                    (0..10).map(|frame| (700, seq * 100 + frame * 10)).collect();
                let client = stage.world.at(stage.publisher);
                client.publisher.group(&mut client.wire, 0, seq, &frames);
            }
            stage.world.run(300);
            let within = Preferences {
                start: Some(1),
                end: Some(2),
                frame_start: 4,
                frame_end: Some(6),
                ..max_age(60_000)
            };
            let sub = stage.subscribe(1, within);
            let past = Preferences { start: Some(0), frame_start: 10, ..max_age(60_000) };
            let beyond = stage.subscribe(2, past);
            stage.world.run(300);
            // Frames are checked against their number and absolute timestamp as they come.
            let held = &stage.sub(1, sub).groups;
            let shape = |seq: u64| (held[&seq].frame_start, held[&seq].frames, held[&seq].first);
            assert_eq!(shape(1), (4, 6, Some(140)));
            assert_eq!(shape(2), (0, 7, Some(200)));
            assert!(held.values().all(|group| group.end == End::Fin));
            let empty = &stage.sub(2, beyond).groups[&0];
            assert_eq!((empty.frame_start, empty.frames, empty.end), (10, 0, End::Fin));
            oracle::empty(&mut stage.world);
        }
    });
}

#[test]
fn an_oversize_frame_or_group_is_stopped_with_its_code_and_nothing_beside_it() {
    pairs(
        "scenarios::an_oversize_frame_or_group_is_stopped_with_its_code_and_nothing_beside_it",
        |seed, versions| {
            let mut world = World::with(seed, |config| {
                config.limits.frame_bytes = 20_000;
                config.limits.group_bytes = 50_000;
                config.limits.group_frames = 40;
            });
            let publisher = world.add(Spec::new(versions.0, Role::Publisher));
            world.at(publisher).publish(NAME, 5000, None);
            world.at(publisher).publish((NAME.0, "audio"), 5000, Some(video()));
            let viewer = world.add(Spec::new(versions.1, Role::Subscriber));
            world.connect();
            world.known(NAME.0);
            let sub = world.at(viewer).subscribe(NAME, max_age(60_000));
            let beside = world.at(viewer).subscribe((NAME.0, "audio"), max_age(5000));
            world.run(200);
            let many = vec![(10, 0); 41];
            let cases: [&[(usize, u64)]; 5] =
                [&[(900, 0)], &[(10, 0), (20_001, 0)], &[(19_000, 0); 3], &many, &[(900, 1)]];
            for (seq, frames) in cases.into_iter().enumerate() {
                let client = world.at(publisher);
                client.publisher.group(&mut client.wire, 0, seq as u64, frames);
                world.run(150);
            }
            let sent = &world.clients[publisher].track(0).sent;
            let stopped: Vec<_> = (0..5).map(|seq| sent[&seq].stopped).collect();
            assert_eq!(stopped, [None, Some(0x38), Some(0x32), Some(0x32), None]);
            let groups = &world.clients[viewer].sub(sub).groups;
            assert_eq!(world.clients[viewer].sub(sub).whole(), [0, 4]);
            for (seq, code) in [(1, 0x38), (2, 0x32), (3, 0x32)] {
                let end = groups.get(&seq).map(|group| group.end);
                assert!(end.is_none_or(|end| end == End::Reset(code)), "{seq}: {end:?}");
            }
            world.run(1500);
            assert!(world.clients[viewer].sub(beside).whole().len() >= 2);
            assert_eq!(world.clients[viewer].sub(beside).said(), [Said::Start(0)]);
            oracle::empty(&mut world);
        },
    );
}

#[test]
fn a_group_that_ends_inside_a_frame_is_broken_off_at_the_viewer() {
    pairs(
        "scenarios::a_group_that_ends_inside_a_frame_is_broken_off_at_the_viewer",
        |seed, versions| {
            let mut stage = Stage::new(seed, versions, 1, None);
            let sub = stage.subscribe(0, max_age(60_000));
            stage.wanted();
            let client = stage.world.at(stage.publisher);
            assert!(client.publisher.begin(&mut client.wire, 0, 0));
            client.publisher.frame(&mut client.wire, 0, 300, 0);
            client.publisher.part(&mut client.wire, 0, (2000, 700), 10);
            stage.world.run(200);
            let held = &stage.sub(0, sub).groups[&0];
            assert_eq!((held.frames, held.end), (1, End::Open));
            assert!(held.rest >= 700, "bytes are passed on as they come");
            let client = stage.world.at(stage.publisher);
            let stream = client.publisher.leave_open(0).expect("a group is open");
            client.wire.say(stream, &[], true);
            stage.world.run(200);
            assert_eq!(stage.sub(0, sub).groups[&0].end, End::Reset(0x37));
            stage.groups([1]);
            stage.world.run(200);
            assert_eq!(stage.sub(0, sub).whole(), [1]);
            stage.end();
        },
    );
}

#[test]
fn a_group_that_its_publisher_breaks_off_has_the_same_code_at_the_viewer() {
    pairs(
        "scenarios::a_group_that_its_publisher_breaks_off_has_the_same_code_at_the_viewer",
        |seed, versions| {
            let mut stage = Stage::new(seed, versions, 1, None);
            let sub = stage.subscribe(0, max_age(60_000));
            stage.wanted();
            let client = stage.world.at(stage.publisher);
            assert!(client.publisher.begin(&mut client.wire, 0, 0));
            client.publisher.frame(&mut client.wire, 0, 300, 0);
            stage.world.run(200);
            let client = stage.world.at(stage.publisher);
            let stream = client.publisher.leave_open(0).expect("a group is open");
            client.wire.reset(stream, 0x51);
            stage.world.run(200);
            assert_eq!(stage.sub(0, sub).groups[&0].end, End::Reset(0x51));
            stage.end();
        },
    );
}

#[test]
fn an_unannounced_broadcast_goes_on_for_who_watches_and_is_refused_to_others() {
    pairs(
        "scenarios::an_unannounced_broadcast_goes_on_for_who_watches_and_is_refused_to_others",
        |seed, versions| {
            let mut stage = Stage::new(seed, versions, 1, Some(video()));
            let sub = stage.subscribe(0, max_age(1000));
            stage.world.run(1200);
            let client = stage.world.at(stage.publisher);
            client.publisher.unannounce(&mut client.wire, NAME.0);
            stage.world.run(200);
            let viewer = stage.viewers[0];
            assert!(stage.world.clients[viewer].viewer.announced.is_empty());
            let late = stage.subscribe(0, max_age(1000));
            let before = stage.sub(0, sub).groups.len();
            stage.world.run(2500);
            assert_eq!(stage.sub(0, late).said(), [Said::Reset(0x36)]);
            assert!(stage.sub(0, sub).groups.len() > before, "who watches goes on");
            stage.end();
        },
    );
}

#[test]
fn an_update_of_urgency_decides_which_track_comes_whole() {
    pairs("scenarios::an_update_of_urgency_decides_which_track_comes_whole", |seed, versions| {
        let mut world = World::new(seed);
        let publisher = world.add(Spec::new(versions.0, Role::Publisher));
        let interval = Duration::from_millis(40);
        let rate = Rate { interval, frames: 10, bytes: 2000, spread: 0 };
        let names = [(NAME.0, "one"), (NAME.0, "two")];
        for name in names {
            world.at(publisher).publish(name, 5000, Some(rate));
        }
        let mut spec = Spec::new(versions.1, Role::Subscriber);
        // Enough for one of the two.
        spec.down = Terms { rate: Some(70_000), queue: 24 << 10, ..Terms::clean(20) };
        let viewer = world.add(spec);
        world.connect();
        world.known(NAME.0);
        let prefs = |priority| Preferences { max_age_ms: 1000, priority, ..Preferences::default() };
        let subs = [
            world.at(viewer).subscribe(names[0], prefs(9)),
            world.at(viewer).subscribe(names[1], prefs(1)),
        ];
        world.run(10_000);
        let turned = world.clients[viewer].sub(subs[1]).newest();
        assert_eq!(world.clients[viewer].sub(subs[0]).lacks(5), [0; 0]);
        assert!(world.clients[viewer].sub(subs[1]).lacks(5).len() > 5);
        let client = world.at(viewer);
        client.viewer.update(&mut client.wire, subs[0], prefs(1));
        client.viewer.update(&mut client.wire, subs[1], prefs(9));
        world.run(10_000);
        assert_eq!(world.clients[viewer].sub(subs[1]).lacks(turned + 3), [0; 0]);
        assert!(world.clients[viewer].sub(subs[0]).lacks(turned + 3).len() > 5);
        oracle::content(&world);
        oracle::empty(&mut world);
    });
}

/// When the clock in priorities begins anew: 22 bits of milliseconds.
const WRAP_MS: u64 = 1 << 22;

#[test]
fn urgency_survives_the_wrap_of_the_clock_in_priorities() {
    pairs("scenarios::urgency_survives_the_wrap_of_the_clock_in_priorities", |seed, versions| {
        let mut world = World::new(seed);
        let publisher = world.add(Spec::new(versions.0, Role::Publisher));
        let interval = Duration::from_millis(40);
        let rest = Rate { interval, frames: 10, bytes: 4000, spread: 0 };
        let urgent = Rate { interval, frames: 10, bytes: 1500, spread: 0 };
        world.at(publisher).publish((NAME.0, "rest"), 5000, Some(rest));
        world.at(publisher).publish((NAME.0, "urgent"), 5000, Some(urgent));
        let mut spec = Spec::new(versions.1, Role::Subscriber);
        // Half of what is offered.
        spec.down = Terms { rate: Some(70_000), queue: 24 << 10, ..Terms::clean(20) };
        let viewer = world.add(spec);
        world.connect();
        world.known(NAME.0);
        let idle = WRAP_MS - world.ms() - 5000;
        world.run(idle);
        let prefs = |priority| Preferences { max_age_ms: 1000, priority, ..Preferences::default() };
        // A bit that a clock without a wrap would carry over makes these two alike.
        let low = world.at(viewer).subscribe((NAME.0, "rest"), prefs(4));
        let high = world.at(viewer).subscribe((NAME.0, "urgent"), prefs(5));
        world.run(15_000);
        let newest = world.clients[viewer].sub(high).newest();
        // Newest first: what is older than the newest may still be on its way.
        world.run(2_000);
        let held = world.clients[viewer].sub(high);
        assert!(held.newest() > 30, "{} groups came", held.newest());
        // The first groups fall into slow start, which ends with losses.
        let lacking = held.lacks(5).iter().filter(|seq| **seq <= newest).count();
        assert_eq!(lacking, 0, "all of the urgent");
        let after = |group: &&Received| group.frames > 0 && group.last > WRAP_MS + 3000;
        let rest = &world.clients[viewer].sub(low).groups;
        assert!(rest.values().filter(after).count() >= 3, "the rest goes on past the wrap");
        oracle::content(&world);
        oracle::empty(&mut world);
    });
}

#[test]
fn a_slow_viewer_gets_the_newest_and_loses_what_is_old() {
    pairs("scenarios::a_slow_viewer_gets_the_newest_and_loses_what_is_old", |seed, versions| {
        let mut world = World::new(seed);
        let publisher = world.add(Spec::new(versions.0, Role::Publisher));
        let interval = Duration::from_millis(40);
        let rate = Rate { interval, frames: 5, bytes: 4000, spread: 0 };
        world.at(publisher).publish(NAME, 5000, Some(rate));
        let mut spec = Spec::new(versions.1, Role::Subscriber);
        // Half of what is offered, which is 100 kB a second in groups of 20 kB.
        spec.down = Terms { rate: Some(50_000), queue: 16 << 10, ..Terms::clean(20) };
        let slow = world.add(spec);
        let quick = world.add(Spec::new(versions.1, Role::Subscriber));
        world.connect();
        world.known(NAME.0);
        let prefs = Preferences { max_age_ms: 600, ..Preferences::default() };
        let sub = world.at(slow).subscribe(NAME, prefs);
        let beside = world.at(quick).subscribe(NAME, prefs);
        world.run(20_000);
        let held = world.clients[slow].sub(sub);
        // The newest always goes first, so each group's beginning comes, soon, and its end does
        // not.
        let last = held.newest();
        let late = |group: &Received| {
            let opened = u64::try_from((group.opened - world.epoch).as_millis()).expect("short");
            group.first.map_or(0, |first| opened - first)
        };
        // What the link and its queue hold, the way, and one train.
        let latest = held.groups.values().map(late).max().expect("groups came");
        assert!(latest <= 500, "a group began {latest} ms late");
        let begun = held.groups.values().filter(|group| group.frames > 0).count();
        assert!(begun * 10 >= held.groups.len() * 9, "frames came of {begun} groups only");
        let ends: Vec<End> = (0..last - 5).map(|seq| held.groups[&seq].end).collect();
        assert!(ends.iter().all(|end| matches!(end, End::Fin | End::Reset(0x34))), "{ends:?}");
        assert!(ends.contains(&End::Reset(0x34)), "what is old was broken off");
        assert_eq!(world.clients[quick].sub(beside).lacks(0), [0; 0]);
        oracle::content(&world);
        oracle::empty(&mut world);
    });
}
