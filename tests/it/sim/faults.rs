//! Many seeds over bad links, with peers that come and go.

use std::time::Duration;

use corelay::config::Limits;
use corelay::name::Role;
use corelay::wire::lite::subscribe::Preferences;
use corelay::wire::version::Version::{self, Lite05, Lite06};

use super::client::Spec;
use super::link::Terms;
use super::oracle;
use super::publisher::Rate;
use super::random::Random;
use super::viewer::{Said, Subscription};
use super::world::World;
use super::{once, seeds};

/// How long a live viewer may take to the newest group once the links are well.
const RECOVERY_MS: u64 = 6000;

/// A link that is bad in most ways.
fn bad(random: &mut Random) -> Terms {
    Terms {
        delay: Duration::from_millis(2 + random.below(60)),
        jitter: Duration::from_millis(random.pick(&[0, 0, 5, 20])),
        loss: random.pick(&[0, 10, 50, 150]),
        duplicate: random.pick(&[0, 0, 20]),
        reorder: random.pick(&[0, 0, 50]),
        rate: random.pick(&[None, None, Some(400_000), Some(100_000)]),
        queue: random.pick(&[20_000, 60_000]),
        mtu: random.pick(&[65_535, 1452, 1300]),
    }
}

/// More than a bad link carries, often.
fn rate(random: &mut Random) -> Rate {
    Rate {
        interval: Duration::from_millis(random.pick(&[10, 20, 40])),
        frames: random.pick(&[1, 7, 25, 60]),
        bytes: random.pick(&[0, 20, 400, 1200]),
        spread: random.pick(&[0, 37, 3000]),
    }
}

/// The links are well, and the tracks so light that no subscription starves behind a more urgent
/// one while congestion windows come back.
fn heal(world: &mut World) {
    world.heal();
    for client in &mut world.clients {
        for rate in client.publisher.tracks.iter_mut().filter_map(|track| track.rate.as_mut()) {
            (rate.bytes, rate.spread) = (50, 10);
            rate.interval = rate.interval.max(Duration::from_millis(40));
        }
    }
}

fn prefs(random: &mut Random) -> Preferences {
    Preferences {
        priority: random.pick(&[0, 7, 128, 255]),
        max_age_ms: random.pick(&[0, 200, 1000, 5000]),
        ..Preferences::default()
    }
}

fn mixed(world: &mut World, seed: u64, versions: (&[Version], &[Version])) {
    let mut random = Random::new(seed ^ 0xfa17);
    let mut spec = Spec::new(random.pick(versions.0), Role::Publisher);
    spec.up = Terms { rate: None, ..bad(&mut random) };
    spec.down = bad(&mut random);
    let publisher = world.add(spec);
    let names = [("room/a", "video"), ("room/a", "audio")];
    for name in names {
        let rate = rate(&mut random);
        world.at(publisher).publish(name, 5000, Some(rate));
    }
    for _ in 0..4 {
        let mut spec = Spec::new(random.pick(versions.1), Role::Subscriber);
        spec.up = bad(&mut random);
        spec.down = bad(&mut random);
        world.add(spec);
    }
    world.connect();
    world.known("room/a");
    for step in 0..12 {
        let place = 1 + usize::try_from(random.below(4)).expect("small");
        let client = world.at(place);
        let live: Vec<usize> =
            (0..client.viewer.subs.len()).filter(|sub| !client.viewer.subs[*sub].left).collect();
        match random.below(4) {
            0 if !live.is_empty() => {
                let code = random.pick(&[None, Some(1), Some(7)]);
                client.viewer.unsubscribe(&mut client.wire, live[0], code);
            }
            1 if !live.is_empty() => {
                let prefs = prefs(&mut random);
                client.viewer.update(&mut client.wire, live[0], prefs);
            }
            _ if live.len() < 2 => {
                let prefs = prefs(&mut random);
                client.subscribe(names[step % 2], prefs);
            }
            _ => {}
        }
        let wait = 100 + random.below(900);
        world.run(wait);
    }
}

fn faults(seed: u64, versions: (&[Version], &[Version])) {
    recovered(World::new(seed), seed, versions);
}

fn recovered(mut world: World, seed: u64, versions: (&[Version], &[Version])) {
    mixed(&mut world, seed, versions);
    oracle::content(&world);
    heal(&mut world);
    world.run(RECOVERY_MS);
    oracle::content(&world);
    oracle::current(&world, 600);
    oracle::empty(&mut world);
}

/// Turns as small as they can be configured.
fn small_turns(limits: &mut Limits) {
    limits.turn_messages = 1;
    limits.turn_sends = 1;
    limits.turn_mail = 1;
    limits.session_turn_bytes = 2048;
    limits.tx_slots = 1;
}

#[test]
fn the_smallest_turns_lose_no_byte_and_forget_no_work() {
    seeds("faults::the_smallest_turns_lose_no_byte_and_forget_no_work", |seed| {
        let world = World::with(seed, |config| small_turns(&mut config.limits));
        recovered(world, seed, (&[Lite05, Lite06], &[Lite05, Lite06]));
    });
}

/// Work that a turn's bounds leave over is done in the turns that follow at once, not at the next
/// event: on idle links every frame is there when the way is over.
#[test]
fn the_smallest_turns_hold_nothing_back() {
    once("faults::the_smallest_turns_hold_nothing_back", |seed| {
        let mut world = World::with(seed, |config| small_turns(&mut config.limits));
        let publisher = world.add(Spec::new(Lite06, Role::Publisher));
        let interval = Duration::from_millis(100);
        let rate = Rate { interval, frames: 1, bytes: 3000, spread: 500 };
        world.at(publisher).publish(("room/a", "video"), 5000, Some(rate));
        let spec = Spec::new(Lite06, Role::Subscriber);
        let viewers: Vec<usize> = (0..8).map(|_| world.add(spec.clone())).collect();
        world.connect();
        world.known("room/a");
        for viewer in &viewers {
            world.at(*viewer).subscribe(("room/a", "video"), Preferences::default());
        }
        world.run(5000);
        for viewer in viewers {
            for (seq, group) in world.clients[viewer].sub(0).groups.range(5..) {
                let at = u64::try_from((group.at - world.epoch).as_millis()).expect("short");
                // Two links of 10 ms, and a pacer's grain.
                let took = group.first.map(|first| at - first);
                assert!(took.is_some_and(|took| took <= 25), "group {seq} took {took:?} ms");
            }
        }
        oracle::empty(&mut world);
    });
}

/// Some limits so low that they are reached. Who is refused then may never be served, but every
/// bound holds, what is shown as whole is whole, and everything is given back.
fn low_limits(seed: u64) {
    let mut random = Random::new(seed ^ 0x11);
    let world = World::with(seed, |config| {
        let limits = &mut config.limits;
        let mut low = |limit: &mut usize, to: usize| {
            if random.chance(400) {
                *limit = to;
            }
        };
        low(&mut limits.cursors, 5);
        low(&mut limits.groups, 12);
        limits.track_groups = limits.track_groups.min(limits.groups);
        low(&mut limits.track_groups, 6);
        low(&mut limits.index_pages, 20);
        low(&mut limits.session_subscriptions, 1);
        low(&mut limits.readers, 4);
        low(&mut limits.session_groups_in, 2);
        low(&mut limits.session_groups_out, 2);
        low(&mut limits.session_charge_bytes, 64 << 10);
        low(&mut limits.frame_bytes, 3000);
        low(&mut limits.group_frames, 20);
        low(&mut limits.tracks, 1);
        low(&mut limits.session_requests, 2);
        limits.group_bytes = 1 << 20;
        limits.frame_bytes = limits.frame_bytes.min(1 << 20);
        low(&mut limits.arena_bytes, 1 << 20);
    });
    let mut world = world;
    mixed(&mut world, seed, (&[Lite05, Lite06], &[Lite05, Lite06]));
    oracle::content(&world);
    heal(&mut world);
    world.run(RECOVERY_MS);
    oracle::content(&world);
    oracle::empty(&mut world);
}

#[test]
fn reached_limits_refuse_and_leave_nothing() {
    seeds("faults::reached_limits_refuse_and_leave_nothing", low_limits);
}

/// Publishers of one name follow each other, some in silence; viewers come, go and vanish; links
/// fail and lose half of their MTU.
fn churn(seed: u64) {
    let mut world = World::new(seed);
    let mut random = Random::new(seed ^ 0xc402);
    let name = ("room/a", "video");
    let mut publisher = publish(&mut world, &mut random, name);
    for _ in 0..4 {
        let mut spec = Spec::new(random.pick(&[Lite05, Lite06]), Role::Subscriber);
        spec.down = Terms { rate: None, ..bad(&mut random) };
        world.add(spec);
    }
    world.connect();
    for _ in 0..20 {
        let place = usize::try_from(random.below(world.clients.len() as u64)).expect("small");
        match random.below(10) {
            0 => {
                let code = random.pick(&[0, 0x47]);
                let now = world.now;
                let old = world.at(publisher);
                if random.chance(500) {
                    old.gone = true
                } else {
                    old.wire.close(now, code)
                }
                publisher = publish(&mut world, &mut random, name);
            }
            1 => world.at(place).down.terms.loss = random.pick(&[0, 1000]),
            2 => world.at(place).down.terms.mtu = random.pick(&[65_535, 1210]),
            3 if place != publisher => world.at(place).gone = true,
            4 if place != publisher => {
                let spec = Spec::new(random.pick(&[Lite05, Lite06]), Role::Subscriber);
                world.add(spec);
            }
            _ => {}
        }
        follow(&mut world, &mut random, name);
        let wait = 200 + random.below(1500);
        world.run(wait);
    }
    oracle::content(&world);
    heal(&mut world);
    // A publisher that vanished is given up after 13 s.
    world.run(14_000);
    follow(&mut world, &mut random, name);
    world.run(RECOVERY_MS);
    oracle::content(&world);
    oracle::current(&world, 600);
    oracle::empty(&mut world);
}

fn publish(world: &mut World, random: &mut Random, name: (&str, &str)) -> usize {
    let mut spec = Spec::new(random.pick(&[Lite05, Lite06]), Role::Publisher);
    spec.up = Terms { rate: None, ..bad(random) };
    let place = world.add(spec);
    let rate = rate(random);
    world.at(place).publish(name, 5000, Some(rate));
    place
}

/// Every viewer without a running subscription that hears of the broadcast subscribes.
fn follow(world: &mut World, random: &mut Random, name: (&str, &str)) {
    for place in 0..world.clients.len() {
        let client = &world.clients[place];
        let hears = client.viewer.announced.contains(name.0);
        let over = |sub: &Subscription| {
            sub.left || sub.said().iter().any(|said| matches!(said, Said::Reset(_) | Said::Fin))
        };
        let idle = client.viewer.subs.iter().all(over);
        if hears && idle && client.listens() && !client.gone {
            let prefs = prefs(random);
            world.at(place).subscribe(name, prefs);
        }
    }
}

#[test]
fn peers_that_come_go_and_vanish_leave_nothing_and_stop_nobody() {
    seeds("faults::peers_that_come_go_and_vanish_leave_nothing_and_stop_nobody", churn);
}

#[test]
fn bad_links_cost_no_byte_and_leave_nothing_in_lite_05() {
    seeds("faults::bad_links_cost_no_byte_and_leave_nothing_in_lite_05", |seed| {
        faults(seed, (&[Lite05], &[Lite05]));
    });
}

#[test]
fn bad_links_cost_no_byte_and_leave_nothing_in_lite_06() {
    seeds("faults::bad_links_cost_no_byte_and_leave_nothing_in_lite_06", |seed| {
        faults(seed, (&[Lite06], &[Lite06]));
    });
}

#[test]
fn bad_links_cost_no_byte_and_leave_nothing_between_versions() {
    seeds("faults::bad_links_cost_no_byte_and_leave_nothing_between_versions", |seed| {
        faults(seed, (&[Lite05, Lite06], &[Lite05, Lite06]));
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    once("faults::the_same_seed_gives_the_same_run", |seed| {
        let run = |seed| {
            let mut world = World::new(seed);
            mixed(&mut world, seed, (&[Lite05, Lite06], &[Lite05, Lite06]));
            (world.transcript, world.turns)
        };
        assert_eq!(run(seed), run(seed));
        assert_ne!(run(seed).0, run(seed + 1).0, "the transcript tells runs apart");
    });
}
