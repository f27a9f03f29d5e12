//! Instructions per delivered frame, with hard limits: a breach fails the run.
//!
//! Timed: a group from the publisher's bytes to the viewers' writes, in steady state (the cache is
//! full and cycles), through `wire`, `model` and `session` and the fake streams that take and drop
//! each slice, acknowledgements included. Outside: quinn-proto, the kernel, TLS, and the set-up. A
//! limit is a budget per delivered frame times the frames that one run delivers (`GROUPS` groups),
//! so dividing the printed `Instructions` by `frames` in the name gives instructions per delivered
//! frame. A slope over viewers would mean work for each viewer beyond its slice.
//!
//! Callgrind counts are repeatable to the instruction for one build. Needs valgrind and the
//! `gungraun-runner` of the version in `Cargo.lock`.

#![expect(unused_qualifications, reason = "the macros write paths of their own")]
#![expect(missing_docs, reason = "the macros make modules without any")]
#![expect(clippy::needless_pass_by_value, reason = "a teardown takes what the run returned")]

#[path = "../tests/rig/mod.rs"]
mod rig;

use std::hint::black_box;

use corelay::wire::lite::data::{FrameHeader, GROUP_HEADER_MAX, GroupHeader};
use corelay::wire::version::Version;
use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use rig::{Rig, Shape};

/// Groups that are sent before anything is counted.
const WARM: u64 = 60;

/// Limits, in instructions per delivered frame. The goals are 300, 600, 60 and 200 for the first
/// four; the second and the fourth are not reached yet, and their limits hold what is.
const LONG_256: u64 = 260;
const SINGLE_256: u64 = 1050;
const PACKED_16: u64 = 40;
const PACED_16: u64 = 280;
const LONG_1: u64 = 1400;
const LONG_16: u64 = 330;

fn warm(shape: Shape) -> Rig {
    let mut rig = Rig::new(shape);
    for _ in 0..WARM.max(1000 / shape.group) {
        rig.group();
    }
    rig.prepare(60 / shape.group.min(60));
    rig
}

/// At most `budget` instructions for each of `frames` frames.
fn limit(budget: u64, frames: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(EventKind::Ir, budget * frames)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

fn run(mut rig: Rig, groups: u64) -> Rig {
    for _ in 0..groups {
        rig.group();
    }
    black_box(rig)
}

/// Dropping the whole arrangement is not counted.
fn check(rig: Rig) {
    rig.check();
}

const LONG: Shape = Shape { viewers: 256, size: 1200, group: 60, arrivals: 60 };
const SINGLE: Shape = Shape { viewers: 256, size: 1200, group: 1, arrivals: 1 };
const PACKED: Shape = Shape { viewers: 16, size: 64, group: 256, arrivals: 15 };
const PACED: Shape = Shape { viewers: 16, size: 64, group: 256, arrivals: 256 };

#[library_benchmark(teardown = check)]
#[bench::frames_15360(args = (LONG), setup = warm, config = limit(LONG_256, 15_360))]
fn long_groups_to_256(rig: Rig) -> Rig {
    run(rig, 1)
}

#[library_benchmark(teardown = check)]
#[bench::frames_15360(args = (SINGLE), setup = warm, config = limit(SINGLE_256, 15_360))]
fn single_frame_groups_to_256(rig: Rig) -> Rig {
    run(rig, 60)
}

#[library_benchmark(teardown = check)]
#[bench::frames_4096(args = (PACKED), setup = warm, config = limit(PACKED_16, 4096))]
fn small_frames_in_packets_to_16(rig: Rig) -> Rig {
    run(rig, 1)
}

#[library_benchmark(teardown = check)]
#[bench::frames_4096(args = (PACED), setup = warm, config = limit(PACED_16, 4096))]
fn small_frames_paced_to_16(rig: Rig) -> Rig {
    run(rig, 1)
}

#[library_benchmark(teardown = check)]
#[bench::frames_60(
    args = (Shape { viewers: 1, ..LONG }),
    setup = warm,
    config = limit(LONG_1, 60)
)]
fn long_groups_to_1(rig: Rig) -> Rig {
    run(rig, 1)
}

#[library_benchmark(teardown = check)]
#[bench::frames_960(
    args = (Shape { viewers: 16, ..LONG }),
    setup = warm,
    config = limit(LONG_16, 960)
)]
fn long_groups_to_16(rig: Rig) -> Rig {
    run(rig, 1)
}

// Encode and decode of one header each.
#[library_benchmark]
#[bench::headers_1000(config = limit(60, 1000))]
fn frame_headers() -> u64 {
    let mut bytes = [0; 16];
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

library_benchmark_group!(
    name = delivery;
    benchmarks =
        long_groups_to_256,
        single_frame_groups_to_256,
        small_frames_in_packets_to_16,
        small_frames_paced_to_16,
        long_groups_to_1,
        long_groups_to_16
);

library_benchmark_group!(name = wire; benchmarks = frame_headers, group_headers);

main!(library_benchmark_groups = delivery, wire);
