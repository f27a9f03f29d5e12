//! The two promises about slow viewers, with their figures: `cargo test --test it sim::acceptance
//! -- --nocapture` prints what was measured.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use corelay::model::PeerKey;
use corelay::name::Role;
use corelay::wire::lite::subscribe::Preferences;
use corelay::wire::version::Version::{Lite05, Lite06};

use super::client::Spec;
use super::link::Terms;
use super::once;
use super::oracle;
use super::publisher::Rate;
use super::wire::{Allowance, End};
use super::world::{Noted, World};

const NAME: (&str, &str) = ("room/a", "video");
/// All the credit that the viewer of the first promise gives.
const CREDIT: u32 = 64 << 10;
/// The least a send window is, so the sharpest form of "its send window".
const SEND_WINDOW: usize = 128 << 10;
const MARGIN: usize = 256 << 10;

fn peers(world: &World) -> BTreeSet<PeerKey> {
    world.shard.model().charges().map(|(peer, _)| peer).collect()
}

fn charge(world: &World, peer: PeerKey) -> usize {
    let held = world.shard.model().charges().find(|(held, _)| *held == peer);
    held.expect("the session lives").1
}

#[test]
fn a_viewer_that_gives_no_credit_costs_its_window_and_nobody_else_a_group() {
    once(
        "acceptance::a_viewer_that_gives_no_credit_costs_its_window_and_nobody_else_a_group",
        |seed| a_viewer_without_credit(seed, 10, (8000, 15)),
    );
}

#[test]
fn a_viewer_that_gives_no_credit_inside_a_long_group_costs_its_window() {
    once(
        "acceptance::a_viewer_that_gives_no_credit_inside_a_long_group_costs_its_window",
        |seed| a_viewer_without_credit(seed, 400, (50_000, 2)),
    );
}

/// Groups have so many frames of 40 ms. Given credit again, the viewer gets at least so many whole
/// groups in so many milliseconds.
fn a_viewer_without_credit(seed: u64, frames: u64, (after_ms, least): (u64, usize)) {
    let mut world = World::new(seed);
    let publisher = world.add(Spec::new(Lite06, Role::Publisher));
    let interval = Duration::from_millis(40);
    let rate = Rate { interval, frames, bytes: 1500, spread: 500 };
    world.at(publisher).publish(NAME, 5000, Some(rate));
    let prefs = Preferences { max_age_ms: 1000, priority: 100, ..Preferences::default() };
    let others: Vec<usize> = (0..31)
        .map(|number| {
            let version = if number % 2 == 0 { Lite05 } else { Lite06 };
            world.add(Spec::new(version, Role::Subscriber))
        })
        .collect();
    world.connect();
    world.known(NAME.0);
    let before = peers(&world);
    let mut spec = Spec::new(Lite06, Role::Subscriber);
    spec.allow = Allowance { receive_window: CREDIT, ..Allowance::default() };
    let slow = world.add(spec);
    world.connect();
    world.known(NAME.0);
    // What it reads, or is reset, gives nothing back: 64 KiB is all, ever.
    world.at(slow).set_credit(0);
    world.at(slow).viewer.reading = false;
    let peer = *peers(&world).difference(&before).next().expect("a session began");
    for viewer in others.iter().chain([&slow]) {
        world.at(*viewer).subscribe(NAME, prefs);
    }
    world.until("credit spent", 20_000, |world| {
        world.clients[slow].wire.conn.stats().frame_rx.data_blocked > 0
    });
    world.run(5000);
    let (mut totals, mut own) = (Vec::new(), 0);
    for _ in 0..600 {
        world.run(100);
        let held = charge(&world, peer);
        assert!(held <= SEND_WINDOW + MARGIN, "charged {held}");
        own = own.max(held);
        totals.push(world.shard.model().usage().charged);
    }
    // A stream is charged from its beginning to its end, so with long groups the others' charges
    // grow until the next group.
    let (low, high) = extremes(&totals);
    if frames <= 10 {
        flat(&totals);
    }
    for viewer in &others {
        gapless(&world, *viewer, rate.frames);
    }
    oracle::current(without(&mut world, slow), 200);
    let resumed = world.ms();
    let late = after_credit(&mut world, slow, interval, after_ms);
    assert!(late.0 >= least, "the viewer is served again: {} groups", late.0);
    println!(
        "no credit, {frames} frames a group: own charge at most {own} B (allowed {}), total between {low} and {high} B; \
         from {resumed} ms on {} groups whole, {} reset, at most {} ms behind",
        SEND_WINDOW + MARGIN,
        late.0,
        late.1,
        late.2
    );
    oracle::content(&world);
    oracle::empty(&mut world);
}

/// The total rises and falls with the others' open groups, by some blocks each, but has no trend:
/// its means over the first and the last ten seconds are within a tenth.
fn flat(totals: &[usize]) {
    let mean = |part: &[usize]| part.iter().sum::<usize>() / part.len();
    let (early, late) = (mean(&totals[..100]), mean(&totals[totals.len() - 100..]));
    assert!(late.abs_diff(early) * 10 <= early, "the total went from {early} to {late}");
    let (least, most) = extremes(totals);
    assert!(most - least <= 31 * (64 << 10), "charged between {least} and {most}");
}

fn extremes(totals: &[usize]) -> (usize, usize) {
    let least = totals.iter().min().expect("samples");
    let most = totals.iter().max().expect("samples");
    (*least, *most)
}

/// The world, with one viewer's subscriptions passed over by the oracles.
fn without(world: &mut World, viewer: usize) -> &mut World {
    world.clients[viewer].viewer.subs[0].left = true;
    world
}

/// Every group from the first that came is whole and has all frames; only the last may be open.
fn gapless(world: &World, viewer: usize, frames: u64) {
    let groups = &world.clients[viewer].sub(0).groups;
    let first = *groups.keys().next().expect("groups came");
    let last = *groups.keys().next_back().expect("groups came");
    assert!((last - first + 2) * frames > 1500, "viewer {viewer} has groups {first} to {last}");
    for seq in first..last {
        let group = groups.get(&seq).unwrap_or_else(|| panic!("viewer {viewer} lacks {seq}"));
        assert_eq!((group.end, group.frames), (End::Fin, frames), "viewer {viewer} group {seq}");
    }
}

/// Gives credit and reads again; answers groups whole, groups reset, and the most that a whole one
/// was behind the edge, in media time, when its last byte came.
fn after_credit(
    world: &mut World,
    slow: usize,
    interval: Duration,
    after_ms: u64,
) -> (usize, usize, u64) {
    let now = world.now;
    world.at(slow).resume(now);
    // What is whole at once came before, within the credit there was.
    let known: BTreeSet<u64> = world.clients[slow].sub(0).whole().into_iter().collect();
    world.at(slow).set_credit(8 << 20);
    world.run(after_ms);
    let epoch = world.epoch;
    let (mut whole, mut reset, mut most) = (0, 0, 0);
    let client = &world.clients[slow];
    let transit = client.down.terms.delay + world.clients[0].up.terms.delay;
    for (seq, group) in &client.sub(0).groups {
        match group.end {
            End::Reset(code) => {
                assert_eq!(code, 0x34, "group {seq}");
                reset += 1;
            }
            End::Fin if !known.contains(seq) => {
                whole += 1;
                let sent = group.at - transit - epoch;
                let edge = u64::try_from(sent.as_millis()).expect("short runs");
                // The group ends where its successor begins, one frame after its last.
                let interval = u64::try_from(interval.as_millis()).expect("short");
                let behind = edge.saturating_sub(group.last + interval);
                assert!(behind <= 1000, "group {seq} came {behind} ms behind the edge");
                most = most.max(behind);
            }
            End::Fin | End::Open => {}
        }
    }
    let newest = client.sub(0).edge().expect("frames came");
    assert!(newest + 200 >= client_edge(world), "it is at the edge again");
    (whole, reset, most)
}

fn client_edge(world: &World) -> u64 {
    world.clients[0].track(0).edge
}

#[test]
fn what_is_urgent_overtakes_what_waits_on_a_slow_link() {
    once("acceptance::what_is_urgent_overtakes_what_waits_on_a_slow_link", an_urgent_track);
}

/// Measured on the link, in datagrams that left, whatever they held: the datagrams that left
/// between the turn in which the shard accepted the header (its cursor appears in the model in that
/// turn) and the datagram that brought the header to the viewer. All their bytes count as other
/// streams' bytes, so the measure errs on the high side; a header whose first datagram was lost is
/// known by a later one, which errs on the high side too.
fn an_urgent_track(seed: u64) {
    let mut world = World::new(seed);
    let publisher = world.add(Spec::new(Lite06, Role::Publisher));
    let interval = Duration::from_millis(40);
    let urgent = Rate { interval, frames: 25, bytes: 1800, spread: 200 };
    let rest = Rate { interval, frames: 25, bytes: 4600, spread: 800 };
    world.at(publisher).publish((NAME.0, "urgent"), 5000, Some(urgent));
    world.at(publisher).publish((NAME.0, "rest"), 5000, Some(rest));
    let offered = 25 * (1900 + 5000);
    let mut spec = Spec::new(Lite06, Role::Subscriber);
    // A queue this short keeps the congestion window below 64 KiB, so that the bound is 128 KiB.
    spec.down = Terms { rate: Some(offered / 2), queue: 24 << 10, ..Terms::clean(20) };
    let viewer = world.add(spec);
    world.connect();
    world.known(NAME.0);
    world.noted = Some(Noted { client: viewer, track: "urgent", streams: BTreeMap::new() });
    let prefs = |priority| Preferences { max_age_ms: 2000, priority, ..Preferences::default() };
    let high = world.at(viewer).subscribe((NAME.0, "urgent"), prefs(200));
    let low = world.at(viewer).subscribe((NAME.0, "rest"), prefs(10));
    world.run(5000);
    let mut answers = Vec::new();
    for step in 0..300 {
        if step % 5 == 0 {
            let client = world.at(viewer);
            let id = client.viewer.ask(&mut client.wire, (NAME.0, "rest"));
            answers.push((id, client.down.entered));
        }
        world.run(100);
    }
    let noted = world.noted.take().expect("it was set");
    let (groups, worst) = headers(&world, viewer, &noted.streams);
    let worst_answer = controls(&world, viewer, &answers);
    let lacks = world.clients[viewer].sub(high).lacks(0);
    assert_eq!(lacks, [0; 0], "the urgent track comes whole");
    assert!(world.clients[viewer].down.lost > 0, "the link is too slow");
    let others = &world.clients[viewer].sub(low).groups;
    let cut = others.values().filter(|group| group.end == End::Reset(0x34)).count();
    println!(
        "half the rate: {groups} urgent headers, at most {worst} B between acceptance and \
         transmission; {} answers, at most {worst_answer} B (allowed {ALLOWED}); {} urgent groups \
         whole, begun at most {} ms after their making; of the rest {} whole, {cut} reset as old",
        answers.len(),
        world.clients[viewer].sub(high).whole().len(),
        slowest(&world, viewer, high),
        world.clients[viewer].sub(low).whole().len()
    );
    assert!(worst <= ALLOWED && worst_answer <= ALLOWED);
    oracle::content(&world);
    oracle::empty(&mut world);
}

/// max(congestion window, 64 KiB) + 64 KiB, the window being below 64 KiB on this link.
const ALLOWED: u64 = 128 << 10;
/// Most a datagram holds here.
const DATAGRAM: u64 = 1452;

/// The longest that an urgent group took from its publisher to the viewer, in milliseconds.
fn slowest(world: &World, viewer: usize, sub: usize) -> u64 {
    let took = |group: &super::viewer::Received| {
        let opened = u64::try_from((group.opened - world.epoch).as_millis()).expect("short");
        opened - group.first.unwrap_or(opened)
    };
    world.clients[viewer].sub(sub).groups.values().map(took).max().expect("groups came")
}

fn headers(world: &World, viewer: usize, accepted: &BTreeMap<u64, u64>) -> (usize, u64) {
    let seen = &world.clients[viewer].viewer.first_seen;
    let mut worst = 0;
    let mut count = 0;
    for (stream, ordinal) in seen {
        let number = quinn_proto::VarInt::from(*stream).into_inner();
        if let Some(at) = accepted.get(&number) {
            worst = worst.max(ordinal.saturating_sub(*at) * DATAGRAM);
            count += 1;
        }
    }
    assert!(count >= 30, "{count} urgent groups were seen");
    (count, worst)
}

/// From the request's sending on, which is before the answer's acceptance.
fn controls(world: &World, viewer: usize, asked: &[(quinn_proto::StreamId, u64)]) -> u64 {
    let answers = &world.clients[viewer].viewer.asked;
    let bytes = |(id, at): &(quinn_proto::StreamId, u64)| {
        let answer = &answers[id];
        assert!(answer.info.is_some(), "every request is answered");
        answer.ordinal.saturating_sub(*at) * DATAGRAM
    };
    asked.iter().map(bytes).max().expect("there were requests")
}
