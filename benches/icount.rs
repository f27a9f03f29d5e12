//! Instructions per delivered frame, with hard limits: a breach fails the run.
//!
//! Timed, in `delivery`: groups from the publisher's bytes to the viewers' writes, one arrival a
//! turn, in steady state (the cache is full and cycles), through `wire`, `model` and `session`; the
//! fake streams, which take and drop each slice, and the acknowledgements count too. Outside: the
//! set-up, the warm-up, making the publisher's bytes, quinn-proto, TLS, the kernel. In `whole`:
//! turns of a shard with quinn-proto and its cryptography, over the simulated net; outside: the
//! peers.
//!
//! A run sends a fixed number of groups and is named after the frames it delivers, the divisor: the
//! printed `Instructions` by that number are the instructions per delivered frame (per ingested
//! frame in `ingest`, per message in `wire`). Each limit is a budget of that kind times the
//! divisor, so that a slope over frames of a group, groups or viewers shows as a breach: it would
//! mean work that grows with what is cached or with who else is served.
//!
//! Callgrind counts are repeatable to the instruction for one build; `whole` varies a little with
//! the keys of its handshakes. Needs valgrind and the `gungraun-runner` of the version in
//! `Cargo.lock`.

#![expect(missing_docs, unused_qualifications, reason = "the macros write items and paths")]

#[path = "../tests/rig/mod.rs"]
mod rig;

use std::hint::black_box;

use corelay::name::{Path, TrackName};
use corelay::wire::lite::data::{FRAME_HEADER_MAX, FrameHeader, GROUP_HEADER_MAX, GroupHeader};
use corelay::wire::lite::subscribe::{Preferences, Subscribe};
use corelay::wire::message;
use corelay::wire::version::Version;
use gungraun::{
    Callgrind, EntryPoint, EventKind, LibraryBenchmarkConfig, library_benchmark,
    library_benchmark_group, main,
};
use rig::{Rig, Shape, Whole};

/// Groups that fill the cache and cycle it some times.
const WARM: u64 = 60;

/// Budgets of our own layers, in instructions per delivered frame, are 300 for long groups to 256
/// viewers, 600 for a group a frame, 60 for small frames in packets, 200 for small frames one a
/// turn. Every limit holds what is, with a few percent of room where the budget leaves it.
const LONG_256: u64 = 178;
const LONG_16: u64 = 248;
const LONG_1: u64 = 1370;
const SINGLE_256: u64 = 595;
const PACKED_16: u64 = 30;
const PACED_16: u64 = 200;

const LONG: Shape = Shape { viewers: 256, size: 1200, group: 60, arrivals: 60 };
const SINGLE: Shape = Shape { group: 1, arrivals: 1, ..LONG };
const PACKED: Shape = Shape { viewers: 16, size: 64, group: 256, arrivals: 15 };
const PACED: Shape = Shape { arrivals: 256, ..PACKED };

/// At most `budget` instructions for each of `count` things.
fn limit(budget: u64, count: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, budget * count)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

/// As `limit`, of the shard's turns alone.
fn limit_turns(budget: u64, count: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, budget * count)]);
    callgrind.entry_point(EntryPoint::Custom("*::whole::measured_turn*".to_owned()));
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

/// A rig in steady state that will send `groups` groups.
fn warm((shape, groups): (Shape, u64)) -> Rig {
    let mut rig = Rig::new(shape);
    rig.write(WARM.max(1000 / shape.group));
    rig.play();
    rig.write(groups);
    rig
}

/// Checking and dropping the whole arrangement is not counted.
fn check(rig: Rig) {
    rig.check();
}

#[library_benchmark(setup = warm, teardown = check)]
#[bench::frames_300(args = ((Shape { viewers: 0, ..LONG }, 5)), config = limit(1000, 300))]
#[bench::small_frames_1280(args = ((Shape { viewers: 0, ..PACKED }, 5)), config = limit(248, 1280))]
fn ingest(mut rig: Rig) -> Rig {
    rig.play();
    black_box(rig)
}

#[library_benchmark(setup = warm, teardown = check)]
#[bench::long_to_256_frames_15360(args = ((LONG, 1)), config = limit(LONG_256, 15_360))]
#[bench::long_to_16_frames_960(args = ((Shape { viewers: 16, ..LONG }, 1)), config = limit(LONG_16, 960))]
#[bench::long_to_1_frames_60(args = ((Shape { viewers: 1, ..LONG }, 1)), config = limit(LONG_1, 60))]
#[bench::single_to_256_frames_15360(args = ((SINGLE, 60)), config = limit(SINGLE_256, 15_360))]
#[bench::packed_to_16_frames_4096(args = ((PACKED, 1)), config = limit(PACKED_16, 4096))]
#[bench::paced_to_16_frames_4096(args = ((PACED, 1)), config = limit(PACED_16, 4096))]
fn deliver(mut rig: Rig) -> Rig {
    rig.play();
    black_box(rig)
}

fn warm_whole((shape, groups): (Shape, u64)) -> (Whole, u64) {
    let mut whole = Whole::new(shape);
    whole.play(WARM.max(120 / shape.group));
    whole.measure(|| 0);
    (whole, groups)
}

fn check_whole(whole: Whole) {
    whole.check();
}

#[library_benchmark(setup = warm_whole, teardown = check_whole)]
#[bench::long_to_16_frames_960(
    args = ((Shape { viewers: 16, ..LONG }, 1)),
    config = limit_turns(14_900, 960)
)]
#[bench::single_to_16_frames_960(
    args = ((Shape { viewers: 16, ..SINGLE }, 60)),
    config = limit_turns(16_700, 960)
)]
#[bench::packed_to_16_frames_4096(args = ((PACKED, 1)), config = limit_turns(1120, 4096))]
fn turns((mut whole, groups): (Whole, u64)) -> Whole {
    whole.play(groups);
    black_box(whole)
}

// Encode and decode of one message each.
#[library_benchmark]
#[bench::headers_1000(config = limit(60, 1000))]
fn frame_headers() -> u64 {
    let mut bytes = [0; FRAME_HEADER_MAX];
    let mut sum = 0;
    for size in 0..1000 {
        let header = FrameHeader { delta: 33, size };
        let len = header.encode_into(&mut bytes);
        sum += FrameHeader::decode(black_box(&bytes[..len])).map_or(0, |(header, _)| header.size);
    }
    black_box(sum)
}

#[library_benchmark]
#[bench::headers_1000(config = limit(120, 1000))]
fn group_headers() -> u64 {
    let mut bytes = [0; GROUP_HEADER_MAX];
    let mut sum = 0;
    for sequence in 0..1000 {
        let header = GroupHeader { subscribe: 3, sequence, frame_start: 0 };
        let len = header.encode_into(Version::Lite06, &mut bytes);
        let decoded = GroupHeader::decode(black_box(&bytes[1..len]), Version::Lite06);
        sum += decoded.map_or(0, |(header, _)| header.sequence);
    }
    black_box(sum)
}

#[library_benchmark]
#[bench::messages_1000(config = limit(2200, 1000))]
fn subscribes() -> u64 {
    let broadcast = Path::parse("room/camera").expect("few segments");
    let prefs = Preferences {
        priority: 100,
        max_age_ms: 2000,
        start: Some(17),
        end: None,
        frame_start: 0,
        frame_end: None,
    };
    let track = TrackName::new("video");
    let subscribe = Subscribe { id: 3, broadcast, track, prefs };
    let mut bytes = Vec::new();
    let mut sum = 0;
    for _ in 0..1000 {
        bytes.clear();
        subscribe.encode(Version::Lite06, &mut bytes);
        let (body, _) = message(black_box(&bytes), 1024).expect("just written");
        sum += Subscribe::decode(body, Version::Lite06).expect("just written").id;
    }
    black_box(sum)
}

library_benchmark_group!(name = delivery; benchmarks = ingest, deliver);
library_benchmark_group!(name = whole; benchmarks = turns);
library_benchmark_group!(name = wire; benchmarks = frame_headers, group_headers, subscribes);

main!(library_benchmark_groups = delivery, whole, wire);
